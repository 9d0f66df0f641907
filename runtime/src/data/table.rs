use std::path::Path;

use csv::{ErrorKind, ReaderBuilder, StringRecord};

use super::DataError;

/// Longest cell text that an error quotes: an unclosed quote can swallow the rest of the file.
const QUOTED_CHARS: usize = 40;

/// The text of one CSV file: a header and its records, all strings, so that no type is guessed from early rows.
pub(super) struct Table<'a> {
    path: &'a Path,
    text: &'a str,
    header: Vec<String>,
    records: Vec<StringRecord>,
}

/// A column found by name.
#[derive(Clone, Copy)]
pub(super) struct ColumnIndex {
    pub(super) name: &'static str,
    index: usize,
}

impl<'a> Table<'a> {
    pub(super) fn parse(path: &'a Path, bytes: &'a [u8]) -> Result<Self, DataError> {
        let text = decode(path, bytes)?;
        if text.trim().is_empty() {
            return Err(DataError::Empty { path: path.into() });
        }
        let mut reader = ReaderBuilder::new().from_reader(text.as_bytes());
        let header = reader.headers().map_err(|error| read_error(path, text, &error))?;
        let header = header.iter().map(canonical).collect();
        let records: Result<Vec<_>, _> = reader.records().collect();
        let records = records.map_err(|error| read_error(path, text, &error))?;
        if records.is_empty() {
            return Err(DataError::HeaderOnly { path: path.into() });
        }
        Ok(Self { path, text, header, records })
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The one column that has any of `names`; the first of them stands in the error.
    pub(super) fn column(&self, names: &[&'static str]) -> Result<ColumnIndex, DataError> {
        self.find(names)?.ok_or_else(|| DataError::MissingColumn {
            path: self.path.into(),
            column: names[0],
            found: format!("{:?}", self.header.join(",")),
        })
    }

    pub(super) fn find(&self, names: &[&'static str]) -> Result<Option<ColumnIndex>, DataError> {
        let mut found = self.header.iter().enumerate().filter_map(|(index, title)| {
            let name = names.iter().find(|name| *name == title)?;
            Some(ColumnIndex { name, index })
        });
        match (found.next(), found.next()) {
            (_, Some(second)) => Err(DataError::RepeatedColumn { path: self.path.into(), column: second.name }),
            (first, None) => Ok(first),
        }
    }

    pub(super) fn cell(&self, record: usize, column: ColumnIndex) -> &str {
        self.records[record].get(column.index).unwrap_or_default().trim()
    }

    pub(super) fn number(&self, record: usize, column: ColumnIndex) -> Result<f64, DataError> {
        number(self.cell(record, column)).map_err(|problem| self.refuse(record, column, problem))
    }

    pub(super) fn refuse(&self, record: usize, column: ColumnIndex, problem: &'static str) -> DataError {
        let text = self.cell(record, column).chars().take(QUOTED_CHARS).collect();
        DataError::Cell { path: self.path.into(), row: self.row(record), column: column.name, text, problem }
    }

    /// The line of the file that a record starts on.
    pub(super) fn row(&self, record: usize) -> usize {
        let byte = self.records[record].position().map_or(0, csv::Position::byte);
        line_at(self.text.as_bytes(), byte as usize)
    }
}

/// UTF-8 text without its byte-order mark.
fn decode<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    if let Some(encoding) = foreign_encoding(bytes) {
        return Err(DataError::Encoding { path: path.into(), encoding });
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    std::str::from_utf8(bytes)
        .map_err(|error| DataError::NotUtf8 { path: path.into(), row: line_at(bytes, error.valid_up_to()) })
}

/// Names UTF-16 and UTF-32, by mark or, without one, by the zero byte that pads the first ASCII letter.
fn foreign_encoding(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => Some("UTF-32"),
        [0xFF, 0xFE, ..] | [1..=255, 0, ..] => Some("UTF-16 (little endian)"),
        [0xFE, 0xFF, ..] | [0, 1..=255, ..] => Some("UTF-16 (big endian)"),
        _ => None,
    }
}

/// `Adj Close` and `adj_close` are one name.
fn canonical(title: &str) -> String {
    title.trim().to_lowercase().replace([' ', '-'], "_")
}

/// Counts lines ourselves: the reader's position stands before the line feed of a CRLF and before blank lines.
fn line_at(bytes: &[u8], byte: usize) -> usize {
    let blank = |b: &&u8| matches!(b, b'\r' | b'\n');
    let start = byte.min(bytes.len());
    let start = start + bytes[start..].iter().take_while(blank).count();
    1 + bytes[..start].iter().filter(|b| **b == b'\n').count()
}

fn read_error(path: &Path, text: &str, error: &csv::Error) -> DataError {
    let row = error.position().map_or(1, |at| line_at(text.as_bytes(), at.byte() as usize));
    match *error.kind() {
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            DataError::Ragged { path: path.into(), row, expected: expected_len as usize, found: len as usize }
        }
        // The text is UTF-8 in memory, so nothing else can arise; this stays true whatever a later reader adds.
        _ => DataError::NotUtf8 { path: path.into(), row },
    }
}

/// A finite decimal; commas only where they part thousands, as in `1,049.34`.
fn number(text: &str) -> Result<f64, &'static str> {
    if text.is_empty() {
        return Err("which is empty: fill it in or remove the row");
    }
    let plain = without_thousands(text).ok_or(NOT_A_NUMBER)?;
    let value: f64 = plain.parse().map_err(|_| NOT_A_NUMBER)?;
    if value.is_finite() { Ok(value) } else { Err("which is not finite: give a value or remove the row") }
}

const NOT_A_NUMBER: &str = "which is not a number: write it as 1049.34 or \"1,049.34\"";

/// The text less its commas, if each parts a full group of three digits before the decimal point.
fn without_thousands(text: &str) -> Option<String> {
    if !text.contains(',') {
        return Some(text.to_owned());
    }
    let whole = text.split('.').next()?.trim_start_matches(['+', '-']);
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let digits = |group: &str| group.bytes().all(|b| b.is_ascii_digit());
    let legal = (1..=3).contains(&first.len()) && digits(first) && groups.all(|g| g.len() == 3 && digits(g));
    let decimals = text.split_once('.').map_or("", |(_, rest)| rest);
    (legal && !decimals.contains(',')).then(|| text.replace(',', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_or_refused() {
        for (text, value) in
            [("1e5", 1e5), ("1,049.34", 1049.34), ("12,345,678", 12_345_678.0), ("+3", 3.0), ("-1", -1.0)]
        {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        for text in ["", "NaN", "inf", "1e999", "n/a", "1,5", "1049,34", "1.5,000", "1,049,3", ",1", "1_0", "0x10", "-"]
        {
            assert!(number(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lines_are_counted_past_line_ends_and_blank_lines() {
        assert_eq!(line_at(b"a\r\nb\r\n\r\nc", 1), 2);
        assert_eq!(line_at(b"a\r\nb\r\n\r\nc", 4), 4);
        assert_eq!(line_at(b"a", 9), 1);
    }
}
