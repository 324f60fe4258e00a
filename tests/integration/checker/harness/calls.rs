//! Unary calls: requests, and the polls of their answers.

use informerd::proto::pb::{self, PayloadFormat};
use prost::Message;

use super::{Harness, MANY};
use crate::checker::{
    ask::{Ask, Min, PageOf, Query, Twist, What},
    call::Call,
    record::{CallRecord, End, Served},
    script::{FORMATS, Question, QuestionKind},
    selection::Selection,
    view::View,
};

impl Harness {
    /// Makes a call, and replaces the one in this place.
    pub(super) async fn ask(&mut self, place: usize, question: &Question) {
        let Question { asked, form, min, deadline, is_slow } = question.clone();
        let what = match asked {
            QuestionKind::List { query, page_size } => What::List { query, page_size, page: None },
            QuestionKind::Get(key) => What::Get(key),
            QuestionKind::Values { index, page_size } => What::Values { index, page_size },
            QuestionKind::Until { selection, conditions } => What::Until { selection, conditions },
        };
        // The values are those of this moment.
        let served = Served { server: self.current, resource: self.resource };
        let min = min.filter(|_| !matches!(what, What::Values { .. })).map(|min| self.min_version(served, min));
        self.call(place, Ask { resource: self.resource, what, form, min, deadline }, is_slow).await;
    }

    /// Requests the page after the one that was read in a place, if there is one.
    pub(super) async fn next_page(&mut self, place: usize, twist: Twist, next_size: u32, is_slow: bool) {
        let Some(previous) = self.asking[place] else { return };
        let record = &self.calls[previous].record;
        let (What::List { query, .. }, Some(token)) = (&record.ask.what, next_page_token(record)) else { return };
        let (mut query, mut ask) = (*query, record.ask.clone());
        let twist = match twist {
            Twist::OtherQuery(2) if self.truths.len() == 1 => Twist::OtherQuery(4),
            Twist::OtherQuery(3) if ask.form.format == PayloadFormat::Metadata => Twist::OtherQuery(4),
            twist => twist,
        };
        match twist {
            Twist::OtherQuery(0) => {
                let at = FORMATS.iter().position(|format| *format == ask.form.format).unwrap_or_default();
                ask.form = ask.form.in_format(FORMATS[(at + 1) % FORMATS.len()]);
            }
            Twist::OtherQuery(1) if ask.min.is_none() => {
                let served = Served { server: self.current, resource: ask.resource };
                ask.min = Some(self.min_version(served, Min::Near(0)));
            }
            Twist::OtherQuery(1) => ask.min = None,
            Twist::OtherQuery(2) => ask.resource = 1 - ask.resource,
            Twist::OtherQuery(3) => {
                let at = View::EVERY.iter().position(|view| *view == ask.form.view).unwrap_or_default();
                ask.form.view = View::EVERY[(at + 1) % View::EVERY.len()];
            }
            Twist::OtherQuery(_) => {
                let at = Selection::LISTED.iter().position(|listed| *listed == query.selection).unwrap_or_default();
                query = Query { selection: Selection::LISTED[(at + 1) % Selection::LISTED.len()], ..query };
            }
            Twist::None | Twist::Garbage => {}
        }
        let token = if twist == Twist::Garbage { token[1..].to_owned() } else { token };
        let page = Some(PageOf { previous, token, twist });
        ask.what = What::List { query, page_size: next_size, page };
        self.call(place, ask, is_slow).await;
    }

    async fn call(&mut self, place: usize, ask: Ask, is_slow: bool) {
        self.give_up(place);
        let (selection, conditions) = ask.compiled();
        self.servers[self.current].compile(selection, conditions).await;
        self.rest().await;
        let moment = self.moment(Served { server: self.current, resource: ask.resource });
        self.calls.push(Call::new(&mut self.servers[self.current].routes, ask, is_slow, moment));
        let at = self.calls.len() - 1;
        self.asking[place] = Some(at);
        self.poll_call(at, if is_slow { 1 } else { MANY }).await;
    }

    /// Cancels the call in a place, if it has no answer yet.
    fn give_up(&mut self, place: usize) {
        if let Some(at) = self.asking[place].take() {
            self.calls[at].leave();
        }
    }

    /// Polls a slow call.
    pub(super) async fn poll_place(&mut self, place: usize) {
        if let Some(at) = self.asking[place] {
            self.poll_call(at, 1).await;
        }
    }

    /// Polls all calls; the slow ones only at the end of the run.
    pub(super) async fn poll_calls(&mut self, is_end: bool) {
        for place in 0..self.asking.len() {
            let Some(at) = self.asking[place] else { continue };
            if is_end || !self.calls[at].is_slow {
                self.poll_call(at, MANY).await;
            }
        }
    }

    async fn poll_call(&mut self, at: usize, pieces: usize) {
        let mut left = pieces;
        for _ in 0..MANY {
            if left == 0 || self.calls[at].is_over() {
                return;
            }
            let CallRecord { ask, asked, .. } = &self.calls[at].record;
            let moment = self.moment(Served { server: asked.server, resource: ask.resource });
            let was_something = self.calls[at].poll(moment);
            left -= usize::from(was_something);
            self.rest().await;
            if !was_something && !self.calls[at].is_woken() {
                self.calls[at].waits(moment);
                return;
            }
        }
    }

    /// Returns the minimum version for a request.
    pub(super) fn min_version(&self, served: Served, min: Min) -> String {
        match min {
            Min::Near(distance) => {
                let near = self.moment(served).applied.saturating_add_signed(distance).max(1);
                let truth = self.truth_of(served.resource);
                truth.text(truth.epochs.len() - 1, near)
            }
            Min::Foreign => "elsewhere.7".to_owned(),
        }
    }
}

/// Returns the page token of a list that was read to its end. Both kinds of list have the same fields.
fn next_page_token(record: &CallRecord) -> Option<String> {
    let (last, _) =
        record.messages.last().filter(|_| matches!(&record.end, End::Status(status, _) if status.code == 0))?;
    let last = pb::ListResponse::decode(last.clone()).ok()?;
    Some(last.next_page_token).filter(|token| !token.is_empty())
}
