use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::limits::{KEY_LEN_MAX, KEYS_MAX, REQUEST_LEN_MAX, VALUE_LEN_MAX};

/// A query that owns its bytes, to borrow from.
#[derive(Clone, Debug)]
struct Owned {
    kind: QueryType,
    number: i64,
    strings: Vec<(Vec<u8>, Vec<u8>)>,
    extra: Vec<u8>,
}

impl Owned {
    fn borrow(&self) -> Query<'_> {
        let (key, value) = self.strings.first().map_or((&[][..], &[][..]), |(k, v)| (k, v));
        let keys = || self.strings.iter().map(|(key, _)| &key[..]).collect();
        let (number, word) = (self.number, self.number as u32);
        match self.kind {
            QueryType::Validate => Query::Validate { magic: word },
            QueryType::Set => Query::Set { key, value },
            QueryType::CompareSet => {
                Query::CompareSet { key, expected: value, desired: &self.extra }
            }
            QueryType::Get => Query::Get { key },
            QueryType::Add => Query::Add { key, delta: number },
            QueryType::Check => Query::Check { keys: keys() },
            QueryType::Wait => Query::Wait { keys: keys() },
            QueryType::GetNumKeys => Query::GetNumKeys,
            QueryType::DeleteKey => Query::DeleteKey { key },
            QueryType::Append => Query::Append { key, value },
            QueryType::MultiGet => Query::MultiGet { keys: keys() },
            QueryType::MultiSet => Query::MultiSet {
                pairs: self.strings.iter().map(|(k, v)| (&k[..], &v[..])).collect(),
            },
            QueryType::CancelWait => Query::CancelWait,
            QueryType::Ping => Query::Ping { nonce: word },
            QueryType::QueuePush => Query::QueuePush { queue: key, value },
            QueryType::QueuePop => Query::QueuePop { queue: key },
            QueryType::QueueLen => Query::QueueLen { queue: key },
            QueryType::ListKeys => Query::ListKeys,
            QueryType::Barrier => Query::Barrier { key, world_size: number },
        }
    }
}

fn query() -> impl Strategy<Value = Owned> {
    let bytes = || vec(any::<u8>(), 0..12);
    let kind = prop::sample::select(&QueryType::ALL[..]);
    (kind, any::<i64>(), vec((bytes(), bytes()), 0..4), bytes())
        .prop_map(|(kind, number, strings, extra)| Owned { kind, number, strings, extra })
}

fn encode_all(queries: &[Owned]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for query in queries {
        query.borrow().encode(&mut bytes).unwrap();
    }
    bytes
}

proptest! {
    /// Decoding encoded queries returns the same queries, wherever the bytes are split.
    #[test]
    fn cut_anywhere(queries in vec(query(), 1..8), mut cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        let bytes = encode_all(&queries);
        let mut cuts: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len())).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();

        let (mut decoder, mut taken, mut decoded) = (Decoder::default(), 0, 0);
        for cut in cuts {
            let mut arrived = &bytes[taken..cut];
            while let Some(query) = decoder.decode(&mut arrived).unwrap() {
                prop_assert_eq!(query, queries[decoded].borrow());
                decoded += 1;
            }
            taken = cut - arrived.len();
        }
        prop_assert_eq!((taken, decoded), (bytes.len(), queries.len()));
    }

    /// Decoding arbitrary bytes returns queries, an error or a request for more, and never panics.
    #[test]
    fn never_panics(code in 0u8..24, bytes in vec(any::<u8>(), 0..64)) {
        let input = [&[code], &bytes[..]].concat();
        let (mut decoder, mut rest) = (Decoder::default(), &input[..]);
        while let Ok(Some(_)) = decoder.decode(&mut rest) {}
    }

    /// Decoding bytes with small length words, which get further, never panics either.
    #[test]
    fn never_panics_on_short_lengths(words in vec((0u8..20, 0u64..4), 0..24)) {
        let input: Vec<u8> =
            words.iter().flat_map(|(code, word)| [vec![*code], word.to_le_bytes().to_vec()].concat()).collect();
        let (mut decoder, mut rest) = (Decoder::default(), &input[..]);
        while let Ok(Some(_)) = decoder.decode(&mut rest) {}
    }
}

fn decode_error(code: u8, words: &[u64]) -> Option<DecodeError> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    let bytes: Vec<u8> = [code].into_iter().chain(words).collect();
    Decoder::default().decode(&mut &bytes[..]).err()
}

/// A length word beyond its limit is refused before a byte of its string has arrived; the limit
/// itself is accepted.
#[test]
fn lengths_are_checked_at_once() {
    let key = KEY_LEN_MAX as u64;
    for code in [1, 2, 3, 4, 8, 9, 14, 15, 16, 18] {
        assert_eq!(decode_error(code, &[key]), None);
        assert_eq!(decode_error(code, &[key + 1]), Some(LimitError::KeyTooLong(key + 1).into()));
        assert_eq!(decode_error(code, &[1 << 63]), Some(LimitError::KeyTooLong(1 << 63).into()));
    }
    for code in [5, 6, 10, 11] {
        let keys = KEYS_MAX as u64;
        assert_eq!(decode_error(code, &[keys]), None);
        assert_eq!(decode_error(code, &[keys + 1]), Some(LimitError::TooManyKeys(keys + 1).into()));
        assert_eq!(decode_error(code, &[1, key + 1]), Some(LimitError::KeyTooLong(key + 1).into()));
    }
    for code in [1, 2, 9, 14] {
        let value = VALUE_LEN_MAX as u64;
        assert_eq!(decode_error(code, &[0, value]), None);
        let error = LimitError::ValueTooLong(value + 1).into();
        assert_eq!(decode_error(code, &[0, value + 1]), Some(error));
    }
}

/// A request as a whole is refused at the length word that exceeds the limit.
#[test]
fn whole_request_is_limited() {
    let value = vec![0; VALUE_LEN_MAX];
    let mut bytes = vec![11];
    bytes.extend_from_slice(&100u64.to_le_bytes());
    let mut decoder = Decoder::default();
    let pairs = (1..).find(|_| {
        bytes.extend_from_slice(&0u64.to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
        let refused = decoder.decode(&mut &bytes[..]).is_err();
        bytes.extend_from_slice(&value);
        refused
    });
    assert_eq!(pairs, Some(REQUEST_LEN_MAX / VALUE_LEN_MAX));
}

/// A code without a query is refused; an empty buffer is not.
#[test]
fn unknown_codes_are_refused() {
    for code in 19..=255 {
        assert_eq!(decode_error(code, &[]), Some(DecodeError::UnknownCode(code)));
    }
    assert_eq!(Decoder::default().decode(&mut &[][..]), Ok(None));
}

/// A query that cannot be decoded is not encoded, and the output stays unchanged.
#[test]
fn encode_refuses_what_decode_refuses() {
    let mut out = vec![7];
    let key = vec![b'k'; KEY_LEN_MAX + 1];
    let refused = Query::Get { key: &key }.encode(&mut out);
    assert_eq!(refused, Err(LimitError::KeyTooLong(8193)));
    assert_eq!(out, [7]);
}
