//! Floor: the kernel's cost of moving the bytes, and nothing else.
//!
//! One thread. Its stdin carries the encoded messages for the clients. It cuts them into DATA frames and writes them to the
//! sockets, all that one read returned in one write for each socket, without HTTP/2 state, flow control or a second copy. It
//! reads nothing from the clients after their calls. It waits for a socket that is full.

#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a baseline that cannot go on ends, and says so")]

use std::{
    io::{self, ErrorKind, IoSlice},
    os::fd::AsFd,
};

use informerd::proto::pb;
use prost::Message;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream, unix::pipe},
};

/// Bytes of a record before its message; see `template.rs`.
const RECORD_HEADER: usize = 8;
const EVERYBODY: u32 = u32::MAX;
const FRAME_HEADER: usize = 9;
const MAX_FRAME: usize = 16_384;
/// Bytes of one read: the capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// Most slices that one writev takes.
const MAX_SLICES: usize = 1024;

pub(super) fn serve(connections: usize, streams: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move { run(connections, streams).await.unwrap() });
}

async fn run(connections: usize, streams: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("listening address={}", listener.local_addr()?);
    let mut sockets = Vec::new();
    while sockets.len() < connections {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        write(&socket, &[&settings]).await?;
        sockets.push(socket);
    }
    for socket in &mut sockets {
        await_calls(socket, streams).await?;
        // The BOOKMARK that begins a watch.
        let mut joined_all = Vec::new();
        (0..streams).for_each(|stream| frame(&mut joined_all, stream, &joined()));
        write(socket, &[&joined_all]).await?;
    }

    let mut stdin = pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
    let mut input = Vec::new();
    let mut shared = Vec::new();
    let mut own: Vec<Vec<u8>> = vec![Vec::new(); connections];
    loop {
        let begun = input.len();
        input.resize(begun + CHUNK, 0);
        let read = stdin.read(&mut input[begun..]).await?;
        input.truncate(begun + read);
        if read == 0 {
            return Ok(());
        }
        let mut rest = &input[..];
        while let Some((watcher, message)) = record(&mut rest) {
            if watcher == EVERYBODY {
                shared.extend_from_slice(message);
            } else if let (stream, Some(out)) =
                (watcher as usize / connections, own.get_mut(watcher as usize % connections))
                && (watcher as usize) < connections * streams
            {
                frame(out, stream, message);
            }
        }
        let used = input.len() - rest.len();
        input.drain(..used);
        if !shared.is_empty() {
            broadcast(&sockets, streams, &shared).await?;
            shared.clear();
        }
        for (socket, out) in sockets.iter().zip(&mut own).filter(|(_, out)| !out.is_empty()) {
            write(socket, &[out]).await?;
            out.clear();
        }
    }
}

/// Reads a client's frames until it has begun this many calls. Nothing is read later.
async fn await_calls(socket: &mut TcpStream, calls: usize) -> io::Result<()> {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    socket.read_exact(&mut [0; PREFACE]).await?;
    let mut begun = 0;
    while begun < calls {
        let mut header = [0; FRAME_HEADER];
        socket.read_exact(&mut header).await?;
        let [a, b, c, kind, ..] = header;
        socket.read_exact(&mut vec![0; u32::from_be_bytes([0, a, b, c]) as usize]).await?;
        begun += usize::from(kind == HEADERS);
    }
    Ok(())
}

/// Returns the next record of the input, if it is complete.
fn record<'a>(input: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let number = |at: usize| Some(u32::from_le_bytes(*input.get(at..)?.first_chunk()?));
    let (watcher, end) = (number(0)?, RECORD_HEADER + number(4)? as usize);
    let message = input.get(RECORD_HEADER..end)?;
    *input = &input[end..];
    Some((watcher, message))
}

/// Writes the same messages to every stream of every connection.
async fn broadcast(sockets: &[TcpStream], streams: usize, messages: &[u8]) -> io::Result<()> {
    let headers: Vec<Vec<[u8; FRAME_HEADER]>> = (0..streams)
        .map(|stream| messages.chunks(MAX_FRAME).map(|data| header(stream, data.len())).collect())
        .collect();
    let mut slices: Vec<&[u8]> = Vec::new();
    for headers in &headers {
        for (header, data) in headers.iter().zip(messages.chunks(MAX_FRAME)) {
            slices.extend([&header[..], data]);
        }
    }
    // First to the sockets with room, so that none waits for one without.
    let mut late = Vec::new();
    for socket in sockets {
        let left = try_write(socket, &slices, 0)?;
        if let Some(done) = left {
            late.push((socket, done));
        }
    }
    for (socket, mut done) in late {
        while let Some(more) = {
            socket.writable().await?;
            try_write(socket, &slices, done)?
        } {
            done = more;
        }
    }
    Ok(())
}

async fn write(socket: &TcpStream, slices: &[&[u8]]) -> io::Result<()> {
    let mut done = 0;
    while let Some(more) = try_write(socket, slices, done)? {
        done = more;
        socket.writable().await?;
    }
    Ok(())
}

/// Writes as much as a socket takes, after the first `done` bytes; returns the number of bytes written unless all are.
fn try_write(socket: &TcpStream, slices: &[&[u8]], mut done: usize) -> io::Result<Option<usize>> {
    loop {
        let (mut skipped, mut ready) = (done, Vec::with_capacity(slices.len().min(MAX_SLICES)));
        for slice in slices {
            if ready.len() == MAX_SLICES {
                break;
            }
            let skip = skipped.min(slice.len());
            skipped -= skip;
            if skip < slice.len() {
                ready.push(IoSlice::new(&slice[skip..]));
            }
        }
        if ready.is_empty() {
            return Ok(None);
        }
        match socket.try_write_vectored(&ready) {
            Ok(written) => done += written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(done)),
            Err(error) => return Err(error),
        }
    }
}

fn header(stream: usize, length: usize) -> [u8; FRAME_HEADER] {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [s0, s1, s2, s3] = (stream as u32 * 2 + 1).to_be_bytes();
    [a, b, c, 0, 0, s0, s1, s2, s3]
}

fn frame(out: &mut Vec<u8>, stream: usize, message: &[u8]) {
    for data in message.chunks(MAX_FRAME) {
        out.extend_from_slice(&header(stream, data.len()));
        out.extend_from_slice(data);
    }
}

fn joined() -> Vec<u8> {
    let bookmark = pb::WatchResponse {
        r#type: pb::EventType::Bookmark.into(),
        resource_version: "1".to_owned(),
        bookmark: Some(pb::Bookmark::default()),
        ..Default::default()
    };
    let message = bookmark.encode_to_vec();
    let mut bytes = vec![0];
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend(message);
    bytes
}
