//! Collects the answers of a connection until they are sent.
//!
//! Short ones are copied one behind the other; long values are handed on as they lie in the store,
//! so a thousand readers of one value hold it once.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::limits::SHARED_VALUE_LEN_MIN;

/// Bytes on their way to a peer, in order: first `pieces`, then `tail`.
///
/// Invariant: no piece is empty; `pieces_len` is the sum of their lengths, `shared_len` of those of
/// them that lie in the store.
#[derive(Debug, Default)]
pub struct Output {
    pieces: VecDeque<Piece>,
    pieces_len: usize,
    shared_len: usize,
    tail: BytesMut,
}

#[derive(Debug)]
enum Piece {
    Copied(Bytes),
    Shared(Bytes),
}

impl Output {
    /// Adds one byte.
    pub fn put_u8(&mut self, byte: u8) {
        self.tail.put_u8(byte);
    }

    /// Adds a 32-bit integer.
    pub fn put_u32(&mut self, word: u32) {
        self.tail.put_u32_le(word);
    }

    /// Adds a 64-bit integer.
    pub fn put_i64(&mut self, number: i64) {
        self.tail.put_i64_le(number);
    }

    /// Adds a length, which the protocol sends as a signed integer in some answers and as an
    /// unsigned one in others: the same bytes.
    pub fn put_len(&mut self, len: usize) {
        self.tail.put_u64_le(len as u64);
    }

    /// Adds `bytes` behind their length.
    pub fn put_string(&mut self, bytes: &[u8]) {
        self.put_len(bytes.len());
        self.tail.put_slice(bytes);
    }

    /// Adds a value of the store behind its length, without a copy if it is long.
    pub fn put_value(&mut self, value: &Bytes) {
        if value.len() < SHARED_VALUE_LEN_MIN {
            return self.put_string(value);
        }
        self.put_len(value.len());
        // Never empty: the length is in it.
        let before = self.tail.split().freeze();
        self.pieces_len += before.len() + value.len();
        self.shared_len += value.len();
        self.pieces.extend([Piece::Copied(before), Piece::Shared(value.clone())]);
    }

    /// Returns how many bytes are to be sent.
    pub fn len(&self) -> usize {
        self.pieces_len + self.tail.len()
    }

    /// Returns how many of them occupy memory of their own.
    pub fn copied_len(&self) -> usize {
        self.len() - self.shared_len
    }

    /// Tells whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `slices` with what is to be sent next and returns how many there are.
    pub fn next<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = Some(&self.tail[..]).filter(|tail| !tail.is_empty());
        let pieces = self.pieces.iter().map(Piece::bytes).chain(tail);
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            used += 1;
        }
        used
    }

    /// Removes the first `sent` bytes.
    pub fn advance(&mut self, mut sent: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let n = sent.min(piece.bytes().len());
            let left = match piece {
                Piece::Copied(bytes) => advance(bytes, n),
                Piece::Shared(bytes) => {
                    self.shared_len -= n;
                    advance(bytes, n)
                }
            };
            self.pieces_len -= n;
            sent -= n;
            if left > 0 {
                return;
            }
            self.pieces.pop_front();
        }
        if sent == self.tail.len() {
            self.tail.clear();
            self.shrink();
        } else {
            self.tail.advance(sent);
        }
    }

    /// Frees the room that a rare large answer took: idle connections should cost little.
    fn shrink(&mut self) {
        if self.tail.capacity() > IDLE_CAPACITY {
            *self = Self::default();
        }
    }
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) | Self::Shared(bytes) => bytes,
        }
    }
}

/// Removes the first `n` bytes and returns how many are left.
fn advance(bytes: &mut Bytes, n: usize) -> usize {
    bytes.advance(n);
    bytes.len()
}

const IDLE_CAPACITY: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(output: &mut Output, step: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let used = output.next(&mut slices);
            let next = slices[..used].iter().flat_map(|slice| slice.iter());
            let before = sent.len();
            sent.extend(next.take(step));
            let n = sent.len() - before;
            output.advance(n);
        }
        sent
    }

    /// Answers come out in the order in which they were put in, however much a write takes.
    #[test]
    fn order_is_kept_over_partial_writes() {
        let long = Bytes::from(vec![7; SHARED_VALUE_LEN_MIN]);
        for step in [7, 4000, usize::MAX] {
            let mut output = Output::default();
            output.put_u8(1);
            output.put_value(&long);
            output.put_value(&Bytes::from_static(b"ab"));
            output.put_value(&long);
            output.put_value(&long);
            output.put_i64(-1);
            let len = SHARED_VALUE_LEN_MIN.to_le_bytes();
            let value = [&len[..], &long[..]].concat();
            let short = b"\x02\0\0\0\0\0\0\0ab";
            let whole = [&[1], &value[..], short, &value, &value, &[255; 8]].concat();
            assert_eq!(output.len(), whole.len());
            assert_eq!(drain(&mut output, step), whole);
        }
    }

    /// A long value is not copied.
    #[test]
    fn long_values_are_shared() {
        let long = Bytes::from(vec![7; SHARED_VALUE_LEN_MIN]);
        let mut output = Output::default();
        output.put_value(&long);
        assert_eq!(output.pieces[1].bytes().as_ptr(), long.as_ptr());
    }
}
