/// Adds the usual port to a host that is named without one.
pub(super) fn with_port(host: &str, usual: u16) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if has_port { host.to_owned() } else { format!("{host}:{usual}") }
}

/// The port of a sentinel that is named without one.
pub(super) const SENTINEL_PORT: u16 = 26_379;
