//! Histories as files.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::event::Event;

/// What happened, in no order.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub(super) events: Vec<Event>,
    /// Where each event comes from: the number of a file and of a line, from 1; none for one made in memory.
    origins: Vec<Option<(usize, usize)>>,
    files: Vec<String>,
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
            let event = serde_json::from_str(line).map_err(|error| Unreadable {
                place: format!("{name}:{}", index + 1),
                why: format!("{error}: {line}"),
            })?;
            self.events.push(event);
            self.origins.push(Some((file, index + 1)));
        }
        Ok(())
    }

    /// Reads one file, or every file of a folder whose name ends in `.jsonl`.
    ///
    /// # Errors
    /// What the file system says, or the first line that is no event.
    pub fn read(path: &Path) -> Result<Self, Unreadable> {
        let unreadable = |error: io::Error| Unreadable { place: path.display().to_string(), why: error.to_string() };
        let mut files: Vec<PathBuf> = if path.is_dir() {
            let entries: Result<Vec<_>, _> = fs::read_dir(path).map_err(unreadable)?.collect();
            let files = entries.map_err(unreadable)?.into_iter().map(|entry| entry.path());
            files.filter(|file| file.extension().is_some_and(|extension| extension == "jsonl")).collect()
        } else {
            vec![path.to_owned()]
        };
        files.sort();
        let mut history = Self::default();
        for file in files {
            let text = fs::read_to_string(&file).map_err(unreadable)?;
            let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            history.add_lines(&name, &text)?;
        }
        Ok(history)
    }

    /// Adds one event.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
        self.origins.push(None);
    }

    /// All events, as they were added.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
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
        let events: Vec<_> = events.into_iter().collect();
        Self { origins: vec![None; events.len()], files: Vec::new(), events }
    }
}

/// A file or line that is no history.
#[derive(Clone, Debug)]
pub struct Unreadable {
    place: String,
    why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

impl std::error::Error for Unreadable {}
