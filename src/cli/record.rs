//! `informerd record`: a watch as lines of `metav1.WatchEvent`, on stdout or in a file.

use std::{
    io,
    ops::ControlFlow,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use clap::Args;
use futures_util::FutureExt;
use tokio::{
    fs::{File, OpenOptions},
    io::AsyncWriteExt,
};

use super::{
    alias::{self, of_resource},
    client_flags::{ChangedFlag, SelectionFlags, ServerFlags},
    failure::{FAILED, Failure},
    reader::Reader,
    signals::Signals,
    watch::WatchNotes,
};
use crate::client::{Update, WatchEventEncoder, WatchOptions};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml (edit a file in examples/manifests to see a change):
  informerd record pods
  informerd record configmaps -n platform -o configmaps.jsonl
  informerd record pods -n orders | jq -r .type
  informerd record pods | informerd serve --listen 127.0.0.1:50052 --admin-listen none --stream copy=-

A line is {\"type\":…,\"object\":…}, with the object's body to the byte. Beside them a line has `namespace`, `name` and `uid` where \
the body has others or none, and `data` (base64) in place of `object` for what is not JSON. The source `stream` reads all of it.

It resumes after a restart of the server, and misses nothing. Ctrl-C and SIGTERM end it after a whole line, with exit code 0; a \
second one ends it at once.";

/// Flags of `informerd record`.
#[derive(Debug, Clone, Args)]
pub(super) struct RecordFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// Only objects of this name; NAMESPACE/NAME is one object
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Write to this file, which must not exist, instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Overwrite FILE; also to write to a named pipe
    #[arg(long, requires = "output", help_heading = "Output")]
    force: bool,
    #[command(flatten)]
    selection: SelectionFlags,
    #[command(flatten)]
    changed: ChangedFlag,
    #[command(flatten)]
    server: ServerFlags,
}

of_resource!(RecordFlags, server);

/// Destination of the lines. A file is opened for the first of them: a record that does not begin leaves everything as it was.
struct Output<'a> {
    path: Option<&'a Path>,
    force: bool,
    file: Option<File>,
}

/// Size of the lines that are written together, in bytes.
const MAX_LINES_BYTES: usize = 64 << 10;

pub(super) async fn run(flags: &RecordFlags) -> Result<(), Failure> {
    let mut output = Output::new(flags)?;
    let (mut signals, reader) = (Signals::of_writer()?, Reader::new());
    // A record that fails leaves a line.
    let named = tokio::select! {
        named = alias::named(flags) => named,
        _ = signals.next() => return Ok(()),
    };
    let RecordFlags { resource, name, selection, changed, server, .. } = named.as_ref().unwrap_or(flags);
    let options = WatchOptions {
        // An object that vanished is deleted with its last body.
        keep_objects: true,
        fail_fast: true,
        ..WatchOptions::default()
    };
    let query = changed.applied_to(selection.query_of_name(resource, name.as_deref())?);
    let mut watch = server.connect_lazy()?.watch(&query, &options);
    let (mut encoder, mut notes) = (WatchEventEncoder::new(), WatchNotes::default());
    // What is not written yet, and the notes that follow it.
    let (mut lines, mut texts) = (Vec::new(), Vec::new());
    loop {
        let ready = if lines.len() < MAX_LINES_BYTES { watch.next().now_or_never() } else { None };
        let update = if let Some(update) = ready {
            update
        } else {
            if output.write(&mut lines, &mut signals).await?.is_break() {
                return Ok(());
            }
            texts.drain(..).for_each(|note: String| server.note(&note));
            tokio::select! {
                // Cancel-safe: a watch loses nothing when another branch wins.
                _ = signals.next() => return Ok(()),
                () = reader.gone(), if output.path.is_none() => return Ok(()),
                update = watch.next() => update,
            }
        };
        match update {
            Some(Ok(update)) => {
                texts.extend(notes.of(&update));
                if let Update::Synced(progress) | Update::Bookmark(progress) = &update {
                    texts.extend(notes.limit(resource, progress));
                }
                encoder.update(&update, &mut lines);
            }
            Some(Err(error)) => {
                if output.has_begun() || !lines.is_empty() {
                    WatchEventEncoder::error(&error, &mut lines);
                    // A closed pipe does not hide the error.
                    drop(output.write(&mut lines, &mut signals).await);
                }
                return Err(error.into());
            }
            None => return Ok(()),
        }
    }
}

// === impl Output ===

impl<'a> Output<'a> {
    fn new(flags: &'a RecordFlags) -> Result<Self, Failure> {
        let (path, force) = (flags.output.as_deref(), flags.force);
        match path.filter(|path| !force && path.symlink_metadata().is_ok()) {
            Some(path) => Err(exists(path)),
            None => Ok(Self { path, force, file: None }),
        }
    }

    /// Returns true if something has been written, or may be on stdout.
    fn has_begun(&self) -> bool {
        self.path.is_none() || self.file.is_some()
    }

    /// Writes the lines. Breaks if a signal ends the command: the first one after these lines, the second one at once.
    async fn write(&mut self, lines: &mut Vec<u8>, signals: &mut Signals) -> Result<ControlFlow<()>, Failure> {
        if lines.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tokio::select! {
                // A named pipe waits for its reader. If the open succeeds after the signal, nothing is written.
                file = open(self.path, self.force) => file?,
                _ = signals.next() => return Ok(ControlFlow::Break(())),
            }),
        };
        let mut flow = ControlFlow::Continue(());
        let writing = async {
            file.write_all(lines).await?;
            file.flush().await
        };
        let mut writing = Box::pin(writing);
        loop {
            tokio::select! {
                written = &mut writing => break written?,
                exit_code = signals.next() => match flow {
                    ControlFlow::Continue(()) => flow = ControlFlow::Break(()),
                    ControlFlow::Break(()) => return Err(Failure { message: None, exit_code }),
                },
            }
        }
        drop(writing);
        lines.clear();
        Ok(flow)
    }
}

/// Opens a file, or stdout.
async fn open(path: Option<&Path>, force: bool) -> Result<File, Failure> {
    let Some(path) = path else {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        return Ok(File::from_std(stdout.into()));
    };
    let mut options = OpenOptions::new();
    options.write(true).create(force).truncate(force).create_new(!force);
    options.open(path).await.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::new(FAILED, format!("{}: {error}", path.display())),
    })
}

fn exists(path: &Path) -> Failure {
    Failure::usage(format!("{} exists; choose another file, or overwrite it with --force", path.display()))
}
