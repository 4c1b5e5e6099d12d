//! What the page is about: which service, where it runs, and which keys of which database.

use std::fmt::{self, Display, Write as _};

use lock_core::{LockManager, NodeHealth};

use super::{
    text::{Attribute, Clipped},
    trace::Traces,
    words::TimeOfDay,
};

/// What the builder of the page was given, and how its manager names itself.
#[derive(Clone, Debug)]
pub(super) struct Site {
    manager: LockManager,
    /// Empty if it was not given.
    pub(super) environment: String,
    pub(super) traces: Option<Traces>,
    /// Whether keys may be released by force.
    pub(super) releases: bool,
}

impl Site {
    pub(super) fn of(manager: LockManager) -> Self {
        Self { environment: String::new(), traces: None, releases: false, manager }
    }

    /// The name of the service, as its manager has it.
    pub(super) fn service(&self) -> &str {
        self.manager.service()
    }

    /// Which keys the manager has: those that begin with this.
    pub(super) fn prefix(&self) -> &str {
        self.manager.prefix()
    }

    /// The title of a page, as it stands in an attribute. The service comes first, because a tab shows little more. The prefix and
    /// the databases come last, where there is room to tell two windows apart.
    pub(super) fn title(&self, page: &str) -> String {
        let mut title = Attribute(self.service()).to_string();
        // Nothing fails that is written into a string.
        if !self.environment.is_empty() {
            let _ = write!(title, " ({})", Attribute(&self.environment));
        }
        let _ = write!(title, " · {page}");
        if !self.prefix().is_empty() {
            let _ = write!(title, " · prefix {}", Attribute(self.prefix()));
        }
        let _ = write!(title, "{}", Databases(self.manager.health().nodes()));
        title
    }

    /// The head of each page. `name` is the element that has the name of the service.
    pub(super) fn header(&self, name: &str, as_of: Option<TimeOfDay>) -> String {
        let mut header = format!("<header><{name}>Locks of {}</{name}>", Clipped(self.service()));
        // Nothing fails that is written into a string.
        let _ = self.write(&mut header, as_of);
        header
    }

    fn write(&self, header: &mut String, as_of: Option<TimeOfDay>) -> fmt::Result {
        if !self.environment.is_empty() {
            write!(header, "<p class=environment>{}</p>", Clipped(&self.environment))?;
        }
        header.write_str("<p>")?;
        if self.prefix().is_empty() {
            header.write_str("no prefix")?;
        } else {
            write!(header, "prefix <code>{}</code>", Clipped(self.prefix()))?;
        }
        write!(header, "{}</p>", Databases(self.manager.health().nodes()))?;
        if let Some(at) = as_of {
            write!(header, "<p class=time>as of {at}</p>")?;
        }
        header.write_str("</header>")
    }
}

/// The databases of the nodes, which may differ in a quorum. Nothing if the backend has none.
struct Databases<'a>(&'a [NodeHealth]);

impl Display for Databases<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers: Vec<_> = self.0.iter().filter_map(NodeHealth::database).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let numbers: Vec<_> = numbers.iter().map(i64::to_string).collect();
        match &numbers[..] {
            [] => Ok(()),
            [number] => write!(f, " · database {number}"),
            numbers => write!(f, " · databases {}", numbers.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_and_headers_name_service_environment_and_prefix_as_text() {
        let manager = LockManager::builder().url("memory://").client_name("<shop>").build().expect("valid");
        let mut site = Site::of(manager);
        assert_eq!(site.title("locks"), "&lt;shop&gt; · locks");
        site.environment = "\"pro\"</title>\n".to_owned();
        assert_eq!(site.title("locks"), "&lt;shop&gt; (&quot;pro&quot;&lt;/title&gt;&#10;) · locks");
        let header = site.header("h1", None);
        assert!(header.starts_with("<header><h1>Locks of &lt;shop&gt;</h1><p class=environment>&quot;pro"), "{header}");
        assert!(header.ends_with("<p>no prefix</p></header>"), "a store in memory has no database: {header}");
        let manager =
            LockManager::builder().url("memory://").prefix("a&b:").client_name("shop").build().expect("valid");
        let site = Site::of(manager);
        assert_eq!(site.title("locks"), "shop · locks · prefix a&amp;b:");
        assert!(site.header("p", None).contains("Locks of shop</p><p>prefix <code>a&amp;b:</code>"));
    }

    #[test]
    fn titles_and_headers_name_the_database_of_a_server() {
        let builder = LockManager::builder().url("redis://127.0.0.1/3").prefix("a:").client_name("shop");
        let site = Site::of(builder.build().expect("valid"));
        assert_eq!(site.title("locks"), "shop · locks · prefix a: · database 3");
        let header = site.header("p", None);
        assert!(header.ends_with("<p>prefix <code>a:</code> · database 3</p></header>"), "{header}");
    }
}
