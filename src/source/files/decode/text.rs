//! Text of a manifest file: its encoding, and the places of its YAML documents.

use std::borrow::Cow;

/// Part of a text from one `---` to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Document<'t> {
    pub(super) text: &'t str,
    /// Number of lines before it.
    pub(super) lines_before: usize,
}

/// Byte order mark: at the beginning of a file, and of each file that `cat` has appended.
const BOM: char = '\u{feff}';

/// Returns the text of a file in UTF-8, or in UTF-16 with a byte order mark, as PowerShell writes it. Byte order marks at the
/// beginning of a line are left out.
///
/// # Errors
///
/// The problem, in one line.
pub(super) fn decoded(bytes: &[u8]) -> Result<Cow<'_, str>, String> {
    let text = match bytes {
        [0xFF, 0xFE, rest @ ..] => Cow::Owned(utf16(rest, u16::from_le_bytes)?),
        [0xFE, 0xFF, rest @ ..] => Cow::Owned(utf16(rest, u16::from_be_bytes)?),
        _ => Cow::Borrowed(std::str::from_utf8(bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
            format!("line {line}: not UTF-8 text; save the file as UTF-8")
        })?),
    };
    if !text.contains(BOM) {
        return Ok(text);
    }
    let is_kept = |(at, c): (usize, char)| {
        let begins_line = text[..at].chars().next_back().is_none_or(|before| matches!(before, '\n' | '\r' | BOM));
        (c != BOM || !begins_line).then_some(c)
    };
    Ok(Cow::Owned(text.char_indices().filter_map(is_kept).collect()))
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, String> {
    let problem = || "not UTF-16 text, though its byte order mark says so; save the file as UTF-8".to_owned();
    let (units, []) = bytes.as_chunks::<2>() else { return Err(problem()) };
    char::decode_utf16(units.iter().map(|pair| unit(*pair))).collect::<Result<_, _>>().map_err(|_| problem())
}

/// Returns the documents of a YAML text. Comments and directives belong to the document after them.
pub(super) fn documents(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut begin, mut lines_before, mut has_content) = (0, 0, false);
    for (number, (at, line)) in lines(text).enumerate() {
        let is_separator =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if is_separator && has_content {
            documents.push(Document { text: &text[begin..at], lines_before });
            (begin, lines_before) = (at, number);
        }
        has_content |= is_separator || !matches!(line.trim_start().as_bytes().first(), None | Some(b'#' | b'%'));
    }
    if has_content {
        documents.push(Document { text: &text[begin..], lines_before });
    }
    documents
}

/// Returns the lines without their ends, each with its offset. They end with LF, CR LF or CR, as in YAML.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let begin = at;
        let end = rest.find(['\n', '\r']).unwrap_or(rest.len());
        let line_break = if rest[end..].starts_with("\r\n") { 2 } else { rest.len().min(end + 1) - end };
        at += end + line_break;
        Some((begin, &rest[..end]))
    })
}

/// Returns the line and the column of an offset, from 1.
pub(super) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_found_with_their_lines() {
        let text = "# all\n%YAML 1.1\n--- # one\na: |\n  ---\n---\n# two\r\n---x: 1\r\n--- {b: 1}\n...\nc: 1\n---\n";
        let found: Vec<_> = documents(text).into_iter().map(|of| (of.lines_before, of.text)).collect();
        assert_eq!(
            found,
            [
                (0, "# all\n%YAML 1.1\n--- # one\na: |\n  ---\n"),
                (5, "---\n# two\r\n---x: 1\r\n"),
                (8, "--- {b: 1}\n...\nc: 1\n"),
                (11, "---\n"),
            ]
        );
        assert_eq!(documents("a: 1\r---\rb: 1").len(), 2, "CR alone");
        assert_eq!(documents("\n# nothing\n"), []);
        assert_eq!(place("a\né: x", 5), (2, 3));
    }

    #[test]
    fn every_encoding_that_kubectl_reads_is_read() {
        let utf16 = |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        let text = "\u{feff}a: é😀\n---\n\u{feff}b: 1\u{feff}\n";
        for bytes in [text.as_bytes().to_vec(), utf16(text, u16::to_le_bytes), utf16(text, u16::to_be_bytes)] {
            assert_eq!(decoded(&bytes).unwrap(), "a: é😀\n---\nb: 1\u{feff}\n");
        }
        assert_eq!(decoded(b"a: 1\nb: \xff").unwrap_err(), "line 2: not UTF-8 text; save the file as UTF-8");
        for bytes in [&b"\xff\xfea"[..], b"\xff\xfe\x00\xd8"] {
            assert!(decoded(bytes).unwrap_err().starts_with("not UTF-16"));
        }
    }
}
