//! One line of a history.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::mode::Mode;

/// What one process did, or what was done to it, as one JSON object. Fields that say nothing are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Who: `p3`, or `p3/t7` for a task of it. It has at most one operation under way.
    #[serde(default, skip_serializing_if = "is_default")]
    pub process: String,
    /// What.
    pub op: Op,
    /// The key that is locked, that the register belongs to, or that was left over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The lease's token, `<tenure>/<hold>`; of a foreign client any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The fencing token; of a register the one that was written or found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Just before the call, or when it happened; NaN (left out) where that says nothing.
    #[serde(default = "nan", skip_serializing_if = "is_nan")]
    pub t_invoke: f64,
    /// Just after the call; none if it never came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_return: Option<f64>,
    /// How the call ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub result: Outcome,
    /// Until when the guard says that it is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<f64>,
    /// How long a silent holder blocks others; none for a foreign key that does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<f64>,
    /// In which mode an acquire asks for the lease.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// The token of the exclusive lease that an acquire lets others share, without giving the key back in between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// An acquire that does not wait.
    #[serde(default, rename = "try", skip_serializing_if = "is_default")]
    pub only_tries: bool,
    /// An acquire of one of several keys that were asked for at once: it waits for those before it first, and may have
    /// been held for long when that of the last is known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub several: bool,
    /// An acquire by another library's client.
    #[serde(default, skip_serializing_if = "is_default")]
    pub foreign: bool,
    /// What the guard answered to a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<bool>,
    /// What was written to the register, or found in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// What the writer had found in the register before it wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev: Option<Value>,
    /// A leftover that is meant to be there.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allowed: bool,
    /// How long a leftover still lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pttl: Option<f64>,
    /// How long it may live at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pttl: Option<f64>,
}

impl Event {
    /// An event at `t_invoke` that says nothing else yet.
    pub fn new(process: impl Into<String>, op: Op, t_invoke: f64) -> Self {
        Self { process: process.into(), op, t_invoke, ..Self::default() }
    }

    /// Whether the call came back and did what it was asked for.
    pub fn succeeded(&self) -> bool {
        self.result == Outcome::Ok && self.t_return.is_some()
    }

    /// The same on `key`.
    pub(crate) fn on(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// The same of the lease with this token.
    pub(crate) fn of(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// The same, which came back at a time.
    pub(crate) fn until(mut self, t_return: f64) -> Self {
        self.t_return = Some(t_return);
        self
    }

    /// The line without its end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("an event is made of text and numbers")
    }
}

/// What a process did, or what was done to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Asked for the lease.
    #[default]
    Acquire,
    /// Pushed the deadline out, or let the engine do so.
    Extend,
    /// Gave the lease back.
    Release,
    /// Was told that the lease is lost.
    Lost,
    /// Asked the guard whether it is valid.
    Check,
    /// Wrote to the fenced register.
    Write,
    /// Read the fenced register.
    Read,
    /// Was killed.
    Crash,
    /// Something was broken on purpose.
    Fault,
    /// A process did not run, as far as its pulse shows.
    Standstill,
    /// A key was found after the run.
    Leftover,
    /// The servers may have lost leases whose holders rely on them.
    Vanished,
}

impl Op {
    /// Whether it is something that a process did with a key, or was told of it.
    pub(super) const fn is_call(self) -> bool {
        !matches!(self, Self::Crash | Self::Fault | Self::Standstill | Self::Leftover | Self::Vanished)
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It did what it was asked for.
    #[default]
    Ok,
    /// It surely did nothing.
    Fail,
    /// Nobody knows.
    Info,
}

impl Outcome {
    /// Whether it did what it was asked for, if that is known.
    pub(crate) fn of(done: Option<bool>) -> Self {
        done.map_or(Self::Info, |done| if done { Self::Ok } else { Self::Fail })
    }
}

fn nan() -> f64 {
    f64::NAN
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_nan(number: &f64) -> bool {
    number.is_nan()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
