//! The names that `docs/observe.md`, `docs/grafana.json` and `docs/alerts.yml` use are those of the source.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).unwrap()
}

/// The parts of a text between two marks.
fn between<'a>(text: &'a str, before: &'a str, after: char) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(move |rest| Some(rest.split_once(after)?.0))
}

/// Every metric of the source, as Prometheus knows it.
fn metrics() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in ["lock-core/src/metrics.rs", "lock-tower/src/metrics.rs"] {
        let source = read(file);
        for kind in ["counter", "gauge", "histogram"] {
            let describes = format!("describe_{kind}!(");
            for name in source.split(&describes).skip(1).filter_map(|rest| rest.split('"').nth(1)) {
                match kind {
                    "histogram" => found.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}"))),
                    _ => found.extend([name.to_owned()]),
                }
            }
        }
    }
    assert_eq!(found.len(), 8 + 3 * 3, "{found:?}");
    found
}

/// The names in an expression that are those of metrics.
fn used(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    words.filter(|word| word.starts_with("lock_")).map(str::to_owned).collect()
}

/// The expressions of a dashboard or of rules.
fn expressions(file: &str) -> Vec<String> {
    let text = read(file);
    if file.ends_with(".json") {
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        let targets =
            dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let variables =
            dashboard["templating"]["list"].as_array().unwrap().iter().map(|variable| &variable["definition"]);
        return targets
            .map(|target| &target["expr"])
            .chain(variables)
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
    }
    // No parser of YAML for one file: an expression is what follows `expr:`, up to the next name of a rule.
    text.split("\n        expr: ")
        .skip(1)
        .map(|rest| rest.split("\n        labels:").next().unwrap().to_owned())
        .collect()
}

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let metrics = metrics();
    for (file, least) in [("docs/grafana.json", 18), ("docs/alerts.yml", 13)] {
        let expressions = expressions(file);
        assert!(expressions.len() >= least, "{file}: {expressions:?}");
        for expression in expressions {
            let used = used(&expression);
            assert!(!used.is_empty(), "{file}: {expression}");
            for name in used {
                assert!(metrics.contains(&name), "{file}: there is no metric {name}");
            }
        }
    }
}

#[test]
fn every_metric_has_a_panel() {
    let panels = expressions("docs/grafana.json").concat();
    for name in metrics().iter().filter(|name| !name.ends_with("_sum") && !name.ends_with("seconds_count")) {
        assert!(panels.contains(name), "no panel shows {name}");
    }
}

#[test]
fn every_outcome_and_reason_that_an_expression_selects_exists() {
    let kinds = read("lock-core/src/error/kind.rs");
    for file in ["docs/grafana.json", "docs/alerts.yml"] {
        let text = expressions(file).concat();
        let mut values = 0;
        for label in ["outcome=\"", "outcome=~\"", "reason=\"", "reason=~\""] {
            for value in between(&text, label, '"').flat_map(|values| values.split('|')) {
                let (reason, kind) = (format!("=> \"{value}\","), format!("=> (\"{value}\", "));
                assert!(kinds.contains(&reason) || kinds.contains(&kind), "{file}: nothing is called {value}");
                values += 1;
            }
        }
        assert!(values >= 3, "{file}: {values}");
    }
}

#[test]
fn every_alert_stands_in_the_page_for_operators_and_the_other_way_round() {
    let (rules, page) = (read("docs/alerts.yml"), read("docs/operations.md"));
    let rules: BTreeSet<_> = between(&rules, "\n      - alert: ", '\n').map(str::to_owned).collect();
    let table: BTreeSet<_> = between(&page, "\n| `Lock", '`').map(|name| format!("Lock{name}")).collect();
    assert_eq!(rules.len(), 13);
    assert_eq!(rules, table);
}

#[test]
fn the_page_lists_every_metric_and_every_span() {
    let page = read("docs/observe.md");
    for metric in metrics() {
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|part| metric.strip_suffix(part)).unwrap_or(&metric);
        assert!(page.contains(&format!("\n| `{name}` | ")), "{name} is not in docs/observe.md");
    }
    for (file, kind) in [
        ("lock-core/src/future/acquire.rs", "debug_span!(\""),
        ("lock-core/src/future/protected.rs", "debug_span!(\""),
        ("lock-tower/src/future.rs", "error_span!(\""),
    ] {
        let source = read(file);
        let mut spans = 0;
        for span in between(&source, kind, '"') {
            let level = if kind.starts_with("debug") { "DEBUG" } else { "ERROR" };
            assert!(page.contains(&format!("\n| `{span}` | {level} | ")), "{span} is not in docs/observe.md");
            spans += 1;
        }
        assert!(spans > 0, "{file}");
    }
}
