//! "Did you mean": the nearest of the words that would have been right, or ours for that of another library.

/// Returns `, did you mean …?` where a known word is near to `text`, else nothing.
pub(crate) fn nearest(text: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|known| (distance(known, text), known)).min();
    let nearest = nearest.filter(|&(distance, known)| distance <= 2 && distance < known.len());
    nearest.map(|(_, known)| format!(", did you mean `{known}`?")).unwrap_or_default()
}

/// Returns what to write in place of an argument that goes by this name elsewhere.
pub(crate) fn synonym(text: &str) -> Option<String> {
    let hint = match text {
        "timeout" => "`ttl` is how long a silent holder blocks the others, and `wait` how long to wait in line",
        "expire" | "expires" | "expiry" | "expiration" | "expires_in" | "lease_time" | "duration" | "ex" | "px" => {
            "how long a silent holder blocks the others is `ttl`"
        }
        "blocking_timeout" | "acquire_timeout" | "wait_time" | "max_wait" | "wait_for" => {
            "how long to wait in line is `wait`"
        }
        "blocking" | "nowait" | "no_wait" | "try_once" | "try_lock" => "to try once write `wait = \"0s\"`",
        "durability" | "wait_replicas" | "min_replicas" => "how many replicas must have the lease is `replicas`",
        "retry" | "retries" | "retry_count" | "retry_delay" => "it is tried until `wait` has passed",
        "name" | "resource" | "lock" | "lock_name" | "template" => "what is locked is `key`",
        "names" | "resources" => "what is locked is `keys`",
        "watchdog" | "auto_renew" | "auto_renewal" | "auto_extend" | "fixed" => {
            "to switch renewal off write `renew = false`"
        }
        "skip" | "skip_if_busy" | "on_conflict" => "what to return for a busy key is `on_busy`",
        "on_fail" | "on_failure" | "or_else" | "map_err" | "fallback" | "error" => {
            "what to return for an error is `on_error`"
        }
        "guard" | "token" | "fence" | "fencing_token" => {
            "the name of the lease, which has the fencing token, is `lease`"
        }
        "shared" | "read" | "reader" | "readers" | "read_only" | "rwlock" => "to share the key write `mode = shared`",
        "exclusive" | "write" | "writer" | "mutex" => "exclusive is the default, which is also `mode = exclusive`",
        "semaphore" | "limit" | "total" | "max_permits" | "max_holders" | "max_concurrent" | "max_concurrency"
        | "concurrency" | "concurrency_limit" | "capacity" => "how many may hold the key at the same time is `permits`",
        "weight" | "acquire_many" => "how many permits a call takes is `take`",
        "client" | "redis" | "connection" | "conn" | "pool" | "lock_manager" => "where the lock is taken is `manager`",
        _ => return None,
    };
    Some(format!("; {hint}"))
}

/// Returns what to write in place of a mode that goes by this name elsewhere.
pub(crate) fn mode(text: &str) -> Option<String> {
    let mode = match text {
        "read" | "reader" | "readers" | "readonly" | "read_only" | "r" | "rlock" | "s" | "concurrent" => "shared",
        "write" | "writer" | "writers" | "read_write" | "w" | "rw" | "wlock" | "x" | "mutex" | "unique" => "exclusive",
        "permit" | "permits" | "semaphore" | "limit" | "limited" => {
            return Some("; for a number of holders write `permits = 3` in place of `mode`".to_owned());
        }
        _ => return None,
    };
    Some(format!(", did you mean `{mode}`?"))
}

/// Counts the letters to insert, drop, replace or swap with their neighbour to make `a` of `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_other_libraries_lead_to_ours() {
        for (theirs, ours) in [
            ("timeout", "`wait`"),
            ("expire", "`ttl`"),
            ("blocking_timeout", "`wait`"),
            ("nowait", "`wait = \"0s\"`"),
            ("name", "`key`"),
            ("watchdog", "`renew = false`"),
            ("durability", "`replicas`"),
            ("skip", "`on_busy`"),
            ("map_err", "`on_error`"),
            ("token", "`lease`"),
            ("redis", "`manager`"),
            ("shared", "`mode = shared`"),
            ("writer", "`mode = exclusive`"),
            ("semaphore", "`permits`"),
            ("weight", "`take`"),
        ] {
            assert!(synonym(theirs).is_some_and(|hint| hint.contains(ours)), "{theirs}");
        }
        for (theirs, ours) in [("read", "`shared`"), ("write", "`exclusive`"), ("semaphore", "`permits = 3`")] {
            assert!(mode(theirs).is_some_and(|hint| hint.contains(ours)), "{theirs}");
        }
        assert_eq!((synonym("colour"), mode("colour")), (None, None));
    }

    #[test]
    fn a_slip_of_the_pen_is_near_and_another_word_is_not() {
        assert_eq!(distance("ttl", "ttl"), 0);
        assert_eq!(distance("ttl", "tll"), 1);
        assert_eq!(distance("wait", "wiat"), 1);
        assert_eq!(distance("max_hold", "maxhold"), 1);
        assert_eq!(distance("key", ""), 3);
        assert_eq!(distance("lease", "release"), 2);
        assert!(distance("renew", "timeout") > 2);
    }
}
