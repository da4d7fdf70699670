//! Parses numbers in values as upstream does, and formats them.

use std::ops::Deref;

/// The decimal digits of a number, without a heap allocation.
#[derive(Debug)]
pub(super) struct Decimal {
    digits: [u8; LEN_MAX],
    start: usize,
}

/// Length of `-9223372036854775808`.
const LEN_MAX: usize = 20;

impl From<i64> for Decimal {
    fn from(number: i64) -> Self {
        let mut decimal = Self { digits: [0; LEN_MAX], start: LEN_MAX };
        let mut rest = number.unsigned_abs();
        loop {
            decimal.put(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            decimal.put(b'-');
        }
        decimal
    }
}

impl Decimal {
    fn put(&mut self, digit: u8) {
        self.start -= 1;
        self.digits[self.start] = digit;
    }
}

impl Deref for Decimal {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

/// Returns the decimal integer that `value` begins with, as C's `strtoll` parses it: blanks, a
/// sign, digits; the rest is ignored. `None` without a digit or beyond 64 bits.
pub(super) fn leading_integer(value: &[u8]) -> Option<i64> {
    let blanks = value.iter().take_while(|byte| is_blank(**byte)).count();
    let (negative, rest) = match &value[blanks..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    let digits = &rest[..rest.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    if digits.is_empty() {
        return None;
    }
    // Accumulated as a negative number, whose range is larger by one.
    let negated = digits
        .iter()
        .try_fold(0i64, |sum, digit| sum.checked_mul(10)?.checked_sub(i64::from(digit - b'0')))?;
    if negative { Some(negated) } else { negated.checked_neg() }
}

/// Returns what C's `isspace` returns in the C locale; Rust's ASCII white space lacks `\v`.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of all lengths are formatted as the standard library does.
    #[test]
    fn writes_decimals() {
        for number in [0, 7, -7, 10, 100, i64::MAX, i64::MIN] {
            assert_eq!(&Decimal::from(number)[..], number.to_string().as_bytes());
        }
    }

    /// Values are parsed as the original server parses them; these were tried on it.
    #[test]
    fn reads_as_strtoll_does() {
        for (value, number) in [
            (&b"5"[..], Some(5)),
            (b"+5", Some(5)),
            (b"-8", Some(-8)),
            (b" 12abc", Some(12)),
            (b"\n\t\x0b\x0c\r8", Some(8)),
            (b"1.9", Some(1)),
            (b"0x10", Some(0)),
            (b"5\0junk", Some(5)),
            (b"", None),
            (b" ", None),
            (b"-", None),
            (b"- 1", None),
            (b"--1", None),
            (b"hello", None),
            (b"9223372036854775807", Some(i64::MAX)),
            (b"-9223372036854775808", Some(i64::MIN)),
            (b"9223372036854775808", None),
            (b"-9223372036854775809", None),
            (b"00000000000000000000000000000000001", Some(1)),
        ] {
            assert_eq!(leading_integer(value), number, "{}", value.escape_ascii());
        }
    }
}
