//! The decoder, on arbitrary bytes in arbitrary pieces.

use ragent_store::wire::{DecodeError, Decoder, Query};

/// Decodes a stream as a whole, and the same stream in pieces.
///
/// The first byte is the number of cuts; each of the next bytes is the length of a piece, times 16
/// if it is even.
pub fn decode(input: &[u8]) {
    let Some((&cuts, rest)) = input.split_first() else { return };
    let (pieces, stream) = rest.split_at(rest.len().min(usize::from(cuts)));
    let whole = requests(stream, &[]);
    assert_eq!(requests(stream, pieces), whole);
    check(stream, &whole.0);
}

/// Returns the requests of `stream`, and the error at its end, if `pieces` of these lengths arrive
/// before the rest.
fn requests<'a>(stream: &'a [u8], pieces: &[u8]) -> (Vec<Query<'a>>, Option<DecodeError>) {
    let mut decoder = Decoder::default();
    let mut queries = Vec::new();
    let (mut taken, mut arrived) = (0, 0);
    let lengths = pieces.iter().map(|&piece| usize::from(piece) * [16, 1][usize::from(piece % 2)]);
    for length in lengths.chain([stream.len()]) {
        arrived = stream.len().min(arrived + length);
        loop {
            let mut input = &stream[taken..arrived];
            let before = input.len();
            let decoded = decoder.decode(&mut input);
            taken += before - input.len();
            match decoded {
                Ok(Some(query)) => queries.push(query),
                Ok(None) => break assert_eq!(input.len(), before, "half a request was taken"),
                Err(error) => return (queries, Some(error)),
            }
        }
    }
    (queries, None)
}

/// Checks that each request encodes to its original bytes, and allocates no more than they justify.
fn check(stream: &[u8], queries: &[Query<'_>]) {
    let mut encoded = Vec::new();
    for query in queries {
        let before = encoded.len();
        query.encode(&mut encoded).expect("what was decoded is within limits");
        let room = match query {
            Query::Check { keys } | Query::Wait { keys } | Query::MultiGet { keys } => {
                keys.capacity()
            }
            Query::MultiSet { pairs } => 2 * pairs.capacity(),
            _ => 0,
        };
        assert!(8 * room <= encoded.len() - before, "{room} strings, of 8 bytes at least");
    }
    assert_eq!(encoded, stream[..encoded.len()]);
}
