//! File that another thread reads ahead, and whose checksum it computes: meanwhile this one makes the objects.

use std::{
    io::{self, BufRead, Cursor, Read},
    panic::resume_unwind,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

/// Reader of everything before the checksum.
pub(super) struct ReadAhead {
    blocks: Receiver<Vec<u8>>,
    block: Cursor<Vec<u8>>,
}

const BLOCK_BYTES: usize = 1 << 20;
/// Number of blocks that wait for the parser. One more is being parsed, and one being read.
const BLOCKS_AHEAD: usize = 2;

/// Parses the content of a file. Returns true beside it if the checksum at its end matches.
pub(super) fn parsed<T, E: From<io::Error>>(
    file: impl Read + Send,
    parse: impl FnOnce(ReadAhead) -> Result<T, E>,
) -> Result<(T, bool), E> {
    thread::scope(|scope| {
        let (sender, blocks) = sync_channel(BLOCKS_AHEAD);
        let thread = thread::Builder::new().name("snapshot".to_owned());
        let reading = thread.spawn_scoped(scope, move || send(file, &sender))?;
        let parsed = parse(ReadAhead { blocks, block: Cursor::default() });
        let matches = reading.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok((parsed?, matches))
    })
}

/// Sends everything before the checksum, and returns true if that matches; false as well if the parser has ended before.
fn send(mut file: impl Read, blocks: &SyncSender<Vec<u8>>) -> io::Result<bool> {
    let (mut sum, mut block) = (Context::new(&SHA256), Vec::new());
    loop {
        if (&mut file).take(BLOCK_BYTES as u64).read_to_end(&mut block)? == 0 {
            return Ok(sum.finish().as_ref() == block);
        }
        // What may be the checksum begins the next block.
        let (content, rest) = block.split_at(block.len().saturating_sub(SHA256_OUTPUT_LEN));
        sum.update(content);
        let mut next = Vec::with_capacity(BLOCK_BYTES + SHA256_OUTPUT_LEN);
        next.extend_from_slice(rest);
        block.truncate(content.len());
        if blocks.send(std::mem::replace(&mut block, next)).is_err() {
            return Ok(false);
        }
    }
}

// === impl ReadAhead ===

impl Read for ReadAhead {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(bytes)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for ReadAhead {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.block.fill_buf()?.is_empty() {
            // The other thread has sent everything, or failed, which it returns.
            let Ok(block) = self.blocks.recv() else { break };
            self.block = Cursor::new(block);
        }
        self.block.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.block.consume(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ring::digest::digest;

    use super::*;

    /// File of zeros that counts the blocks that are read of it.
    struct Counted<'a> {
        left: usize,
        read: &'a AtomicUsize,
    }

    impl Read for Counted<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.left);
            bytes[..len].fill(0);
            self.left -= len;
            self.read.fetch_add(len, Ordering::SeqCst);
            Ok(len)
        }
    }

    fn summed(content: &[u8]) -> Vec<u8> {
        [content, digest(&SHA256, content).as_ref()].concat()
    }

    fn all(mut input: ReadAhead) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        input.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn content_of_any_size_is_passed_on_whole_and_in_order() {
        let around =
            [0, BLOCK_BYTES, 2 * BLOCK_BYTES].map(|at| [at.saturating_sub(40), at.saturating_sub(32), at, at + 1]);
        for len in around.into_iter().flatten().chain([1, 31, 32, 33, 7 * BLOCK_BYTES]) {
            let content: Vec<u8> = (0..len).map(|at| (at / 7 % 251) as u8).collect();
            assert!(parsed(&*summed(&content), all).unwrap() == (content.clone(), true), "{len}");
            let mut other = summed(&content);
            let last = other.len() - 1;
            other[last] ^= 1;
            assert!(!parsed(&*other, all).unwrap().1, "another checksum");
        }
    }

    #[test]
    fn what_is_read_ahead_is_bounded() {
        let read = AtomicUsize::new(0);
        let file = Counted { left: 20 * BLOCK_BYTES, read: &read };
        let taken = parsed(file, |mut input| {
            let (mut block, mut taken) = (vec![0; BLOCK_BYTES / 2], 0);
            // The other thread reads as far as it may.
            while read.load(Ordering::SeqCst) < (BLOCKS_AHEAD + 1) * BLOCK_BYTES {
                thread::yield_now();
            }
            while let len @ 1.. = input.read(&mut block)? {
                (0..100).for_each(|_| thread::yield_now());
                taken += len;
                // The block in hand, those that wait, and the one that is sent next.
                let bound = taken + (BLOCKS_AHEAD + 2) * BLOCK_BYTES + SHA256_OUTPUT_LEN;
                assert!(read.load(Ordering::SeqCst) <= bound, "after {taken}");
            }
            Ok::<_, io::Error>(taken)
        });
        assert!(!taken.unwrap().1, "zeros");
        assert_eq!(read.load(Ordering::SeqCst), 20 * BLOCK_BYTES);
    }

    #[test]
    fn a_parser_that_ends_early_ends_the_reading() {
        let read = AtomicUsize::new(0);
        let file = Counted { left: usize::MAX, read: &read };
        let ended: io::Result<((), bool)> = parsed(file, |_| Err(io::Error::other("enough")));
        assert_eq!(ended.unwrap_err().to_string(), "enough");
        assert!(read.load(Ordering::SeqCst) <= (BLOCKS_AHEAD + 1) * BLOCK_BYTES);
    }

    #[test]
    fn an_error_of_the_file_is_not_its_end() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("torn"))
            }
        }
        let content = vec![0; 2 * BLOCK_BYTES];
        assert_eq!(parsed(content.chain(Failing), all).unwrap_err().to_string(), "torn");
    }
}
