//! Replaces names in a text, as Python's `string.Template.safe_substitute` does.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// Replaces `$name` and `${name}` in `text` by the value of that name, and `$$` by a dollar sign.
///
/// A name that `values` lacks, and any other dollar sign, is unchanged.
pub fn substitute(text: &OsStr, values: &[(&str, &str)]) -> OsString {
    let mut rest = text.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let (value, used) = match placeholder(&rest[1..]) {
            Placeholder::Escape => (&b"$"[..], 2),
            Placeholder::Name { name, used } => {
                let value = values.iter().find(|(known, _)| known.as_bytes() == name);
                (value.map_or(&rest[..=used], |(_, value)| value.as_bytes()), 1 + used)
            }
            Placeholder::None => (&rest[..1], 1),
        };
        out.extend_from_slice(value);
        rest = &rest[used..];
    }
    out.extend_from_slice(rest);
    OsString::from_vec(out)
}

/// The text after a dollar sign.
enum Placeholder<'a> {
    Escape,
    Name { name: &'a [u8], used: usize },
    None,
}

fn placeholder(rest: &[u8]) -> Placeholder<'_> {
    match rest.first() {
        Some(b'$') => Placeholder::Escape,
        Some(b'{') => {
            let len = name_len(&rest[1..]);
            match rest.get(1 + len) {
                Some(b'}') if len > 0 => Placeholder::Name { name: &rest[1..=len], used: len + 2 },
                Some(_) | None => Placeholder::None,
            }
        }
        Some(_) | None => match name_len(rest) {
            0 => Placeholder::None,
            len => Placeholder::Name { name: &rest[..len], used: len },
        },
    }
}

/// Returns the length of the name at the beginning of `text`, in bytes.
fn name_len(text: &[u8]) -> usize {
    if text.first().is_some_and(u8::is_ascii_digit) {
        return 0;
    }
    text.iter().take_while(|&&byte| byte == b'_' || byte.is_ascii_alphanumeric()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> String {
        substitute(OsStr::new(text), &[("local_rank", "3"), ("rank", "11")]).into_string().unwrap()
    }

    /// Both forms of a name are replaced in any context.
    #[test]
    fn names_are_replaced() {
        assert_eq!(rendered("--out=/x/${local_rank}.txt"), "--out=/x/3.txt");
        assert_eq!(rendered("$rank-$local_rank"), "11-3");
        assert_eq!(rendered("${rank}${rank}"), "1111");
    }

    /// Everything that Python does not replace is unchanged; a doubled dollar sign becomes one.
    #[test]
    fn everything_else_stays() {
        for text in
            ["$local_ranks", "${nobody}", "$", "cost: 5$", "$1", "${}", "${rank", "$RANK", "a b"]
        {
            assert_eq!(rendered(text), text);
        }
        assert_eq!(rendered("kill $$ $$$rank"), "kill $ $11");
    }

    /// Bytes that are not UTF-8 are unchanged.
    #[test]
    fn any_bytes_pass() {
        let text = OsStr::from_bytes(b"\xff$rank\xfe");
        assert_eq!(substitute(text, &[("rank", "1")]).as_bytes(), b"\xff1\xfe");
    }
}
