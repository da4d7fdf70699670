//! The documentation of the limits.

use std::time::Duration;

use ragent_store::limits;

/// The table in docs/store.md lists every limit with its value.
#[test]
fn limits_are_documented() {
    macro_rules! limits {
        ($($kind:ident: $($name:ident)*;)*) => {
            vec![$($((stringify!($name), $kind(limits::$name))),*),*]
        };
    }
    let seconds = |time: Duration| format!("{} s", time.as_secs());
    let millis = |time: Duration| format!("{} ms", time.as_millis());
    let bytes = |n: usize| match n.trailing_zeros() {
        30.. => format!("{} GiB", n >> 30),
        20.. => format!("{} MiB", n >> 20),
        _ => format!("{} KiB", n >> 10),
    };
    fn number(n: impl ToString) -> String {
        n.to_string()
    }
    let documented = limits! {
        bytes: KEY_LEN_MAX VALUE_LEN_MAX REQUEST_LEN_MAX APPENDED_LEN_MAX ANSWER_LEN_MAX
            STORE_MEMORY_MAX BUFFERS_LEN_MAX BUFFER_LEN_FREE OUTPUT_PAUSE_LEN READ_LEN
            SHARED_VALUE_LEN_MIN;
        number: KEYS_MAX CONNECTIONS_MAX REFUSED_LOGGED_MAX LISTEN_BACKLOG HANDED_OVER_MAX
            OPENING_MAX PIECE_OVERHEAD ENTRY_OVERHEAD AWAITED_OVERHEAD CONNECTION_OVERHEAD KEEPALIVE_PROBES;
        seconds: GREETING_TIMEOUT KEEPALIVE_IDLE KEEPALIVE_INTERVAL;
        millis: SOCKET_TABLE_INTERVAL;
    };
    let document = include_str!("../../docs/store.md");
    for (name, value) in &documented {
        let row = format!("| `{name}` | {value} | ");
        assert!(document.contains(&row), "not in docs/store.md: {row}");
    }
    let limits = include_str!("../src/limits.rs").matches("pub const ").count();
    assert_eq!(limits, documented.len(), "a limit is in limits.rs and not here, or the reverse");
}
