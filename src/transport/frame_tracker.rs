//! Tracker of the HTTP/2 frames that a client sends: detects a frame that was begun and is not complete, and reports changes of
//! the client's windows, which h2 does not tell.
//!
//! A header block counts as one frame, from its HEADERS to the end of its last CONTINUATION. HTTP/2 itself reports errors in
//! frames.

/// Position in the data that a client sends, from its preface on.
#[derive(Debug, Default)]
pub(super) struct FrameTracker {
    /// Number of bytes of the preface that have not arrived.
    preface: usize,
    head: [u8; HEAD_BYTES],
    /// Number of bytes of the frame header that have arrived.
    head_len: usize,
    /// Number of bytes of the frame's payload that have not arrived.
    payload: usize,
    is_in_headers: bool,
    /// Number of frames and header blocks that are complete.
    complete: u64,
    /// Number of these that are header blocks.
    headers: u64,
    /// Bytes of the entry of a payload that has begun to arrive.
    entry: [u8; SETTING_BYTES],
    entry_len: usize,
}

/// Window of a client, as its frames change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowChange {
    /// Window of each stream at its start; that of an open one changes by the difference.
    Initial(u32),
    /// A stream's window, or that of the connection for stream 0, grows by so much.
    Update { stream: u32, by: u32 },
}

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
const SETTING_BYTES: usize = 6;
/// Bit that the number of a stream and an increment do not use.
const RESERVED: u32 = 1 << 31;

// === impl FrameTracker ===

impl FrameTracker {
    pub(super) fn new() -> Self {
        Self { preface: PREFACE_BYTES, ..Self::default() }
    }

    /// Processes bytes that have arrived, and reports changes of windows.
    pub(super) fn read(&mut self, mut bytes: &[u8], changed: &mut impl FnMut(WindowChange)) {
        let skipped = self.preface.min(bytes.len());
        self.preface -= skipped;
        bytes = &bytes[skipped..];
        while !bytes.is_empty() {
            if self.head_len < HEAD_BYTES {
                let taken = (HEAD_BYTES - self.head_len).min(bytes.len());
                self.head[self.head_len..][..taken].copy_from_slice(&bytes[..taken]);
                self.head_len += taken;
                bytes = &bytes[taken..];
                if self.head_len < HEAD_BYTES {
                    return;
                }
                self.payload = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]) as usize;
            }
            let (payload, rest) = bytes.split_at(self.payload.min(bytes.len()));
            self.payload -= payload.len();
            self.read_payload(payload, changed);
            bytes = rest;
            if self.payload == 0 {
                self.end_frame();
            }
        }
    }

    /// Reads the entries of a payload that change windows.
    fn read_payload(&mut self, payload: &[u8], changed: &mut impl FnMut(WindowChange)) {
        let entry_bytes = match self.head[3] {
            SETTINGS => SETTING_BYTES,
            WINDOW_UPDATE => size_of::<u32>(),
            _ => return,
        };
        for byte in payload {
            self.entry[self.entry_len] = *byte;
            self.entry_len += 1;
            if self.entry_len < entry_bytes {
                continue;
            }
            self.entry_len = 0;
            // A setting has an identifier of two bytes before its value.
            let value = if entry_bytes == SETTING_BYTES { &self.entry[2..] } else { &self.entry[..4] };
            let value = u32_of(value);
            if entry_bytes < SETTING_BYTES {
                let stream = u32_of(&self.head[5..]) & !RESERVED;
                changed(WindowChange::Update { stream, by: value & !RESERVED });
            } else if self.entry[..2] == INITIAL_WINDOW_SIZE {
                changed(WindowChange::Initial(value));
            }
        }
    }

    fn end_frame(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        if kind == HEADERS || kind == CONTINUATION {
            self.is_in_headers = flags & END_HEADERS == 0;
        }
        (self.head_len, self.entry_len) = (0, 0);
        if !self.is_in_headers {
            self.complete += 1;
            self.headers += u64::from(kind == HEADERS || kind == CONTINUATION);
        }
    }

    /// Returns the number of header blocks that have arrived.
    pub(super) fn headers(&self) -> u64 {
        self.headers
    }

    /// Returns the number of the frame or header block that was begun and is not complete, if there is one.
    pub(super) fn begun(&self) -> Option<u64> {
        (self.head_len > 0 || self.is_in_headers).then_some(self.complete)
    }
}

/// Decodes a number, the first byte first.
fn u32_of(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn an_incomplete_frame_is_detected_at_every_byte() {
        let settings = frame(4, 0, b"");
        let headers =
            [frame(HEADERS, 0, b"begin"), frame(CONTINUATION, 0, b""), frame(CONTINUATION, END_HEADERS, b"end")];
        let data = frame(0, 1, &[7; 300]);
        let whole = frame(HEADERS, END_HEADERS | 1, b"all");
        let read = |incoming: &mut FrameTracker, bytes: &[u8]| incoming.read(bytes, &mut |_| {});
        let units = [settings, headers.concat(), data, whole];
        let mut incoming = FrameTracker::new();
        for byte in PREFACE {
            assert_eq!(incoming.begun(), None);
            read(&mut incoming, &[*byte]);
        }
        for (number, unit) in units.iter().enumerate() {
            assert_eq!(incoming.begun(), None);
            for byte in &unit[..unit.len() - 1] {
                read(&mut incoming, &[*byte]);
                assert_eq!(incoming.begun(), Some(number as u64), "{unit:?}");
            }
            read(&mut incoming, &unit[unit.len() - 1..]);
        }
        assert_eq!((incoming.begun(), incoming.complete, incoming.headers()), (None, 4, 2));

        // All at once, and the start of the next.
        let mut incoming = FrameTracker::new();
        read(&mut incoming, &[PREFACE, &units.concat(), &[0, 0]].concat());
        assert_eq!(incoming.begun(), Some(4));
    }

    #[test]
    fn changes_of_windows_are_reported_in_whatever_pieces_they_arrive() {
        let settings = [[0, 3, 0, 0, 0, 9], [0, 4, 0, 1, 0, 0], [0, 5, 0, 4, 0, 4]].concat();
        let update = |stream: u8, by: u32| {
            let mut update = frame(WINDOW_UPDATE, 0, &by.to_be_bytes());
            update[8] = stream;
            update
        };
        let units = [
            frame(SETTINGS, 0, &settings),
            frame(0, 1, &[0, 4, 0, 0, 0, 1]),
            update(0, 7),
            frame(SETTINGS, 1, b""),
            update(3, RESERVED + 300),
            // Of the wrong size, which HTTP/2 reports.
            frame(WINDOW_UPDATE, 0, &[0, 0]),
            update(5, 1),
        ];
        let sent = [PREFACE, &units.concat()].concat();
        let expected = [
            WindowChange::Initial(1 << 16),
            WindowChange::Update { stream: 0, by: 7 },
            WindowChange::Update { stream: 3, by: 300 },
            WindowChange::Update { stream: 5, by: 1 },
        ];
        for piece in [1, 2, 5, 7, 11, sent.len()] {
            let (mut incoming, mut changes) = (FrameTracker::new(), Vec::new());
            for bytes in sent.chunks(piece) {
                incoming.read(bytes, &mut |change| changes.push(change));
            }
            assert_eq!(changes, expected, "in pieces of {piece}");
        }
    }
}
