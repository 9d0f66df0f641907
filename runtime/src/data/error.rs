use std::io;
use std::path::PathBuf;

use jiff::civil::Date;
use thiserror::Error;

/// What can be wrong with market data or with the folds asked of it.
///
/// Each message says where (file, line, column, text) and what to do. A `row` is the line of the file as an editor
/// counts it, the header being line 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be opened or read.
    #[error("{path}: cannot be read ({source}); check the path, which is relative to the working directory")]
    Read {
        /// The path as given.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file is in an encoding other than UTF-8 that can be named.
    #[error("{path}: is {encoding}; save it as UTF-8")]
    Encoding {
        /// The file.
        path: PathBuf,
        /// The encoding found, such as `UTF-16 (little endian)`.
        encoding: &'static str,
    },
    /// A byte sequence is not UTF-8.
    #[error("{path}:{row}: holds bytes that are not UTF-8; save the file as UTF-8")]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Line of the first such byte.
        row: usize,
    },
    /// The file has no bytes, or only blank ones.
    #[error("{path}: is empty; it needs a header line and one line a day")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file has a header and no bar.
    #[error("{path}: has a header and no rows; add one line a day, oldest first")]
    HeaderOnly {
        /// The file.
        path: PathBuf,
    },
    /// A column that bars need is not in the header.
    #[error("{path}:1: has no column `{column}`; the header reads {found}; name the column, separated by commas")]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The column looked for.
        column: &'static str,
        /// The header as read.
        found: String,
    },
    /// Two columns of the header have one name.
    #[error("{path}:1: has two columns `{column}`; remove or rename one")]
    RepeatedColumn {
        /// The file.
        path: PathBuf,
        /// The name they share.
        column: &'static str,
    },
    /// A row has more or fewer cells than the header.
    #[error(
        "{path}:{row}: has {found} cells where the header has {expected}; put a number with commas in quotes, and close each quote"
    )]
    Ragged {
        /// The file.
        path: PathBuf,
        /// The line.
        row: usize,
        /// Cells in the header.
        expected: usize,
        /// Cells in the row.
        found: usize,
    },
    /// A cell cannot be used.
    #[error("{path}:{row}: column `{column}` holds {text:?}, {problem}")]
    Cell {
        /// The file.
        path: PathBuf,
        /// The line.
        row: usize,
        /// The column.
        column: &'static str,
        /// The cell's text, shortened if long.
        text: String,
        /// What is wrong and the cure.
        problem: &'static str,
    },
    /// A day's high is below its low.
    #[error("{path}:{row}: column `high` holds {high}, below {low} in column `low`; correct or remove the row")]
    HighBelowLow {
        /// The file.
        path: PathBuf,
        /// The line.
        row: usize,
        /// The high.
        high: f64,
        /// The low.
        low: f64,
    },
    /// A date does not come after the one before it.
    #[error(
        "{path}:{row}: column `{column}` holds {date}, not after {earlier_date} in row {earlier_row}; sort the rows oldest first, one a day"
    )]
    Order {
        /// The file.
        path: PathBuf,
        /// The line out of order.
        row: usize,
        /// The date column's name.
        column: &'static str,
        /// Its date.
        date: Date,
        /// The line before it.
        earlier_row: usize,
        /// That line's date.
        earlier_date: Date,
    },
    /// A name is none of the features.
    #[error("no feature is named {text:?}; the features are {known}")]
    UnknownFeature {
        /// The name given.
        text: String,
        /// The names there are.
        known: String,
    },
    /// A list of features is empty or names one twice.
    #[error("the list of features [{found}] is empty or repeats one; name each feature once")]
    FeatureList {
        /// The list given.
        found: String,
    },
    /// Volatility over fewer than two returns has no sample standard deviation.
    #[error("a label horizon of {horizon} days has no volatility; use 2 days or more")]
    Horizon {
        /// The horizon given, days.
        horizon: usize,
    },
    /// There are too few bars for one row.
    #[error(
        "{path}: {bars} bars are too few: features need {warm_up} days before a row and labels {horizon} after it, so {needed} at least; add days"
    )]
    TooFewBars {
        /// The file.
        path: PathBuf,
        /// Bars read.
        bars: usize,
        /// Days of history a row needs.
        warm_up: usize,
        /// Days a label looks ahead.
        horizon: usize,
        /// Bars needed for one row.
        needed: usize,
    },
    /// Folds need two spans or more: one to train on, one to test on.
    #[error("{spans} spans give no fold; use 2 or more")]
    TooFewSpans {
        /// Spans asked for.
        spans: usize,
    },
    /// The purge is shorter than the labels' horizon, so training labels would see the test span.
    #[error("a purge of {purge} rows lets labels of {horizon} days reach into the test span; purge {horizon} or more")]
    Leak {
        /// Purge asked for, rows.
        purge: usize,
        /// Days a label looks ahead.
        horizon: usize,
    },
    /// A window of no bars holds nothing.
    #[error("a window of 0 bars holds nothing; use 1 or more")]
    EmptyWindow,
    /// A fold has too few training rows for one window.
    #[error(
        "{path}: fold {fold} has {found} training rows ({rows} rows in all, less purge {purge} and embargo {embargo}), fewer than the {needed} of one window; add days or shorten the window"
    )]
    TooFewRows {
        /// The file.
        path: PathBuf,
        /// The fold, from 1.
        fold: usize,
        /// Training rows it has.
        found: usize,
        /// Rows of all spans.
        rows: usize,
        /// Rows purged.
        purge: usize,
        /// Rows embargoed.
        embargo: usize,
        /// Rows one window needs.
        needed: usize,
    },
}
