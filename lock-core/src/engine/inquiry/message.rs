//! What goes over the channels: fields as netstrings (Bernstein, 1997), so that a key may hold any character.

use std::{sync::Arc, time::Duration};

use super::{Identity, Process};
use crate::{fencing::FencingToken, mode::Mode};

/// The keys that a question is about, as the store knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Key(String),
    /// The holder of a key; managers that do not hold it say nothing.
    Holder(String),
    Prefix(String),
}

/// A question to all managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// A random number.
    pub(crate) id: u64,
    /// The channel of the manager that asks.
    pub(crate) channel: Arc<str>,
    pub(crate) subject: Subject,
}

/// A part of a manager's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    /// The number of the question.
    pub(crate) id: u64,
    pub(crate) manager: Identity,
    /// The number of the part.
    pub(crate) part: u32,
    /// Whether the answer ends with it.
    pub(crate) is_last: bool,
    /// Whether it ends there although the manager has more to say.
    pub(crate) is_cut: bool,
    pub(crate) entries: Vec<Entry>,
}

/// A holder or waiter, or that there are more waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The key as the store knows it.
    pub(crate) key: String,
    pub(crate) label: String,
    /// For how long it has held the key, or waited for it.
    pub(crate) since: Duration,
    /// The trace context of a holder; empty if it has none.
    pub(crate) trace: String,
    /// The mode of the lease that it holds or waits for.
    pub(crate) mode: Mode,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Holds {
        ttl: Duration,
        fence: FencingToken,
    },
    Waits {
        place: u32,
    },
    /// The key has more waiters than are named.
    More,
}

impl Question {
    pub(crate) fn write(&self) -> String {
        let Self { id, channel, subject } = self;
        let (form, text) = match subject {
            Subject::Key(key) => ("key", key),
            Subject::Holder(key) => ("holder", key),
            Subject::Prefix(prefix) => ("prefix", prefix),
        };
        write(QUESTION, [&id.to_string(), &**channel, form, text])
    }

    pub(crate) fn read(message: &str) -> Option<Self> {
        let mut fields = Fields(message.strip_prefix(QUESTION)?);
        let (id, channel) = (fields.number()?, fields.next()?);
        // Anybody who may publish could have this process publish elsewhere, with its rights.
        let id_of_manager = channel.strip_prefix(CHANNELS)?;
        let is_manager = id_of_manager.len() == 32 && id_of_manager.bytes().all(|byte| byte.is_ascii_hexdigit());
        let channel = is_manager.then(|| channel.into())?;
        let subject = match (fields.next()?, fields.next()?.to_owned()) {
            ("key", key) => Subject::Key(key),
            ("holder", key) => Subject::Holder(key),
            ("prefix", prefix) => Subject::Prefix(prefix),
            _ => return None,
        };
        Some(Self { id, channel, subject })
    }

    /// Makes the parts of an answer one by one. To make them all at once would take the engine's task from the leases for too long.
    pub(crate) fn answers<'a, S>(
        &'a self,
        manager: &'a Identity,
        seen: &'a [S],
        entry: impl Fn(&S) -> Entry + 'a,
        is_cut: bool,
    ) -> impl Iterator<Item = Statement> + 'a {
        let parts = seen.len().div_ceil(ENTRIES).max(1);
        (0..parts).map(move |part| {
            let entries = seen.iter().skip(part * ENTRIES).take(ENTRIES).map(&entry).collect();
            let (is_last, manager) = (part + 1 == parts, manager.clone());
            let part = u32::try_from(part).unwrap_or(u32::MAX);
            Statement { id: self.id, manager, part, is_last, is_cut: is_last && is_cut, entries }
        })
    }
}

impl Statement {
    pub(crate) fn write(&self) -> String {
        let Self { id, manager: Identity { id: manager, process }, part, is_last, is_cut, entries } = self;
        let Process { service, host, number } = process;
        let last = match (is_last, is_cut) {
            (true, false) => LAST,
            (true, true) => CUT,
            (false, _) => "",
        };
        let head = [&id.to_string(), &**manager, service, host, &number.to_string(), &part.to_string(), last];
        let mut message = write(STATEMENT, head);
        for Entry { key, label, since, trace, mode, what } in entries {
            let (form, ttl, number) = match what {
                What::Holds { ttl, fence } => ("holds", *ttl, fence.get()),
                What::Waits { place } => ("waits", Duration::ZERO, u64::from(*place)),
                What::More => ("more", Duration::ZERO, 0),
            };
            let [since, ttl] = [since, &ttl].map(|duration| duration.as_millis().to_string());
            add(&mut message, [form, key, label, &since, &ttl, &number.to_string(), trace, &mode.write()]);
        }
        message
    }

    pub(crate) fn read(message: &str) -> Option<Self> {
        let mut fields = Fields(message.strip_prefix(STATEMENT)?);
        let id = fields.number()?;
        let [manager, service, host] = [fields.next()?, fields.next()?, fields.next()?].map(Arc::from);
        // They are shown on terminals and in logs.
        let [service, host] = [service, host].map(|text: Arc<str>| text.escape_debug().to_string().into());
        let manager = Identity { id: manager, process: Process { service, host, number: fields.number()? } };
        let (part, last) = (fields.number()?, fields.next()?);
        let (is_last, is_cut) = (matches!(last, LAST | CUT), last == CUT);
        let mut entries = Vec::new();
        while !fields.0.is_empty() {
            let form = fields.next()?;
            let [key, label] = [fields.next()?, fields.next()?].map(str::to_owned);
            let [since, ttl] = [fields.number()?, fields.number()?].map(Duration::from_millis);
            let number: u64 = fields.number()?;
            let what = match form {
                "holds" => What::Holds { ttl, fence: FencingToken::new(number) },
                "waits" => What::Waits { place: u32::try_from(number).ok()? },
                "more" => What::More,
                _ => return None,
            };
            let (trace, mode) = (fields.next()?.to_owned(), Mode::read(fields.next()?)?);
            entries.push(Entry { key, label, since, trace, mode, what });
        }
        Some(Self { id, manager, part, is_last, is_cut, entries })
    }
}

fn write<'a>(mark: &str, fields: impl IntoIterator<Item = &'a str>) -> String {
    let mut message = mark.to_owned();
    add(&mut message, fields);
    message
}

fn add<'a>(message: &mut String, fields: impl IntoIterator<Item = &'a str>) {
    for field in fields {
        message.push_str(&field.len().to_string());
        message.push(':');
        message.push_str(field);
        message.push(',');
    }
}

/// What is left to be read of a message.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (length, rest) = self.0.split_once(':')?;
        let (field, rest) = rest.split_at_checked(length.parse().ok()?)?;
        self.0 = rest.strip_prefix(',')?;
        Some(field)
    }

    fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        self.next()?.parse().ok()
    }
}

/// How the channels of managers begin.
const CHANNELS: &str = "lock-core:calls:";
/// How a question begins.
const QUESTION: &str = "lock-core:who:1 ";
/// How an answer begins.
const STATEMENT: &str = "lock-core:told:1 ";
/// Says that an answer ends, with all that the manager has to say.
const LAST: &str = "last";
/// Says that an answer ends, and that the manager has more to say.
const CUT: &str = "cut";
/// How many holders and waiters one part of an answer names.
const ENTRIES: usize = 200;
