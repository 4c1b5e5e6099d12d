//! Published histories of real faults: the checker and a judge of another make, in Python, say the same of them.

mod damages;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lock_tests::{
    HANDOFF,
    history::{Checker, Event, History, Rule},
    left_out,
};

/// Whether leases were lost at the servers, by the table in README.md: then two may hold a key.
fn published() -> Vec<(String, bool)> {
    let readme = fs::read_to_string(folder().join("README.md")).expect("it is there");
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| [")?.split_once("](")).map(|(name, row)| {
        let verdict = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        assert!(["clean", "excused"].contains(&verdict), "{name}: {verdict}");
        (name.to_owned(), verdict == "excused")
    });
    rows.collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("histories")
}

fn file(name: &str) -> PathBuf {
    folder().join(format!("{name}.jsonl.gz"))
}

/// One of the published histories.
fn history(name: &str) -> History {
    let output = Command::new("gzip").arg("-dc").arg(file(name)).output().expect("gzip is there");
    assert!(output.status.success(), "{name}: {output:?}");
    let mut history = History::default();
    history.add_lines(name, &String::from_utf8_lossy(&output.stdout)).expect("it was published as a history");
    history
}

/// The rules that a history breaks by the checker, each once.
fn broken(checker: Checker, history: &History) -> Vec<Rule> {
    let mut rules: Vec<_> = checker.bound(HANDOFF).check(history).into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

/// The rules that a history breaks if what it says of lost leases is heeded.
fn broken_unless_excused(history: &History) -> Vec<Rule> {
    broken(history.marks().into_iter().fold(Checker::new(), Checker::mark), history)
}

/// Has a program in Python run; `None` on a machine without a Python.
fn python(program: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new("python3").arg("-B").arg(folder().join(program)).args(arguments).output();
    // A stand-in that only says how Python is installed ends with 9009 or 127.
    let output = output.ok().filter(|output| matches!(output.status.code(), Some(0..=2)));
    if output.is_none() {
        left_out("the judge in Python", "there is no python3", false);
    }
    output
}

/// The rules that a history breaks by the judge in Python, each once, and what it said.
fn judged_elsewhere(arguments: &[&str]) -> Option<(Vec<String>, String)> {
    let output = python("judge.py", arguments)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let rules = said.lines().filter_map(|line| Some(line.strip_prefix("  ")?.split_once(':')?.0.to_owned()));
    let mut rules: Vec<String> = rules.collect();
    rules.dedup();
    assert_eq!(output.status.code(), Some(i32::from(!rules.is_empty())), "{output:?}");
    Some((rules, said))
}

#[test]
#[ignore = "Python's judge takes ten seconds of a processor; run by .ci/run"]
fn both_judges_say_of_published_histories_what_the_table_says() {
    let published = published();
    assert!(published.len() >= 6, "{published:?}");
    for (name, excused) in published {
        let history = history(&name);
        let strictly = broken(Checker::new(), &history);
        assert_eq!(strictly.first(), excused.then_some(&Rule::TwoHolders), "{name}: {strictly:?}");
        assert_eq!(broken_unless_excused(&history), [], "{name}");

        let path = file(&name).display().to_string();
        let Some((strictly, said)) = judged_elsewhere(&["--strict", &path]) else { return };
        let expected = if excused { &["exclusion"][..] } else { &[] };
        assert_eq!(strictly, expected, "{said}");
        let (rules, said) = judged_elsewhere(&[&path]).expect("it was there a moment ago");
        assert!(rules.is_empty(), "{said}");
    }
}

#[test]
fn each_file_is_in_the_table() {
    let mut files: Vec<_> = fs::read_dir(folder())
        .expect("it is there")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().strip_suffix(".jsonl.gz")?.to_owned()))
        .collect();
    let mut named: Vec<_> = published().into_iter().map(|(name, _)| name).collect();
    files.sort();
    named.sort();
    assert_eq!(files, named);
}

#[test]
fn the_search_of_the_judge_finds_what_trying_all_orders_finds() {
    if let Some(output) = python("judge_test.py", &[]) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
