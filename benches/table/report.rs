//! The printed report.

use std::fmt::{self, Display};

/// A table with rows and columns, in Markdown.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The first two columns are text, and the other columns are figures.
    pub(crate) fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[&dyn Display]) {
        self.rows.push(cells.iter().map(ToString::to_string).collect());
    }
}

const TEXTS: usize = 2;

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        for (at, row) in self.rows.iter().enumerate() {
            f.write_str("|")?;
            for (column, cell) in row.iter().enumerate() {
                let width = width(column);
                if column < TEXTS {
                    write!(f, " {cell:<width$} |")?;
                } else {
                    write!(f, " {cell:>width$} |")?;
                }
            }
            writeln!(f)?;
            if at == 0 {
                f.write_str("|")?;
                for column in 0..columns {
                    let end = if column < TEXTS { "-" } else { ":" };
                    write!(f, "{}{end}|", "-".repeat(width(column) + 1))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// All goals in one table, for the end of the report.
#[derive(Debug)]
pub(crate) struct Goals {
    table: Table,
}

impl Goals {
    pub(crate) fn new() -> Self {
        Self { table: Table::new(&["work", "measured", "goal"]) }
    }

    pub(crate) fn add(&mut self, work: impl Display, measured: impl Display, goal: &str) {
        self.table.row(&[&work, &measured, &goal]);
    }
}

impl Display for Goals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// A median, with the lowest and the highest value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
        Self { low: at(0.0), median: at(0.5), high: at(1.0) }
    }
}

/// Writes a spread as a ratio.
impl Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, median, high] = [self.low, self.median, self.high].map(digits);
        if low == high { f.pad(&median) } else { write!(f, "{median} ({low} … {high})") }
    }
}

/// Writes a figure with three significant digits.
pub(crate) fn digits(figure: f64) -> String {
    match figure {
        100.0.. => count(figure),
        10.0.. => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// Writes a number with separators.
pub(crate) fn count(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes nanoseconds with a suitable unit.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        1e9.. => format!("{} s", digits(ns / 1e9)),
        1e6.. => format!("{} ms", digits(ns / 1e6)),
        1e3.. => format!("{} us", digits(ns / 1e3)),
        _ => format!("{ns:.0} ns"),
    }
}

/// Writes the smallest and the largest value.
pub(crate) fn range((low, high): (f64, f64)) -> String {
    format!("{low:.2} … {high:.2}")
}
