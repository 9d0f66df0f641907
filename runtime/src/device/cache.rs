//! Compiled kernels on disk, named by the hash of everything that went into them.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tracing::trace;

use crate::digest;

const MAGIC: &[u8; 8] = b"unio\0\0\0\x01";
const SUM: usize = 32;

/// A hash of all inputs of one compilation. Paths never go in, so equal inputs meet wherever they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key(String);

impl Key {
    pub(crate) fn of(parts: &[&str]) -> Self {
        Self(digest::of([env!("CARGO_PKG_VERSION")].iter().chain(parts).map(|part| part.as_bytes())))
    }
}

/// The cache folder; without one, everything is compiled each time.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// `UNIO_CACHE_DIR`, else the user's cache folder, else the folder for temporary files.
    pub(crate) fn open() -> Self {
        let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = set("UNIO_CACHE_DIR")
            .or_else(|| set("XDG_CACHE_HOME").map(|f| f.join("unio")))
            .or_else(|| set("HOME").map(|f| f.join(".cache/unio")))
            .unwrap_or_else(|| env::temp_dir().join("unio-cache"));
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The entry, or what `build` makes, which is then kept. A damaged entry is built again.
    pub(crate) fn get_or_build<E>(&self, key: &Key, build: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let path = self.folder.join(format!("{}.bin", key.0));
        if let Some(payload) = read(&path) {
            trace!(key = key.0, "kernel from the cache");
            return Ok(payload);
        }
        let payload = build()?;
        if let Err(error) = self.store(&path, &payload) {
            trace!(%error, folder = %self.folder.display(), "the kernel cache cannot be written");
        }
        Ok(payload)
    }

    /// Written aside and renamed, so that a reader sees the whole entry or none.
    fn store(&self, path: &Path, payload: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(payload))?;
        file.write_all(payload)?;
        file.persist(path).map(drop).map_err(|e| e.error)
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let whole = bytes.len() >= MAGIC.len() + SUM
        && bytes.starts_with(MAGIC)
        && bytes[MAGIC.len()..][..SUM] == Sha256::digest(&bytes[MAGIC.len() + SUM..])[..];
    if !whole {
        trace!(path = %path.display(), "damaged kernel cache entry, built again");
        return None;
    }
    Some(bytes.split_off(MAGIC.len() + SUM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_entry_is_built_again() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache { folder: folder.path().join("sub") };
        let key = Key::of(&["x"]);
        let path = cache.folder.join(format!("{}.bin", key.0));
        let get = |payload: &[u8]| cache.get_or_build(&key, || Ok::<_, ()>(payload.to_vec())).expect("built");
        assert_eq!(get(b"one"), b"one");
        assert_eq!(get(b"two"), b"one", "a hit builds nothing");
        for damage in [&b""[..], &b"unio"[..], &[0u8; 60][..]] {
            fs::write(&path, damage).expect("written");
            assert_eq!(get(b"three"), b"three");
            assert_eq!(get(b"four"), b"three");
        }
    }
}
