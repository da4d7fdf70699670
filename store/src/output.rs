//! Collects the answers of a connection until they are sent.
//!
//! Short ones are copied into one buffer; long values are shared with the store, so a thousand
//! readers of one value hold it once.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;

use bytes::{Buf as _, Bytes, BytesMut};

use crate::limits::{PIECE_OVERHEAD, SHARED_VALUE_LEN_MIN};

/// Bytes to be sent to a peer, in order: first `pieces`, then `tail`.
///
/// Invariant: no piece is empty; `pieces_len` is the sum of their lengths, `shared_len` that of the
/// shared ones, `front_sent` the bytes sent of the first piece if it is copied. `released` is true
/// if a shared piece was sent since the last query.
#[derive(Debug, Default)]
pub struct SendBuffer {
    pieces: VecDeque<Piece>,
    pieces_len: usize,
    shared_len: usize,
    front_sent: usize,
    released: bool,
    tail: BytesMut,
}

#[derive(Debug)]
enum Piece {
    /// Not shared with the store.
    Copied(Bytes),
    Shared(Bytes),
}

impl SendBuffer {
    /// Adds one byte.
    pub fn put_u8(&mut self, byte: u8) {
        self.put(&[byte]);
    }

    /// Adds a 32-bit integer.
    pub fn put_u32(&mut self, word: u32) {
        self.put(&word.to_le_bytes());
    }

    /// Adds a 64-bit integer.
    pub fn put_i64(&mut self, number: i64) {
        self.put(&number.to_le_bytes());
    }

    /// Adds a length, which the protocol sends as a signed integer in some answers and as an
    /// unsigned one in others: the same bytes.
    pub fn put_len(&mut self, len: usize) {
        self.put(&(len as u64).to_le_bytes());
    }

    /// Adds `bytes`, preceded by their length.
    pub fn put_string(&mut self, bytes: &[u8]) {
        self.put_len(bytes.len());
        bytes.chunks(PIECE_LEN).for_each(|chunk| self.put(chunk));
    }

    /// Adds a value of the store, preceded by its length; a long value is not copied.
    pub fn put_value(&mut self, value: &Bytes) {
        if value.len() < SHARED_VALUE_LEN_MIN {
            return self.put_string(value);
        }
        self.put_len(value.len());
        self.shared_len += value.len();
        self.put_piece(Piece::Shared(value.clone()));
    }

    /// Adds a value that is no longer in the store, preceded by its length; a long one is not
    /// copied.
    pub fn put_own_value(&mut self, value: Bytes) {
        if value.len() < SHARED_VALUE_LEN_MIN {
            return self.put_string(&value);
        }
        self.put_len(value.len());
        self.put_piece(Piece::Copied(value));
    }

    /// Returns the number of bytes to be sent.
    pub fn len(&self) -> usize {
        self.pieces_len + self.tail.len()
    }

    /// Returns the bytes of memory that the output occupies, without those shared with the store.
    /// The sent part of a piece counts until all of the piece was sent.
    pub fn occupied(&self) -> usize {
        let bytes = self.len() - self.shared_len + self.front_sent;
        bytes + self.pieces.len() * PIECE_OVERHEAD
    }

    /// Returns true if everything was sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `slices` with the bytes to be sent next and returns the number of slices used.
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

    /// Adds a few `bytes`.
    ///
    /// Each piece is allocated separately, so it is freed once it was sent, not only when all is.
    fn put(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        if PIECE_LEN <= self.tail.len() {
            let piece = mem::take(&mut self.tail).freeze();
            self.pieces_len += piece.len();
            self.pieces.push_back(Piece::Copied(piece));
        }
    }

    fn put_piece(&mut self, piece: Piece) {
        let before = self.tail.split().freeze();
        self.pieces_len += before.len() + piece.bytes().len();
        if !before.is_empty() {
            self.pieces.push_back(Piece::Copied(before));
        }
        self.pieces.push_back(piece);
    }

    /// Returns true if all of a value that is shared with the store was sent since the last call.
    pub fn take_released(&mut self) -> bool {
        mem::take(&mut self.released)
    }

    /// Removes the first `sent` bytes.
    pub fn advance(&mut self, mut sent: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let n = sent.min(piece.bytes().len());
            let left = match piece {
                Piece::Copied(bytes) => {
                    self.front_sent += n;
                    advance(bytes, n)
                }
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
            self.front_sent = 0;
            self.released |= matches!(piece, Piece::Shared(_));
            self.pieces.pop_front();
        }
        if sent == self.tail.len() {
            self.tail.clear();
            self.shrink();
        } else {
            self.tail.advance(sent);
        }
    }

    /// Frees the memory of a rare large answer, so that idle connections cost little.
    fn shrink(&mut self) {
        let capacity = self.tail.capacity() + self.pieces.capacity() * size_of::<Piece>();
        if capacity > IDLE_CAPACITY {
            *self = Self { released: self.released, ..Self::default() };
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

/// Removes the first `n` bytes and returns the number left.
fn advance(bytes: &mut Bytes, n: usize) -> usize {
    bytes.advance(n);
    bytes.len()
}

const IDLE_CAPACITY: usize = 4096;

/// Copied bytes are split into pieces of about this length, and less than twice as long.
const PIECE_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(output: &mut SendBuffer, step: usize) -> Vec<u8> {
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

    /// Answers are sent in the order of their addition, however much a write takes.
    #[test]
    fn order_is_kept_over_partial_writes() {
        let long = Bytes::from(vec![7; SHARED_VALUE_LEN_MIN]);
        for step in [7, 4000, usize::MAX] {
            let mut output = SendBuffer::default();
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

    /// The sent part of a long answer is freed before the rest is sent.
    #[test]
    fn sent_bytes_are_freed() {
        let mut output = SendBuffer::default();
        for _ in 0..1000 {
            output.put_string(&[7; 1000]);
        }
        output.put_string(&[7; 4 * PIECE_LEN]);
        assert!(output.pieces.iter().all(|piece| piece.bytes().len() < 2 * PIECE_LEN));
        output.advance(output.len() - 1);
        assert!(output.pieces.len() <= 1 && output.tail.capacity() <= 2 * PIECE_LEN);
    }

    /// A value that is not shared is held, and counts, until all of it was sent.
    #[test]
    fn own_values_count() {
        const LEN: usize = 4 * PIECE_LEN;
        let mut output = SendBuffer::default();
        output.put_own_value(vec![7; LEN].into());
        output.put_u8(1);
        assert_eq!(output.occupied(), 8 + LEN + 1 + 2 * PIECE_OVERHEAD);
        output.advance(8 + LEN - 1);
        assert_eq!((output.len(), output.occupied()), (2, LEN + 1 + PIECE_OVERHEAD));
        output.advance(1);
        assert_eq!(output.occupied(), 1);
    }

    /// A long value is not copied, a short one is.
    #[test]
    fn long_values_are_shared() {
        let long = Bytes::from(vec![7; SHARED_VALUE_LEN_MIN]);
        let short = long.slice(1..);
        let mut output = SendBuffer::default();
        output.put_value(&long);
        output.put_own_value(long.clone());
        assert_eq!(output.pieces[1].bytes().as_ptr(), long.as_ptr());
        assert_eq!(output.pieces[3].bytes().as_ptr(), long.as_ptr());
        output.put_value(&short);
        output.put_own_value(short.clone());
        assert_eq!(output.pieces.len(), 4);
    }

    /// The end of a shared value is reported once, the end of another value is not.
    #[test]
    fn released_values_are_reported_once() {
        let long = Bytes::from(vec![7; SHARED_VALUE_LEN_MIN]);
        let mut output = SendBuffer::default();
        output.put_own_value(long.clone());
        output.advance(output.len());
        assert!(!output.take_released());
        output.put_value(&long);
        output.advance(output.len() - 1);
        assert!(!output.take_released());
        output.advance(1);
        assert_eq!((output.take_released(), output.take_released()), (true, false));
    }

    /// An output without bytes to send occupies little memory, even after a large answer. It still reports a shared value.
    #[test]
    fn idle_outputs_are_small() {
        let long = Bytes::from(vec![7; SHARED_VALUE_LEN_MIN]);
        let fills: [fn(&mut SendBuffer, &Bytes); 2] = [
            |output, _| output.put_string(&[7; 2 * IDLE_CAPACITY]),
            |output, long| (0..IDLE_CAPACITY).for_each(|_| output.put_value(long)),
        ];
        for (fill, is_shared) in fills.into_iter().zip([false, true]) {
            let mut output = SendBuffer::default();
            fill(&mut output, &long);
            output.advance(output.len());
            assert!(output.tail.capacity() <= IDLE_CAPACITY);
            assert!(output.pieces.capacity() * size_of::<Piece>() <= IDLE_CAPACITY);
            assert_eq!(output.take_released(), is_shared);
        }
    }

    /// The memory of short answers is kept for the next one.
    #[test]
    fn memory_of_short_answers_is_kept() {
        let mut output = SendBuffer::default();
        output.put_string(&[7; 100]);
        output.advance(output.len());
        assert!(output.tail.capacity() >= 100);
    }
}
