//! The text of the script.

pub(super) const SOURCE: &str = include_str!("scripts/lock.lua");

/// The command that an error of the script is about, which Redis 7 names by its line only.
pub(super) fn command_in(detail: &str) -> Option<&'static str> {
    let (_, line) = detail.split_once("user_script:")?;
    let line = line.trim_start().split(|char: char| !char.is_ascii_digit()).next()?.parse::<usize>().ok()?;
    let (_, called) = SOURCE.lines().nth(line.checked_sub(1)?)?.split_once("call('")?;
    called.split('\'').next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::token::TOKEN_MARK;

    #[test]
    fn command_that_is_missing_is_named_by_its_line() {
        let line = 1 + SOURCE.lines().position(|line| line.contains("call('TIME')")).unwrap();
        for words in ["ERR unknown script: 1a2b, on @user_script:", "-ERR unknown @user_script: "] {
            assert_eq!(command_in(&format!("{words}{line}.")), Some("TIME"));
        }
        assert_eq!(command_in("on @user_script:1."), None, "a comment");
        for detail in ["", "on @user_script:", "on @user_script:0.", "on @user_script:99999999999999999999."] {
            assert_eq!(command_in(detail), None);
        }
    }

    #[test]
    fn the_script_knows_our_tokens() {
        assert!(SOURCE.contains(&format!("local MARK = '{TOKEN_MARK}'")));
    }
}
