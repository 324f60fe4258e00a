//! TCP stream whose bytes stop, or that is closed, on demand.

use std::{
    io::{Error, ErrorKind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::mpsc::UnboundedSender,
};

/// Server's end of a connection.
pub(crate) struct Socket {
    stream: TcpStream,
    faults: Arc<Faults>,
}

/// Switch of the faults of one connection.
#[derive(Default)]
pub(crate) struct Faults(Mutex<State>);

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// Of the reading and the writing task.
    wakers: [Option<Waker>; 2],
}

/// Connection of a client, with its faults.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Number, from 1 on.
    pub(crate) id: usize,
    pub(super) faults: Arc<Faults>,
    pub(super) goaway: UnboundedSender<()>,
}

/// Fault of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No byte passes in either direction, and the connection stays open: a black hole.
    Frozen,
    /// The connection is closed in order, with FIN.
    Closed,
    /// The connection is reset, with RST.
    Reset,
}

// === impl Connection ===

impl Connection {
    pub(crate) fn begin(&self, fault: Fault) {
        self.faults.begin(fault);
    }

    /// Sends GOAWAY: open streams continue, new ones are refused.
    pub(crate) fn goaway(&self) {
        self.goaway.send(()).ok();
    }
}

// === impl Faults ===

impl Faults {
    /// Begins a fault.
    pub(crate) fn begin(&self, fault: Fault) {
        let mut state = self.0.lock();
        state.fault = Some(fault);
        state.wakers.iter_mut().filter_map(Option::take).for_each(Waker::wake);
    }

    /// Returns ready if the connection can pass bytes.
    fn poll(&self, direction: usize, stream: &TcpStream, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.0.lock();
        match state.fault {
            None | Some(Fault::Frozen) => state.wakers[direction] = Some(cx.waker().clone()),
            Some(Fault::Closed) => return Poll::Ready(Err(ErrorKind::ConnectionAborted.into())),
            Some(Fault::Reset) => {
                drop(stream.set_zero_linger());
                return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
            }
        }
        if state.fault.is_none() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

// === impl Socket ===

impl Socket {
    pub(crate) fn new(stream: TcpStream, faults: Arc<Faults>) -> Self {
        Self { stream, faults }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<(), Error>> {
        match self.faults.poll(0, &self.stream, cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.stream).poll_read(cx, buffer),
            other => other,
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        match self.faults.poll(1, &self.stream, cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.stream).poll_write(cx, bytes),
            other => other.map_ok(|()| 0),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
