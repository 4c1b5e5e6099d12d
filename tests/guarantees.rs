//! What `docs/guarantees.md`, `docs/evidence.md`, `docs/operations.md` and the lists of tests say is so.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust file below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The tests that the text names, as file or folder, and function or file in that folder.
fn named(text: &str) -> BTreeSet<(&str, &str)> {
    let code = text.split('`').skip(1).step_by(2);
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|char| char == '_' || char.is_ascii_lowercase() || char.is_ascii_digit())
    };
    code.filter_map(|code| code.split_once("::")).filter(|(file, test)| is_name(file) && is_name(test)).collect()
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let text =
        ["docs/guarantees.md", "docs/evidence.md"].map(|page| fs::read_to_string(root().join(page)).unwrap()).concat();
    let mut files = Vec::new();
    for folder in ["tests", "lock-core/src", "lock-core/tests", "lock-core/test-kit/tests"] {
        sources(&root().join(folder), &mut files);
    }
    let sources: Vec<_> = files.iter().map(|path| (path, fs::read_to_string(path).unwrap())).collect();
    let named = named(&text);
    assert!(named.len() > 30, "{} tests are named", named.len());
    for (file, test) in named {
        let function = format!("fn {test}()");
        // Of the simulation a macro makes the tests, whose first argument is the name.
        let is_made = |source: &str| {
            let mut made = source.split("every_schedule!(").skip(1);
            made.any(|rest| rest.split(',').next().is_some_and(|head| head.split_whitespace().any(|word| word == test)))
        };
        let is_there = |(path, source): &(&PathBuf, String)| {
            let in_it = path.file_stem().is_some_and(|stem| stem == file)
                || path.parent().and_then(Path::file_name).is_some_and(|folder| folder == file);
            in_it
                && (source.contains(&function) || is_made(source) || path.file_stem().is_some_and(|stem| stem == test))
        };
        assert!(sources.iter().any(is_there), "there is no test {file}::{test}");
    }
}

#[test]
fn every_fault_that_is_tested_stands_in_the_evidence() {
    let text = fs::read_to_string(root().join("docs/evidence.md")).unwrap();
    let named: BTreeSet<_> = named(&text).into_iter().map(|(_, test)| test.get(..8).unwrap_or_default()).collect();
    let mut files = Vec::new();
    sources(&root().join("tests"), &mut files);
    for path in files {
        let source = fs::read_to_string(&path).unwrap();
        for test in source.split("fn ").skip(1).filter(|rest| rest.starts_with("fault_")) {
            assert!(named.contains(&test[..8]), "{} is not in docs/evidence.md", &test[..8]);
        }
    }
}

#[test]
fn every_number_in_the_name_of_a_test_stands_in_its_list() {
    let mut files = Vec::new();
    for folder in ["tests", "lock-core", "lock-macros", "lock-tower"] {
        sources(&root().join(folder), &mut files);
    }
    let functions = files.iter().flat_map(|path| {
        let source = fs::read_to_string(path).unwrap();
        let names =
            source.split("fn ").skip(1).filter_map(|rest| rest.split_once('(').map(|(name, _)| name.to_owned()));
        names.collect::<Vec<_>>()
    });
    let functions: BTreeSet<_> = functions.collect();
    for (list, begins) in [("tests/FAULTS.md", "fault_"), ("tests/BAD_INPUT.md", "bad_input_")] {
        let text = fs::read_to_string(root().join(list)).unwrap();
        let tests: Vec<_> = functions.iter().filter_map(|name| name.strip_prefix(begins)).collect();
        assert!(tests.len() > 20, "{} tests begin with {begins}", tests.len());
        for test in tests {
            let number = test.split('_').next().unwrap().trim_start_matches('0');
            assert!(text.contains(&format!("\n| {number} | ")), "{list} has no row {number}, for {begins}{test}");
        }
    }
}

/// The words of a page, or of a source without the marks of its comments, with one space between them.
fn words_of(file: &Path) -> String {
    let text = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("//!").trim_start_matches("///"));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// A store that only compares when it writes loses an update: the first statement claims.
#[test]
fn every_page_that_passes_a_token_on_says_that_it_is_claimed_with_before_the_first_read() {
    for page in [
        "docs/testing.md",
        "docs/lockctl.md",
        "docs/topologies.md",
        "docs/tour.md",
        "docs/guarantees.md",
        "docs/cookbook.md",
        "lock-core/lockctl/src/args.rs",
        "lock-core/src/fencing.rs",
        "lock-core/src/lease.rs",
        "lock-macros/docs/arguments.md",
        "lock-tower/src/grpc.rs",
        "lock-tower/src/held.rs",
        "lock-tower/src/lib.rs",
    ] {
        let text = words_of(Path::new(page));
        assert!(text.to_lowercase().contains("claim") && text.contains("still stands"), "{page}");
    }
}

/// The statements that write the stock and compare the token in one: a late one between the next holder's read and its write is lost.
fn comparing_writes(text: &str) -> Vec<&str> {
    let statements = text.split("UPDATE ").skip(1).filter_map(|rest| rest.split([';', '`', '"']).next());
    statements.filter(|statement| statement.contains("stock =") && statement.contains("fence <")).collect()
}

#[test]
fn no_page_teaches_to_compare_a_token_at_the_write_only() {
    let mut pages = vec![root().join("README.md")];
    for folder in ["docs", "lock-macros/docs"] {
        let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    for folder in ["lock-core/src", "lock-macros/src", "lock-tower/src"] {
        sources(&root().join(folder), &mut pages);
    }
    let mut limits = 0;
    for page in pages {
        let text = words_of(&page);
        // There it stands as what is not enough.
        let section = text.split_once("### Limits of a fence ").and_then(|(_, rest)| rest.split(" ### ").next());
        limits += comparing_writes(section.unwrap_or_default()).len();
        let rest = text.replace(section.unwrap_or("\n"), "");
        assert_eq!(comparing_writes(&rest), [""; 0], "{}", page.display());
        for wrong in ["a smaller one", "check the fencing", "check the token"] {
            assert!(!text.contains(wrong), "{}: {wrong}", page.display());
        }
    }
    assert_eq!(limits, 1, "the page with the limits has the statement that is looked for");
}

#[path = "mutants/plant.rs"]
mod plant;

/// The lists of deliberate bugs, each behind the folder in which its paths begin.
fn lists_of_bugs() -> [(&'static str, String); plant::LISTS.len()] {
    let folder = root().join("tests/mutants");
    plant::LISTS.map(|(list, begins)| (begins, fs::read_to_string(folder.join(list)).unwrap()))
}

#[test]
fn every_deliberate_bug_can_be_planted() {
    let lists = lists_of_bugs();
    let bugs: Vec<_> = lists.iter().flat_map(|(folder, list)| plant::read(folder, list)).collect();
    let names: BTreeSet<_> = bugs.iter().flat_map(|bug| &bug.names).collect();
    assert!(names.len() > 150, "{}", names.len());
    for name in names {
        let has_it = |bug: &plant::Bug<'_>| bug.names.contains(name) && bug.new.contains(name);
        assert!(bugs.iter().any(has_it), "no text is that of {name}");
    }
    let switch = fs::read_to_string(root().join("tests/mutants/switch.rs")).unwrap();
    let names = bugs.iter().flat_map(|bug| bug.new.split("Mutant::").skip(1)).filter_map(|rest| rest.split('.').next());
    for name in names {
        assert!(switch.contains(&format!("    {name},\n")), "{name} is not in the list of switches");
    }
    for file in bugs.iter().map(|bug| &*bug.file).collect::<BTreeSet<_>>() {
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        plant::plant(file, &source, &bugs).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

#[test]
fn every_deliberate_bug_names_tests_that_exist_or_says_why_there_is_none() {
    let mut tests = 0;
    // The first three are for the simulation to find.
    for entry in lists_of_bugs()[3..].iter().flat_map(|(_, list)| list.split("\n@ ").skip(1)) {
        let (head, text) = entry.split_once('\n').unwrap();
        assert!(head.ends_with(": ") || text.contains("\n- ") || text.contains("\n# No test"), "{head} has no test");
    }
    for (_, list) in lists_of_bugs() {
        for line in list.lines().filter_map(|line| line.strip_prefix("- ")) {
            let (folder, test) = line.split_once(' ').unwrap();
            let (modules, name) = test.rsplit_once("::").unwrap();
            let modules: Vec<_> = modules.split("::").collect();
            // The innermost modules may stand in the file of an outer one, and a macro may make the function.
            let exists = (1..=modules.len()).any(|many| {
                let path = root().join(folder).join(modules[..many].join("/"));
                let files = [path.with_extension("rs"), path.join("mod.rs"), root().join(folder).join("main.rs")];
                let mut sources = files.iter().filter_map(|file| fs::read_to_string(file).ok());
                sources
                    .any(|source| [format!("fn {name}("), format!(" {name} 1,")].iter().any(|of| source.contains(of)))
            });
            assert!(exists, "there is no test {line}");
            tests += 1;
        }
    }
    assert!(tests > 100, "{tests}");
}

/// The message of a call of a `tracing` macro, whose arguments follow: its longest string, up to the first brace.
fn message(call: &str) -> Option<String> {
    let arguments = call.split(");").next()?;
    let literal = arguments.split('"').skip(1).step_by(2).max_by_key(|literal| literal.len())?;
    let words: Vec<_> = literal.split_whitespace().filter(|word| *word != "\\").collect();
    let text = words.join(" ").replace("{{", "\u{1}");
    Some(text.split('{').next()?.replace('\u{1}', "{").trim().to_owned())
}

#[test]
fn every_warning_and_error_of_the_log_stands_in_the_page_for_operators() {
    let text = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    // The beginning of a line is enough to find it by.
    let lines: Vec<_> = text.split('`').skip(1).step_by(2).map(|line| line.trim_end_matches(" …")).collect();
    let mut files = Vec::new();
    for folder in ["lock-core/src", "lock-tower/src", "lock-tower/status/src"] {
        sources(&root().join(folder), &mut files);
    }
    let mut found = BTreeSet::new();
    for path in files {
        let source = fs::read_to_string(&path).unwrap();
        for level in ["warn", "error"] {
            let call = format!("tracing::{level}!(");
            let direct = source.split(&call).skip(1);
            let caught = source
                .split("log!(")
                .skip(1)
                .map(str::trim_start)
                .filter_map(|call| call.strip_prefix(level)?.strip_prefix(','));
            found.extend(direct.chain(caught).filter_map(message).filter(|message| !message.is_empty()));
        }
        // Those that a message is chosen from.
        let chosen = source.split("error as _, ").skip(1).chain(source.split("let (lock, what) = ").skip(1));
        found.extend(chosen.filter_map(|rest| Some(rest.split(';').next()?.split('"').nth(1)?.to_owned())));
    }
    assert!(found.len() > 20, "{found:?}");
    for message in found {
        let is_told = lines.iter().any(|line| {
            *line == message || line.len() > 12 && message.starts_with(line) || line.starts_with(&format!("{message} "))
        });
        assert!(is_told, "{message:?} is not in docs/operations.md");
    }
}

/// The items of the list that follows a line, whatever marks and wraps them.
fn items_behind(file: &str, line: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let (_, rest) = text.split_once(line).unwrap_or_else(|| panic!("{line:?} is not in {file}"));
    let words: Vec<_> = rest.lines().map(|line| line.trim().trim_start_matches("///").trim()).collect();
    let list = words.into_iter().map(|line| line.trim_matches(['*', '-', ' ', '"'])).filter(|line| !line.is_empty());
    list.map(str::to_owned)
        .take_while(|item| item.ends_with([';', '.']))
        .map(|item| item.replace(['.', ';'], ""))
        .collect()
}

#[test]
fn all_pages_say_in_the_same_words_what_it_means_that_nobody_answered() {
    let page = items_behind("docs/operations.md", "the status page). One of these is so:");
    let program = items_behind("lock-core/lockctl/src/describe.rs", "const NOBODY_ANSWERED: &str =");
    let docs = items_behind("lock-core/src/info.rs", "/// Nobody answered means one of these:");
    assert!(page.len() >= 4 && page[0].starts_with("the holder has died, is stopped or is cut off"), "{page:?}");
    assert_eq!(program[..4], page[..4]);
    assert_eq!(docs[..4], page[..4]);
}

/// What a link to a heading is called, or to a name that a heading had before.
fn anchors(page: &str) -> BTreeSet<String> {
    let prose = page.split("```").step_by(2);
    let headings = prose.flat_map(str::lines).filter_map(|line| line.strip_prefix('#'));
    let names = headings.map(|heading| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
    });
    let former = page.split("<a id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    names.chain(former).collect()
}

#[test]
fn every_link_between_the_pages_leads_to_a_file_and_a_heading() {
    let folders = ["", "docs", "examples", "tests", "lock-core", "lock-macros", "lock-tower"];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let pages = entries.map(|entry| entry.unwrap().path());
    let mut links = 0;
    for page in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let (link, _) = link;
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: there is no {link}", page.display());
            let is_page = target.extension().is_some_and(|extension| extension == "md");
            if is_page && !heading.is_empty() {
                let anchors = anchors(&fs::read_to_string(&target).unwrap());
                assert!(anchors.contains(heading), "{}: there is no heading for {link}", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 80, "{links} links were found");
}
