//! Screens as a user sees them, in a terminal in memory.

use std::time::{Duration, SystemTime};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use prost_types::Timestamp;
use ratatui::{Terminal, backend::TestBackend};

use super::*;
use crate::{
    cli::top::sample::{Figures, ResourceFigures, ResourceRates, WatcherFigures},
    proto::pb,
};

const NOW: Duration = Duration::from_secs(1_000_000_000);

fn seconds_ago(seconds: u64) -> Timestamp {
    Timestamp { seconds: (NOW.as_secs() - seconds).cast_signed(), nanos: 0 }
}

fn resource(name: &str, state: pb::SyncState, objects: u64, changes: f64) -> ResourceFigures {
    ResourceFigures {
        resource: pb::Resource {
            name: name.to_owned(),
            source: "kube".to_owned(),
            state: state.into(),
            objects,
            watchers: objects / 20,
            source_seen_at: Some(seconds_ago(3)),
            ..Default::default()
        },
        stats: pb::ResourceStats {
            resource: name.to_owned(),
            cache_bytes: objects * 1500,
            history_bytes: 1 << 20,
            parked: u64::from(changes > 1.0),
            max_lag: Some(prost_types::Duration { seconds: 0, nanos: 42_000_000 }),
            ..Default::default()
        },
        rates: ResourceRates {
            changes: Some(changes),
            events: Some(changes * 500.0),
            bytes: Some(changes * 600_000.0),
            drops: Some(0.0),
        },
    }
}

fn watch(id: u64) -> WatcherFigures {
    let is_parked = id % 400 == 7;
    let (state, lag) = match id % 100 {
        _ if is_parked => (pb::WatcherState::Parked, 75_000),
        3 => (pb::WatcherState::Blocking, 1_250),
        _ => (pb::WatcherState::Live, 0),
    };
    let policies = [pb::FullChannelPolicy::Replay, pb::FullChannelPolicy::Drop, pb::FullChannelPolicy::Coalesce];
    WatcherFigures {
        watcher: pb::Watcher {
            id,
            resource: if id.is_multiple_of(3) { "deployments" } else { "pods" }.to_owned(),
            peer: format!("10.244.{}.{}:40{id:03}", id % 5, id % 200),
            identity: if id.is_multiple_of(10) { "system:serviceaccount:shop:cart".to_owned() } else { String::new() },
            selection: if id.is_multiple_of(2) {
                String::new()
            } else {
                format!("labels=app=web-{id}, fields=spec.nodeName=n{id}")
            },
            policy: policies[(id % 3) as usize].into(),
            queue_length: 1024,
            queued: if is_parked { 0 } else { id as u32 % 50 },
            parked: is_parked,
            state: state.into(),
            lag: Some(prost_types::Duration { seconds: lag / 1000, nanos: (lag % 1000 * 1_000_000) as i32 }),
            dropped: if id % 50 == 1 { id * 1000 } else { 0 },
            bytes_held: id * 700,
            since: Some(seconds_ago(id * 60)),
            ..Default::default()
        },
        events: Some((id * 7 % 1000) as f64 / 10.0),
        bytes: Some((id * 7 % 1000) as f64 * 130.0),
    }
}

fn figures(watches: u64) -> Figures {
    let resources = vec![
        resource("deployments", pb::SyncState::Synced, 2_400, 0.4),
        resource("pods", pb::SyncState::Stale, 18_000, 24.0),
    ];
    Figures {
        time: Some(SystemTime::UNIX_EPOCH + NOW),
        elapsed: Some(Duration::from_secs(2)),
        version: "0.1.0".to_owned(),
        server: pb::ServerStats {
            started_at: Some(seconds_ago(11_520)),
            connections: 412,
            watchers: watches,
            held_bytes: 3 << 20,
            held_bytes_limit: 256 << 20,
            resident_bytes: 145 << 20,
            ..Default::default()
        },
        resources,
        watchers: (1..=watches).map(watch).collect(),
        total: ResourceRates { changes: Some(24.4), events: Some(12_200.0), bytes: Some(1.5e7), drops: Some(0.0) },
    }
}

fn state(figures: Figures) -> State {
    let mut state = State::new("informerd.shop.svc:50051".to_owned(), "", None);
    state.show(figures);
    state
}

fn press(state: &mut State, keys: &[KeyCode]) {
    for key in keys {
        assert!(!state.press(KeyEvent::new(*key, KeyModifiers::NONE)), "{key:?}");
    }
}

fn type_text(state: &mut State, text: &str) {
    let keys: Vec<_> = text.chars().map(KeyCode::Char).collect();
    press(state, &keys);
}

/// Draws a state, and returns its lines without the blanks at their ends.
fn drawn(state: &mut State, width: u16, height: u16) -> Vec<String> {
    state.now = SystemTime::UNIX_EPOCH + NOW + Duration::from_secs(1);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    draw_in(&mut terminal, state)
}

fn draw_in(terminal: &mut Terminal<TestBackend>, state: &mut State) -> Vec<String> {
    terminal
        .draw(|frame| {
            let area = frame.area();
            state.fit(state.heights(area));
            draw(state, area, frame.buffer_mut());
        })
        .unwrap();
    let buffer = terminal.backend().buffer();
    let (width, height) = (buffer.area.width, buffer.area.height);
    // The cell after a wide character is a part of it, and has a blank.
    let line = |y| {
        let (mut line, mut skip) = (String::new(), 0);
        for x in 0..width {
            let symbol = buffer[(x, y)].symbol();
            if skip == 0 {
                line.push_str(symbol);
                skip = symbol.width().saturating_sub(1);
            } else {
                skip -= 1;
            }
        }
        assert!(line.width() <= usize::from(width), "{line:?}");
        line.trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

#[track_caller]
fn check(lines: &[String], expected: &str) {
    let expected: Vec<&str> = expected.lines().collect();
    assert!(lines == expected, "the screen is\n{}", lines.join("\n"));
}

#[test]
fn a_thousand_watches_in_80x24() {
    check(&drawn(&mut state(figures(1000)), 80, 24), include_str!("tests/80x24.txt"));
}

#[test]
fn a_thousand_watches_in_140x40() {
    let mut state = state(figures(1000));
    press(&mut state, &[KeyCode::Char('/')]);
    type_text(&mut state, "web-");
    press(&mut state, &[KeyCode::Enter, KeyCode::Char('s'), KeyCode::Char('r'), KeyCode::PageDown, KeyCode::Down]);
    check(&drawn(&mut state, 140, 40), include_str!("tests/140x40.txt"));
}

#[test]
fn the_details_of_a_watch_stay_when_it_has_ended() {
    let mut state = state(figures(10));
    press(&mut state, &[KeyCode::End, KeyCode::Enter]);
    check(&drawn(&mut state, 80, 24), include_str!("tests/details.txt"));
    state.show(figures(0));
    let lines = drawn(&mut state, 80, 24);
    assert_eq!(lines[4], "Watch 1 of pods: has ended, these are its last figures");
    assert!(lines.iter().any(|line| line == "Policy            DROP"), "{lines:#?}");
    press(&mut state, &[KeyCode::Esc, KeyCode::Tab, KeyCode::Down, KeyCode::Enter]);
    let lines = drawn(&mut state, 80, 22);
    assert_eq!((&*lines[4], &*lines[5]), ("Resource pods (1 more below)", "Source            kube"));
    press(&mut state, &[KeyCode::PageDown, KeyCode::PageDown]);
    assert_eq!(drawn(&mut state, 80, 22)[4], "Resource pods", "it cannot be scrolled beyond the end");
}

#[test]
fn the_last_figures_stay_while_the_server_is_away() {
    let mut state = state(figures(3));
    let before = drawn(&mut state, 80, 24);
    state.fail("the connection to informerd.shop.svc:50051 broke".to_owned());
    let lines = drawn(&mut state, 80, 24);
    assert_eq!(lines[3], "OLD FIGURES, of 1s ago: the connection to informerd.shop.svc:50051 broke");
    assert_eq!((&lines[..3], &lines[4..]), (&before[..3], &before[4..]));
    state.show(figures(3));
    assert_eq!(drawn(&mut state, 80, 24), before);
    press(&mut state, &[KeyCode::Char('p')]);
    state.show(figures(9));
    assert_eq!(drawn(&mut state, 80, 24)[3], "PAUSED, figures of 1s ago; p goes on");
    press(&mut state, &[KeyCode::Char(' ')]);
    state.show(figures(9));
    assert_eq!(drawn(&mut state, 80, 24)[1].split("  ").next(), Some("watches 9, parked 1"));
}

#[test]
fn hostile_text_stays_in_its_cell() {
    let hostile = [
        "\u{1b}[2J\u{1b}[1;1Hx",
        "a\nb\r\tc\u{7}\u{9b}31m",
        "\u{202e}gnp.exe\u{2066}",
        "漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字",
        "e\u{301}\u{301}\u{301}\u{301}e\u{200b}\u{200d}x",
        "👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦",
        "\u{feff}\u{2028}\u{2029}",
        "",
    ];
    let mut figures = figures(8);
    for (row, text) in figures.watchers.iter_mut().zip(hostile) {
        let watcher = &mut row.watcher;
        for field in [&mut watcher.peer, &mut watcher.selection, &mut watcher.resource, &mut watcher.user_agent] {
            text.clone_into(field);
        }
    }
    for (row, text) in figures.resources.iter_mut().zip(&hostile[3..]) {
        (*text).clone_into(&mut row.resource.name);
    }
    figures.version = hostile[0].to_owned();
    let expected = drawn(&mut state(self::figures(8)), 140, 30);
    let mut state = state(figures);
    state.server = hostile[1].to_owned();
    for (width, height) in [(140, 30), (80, 24), (40, 12)] {
        let lines = drawn(&mut state, width, height);
        let is_safe = |c: char| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c) && c != '\u{2028}';
        assert!(lines.iter().all(|line| line.chars().all(is_safe)), "{lines:#?}");
    }
    // The cells to the right of the texts are where they are without these.
    let lines = drawn(&mut state, 140, 30);
    let end = |line: &String| line.chars().rev().take(12).collect::<String>();
    assert_eq!(lines[10..].iter().map(end).collect::<Vec<_>>(), expected[10..].iter().map(end).collect::<Vec<_>>());
    for keys in [[KeyCode::Enter, KeyCode::Esc], [KeyCode::Char('/'), KeyCode::Char('\u{202e}')]] {
        press(&mut state, &keys[..1]);
        drawn(&mut state, 80, 24);
        press(&mut state, &keys[1..]);
        drawn(&mut state, 80, 24);
    }
}

#[test]
fn the_filter_applies_while_it_is_typed() {
    let mut state = state(figures(30));
    press(&mut state, &[KeyCode::Char('/')]);
    type_text(&mut state, "CARTx");
    let lines = drawn(&mut state, 80, 24);
    assert_eq!(
        (&*lines[8], &*lines[23]),
        ("Watches: 0, of 30 with \"CARTx\", by EVENTS/S descending", "filter: CARTx_")
    );
    press(&mut state, &[KeyCode::Backspace]);
    assert_eq!(drawn(&mut state, 80, 24)[8], "Watches: 3, of 30 with \"CART\", by EVENTS/S descending");
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!(drawn(&mut state, 80, 24)[8], "Watches: 1-13 of 30, by EVENTS/S descending");
    press(&mut state, &[KeyCode::Char('/')]);
    type_text(&mut state, "q");
    press(&mut state, &[KeyCode::Enter, KeyCode::Esc]);
    assert_eq!(drawn(&mut state, 80, 24)[8], "Watches: 1-13 of 30, by EVENTS/S descending", "q was text");
    assert!(state.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
    press(&mut state, &[KeyCode::Char('?')]);
    assert!(drawn(&mut state, 80, 24)[5].starts_with("Tab               other table"));
    assert!(state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), "from everywhere");
}

#[test]
fn every_size_can_be_drawn_and_a_terminal_can_change_its_own() {
    let mut state = state(figures(1000));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    for view in [None, Some(KeyCode::Enter), Some(KeyCode::Char('?'))] {
        press(&mut state, view.as_slice());
        for width in [1, 17, 39, 40, 41, 79, 100, 233] {
            for height in [1, 2, 11, 12, 13, 24, 60] {
                terminal.backend_mut().resize(width, height);
                let lines = draw_in(&mut terminal, &mut state);
                assert_eq!(lines.len(), usize::from(height));
            }
        }
        press(&mut state, &[KeyCode::Esc, KeyCode::End]);
    }
    assert_eq!(drawn(&mut state, 30, 10)[0], "needs 40x12, has 30x10");
}

#[test]
fn only_rows_on_the_screen_are_formatted() {
    thread_local!(static FORMATTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
    struct Counted(u64);
    impl Row for Counted {
        const COLUMNS: &'static [super::super::columns::Column<Self>] = &[super::super::columns::Column {
            key: Key::Id,
            header: "ID",
            width: 5,
            is_text: false,
            rank: 0,
            cell: |row, _| {
                FORMATTED.set(FORMATTED.get() + 1);
                (row.0.to_string(), Tone::Plain)
            },
            order: |one, other| one.0.cmp(&other.0),
        }];
        const SORTED_BY: Key = Key::Id;
        type Id = u64;

        fn id(&self) -> u64 {
            self.0
        }

        fn matches(&self, _filter: &str) -> bool {
            true
        }
    }
    let rows: Vec<_> = (0..100_000).map(Counted).collect();
    let mut list = List::new(None);
    list.arrange(&rows);
    list.select(&rows, 50_000);
    list.fit(&rows, 18);
    let area = Rect::new(0, 0, 80, 20);
    let mut buffer = Buffer::empty(area);
    table(&state(figures(0)), ("Rows", Focus::Watchers), &list, &rows, None, area, &mut buffer);
    assert_eq!(FORMATTED.get(), 18);
}
