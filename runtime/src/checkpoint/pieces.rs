//! Which tensor holds which range of which buffer.

use safetensors::tensor::Dtype;

use unio_interface::Buffer;

use super::CheckpointError;
use crate::session::{ISV, OBSERVED, PARAMS, SKIPPED, SMOOTHING, STATE, Session, Stored, product};

/// A range of a buffer, and the tensor that holds it.
pub(super) struct Piece {
    pub(super) tensor: String,
    pub(super) buffer: usize,
    pub(super) start: usize,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: Dtype,
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Session {
    /// What is kept, completely: ranges without a name of their own are named after their buffer.
    pub(super) fn pieces(&self) -> Result<Vec<Piece>, CheckpointError> {
        let mut pieces = Vec::new();
        for (index, _) in self.program().buffers.iter().enumerate().filter(|(_, b)| b.kept) {
            pieces.extend(self.pieces_of(index)?);
        }
        Ok(pieces)
    }

    /// One buffer, completely.
    pub(super) fn pieces_of(&self, index: usize) -> Result<Vec<Piece>, CheckpointError> {
        self.memory(index)?;
        let (buffer, len) = (&self.program().buffers[index], self.len(index).unwrap_or(0));
        let mut named = self.named_pieces(index, len);
        named.sort_by_key(|piece| piece.start);
        if named.is_empty() {
            named.push(self.piece(index, format!("buffer/{}", buffer.name), 0, extents(buffer, len)));
        }
        let mut pieces = self.gaps(index, len, &named);
        pieces.append(&mut named);
        pieces.retain(|piece| piece.len() > 0);
        Ok(pieces)
    }

    fn named_pieces(&self, index: usize, len: usize) -> Vec<Piece> {
        let buffer = &self.program().buffers[index];
        match buffer.name.as_str() {
            ISV | OBSERVED | SKIPPED | SMOOTHING => self.slot_pieces(index),
            STATE => self.state_pieces(index),
            PARAMS => self.param_pieces(index, ""),
            // An optimizer keeps one number a parameter, in the parameters' own order.
            name if !buffer.external && self.index_of(PARAMS).and_then(|params| self.len(params)) == Some(len) => {
                self.param_pieces(index, &format!("{name}/"))
            }
            _ => Vec::new(),
        }
    }

    fn piece(&self, buffer: usize, tensor: String, start: usize, shape: Vec<usize>) -> Piece {
        let dtype = dtype(self.stored(buffer));
        Piece { tensor, buffer, start, shape, dtype }
    }

    fn param_pieces(&self, buffer: usize, prefix: &str) -> Vec<Piece> {
        let params = self.program().params.iter();
        params.map(|p| self.piece(buffer, format!("{prefix}{}", p.path), p.offset, p.shape.clone())).collect()
    }

    fn state_pieces(&self, buffer: usize) -> Vec<Piece> {
        let piece = |state: &unio_interface::State| Piece {
            dtype: if state.int { Dtype::I32 } else { Dtype::F32 },
            ..self.piece(buffer, format!("state/{}", state.name), state.word, vec![1])
        };
        self.artefacts().states.iter().map(piece).collect()
    }

    fn slot_pieces(&self, index: usize) -> Vec<Piece> {
        let buffer = &self.program().buffers[index];
        // Numbers that belong to one member of a slot.
        let width: usize = buffer.shape.get(1..).and_then(product).unwrap_or(1);
        let piece = |slot: &unio_interface::Slot| {
            let members = slot.members.len().max(1);
            let (tensor, start) = match buffer.name.as_str() {
                ISV => (format!("slot/{}", slot.name), slot.index),
                name => (format!("slot/{}/{name}", slot.name), slot.scratch?.checked_mul(width)?),
            };
            let shape = if buffer.shape.len() > 1 { vec![members, width] } else { vec![members] };
            let end = start.checked_add(product(&shape)?)?;
            (end <= self.len(index)?).then(|| self.piece(index, tensor, start, shape))
        };
        self.artefacts().slots.iter().filter_map(piece).collect()
    }

    /// What lies between named pieces, so that nothing of a buffer is lost.
    fn gaps(&self, buffer: usize, len: usize, named: &[Piece]) -> Vec<Piece> {
        let name = &self.program().buffers[buffer].name;
        let mut gaps = Vec::new();
        let mut at = 0;
        let ends = named.iter().map(|piece| (piece.start, piece.start + piece.len()));
        for (start, end) in ends.chain([(len, len)]) {
            if start > at {
                gaps.push(self.piece(buffer, format!("buffer/{name}@{at}"), at, vec![start - at]));
            }
            at = at.max(end);
        }
        gaps
    }
}

/// The extents of a buffer that has `len` elements; the run tells the first one where the shape leaves it open.
fn extents(buffer: &Buffer, len: usize) -> Vec<usize> {
    let row = buffer.shape.get(1..).and_then(product).unwrap_or(0);
    match (product(&buffer.shape), buffer.shape.first()) {
        (Some(all), _) if all == len => buffer.shape.clone(),
        (_, Some(0)) if row > 0 && len.is_multiple_of(row) => [&[len / row], &buffer.shape[1..]].concat(),
        _ => vec![len],
    }
}

fn dtype(stored: Stored) -> Dtype {
    match stored {
        Stored::F32 => Dtype::F32,
        Stored::F64 => Dtype::F64,
        Stored::I32 => Dtype::I32,
    }
}
