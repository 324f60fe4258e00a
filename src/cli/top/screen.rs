//! Drawing of the state: nothing here changes it, and only rows on the screen are formatted.
//!
//! Text of a server is escaped, and cut at the width of its cell, so that it cannot move what stands beside it.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{
    columns::{Key, Row, Tone},
    details,
    list::List,
    state::{Focus, State, View},
};
use crate::cli::print::{
    age::age_of,
    escape,
    quantity::{byte_rate, bytes, count, rate},
};

/// Lines of a table's title and header.
const TABLE_HEAD: u16 = 2;
/// Lines above the tables: three of figures, and one of messages.
const HEAD: u16 = 4;
const MIN_WIDTH: u16 = 40;
const MIN_HEIGHT: u16 = 12;
/// Width from which on columns are two characters apart.
const WIDE: u16 = 100;
/// Width of the names of details.
const NAME_WIDTH: u16 = 18;

const HELP: &[(&str, &str)] = &[
    ("Tab", "other table: the keys below are about the one with the bar"),
    ("Up, Down, k, j", "select a row; PgUp, PgDn, Home, End, g and G, too"),
    ("Enter", "details of the selected row; Esc: back"),
    ("/", "show only rows with this text; Enter keeps it, Esc removes it"),
    ("s, S", "sort by the next column, by the one before; Right and Left, too"),
    ("r", "reverse the order"),
    ("p, Space", "pause, and go on"),
    ("?, h", "this help"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("CHANGES/S", "changes that the server has applied to its cache"),
    ("EVENTS/S, BYTES/S", "sent to watches, initial events and bookmarks included"),
    ("QUEUE", "events that wait, of those that fit; without a length: of the history"),
    ("LAG", "age of the oldest event that waits"),
    ("DROPS", "events lost under the policy DROP, since the start"),
    ("-", "not known yet: rates need two samples"),
];

// === impl State ===

impl State {
    /// Returns the heights of the tables, without their heads, in an area.
    pub(super) fn heights(&self, area: Rect) -> (usize, usize) {
        // The last line has the keys.
        let rows = area.height.saturating_sub(HEAD + 2 * TABLE_HEAD + 1);
        let most = (rows / 3).max(1);
        let resources = most.min(self.resources.len().max(1) as u16);
        (resources.into(), rows.saturating_sub(resources).into())
    }

    fn style(&self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => Style::new(),
            Tone::Warning if self.has_colors => Style::new().fg(Color::Yellow),
            Tone::Error if self.has_colors => Style::new().fg(Color::Red),
            Tone::Warning | Tone::Error => Style::new().add_modifier(Modifier::BOLD),
        }
    }
}

/// Draws the state.
pub(super) fn draw(state: &State, area: Rect, buffer: &mut Buffer) {
    if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
        let text = format!("needs {MIN_WIDTH}x{MIN_HEIGHT}, has {}x{}", area.width, area.height);
        return put(buffer, area, 0, &text, Style::new());
    }
    head(state, area, buffer);
    let body = Rect { y: area.y + HEAD, height: area.height - HEAD - 1, ..area };
    match &state.view {
        View::Tables => tables(state, body, buffer),
        View::Help => {
            let facts: Vec<_> = HELP.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
            page("Help", &facts, 0, body, buffer);
        }
        View::Details { subject, is_gone, scroll } => {
            let (mut title, facts) = details::facts(subject, state.now);
            if *is_gone {
                title.push_str(": has ended, these are its last figures");
            }
            page(&title, &facts, *scroll, body, buffer);
        }
    }
    foot(state, area, buffer);
}

fn head(state: &State, area: Rect, buffer: &mut Buffer) {
    let figures = &state.figures;
    let server = &figures.server;
    let up = age_of(server.started_at, state.now).map(|age| format!("  up {age}")).unwrap_or_default();
    let draining = if server.draining { "  shutting down" } else { "" };
    let title = format!("informerd top  {}  {}{up}{draining}", state.server, figures.version);
    put(buffer, area, 0, &title, Style::new().add_modifier(Modifier::BOLD));
    let parked: u64 = figures.resources.iter().map(|row| row.stats.parked).sum();
    let limit = Some(server.held_bytes_limit).filter(|limit| *limit > 0);
    let limit = limit.map(|limit| format!(" of {}", bytes(limit))).unwrap_or_default();
    let load = format!(
        "watches {}, parked {}  connections {}  memory {}  held {}{limit}",
        count(server.watchers),
        count(parked),
        count(server.connections),
        bytes(server.resident_bytes),
        bytes(server.held_bytes),
    );
    put(buffer, area, 1, &load, Style::new());
    let total = &figures.total;
    let over = figures.elapsed.map(|elapsed| format!("  over {:.1}s", elapsed.as_secs_f64())).unwrap_or_default();
    let rates = format!(
        "changes {}/s  events {}/s  sent {}/s  drops {}/s{over}",
        rate(total.changes),
        rate(total.events),
        byte_rate(total.bytes),
        rate(total.drops),
    );
    put(buffer, area, 2, &rates, Style::new());
    if let Some((message, tone)) = message(state) {
        put(buffer, area, 3, &message, state.style(tone).add_modifier(Modifier::REVERSED));
    }
}

/// Returns the message about figures that are not those of now.
fn message(state: &State) -> Option<(String, Tone)> {
    let age = state.figures.time.and_then(|time| state.now.duration_since(time).ok()).unwrap_or_default();
    if let Some(reason) = &state.outage {
        return Some((format!("OLD FIGURES, of {}s ago: {reason}", age.as_secs()), Tone::Error));
    }
    state.is_paused.then(|| (format!("PAUSED, figures of {}s ago; p goes on", age.as_secs()), Tone::Warning))
}

fn foot(state: &State, area: Rect, buffer: &mut Buffer) {
    let last = area.height - 1;
    if let Some((typed, _)) = &state.typed {
        let text = format!("filter: {}", escape(typed));
        // The end of a long text, where it is typed.
        let shown = tail(&text, area.width.saturating_sub(1).into());
        put(buffer, area, last, &format!("{shown}_"), Style::new().add_modifier(Modifier::BOLD));
        return;
    }
    let keys = match state.view {
        View::Tables => "q quit  Tab table  Enter details  / filter  s sort  r reverse  p pause  ? help",
        View::Help => "Esc back",
        View::Details { .. } => "Esc back  Up Down scroll  p pause",
    };
    let dim = if state.has_colors { Style::new().fg(Color::Cyan) } else { Style::new() };
    put(buffer, area, last, keys, dim);
}

fn tables(state: &State, area: Rect, buffer: &mut Buffer) {
    let (resources, watchers) = state.heights;
    let first = Rect { height: TABLE_HEAD + resources as u16, ..area };
    let second = Rect { y: area.y + first.height, height: TABLE_HEAD + watchers as u16, ..area };
    let hidden = Some(Key::Resource).filter(|_| !state.resource.is_empty());
    table(
        state,
        ("Resources", Focus::Resources),
        &state.resources,
        &state.figures.resources,
        None,
        first.intersection(area),
        buffer,
    );
    table(
        state,
        ("Watches", Focus::Watchers),
        &state.watchers,
        &state.figures.watchers,
        hidden,
        second.intersection(area),
        buffer,
    );
}

fn table<R: Row>(
    state: &State,
    (title, focus): (&str, Focus),
    list: &List<R>,
    rows: &[R],
    hidden: Option<Key>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let has_focus = state.focus == focus;
    let height = usize::from(area.height.saturating_sub(TABLE_HEAD));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    if has_focus {
        buffer.set_style(Rect { height: area.height.min(1), ..area }, bold.add_modifier(Modifier::REVERSED));
    }
    put(buffer, area, 0, &table_title(title, list, rows.len(), height), bold);
    let gap = if area.width < WIDE { 1 } else { 2 };
    let columns = list.columns(area.width, gap, hidden);
    let mut x = area.x;
    for (column, width) in &columns {
        let style = if column.key == list.sorted_by { bold.add_modifier(Modifier::UNDERLINED) } else { bold };
        put_cell(
            buffer,
            Rect { x, y: area.y + 1, width: *width, height: 1 }.intersection(area),
            column.header,
            is_left(column),
            style,
        );
        x += width + gap;
    }
    let selected = list.position(rows);
    for (line, row) in list.rows(rows).skip(list.offset).take(height).enumerate() {
        let y = area.y + TABLE_HEAD + line as u16;
        let mut x = area.x;
        for (column, width) in &columns {
            let (text, tone) = (column.cell)(row, state.now);
            put_cell(
                buffer,
                Rect { x, y, width: *width, height: 1 }.intersection(area),
                &text,
                is_left(column),
                state.style(tone),
            );
            x += width + gap;
        }
        if has_focus && list.offset + line == selected {
            buffer.set_style(Rect { y, height: 1, ..area }, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
}

fn is_left<R>(column: &super::columns::Column<R>) -> bool {
    column.is_text || matches!(column.key, Key::State | Key::Policy)
}

fn table_title<R: Row>(title: &str, list: &List<R>, all: usize, height: usize) -> String {
    let shown = list.len();
    let range = match shown {
        0 => "0".to_owned(),
        _ if shown <= height => shown.to_string(),
        _ => format!("{}-{} of {shown}", list.offset + 1, (list.offset + height).min(shown)),
    };
    let filtered = if list.filter.is_empty() { String::new() } else { format!(", of {all} with {:?}", list.filter) };
    let arrow = if list.is_descending() { "descending" } else { "ascending" };
    format!("{title}: {range}{filtered}, by {} {arrow}", list.sort_header())
}

/// Draws names and values, the values wrapped, from a line on.
fn page(title: &str, facts: &[(&str, String)], scroll: usize, area: Rect, buffer: &mut Buffer) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    buffer.set_style(Rect { height: 1, ..area }, bold.add_modifier(Modifier::REVERSED));
    let width = usize::from(area.width.saturating_sub(NAME_WIDTH));
    let lines: Vec<(&str, String)> = facts
        .iter()
        .flat_map(|(name, value)| {
            let parts = wrap(&escape(value), width);
            parts.into_iter().enumerate().map(move |(at, part)| (if at == 0 { *name } else { "" }, part))
        })
        .collect();
    let height = usize::from(area.height.saturating_sub(1));
    let first = scroll.min(lines.len().saturating_sub(height));
    let more = lines.len().saturating_sub(first + height);
    let more = if more > 0 { format!(" ({more} more below)") } else { String::new() };
    put(buffer, area, 0, &format!("{title}{more}"), bold);
    for (line, (name, value)) in lines.iter().skip(first).take(height).enumerate() {
        let y = area.y + 1 + line as u16;
        put_cell(buffer, Rect { y, width: NAME_WIDTH - 1, height: 1, ..area }, name, true, bold);
        let at = Rect { x: area.x + NAME_WIDTH, y, width: area.width - NAME_WIDTH, height: 1 };
        put_cell(buffer, at, value, true, Style::new());
    }
}

/// Writes a text into a line of an area.
fn put(buffer: &mut Buffer, area: Rect, line: u16, text: &str, style: Style) {
    let at = Rect { y: area.y + line, height: 1, ..area };
    put_cell(buffer, at.intersection(area), text, true, style);
}

/// Writes a text into a cell, at its left or right side; `…` stands for what does not fit.
fn put_cell(buffer: &mut Buffer, area: Rect, text: &str, is_left: bool, style: Style) {
    if area.is_empty() {
        return;
    }
    let text = cut(&escape(text), area.width.into());
    let x = if is_left { area.x } else { area.right() - (text.width() as u16).min(area.width) };
    buffer.set_stringn(x, area.y, &text, (area.right() - x).into(), style);
}

/// Returns the part of a text that fits, with `…` at its end if it is not all.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fitting = text.chars().take_while(|c| {
        let needed = c.width().unwrap_or_default();
        let fits = needed <= left;
        left = left.saturating_sub(needed);
        fits
    });
    fitting.chain(['…']).collect()
}

/// Returns the end of a text that fits.
fn tail(text: &str, width: usize) -> String {
    let mut left = width;
    let fitting: Vec<char> = text
        .chars()
        .rev()
        .take_while(|c| {
            let needed = c.width().unwrap_or_default();
            let fits = needed <= left;
            left = left.saturating_sub(needed);
            fits
        })
        .collect();
    fitting.into_iter().rev().collect()
}

/// Returns a text in lines of a width.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let (mut lines, mut left) = (vec![String::new()], width);
    for c in text.chars() {
        let needed = c.width().unwrap_or_default();
        if needed > left {
            lines.push(String::new());
            left = width;
        }
        left = left.saturating_sub(needed);
        lines.last_mut().expect("there is a first line").push(c);
    }
    lines
}

#[cfg(test)]
mod tests;
