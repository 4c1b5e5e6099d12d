//! What is no history.

use crate::history::lines::*;

#[test]
fn lines_that_cannot_be_are_caught() {
    assert_eq!(broken(&[acquire("p1", 1, 10.0, 9.0)]), [Rule::Malformed], "back before it was called");
    assert_eq!(broken(&[acquire("p1", 1, 0.0, 1.0).with(|event| event.key = None)]), [Rule::Malformed]);
    assert_eq!(broken(&[acquire("p1", 1, 0.0, 1.0).with(|event| event.token = None)]), [Rule::Malformed]);
    assert_eq!(broken(&[acquire("p1", 1, f64::NAN, 1.0)]), [Rule::Malformed]);
    assert_eq!(broken(&[release("p1", 1, 0.0, 1.0)]), [Rule::Malformed], "never acquired");
    assert_eq!(broken(&[acquire("p1", 1, 10.0, 12.0), release("p1", 1, 0.0, 1.0)]), [Rule::Malformed]);
}

#[test]
fn two_operations_of_a_process_at_once_are_caught() {
    let overlap = [acquire("p1", 1, 0.0, 10.0), in_vain("p1", 5.0, 20.0, Outcome::Fail)];
    assert_eq!(broken(&overlap), [Rule::Malformed]);
    let of_tasks = [acquire("p1/t1", 1, 0.0, 10.0), in_vain("p1/t2", 5.0, 20.0, Outcome::Fail)];
    assert_eq!(broken(&of_tasks), NONE);
}

#[test]
fn text_that_is_no_history_is_told_with_its_place() {
    let mut history = History::default();
    let error = history.add_lines("p1.jsonl", "\n{\"op\":\"dance\",\"t_invoke\":1}\n").unwrap_err();
    assert!(error.to_string().starts_with("p1.jsonl:2: "), "{error}");
}

#[test]
fn the_format_is_read_as_it_is_written_down() {
    let lines = r#"
        {"process":"p1/t1","op":"acquire","key":"k","token":"T/1","fence":7,"t_invoke":1,"t_return":2.5,"deadline":982,"ttl":1000}
        {"process":"p2","op":"acquire","key":"k","t_invoke":3,"t_return":4,"result":"fail","try":true}
        {"process":"f","op":"acquire","key":"other","token":"x","t_invoke":3,"t_return":4,"foreign":true,"ttl":500,"deadline":503}
        {"process":"p1/t1","op":"write","key":"k","fence":7,"value":2,"prev":1,"t_invoke":5,"t_return":6}
        {"process":"p1/t1","op":"check","key":"k","token":"T/1","valid":true,"t_invoke":7,"t_return":7}
        {"process":"p1/t1","op":"release","key":"k","token":"T/1","t_invoke":8,"result":"info"}
        {"process":"p3","op":"crash","t_invoke":9}
        {"process":"nemesis","op":"fault","t_invoke":9,"t_return":10}
        {"op":"leftover","key":"{0}lock-core:waiting","pttl":1900,"max_pttl":10000}
    "#;
    let mut history = History::default();
    history.add_lines("all.jsonl", lines).unwrap();
    assert_eq!(history.events().len(), 9);
    Checker::new().assert_clean(&history);
    assert!(history.events()[1].only_tries && history.events()[2].foreign);
    assert_eq!(history.events()[5].result, Outcome::Info);
}

#[test]
fn a_process_that_acts_after_it_was_killed_is_caught() {
    let first = acquire("p1/t1", 1, 0.0, 2.0);
    assert_eq!(broken(&[first.clone(), check("p1/t1", 1, 9.0, true), crash("p1", 10.0)]), NONE);
    assert_eq!(broken(&[first.clone(), crash("p1", 10.0), check("p1/t1", 1, 11.0, true)]), [Rule::Malformed]);
    assert_eq!(broken(&[first.clone(), crash("p1/t2", 10.0), check("p1/t1", 1, 11.0, true)]), NONE, "another task");
    // Nobody knows of a call from before whether it was done.
    let under_way = release("p1/t1", 1, 9.0, 12.0).with(never_back);
    assert_eq!(broken(&[first, crash("p1", 10.0), under_way]), NONE);
}
