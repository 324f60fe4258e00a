//! Snapshot file: the state of a resource, for the next run to begin with.
//!
//! ```text
//!   "informerd state\n", version of the format: u32
//!   header: JSON          resource, source, version, that of the last change, and number of objects
//!   proof                 the proof of the upstream's history
//!   objects               one after the other
//!   SHA-256 of everything above
//! ```
//!
//! Header, proof and objects follow their length, a little-endian `u32`. Invariants:
//!
//! - A new file is written beside the old one, synced, and then renamed over it: after a crash of the process or the machine
//!   there is the old state or the new one, whole.
//! - The file is written and read piece by piece, never as a whole in memory.
//! - Nothing of a file is used before all of it has been read and its checksum matches. A file that is damaged, of another
//!   resource or source, or of another format is not used at all.
//!
//! The checksum detects damage. It is no signature: every process that can write to the directory can write a state.

mod directory;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod read_ahead;
mod record;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

pub use self::directory::{SnapshotDirectory, SnapshotDirectoryError};
use super::{Checkpoint, List};
use crate::model::ResourceVersion;

/// Snapshot file of one resource. Clones share its counters; one at a time writes.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    path: PathBuf,
    resource: String,
    identity: String,
    stats: Arc<SnapshotFileStats>,
}

/// Counters and gauges of one file, read at scrape.
#[derive(Debug, Default)]
pub struct SnapshotFileStats {
    /// States written.
    pub writes: AtomicU64,
    /// Failed writes.
    pub failures: AtomicU64,
    /// Size of the last state in bytes.
    pub size: AtomicU64,
    /// Duration of the last write.
    pub micros: AtomicU64,
    /// Time of the last write, in milliseconds since the beginning of 1970; 0 before the first.
    pub written_at_ms: AtomicU64,
}

/// State that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedState {
    /// Objects and their version.
    pub list: List,
    /// Proof of the upstream's history.
    pub proof: Bytes,
    /// Time of the last contact with the upstream.
    pub seen_at: Option<SystemTime>,
}

/// Reason why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFileError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The content differs from what was written.
    #[error("damaged snapshot file: {0}")]
    Damaged(&'static str),
    /// The file has another format than this version's.
    #[error("unsupported snapshot format")]
    Format,
    /// The file is whole, and of another resource or source.
    #[error("snapshot file of another resource: it holds {found}, expected {expected}")]
    Foreign {
        /// Resource and source in the file.
        found: String,
        /// Resource and source of the reader.
        expected: String,
    },
}

/// Resource and source of the file, and its content in numbers.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    resource: String,
    source: String,
    version: String,
    /// Version since which nothing had changed.
    unchanged_since: Option<String>,
    objects: u64,
    /// Milliseconds since the beginning of 1970.
    seen_at_ms: Option<u64>,
}

/// Writer that computes the checksum of all bytes.
struct Checksummed<F> {
    file: F,
    sum: Context,
}

const MAGIC: &[u8; 16] = b"informerd state\n";
const FORMAT: u32 = 1;
/// Bound of a header, a proof or an object: several times the largest, so that a damaged length does not make the reader take
/// everything into memory.
const MAX_PIECE_BYTES: usize = 64 << 20;
const BUFFER_BYTES: usize = 128 << 10;

// === impl SnapshotFile ===

impl SnapshotFile {
    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the same file, with these counters.
    #[must_use]
    pub fn with_stats(self, stats: Arc<SnapshotFileStats>) -> Self {
        Self { stats, ..self }
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Arc<SnapshotFileStats> {
        &self.stats
    }

    /// Removes the state, and the temporary file of a run that was killed. Returns true if there was a state. Blocks.
    ///
    /// # Errors
    ///
    /// If the file could not be removed.
    pub fn remove(&self) -> io::Result<bool> {
        let remove = |path: &Path| match fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        remove(&self.path.with_extension("tmp"))?;
        remove(&self.path)
    }

    /// Writes a state in place of the present one. Blocks until it is durable; returns its size in bytes.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. The previous state stays, unless only the sync of the directory failed after the rename.
    pub fn write(&self, checkpoint: &Checkpoint, seen_at: Option<SystemTime>) -> io::Result<u64> {
        let (beside, started) = (self.path.with_extension("tmp"), Instant::now());
        // Left by a run that was killed, perhaps with other permissions.
        drop(fs::remove_file(&beside));
        let written = self.write_to(&beside, checkpoint, seen_at).and_then(|bytes| {
            fs::rename(&beside, &self.path)?;
            // The name has to be durable too.
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(bytes)
        });
        if let Ok(size) = written {
            self.stats.writes.fetch_add(1, Ordering::Relaxed);
            self.stats.size.store(size, Ordering::Relaxed);
            self.stats.micros.store(started.elapsed().as_micros() as u64, Ordering::Relaxed);
            self.stats.written_at_ms.store(since_1970_ms(SystemTime::now()), Ordering::Relaxed);
        } else {
            self.stats.failures.fetch_add(1, Ordering::Relaxed);
            drop(fs::remove_file(&beside));
        }
        written
    }

    fn write_to(&self, path: &Path, checkpoint: &Checkpoint, seen_at: Option<SystemTime>) -> io::Result<u64> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let file = self.encode(BufWriter::with_capacity(BUFFER_BYTES, file), checkpoint, seen_at)?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(file.metadata()?.len())
    }

    fn encode<W: Write>(&self, out: W, checkpoint: &Checkpoint, seen_at: Option<SystemTime>) -> io::Result<W> {
        let Checkpoint { snapshot, proof, unchanged_since, .. } = checkpoint;
        let header = Header {
            resource: self.resource.clone(),
            source: self.identity.clone(),
            version: snapshot.safe_version().to_string(),
            unchanged_since: Some(unchanged_since.to_string()),
            objects: snapshot.len() as u64,
            seen_at_ms: seen_at.map(since_1970_ms),
        };
        let mut out = Checksummed::new(out);
        out.write_all(MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.piece(&serde_json::to_vec(&header)?)?;
        out.piece(proof)?;
        let mut record = Vec::new();
        for object in snapshot.objects(None, None) {
            record.clear();
            if !record::write(object, &mut record) {
                let (key, media_type) = (object.key(), object.media_type());
                return Err(io::Error::other(format!("{key}: unsupported media type {media_type:?}")));
            }
            out.piece(&record)?;
        }
        let Checksummed { mut file, sum } = out;
        file.write_all(sum.finish().as_ref())?;
        Ok(file)
    }

    /// Reads the state; `None` if there is no file. Blocks.
    ///
    /// # Errors
    ///
    /// If there is a file that must not be used.
    pub fn read(&self) -> Result<Option<SavedState>, SnapshotFileError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.decode(file).map(Some)
    }

    fn decode(&self, file: impl Read + Send) -> Result<SavedState, SnapshotFileError> {
        let ((header, state), matches) = read_ahead::parsed(file, parse)?;
        if !matches {
            return Err(SnapshotFileError::Damaged("checksum mismatch"));
        }
        let (found, expected) = (of(&header.resource, &header.source), of(&self.resource, &self.identity));
        if found != expected {
            return Err(SnapshotFileError::Foreign { found, expected });
        }
        Ok(state)
    }
}

/// Parses everything before the checksum.
fn parse(mut input: impl BufRead) -> Result<(Header, SavedState), SnapshotFileError> {
    let mut start = [0; MAGIC.len() + size_of::<u32>()];
    read_exact(&mut input, &mut start)?;
    if start != *[&MAGIC[..], &FORMAT.to_le_bytes()].concat() {
        return Err(SnapshotFileError::Format);
    }
    let damaged = || SnapshotFileError::Damaged("invalid header");
    let header: Header = read_piece(&mut input, |piece| serde_json::from_slice(piece).map_err(|_| damaged()))??;
    let version: ResourceVersion = header.version.parse().map_err(|_| damaged())?;
    let unchanged_since = header.unchanged_since.as_deref().map(str::parse).transpose().map_err(|_| damaged())?;
    let proof = read_piece(&mut input, Bytes::copy_from_slice)?;
    let mut objects = Vec::new();
    for _ in 0..header.objects {
        let object = read_piece(&mut input, |piece| record::read(piece, &version))?;
        objects.push(Arc::new(object.ok_or(SnapshotFileError::Damaged("invalid object"))?));
    }
    if input.read(&mut [0])? > 0 {
        return Err(SnapshotFileError::Damaged("trailing data"));
    }
    let seen_at = header.seen_at_ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
    Ok((header, SavedState { list: List { unchanged_since, ..List::new(objects, version) }, proof, seen_at }))
}

fn since_1970_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn of(resource: &str, identity: &str) -> String {
    format!("{resource} of {identity}")
}

// === impl Checksummed ===

impl<F> Checksummed<F> {
    fn new(file: F) -> Self {
        Self { file, sum: Context::new(&SHA256) }
    }
}

impl<F: Write> Checksummed<F> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }

    fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MAX_PIECE_BYTES);
        let len = len.ok_or_else(|| io::Error::other(format!("record too large: {} bytes", bytes.len())))?;
        self.write_all(&len.to_le_bytes())?;
        self.write_all(bytes)
    }
}

/// Reads a piece, which is copied only where the buffer of the input ends within it.
fn read_piece<T>(input: &mut impl BufRead, read: impl FnOnce(&[u8]) -> T) -> Result<T, SnapshotFileError> {
    let mut len = [0; size_of::<u32>()];
    read_exact(input, &mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_PIECE_BYTES {
        return Err(SnapshotFileError::Damaged("record too large"));
    }
    if let Some(piece) = input.fill_buf()?.get(..len) {
        let found = read(piece);
        input.consume(len);
        return Ok(found);
    }
    let mut piece = Vec::new();
    // The buffer grows with the bytes that exist, whatever a damaged length says.
    if input.take(len as u64).read_to_end(&mut piece)? < len {
        return Err(ends_too_early());
    }
    Ok(read(&piece))
}

fn read_exact(file: &mut impl Read, bytes: &mut [u8]) -> Result<(), SnapshotFileError> {
    file.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ends_too_early(),
        _ => SnapshotFileError::Io(error),
    })
}

fn ends_too_early() -> SnapshotFileError {
    SnapshotFileError::Damaged("unexpected end of file")
}

#[cfg(test)]
mod tests;
