//! What a node knows of its cluster.

use std::ops::RangeInclusive;

use crate::server::RedisServer;

/// One line of `CLUSTER NODES`.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) address: String,
    /// Whose replica it is.
    pub(super) primary: Option<String>,
    /// When it was elected: the larger one is right.
    pub(super) epoch: u64,
    pub(super) slots: Vec<RangeInclusive<u16>>,
    /// Slots on their way to another node, by its id. Only a node's own line has them.
    pub(super) leaving: Vec<(u16, String)>,
    flags: Vec<String>,
    is_connected: bool,
}

impl Node {
    /// Whether this is the node that was asked.
    pub(super) fn is_asked(&self) -> bool {
        self.has("myself")
    }

    pub(super) fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| slots.contains(&slot))
    }

    /// Whether the node that was asked knows this one, is connected to it, and does not find it down.
    pub(super) fn is_in_order(&self) -> bool {
        let is_unknown = self.has("handshake") || self.has("noaddr");
        let is_down = self.has("fail") || self.has("fail?");
        !is_unknown && !is_down && (self.is_connected || self.is_asked())
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    /// `ID HOST:PORT@BUS,… FLAG,… PRIMARY ping pong EPOCH connected SLOT FIRST-LAST [SLOT->-ID] …`
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split(' ').collect();
        let [id, address, flags, primary, _ping, _pong, epoch, link, slots @ ..] = &fields[..] else { return None };
        Some(Self {
            id: (*id).to_owned(),
            address: address.split('@').next()?.to_owned(),
            primary: (*primary != "-").then(|| (*primary).to_owned()),
            epoch: epoch.parse().ok()?,
            slots: slots.iter().filter_map(|text| range(text)).collect(),
            leaving: slots.iter().filter_map(|text| leaving(text)).collect(),
            flags: flags.split(',').map(str::to_owned).collect(),
            is_connected: *link == "connected",
        })
    }
}

/// All nodes that `server` knows; `None` when it does not answer.
pub(super) async fn nodes_seen_by(server: &RedisServer) -> Option<Vec<Node>> {
    let text = server.ask(&["CLUSTER", "NODES"]).await?.text()?;
    Some(text.lines().filter_map(Node::parse).collect())
}

/// `SLOT` or `FIRST-LAST`.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// `[SLOT->-ID]`
fn leaving(text: &str) -> Option<(u16, String)> {
    let (slot, id) = text.strip_prefix('[')?.strip_suffix(']')?.split_once("->-")?;
    Some((slot.parse().ok()?, id.to_owned()))
}

/// The slot of `key`: that of what stands between its first braces, if there is anything.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % COUNT
}

/// CRC16 as XMODEM has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ (u16::from(*byte) << 8);
        (0..8).fold(crc, |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

/// How many slots there are.
pub(super) const COUNT: u16 = 16_384;
