//! Links from holders to their traces.

use lock_core::Holder;

/// The address of a trace in the viewer of the service, with the parts to be replaced.
#[derive(Clone, Debug)]
pub(super) struct Traces(String);

impl Traces {
    pub(super) fn new(template: String) -> Self {
        Self(template)
    }

    /// Returns the link to the trace in which a lease was acquired, if there is one and it was sampled.
    pub(super) fn of(&self, holder: &Holder) -> Option<String> {
        self.link(holder.trace_context()?)
    }

    /// Reads a context in the form of the header `traceparent`. It comes from another process, so it may be any text, and nothing but
    /// hexadecimal digits of the right number gets into a link. A trace that was not sampled is not in the viewer.
    fn link(&self, context: &str) -> Option<String> {
        let parts: Vec<_> = context.split('-').collect();
        let ["00", trace, span, flags] = parts[..] else { return None };
        let is_hex = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
        is_sampled.then(|| self.0.replace("{trace_id}", trace).replace("{span_id}", span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sampled_context_of_the_right_form_makes_a_link() {
        let traces = Traces::new("https://traces.example/trace/{trace_id}?span={span_id}".to_owned());
        let (trace, span) = ("2f73094c5cad96b048598da022de5fab", "187850b3e6f25a66");
        let link = |context: &str| traces.link(context);
        let expected = format!("https://traces.example/trace/{trace}?span={span}");
        assert_eq!(link(&format!("00-{trace}-{span}-01")), Some(expected.clone()));
        assert_eq!(link(&format!("00-{trace}-{span}-03")), Some(expected), "other flags do not matter");
        assert_eq!(link(&format!("00-{trace}-{span}-00")), None, "it was not sampled");
        let others = ["", "00", "00-a-b-01", "00-é-b-01"].map(str::to_owned).into_iter().chain([
            format!("01-{trace}-{span}-01"),
            format!("00-{trace}-{span}-+1"),
            format!("00-{trace}-{span}-01-"),
            format!("00-{}&x={}-{span}-01", &trace[..14], &trace[..15]),
            format!("00-{trace}-/../../../../..-01"),
        ]);
        for context in others {
            assert_eq!(link(&context), None, "{context}");
        }
    }
}
