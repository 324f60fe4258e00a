//! HTTP/2 as far as a load client needs it: writing of a few frames, and splitting of the input into frames.
//!
//! Pure, without IO. DATA is passed on as a slice of the read buffer. Header blocks are skipped without decoding: the caller
//! infers the meaning of a stream's end from the messages before it.

/// Part of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Part of the payload of a DATA frame, or its end.
    Data {
        stream: u32,
        bytes: &'a [u8],
        /// True if the stream ends with these bytes.
        is_end: bool,
    },
    /// Any other frame, with the first [`MAX_CONTROL`] bytes of its payload.
    Control { kind: u8, flags: u8, stream: u32, payload: &'a [u8] },
}

/// Error for a frame with padding, which the reader does not support.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server sent padded frames, which the load client does not read")]
pub(super) struct Padded;

/// Splitter of a stream of bytes into frames.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header read so far; all of it while the payload is read.
    filled: usize,
    /// Bytes of the payload still to come.
    left: usize,
    control: Vec<u8>,
}

/// Bytes of a frame header.
pub(super) const HEADER_BYTES: usize = 9;
/// Bytes kept of a frame that is not DATA: enough for a PING, an error code and the reason of a GOAWAY.
pub(super) const MAX_CONTROL: usize = 256;
/// Largest window of HTTP/2.
pub(super) const MAX_WINDOW: u32 = (1 << 31) - 1;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flag on SETTINGS and PING.
pub(super) const ACK: u8 = 1;
/// Flag on DATA and HEADERS.
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Initial window of a connection.
const DEFAULT_WINDOW: u32 = 65_535;

/// Appends the beginning of a connection with this window for every stream and for the connection.
pub(super) fn preface(out: &mut Vec<u8>, window: u32, max_frame: u32) {
    const HEADER_TABLE_SIZE: u16 = 1;
    const ENABLE_PUSH: u16 = 2;
    const INITIAL_WINDOW_SIZE: u16 = 4;
    const MAX_FRAME_SIZE: u16 = 5;
    let settings =
        [(HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, window), (MAX_FRAME_SIZE, max_frame)];
    out.extend_from_slice(PREFACE);
    header(out, 6 * settings.len(), SETTINGS, 0, 0);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    if let Some(more) = window.checked_sub(DEFAULT_WINDOW).filter(|more| *more > 0) {
        window_update(out, 0, more);
    }
}

/// Appends the beginning of a gRPC call. The authority and the path have fewer than 127 bytes.
pub(super) fn call(out: &mut Vec<u8>, stream: u32, authority: &str, path: &str, accepts: Option<&str>) {
    // Literals without indexing, so that a block is the same on every stream (RFC 7541, appendix A for the names).
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    literal(&[0x04], path);
    literal(&[0x01], authority);
    literal(&[0x0f, 0x10], "application/grpc");
    literal(b"\x00\x02te", "trailers");
    // For the servers that need one; the others ignore it.
    literal(&[0x0f, 0x08], "Bearer bench");
    if let Some(compression) = accepts {
        literal(b"\x00\x14grpc-accept-encoding", compression);
    }
    header(out, block.len(), HEADERS, END_HEADERS, stream);
    out.extend_from_slice(&block);
}

/// Appends a gRPC message of a call.
pub(super) fn message(out: &mut Vec<u8>, stream: u32, message: &[u8], is_last: bool) {
    header(out, 5 + message.len(), DATA, if is_last { END_STREAM } else { 0 }, stream);
    out.push(0);
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(message);
}

pub(super) fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    header(out, 4, WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(super) fn settings_ack(out: &mut Vec<u8>) {
    header(out, 0, SETTINGS, ACK, 0);
}

pub(super) fn ping_ack(out: &mut Vec<u8>, payload: &[u8]) {
    header(out, payload.len(), PING, ACK, 0);
    out.extend_from_slice(payload);
}

fn header(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

// === impl FrameReader ===

impl FrameReader {
    /// Returns the next part of `input`, and advances `input` beyond it; none if more input is needed.
    pub(super) fn next<'a, 'b: 'a>(&'a mut self, input: &mut &'b [u8]) -> Result<Option<Part<'a>>, Padded> {
        loop {
            if self.filled < HEADER_BYTES {
                let taken = take(input, HEADER_BYTES - self.filled);
                self.header[self.filled..self.filled + taken.len()].copy_from_slice(taken);
                self.filled += taken.len();
                if self.filled < HEADER_BYTES {
                    return Ok(None);
                }
                self.left =
                    usize::from(self.header[0]) << 16 | usize::from(self.header[1]) << 8 | usize::from(self.header[2]);
                self.control.clear();
                if self.kind() == DATA && self.flags() & PADDED != 0 {
                    return Err(Padded);
                }
            }
            let taken = take(input, self.left);
            self.left -= taken.len();
            let is_whole = self.left == 0;
            let (kind, flags, stream) = (self.kind(), self.flags(), self.stream());
            if is_whole {
                self.filled = 0;
            }
            if kind == DATA {
                let is_end = is_whole && flags & END_STREAM != 0;
                if is_end || !taken.is_empty() {
                    return Ok(Some(Part::Data { stream, bytes: taken, is_end }));
                }
            } else {
                let room = MAX_CONTROL.saturating_sub(self.control.len());
                self.control.extend_from_slice(&taken[..taken.len().min(room)]);
                if is_whole {
                    return Ok(Some(Part::Control { kind, flags, stream, payload: &self.control }));
                }
            }
            if !is_whole {
                return Ok(None);
            }
        }
    }

    fn kind(&self) -> u8 {
        self.header[3]
    }

    fn flags(&self) -> u8 {
        self.header[4]
    }

    fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.header;
        u32::from_be_bytes([a, b, c, d]) & MAX_WINDOW
    }
}

fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(input.len().min(most));
    *input = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the parts of input that arrives in pieces, with the DATA of each frame joined.
    fn read(bytes: &[u8], piece: usize) -> Vec<String> {
        let mut reader = FrameReader::default();
        let mut said: Vec<String> = Vec::new();
        let mut data = Vec::new();
        for mut input in bytes.chunks(piece) {
            while let Some(part) = reader.next(&mut input).unwrap() {
                match part {
                    Part::Data { stream, bytes, is_end } => {
                        data.extend_from_slice(bytes);
                        if is_end {
                            said.push(format!("data {stream} {}", data.escape_ascii()));
                            data.clear();
                        }
                    }
                    Part::Control { kind, flags, stream, payload } => {
                        said.push(format!("{kind} {flags} {stream} {}", payload.len()));
                    }
                }
            }
            assert!(input.is_empty());
        }
        said
    }

    #[test]
    fn written_frames_are_read_however_they_are_split() {
        let mut bytes = Vec::new();
        preface(&mut bytes, MAX_WINDOW, 16_384);
        let mut frames = bytes.split_off(PREFACE.len());
        assert_eq!(bytes, PREFACE);
        call(&mut frames, 5, "localhost", "/a/B", None);
        message(&mut frames, 5, b"hello", true);
        settings_ack(&mut frames);
        ping_ack(&mut frames, b"12345678");
        header(&mut frames, 0, DATA, END_STREAM, 7);
        let block = 2 + (2 + 4) + (2 + 9) + (3 + 16) + (5 + 8) + (3 + 12);
        let expected = [
            "4 0 0 24".to_owned(),
            "8 0 0 4".to_owned(),
            format!("1 4 5 {block}"),
            "data 5 \\x00\\x00\\x00\\x00\\x05hello".to_owned(),
            "4 1 0 0".to_owned(),
            "6 1 0 8".to_owned(),
            "data 7 ".to_owned(),
        ];
        for piece in [1, 2, 3, 7, 10, 1000] {
            assert_eq!(read(&frames, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn data_is_handed_on_as_it_comes_and_a_long_header_block_is_cut() {
        let mut bytes = Vec::new();
        header(&mut bytes, 1000, HEADERS, END_HEADERS, 1);
        bytes.extend([0; 1000]);
        header(&mut bytes, 4, DATA, 0, 1);
        bytes.extend(b"ab");
        let mut reader = FrameReader::default();
        let mut input = &bytes[..];
        let first = reader.next(&mut input).unwrap().unwrap();
        assert_eq!(first, Part::Control { kind: HEADERS, flags: END_HEADERS, stream: 1, payload: &[0; MAX_CONTROL] });
        let second = reader.next(&mut input).unwrap();
        assert_eq!(second, Some(Part::Data { stream: 1, bytes: b"ab", is_end: false }));
        assert_eq!(reader.next(&mut input), Ok(None));
        let mut rest = &b"cd"[..];
        assert_eq!(reader.next(&mut rest), Ok(Some(Part::Data { stream: 1, bytes: b"cd", is_end: false })));
    }

    #[test]
    fn a_window_of_the_default_size_is_not_widened_and_padding_is_refused() {
        let mut bytes = Vec::new();
        preface(&mut bytes, DEFAULT_WINDOW, 16_384);
        assert_eq!(bytes.len(), PREFACE.len() + HEADER_BYTES + 24);
        let mut padded = Vec::new();
        header(&mut padded, 1, DATA, PADDED, 1);
        assert_eq!(FrameReader::default().next(&mut &padded[..]), Err(Padded));
    }
}
