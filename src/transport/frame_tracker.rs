//! Tracker of the HTTP/2 frames that a client sends: detects a frame that was begun and is not complete.
//!
//! A header block counts as one frame, from its HEADERS to the end of its last CONTINUATION. HTTP/2 itself reports errors in
//! frames.

/// Position in the data that a client sends, from its preface on.
#[derive(Debug)]
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
}

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

// === impl FrameTracker ===

impl FrameTracker {
    pub(super) fn new() -> Self {
        Self {
            preface: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            head_len: 0,
            payload: 0,
            is_in_headers: false,
            complete: 0,
        }
    }

    /// Processes bytes that have arrived.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
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
            let taken = self.payload.min(bytes.len());
            self.payload -= taken;
            bytes = &bytes[taken..];
            if self.payload == 0 {
                self.end_frame();
            }
        }
    }

    fn end_frame(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        if kind == HEADERS || kind == CONTINUATION {
            self.is_in_headers = flags & END_HEADERS == 0;
        }
        self.head_len = 0;
        if !self.is_in_headers {
            self.complete += 1;
        }
    }

    /// Returns the number of the frame or header block that was begun and is not complete, if there is one.
    pub(super) fn begun(&self) -> Option<u64> {
        (self.head_len > 0 || self.is_in_headers).then_some(self.complete)
    }
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
        let units = [settings, headers.concat(), data, whole];
        let mut incoming = FrameTracker::new();
        for byte in PREFACE {
            assert_eq!(incoming.begun(), None);
            incoming.read(&[*byte]);
        }
        for (number, unit) in units.iter().enumerate() {
            assert_eq!(incoming.begun(), None);
            for byte in &unit[..unit.len() - 1] {
                incoming.read(&[*byte]);
                assert_eq!(incoming.begun(), Some(number as u64), "{unit:?}");
            }
            incoming.read(&unit[unit.len() - 1..]);
        }
        assert_eq!((incoming.begun(), incoming.complete), (None, 4));

        // All at once, and the start of the next.
        let mut incoming = FrameTracker::new();
        incoming.read(&[PREFACE, &units.concat(), &[0, 0]].concat());
        assert_eq!(incoming.begun(), Some(4));
    }
}
