//! Messages of the kernel about sockets, and its tables of them.

use super::*;

/// Parses rows of a table if the first byte is odd; else a message, after the number of a request in four bytes.
pub fn sock_diag(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    if kind % 2 == 1 {
        String::from_utf8_lossy(rest).lines().for_each(table);
    } else if let Some((sequence, message)) = rest.split_first_chunk() {
        answer(message, u32::from_ne_bytes(*sequence));
    }
}

fn answer(message: &[u8], sequence: u32) {
    let answer = parse(message, sequence);
    let bytes_at = |at: usize| <[u8; 4]>::try_from(&message[at..at + 4]).expect("four bytes");
    match answer {
        LookupAnswer::Found(socket) => {
            assert_eq!(socket.uid, u32::from_ne_bytes(bytes_at(UID_AT)));
            let is_established = message[HEADER_LEN + 1] == ESTABLISHED;
            let expected = if is_established { Owner::User(socket.uid) } else { Owner::Nobody };
            assert_eq!(socket.owner(), expected);
        }
        LookupAnswer::Missing => assert_eq!(i32::from_ne_bytes(bytes_at(HEADER_LEN)), -ENOENT),
        LookupAnswer::Failed(errno) => assert_ne!(errno, ENOENT),
        LookupAnswer::Other => return,
    }
    assert_eq!(u32::from_ne_bytes(bytes_at(8)), sequence);
    assert_eq!(parse(message, sequence.wrapping_add(1)), LookupAnswer::Other, "an outdated answer");
    for len in 0..message.len() {
        let cut = parse(&message[..len], sequence);
        assert!(cut == LookupAnswer::Other || cut == answer, "{len} of {} bytes", message.len());
    }
}

fn table(line: &str) {
    let Some(found) = row(line) else { return };
    let ((local, remote), uid) = found;
    assert_eq!((canonical(local), canonical(remote)), (local, remote));
    let written =
        format!("0: {} {} {ESTABLISHED:02X} 0:0 0:0 0 {uid} 0", write(local), write(remote));
    assert_eq!(row(&written), Some(found));
}

/// Returns an address as the kernel prints it.
fn write(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| {
        let word = word.try_into().expect("four bytes");
        format!("{:08X}", u32::from_ne_bytes(word))
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}
