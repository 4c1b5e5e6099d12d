//! The reply to `INFO`.

/// Returns how many replicas are connected, by what `INFO` says of replication.
pub(super) fn replicas(replication: &str) -> Option<u32> {
    field(replication, "connected_slaves")?.parse().ok()
}

/// Returns the value of a field.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
