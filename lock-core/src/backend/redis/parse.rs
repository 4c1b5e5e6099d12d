//! The parser of replies.
//!
//! Most replies are of the few forms that are read here, straight from the buffer of the connection. The redis crate reads the others,
//! once all of their bytes have come.

use redis::{ErrorKind, RedisError, RedisResult, Value, parse_redis_value};

/// Reads the value at `at`, which moves behind it. `None` if its end has not come yet.
pub(super) fn value(input: &[u8], at: &mut usize, depth: usize) -> RedisResult<Option<Value>> {
    let begin = *at;
    let Some((kind, line)) = line(input, at)? else { return Ok(None) };
    Ok(Some(match kind {
        b'+' if line == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(text(line)?.to_owned()),
        b':' => Value::Int(number(line)?),
        b'$' => match usize::try_from(number(line)?) {
            Err(_) => Value::Nil,
            Ok(length) => match bulk(input, at, length)? {
                Some(bytes) => Value::BulkString(bytes.to_vec()),
                None => return Ok(None),
            },
        },
        b'*' => match usize::try_from(number(line)?) {
            Err(_) => Value::Nil,
            Ok(_) if depth == DEPTH => return Err(garbage("too deep")),
            Ok(length) => {
                // No more than what has come can be read now.
                let mut values = Vec::with_capacity(length.min(input.len() - *at));
                for _ in 0..length {
                    match value(input, at, depth + 1)? {
                        Some(value) => values.push(value),
                        None => return Ok(None),
                    }
                }
                Value::Array(values)
            }
        },
        b'_' => Value::Nil,
        // It may repeat a part of a command, cut in the middle of a character.
        b'-' => parse_redis_value(format!("-{}\r\n", String::from_utf8_lossy(line)).as_bytes())?,
        _ => {
            *at = begin;
            if !skip(input, at, depth)? {
                return Ok(None);
            }
            parse_redis_value(&input[begin..*at])?
        }
    }))
}

/// Moves `at` behind the value there. Returns whether the end of it has come.
fn skip(input: &[u8], at: &mut usize, depth: usize) -> RedisResult<bool> {
    let Some((kind, line)) = line(input, at)? else { return Ok(false) };
    let values = match kind {
        b'$' | b'!' | b'=' => {
            let length = usize::try_from(number(line)?);
            return Ok(match length {
                Ok(length) => bulk(input, at, length)?.is_some(),
                Err(_) => true,
            });
        }
        b'*' | b'~' | b'>' => number(line)?,
        b'%' => number(line)?.saturating_mul(2),
        b'|' => number(line)?.saturating_mul(2).saturating_add(1),
        _ => 0,
    };
    if values > 0 && depth == DEPTH {
        return Err(garbage("too deep"));
    }
    for _ in 0..values {
        if !skip(input, at, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the kind of the value at `at`, and the rest of its first line, behind which `at` moves.
fn line<'a>(input: &'a [u8], at: &mut usize) -> RedisResult<Option<(u8, &'a [u8])>> {
    let Some(kind) = input.get(*at) else { return Ok(None) };
    if !b"+-:$*_,#!=(%~>|".contains(kind) {
        return Err(garbage("no reply begins so"));
    }
    let rest = &input[*at + 1..];
    match rest.windows(2).position(|end| end == b"\r\n") {
        Some(length) => {
            *at += 1 + length + 2;
            Ok(Some((*kind, &rest[..length])))
        }
        None if rest.len() > LONGEST_LINE => Err(garbage("a line without an end")),
        None => Ok(None),
    }
}

/// Returns the bytes at `at`, which moves behind them and the end of their line. `None` if that has not come yet.
fn bulk<'a>(input: &'a [u8], at: &mut usize, length: usize) -> RedisResult<Option<&'a [u8]>> {
    let rest = &input[*at..];
    let Some(end) = length.checked_add(2).filter(|_| length <= LONGEST_BULK) else {
        return Err(garbage("a string that is too long"));
    };
    match rest.get(length..end) {
        None => Ok(None),
        Some(b"\r\n") => {
            *at += end;
            Ok(Some(&rest[..length]))
        }
        Some(_) => Err(garbage("a string without its end")),
    }
}

fn number(line: &[u8]) -> RedisResult<i64> {
    text(line)?.parse().map_err(|_| garbage("no number"))
}

fn text(line: &[u8]) -> RedisResult<&str> {
    str::from_utf8(line).map_err(|_| garbage("no text"))
}

pub(super) fn garbage(what: &'static str) -> RedisError {
    (ErrorKind::Parse, what).into()
}

/// How deep arrays may be nested.
const DEPTH: usize = 16;
/// The longest line, and the longest string: more than any server sends.
const LONGEST_LINE: usize = 64 << 10;
const LONGEST_BULK: usize = 512 << 20;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// All values of a text, read at once.
    fn read(text: &[u8]) -> RedisResult<Vec<Value>> {
        let (mut at, mut values) = (0, Vec::new());
        while let Some(value) = value(text, &mut at, 0)? {
            values.push(value);
        }
        Ok(values)
    }

    #[test]
    fn bytes_that_are_not_a_reply_are_refused_at_once_and_never_waited_for() {
        let deep = "*1\r\n".repeat(DEPTH + 2);
        let long = format!("+{}", "x".repeat(LONGEST_LINE + 1));
        for text in [
            "HTTP/1.1",
            ":x\r\n",
            ":\r\n",
            "$x\r\n",
            "$1\r\nab\r\n",
            "$9999999999\r\n",
            "*x\r\n",
            "%x\r\n",
            "\r\n",
            "#x\r\n",
            &deep,
            &long,
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text:?}");
        }
        for text in
            ["", "+", "$3\r\nab", "*2\r\n:1\r\n", "*9999999\r\n", ">2\r\n+message\r\n", "%1\r\n:1\r\n", "!5\r\nERR"]
        {
            assert_eq!(read(text.as_bytes()), Ok(Vec::new()), "{text:?}");
        }
    }

    #[test]
    fn an_error_that_is_cut_within_a_character_is_an_error_of_the_server() {
        let values =
            read(b"-ERR unknown command, with args beginning with: 'gr\xc3\r\n:1\r\n").expect("it can be read");
        let [Value::ServerError(error), Value::Int(1)] = &values[..] else { panic!("{values:?}") };
        assert!(error.details().is_some_and(|text| text.contains("beginning with: 'gr\u{fffd}")), "{error:?}");
    }

    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            vec(any::<u8>(), 0..30)
                .prop_map(|bytes| [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat()),
            "[a-zA-Z ]{0,9}".prop_map(|text| format!("+{text}\r\n").into_bytes()),
            "(ERR|NOPERM|X) [a-z]{0,9}".prop_map(|text| format!("-{text}\r\n").into_bytes()),
            prop_oneof![
                Just("$-1\r\n"),
                Just("*-1\r\n"),
                Just("_\r\n"),
                Just("#t\r\n"),
                Just(",1.5\r\n"),
                Just("(12345678901234567890\r\n"),
                Just("!5\r\nERR x\r\n"),
                Just("=8\r\ntxt:ab\r\n\r\n"),
                Just("+OK\r\n"),
            ]
            .prop_map(|text| text.as_bytes().to_vec()),
        ];
        leaf.prop_recursive(3, 24, 5, |inner| {
            (prop_oneof![Just(('*', 1)), Just(('~', 1)), Just(('%', 2))], vec(inner, 0..6)).prop_map(
                |((kind, each), values)| {
                    let count = values.len() / each;
                    let values = values[..count * each].concat();
                    [format!("{kind}{count}\r\n").as_bytes(), &values].concat()
                },
            )
        })
    }

    proptest! {
        /// The redis crate reads the same, and a part of a value is none.
        #[test]
        fn values_are_read_as_the_redis_crate_reads_them(text in any_value()) {
            let known = parse_redis_value(&text);
            let mut at = 0;
            prop_assert_eq!(value(&text, &mut at, 0), known.map(Some));
            prop_assert_eq!(at, text.len());
            for part in 0..text.len() {
                let part = value(&text[..part], &mut 0, 0);
                prop_assert!(matches!(part, Ok(None)), "{:?}", part);
            }
        }

        #[test]
        fn nonsense_does_no_harm(text in vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b'*'), Just(b'$'), Just(b'9')], 0..60)) {
            let _ = read(&text);
        }
    }
}
