//! Reads elements of DER. Certificates of strangers are read here only to name them in messages: rustls verifies them.

/// The elements that follow each other in a text.
#[derive(Clone, Debug)]
pub(super) struct Elements<'a>(&'a [u8]);

/// An element.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Element<'a> {
    /// Its tag, with class and form.
    pub tag: u8,
    /// Its content.
    pub content: &'a [u8],
}

/// A sequence.
pub(super) const SEQUENCE: u8 = 0x30;

impl<'a> Elements<'a> {
    /// Returns the elements of `text`.
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self(text)
    }

    /// Returns the content of the next element if it has this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|element| element.tag == tag).map(|element| element.content)
    }

    /// Returns the elements within the next one, which has this tag.
    pub(super) fn within(&mut self, tag: u8) -> Option<Self> {
        self.expect(tag).map(Self)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    /// Ends at the end of the text, and at anything that is not DER.
    fn next(&mut self) -> Option<Element<'a>> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        // Tags with more than one byte do not occur in certificates.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            // A length of up to three bytes: nothing that is read here is longer than 16 MiB.
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let len = bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
                (len, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some(Element { tag, content })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Elements have lengths of one to four bytes.
    #[test]
    fn elements_are_read() {
        let mut long = vec![0x04, 0x82, 0x01, 0x00];
        long.extend([7; 256]);
        let text = [&[0x02, 0x01, 0x05][..], &[0x30, 0x02, 0x05, 0x00], &long].concat();
        let mut elements = Elements::new(&text);
        assert_eq!(elements.expect(0x02), Some(&[5][..]));
        let mut within = elements.within(SEQUENCE).unwrap();
        assert_eq!(within.next(), Some(Element { tag: 0x05, content: &[] }));
        assert_eq!(within.next(), None);
        assert_eq!(elements.next().map(|element| element.content.len()), Some(256));
        assert_eq!(elements.next(), None);
        for text in [&[0x30][..], &[0x30, 0x05, 1], &[0x30, 0x84, 0, 0, 0, 0], &[0x1f, 0x00]] {
            assert_eq!(Elements::new(text).next(), None, "{text:?}");
        }
    }

    proptest! {
        /// Any bytes are read without a panic, and end.
        #[test]
        fn any_bytes_end(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Elements::new(&text).count() <= text.len());
        }
    }
}
