//! Connections of the attackers. They use their own source address, so that limits per peer apply to them alone.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};

use super::frames::{DEFAULT_WINDOW, Frame, FrameReader, data_bytes, opening};
use crate::process::connect_from;

/// Source address of the attackers; other clients use 127.0.0.1.
pub(super) const ATTACKER: [u8; 4] = [127, 0, 0, 2];
/// Size in bytes of the receive buffer of clients that do not read, so that the kernel buffers little for them.
const SMALL_BUFFER: u32 = 4096;
/// Number of writes that may wait for the socket.
const UNSENT: usize = 100;

/// Connection that answers PING and SETTINGS, reads everything, keeps to the server's window for the connection, and sends no
/// `WINDOW_UPDATE`.
#[derive(Debug)]
pub(super) struct Raw {
    sends: mpsc::Sender<Vec<u8>>,
    next: u32,
    task: JoinHandle<()>,
}

pub(super) async fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    connect_from(ATTACKER, server).await
}

/// Connects a client that reads nothing by itself and has a small receive buffer.
pub(super) async fn connect_small(server: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(SMALL_BUFFER)?;
    socket.bind((ATTACKER, 0).into())?;
    socket.connect(server).await
}

// === impl Raw ===

impl Raw {
    /// Opens a connection whose streams have this window.
    pub(super) async fn open(server: SocketAddr, window: u32) -> Self {
        let mut stream = connect(server).await.unwrap();
        stream.write_all(&opening(window)).await.unwrap();
        let (sends, sent) = mpsc::channel(UNSENT);
        Self { sends, next: 1, task: tokio::spawn(drive(stream, sent)) }
    }

    /// Sends bytes, unless the server has closed the connection.
    pub(super) async fn send(&self, bytes: Vec<u8>) {
        drop(self.sends.send(bytes).await);
    }

    /// Returns the number of the next stream.
    pub(super) fn next_stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Returns true if the server has closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until the server has closed the connection.
    pub(super) async fn closed(&mut self) {
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes the queued bytes and answers PING and SETTINGS, until the server closes the connection. It reads while it writes: a server
/// whose answers nobody reads reads no more, either.
async fn drive(mut stream: TcpStream, mut sent: mpsc::Receiver<Vec<u8>>) {
    let (mut reads, mut writes) = stream.split();
    let (mut frames, mut buffer) = (FrameReader::default(), vec![0; 64 << 10]);
    let (mut window, mut next, mut unsent) = (DEFAULT_WINDOW as usize, Vec::new(), Vec::new());
    loop {
        let size = data_bytes(&next);
        if unsent.is_empty() && !next.is_empty() && size <= window {
            window -= size;
            unsent = std::mem::take(&mut next);
        }
        // Each is cancel-safe: what another one has been chosen for is neither sent nor read.
        tokio::select! {
            Some(bytes) = sent.recv(), if next.is_empty() => next = bytes,
            written = writes.write(&unsent), if !unsent.is_empty() => {
                let Ok(written) = written else { return };
                unsent.drain(..written);
            }
            read = reads.read(&mut buffer) => {
                let Ok(read @ 1..) = read else { return };
                let frames = frames.read(&buffer[..read]);
                window += frames.iter().filter_map(Frame::connection_window).sum::<usize>();
                // A frame may be half written: the answers follow it.
                unsent.extend(frames.iter().filter_map(Frame::acknowledgement).flatten());
            }
        }
    }
}
