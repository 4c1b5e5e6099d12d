//! What a user may not do.

use super::{Report, healthy};

/// Returns the rights that docs/protocol.md lists, and what comes before them.
fn rights() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let (_, block) = page.split_once("ACL SETUSER shop").expect("the line is there");
    let block = block.split("```").next().unwrap_or_default();
    block.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn each_right_of_the_protocol_is_tried_and_named_if_it_is_missing() {
    let server = healthy();
    let url = server.url.replace("redis://", "redis://shop:password@");
    let user = |more: &[&str]| {
        let rights = rights();
        let line: Vec<_> =
            ["ACL", "SETUSER", "shop", "reset"].into_iter().chain(rights.iter().map(String::as_str)).collect();
        let _: String = server.call(&[&*line, &["+scan", "+getrange", "+config|get"], more].concat());
        Report::of(&url, &["--prefix=shop:"])
    };
    let all = user(&[]);
    assert_eq!((all.sick(), all.code), (Vec::new(), Some(0)), "{}", all.json);
    all.says("rights", "green", "the user shop has all");
    let mut tried = 0;
    // A server refuses HELLO to nobody.
    for right in rights().iter().filter(|right| right.starts_with('+') && *right != "+hello") {
        let report = user(&[&right.replace('+', "-")]);
        let said = report.said("rights");
        assert!(
            said.contains(&format!("lacks {right}: ")) && said.contains(&format!("ACL SETUSER shop {right}")),
            "{right}: {said}"
        );
        assert_eq!(server.call::<usize>(&["DBSIZE"]), 0, "what is left without {right}");
        tried += 1;
    }
    assert_eq!(tried, 37);
    for (without, level, words) in [
        ("-zadd", "red", "lacks +zadd: all locks fail, or those of some modes"),
        ("-publish", "amber", "waiters poll"),
        ("resetchannels", "amber", "lacks &lock-core:calls:*"),
        ("-scan", "amber", "lockctl list"),
        ("-multi", "amber", "free keys are acquired by the script"),
    ] {
        user(&[without]).says("rights", level, words);
    }
    user(&["resetkeys", "~shop:*"]).says("rights", "red", "lacks ~{*}lock-core:*");
    user(&["resetkeys", "~{*}lock-core:*"]).says("rights", "red", "lacks ~shop:*");
    Report::of(&url, &[]).says("rights", "amber", "give --prefix what the keys of the services begin with");
}

#[test]
fn what_the_user_may_not_ask_is_amber_and_says_how_to_allow_it() {
    let server = healthy();
    let _: String = server.call(&[
        "ACL",
        "SETUSER",
        "shop",
        "on",
        ">password",
        "allkeys",
        "allchannels",
        "+@all",
        "-info",
        "-config",
        "-time",
    ]);
    let report = Report::of(&server.url.replace("redis://", "redis://shop:password@"), &[]);
    for check in ["version", "role", "eviction", "memory", "persistence", "replicas", "min-replicas", "clients"] {
        report.says(
            check,
            "amber",
            "could not be checked: the user shop may not run INFO; to allow it: ACL SETUSER shop +info",
        );
    }
    for check in ["timeout", "tcp-keepalive", "pubsub-buffer"] {
        report.says(check, "amber", "as an administrator, with +config|get");
    }
    report.says("clock", "amber", "could not be checked: the user shop may not run TIME");
    // The locks themselves need TIME.
    report.says("rights", "red", "lacks +time");
}
