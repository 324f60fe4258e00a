//! HTTP/2 and gRPC encoder whose output is not checked, so that tests can send malformed frames.

use prost::Message;

/// Frame that the server has sent.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Splits the received bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameReader(Vec<u8>);

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
/// Frame type that HTTP/2 does not define.
pub(crate) const UNKNOWN: u8 = 200;

/// ACK flag of SETTINGS and PING.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const MAX_WINDOW: u32 = (1 << 31) - 1;
/// Largest payload of a frame, in bytes. This and the window of a connection are the defaults of HTTP/2.
pub(crate) const MAX_PAYLOAD: usize = 16_384;
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;
const HEADER_BYTES: usize = 9;

/// Error code CANCEL.
pub(crate) const CANCEL: u32 = 8;

pub(crate) const WATCH: &str = "/informerd.v1.InformerService/Watch";
pub(crate) const LIST: &str = "/informerd.v1.InformerService/List";
pub(crate) const UNTIL: &str = "/informerd.v1.InformerService/Until";
pub(crate) const SUBSCRIBE: &str = "/informerd.v1.InformerService/Subscribe";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the beginning of a connection, with the largest window for the connection and the given one for each stream.
pub(crate) fn opening(window: u32) -> Vec<u8> {
    [PREFACE, &settings(window), &window_update(0, MAX_WINDOW - DEFAULT_WINDOW)].concat()
}

/// Returns SETTINGS with the window of each stream.
pub(crate) fn settings(window: u32) -> Vec<u8> {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    frame(SETTINGS, 0, 0, &[&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window.to_be_bytes()].concat())
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Encodes a header as a literal without indexing.
pub(crate) fn literal(name: &str, value: &str) -> Vec<u8> {
    [vec![0], string(name), string(value)].concat()
}

/// Encodes a header as a literal that enters the dynamic table of the connection.
pub(crate) fn indexed_literal(name: &str, value: &str) -> Vec<u8> {
    [vec![0x40], string(name), string(value)].concat()
}

/// Encodes a string without compression, after its length in an integer with a prefix of 7 bits (RFC 7541, 5.1).
fn string(text: &str) -> Vec<u8> {
    const PREFIX: usize = 127;
    let mut bytes = Vec::new();
    if let Some(mut rest) = text.len().checked_sub(PREFIX) {
        bytes.push(PREFIX as u8);
        while rest >= 128 {
            bytes.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        bytes.push(rest as u8);
    } else {
        bytes.push(text.len() as u8);
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Returns the headers of a call.
pub(crate) fn heads(path: &str) -> Vec<u8> {
    let heads = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    heads.map(|(name, value)| literal(name, value)).concat()
}

/// Returns the header fields of a GET.
pub(crate) fn get(path: &str) -> Vec<u8> {
    let heads = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    heads.map(|(name, value)| literal(name, value)).concat()
}

/// Returns the HEADERS of a call whose message follows later.
pub(crate) fn half_call(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &heads(path))
}

/// Returns a call with its one message.
pub(crate) fn call(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let mut bytes = half_call(stream, path);
    bytes.extend(data(stream, message, true));
    bytes
}

/// Returns a message of a call that has begun.
pub(crate) fn data(stream: u32, message: &[u8], is_last: bool) -> Vec<u8> {
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend_from_slice(message);
    let (mut bytes, mut pieces) = (Vec::new(), body.chunks(MAX_PAYLOAD).peekable());
    while let Some(piece) = pieces.next() {
        let flags = if is_last && pieces.peek().is_none() { END_STREAM } else { 0 };
        bytes.extend(frame(DATA, flags, stream, piece));
    }
    bytes
}

/// Returns a call with a message of the proto.
pub(crate) fn call_with(stream: u32, path: &str, message: &impl Message) -> Vec<u8> {
    call(stream, path, &message.encode_to_vec())
}

/// Returns the number of bytes in whole frames that count against windows.
pub(crate) fn data_bytes(frames: &[u8]) -> usize {
    let frames = FrameReader::default().read(frames);
    frames.iter().filter(|frame| frame.kind == DATA).map(|frame| frame.payload.len()).sum()
}

// === impl FrameReader ===

impl FrameReader {
    /// Returns the frames that these bytes complete.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.0.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some((&[a, b, c, kind, flags, ref stream @ ..], rest)) = self.0.split_first_chunk::<HEADER_BYTES>()
            && let length = u32::from_be_bytes([0, a, b, c]) as usize
            && let Some(payload) = rest.get(..length).map(<[u8]>::to_vec)
        {
            frames.push(Frame { kind, flags, stream: u32::from_be_bytes(*stream), payload });
            self.0.drain(..HEADER_BYTES + length);
        }
        frames
    }
}

// === impl Frame ===

impl Frame {
    /// Returns the error code of a GOAWAY.
    pub(crate) fn goaway(&self) -> Option<u32> {
        let code = self.payload.get(4..8).filter(|_| self.kind == GOAWAY)?;
        Some(u32::from_be_bytes(code.try_into().unwrap()))
    }

    /// Returns true for a reset of a stream.
    pub(crate) fn is_reset(&self) -> bool {
        self.kind == RST_STREAM
    }

    /// Returns true for the HEADERS that end a response.
    pub(crate) fn is_end(&self) -> bool {
        self.kind == HEADERS && self.flags & END_STREAM != 0
    }

    /// Returns the increment of a `WINDOW_UPDATE` of the connection.
    pub(crate) fn connection_window(&self) -> Option<usize> {
        let increment = self.payload.first_chunk().filter(|_| (self.kind, self.stream) == (WINDOW_UPDATE, 0))?;
        Some(u32::from_be_bytes(*increment) as usize)
    }

    /// Returns the acknowledgement that HTTP/2 requires for this frame, if any.
    pub(crate) fn acknowledgement(&self) -> Option<Vec<u8>> {
        match self.kind {
            SETTINGS if self.flags & ACK == 0 => Some(frame(SETTINGS, ACK, 0, &[])),
            PING if self.flags & ACK == 0 => Some(frame(PING, ACK, 0, &self.payload)),
            _ => None,
        }
    }
}
