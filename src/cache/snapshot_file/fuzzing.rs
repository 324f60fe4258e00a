//! Fuzz targets of snapshot files: a file that is read is written and read again unchanged, and a damaged one is rejected.

use std::collections::BTreeMap;

use ring::digest::{SHA256_OUTPUT_LEN, digest};

use super::*;
use crate::cache::Indexer;

/// Reads a file as it is and with a corrected checksum, or the record of one object in a file of its own.
pub(crate) fn snapshot(data: &[u8]) {
    let file = SnapshotFile {
        path: PathBuf::new(),
        resource: "pods".to_owned(),
        identity: "fuzzing".to_owned(),
        stats: Arc::default(),
    };
    if data.starts_with(MAGIC) {
        let content = &data[..data.len().saturating_sub(SHA256_OUTPUT_LEN)];
        check(&file, data);
        check(&file, &summed(content));
    } else {
        check(&file, &summed(&file_of(&file, data)));
    }
}

/// Returns the content of a file with one object, which has this record.
fn file_of(file: &SnapshotFile, record: &[u8]) -> Vec<u8> {
    let header = Header {
        resource: file.resource.clone(),
        source: file.identity.clone(),
        version: "abc.12".to_owned(),
        unchanged_since: None,
        objects: 1,
        seen_at_ms: Some(1_795_000_000_123),
    };
    let mut out = Checksummed::new(Vec::new());
    let mut write = || {
        out.write_all(MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.piece(&serde_json::to_vec(&header)?)?;
        out.piece(b"{}")?;
        out.piece(record)
    };
    write().expect("memory");
    out.file
}

/// Appends the checksum.
fn summed(content: &[u8]) -> Vec<u8> {
    [content, digest(&SHA256, content).as_ref()].concat()
}

fn check(file: &SnapshotFile, bytes: &[u8]) {
    let Ok(SavedState { list, proof, seen_at }) = file.decode(bytes) else { return };
    for object in &list.objects {
        let labels: Vec<_> = object.labels().iter().collect();
        assert!(labels.is_sorted_by(|(a, _), (b, _)| a < b), "{object:?}");
        assert!(labels.iter().all(|(key, value)| object.labels().get(key) == Some(*value)), "{object:?}");
    }
    let snapshot = Indexer::new(Arc::default(), list.clone()).snapshot();
    let unchanged_since = list.unchanged_since.clone().unwrap_or_else(|| list.version.clone());
    let checkpoint =
        Checkpoint { snapshot, proof: proof.clone(), unchanged_since: unchanged_since.clone(), is_whole: true };
    let written = file.encode(Vec::new(), &checkpoint, seen_at).expect("what was read is written");
    // The last of two objects with one key is kept.
    let by_key: BTreeMap<_, _> = list.objects.iter().map(|object| (object.key(), Arc::clone(object))).collect();
    let objects = by_key.into_values().collect();
    let kept = List { unchanged_since: Some(unchanged_since), ..List::new(objects, list.version.clone()) };
    let again = file.decode(&*written).expect("what was written is read");
    assert_eq!(again, SavedState { list: kept, proof, seen_at });

    let at =
        bytes.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte))) % written.len();
    assert!(file.decode(&written[..at]).is_err(), "{at} bytes of {}", written.len());
    let mut other = written;
    other[at] ^= 1 << (at % 8);
    assert!(file.decode(&*other).is_err(), "byte {at} is another one");
}
