use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::device::DeviceError;
use crate::session::SessionError;

/// What can be wrong with a checkpoint. Each message says which file and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The new file could not be written; what was at `path` before is still there, whole.
    #[error("{path}: could not be saved ({source}); the old file is untouched; check folder, permissions, free space")]
    Save {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file could not be read.
    #[error("{path}: cannot be read ({source}); check the path, which is relative to the working directory")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file has no bytes.
    #[error("{path}: is empty; it is not a checkpoint, take an older one")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter or longer than its header says.
    #[error("{path}: has {found} bytes where its header tells of {expected}; it is damaged, take an older one")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes there must be.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// The header's length cannot be true.
    #[error("{path}: tells of a header of {length} bytes, the most is {most}; it is no checkpoint or damaged")]
    HeaderLength {
        /// The file.
        path: PathBuf,
        /// What its first eight bytes say.
        length: u64,
        /// The format's limit.
        most: u64,
    },
    /// A shape whose elements cannot be counted.
    #[error("{path}: holds a shape of more bytes than can be counted; it is no checkpoint or damaged")]
    Overflow {
        /// The file.
        path: PathBuf,
    },
    /// The header is no safetensors header.
    #[error("{path}: has no valid safetensors header ({reason}); it is no checkpoint or damaged")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A safetensors file that no session saved, or one of another version.
    #[error("{path}: {reason}; load a file that this version of unio saved")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The file belongs to another layout.
    #[error(
        "{path}: was saved from another spec set than this one: {differences}; load it with the set that it was saved from"
    )]
    Fingerprint {
        /// The file.
        path: PathBuf,
        /// By name.
        differences: Differences,
    },
    /// A tensor that is missing, superfluous, or of another shape or type.
    #[error("{path}: tensor `{tensor}` {reason}; load a file that a session like this one saved")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// The numbers are not those that were saved.
    #[error("{path}: its tensors do not match their checksum; it is damaged, take an older one")]
    Checksum {
        /// The file.
        path: PathBuf,
    },
    /// The tensors do not fit the format.
    #[error("{path}: cannot be expressed as safetensors ({reason}); give every kept buffer fewer elements")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The session could not be read or written.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The device could not do it.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// How two layouts differ: slots, states, parameters and kept buffers by name, and where they lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// In the session and not in the file.
    pub added: Vec<String>,
    /// In the file and not in the session.
    pub removed: Vec<String>,
    /// In both, at other places: name, place in the file, place in the session.
    pub moved: Vec<(String, String, String)>,
}

impl Differences {
    /// Whether nothing that has a name differs.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.moved.is_empty()
    }

    pub(super) fn between(file: &BTreeMap<String, String>, session: &BTreeMap<String, String>) -> Self {
        let without = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
            a.keys().filter(|name| !b.contains_key(*name)).cloned().collect()
        };
        let moved = file.iter().filter_map(|(name, there)| {
            let here = session.get(name).filter(|here| *here != there)?;
            Some((name.clone(), there.clone(), here.clone()))
        });
        Self { added: without(session, file), removed: without(file, session), moved: moved.collect() }
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (what, names) in [("added since", &self.added), ("removed since", &self.removed)] {
            if !names.is_empty() {
                parts.push(format!("{what}: {}", names.join(", ")));
            }
        }
        if !self.moved.is_empty() {
            let moved = self.moved.iter().map(|(name, there, here)| format!("{name} (was {there}, is {here})"));
            parts.push(format!("moved: {}", moved.collect::<Vec<_>>().join(", ")));
        }
        match parts.is_empty() {
            true => f.write_str("all names and places agree, the fingerprints do not"),
            false => f.write_str(&parts.join("; ")),
        }
    }
}
