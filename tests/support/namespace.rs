//! A network of its own, with a cable to this one that can be pulled.

use std::{
    process::{self, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A network namespace of Linux. It takes root; it is removed on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// Our end of the cable.
    cable: String,
    /// Our address in it.
    address: String,
}

impl Namespace {
    /// Makes one; none where that is not allowed, as for most users and in most containers.
    ///
    /// # Panics
    /// When it can be made, but nothing can be put into it.
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Names of interfaces have at most fifteen bytes.
        let number = process::id() % 100_000 * 10 + NEXT.fetch_add(1, Ordering::Relaxed);
        let (name, cable, inside) = (format!("lock{number}"), format!("locka{number}"), format!("lockb{number}"));
        let net = format!("10.{}.{}", 128 + number / 250 % 100, number % 250);
        if !ip(&["netns", "add", &name]) {
            return None;
        }
        let this = Self { name, cable, address: format!("{net}.1") };
        let made = ip(&["link", "add", &this.cable, "type", "veth", "peer", "name", &inside, "netns", &this.name])
            && ip(&["address", "add", &format!("{}/30", this.address), "dev", &this.cable])
            && ip(&["-n", &this.name, "address", "add", &format!("{net}.2/30"), "dev", &inside])
            && ip(&["-n", &this.name, "link", "set", &inside, "up"])
            && ip(&["link", "set", &this.cable, "up"]);
        assert!(made, "nothing can be put into the network {}", this.name);
        Some(this)
    }

    /// What a command begins with to run inside.
    pub fn command(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Where this side is found from inside.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Pulls the cable: no packet passes, and nobody is told.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn unplug(&self) {
        assert!(ip(&["link", "set", &self.cable, "down"]));
    }

    /// Puts the cable in.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn plug(&self) {
        assert!(ip(&["link", "set", &self.cable, "up"]));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["link", "delete", &self.cable]);
        ip(&["netns", "delete", &self.name]);
    }
}

/// Whether the command of that name is there and succeeds.
fn ip(arguments: &[&str]) -> bool {
    let status = Command::new("ip").args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
