//! State of the screen: figures, tables, and the keys that change them.

use std::time::SystemTime;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    columns::{Key, Row},
    list::List,
    sample::{Figures, ResourceFigures, WatcherFigures},
};

/// Everything that is drawn.
#[derive(Debug)]
pub(super) struct State {
    /// Address of the server.
    pub(super) server: String,
    /// The only resource; empty for all.
    pub(super) resource: String,
    pub(super) has_colors: bool,
    pub(super) now: SystemTime,
    pub(super) figures: Figures,
    /// Reason why the figures are old.
    pub(super) outage: Option<String>,
    pub(super) is_paused: bool,
    pub(super) focus: Focus,
    pub(super) view: View,
    /// Text of the filter while it is typed, and the filter before.
    pub(super) typed: Option<(String, String)>,
    pub(super) resources: List<ResourceFigures>,
    pub(super) watchers: List<WatcherFigures>,
    /// Rows of the tables on the screen.
    pub(super) heights: (usize, usize),
}

/// Table that the keys are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Focus {
    Resources,
    Watchers,
}

/// Content of the screen.
#[derive(Debug, Clone)]
pub(super) enum View {
    Tables,
    Help,
    /// Details of a row, by its last figures.
    Details {
        subject: Subject,
        is_gone: bool,
        scroll: usize,
    },
}

/// Row whose details are shown.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Resource(Box<ResourceFigures>),
    Watcher(Box<WatcherFigures>),
}

/// Longest filter.
const MAX_FILTER: usize = 200;

// === impl State ===

impl State {
    pub(super) fn new(server: String, resource: &str, sorted_by: Option<Key>) -> Self {
        Self {
            server,
            resource: resource.to_owned(),
            has_colors: true,
            now: SystemTime::now(),
            figures: Figures::default(),
            outage: None,
            is_paused: false,
            focus: Focus::Watchers,
            view: View::Tables,
            typed: None,
            resources: List::new(sorted_by),
            watchers: List::new(sorted_by),
            heights: (0, 0),
        }
    }

    /// Replaces the figures, unless the screen is paused.
    pub(super) fn show(&mut self, figures: Figures) {
        self.outage = None;
        if self.is_paused {
            return;
        }
        self.figures = figures;
        self.arrange();
        let Figures { resources, watchers, .. } = &self.figures;
        if let View::Details { subject, is_gone, .. } = &mut self.view {
            *is_gone = match subject {
                Subject::Resource(shown) => replace(shown, resources),
                Subject::Watcher(shown) => replace(shown, watchers),
            };
        }
    }

    /// Marks the figures as old.
    pub(super) fn fail(&mut self, reason: String) {
        self.outage = Some(reason);
    }

    fn arrange(&mut self) {
        self.resources.arrange(&self.figures.resources);
        self.watchers.arrange(&self.figures.watchers);
    }

    /// Scrolls for tables of these heights.
    pub(super) fn fit(&mut self, heights: (usize, usize)) {
        self.heights = heights;
        self.resources.fit(&self.figures.resources, heights.0);
        self.watchers.fit(&self.figures.watchers, heights.1);
    }

    /// Handles a key. Returns true if it ends the program.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c'));
        }
        if self.typed.is_some() {
            self.type_filter(key.code);
            return false;
        }
        match (&mut self.view, key.code) {
            (View::Tables, KeyCode::Char('q')) => return true,
            (View::Tables, code) => self.press_in_tables(code),
            (_, KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | '?') | KeyCode::Backspace) => {
                self.view = View::Tables;
            }
            (_, KeyCode::Char('p' | ' ')) => self.is_paused = !self.is_paused,
            (View::Details { scroll, .. }, code) => {
                *scroll = match code {
                    KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => *scroll + 1,
                    KeyCode::PageUp => scroll.saturating_sub(10),
                    KeyCode::PageDown => *scroll + 10,
                    KeyCode::Home | KeyCode::Char('g') => 0,
                    _ => *scroll,
                }
            }
            (View::Help, _) => {}
        }
        false
    }

    fn press_in_tables(&mut self, code: KeyCode) {
        match code {
            KeyCode::Tab | KeyCode::BackTab => {
                self.focus = match self.focus {
                    Focus::Resources => Focus::Watchers,
                    Focus::Watchers => Focus::Resources,
                };
            }
            KeyCode::Char('?' | 'h') => self.view = View::Help,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.typed = Some((self.filter().clone(), self.filter().clone())),
            KeyCode::Esc => {
                self.filter_mut().clear();
                self.arrange();
            }
            KeyCode::Char('s') | KeyCode::Right => self.sort(|list| list.sort_by_next(1), |list| list.sort_by_next(1)),
            KeyCode::Char('S') | KeyCode::Left => self.sort(|list| list.sort_by_next(-1), |list| list.sort_by_next(-1)),
            KeyCode::Char('r') => self.sort(List::reverse, List::reverse),
            KeyCode::Up | KeyCode::Char('k') => self.select(|place, _| place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|place, _| place + 1),
            KeyCode::PageUp => self.select(usize::saturating_sub),
            KeyCode::PageDown => self.select(|place, height| place + height),
            KeyCode::Home | KeyCode::Char('g') => self.select(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(|_, _| usize::MAX),
            KeyCode::Enter => self.open(),
            _ => {}
        }
    }

    fn sort(&mut self, resources: fn(&mut List<ResourceFigures>), watchers: fn(&mut List<WatcherFigures>)) {
        match self.focus {
            Focus::Resources => resources(&mut self.resources),
            Focus::Watchers => watchers(&mut self.watchers),
        }
        self.arrange();
    }

    /// Moves the selection of the table, by the place of its row and the height of the table.
    fn select(&mut self, to: fn(usize, usize) -> usize) {
        fn select<R: Row>(list: &mut List<R>, rows: &[R], to: fn(usize, usize) -> usize, height: usize) {
            let place = to(list.position(rows), height);
            list.select(rows, place);
        }
        match self.focus {
            Focus::Resources => select(&mut self.resources, &self.figures.resources, to, self.heights.0),
            Focus::Watchers => select(&mut self.watchers, &self.figures.watchers, to, self.heights.1),
        }
    }

    /// Shows the details of the selected row.
    fn open(&mut self) {
        let subject = match self.focus {
            Focus::Resources => {
                let selected = self.resources.selected(&self.figures.resources);
                selected.map(|row| Subject::Resource(Box::new(row.clone())))
            }
            Focus::Watchers => {
                let selected = self.watchers.selected(&self.figures.watchers);
                selected.map(|row| Subject::Watcher(Box::new(row.clone())))
            }
        };
        if let Some(subject) = subject {
            self.view = View::Details { subject, is_gone: false, scroll: 0 };
        }
    }

    fn filter(&self) -> &String {
        match self.focus {
            Focus::Resources => &self.resources.filter,
            Focus::Watchers => &self.watchers.filter,
        }
    }

    fn filter_mut(&mut self) -> &mut String {
        match self.focus {
            Focus::Resources => &mut self.resources.filter,
            Focus::Watchers => &mut self.watchers.filter,
        }
    }

    /// Handles a key while a filter is typed, which applies at once.
    fn type_filter(&mut self, code: KeyCode) {
        let Some((mut text, before)) = self.typed.take() else { return };
        let (applied, is_typed) = match code {
            KeyCode::Esc => (before.clone(), false),
            KeyCode::Enter => (text.clone(), false),
            KeyCode::Backspace => {
                text.pop();
                (text.clone(), true)
            }
            KeyCode::Char(c) if text.chars().count() < MAX_FILTER => {
                text.push(c);
                (text.clone(), true)
            }
            _ => (text.clone(), true),
        };
        *self.filter_mut() = applied;
        self.typed = is_typed.then_some((text, before));
        self.arrange();
    }
}

/// Replaces a row by that of the same identity; returns true if there is none.
fn replace<R: Row + Clone>(shown: &mut Box<R>, rows: &[R]) -> bool {
    let Some(row) = rows.iter().find(|row| row.id() == shown.id()) else { return true };
    shown.clone_from(&Box::new(row.clone()));
    false
}
