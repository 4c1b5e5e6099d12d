//! The list of keys as a page.

use std::{
    fmt::{self, Display, Write as _},
    time::Duration,
};

use lock_core::{Health, KeyInfo, NodeHealth};

use super::{
    look::Look,
    question::{Order, Question},
    selection::{PAGE, Selection, waited},
    sentences::{HolderOf, Missing, Named, SHOWN, WaitersOf, loss},
    text::{Attribute, Text},
    words::{Age, Count, Number, TimeOfDay},
};

/// The page that lists keys.
#[derive(Debug)]
pub(super) struct List<'a> {
    pub(super) question: &'a Question,
    pub(super) health: &'a Health,
    pub(super) look: &'a Look,
    /// Whether each key has a link to its forced release.
    pub(super) releases: bool,
}

impl List<'_> {
    pub(super) fn body(&self) -> String {
        let mut body = String::new();
        // Nothing fails that is written into a string.
        let _ = self.write(&mut body);
        body
    }

    fn write(&self, body: &mut String) -> fmt::Result {
        write!(body, "<header><h1>Locks</h1><p>As of {}</p></header>", TimeOfDay(self.look.at))?;
        self.nodes(body)?;
        match &self.look.keys {
            Ok(keys) => {
                let selection = Selection::of(keys, self.question);
                self.figures(body, Some(&selection))?;
                self.controls(body)?;
                if let Some(info) = keys.first() {
                    write!(body, "{}", Missing(info))?;
                }
                self.rows(body, &selection)
            }
            Err(error) => {
                self.figures(body, None)?;
                self.controls(body)?;
                let error = Text(error);
                write!(body, "<p class=alarm role=alert><b>The keys cannot be listed:</b> {error}</p>")
            }
        }
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

    fn figures(&self, body: &mut String, selection: Option<&Selection<'_>>) -> fmt::Result {
        body.write_str("<dl>")?;
        if let Some(selection) = selection {
            figure(body, "Keys", Number(selection.matching))?;
            figure(body, "Requests waiting", Number(selection.waiting))?;
            figure(body, "Longest wait", age_or("none", selection.longest_wait))?;
            figure(body, "Longest hold", age_or("none", selection.longest_hold))?;
        }
        body.write_str("</dl>")?;
        let slack = age_or("nothing renewed", self.health.renewal_slack());
        let lost = self.health.losses().iter().filter(|(_, number)| *number > 0);
        let lost: Vec<_> = lost.map(|(reason, number)| format!("{number} {}", loss(*reason))).collect();
        let lost = if lost.is_empty() { "none".to_owned() } else { lost.join(", ") };
        write!(
            body,
            "<p class=process>This process: <b>{}</b>. Least time left at a renewal in the last minute: <b>{slack}</b>. \
             Lost since its start: <b>{lost}</b>.</p>",
            Count(self.health.held(), "lease"),
        )
    }

    fn controls(&self, body: &mut String) -> fmt::Result {
        let question = self.question;
        let prefix = Attribute(&question.prefix);
        write!(
            body,
            "<form method=get><label>Keys that begin with <input type=search name=prefix value=\"{prefix}\" \
             autocapitalize=none autocomplete=off spellcheck=false></label>"
        )?;
        if question.order == Order::Key {
            body.write_str("<input type=hidden name=order value=key>")?;
        }
        if question.refresh.is_some() {
            write!(body, "<input type=hidden name=refresh value={}>", question.seconds())?;
        }
        body.write_str("<button>Show</button></form><nav><p>Reload: ")?;
        let refresh = |seconds: Option<u32>| (question.refreshed(seconds), question.refresh == seconds);
        choice(body, "by hand", refresh(None))?;
        choice(body, "every 5 s", refresh(Some(5)))?;
        choice(body, "every 30 s", refresh(Some(30)))?;
        body.write_str("<p>Order: ")?;
        let order = |order| (question.ordered(order), question.order == order);
        choice(body, "longest first", order(Order::Age))?;
        choice(body, "by key", order(Order::Key))?;
        write!(body, "<p><a href=\"{}\">JSON</a></nav>", Attribute(&question.as_json()))
    }

    fn rows(&self, body: &mut String, selection: &Selection<'_>) -> fmt::Result {
        let Selection { rows, matching, .. } = selection;
        if rows.is_empty() {
            return body.write_str("<p class=none>No such key is held or waited for.</p>");
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
        let nobody_answered = info.nobody_answered() && !info.is_truncated();
        let is_silent = nobody_answered || info.silent().is_some();
        let class = if is_silent {
            "bad"
        } else if info.waiters().is_empty() {
            "calm"
        } else {
            "wait"
        };
        write!(body, "<li class={class}><h3><code>{}</code></h3><div>{}</div><div>", Text(info.key()), HolderOf(info))?;
        if let Some(wait) = waited(info) {
            write!(body, "<details><summary>{}, longest for <b>{}</b></summary><ol>", WaitersOf(info), Age(wait))?;
            for waiter in info.waiters().iter().take(SHOWN) {
                write!(body, "<li>{}, {}", Age(waiter.waited()), Named(waiter.party()))?;
                if !waiter.mode().is_exclusive() {
                    write!(body, " ({})", waiter.mode())?;
                }
            }
            body.write_str("</ol>")?;
            if let Some(more) = info.waiters().len().checked_sub(SHOWN).filter(|more| *more > 0) {
                write!(body, "<p>and {more} more</p>")?;
            }
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
        if self.releases && info.is_locked() {
            let link = self.question.release(info.key(), "");
            write!(body, "<p><a class=release href=\"{}\">Release by force…</a>", Attribute(&link))?;
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

fn figure(body: &mut String, name: &str, value: impl Display) -> fmt::Result {
    write!(body, "<div><dt>{name}<dd>{value}</div>")
}

fn age_or(none: &str, age: Option<Duration>) -> String {
    age.map_or_else(|| none.to_owned(), |age| Age(age).to_string())
}

/// A link, or the same text without one if it is what is shown.
fn choice(body: &mut String, name: &str, (link, is_chosen): (String, bool)) -> fmt::Result {
    if is_chosen {
        write!(body, "<b aria-current=true>{name}</b> ")
    } else {
        write!(body, "<a href=\"{}\">{name}</a> ", Attribute(&link))
    }
}
