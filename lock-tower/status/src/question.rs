//! What a request asks of the page, as its query says.

use http::{HeaderMap, header::ACCEPT};

/// The query of a request. It is all that a request can say: bodies are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Question {
    /// What the keys begin with.
    pub(super) prefix: String,
    pub(super) only: Only,
    /// What the service or the label of a holder contains.
    pub(super) by: String,
    /// What the host of a holder contains.
    pub(super) host: String,
    /// The key behind which a page of keys in their order begins.
    pub(super) after: String,
    pub(super) order: Order,
    /// After how many seconds the page reloads itself.
    pub(super) refresh: Option<u32>,
    /// The key that is to be released by force.
    pub(super) release: Option<String>,
    /// The holder that the confirmation named.
    pub(super) holder: String,
    /// Whether the style sheet is asked for.
    pub(super) style: bool,
    /// Whether JSON is asked for, and not a page.
    pub(super) json: bool,
}

/// In which order keys are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// The key whose waiter has waited for longest, then the key that was held for longest.
    #[default]
    Age,
    /// By the bytes of the key.
    Key,
}

/// Which keys are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Only {
    #[default]
    All,
    /// Those for which requests wait.
    Waiting,
    /// Those with a lease for which no process answered.
    Silent,
}

impl Only {
    /// The value of the parameter, which is left out if it is empty.
    pub(super) fn in_query(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Waiting => "waiting",
            Self::Silent => "silent",
        }
    }
}

impl Order {
    /// The value of the parameter, which is left out if it is empty.
    pub(super) fn in_query(self) -> &'static str {
        match self {
            Self::Age => "",
            Self::Key => "key",
        }
    }
}

impl Question {
    /// Reads a query. What it does not know is passed over, and of two values the last one counts.
    pub(super) fn read(query: &str, headers: &HeaderMap) -> Self {
        let (mut question, mut json) = (Self::default(), None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "prefix" => question.prefix = value.into_owned(),
                "only" if value == "waiting" => question.only = Only::Waiting,
                "only" if value == "silent" => question.only = Only::Silent,
                "by" => question.by = value.into_owned(),
                "host" => question.host = value.into_owned(),
                "after" => (question.after, question.order) = (value.into_owned(), Order::Key),
                "order" if value == "key" => question.order = Order::Key,
                "refresh" => question.refresh = value.parse().ok().map(|seconds: u32| seconds.clamp(2, 3_600)),
                "release" => question.release = Some(value.into_owned()),
                "holder" => question.holder = value.into_owned(),
                "style" => question.style = true,
                "format" => json = Some(value == "json"),
                _ => {}
            }
        }
        question.json = json.unwrap_or_else(|| wants_json(headers));
        question
    }

    /// The link to the list as it is shown, from its beginning.
    pub(super) fn list(&self) -> String {
        self.link(&[("order", self.order.in_query()), ("refresh", &self.seconds())])
    }

    pub(super) fn ordered(&self, order: Order) -> String {
        Self { order, ..self.clone() }.list()
    }

    pub(super) fn refreshed(&self, refresh: Option<u32>) -> String {
        Self { refresh, ..self.clone() }.list()
    }

    pub(super) fn showing(&self, only: Only) -> String {
        Self { only, ..self.clone() }.list()
    }

    /// The link to all keys of the prefix whose holder is not known, whichever holder is asked for.
    pub(super) fn silent(&self) -> String {
        Self { only: Only::Silent, by: String::new(), host: String::new(), ..self.clone() }.list()
    }

    pub(super) fn next(&self, after: &str) -> String {
        self.link(&[("after", after), ("refresh", &self.seconds())])
    }

    pub(super) fn as_json(&self) -> String {
        self.link(&[("order", self.order.in_query()), ("after", &self.after), ("format", "json")])
    }

    /// The link to the confirmation, or what the confirmation posts if it names the holder.
    pub(super) fn release(&self, key: &str, holder: &str) -> String {
        self.link(&[("release", key), ("holder", holder), ("refresh", &self.seconds())])
    }

    pub(super) fn seconds(&self) -> String {
        self.refresh.map(|seconds| seconds.to_string()).unwrap_or_default()
    }

    /// Whether keys are chosen by their holder.
    pub(super) fn names_holder(&self) -> bool {
        !(self.by.is_empty() && self.host.is_empty())
    }

    /// Whether some keys are left out.
    pub(super) fn is_filter(&self) -> bool {
        self.names_holder() || !self.prefix.is_empty() || self.only != Only::All
    }

    /// A link that keeps which keys are shown. It works wherever the page is mounted: it has a query, and the path stays.
    fn link(&self, pairs: &[(&str, &str)]) -> String {
        let shown = [("prefix", &*self.prefix), ("only", self.only.in_query()), ("by", &self.by), ("host", &self.host)];
        let pairs = shown.iter().chain(pairs).filter(|(_, value)| !value.is_empty());
        form_urlencoded::Serializer::for_suffix("?".to_owned(), 1).extend_pairs(pairs).finish()
    }
}

/// Whether a client accepts JSON and not a page.
fn wants_json(headers: &HeaderMap) -> bool {
    let accepted = || headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepts = |media: &str| accepted().any(|value| value.to_ascii_lowercase().contains(media));
    accepts("application/json") && !accepts("text/html")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn read(query: &str) -> Question {
        Question::read(query, &HeaderMap::new())
    }

    #[test]
    fn what_is_unknown_is_passed_over_and_the_refresh_has_bounds() {
        assert_eq!(read(""), Question::default());
        assert_eq!(read("a=b&&=&order=size&only=some&refresh=soon"), Question::default());
        assert_eq!([read("refresh=0").refresh, read("refresh=99999").refresh], [Some(2), Some(3_600)]);
    }

    #[test]
    fn json_is_for_clients_that_say_so() {
        let wants = |accept, query| {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            Question::read(query, &headers).json
        };
        assert!(wants("application/json", "") && wants("*/*", "format=json") && wants("text/html", "format=json"));
        assert!(!wants("text/html,application/json;q=0.9", "") && !wants("*/*", ""));
        assert!(!wants("application/json", "format=html"));
    }

    proptest! {
        #[test]
        fn links_lead_back_to_the_same_words(key in ".+", prefix in ".*", holder in "[0-9]+|unknown") {
            let question = Question {
                prefix: prefix.clone(), only: Only::Silent, by: key.clone(), host: prefix.clone(), refresh: Some(5),
                ..Question::default()
            };
            let link = question.release(&key, &holder);
            prop_assert!(!link.contains(['<', '>', '"', '\'', '#', '\n', ' ']), "{link}");
            let read = Question::read(&link[1..], &HeaderMap::new());
            prop_assert_eq!((read.release, read.holder, &read.prefix), (Some(key.clone()), holder, &prefix));
            prop_assert_eq!((read.only, read.by, read.host), (Only::Silent, key.clone(), prefix));
            let next = Question::read(&question.next(&key)[1..], &HeaderMap::new());
            prop_assert_eq!((next.after, next.order), (key, Order::Key));
        }
    }
}
