use std::fmt::{self, Display};

/// What every page has around its body.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) title: &'static str,
    /// After how many seconds the page reloads itself.
    pub(super) refresh: Option<u32>,
    /// HTML, with all that is not ours escaped.
    pub(super) body: &'a str,
}

impl Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { title, refresh, body } = self;
        write!(
            f,
            "<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\
             <meta name=color-scheme content=\"light dark\"><link rel=stylesheet href=\"?style={}\">",
            env!("CARGO_PKG_VERSION"),
        )?;
        if let Some(seconds) = refresh {
            write!(f, "<meta http-equiv=refresh content={seconds}>")?;
        }
        write!(f, "</head><body><main>{body}</main></body></html>")
    }
}
