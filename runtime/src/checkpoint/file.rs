//! The file itself: a header that is not believed until it is checked, and a write that is whole or not at all.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::tensor::{Metadata, SafeTensorError};

use super::CheckpointError;

/// Bytes of the header's length.
const PREFIX: u64 = 8;
/// The format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// A file's header, checked against its length.
pub(super) struct Header {
    pub(super) metadata: Metadata,
    /// Where the tensors start.
    start: u64,
    /// Bytes of all tensors, which end the file.
    bytes: usize,
}

impl Header {
    /// Allocates no more than the file is long.
    pub(super) fn read(path: &Path) -> Result<(File, Self), CheckpointError> {
        let mut file = File::open(path).map_err(read_error(path))?;
        let found = file.metadata().map_err(read_error(path))?.len();
        let length = header_length(path, &mut file, found)?;
        let start = PREFIX + length;
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(read_error(path))?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| header_error(path, &e))?;
        let bytes = metadata.data_len();
        let expected = start.saturating_add(bytes as u64);
        if expected != found {
            return Err(CheckpointError::Truncated { path: path.into(), expected, found });
        }
        Ok((file, Self { metadata, start, bytes }))
    }

    pub(super) fn data(&self, path: &Path, file: &mut File) -> Result<Vec<u8>, CheckpointError> {
        let mut data = vec![0; self.bytes];
        file.seek(SeekFrom::Start(self.start)).map_err(read_error(path))?;
        file.read_exact(&mut data).map_err(read_error(path))?;
        Ok(data)
    }

    /// Empty where there is no such tensor; the caller saw to it that there is.
    pub(super) fn tensor<'a>(&self, data: &'a [u8], name: &str) -> &'a [u8] {
        let range = self.metadata.info(name).map(|info| info.data_offsets);
        range.and_then(|(start, end)| data.get(start..end)).unwrap_or(&[])
    }
}

fn header_length(path: &Path, file: &mut File, found: u64) -> Result<u64, CheckpointError> {
    if found == 0 {
        return Err(CheckpointError::Empty { path: path.into() });
    }
    let truncated = |expected| CheckpointError::Truncated { path: path.into(), expected, found };
    if found < PREFIX {
        return Err(truncated(PREFIX));
    }
    let mut prefix = [0; PREFIX as usize];
    file.read_exact(&mut prefix).map_err(read_error(path))?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER {
        return Err(CheckpointError::HeaderLength { path: path.into(), length, most: MAX_HEADER });
    }
    match PREFIX + length <= found {
        true => Ok(length),
        false => Err(truncated(PREFIX + length)),
    }
}

/// Puts a new file at `path`, or leaves what is there. It is on the disk when this returns.
pub(super) fn replace(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".checkpoint-").suffix(".partial");
    // As any new file would be: for all that the user's mask lets in, not for the owner alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut partial = builder.tempfile_in(folder)?;
    fill(partial.as_file_mut())?;
    partial.as_file().sync_all()?;
    partial.persist(path).map_err(|e| e.error)?;
    // A rename is on the disk when its folder is.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

fn read_error(path: &Path) -> impl Fn(io::Error) -> CheckpointError + '_ {
    |source| CheckpointError::Read { path: path.into(), source }
}

/// The library checks shapes while it parses, and hands its own error over as text.
fn header_error(path: &Path, error: &serde_json::Error) -> CheckpointError {
    let reason = error.to_string();
    match reason.contains(&SafeTensorError::ValidationOverflow.to_string()) {
        true => CheckpointError::Overflow { path: path.into() },
        false => CheckpointError::Header { path: path.into(), reason },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_failure_in_the_middle_leaves_the_old_file_and_no_other() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("a");
        replace(&path, |file| file.write_all(b"old"))?;
        let full = replace(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(full.map_err(|e| e.kind()), Err(io::ErrorKind::StorageFull));
        assert_eq!(std::fs::read(&path)?, b"old");
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
        replace(&path, |file| file.write_all(b"new"))?;
        assert_eq!(std::fs::read(&path)?, b"new");
        Ok(())
    }
}
