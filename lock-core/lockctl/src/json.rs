//! What is known of keys, for programs.

use std::io;

use serde::Serialize;

/// Writes a value in lines, as people read it, too. So characters that steer a terminal are written as escapes.
pub(crate) fn write(mut output: impl io::Write, value: &impl Serialize) -> io::Result<()> {
    for c in format!("{:#}\n", serde_json::to_value(value)?).chars() {
        // JSON escapes the control characters of ASCII itself; all others stand in strings.
        if c.is_ascii() && c != '\u{7f}' || c.escape_debug().len() == 1 {
            write!(output, "{c}")?;
        } else {
            c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(output, "\\u{unit:04x}"))?;
        }
    }
    output.flush()
}
