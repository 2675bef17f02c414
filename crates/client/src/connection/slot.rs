//! The slot of a cluster to which a key or channel belongs.

pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key, or of a channel of a cluster. If the key contains braces, only the text in
/// the first pair decides.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// Returns the part of a key that decides its slot.
pub fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let behind = &key[open + 1..];
    match behind.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &behind[..close],
    }
}

/// CRC-16/XMODEM, as servers compute it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected slots are those of `CLUSTER KEYSLOT`.
    #[test]
    fn a_slot_is_computed_as_servers_do() {
        for (key, slot) in [
            ("", 0),
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("bar{foo}{x}", 12_182),
            ("foo{}{bar}", 8_363),
            ("a{b", 13_340),
            ("a}b", 7_866),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }
}
