//! Copies the sources of lock-core, with the deliberate bugs of `engine.txt`: `plant FROM LIST SWITCH TO`.
//!
//! Each bug replaces a piece of the engine by another one, which asks whether the bug is on. So one build has all of them, and the
//! engine itself none. A file that is there already is written only if it changes, so that cargo builds only what it must.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// A piece of a file, and what takes its place.
pub(crate) struct Bug<'a> {
    pub(crate) file: &'a str,
    pub(crate) old: &'a str,
    pub(crate) new: &'a str,
}

/// Reads a list of bugs.
pub(crate) fn read(list: &str) -> Vec<Bug<'_>> {
    let bugs = list.split("\n@ ").skip(1).map(|bug| {
        let (head, text) = bug.split_once('\n').expect("a text follows the file");
        let (file, _) = head.split_once(':').expect("the file is followed by names");
        let (old, new) = text.split_once("\n=>\n").expect("`=>` stands between the two texts");
        Bug { file, old, new: new.trim_end_matches('\n') }
    });
    bugs.collect()
}

/// Replaces what the bugs of a file replace, all of it found before anything is changed.
///
/// # Errors
/// Says which text is not there exactly once.
pub(crate) fn plant(file: &str, source: &str, bugs: &[Bug<'_>]) -> Result<String, String> {
    let mut places = Vec::new();
    for bug in bugs.iter().filter(|bug| bug.file == file) {
        let mut found = source.match_indices(bug.old);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => places.push((at, bug)),
            (None, _) => return Err(format!("{file}: this is not there any longer:\n{}", bug.old)),
            (Some(_), Some(_)) => return Err(format!("{file}: this is there more than once:\n{}", bug.old)),
        }
    }
    places.sort_by_key(|(at, _)| *at);
    let (mut planted, mut rest) = (String::new(), 0);
    for (at, bug) in places {
        if at < rest {
            return Err(format!("{file}: this overlaps with another bug:\n{}", bug.old));
        }
        planted.push_str(&source[rest..at]);
        planted.push_str(bug.new);
        rest = at + bug.old.len();
    }
    planted.push_str(&source[rest..]);
    Ok(planted)
}

#[allow(dead_code, reason = "a test includes this file, too")]
fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [from, list, switch, to] = &*arguments else {
        eprintln!("usage: plant FROM LIST SWITCH TO");
        return ExitCode::from(2);
    };
    match copy(from.as_ref(), list.as_ref(), switch.as_ref(), to.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn copy(from: &Path, list: &Path, switch: &Path, to: &Path) -> Result<(), String> {
    let list = text(list)?;
    let bugs = read(&list);
    let mut files = Vec::new();
    find(from, &mut files)?;
    if let Some(bug) = bugs.iter().find(|bug| !files.contains(&from.join(bug.file))) {
        return Err(format!("there is no file {}", bug.file));
    }
    for path in &files {
        let relative = path.strip_prefix(from).expect("it was found there");
        let mut source = plant(&relative.to_string_lossy(), &text(path)?, &bugs)?;
        if relative == Path::new("lib.rs") {
            source.push_str("\n#[doc(hidden)]\npub mod mutants;\n");
        }
        write(&to.join(relative), &source)?;
    }
    write(&to.join("mutants.rs"), &text(switch)?)
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let problem = |error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() { find(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, source: &str) -> Result<(), String> {
    if text(path).is_ok_and(|present| present == source) {
        return Ok(());
    }
    let folder = path.parent().expect("a file has a folder");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, source))
        .map_err(|error| format!("{}: {error}", path.display()))
}
