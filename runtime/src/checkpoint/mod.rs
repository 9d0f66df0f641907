//! Checkpoints: one safetensors file that restores a session bit for bit.
//!
//! Everything has a name, nothing a mere position: a parameter is the tensor `stage.param`, its optimizer state
//! `adamw.m/stage.param`, a slot `slot/NAME` (with `slot/NAME/observed`, `/smoothing`, `/skipped`), a state `state/NAME`,
//! anything else `buffer/NAME`. The header's metadata say which set, model and layout the file belongs to. The same state
//! gives the same bytes.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::Path;

use safetensors::tensor::{Metadata, SafeTensorError, TensorView, serialize};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use unio_interface::Artefacts;

use crate::digest;
use crate::session::Session;

mod error;
mod export;
mod file;
mod pieces;

pub use error::{CheckpointError, Differences};

use file::{Header, replace};
use pieces::Piece;

/// What the caller keeps beside the tensors: epoch, step, seed, …
pub type UserMetadata = BTreeMap<String, String>;

/// SHA-256, in hexadecimal, of all that was generated, kernel texts too: to keep beside a checkpoint where not the layout
/// alone matters, but the numbers too.
pub fn digest(artefacts: &Artefacts) -> String {
    // Debug names every field.
    digest::of([format!("{artefacts:?}").as_bytes()])
}

/// Saving and loading.
impl Session {
    /// Saves all kept buffers and `user` to one file. Written beside `path` and then renamed: at any moment the old
    /// file or the new one is there, whole.
    ///
    /// Errors: the file cannot be written; a kept buffer that the run has not filled.
    pub fn save(&self, path: impl AsRef<Path>, user: &UserMetadata) -> Result<(), CheckpointError> {
        let path = path.as_ref();
        let pieces = self.pieces()?;
        let contents = self.contents()?;
        let tensors: BTreeMap<&str, TensorView<'_>> = views(&pieces, &contents).map_err(format_error(path))?;
        let about = self.about(user, &checksum(tensors.iter().map(|(name, view)| (*name, view.data()))));
        let about = serde_json::to_string(&about).map_err(format_error(path))?;
        let header = HashMap::from([(KEY.to_owned(), about)]);
        let bytes = serialize(tensors, Some(header)).map_err(format_error(path))?;
        replace(path, |file| file.write_all(&bytes))
            .map_err(|source| CheckpointError::Save { path: path.into(), source })
    }

    /// Restores what [`Session::save`] saved and returns the caller's own metadata. The whole file is read and checked
    /// before the first buffer changes.
    ///
    /// Errors: the file is damaged; it belongs to another layout or type of real.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<UserMetadata, CheckpointError> {
        let path = path.as_ref();
        let (mut file, header) = Header::read(path)?;
        let about = About::read(path, &header.metadata)?;
        about.belongs(path, self)?;
        let pieces = self.pieces()?;
        check_tensors(path, &header.metadata, &pieces)?;
        let data = header.data(path, &mut file)?;
        let names = pieces.iter().map(|piece| piece.tensor.as_str());
        let sorted: BTreeMap<&str, &[u8]> = names.map(|name| (name, header.tensor(&data, name))).collect();
        if checksum(sorted.iter().map(|(name, bytes)| (*name, *bytes))) != about.sha256 {
            return Err(CheckpointError::Checksum { path: path.into() });
        }
        for piece in &pieces {
            let offset = piece.start * self.stored(piece.buffer).size();
            self.memory(piece.buffer)?.write_at(offset, sorted[piece.tensor.as_str()])?;
        }
        Ok(about.user)
    }
}

/// The one key of the header's metadata: a single one, because the format keeps no order among several.
const KEY: &str = "unio";
const VERSION: u32 = 1;

/// What a file says about itself.
#[derive(Serialize, Deserialize)]
struct About {
    version: u32,
    fingerprint: String,
    real: String,
    /// Over names and bytes of all tensors, by name.
    sha256: String,
    /// Set, model, slots, states, parameters, kept buffers: name and place.
    layout: BTreeMap<String, String>,
    user: UserMetadata,
}

impl Session {
    fn about(&self, user: &UserMetadata, sha256: &str) -> About {
        About {
            version: VERSION,
            fingerprint: self.artefacts().fingerprint.clone(),
            real: self.real().type_name().into(),
            sha256: sha256.into(),
            layout: self.layout(),
            user: user.clone(),
        }
    }

    fn layout(&self) -> BTreeMap<String, String> {
        let (artefacts, program) = (self.artefacts(), self.program());
        let mut layout =
            BTreeMap::from([("set".to_owned(), artefacts.set.clone()), ("model".to_owned(), program.model.clone())]);
        let slots = artefacts.slots.iter();
        layout.extend(slots.map(|s| (format!("slot `{}`", s.name), format!("{} [{}]", s.index, s.members.join(" ")))));
        let states = artefacts.states.iter();
        layout.extend(states.map(|s| (format!("state `{}`", s.name), format!("{} {}", s.word, scalar(s.int)))));
        let params = program.params.iter();
        layout.extend(params.map(|p| (format!("parameter `{}`", p.path), format!("{} {:?}", p.offset, p.shape))));
        let kept = program.buffers.iter().filter(|b| b.kept);
        layout.extend(kept.map(|b| (format!("buffer `{}`", b.name), format!("{:?}", b.shape))));
        layout
    }

    /// Bytes of every kept buffer, by its index.
    fn contents(&self) -> Result<BTreeMap<usize, Vec<u8>>, CheckpointError> {
        let mut contents = BTreeMap::new();
        for (index, _) in self.program().buffers.iter().enumerate().filter(|(_, b)| b.kept) {
            contents.insert(index, self.bytes_of(index)?);
        }
        Ok(contents)
    }

    fn bytes_of(&self, index: usize) -> Result<Vec<u8>, CheckpointError> {
        let memory = self.memory(index)?;
        let mut bytes = vec![0; memory.len()];
        memory.read(&mut bytes)?;
        Ok(bytes)
    }
}

impl About {
    fn read(path: &Path, metadata: &Metadata) -> Result<Self, CheckpointError> {
        let not_ours = |reason: String| CheckpointError::NotOurs { path: path.into(), reason };
        let text = metadata.metadata().as_ref().and_then(|all| all.get(KEY));
        let text = text.ok_or_else(|| not_ours(format!("its metadata have no `{KEY}`")))?;
        let about: Self = serde_json::from_str(text).map_err(|e| not_ours(format!("its `{KEY}` metadata: {e}")))?;
        match about.version == VERSION {
            true => Ok(about),
            false => Err(not_ours(format!("it has version {} and not {VERSION}", about.version))),
        }
    }

    fn belongs(&self, path: &Path, session: &Session) -> Result<(), CheckpointError> {
        let differences = Differences::between(&self.layout, &session.layout());
        if self.fingerprint != session.artefacts().fingerprint || !differences.is_empty() {
            return Err(CheckpointError::Fingerprint { path: path.into(), differences });
        }
        let real = session.real().type_name();
        match self.real == real {
            true => Ok(()),
            false => Err(CheckpointError::NotOurs {
                path: path.into(),
                reason: format!("its reals are {} and this session's {real}", self.real),
            }),
        }
    }
}

/// The file holds exactly these tensors.
fn check_tensors(path: &Path, metadata: &Metadata, pieces: &[Piece]) -> Result<(), CheckpointError> {
    let wrong =
        |tensor: &str, reason: String| CheckpointError::Tensor { path: path.into(), tensor: tensor.into(), reason };
    for piece in pieces {
        let Some(info) = metadata.info(&piece.tensor) else {
            return Err(wrong(&piece.tensor, "is missing".into()));
        };
        if info.shape != piece.shape || info.dtype != piece.dtype {
            let reason = format!("is {} {:?} and not {} {:?}", info.dtype, info.shape, piece.dtype, piece.shape);
            return Err(wrong(&piece.tensor, reason));
        }
    }
    let known: BTreeMap<&str, ()> = pieces.iter().map(|piece| (piece.tensor.as_str(), ())).collect();
    match metadata.offset_keys().iter().find(|name| !known.contains_key(name.as_str())) {
        Some(name) => Err(wrong(name, "is not one of this session's".into())),
        None => Ok(()),
    }
}

/// The tensors by name; bytes stay where they are.
fn views<'a>(
    pieces: &'a [Piece],
    contents: &'a BTreeMap<usize, Vec<u8>>,
) -> Result<BTreeMap<&'a str, TensorView<'a>>, SafeTensorError> {
    let view = |piece: &'a Piece| {
        let size = piece.dtype.bitsize() / 8;
        let bytes = &contents[&piece.buffer][piece.start * size..(piece.start + piece.len()) * size];
        Ok((piece.tensor.as_str(), TensorView::new(piece.dtype, piece.shape.clone(), bytes)?))
    };
    pieces.iter().map(view).collect()
}

fn checksum<'a>(tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in tensors {
        hash.update(name.as_bytes());
        hash.update([0]);
        hash.update(bytes);
    }
    digest::hex(&hash.finalize())
}

fn scalar(int: bool) -> &'static str {
    if int { "i32" } else { "f32" }
}

fn format_error<E: ToString>(path: &Path) -> impl Fn(E) -> CheckpointError + '_ {
    |error| CheckpointError::Format { path: path.into(), reason: error.to_string() }
}
