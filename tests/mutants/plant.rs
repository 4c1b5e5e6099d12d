//! Copies the sources of the libraries, of `lockctl` and of the simulation, with the deliberate bugs of the lists beside this file: `plant ROOT TO`.
//!
//! Each bug replaces a piece of a file by another one, which asks whether the bug is on. So one build has all of them, and the
//! product itself none. A file that is there already is written only if it changes, so that cargo builds only what it must.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The lists, and the folder in which the paths of each begin.
pub(crate) const LISTS: [(&str, &str); 10] = [
    ("engine.txt", "lock-core/src"),
    ("store.txt", "lock-core/src"),
    ("node.txt", "tests/support/sim"),
    ("leases.txt", "lock-core/src"),
    ("backends.txt", "lock-core/src"),
    ("script.txt", "lock-core/src/backend/redis/scripts"),
    ("kit.txt", "lock-core/test-kit/src"),
    ("tower.txt", "lock-tower"),
    ("macros.txt", "lock-macros/src"),
    ("lockctl.txt", "lock-core/lockctl/src"),
];

/// A piece of a file, and what takes its place.
pub(crate) struct Bug<'a> {
    pub(crate) file: String,
    /// The bugs that the new text has.
    pub(crate) names: Vec<&'a str>,
    pub(crate) old: &'a str,
    pub(crate) new: &'a str,
}

/// Reads a list of bugs, whose paths begin in `folder`.
pub(crate) fn read<'a>(folder: &str, list: &'a str) -> Vec<Bug<'a>> {
    let bugs = list.split("\n@ ").skip(1).map(|bug| {
        let (head, mut text) = bug.split_once('\n').expect("a text follows the file");
        let (file, names) = head.split_once(':').expect("the file is followed by names");
        while text.starts_with("# ") || text.starts_with("- ") {
            text = text.split_once('\n').expect("a text follows").1;
        }
        let (old, new) = text.split_once("\n=>\n").expect("`=>` stands between the two texts");
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        Bug { file: format!("{folder}/{file}"), names, old, new: new.trim_end_matches('\n') }
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
    let [root, to] = &*arguments else {
        eprintln!("usage: plant ROOT TO");
        return ExitCode::from(2);
    };
    match copy(root.as_ref(), to.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn copy(root: &Path, to: &Path) -> Result<(), String> {
    let mut lists = Vec::new();
    for (list, folder) in LISTS {
        lists.push((folder, text(&root.join("tests/mutants").join(list))?));
    }
    let bugs: Vec<_> = lists.iter().flat_map(|(folder, list)| read(folder, list)).collect();
    let folders: BTreeSet<_> = bugs.iter().map(|bug| whole(&bug.file)).collect();
    let mut files = Vec::new();
    for folder in folders {
        find(&root.join(folder), &mut files)?;
    }
    if let Some(bug) = bugs.iter().find(|bug| !files.contains(&root.join(&bug.file))) {
        return Err(format!("there is no file {}", bug.file));
    }
    for path in &files {
        let relative = path.strip_prefix(root).expect("it was found there");
        let mut source = plant(&relative.to_string_lossy(), &text(path)?, &bugs)?;
        if relative == Path::new("lock-core/src/lib.rs") {
            source.push_str("\n#[doc(hidden)]\npub mod mutants;\n");
        }
        write(&to.join(relative), &source)?;
    }
    // Those of the attribute are switched on while it expands, by another variable.
    let of_processes = bugs.iter().filter(|bug| !bug.file.starts_with("lock-macros/"));
    let names: Vec<_> = of_processes.flat_map(|bug| &bug.names).collect();
    let switch = text(&root.join("tests/mutants/switch.rs"))?;
    write(
        &to.join("lock-core/src/mutants.rs"),
        &format!("{switch}\n/// The names of all bugs.\nconst BUGS: &[&str] = &{names:?};\n"),
    )
}

/// The folder of all sources of the crate that a file belongs to.
fn whole(file: &str) -> &str {
    let end = file.find("/src/").map(|at| at + "/src".len());
    &file[..end.unwrap_or("tests/support".len())]
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
