//! Rows in columns: each as wide as its widest cell, three spaces between them, none at the end of a line.

use anstyle::{AnsiColor, Style};

use super::text::escape;
use crate::printers::values::NONE;

/// Cell with printable text: characters that would control a terminal are escaped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

/// Rows, including the header, aligned with each other.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

/// Widths of the columns.
///
/// Texts that are wider are cut, where the widths were limited.
#[derive(Debug, Default)]
pub(crate) struct Widths {
    columns: Vec<usize>,
    cuts: bool,
}

const GAP: usize = 3;
/// Least width that a column is cut to: numbers and words are not wider.
const MIN_CUT: usize = 10;

pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();

// === impl Cell ===

impl Cell {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: escape(text).into_owned(), style: Style::new() }
    }

    pub(crate) fn styled(text: &str, style: Style) -> Self {
        Self { style, ..Self::new(text) }
    }

    /// Returns the cell of a text that may be empty.
    pub(crate) fn or_none(text: &str) -> Self {
        Self::new(if text.is_empty() { NONE } else { text })
    }

    /// Returns the width in characters, which is exact except for East Asian and combining characters.
    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl Cell {
    /// Returns the cell with `…` at its end in place of what is beyond this width.
    fn cut(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let text = self.text.chars().take(width.saturating_sub(1)).chain(['…']).collect();
        Self { text, style: self.style }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text.as_ref())
    }
}

// === impl Table ===

impl Table {
    pub(crate) fn push<C: Into<Cell>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    pub(crate) fn widths(&self) -> Widths {
        let mut widths = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        Widths { columns: widths, cuts: false }
    }

    /// Appends all rows, in columns of these widths.
    pub(crate) fn write(&self, widths: &Widths, colors: bool, out: &mut String) {
        for row in &self.rows {
            widths.write(row, colors, out);
        }
    }
}

// === impl Widths ===

impl Widths {
    /// Returns these widths with a column of at least this width.
    pub(crate) fn at_least(mut self, column: usize, least: usize) -> Self {
        if let Some(width) = self.columns.get_mut(column) {
            *width = (*width).max(least);
        }
        self
    }

    /// Returns widths for lines of at most this width. The column of long texts, if there is one, becomes narrower, and after it the
    /// widest ones, down to [`MIN_CUT`].
    pub(crate) fn at_most(mut self, line: Option<usize>, long: Option<usize>) -> Self {
        let Some(line) = line else { return self };
        let gaps = self.columns.len().saturating_sub(1) * GAP;
        let mut over = (self.columns.iter().sum::<usize>() + gaps).saturating_sub(line);
        if let Some(width) = long.and_then(|long| self.columns.get_mut(long)) {
            let less = over.min(width.saturating_sub(MIN_CUT));
            (*width, over, self.cuts) = (*width - less, over - less, less > 0);
        }
        while over > 0
            && let Some(widest) = self.columns.iter_mut().max().filter(|widest| **widest > MIN_CUT)
        {
            (*widest, over, self.cuts) = (*widest - 1, over - 1, true);
        }
        self
    }

    /// Returns one line. A cell that is too wide is cut, or moves the rest to the right.
    fn write(&self, row: &[Cell], colors: bool, out: &mut String) {
        if self.cuts {
            let cut = |(cell, width): (&Cell, &usize)| cell.cut(*width);
            let row: Vec<Cell> = row.iter().zip(&self.columns).map(cut).collect();
            return Self { columns: self.columns.clone(), cuts: false }.write(&row, colors, out);
        }
        let end = row.iter().rposition(|cell| !cell.text.is_empty()).map_or(0, |last| last + 1);
        for (at, cell) in row[..end].iter().enumerate() {
            if colors && cell.style != Style::new() {
                out.push_str(&cell.style.render().to_string());
                out.push_str(&cell.text);
                out.push_str(&cell.style.render_reset().to_string());
            } else {
                out.push_str(&cell.text);
            }
            if at + 1 < end {
                let width = self.columns.get(at).copied().unwrap_or_default();
                out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width()) + GAP));
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: &Table, colors: bool) -> String {
        let mut out = String::new();
        table.write(&table.widths(), colors, &mut out);
        out
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_line_ends_with_blanks() {
        let mut table = Table::default();
        table.push(["NAMESPACE", "NAME", "APP"]);
        table.push(["shop", "web-with-a-long-name", ""]);
        table.push(["", "é", "x"]);
        assert_eq!(
            text(&table, false),
            "NAMESPACE   NAME                   APP\nshop        web-with-a-long-name\n            é                      x\n"
        );
    }

    #[test]
    fn a_color_does_not_change_the_width() {
        let mut table = Table::default();
        table.push([Cell::new("A"), Cell::new("B")]);
        table.push([Cell::styled("red", AnsiColor::Red.on_default()), Cell::new("x")]);
        assert_eq!(text(&table, true), "A     B\n\u{1b}[31mred\u{1b}[0m   x\n");
        assert_eq!(text(&table, false), "A     B\nred   x\n");
    }

    #[test]
    fn a_cell_cannot_act_on_the_terminal_or_begin_another_line() {
        let mut table = Table::default();
        table.push(["a\u{1b}[2Jb\nc\u{9b}\u{202e}d\te"]);
        assert_eq!(text(&table, true), "a\\u{1b}[2Jb\\nc\\u{9b}\\u{202e}d\\te\n");
    }

    #[test]
    fn the_widest_columns_are_cut_for_a_narrow_terminal() {
        let mut table = Table::default();
        table.push(["NAME", "INDEXES", "COUNT"]);
        table.push(["a-name-of-20-letters", "é,b,c,d,e,f,g,h,i,j,k,l,m", "1"]);
        let written = |width| {
            let mut out = String::new();
            table.write(&table.widths().at_most(width, None), false, &mut out);
            out
        };
        let whole = "\
NAME                   INDEXES                     COUNT
a-name-of-20-letters   é,b,c,d,e,f,g,h,i,j,k,l,m   1
";
        assert_eq!((written(None).as_str(), written(Some(56)).as_str()), (whole, whole));
        assert_eq!(
            written(Some(50)),
            "NAME                   INDEXES               COUNT\na-name-of-20-letters   é,b,c,d,e,f,g,h,i,…   1\n"
        );
        let narrow = "NAME         INDEXES      COUNT\na-name-of…   é,b,c,d,e…   1\n";
        assert_eq!(written(Some(10)), narrow, "not narrower than numbers");
        let mut out = String::new();
        table.write(&table.widths().at_most(Some(42), Some(0)), false, &mut out);
        assert_eq!(out.lines().nth(1), Some("a-name-of…   é,b,c,d,e,f,g,h,i,j,…   1"), "the long one first");
    }

    #[test]
    fn a_wider_later_cell_shifts_the_rest_of_its_row() {
        let mut first = Table::default();
        first.push(["NAME", "AGE"]);
        let widths = first.widths();
        let mut later = Table::default();
        later.push(["longer-name", "5s"]);
        let mut out = String::new();
        later.write(&widths, false, &mut out);
        assert_eq!(out, "longer-name   5s\n");
    }
}
