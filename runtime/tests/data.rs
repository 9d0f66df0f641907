//! Reading bars: what is accepted, and what each refusal says.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use proptest::prelude::*;
use unio::data::{Bars, DataError};

const HEADER: &str = "date,open,high,low,close,adj_close,volume\n";
const DAY_1: &str = "2020-01-02,10,12,9,11,11,100\n";
const DAY_2: &str = "2020-01-03,11,13,10,12,12,200\n";

fn read(text: impl AsRef<[u8]>) -> Result<Bars, DataError> {
    Bars::parse("a.csv", text.as_ref())
}

/// The message of a refusal, which must name the file.
fn refusal(text: impl AsRef<[u8]>) -> String {
    let message = read(text).unwrap_err().to_string();
    assert!(message.starts_with("a.csv"), "{message}");
    message
}

fn with_row(row: &str) -> String {
    format!("{HEADER}{DAY_1}{row}\n")
}

fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(bytes).collect()
}

#[test]
fn plain_bars_are_read() {
    let bars = read(format!("{HEADER}{DAY_1}{DAY_2}")).unwrap();
    assert_eq!(bars.len(), 2);
    assert_eq!(bars.dates()[1].to_string(), "2020-01-03");
    assert_eq!((bars.open(), bars.high(), bars.low()), (&[10.0, 11.0][..], &[12.0, 13.0][..], &[9.0, 10.0][..]));
    assert_eq!((bars.close(), bars.volume()), (&[11.0, 12.0][..], &[100.0, 200.0][..]));
}

#[test]
fn columns_go_by_name_and_others_are_ignored() {
    let text = "note,Volume, Close ,LOW,High,Open,Time,dt\nx,7,11,9,12,10,2020-01-02 16:00:00,-4\n";
    let bars = read(text).unwrap();
    assert_eq!((bars.open()[0], bars.high()[0], bars.low()[0], bars.close()[0]), (10.0, 12.0, 9.0, 11.0));
    assert_eq!((bars.volume()[0], bars.return_close()[0]), (7.0, 11.0));
}

#[test]
fn returns_are_of_adjusted_closes_where_there_are_any() {
    let bars = read("date,open,high,low,close,Adj Close,volume\n2020-01-02,10,12,9,11,5.5,100\n").unwrap();
    assert_eq!((bars.close(), bars.return_close()), (&[11.0][..], &[5.5][..]));
}

#[test]
fn byte_order_mark_and_crlf_change_nothing() {
    let plain = format!("{HEADER}{DAY_1}{DAY_2}");
    let windows = format!("\u{FEFF}{}", plain.replace('\n', "\r\n"));
    assert_eq!(read(&windows).unwrap(), read(&plain).unwrap());
    assert_eq!(read(plain.trim_end()).unwrap(), read(&plain).unwrap());
}

#[test]
fn rows_are_counted_as_an_editor_does() {
    let text = format!("\u{FEFF}{HEADER}{DAY_1}\n\n2020-01-03,1,2,1,x,1,1\n");
    assert!(refusal(&text).starts_with("a.csv:5: column `close` holds \"x\""));
    assert!(refusal(text.replace('\n', "\r\n")).starts_with("a.csv:5: column `close` holds \"x\""));
}

#[test]
fn dates_may_carry_a_time() {
    for date in ["2020-01-03", "2020-01-03T00:00:00", "2020-01-03 00:00:00-05:00", "2020-01-03T00:00:00Z"] {
        let bars = read(with_row(&format!("{date},1,2,1,1,1,1"))).unwrap();
        assert_eq!(bars.dates()[1].to_string(), "2020-01-03", "{date}");
    }
    for date in ["", "03/01/2020", "2020-13-01", "1577836800", "tomorrow", "2020-02-30"] {
        let message = refusal(with_row(&format!("{date},1,2,1,1,1,1")));
        assert!(
            message.starts_with(&format!("a.csv:3: column `date` holds {date:?}, which is not a date")),
            "{message}"
        );
    }
}

#[test]
fn foreign_encodings_are_refused_by_name() {
    let text = format!("{HEADER}{DAY_1}");
    for mark in ["", "\u{FEFF}"] {
        let little = utf16(&format!("{mark}{text}"), u16::to_le_bytes);
        let big = utf16(&format!("{mark}{text}"), u16::to_be_bytes);
        assert_eq!(refusal(little), "a.csv: is UTF-16 (little endian); save it as UTF-8");
        assert_eq!(refusal(big), "a.csv: is UTF-16 (big endian); save it as UTF-8");
    }
    let latin = [with_row("2020-01-03,1,2,1,").trim_end().as_bytes(), b"\xE9,1,1\n"].concat();
    assert_eq!(refusal(latin), "a.csv:3: holds bytes that are not UTF-8; save the file as UTF-8");
}

#[test]
fn numbers_may_be_scientific_or_have_quoted_thousands() {
    let bars = read(with_row("2020-01-03,\"1,049.34\",1e5,1.5E2, 1200 ,+7,\"3,442,870,000\"")).unwrap();
    assert_eq!((bars.open()[1], bars.high()[1], bars.low()[1], bars.close()[1]), (1049.34, 1e5, 150.0, 1200.0));
    assert_eq!(bars.volume()[1], 3_442_870_000.0);
}

#[test]
fn a_type_is_not_guessed_from_early_rows() {
    let rows: String = (1..=28).map(|day| format!("2021-01-{day:02},1,2,1,1,1,1\n")).collect();
    let bars = read(format!("{HEADER}{rows}2021-02-01,1.5,2.5,1.25,1e0,1,1.75\n")).unwrap();
    assert_eq!((bars.open()[28], bars.volume()[28]), (1.5, 1.75));
    let message = refusal(format!("{HEADER}{rows}2021-02-01,1,2,1,one,1,1\n"));
    assert!(message.starts_with("a.csv:30: column `close` holds \"one\", which is not a number"), "{message}");
}

#[test]
fn cells_that_are_no_number_are_refused_with_their_place() {
    for (cell, said) in [
        ("", "holds \"\", which is empty"),
        ("   ", "holds \"\", which is empty"),
        ("NaN", "holds \"NaN\", which is not finite"),
        ("-inf", "holds \"-inf\", which is not finite"),
        ("1e999", "holds \"1e999\", which is not finite"),
        ("null", "holds \"null\", which is not a number"),
        ("\"1,5\"", "holds \"1,5\", which is not a number"),
        ("\"10,49.34\"", "holds \"10,49.34\", which is not a number"),
        ("0", "holds \"0\", which is not above zero"),
        ("-3", "holds \"-3\", which is not above zero"),
    ] {
        let message = refusal(with_row(&format!("2020-01-03,1,2,{cell},1,1,1")));
        assert!(message.starts_with(&format!("a.csv:3: column `low` {said}")), "{message}");
    }
}

#[test]
fn volume_may_be_zero_but_not_negative() {
    assert_eq!(read(with_row("2020-01-03,1,2,1,1,1,0")).unwrap().volume()[1], 0.0);
    let message = refusal(with_row("2020-01-03,1,2,1,1,1,-1"));
    assert!(message.starts_with("a.csv:3: column `volume` holds \"-1\", which is below zero"), "{message}");
}

#[test]
fn files_without_bars_are_refused() {
    for blank in ["", "\n\n", "\u{FEFF}", " \r\n"] {
        assert_eq!(refusal(blank), "a.csv: is empty; it needs a header line and one line a day");
    }
    assert_eq!(refusal(HEADER), "a.csv: has a header and no rows; add one line a day, oldest first");
    assert_eq!(refusal(HEADER.trim_end()), refusal(HEADER));
}

#[test]
fn headers_that_lack_or_repeat_a_column_are_refused() {
    for column in ["date", "open", "high", "low", "close", "volume"] {
        let header = HEADER.replacen(column, "other", 1);
        let message = refusal(format!("{header}{DAY_1}"));
        assert!(message.starts_with(&format!("a.csv:1: has no column `{column}`; the header reads ")), "{message}");
        assert!(message.contains("other"), "{message}");
    }
    let twice = refusal("date,open,high,low,close,Close,volume\n2020-01-02,1,1,1,1,1,1\n");
    assert_eq!(twice, "a.csv:1: has two columns `close`; remove or rename one");
    assert!(refusal("date;open;high;low;close;volume\n").contains("no rows"));
    assert!(refusal("date;open\n2020-01-02;1\n").contains("separated by commas"));
}

#[test]
fn rows_of_another_length_are_refused() {
    let message = refusal(with_row("2020-01-03,1,049.34,2,1,1,1,1"));
    assert!(message.starts_with("a.csv:3: has 8 cells where the header has 7"), "{message}");
    assert!(refusal(with_row("2020-01-03,1")).starts_with("a.csv:3: has 2 cells"));
    assert!(refusal(with_row(&format!("2020-01-03,\"1,2,1,1,1,1\n{DAY_2}"))).starts_with("a.csv:3: has 2 cells"));
}

#[test]
fn an_unclosed_quote_is_quoted_in_short() {
    let message = refusal(with_row(&format!("2020-01-03,1,2,1,1,1,\"1\n{}", DAY_2.repeat(100))));
    assert!(message.starts_with("a.csv:3: column `volume` holds \"1\\n2020") && message.len() < 200, "{message}");
}

#[test]
fn a_high_below_its_low_is_refused() {
    let message = refusal(with_row("2020-01-03,1,1.5,2,1,1,1"));
    assert!(message.starts_with("a.csv:3: column `high` holds 1.5, below 2 in column `low`"), "{message}");
}

#[test]
fn unsorted_and_repeated_days_are_refused_with_both_rows() {
    let unsorted = refusal(format!("{HEADER}{DAY_2}{DAY_1}"));
    let said = "a.csv:3: column `date` holds 2020-01-02, not after 2020-01-03 in row 2";
    assert!(unsorted.starts_with(said), "{unsorted}");
    let repeated = refusal(format!("{HEADER}{DAY_1}\n{DAY_1}"));
    let said = "a.csv:4: column `date` holds 2020-01-02, not after 2020-01-02 in row 2";
    assert!(repeated.starts_with(said), "{repeated}");
}

#[test]
fn gaps_are_calendar_days() {
    let row = |date: &str| format!("{date},1,2,1,1,1,1\n");
    let days = ["2020-02-27", "2020-02-28", "2020-03-02", "2020-03-03", "2021-03-03"].map(row).concat();
    assert_eq!(read(format!("{HEADER}{days}")).unwrap().day_gaps(), [1.0, 1.0, 3.0, 1.0, 365.0]);
}

#[test]
fn a_missing_file_or_a_folder_is_one_clear_error() {
    let message = Bars::read("no/such.csv").unwrap_err().to_string();
    assert!(message.starts_with("no/such.csv: cannot be read (") && message.contains("check the path"), "{message}");
    assert!(matches!(Bars::read(env!("CARGO_MANIFEST_DIR")), Err(DataError::Read { .. })));
}

#[test]
fn shipped_files_are_read_whole() {
    for (name, unrecorded) in [("sp500", 0), ("nasdaq", 2)] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs/data");
        let bars = Bars::read(folder.join(name).with_extension("csv")).unwrap();
        assert_eq!(bars.len(), 5031);
        assert!(bars.day_gaps().iter().all(|gap| (1.0..=7.0).contains(gap)));
        assert_eq!(bars.volume().iter().filter(|volume| **volume == 0.0).count(), unrecorded);
    }
}

proptest! {
    // Beside an integration test there is no place to keep failures in.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Bars::parse("a.csv", &bytes);
        let _ = Bars::parse("a.csv", &[HEADER.as_bytes(), DAY_1.as_bytes(), &bytes].concat());
    }

    #[test]
    fn no_cell_makes_it_panic(cells in prop::collection::vec("[-+0-9.,eEnaif\"\r\n ]{0,8}", 0..9)) {
        let _ = read(with_row(&cells.join(",")));
    }
}
