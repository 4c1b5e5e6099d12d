//! The pulse of a process: for how long it stood still.
//!
//! A thread of each process that records wants to run every 15 ms, and notes when it did. A machine with more to do than it has cores
//! wakes it late, by tens to hundreds of milliseconds; so does a stop, or a suspended machine. Then nothing shows that
//! the process could do anything between two beats, and that time is written down as a *standstill* of every recorder of the
//! process. A line of a history is written after the standstills before it: a late beat is noted by the call that comes first, even
//! if the thread has not run since.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    thread,
    time::Duration,
};

use rustix::time::ClockId;

use super::{
    clock::{now, read},
    record::Recorder,
};

/// How often the thread wants to run.
const EVERY: Duration = Duration::from_millis(15);

/// A beat that is later is a standstill, in ms.
const LATE: f64 = 10.0;

/// When something ran, in ms.
#[derive(Clone, Copy, Debug)]
struct Beat {
    /// On the clock of histories.
    at: f64,
    /// On the clock that goes on while the machine is suspended, as that of leases does.
    awake: f64,
}

impl Beat {
    fn now() -> Self {
        Self { at: now(), awake: read(AWAKE) }
    }

    /// The time since another on the clock that went on for longer.
    fn since(self, other: Self) -> f64 {
        (self.at - other.at).max(self.awake - other.awake)
    }
}

/// The last beat, and until when it is written down that none followed.
#[derive(Debug)]
struct Pulse {
    last: Beat,
    told: f64,
}

impl Pulse {
    fn new(first: Beat) -> Self {
        Self { last: first, told: first.at }
    }

    /// Returns the standstill that ends now, but for what was told of it before.
    fn look(&mut self, now: Beat) -> Option<(f64, f64)> {
        if now.since(self.last) <= EVERY.as_secs_f64() * 1_000.0 + LATE {
            return None;
        }
        let from = self.last.at.max(self.told);
        self.told = now.at;
        Some((from, now.at))
    }

    /// The same, and the thread has run.
    fn beat(&mut self, now: Beat) -> Option<(f64, f64)> {
        let standstill = self.look(now);
        self.last = now;
        standstill
    }
}

/// The pulse of this process, and where it is written down.
#[derive(Debug)]
struct Process {
    pulse: Pulse,
    recorders: Vec<Weak<Recorder>>,
}

impl Process {
    fn tell(&mut self, standstill: Option<(f64, f64)>) {
        let Some((from, to)) = standstill else { return };
        self.recorders.retain(|recorder| recorder.strong_count() > 0);
        for recorder in self.recorders.iter().filter_map(Weak::upgrade) {
            recorder.stood_still(from, to);
        }
    }
}

/// Has the standstills of this process written down by a recorder, from now on.
pub(super) fn tell_to(recorder: &Arc<Recorder>) {
    with(|process| process.recorders.push(Arc::downgrade(recorder)));
}

/// Writes down a standstill that no beat has ended yet.
pub(super) fn look() {
    with(|process| {
        let standstill = process.pulse.look(Beat::now());
        process.tell(standstill);
    });
}

fn with(act: impl FnOnce(&mut Process)) {
    static PROCESS: OnceLock<Mutex<Process>> = OnceLock::new();
    let process = PROCESS.get_or_init(|| {
        thread::Builder::new().name("pulse".to_owned()).spawn(beat_for_ever).expect("a thread can be started");
        Mutex::new(Process { pulse: Pulse::new(Beat::now()), recorders: Vec::new() })
    });
    act(&mut process.lock().unwrap_or_else(PoisonError::into_inner));
}

fn beat_for_ever() {
    loop {
        thread::sleep(EVERY);
        let mut recorders = Vec::new();
        with(|process| {
            let standstill = process.pulse.beat(Beat::now());
            process.tell(standstill);
            recorders.extend(process.recorders.iter().filter_map(Weak::upgrade));
        });
        recorders.iter().for_each(|recorder| recorder.look_at_delays());
    }
}

#[cfg(target_os = "linux")]
const AWAKE: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const AWAKE: ClockId = ClockId::Monotonic;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: f64) -> Beat {
        Beat { at, awake: at + 500.0 }
    }

    #[test]
    fn beats_in_time_are_no_standstill() {
        let mut pulse = Pulse::new(at(0.0));
        for beat in [15.0, 31.0, 55.9] {
            assert_eq!(pulse.look(at(beat)), None);
            assert_eq!(pulse.beat(at(beat)), None);
        }
    }

    #[test]
    fn a_late_beat_is_a_standstill_since_the_last_one() {
        let mut pulse = Pulse::new(at(0.0));
        assert_eq!(pulse.beat(at(15.0)), None);
        assert_eq!(pulse.beat(at(95.0)), Some((15.0, 95.0)));
        assert_eq!(pulse.beat(at(110.0)), None);
    }

    #[test]
    fn a_standstill_is_told_by_whoever_comes_first_and_each_part_once() {
        let mut pulse = Pulse::new(at(0.0));
        assert_eq!(pulse.look(at(60.0)), Some((0.0, 60.0)));
        assert_eq!(pulse.look(at(61.0)), Some((60.0, 61.0)));
        assert_eq!(pulse.beat(at(90.0)), Some((61.0, 90.0)));
        assert_eq!(pulse.look(at(91.0)), None);
    }

    #[test]
    fn a_suspended_machine_is_a_standstill() {
        let mut pulse = Pulse::new(at(0.0));
        let resumed = Beat { at: 16.0, awake: 60_516.0 };
        assert_eq!(pulse.beat(resumed), Some((0.0, 16.0)));
    }
}
