//! Unary call: request, wait, and answer, read frame by frame.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use http_body::Body as _;
use informerd::grpc::{Body, Routes};
use tower::Service;

use super::{
    ask::Ask,
    client::{Answer, Flag, framed, pieces, status},
    record::{CallRecord, End, Moment},
};

pub(crate) struct Call {
    pub(crate) record: CallRecord,
    /// True if the answer is read only when the script says so.
    pub(crate) is_slow: bool,
    connection: Connection,
    flag: Arc<Flag>,
    waits: bool,
}

enum Connection {
    None,
    Asked(Answer),
    Open(Pin<Box<Body>>),
}

impl Call {
    pub(crate) fn new(routes: &mut Routes, ask: Ask, is_slow: bool, asked: Moment) -> Self {
        let (method, message) = ask.encode();
        let mut request = http::Request::post(format!("/informerd.v1.InformerService/{method}"));
        request = request.header("content-type", "application/grpc");
        if let Some(deadline) = ask.deadline {
            request = request.header("grpc-timeout", format!("{}m", deadline.as_millis()));
        }
        let answer = routes.call(request.body(framed(&message)).unwrap());
        let record = CallRecord {
            ask,
            asked,
            waits: Vec::new(),
            answered: None,
            was_woken: true,
            messages: Vec::new(),
            end: End::Open,
        };
        Self { record, is_slow, connection: Connection::Asked(answer), flag: Arc::default(), waits: false }
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.connection, Connection::None)
    }

    /// Returns true if the call was woken since the last poll.
    pub(crate) fn is_woken(&self) -> bool {
        self.flag.is_raised()
    }

    /// Cancels the call, if there is no answer yet.
    pub(crate) fn leave(&mut self) {
        if !self.is_over() {
            self.connection = Connection::None;
            self.record.end = End::Left;
        }
    }

    /// Records that there is no answer yet, and that the call was not woken.
    pub(crate) fn waits(&mut self, moment: Moment) {
        self.waits = true;
        self.record.waits.push(moment);
    }

    /// Polls once. Returns true if there was something to read.
    pub(crate) fn poll(&mut self, moment: Moment) -> bool {
        let was_woken = !self.waits || self.flag.is_raised();
        self.flag.lower();
        let waker = Waker::from(Arc::clone(&self.flag));
        let mut cx = Context::from_waker(&waker);
        let record = &mut self.record;
        let end = match &mut self.connection {
            Connection::None => return false,
            Connection::Asked(answer) => {
                let Poll::Ready(Ok(response)) = answer.as_mut().poll(&mut cx) else { return false };
                record.answered = Some(moment);
                record.was_woken &= was_woken;
                let Some(status) = status(response.headers()) else {
                    self.connection = Connection::Open(Box::pin(response.into_body()));
                    self.waits = false;
                    return true;
                };
                End::Status(status, moment)
            }
            Connection::Open(body) => match body.as_mut().poll_frame(&mut cx) {
                Poll::Pending => return false,
                Poll::Ready(None) => End::Broken("the answer ended without a status".to_owned()),
                Poll::Ready(Some(Err(status))) => End::Broken(format!("the answer broke: {status}")),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => match pieces(data) {
                        Ok(pieces) => {
                            record.messages.extend(pieces.into_iter().map(|piece| (piece, moment)));
                            return true;
                        }
                        Err(how) => End::Broken(how),
                    },
                    Err(frame) => match frame.trailers_ref().and_then(status) {
                        Some(status) => End::Status(status, moment),
                        None => End::Broken("neither data nor a status".to_owned()),
                    },
                },
            },
        };
        record.end = end;
        self.connection = Connection::None;
        true
    }
}
