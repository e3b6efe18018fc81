//! The screen: a summary, the table, and the keys. Only the rows that fit are drawn.

use clap::ValueEnum;
use evenkeel_client::output::{Item, is_colourful};
use evenkeel_client::top::{Row, Sort, sort};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row as TableRow, Table};

/// Width of each column of [`Row`]; the last one takes the rest.
const WIDTHS: [u16; 15] = [21, 8, 7, 10, 8, 11, 9, 9, 5, 11, 12, 10, 10, 16, 20];
/// Columns of numbers, which are aligned to the right.
const NUMBERS: std::ops::RangeInclusive<usize> = 2..=12;
/// The number of volumes in the summary of device time.
const HOLDERS_SHOWN: usize = 3;
/// Lines around the table: the summary above, the table's head, the keys below.
const OTHER_LINES: u16 = 4;

const KEYS: &str = "q quit  s/S sort by  r reverse  up down page-up page-down scroll";

/// The state of the screen.
pub struct View {
    endpoint: String,
    rows: Vec<Row>,
    sort: Sort,
    is_reversed: bool,
    /// The number of rows scrolled past.
    offset: usize,
    /// The number of rows that fit on the screen, as of the last drawing.
    page: usize,
    /// Error of the last attempt to read a sample.
    problem: Option<String>,
}

impl View {
    pub fn new(endpoint: &str, sort: Sort) -> Self {
        let endpoint = endpoint.to_owned();
        let rows = vec![];
        Self { endpoint, rows, sort, is_reversed: false, offset: 0, page: 1, problem: None }
    }

    /// Shows newer rows.
    pub fn update(&mut self, rows: Vec<Row>) {
        self.rows = rows;
        self.problem = None;
        self.arrange();
    }

    /// Shows why there are none.
    pub fn fail(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    pub fn sort_by_next(&mut self) {
        self.sort_by_other(1);
    }

    pub fn sort_by_previous(&mut self) {
        self.sort_by_other(Sort::value_variants().len() - 1);
    }

    fn sort_by_other(&mut self, places: usize) {
        let all = Sort::value_variants();
        let place = all.iter().position(|sort| *sort == self.sort).unwrap_or_default();
        self.sort = all[(place + places) % all.len()];
        self.arrange();
    }

    pub fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.arrange();
    }

    fn arrange(&mut self) {
        sort(&mut self.rows, self.sort);
        if self.is_reversed {
            self.rows.reverse();
        }
    }

    pub fn scroll(&mut self, rows: isize) {
        // Up to the last page; drawing adjusts it if the list or the screen changes.
        let last = self.rows.len().saturating_sub(self.page);
        self.offset = self.offset.saturating_add_signed(rows).min(last);
    }

    pub fn scroll_pages(&mut self, pages: isize) {
        self.scroll(pages.saturating_mul(self.page.cast_signed()));
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let height = frame.area().height;
        self.page = usize::from(height.saturating_sub(OTHER_LINES)).max(1);
        self.scroll(0);
        let parts = [Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)];
        let [above, table, below] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(self.summary(), above);
        frame.render_widget(self.table(table.width), table);
        frame.render_widget(self.footer(), below);
    }

    fn summary(&self) -> Text<'static> {
        let sum = |value: fn(&Row) -> Option<f64>| self.rows.iter().filter_map(value).sum::<f64>();
        let iops = sum(|row| row.iops);
        let bytes = sum(|row| row.bytes_per_second);
        let sort = self.sort.to_possible_value();
        let sort = sort.as_ref().map_or("", |value| value.get_name());
        let first = format!(
            "{}: {} volumes, {iops:.0} IOPS, {:.1} MiB/s; sorted by {sort}{}",
            self.endpoint,
            self.rows.len(),
            bytes / f64::from(1 << 20),
            if self.is_reversed { ", reversed" } else { "" },
        );
        Text::from(vec![Line::from(first), Line::from(self.holders())])
    }

    /// The volumes with the largest shares of device time.
    fn holders(&self) -> String {
        let mut holders: Vec<(f64, &str)> = self
            .rows
            .iter()
            .filter_map(|row| Some((row.device_share?, row.volume_id.as_str())))
            .filter(|(share, _)| *share >= 0.005)
            .collect();
        holders.sort_by(|a, b| b.0.total_cmp(&a.0));
        let texts: Vec<String> = holders
            .iter()
            .take(HOLDERS_SHOWN)
            .map(|(share, id)| format!("{id} {:.0}%", share * 100.0))
            .collect();
        let holders = if texts.is_empty() { "no volume".to_owned() } else { texts.join(", ") };
        format!("device held by: {holders}")
    }

    fn table(&self, width: u16) -> Table<'static> {
        let columns = columns_in(width);
        let line = |cells: Vec<String>| {
            let cells = cells.into_iter().enumerate().take(columns).map(|(column, cell)| {
                let line = Line::from(cell);
                if NUMBERS.contains(&column) { line.right_aligned() } else { line }
            });
            TableRow::new(cells.collect::<Vec<_>>())
        };
        let titles = Row::COLUMNS.iter().map(|title| (*title).to_owned()).collect();
        let shown = self.rows.iter().skip(self.offset).take(self.page);
        let rows = shown.map(|row| line(row.cells()));
        let widths = WIDTHS.into_iter().take(columns).enumerate().map(|(column, width)| {
            let is_last = column + 1 == WIDTHS.len();
            if is_last { Constraint::Min(width) } else { Constraint::Length(width) }
        });
        let head = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
        Table::new(rows.collect::<Vec<_>>(), widths).header(line(titles).style(head))
    }

    fn footer(&self) -> Line<'static> {
        match &self.problem {
            None => Line::from(KEYS),
            Some(problem) => {
                let red =
                    if is_colourful(true) { Style::new().fg(Color::Red) } else { Style::new() };
                Line::styled(format!("no newer sample: {problem}; trying again"), red)
            }
        }
    }
}

/// The number of columns that fit; at least the volume's id.
fn columns_in(width: u16) -> usize {
    let mut used = 0;
    let mut fits = |column: &u16| {
        used += column + 1;
        used <= width + 1
    };
    WIDTHS.iter().copied().take_while(|width| fits(width)).count().max(1)
}
