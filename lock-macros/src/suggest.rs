//! "Did you mean": the nearest of the words that would have been right.

/// Returns `, did you mean …?` where a known word is near to `text`, else nothing.
pub(crate) fn nearest(text: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|known| (distance(known, text), known)).min();
    let nearest = nearest.filter(|&(distance, known)| distance <= 2 && distance < known.len());
    nearest.map(|(_, known)| format!(", did you mean `{known}`?")).unwrap_or_default()
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
