//! Daily price bars, read from a CSV file and checked.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::civil::Date;

use super::DataError;
use super::table::{ColumnIndex, Table};

const DATE_NAMES: [&str; 4] = ["date", "time", "datetime", "timestamp"];

/// Daily bars of one instrument, oldest first: every series has [`Bars::len`] values.
///
/// Held for sure: at least one bar; dates strictly rising; prices finite and above zero; high not below low; volume
/// finite and not negative (0 stands for "not recorded", as vendors write it).
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    path: PathBuf,
    dates: Vec<Date>,
    open: Vec<f64>,
    high: Vec<f64>,
    low: Vec<f64>,
    close: Vec<f64>,
    adj_close: Option<Vec<f64>>,
    volume: Vec<f64>,
}

impl Bars {
    /// Reads a CSV file with a header that names, in any order and case, `date` (or `time`, `datetime`, `timestamp`),
    /// `open`, `high`, `low`, `close`, `volume` and perhaps `adj_close`; other columns are ignored.
    ///
    /// Dates are ISO 8601 (a time of day is dropped); numbers may have an exponent, or commas between thousands inside
    /// quotes; a UTF-8 byte-order mark and CRLF line ends are accepted.
    ///
    /// # Errors
    /// The first thing wrong, with its file, row, column and text; see [`DataError`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| DataError::Read { path: path.into(), source })?;
        Self::parse(path, &bytes)
    }

    /// [`Bars::read`] for bytes at hand; `path` only names them in errors.
    ///
    /// # Errors
    /// As [`Bars::read`].
    pub fn parse(path: impl AsRef<Path>, bytes: &[u8]) -> Result<Self, DataError> {
        let path = path.as_ref();
        let table = Table::parse(path, bytes)?;
        let date = table.column(&DATE_NAMES)?;
        let [open, high, low, close] = ["open", "high", "low", "close"].map(|name| table.column(&[name]));
        let adj_close = table.find(&["adj_close", "adjusted_close"])?;
        let volume = table.column(&["volume"])?;
        let bars = Self {
            path: path.into(),
            dates: dates(&table, date)?,
            open: prices(&table, open?)?,
            high: prices(&table, high?)?,
            low: prices(&table, low?)?,
            close: prices(&table, close?)?,
            adj_close: adj_close.map(|column| prices(&table, column)).transpose()?,
            volume: volumes(&table, volume)?,
        };
        bars.check_order(path, &table, date)?;
        bars.check_ranges(path, &table)?;
        Ok(bars)
    }

    /// The file they were read from, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of bars, at least one.
    #[expect(clippy::len_without_is_empty, reason = "bars are never empty")]
    pub fn len(&self) -> usize {
        self.dates.len()
    }

    /// Trading days.
    pub fn dates(&self) -> &[Date] {
        &self.dates
    }

    /// Opening prices.
    pub fn open(&self) -> &[f64] {
        &self.open
    }

    /// Highest prices.
    pub fn high(&self) -> &[f64] {
        &self.high
    }

    /// Lowest prices.
    pub fn low(&self) -> &[f64] {
        &self.low
    }

    /// Closing prices as traded.
    pub fn close(&self) -> &[f64] {
        &self.close
    }

    /// Closing prices that returns are taken of: adjusted for splits and dividends where the file says so.
    pub fn return_close(&self) -> &[f64] {
        self.adj_close.as_deref().unwrap_or(&self.close)
    }

    /// Volumes traded; 0 where none was recorded.
    pub fn volume(&self) -> &[f64] {
        &self.volume
    }

    /// Days since the bar before, by the calendar: at least 1, 3 over a weekend; the first bar has none and reads 1.
    ///
    /// Whole, finite and positive because the dates strictly rise.
    pub fn day_gaps(&self) -> Vec<f64> {
        let gap = |pair: &[Date]| pair[0].duration_until(pair[1]).as_hours() as f64 / 24.0;
        std::iter::once(1.0).chain(self.dates.windows(2).map(gap)).collect()
    }

    fn check_order(&self, path: &Path, table: &Table<'_>, column: ColumnIndex) -> Result<(), DataError> {
        let Some(at) = self.dates.windows(2).position(|pair| pair[0] >= pair[1]) else {
            return Ok(());
        };
        Err(DataError::Order {
            path: path.into(),
            row: table.row(at + 1),
            column: column.name,
            date: self.dates[at + 1],
            earlier_row: table.row(at),
            earlier_date: self.dates[at],
        })
    }

    fn check_ranges(&self, path: &Path, table: &Table<'_>) -> Result<(), DataError> {
        let Some(at) = (0..self.len()).find(|&at| self.high[at] < self.low[at]) else {
            return Ok(());
        };
        let (high, low) = (self.high[at], self.low[at]);
        Err(DataError::HighBelowLow { path: path.into(), row: table.row(at), high, low })
    }
}

fn dates(table: &Table<'_>, column: ColumnIndex) -> Result<Vec<Date>, DataError> {
    let problem = "which is not a date: write it as 2018-12-31";
    let date = |row| {
        // A civil date is no instant, so jiff refuses the mark of UTC; a daily bar only wants the day.
        let text = table.cell(row, column).trim_end_matches(['Z', 'z']);
        text.parse().map_err(|_| table.refuse(row, column, problem))
    };
    (0..table.len()).map(date).collect()
}

fn prices(table: &Table<'_>, column: ColumnIndex) -> Result<Vec<f64>, DataError> {
    let problem = "which is not above zero: correct the price or remove the row";
    numbers(table, column, problem, |price| price > 0.0)
}

fn volumes(table: &Table<'_>, column: ColumnIndex) -> Result<Vec<f64>, DataError> {
    let problem = "which is below zero: correct the volume, or write 0 where none was recorded";
    numbers(table, column, problem, |volume| volume >= 0.0)
}

fn numbers(
    table: &Table<'_>,
    column: ColumnIndex,
    problem: &'static str,
    legal: fn(f64) -> bool,
) -> Result<Vec<f64>, DataError> {
    let cell = |row| match table.number(row, column)? {
        value if legal(value) => Ok(value),
        _ => Err(table.refuse(row, column, problem)),
    };
    (0..table.len()).map(cell).collect()
}

#[cfg(test)]
impl Bars {
    /// The first `count` bars.
    pub(super) fn first(mut self, count: usize) -> Self {
        self.dates.truncate(count);
        self.columns().into_iter().for_each(|column| column.truncate(count));
        self
    }

    /// These bars up to `from`, those of `other` from there on.
    pub(super) fn with_tail_of(mut self, other: &Self, from: usize) -> Self {
        let mut other = other.clone();
        for (mine, theirs) in self.columns().into_iter().zip(other.columns()) {
            mine[from..].copy_from_slice(&theirs[from..]);
        }
        self
    }

    fn columns(&mut self) -> [&mut Vec<f64>; 5] {
        [&mut self.open, &mut self.high, &mut self.low, &mut self.close, &mut self.volume]
    }
}
