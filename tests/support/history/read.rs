//! Histories as files.

use std::{fs, io, path::Path};

use super::{
    check::{Mark, end},
    event::{Event, Op},
    standstill::Standstills,
};

/// What happened, in no order.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub(super) events: Vec<Event>,
    /// Where each event comes from: the file and the line, from 1; `#` and its number for one made in memory.
    origins: Vec<String>,
    /// When which process stood still.
    pub(super) standstills: Standstills,
}

impl History {
    /// Takes in the lines of one text, called `name` in messages. Empty lines say nothing.
    ///
    /// # Errors
    /// The first line that is no event.
    pub fn add_lines(&mut self, name: &str, text: &str) -> io::Result<()> {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let origin = format!("{name}:{}", index + 1);
            let event = serde_json::from_str(line);
            self.add(event.map_err(|error| io::Error::other(format!("{origin}: {error}: {line}")))?, origin);
        }
        Ok(())
    }

    /// Reads every file of a folder that has this extension.
    pub(super) fn read_all(folder: &Path, extension: &str) -> io::Result<Self> {
        let entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
        let mut files: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
        files.retain(|file| file.extension().is_some_and(|found| found == extension));
        files.sort();
        let mut history = Self::default();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            history.add_lines(&name, &fs::read_to_string(&file)?)?;
        }
        Ok(history)
    }

    /// Adds one event.
    pub fn push(&mut self, event: Event) {
        self.add(event, format!("#{}", self.events.len()));
    }

    fn add(&mut self, event: Event, origin: String) {
        if event.op == Op::Standstill {
            self.standstills.add(event);
        } else {
            self.events.push(event);
            self.origins.push(origin);
        }
    }

    /// All events but standstills, as they were added.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The windows in which leases may have vanished, as the test of the run has written down.
    pub fn marks(&self) -> Vec<Mark> {
        let vanished = self.events.iter().filter(|event| event.op == Op::Vanished);
        let mark = |event: &Event| Mark { key: event.key.clone(), from: event.t_invoke, to: end(event) };
        vanished.map(mark).collect()
    }

    /// For how long a process stood still between two moments, in ms: it, or that of the test. No measure of how long it took to do
    /// something may count that time.
    pub fn stood_still(&self, process: &str, from: f64, to: f64) -> f64 {
        self.standstills.of(process).stood(from, to)
    }

    /// One event as messages show it: where it stands, and its line.
    pub(super) fn show(&self, event: usize) -> String {
        format!("{}: {}", self.origins[event], self.events[event].to_json())
    }
}

impl FromIterator<Event> for History {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        let mut history = Self::default();
        events.into_iter().for_each(|event| history.push(event));
        history
    }
}
