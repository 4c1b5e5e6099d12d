//! What a request asks of the page, as its query says.

use http::{HeaderMap, header::ACCEPT};

/// The query of a request. It is all that a request can say: bodies are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Question {
    /// What the keys begin with.
    pub(super) prefix: String,
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

impl Order {
    /// The value of the parameter, which is left out if it is empty.
    fn in_query(self) -> &'static str {
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
        link(&[("prefix", &self.prefix), ("order", self.order.in_query()), ("refresh", &self.seconds())])
    }

    pub(super) fn ordered(&self, order: Order) -> String {
        Self { order, ..self.clone() }.list()
    }

    pub(super) fn refreshed(&self, refresh: Option<u32>) -> String {
        Self { refresh, ..self.clone() }.list()
    }

    pub(super) fn next(&self, after: &str) -> String {
        link(&[("prefix", &self.prefix), ("after", after), ("refresh", &self.seconds())])
    }

    pub(super) fn as_json(&self) -> String {
        let order = self.order.in_query();
        link(&[("prefix", &self.prefix), ("order", order), ("after", &self.after), ("format", "json")])
    }

    /// The link to the confirmation, or what the confirmation posts if it names the holder.
    pub(super) fn release(&self, key: &str, holder: &str) -> String {
        link(&[("release", key), ("holder", holder), ("prefix", &self.prefix), ("refresh", &self.seconds())])
    }

    pub(super) fn seconds(&self) -> String {
        self.refresh.map(|seconds| seconds.to_string()).unwrap_or_default()
    }
}

/// A link that works wherever the page is mounted: it has a query, and the path stays.
fn link(pairs: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::for_suffix("?".to_owned(), 1);
    query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
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
        assert_eq!(read("a=b&&=&order=size&refresh=soon"), Question::default());
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
            let question = Question { prefix: prefix.clone(), refresh: Some(5), ..Question::default() };
            let link = question.release(&key, &holder);
            prop_assert!(!link.contains(['<', '>', '"', '\'', '#', '\n', ' ']), "{link}");
            let read = Question::read(&link[1..], &HeaderMap::new());
            prop_assert_eq!((read.release, read.holder, read.prefix), (Some(key.clone()), holder, prefix));
            let next = Question::read(&question.next(&key)[1..], &HeaderMap::new());
            prop_assert_eq!((next.after, next.order), (key, Order::Key));
        }
    }
}
