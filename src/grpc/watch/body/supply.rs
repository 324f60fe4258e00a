//! The body of one watch as its connection sees it: it hands out what was made, if there is room for it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http_body::{Body, Frame};
use tonic::Status;

use super::{Made, WatchBody};
use crate::{
    grpc::routes::trailers,
    transport::{Chunk, Room, Supplied, Supply},
    watch::Cursor,
};

impl Supply for WatchBody {
    fn poll_supply(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<Supplied, Status>>> {
        loop {
            if let Some(chunk) = self.ready.take_if(|chunk| room.allows(chunk.remaining())) {
                return Poll::Ready(Some(Ok(Supplied::Frame(Frame::data(chunk)))));
            }
            if let Some(chunk) = &self.ready {
                return Poll::Ready(Some(Ok(Supplied::TooLarge(chunk.remaining()))));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            if let Some(status) = self.end.take() {
                self.is_over = true;
                self.observer.ends(status.code());
                return Poll::Ready(Some(Ok(Supplied::Frame(Frame::trailers(trailers(&status))))));
            }
            if let Made::TooLarge(needed) = ready!(self.poll_next(cx, room)) {
                return Poll::Ready(Some(Ok(Supplied::TooLarge(needed))));
            }
        }
    }

    fn made(&self) -> usize {
        let ready = self.ready.as_ref().map_or(0, Buf::remaining);
        ready + self.cursor.as_ref().map_or(0, Cursor::held)
    }
}

impl Body for WatchBody {
    type Data = Chunk;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Status>>> {
        self.get_mut().poll_any(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}
