//! A state is read as it was written, or not at all.

use std::{io::BufReader, os::unix::fs::PermissionsExt};

use proptest::{collection::vec, prelude::*};
use tempfile::TempDir;

use super::*;
use crate::{cache::Indexer, model::Object};

const SOURCE: &str = "the keys of \"/a/\" in etcd at http://h:1";

struct Place {
    root: TempDir,
    directory: SnapshotDirectory,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = SnapshotDirectory::open(&root.path().join("state")).unwrap();
        Self { root, directory }
    }

    fn file(&self) -> SnapshotFile {
        self.directory.file("pods", SOURCE)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn object(name: &str, body: &str, version: &ResourceVersion) -> Arc<Object> {
    Arc::new(Object::from_json(body, name, version.clone()).unwrap())
}

fn checkpoint(objects: Vec<Arc<Object>>, version: &ResourceVersion, proof: &'static str) -> Checkpoint {
    let indexer = Indexer::new(Arc::default(), List::new(objects, version.clone()));
    let (proof, unchanged_since) = (Bytes::from_static(proof.as_bytes()), version.clone());
    Checkpoint { snapshot: indexer.snapshot(), proof, unchanged_since, is_whole: true }
}

/// Makes two objects, one of which has an envelope.
fn small(at: u128) -> Checkpoint {
    let version = ResourceVersion::decimal(at);
    let pod = r#"{"kind":"Pod","metadata":{"name":"web","namespace":"shop","uid":"u","labels":{"app":"w\u0065b"}}}"#;
    checkpoint(vec![object("", pod, &version), object("a", "5", &version)], &version, "{\"term\":2}")
}

fn seen_at() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_795_000_000_123)
}

/// Returns the state that a written checkpoint should be read as.
fn expected(checkpoint: &Checkpoint) -> SavedState {
    let Checkpoint { snapshot, proof, unchanged_since, .. } = checkpoint;
    let objects = snapshot.objects(None, None).cloned().collect();
    let unchanged_since = Some(unchanged_since.clone());
    let list = List { unchanged_since, ..List::new(objects, snapshot.version().clone()) };
    SavedState { list, proof: proof.clone(), seen_at: Some(seen_at()) }
}

#[test]
fn a_written_state_is_read_back_unchanged() {
    let place = Place::new();
    let file = place.file();
    assert_eq!(file.read().unwrap(), None, "before the first");
    for version in ["7", "abc.7"] {
        let version = version.parse().unwrap();
        for objects in [vec![], vec![object("a", "{}", &version), object("b", "[1]", &version)]] {
            let checkpoint = checkpoint(objects, &version, "");
            let bytes = file.write(&checkpoint, Some(seen_at())).unwrap();
            assert_eq!(fs::metadata(file.path()).unwrap().len(), bytes);
            assert_eq!(file.read().unwrap(), Some(expected(&checkpoint)));
        }
    }
    file.write(&small(7), None).unwrap();
    assert_eq!(file.read().unwrap(), Some(SavedState { seen_at: None, ..expected(&small(7)) }));
    assert_eq!(place.names(), ["lock", "pods.state"]);
    assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(file.stats().writes.load(Ordering::Relaxed), 5);
}

/// A file cut at any byte, or with any bit flipped, is rejected.
#[test]
fn a_damaged_file_is_never_used() {
    let place = Place::new();
    let file = place.file();
    file.write(&small(7), Some(seen_at())).unwrap();
    let whole = fs::read(file.path()).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        fs::write(file.path(), bytes).unwrap();
        let error = file.read().expect_err(what);
        assert!(matches!(error, SnapshotFileError::Damaged(_) | SnapshotFileError::Format), "{what}: {error}");
    };
    for len in 0..whole.len() {
        refused(&whole[..len], &format!("{len} bytes of {}", whole.len()));
    }
    for bit in 0..whole.len() * 8 {
        let mut other = whole.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        refused(&other, &format!("bit {bit}"));
    }
    refused(&[&whole[..], b"\0"].concat(), "more");
    refused(&[&whole[..], &whole[..]].concat(), "twice");
    fs::write(file.path(), &whole).unwrap();
    assert_eq!(file.read().unwrap(), Some(expected(&small(7))));
}

/// Draws a partial overwrite of a file: the position and the bytes. A crash may leave a mix of two states at one path.
fn mixed() -> impl Strategy<Value = (usize, Vec<u8>)> {
    (0_usize..4096, vec(any::<u8>(), 0..64))
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn a_file_that_was_overwritten_in_part_is_not_used((at, bytes) in mixed()) {
        let place = Place::new();
        let file = place.file();
        file.write(&small(7), Some(seen_at())).unwrap();
        let whole = fs::read(file.path()).unwrap();
        let mut other = whole.clone();
        let at = at % whole.len();
        let end = (at + bytes.len()).min(whole.len());
        other.splice(at..end, bytes);
        fs::write(file.path(), &other).unwrap();
        match file.read() {
            Ok(read) => prop_assert!(other == whole && read == Some(expected(&small(7)))),
            Err(error) => prop_assert!(other != whole, "{error}"),
        }
    }
}

/// A process killed during a write leaves a temporary file.
#[test]
fn an_interrupted_write_leaves_the_previous_file() {
    let place = Place::new();
    let file = place.file();
    file.write(&small(7), Some(seen_at())).unwrap();
    let whole = fs::read(file.path()).unwrap();
    for len in [0, whole.len() / 2, whole.len()] {
        fs::write(file.path().with_extension("tmp"), &whole[..len]).unwrap();
        assert_eq!(file.read().unwrap(), Some(expected(&small(7))));
        file.write(&small(8), Some(seen_at())).unwrap();
        assert_eq!(file.read().unwrap(), Some(expected(&small(8))));
        assert_eq!(place.names(), ["lock", "pods.state"]);
        file.write(&small(7), Some(seen_at())).unwrap();
    }
}

#[test]
fn a_failed_write_leaves_the_previous_file() {
    let place = Place::new();
    let file = place.file();
    file.write(&small(7), Some(seen_at())).unwrap();
    // A directory blocks the temporary file, also for root.
    fs::create_dir(file.path().with_extension("tmp")).unwrap();
    assert_eq!(file.write(&small(8), None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(file.read().unwrap(), Some(expected(&small(7))));
    fs::remove_dir(file.path().with_extension("tmp")).unwrap();

    let version = ResourceVersion::decimal(9);
    let parts = crate::model::ObjectParts {
        key: crate::model::ObjectKey::new("", "a").unwrap(),
        uid: String::new(),
        version: version.clone(),
        labels: std::collections::BTreeMap::new(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "text/plain",
        body: Bytes::new(),
    };
    let error = file.write(&checkpoint(vec![Arc::new(Object::new(parts))], &version, ""), None).unwrap_err();
    assert_eq!(error.to_string(), "a: unsupported media type \"text/plain\"");
    assert_eq!(place.names(), ["lock", "pods.state"]);
    assert_eq!(file.read().unwrap(), Some(expected(&small(7))));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((count(&file.stats().writes), count(&file.stats().failures)), (1, 2));

    fs::rename(place.directory.path(), place.root.path().join("gone")).unwrap();
    assert_eq!(file.write(&small(8), None).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_state_of_another_resource_or_source_is_not_used() {
    let place = Place::new();
    let file = place.file();
    file.write(&small(7), Some(seen_at())).unwrap();
    let others = [("services", SOURCE), ("pods", "the keys of \"/b/\" in etcd at http://h:1")];
    for (resource, source) in others {
        let other = place.directory.file(resource, source);
        if other.path() != file.path() {
            fs::copy(file.path(), other.path()).unwrap();
        }
        let error = other.read().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("snapshot file of another resource: it holds pods of {SOURCE}, expected {resource} of {source}")
        );
    }
    for bytes in [&b""[..], b"hello", b"informerd state\n"] {
        fs::write(file.path(), bytes).unwrap();
        assert!(file.read().is_err(), "{bytes:?}");
    }
    let of_later = [&MAGIC[..], &2_u32.to_le_bytes(), &[0; 100]].concat();
    fs::write(file.path(), of_later).unwrap();
    assert_eq!(file.read().unwrap_err().to_string(), "unsupported snapshot format");
    fs::remove_file(file.path()).unwrap();
    fs::create_dir(file.path()).unwrap();
    assert!(matches!(file.read(), Err(SnapshotFileError::Io(_))), "a directory");
}

#[test]
fn removing_deletes_the_file_and_its_temporary_file() {
    let place = Place::new();
    let file = place.file();
    assert!(!file.remove().unwrap(), "there is none");
    file.write(&small(7), None).unwrap();
    fs::write(file.path().with_extension("tmp"), "half").unwrap();
    assert!(file.remove().unwrap());
    assert_eq!(place.names(), ["lock"]);
    fs::create_dir(file.path()).unwrap();
    assert!(file.remove().is_err(), "a directory is there still");
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_and_not_none() {
    let place = Place::new();
    let file = place.file();
    // A loop, also for root.
    std::os::unix::fs::symlink(file.path(), file.path()).unwrap();
    assert!(matches!(file.read(), Err(SnapshotFileError::Io(_))));
}

#[test]
fn a_piece_is_read_up_to_its_bound_and_to_its_end() {
    let read = |len: usize, there: u64| {
        let bytes = (len as u32).to_le_bytes();
        let mut input = BufReader::new(bytes.chain(io::repeat(0).take(there)));
        read_piece(&mut input, <[u8]>::len)
    };
    let message = |len, there| read(len, there).unwrap_err().to_string();
    assert_eq!(read(5, 9).unwrap(), 5);
    assert_eq!(read(MAX_PIECE_BYTES, u64::MAX).unwrap(), MAX_PIECE_BYTES, "as it may be written");
    assert_eq!(message(MAX_PIECE_BYTES + 1, u64::MAX), "damaged snapshot file: record too large");
    assert_eq!(message(5, 4), "damaged snapshot file: unexpected end of file");
}

/// Wherever the buffers of the input end.
#[test]
fn pieces_are_read_in_order_whether_a_buffer_ends_within_them_or_not() {
    let pieces: Vec<Vec<u8>> = (0..40_u8).map(|at| vec![at; usize::from(at) * 7 % 23]).collect();
    let bytes: Vec<u8> =
        pieces.iter().flat_map(|piece| [&(piece.len() as u32).to_le_bytes()[..], piece].concat()).collect();
    for capacity in [1, 4, 5, 7, 30, 64, bytes.len()] {
        let mut input = BufReader::with_capacity(capacity, &bytes[..]);
        for piece in &pieces {
            assert_eq!(read_piece(&mut input, <[u8]>::to_vec).unwrap(), *piece, "buffers of {capacity}");
        }
        assert_eq!(read_piece(&mut input, <[u8]>::len).unwrap_err().to_string(), ends_too_early().to_string());
    }
}
