//! Rows of a table in their order: sort column, filter, selected row, scroll position.

use std::time::SystemTime;

use unicode_width::UnicodeWidthStr;

use super::columns::{Column, Key, Row};
use crate::cli::print::escape;

/// Order and position of the rows of a table, which are kept elsewhere.
#[derive(Debug)]
pub(super) struct List<R: Row> {
    pub(super) sorted_by: Key,
    is_reversed: bool,
    pub(super) filter: String,
    /// The selected row; the first one if it is none.
    selected: Option<R::Id>,
    /// Indices of the rows that the filter accepts, in order.
    order: Vec<usize>,
    /// Index in `order` of the first row on the screen.
    pub(super) offset: usize,
    /// Widths of the texts of each column.
    pub(super) widths: Vec<u16>,
}

/// Longest text that a column may become as wide as.
const MAX_WIDTH: usize = 200;

// === impl List ===

impl<R: Row> List<R> {
    pub(super) fn new(sorted_by: Option<Key>) -> Self {
        let sorted_by = sorted_by.filter(|key| R::COLUMNS.iter().any(|column| column.key == *key));
        Self {
            sorted_by: sorted_by.unwrap_or(R::SORTED_BY),
            is_reversed: false,
            filter: String::new(),
            selected: None,
            order: Vec::new(),
            offset: 0,
            widths: vec![0; R::COLUMNS.len()],
        }
    }

    /// Sorts and filters the rows, after a change of them, of the sort column or of the filter.
    pub(super) fn arrange(&mut self, rows: &[R]) {
        let filter = self.filter.to_lowercase();
        self.order = (0..rows.len()).filter(|at| filter.is_empty() || rows[*at].matches(&filter)).collect();
        let order = R::COLUMNS.iter().find(|column| column.key == self.sorted_by).map(|column| column.order);
        let is_descending = self.is_descending();
        if let Some(order) = order {
            // The sort is stable: equal rows keep the order of the server.
            self.order.sort_by(|one, other| {
                let order = order(&rows[*one], &rows[*other]);
                if is_descending { order.reverse() } else { order }
            });
        }
        for (width, column) in self.widths.iter_mut().zip(R::COLUMNS).filter(|(_, column)| column.is_text) {
            let texts = self.order.iter().map(|at| (column.cell)(&rows[*at], SystemTime::UNIX_EPOCH).0);
            *width = texts.map(|text| escape(&text).width().min(MAX_WIDTH)).max().unwrap_or_default() as u16;
        }
    }

    /// Returns true if the largest value comes first.
    pub(super) fn is_descending(&self) -> bool {
        self.sorted_by.is_descending() != self.is_reversed
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the rows in their order.
    pub(super) fn rows<'a>(&'a self, rows: &'a [R]) -> impl Iterator<Item = &'a R> {
        self.order.iter().filter_map(|at| rows.get(*at))
    }

    /// Returns the place of the selected row in the order; the first one if the row is gone.
    pub(super) fn position(&self, rows: &[R]) -> usize {
        let Some(selected) = &self.selected else { return 0 };
        self.rows(rows).position(|row| row.id() == *selected).unwrap_or_default()
    }

    pub(super) fn selected<'a>(&self, rows: &'a [R]) -> Option<&'a R> {
        self.order.get(self.position(rows)).and_then(|at| rows.get(*at))
    }

    /// Selects the row at a place. At the first place the selection stays there, and otherwise follows the row.
    pub(super) fn select(&mut self, rows: &[R], place: usize) {
        let place = place.min(self.len().saturating_sub(1));
        let row = self.order.get(place).and_then(|at| rows.get(*at));
        self.selected = row.filter(|_| place > 0).map(Row::id);
    }

    /// Scrolls until the selected row is among the `height` rows on the screen.
    pub(super) fn fit(&mut self, rows: &[R], height: usize) {
        let height = height.max(1);
        let (place, last) = (self.position(rows), self.len().saturating_sub(height));
        let first = (place + 1).saturating_sub(height);
        self.offset = self.offset.clamp(first, first.max(place)).min(last);
    }

    /// Sorts by the column that is `step` columns to the right.
    pub(super) fn sort_by_next(&mut self, step: isize) {
        let columns = R::COLUMNS;
        let at = columns.iter().position(|column| column.key == self.sorted_by).unwrap_or_default();
        let next = (at + columns.len()).saturating_add_signed(step) % columns.len();
        (self.sorted_by, self.is_reversed) = (columns[next].key, false);
    }

    pub(super) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
    }

    /// Returns the header of the sort column.
    pub(super) fn sort_header(&self) -> &'static str {
        R::COLUMNS.iter().find(|column| column.key == self.sorted_by).map_or("", |column| column.header)
    }

    /// Returns the columns that fit, with their widths. `hidden` is left out.
    pub(super) fn columns(&self, width: u16, gap: u16, hidden: Option<Key>) -> Vec<(&'static Column<R>, u16)> {
        let columns = R::COLUMNS;
        let mut chosen = vec![false; columns.len()];
        let mut ranked: Vec<usize> = (0..columns.len()).filter(|at| Some(columns[*at].key) != hidden).collect();
        // The column that the rows are sorted by is there, or their order would have no reason.
        ranked.sort_by_key(|at| if columns[*at].key == self.sorted_by { 0 } else { columns[*at].rank });
        let mut left = width + gap;
        for at in ranked {
            let needed = columns[at].width + gap;
            if needed > left {
                break;
            }
            (chosen[at], left) = (true, left - needed);
        }
        let mut fitting: Vec<_> = (0..columns.len())
            .filter(|at| chosen[*at])
            .map(|at| (&columns[at], columns[at].width, self.widths.get(at).copied().unwrap_or_default()))
            .collect();
        // Texts get what is left, one character after the other, so that short ones are whole.
        loop {
            let before = left;
            for (column, width, wanted) in &mut fitting {
                if column.is_text && *width < *wanted && left > 0 {
                    (*width, left) = (*width + 1, left - 1);
                }
            }
            if left == before {
                return fitting.into_iter().map(|(column, width, _)| (column, width)).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use Key::{Bytes, Client, Drops, Events, Id, Lag, Policy, Queue, Resource};

    use super::*;
    use crate::{cli::top::sample::WatcherFigures, proto::pb};

    fn watch(id: u64, events: Option<f64>, peer: &str) -> WatcherFigures {
        let watcher = pb::Watcher { id, peer: peer.to_owned(), queued: id as u32 % 3, ..Default::default() };
        WatcherFigures { watcher, events, bytes: None }
    }

    fn ids(list: &List<WatcherFigures>, rows: &[WatcherFigures]) -> Vec<u64> {
        list.rows(rows).map(Row::id).collect()
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let rows = [
            watch(1, None, "10.0.0.1:1"),
            watch(2, Some(5.0), "10.0.0.2:1"),
            watch(3, Some(5.0), "h"),
            watch(4, Some(9.0), "h"),
        ];
        let mut list = List::new(None);
        list.arrange(&rows);
        assert_eq!(ids(&list, &rows), [4, 2, 3, 1], "an unknown rate is the lowest");
        list.reverse();
        list.arrange(&rows);
        assert_eq!(ids(&list, &rows), [1, 2, 3, 4]);
        list.sort_by_next(-1);
        assert_eq!((list.sorted_by, list.is_descending()), (Key::Drops, true), "the direction is that of the column");
        list.filter = "10.0.0".to_owned();
        list.arrange(&rows);
        assert_eq!(ids(&list, &rows), [1, 2]);
        list.filter = "4".to_owned();
        list.arrange(&rows);
        assert_eq!(ids(&list, &rows), [4], "an id as a whole");
        let by = |key| List::<WatcherFigures>::new(Some(key)).sorted_by;
        assert_eq!((by(Key::Lag), by(Key::Objects)), (Key::Lag, Key::Events), "one that there is not");
        for _ in 0..WatcherFigures::COLUMNS.len() {
            list.sort_by_next(1);
        }
        assert_eq!(list.sorted_by, Key::Drops);
    }

    #[test]
    fn the_selection_follows_its_row_unless_it_is_the_first() {
        let rows = [watch(1, Some(1.0), "a"), watch(2, Some(2.0), "a"), watch(3, Some(3.0), "a")];
        let mut list = List::new(None);
        list.arrange(&rows);
        let selected = |list: &List<_>, rows: &[WatcherFigures]| list.selected(rows).map(Row::id);
        assert_eq!(selected(&list, &rows), Some(3));
        let faster = [watch(1, Some(9.0), "a"), watch(2, Some(2.0), "a"), watch(3, Some(3.0), "a")];
        list.arrange(&faster);
        assert_eq!(selected(&list, &faster), Some(1), "the first one, whichever it is");
        list.select(&faster, 1);
        list.arrange(&rows);
        assert_eq!((selected(&list, &rows), list.position(&rows)), (Some(3), 0));
        list.select(&rows, 100);
        assert_eq!(selected(&list, &rows), Some(1));
        list.arrange(&rows[1..]);
        assert_eq!(selected(&list, &rows[1..]), Some(3), "its row is gone");
        list.arrange(&[]);
        assert_eq!(selected(&list, &[]), None);
        list.select(&[], 3);
    }

    #[test]
    fn the_selected_row_is_on_the_screen() {
        let rows: Vec<_> = (0..100).map(|id| watch(id, None, "a")).collect();
        let mut list = List::new(Some(Key::Id));
        list.arrange(&rows);
        let mut offset = |place, height| {
            list.select(&rows, place);
            list.fit(&rows, height);
            list.offset
        };
        assert_eq!([offset(0, 10), offset(9, 10), offset(10, 10), offset(5, 10), offset(0, 10)], [0, 0, 1, 1, 0]);
        assert_eq!([offset(99, 10), offset(99, 50), offset(99, 200)], [90, 50, 0], "a larger screen shows more");
        assert_eq!(offset(50, 0), 50, "a screen without rows");
    }

    #[test]
    fn columns_fill_the_width_and_the_least_important_are_left_out() {
        let mut list = List::<WatcherFigures>::new(None);
        list.arrange(&[watch(1, None, "a-long-name.of.a.client:12345")]);
        for width in 1..300 {
            let columns = list.columns(width, 1, None);
            let total = columns.iter().map(|(_, width)| width + 1).sum::<u16>().saturating_sub(1);
            assert!(total <= width, "{width}: {total}");
        }
        let keys =
            |width, hidden| list.columns(width, 1, hidden).iter().map(|(column, _)| column.key).collect::<Vec<_>>();
        assert_eq!(keys(83, None), [Id, Client, Resource, Policy, Queue, Lag, Drops, Events, Bytes]);
        assert_eq!(keys(80, None), [Id, Client, Resource, Queue, Lag, Drops, Events, Bytes]);
        assert_eq!(keys(80, Some(Resource)), [Id, Client, Policy, Queue, Lag, Drops, Events, Bytes]);
        assert_eq!(keys(64, None), [Id, Client, Queue, Lag, Drops, Events, Bytes]);
        let by_held = List::<WatcherFigures>::new(Some(Key::Held)).columns(80, 1, None);
        assert!(by_held.iter().any(|(column, _)| column.key == Key::Held), "the sort column");
        assert_eq!(keys(200, None).len(), WatcherFigures::COLUMNS.len());
        let client =
            |width| list.columns(width, 1, None).into_iter().find(|(column, _)| column.key == Client).unwrap().1;
        assert_eq!((client(80), client(200)), (26, 29));
    }
}
