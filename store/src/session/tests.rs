use super::*;
use crate::limits::APPENDED_LEN_MAX;

fn drain(output: &mut SendBuffer) -> Vec<u8> {
    let mut sent = Vec::new();
    while !output.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[])];
        output.next(&mut slices);
        let n = slices[0].len();
        sent.extend_from_slice(&slices[0]);
        output.advance(n);
    }
    sent
}

/// Feeds `input` to a new session on a new engine; returns the answers and the result.
fn feed(input: &[u8]) -> (Vec<u8>, Result<(), Violation>) {
    let mut engine = Engine::default();
    let mut session = Session::new(ClientId(0));
    let mut output = SendBuffer::default();
    let mut rest = input;
    let result = loop {
        match session.step(&mut engine, &mut rest, &mut output) {
            Ok(SessionStep::Taken) => {}
            Ok(SessionStep::NeedMore) => break Ok(()),
            Err(violation) => break Err(violation),
        }
    };
    (drain(&mut output), result)
}

fn greeted(queries: &[Query<'_>]) -> (Vec<u8>, Result<(), Violation>) {
    let mut input = GREETING.to_vec();
    for query in queries {
        query.encode(&mut input).unwrap();
    }
    feed(&input)
}

/// Only VALIDATE is accepted first, and a wrong byte is refused when it arrives.
#[test]
fn greeting_is_strict() {
    for (input, result) in [
        (&b""[..], Ok(())),
        (b"\0", Ok(())),
        (b"\0\xce\xf7\x85", Ok(())),
        (b"\0\xce\xf7\x85\x3c", Ok(())),
        (b"\0\0", Err(Violation::Unvalidated)),
        (b"\0\xce\xf7\x85\x3d", Err(Violation::Unvalidated)),
        (b"\x0d", Err(Violation::Unvalidated)),
        (b"GET / HTTP/1.1\r\n", Err(Violation::Unvalidated)),
        (b"\x03\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0", Err(Violation::TorchTooOld)),
        (b"\0\xce\xf7\x85\x3c\0\xce\xf7\x85\x3c", Err(Violation::SecondValidate)),
    ] {
        assert_eq!(feed(input), (vec![], result), "{}", input.escape_ascii());
    }
}

/// The requests before a broken rule are answered.
#[test]
fn answers_precede_the_violation() {
    let (answers, result) = feed(b"\0\xce\xf7\x85\x3c\x0dabcd\x63");
    assert_eq!((&answers[..], result), (&b"abcd"[..], Err(DecodeError::UnknownCode(0x63).into())));
}

/// An answer that would be too long is refused before it is built.
#[test]
fn answers_are_limited() {
    let value = vec![0; crate::limits::VALUE_LEN_MAX];
    let append = || Query::Append { key: b"k", value: &value };
    let mut queries = vec![append(), append(), append(), append()];
    queries.push(Query::MultiGet { keys: vec![b"k"; 9] });
    assert_eq!(queries.len() - 1, APPENDED_LEN_MAX / value.len() / 2);
    let len = 9 * (8 + 4 * value.len());
    assert_eq!(greeted(&queries), (vec![], Err(Violation::AnswerTooLong(len))));
}

/// The length of an answer includes the length that precedes each string.
#[test]
fn lengths_count_in_an_answer() {
    let max = ANSWER_LEN_MAX;
    assert_eq!(check_answer_len(3, max - 24), Ok(()));
    assert_eq!(check_answer_len(3, max - 23), Err(Violation::AnswerTooLong(max + 1)));
}

/// A long value that a `COMPARE_SET` stored is answered without a copy.
#[test]
fn stored_values_are_shared() {
    let desired = [7; crate::limits::SHARED_VALUE_LEN_MIN];
    let query = Query::CompareSet { key: b"k", expected: b"", desired: &desired };
    let (mut engine, mut output) = (Engine::default(), SendBuffer::default());
    execute(ClientId(0), query, &mut engine, &mut output).unwrap();
    let occupied = 8 + 2 * crate::limits::PIECE_OVERHEAD;
    assert_eq!((output.len(), output.occupied()), (8 + desired.len(), occupied));
}
