//! The form and the links by which an operator chooses what is shown, and in which order. They work without a script.

use std::fmt::{self, Display};

use lock_core::{Holder, KeyInfo, Party};

use super::{
    question::{Only, Order, Question},
    selection::Choices,
    sentences::SHOWN,
    text::Attribute,
    words::Number,
};

/// The controls of the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Controls<'a> {
    pub(super) question: &'a Question,
    /// The keys whose holders are offered; empty if the keys are not known.
    pub(super) keys: &'a [KeyInfo],
    pub(super) of: Option<Choices>,
}

impl Display for Controls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.form(f)?;
        self.choices(f)
    }
}

impl Controls<'_> {
    fn form(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let question = self.question;
        f.write_str("<form method=get>")?;
        let parties = || self.keys.iter().flat_map(KeyInfo::holders).map(Holder::party);
        field(f, "Keys that begin with", "prefix", &question.prefix, Vec::new())?;
        field(f, "Held by service or label", "by", &question.by, parties().map(Party::service).collect())?;
        field(f, "Held on host", "host", &question.host, parties().map(Party::host).collect())?;
        let hidden = [
            ("only", question.only.in_query()),
            ("order", question.order.in_query()),
            ("refresh", &question.seconds()),
        ];
        for (name, value) in hidden.iter().filter(|(_, value)| !value.is_empty()) {
            write!(f, "<input type=hidden name={name} value={value}>")?;
        }
        f.write_str("<button>Show</button></form>")
    }

    /// Links that change what is shown. They say how many keys each choice has, if the keys are known.
    fn choices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let question = self.question;
        let only = |only, name: &str, number: fn(Choices) -> usize| {
            let name = self.of.map_or_else(|| name.to_owned(), |of| format!("{name} ({})", Number(number(of))));
            (name, question.showing(only), question.only == only)
        };
        f.write_str("<nav><p>Keys: ")?;
        choice(f, only(Only::All, "all", |of| of.all))?;
        choice(f, only(Only::Waiting, "waited for", |of| of.waiting))?;
        choice(f, only(Only::Silent, "silent", |of| of.silent))?;
        f.write_str("<p>Order: ")?;
        let order = |order, name: &str| (name.to_owned(), question.ordered(order), question.order == order);
        choice(f, order(Order::Age, "longest first"))?;
        choice(f, order(Order::Key, "by key"))?;
        f.write_str("<p>Reload: ")?;
        let refresh = |seconds: Option<u32>, name: &str| {
            (name.to_owned(), question.refreshed(seconds), question.refresh == seconds)
        };
        choice(f, refresh(None, "by hand"))?;
        choice(f, refresh(Some(5), "every 5 s"))?;
        choice(f, refresh(Some(30), "every 30 s"))?;
        write!(f, "<p><a href=\"{}\">JSON</a></nav>", Attribute(&question.as_json()))
    }
}

/// A field of the form. It can be filled with what is offered, and with any other text.
fn field(f: &mut fmt::Formatter<'_>, label: &str, name: &str, value: &str, mut offered: Vec<&str>) -> fmt::Result {
    let value = Attribute(value);
    write!(
        f,
        "<label>{label} <input type=search name={name} list=of-{name} value=\"{value}\" autocapitalize=none \
         autocomplete=off spellcheck=false></label><datalist id=of-{name}>"
    )?;
    offered.sort_unstable();
    offered.dedup();
    offered.iter().take(SHOWN).try_for_each(|text| write!(f, "<option value=\"{}\">", Attribute(text)))?;
    f.write_str("</datalist>")
}

/// A link, or the same text without one if it is what is shown.
fn choice(f: &mut fmt::Formatter<'_>, (name, link, is_chosen): (String, String, bool)) -> fmt::Result {
    if is_chosen {
        write!(f, "<b aria-current=true>{name}</b> ")
    } else {
        write!(f, "<a href=\"{}\">{name}</a> ", Attribute(&link))
    }
}
