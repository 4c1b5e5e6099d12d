//! Slots of a cluster: which one a key belongs to, and the tag that puts our side keys there too.
//!
//! From the Redis Cluster specification: the slot of a key is the CRC16 (XMODEM) of what stands between its first `{` and
//! the next `}`, or of all of it if nothing does, modulo 16,384.

use std::{fmt, sync::LazyLock};

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The tag between the braces of a side key: the least number, written in decimal, that belongs to the slot.
///
/// A server without slots has one tag for all keys, and therefore one counter of fencing tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag(u32);

impl Tag {
    /// The tag of a server without slots.
    pub(super) const ONE: Self = Self(0);

    /// The tag of a slot.
    pub(super) fn of(slot: u16) -> Self {
        static TAGS: LazyLock<Vec<Tag>> = LazyLock::new(tags);
        TAGS.get(usize::from(slot)).copied().unwrap_or(Self::ONE)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The slot of a key.
pub(super) fn of(key: &str) -> u16 {
    let key = key.as_bytes();
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// The tags of all slots.
fn tags() -> Vec<Tag> {
    let mut tags = vec![None; usize::from(SLOTS)];
    let mut left = tags.len();
    for number in 0.. {
        let slot: &mut Option<Tag> = &mut tags[usize::from(of(&number.to_string()))];
        if slot.is_none() {
            *slot = Some(Tag(number));
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    tags.into_iter().flatten().collect()
}

/// CRC-16/XMODEM: the polynomial is 0x1021, and it begins with zero.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) ^ u16::from(*byte)) & 0xff])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // As `CLUSTER KEYSLOT` gives them.
        for (key, slot) in [("foo", 12_182), ("bar", 5_061), ("{foo}bar", 12_182), ("a{foo}{bar}", 12_182), ("", 0)] {
            assert_eq!(of(key), slot, "{key:?}");
        }
        // Braces with nothing in them, and braces that do not close, are part of the key.
        for key in ["{}foo", "{foo", "foo}", "}{foo"] {
            assert_eq!(of(key), crc16(key.as_bytes()) % SLOTS, "{key:?}");
        }
    }

    #[test]
    fn each_slot_has_a_tag_of_its_own() {
        for slot in 0..SLOTS {
            assert_eq!(of(&format!("{{{}}}lock-core:fence", Tag::of(slot))), slot);
            // Whatever braces the key of a queue has.
            assert_eq!(of(&format!("{{{}}}lock-core:queue:a{{b}}c", Tag::of(slot))), slot);
        }
        assert_eq!(Tag::of(of("0")), Tag::ONE);
    }
}
