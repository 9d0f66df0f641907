//! Buffers for other programs to read: the tensors of a checkpoint, of any buffer, without what makes it loadable.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use safetensors::tensor::serialize;

use super::file::replace;
use super::{CheckpointError, format_error, views};
use crate::session::Session;

impl Session {
    /// Writes these buffers, as they are now, to one safetensors file, under the names that a checkpoint would give them:
    /// `params` by parameter, what has a number a parameter by `BUFFER/stage.param`, others as `buffer/NAME`.
    ///
    /// Errors: no such buffer; one that the run has not filled; the file cannot be written.
    pub fn export(&self, path: impl AsRef<Path>, buffers: &[&str]) -> Result<(), CheckpointError> {
        let path = path.as_ref();
        let (mut pieces, mut contents) = (Vec::new(), BTreeMap::new());
        for name in buffers {
            let index = self.named(name)?;
            pieces.extend(self.pieces_of(index)?);
            contents.insert(index, self.bytes_of(index)?);
        }
        let tensors = views(&pieces, &contents).map_err(format_error(path))?;
        let bytes = serialize(tensors, None).map_err(format_error(path))?;
        replace(path, |file| file.write_all(&bytes))
            .map_err(|source| CheckpointError::Save { path: path.into(), source })
    }
}
