//! Histories as files.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::{
    check::{Mark, end},
    event::{Event, Op},
    standstill::Standstills,
};

/// What happened, in no order.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub(super) events: Vec<Event>,
    /// Where each event comes from: the number of a file and of a line, from 1; none for one made in memory.
    origins: Vec<Option<(usize, usize)>>,
    files: Vec<String>,
    /// When which process stood still.
    pub(super) standstills: Standstills,
}

impl History {
    /// Takes in the lines of one text, called `name` in messages. Empty lines say nothing.
    ///
    /// # Errors
    /// The first line that is no event.
    pub fn add_lines(&mut self, name: &str, text: &str) -> Result<(), Unreadable> {
        let file = self.files.len();
        self.files.push(name.to_owned());
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let event: Event = serde_json::from_str(line).map_err(|error| Unreadable {
                place: format!("{name}:{}", index + 1),
                why: format!("{error}: {line}"),
            })?;
            self.add(event, Some((file, index + 1)));
        }
        Ok(())
    }

    /// Reads one file, or every file of a folder whose name ends in `.jsonl`.
    ///
    /// # Errors
    /// What the file system says, or the first line that is no event.
    pub fn read(path: &Path) -> Result<Self, Unreadable> {
        if path.is_dir() {
            return Self::read_all(path, "jsonl");
        }
        let mut history = Self::default();
        history.add_file(path)?;
        Ok(history)
    }

    /// Reads every file of a folder that has this extension.
    pub(super) fn read_all(folder: &Path, extension: &str) -> Result<Self, Unreadable> {
        let entries: io::Result<Vec<_>> = fs::read_dir(folder).and_then(Iterator::collect);
        let entries = entries.map_err(|error| Unreadable::of(folder, &error))?;
        let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|found| found == extension));
        files.sort();
        let mut history = Self::default();
        files.iter().try_for_each(|file| history.add_file(file))?;
        Ok(history)
    }

    fn add_file(&mut self, file: &Path) -> Result<(), Unreadable> {
        let text = fs::read_to_string(file).map_err(|error| Unreadable::of(file, &error))?;
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        self.add_lines(&name, &text)
    }

    /// Adds one event.
    pub fn push(&mut self, event: Event) {
        self.add(event, None);
    }

    fn add(&mut self, event: Event, origin: Option<(usize, usize)>) {
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
        let line = self.events[event].to_json();
        match self.origins[event] {
            Some((file, number)) => format!("{}:{number}: {line}", self.files[file]),
            None => format!("#{event}: {line}"),
        }
    }
}

impl FromIterator<Event> for History {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        let mut history = Self::default();
        events.into_iter().for_each(|event| history.push(event));
        history
    }
}

/// A file or line that is no history.
#[derive(Clone, Debug)]
pub struct Unreadable {
    place: String,
    why: String,
}

impl Unreadable {
    fn of(path: &Path, error: &io::Error) -> Self {
        Self { place: path.display().to_string(), why: error.to_string() }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

impl std::error::Error for Unreadable {}
