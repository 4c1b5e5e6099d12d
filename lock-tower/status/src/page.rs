//! The list of keys as a page.

use std::{
    fmt::{self, Display, Write as _},
    time::Duration,
};

use lock_core::{Health, KeyInfo, NodeHealth};

use super::{
    controls::Controls,
    look::Look,
    question::{Only, Order, Question},
    rates::{Counters, Rates},
    selection::{PAGE, Selection, is_silent, needs_release, waited},
    sentences::{HolderOf, Missing, Named, SHOWN, WaitersOf, loss},
    site::Site,
    text::{Attribute, Clipped, Text},
    words::{Age, Count, Number, TimeOfDay},
};

/// The page that lists keys.
#[derive(Debug)]
pub(super) struct List<'a> {
    pub(super) question: &'a Question,
    pub(super) health: &'a Health,
    pub(super) look: &'a Look,
    pub(super) site: &'a Site,
}

impl List<'_> {
    pub(super) fn body(&self) -> String {
        let mut body = String::new();
        // Nothing fails that is written into a string.
        let _ = self.write(&mut body);
        body
    }

    fn write(&self, body: &mut String) -> fmt::Result {
        body.write_str(&self.site.header("h1", Some(TimeOfDay(self.look.at))))?;
        self.nodes(body)?;
        match &self.look.keys {
            Ok(keys) => {
                let selection = Selection::of(keys, self.question);
                let missing = keys.first().map(|info| Missing { info, look: self.look });
                if let Some(missing) = missing {
                    write!(body, "{missing}")?;
                }
                figures(body, &selection, missing.is_some_and(|missing| missing.is_any()))?;
                write!(body, "{}", Controls { question: self.question, keys, of: Some(selection.of) })?;
                self.rows(body, &selection)?;
            }
            Err(error) => {
                write!(body, "<p class=alarm role=alert><b>The keys cannot be listed:</b> {}</p>", Text(error))?;
                write!(body, "{}", Controls { question: self.question, keys: &[], of: None })?;
            }
        }
        self.process(body)
    }

    fn nodes(&self, body: &mut String) -> fmt::Result {
        let state = if self.health.is_up() { "<b class=good>up</b>" } else { "<b class=bad>down</b>" };
        if let ([node], true) = (self.health.nodes(), self.health.is_up()) {
            return write!(body, "<section class=nodes>Backend: {}</section>", Node(node));
        }
        write!(body, "<section class=nodes><h2>Backend: {state}</h2><ul>")?;
        self.health.nodes().iter().try_for_each(|node| write!(body, "<li>{}", Node(node)))?;
        body.write_str("</ul></section>")
    }

    /// What this process alone knows: the other processes keep their own counters.
    fn process(&self, body: &mut String) -> fmt::Result {
        let health = self.health;
        write!(
            body,
            "<section class=process><h2>This process alone</h2><p>Holds <b>{}</b>. ",
            Count(health.held(), "lease")
        )?;
        match self.look.rates {
            Some(Rates { span, grown: Counters { acquired, busy, lost } }) => write!(
                body,
                "In the last {}: <b>{}</b> acquired, <b>{}</b> given up because the key was busy, <b>{}</b> lost. ",
                Age(span),
                Number(acquired),
                Number(busy),
                Number(lost),
            )?,
            None => body.write_str("Rates are known from the second look on. ")?,
        }
        let slack = age_or("nothing renewed", health.renewal_slack());
        let lost = health.losses().iter().filter(|(_, number)| *number > 0);
        let lost: Vec<_> = lost.map(|(reason, number)| format!("{} {}", Number(*number), loss(*reason))).collect();
        let lost = if lost.is_empty() { "none".to_owned() } else { lost.join(", ") };
        write!(
            body,
            "Least time left at a renewal in the last minute: <b>{slack}</b>. Since its start: {} acquired, {} given up, \
             lost: <b>{lost}</b>.</p></section>",
            Number(health.acquired()),
            Number(health.busy()),
        )
    }

    fn rows(&self, body: &mut String, selection: &Selection<'_>) -> fmt::Result {
        let Selection { rows, matching, unknown, .. } = selection;
        let question = self.question;
        if *unknown > 0 && question.only != Only::Waiting {
            let (silent, link) = (Count(*unknown, "silent key"), question.silent());
            write!(
                body,
                "<p class=more>Left out, because the holder is not known: <a href=\"{}\">{silent}</a>.</p>",
                Attribute(&link)
            )?;
        }
        if rows.is_empty() {
            let such = if question.is_filter() { "No such key" } else { "No key" };
            return write!(body, "<p class=none>{such} is held or waited for.</p>");
        }
        body.write_str("<ol class=keys>")?;
        rows.iter().try_for_each(|info| self.row(body, info))?;
        body.write_str("</ol>")?;
        if let Some(next) = selection.next {
            let link = self.question.next(next);
            write!(
                body,
                "<p class=more><a href=\"{}\">The next keys</a>, of {}",
                Attribute(&link),
                Count(*matching, "key")
            )?;
        } else if self.question.order == Order::Age && *matching > PAGE {
            let link = self.question.ordered(Order::Key);
            let all = Count(*matching, "key");
            write!(
                body,
                "<p class=more>These are the {PAGE} with the longest waits and holds. <a href=\"{}\">All {all}</a>",
                Attribute(&link)
            )?;
        }
        Ok(())
    }

    fn row(&self, body: &mut String, info: &KeyInfo) -> fmt::Result {
        let class = if is_silent(info) {
            "bad"
        } else if info.waiters().is_empty() {
            "calm"
        } else {
            "wait"
        };
        let key = Clipped(info.key());
        write!(body, "<li class={class}>")?;
        if key.ends().is_some() {
            write!(
                body,
                "<details class=key><summary><h3><code>{key}</code></h3><span class=fact>the whole key, {}</span></summary>\
                 <code>{}</code></details>",
                Count(info.key().len(), "byte"),
                Text(info.key()),
            )?;
        } else {
            write!(body, "<h3><code>{key}</code></h3>")?;
        }
        write!(body, "<div>{}</div><div>", HolderOf { info, traces: self.site.traces.as_ref() })?;
        if let Some(wait) = waited(info) {
            write!(body, "<details><summary>{}, longest for <b>{}</b></summary><ol>", WaitersOf(info), Age(wait))?;
            for waiter in info.waiters().iter().take(SHOWN) {
                write!(body, "<li>{}, {}", Age(waiter.waited()), Named(waiter.party()))?;
                if !waiter.mode().is_exclusive() {
                    write!(body, " ({})", waiter.mode())?;
                }
            }
            body.write_str("</ol>")?;
            body.write_str("</details>")?;
        } else {
            let nobody = if info.is_truncated() {
                "No waiter was named"
            } else if info.processes().unanswered() == Some(0) {
                "Nobody waits"
            } else {
                "No process that answered waits"
            };
            write!(body, "<p class=fact>{nobody}</p>")?;
        }
        body.write_str("</div>")?;
        if self.site.releases && info.is_locked() {
            let link = self.question.release(info.key(), "");
            let class = if needs_release(info) { "release needed" } else { "release" };
            write!(body, "<p><a class=\"{class}\" href=\"{}\">Release by force…</a>", Attribute(&link))?;
        }
        Ok(())
    }
}

/// Says how a node is, in words.
struct Node<'a>(&'a NodeHealth);

impl Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.0;
        let (class, state) = if node.is_up() { ("good", "up") } else { ("bad", "down") };
        write!(f, "<b class={class}>{state}</b> {}", Text(node.address()))?;
        if let Some(age) = node.age() {
            write!(f, ", for {}", Age(age))?;
        }
        let Some(fault) = node.last_error() else { return Ok(()) };
        write!(f, "<br>last error, {} ago: {}", Age(fault.age()), Text(fault.message()))
    }
}

/// The figures of all keys that match. If answers are missing, waits and holds are only the least that there may be.
fn figures(body: &mut String, selection: &Selection<'_>, is_partial: bool) -> fmt::Result {
    let least = |text: String, is_none| match is_partial {
        true if is_none => "not known".to_owned(),
        true => format!("at least {text}"),
        false => text,
    };
    let age = |age: Option<Duration>| least(age_or("none", age), age.is_none());
    let waiting = least(Number(selection.waiting).to_string(), selection.waiting == 0);
    body.write_str("<dl>")?;
    figure(body, "Keys", &Number(selection.matching).to_string())?;
    figure(body, "Requests waiting", &waiting)?;
    figure(body, "Longest wait", &age(selection.longest_wait))?;
    figure(body, "Longest hold", &age(selection.longest_hold))?;
    body.write_str("</dl>")
}

fn figure(body: &mut String, name: &str, value: &str) -> fmt::Result {
    write!(body, "<div><dt>{name}<dd>{value}</div>")
}

fn age_or(none: &str, age: Option<Duration>) -> String {
    age.map_or_else(|| none.to_owned(), |age| Age(age).to_string())
}
