//! SHA-256 in hexadecimal.

use sha2::{Digest, Sha256};

/// Of parts that are length-prefixed, so that no two lists of parts run together.
pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

/// Two digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(of([&b"ab"[..], b"c"]), of([&b"a"[..], b"bc"]));
        assert_eq!(hex(&[0, 171]), "00ab");
    }
}
