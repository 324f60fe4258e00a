//! Boundaries of gRPC messages in the bytes of a request or a response, however these are split.

use super::frame::PREFIX_BYTES;

/// Position in a sequence of messages.
#[derive(Debug, Default)]
pub(super) struct Boundaries {
    prefix: [u8; PREFIX_BYTES],
    /// Number of bytes of the prefix that have been read; 0 between messages.
    prefix_len: usize,
    /// Number of bytes of the message that have not been read.
    left: usize,
}

/// Boundary that the bytes have reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Boundary {
    /// End of the prefix of a message of this length.
    Prefix(usize),
    /// End of a message.
    End,
}

// === impl Boundaries ===

impl Boundaries {
    /// Reads up to the next boundary, and leaves the bytes after it. `None` if the bytes end before it.
    pub(super) fn next(&mut self, data: &mut &[u8]) -> Option<Boundary> {
        if self.prefix_len < PREFIX_BYTES {
            let bytes = *data;
            let (taken, rest) = bytes.split_at(bytes.len().min(PREFIX_BYTES - self.prefix_len));
            self.prefix[self.prefix_len..][..taken.len()].copy_from_slice(taken);
            self.prefix_len += taken.len();
            *data = rest;
            let [_, length @ ..] = self.prefix;
            self.left = u32::from_be_bytes(length) as usize;
            return (self.prefix_len == PREFIX_BYTES).then_some(Boundary::Prefix(self.left));
        }
        let taken = self.left.min(data.len());
        *data = &data[taken..];
        self.left -= taken;
        if self.left > 0 {
            return None;
        }
        self.prefix_len = 0;
        Some(Boundary::End)
    }

    /// Reads all of these bytes, and returns the number of messages that end in them.
    pub(super) fn count(&mut self, mut data: &[u8]) -> u64 {
        std::iter::from_fn(|| self.next(&mut data)).map(|boundary| u64::from(boundary == Boundary::End)).sum()
    }

    /// Returns true before the first byte of a message.
    pub(super) fn is_between(&self) -> bool {
        self.prefix_len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_the_bytes_are_split() {
        let message = |length: u8| [&[0, 0, 0, 0, length][..], &vec![7; length.into()]].concat();
        let bytes = [3, 0, 200, 0, 1].map(message).concat();
        for size in 1..=bytes.len() {
            let mut boundaries = Boundaries::default();
            assert_eq!(bytes.chunks(size).map(|piece| boundaries.count(piece)).sum::<u64>(), 5, "{size}");
            assert!(boundaries.is_between());
        }
        let mut boundaries = Boundaries::default();
        assert_eq!((boundaries.count(&bytes[..bytes.len() - 1]), boundaries.is_between()), (4, false));
        assert_eq!(boundaries.next(&mut &[0][..]), Some(Boundary::End));
    }
}
