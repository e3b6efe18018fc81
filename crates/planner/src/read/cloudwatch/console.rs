//! Reads the table that CloudWatch's console saves as CSV.
//!
//! It begins with rows of labels. Their titles have changed over time, so each column is identified
//! by the names of a metric, a volume and a statistic in any of its labels. Values begin with the
//! first row that begins with a time.

use std::io::BufRead;

use super::{Named, Series, Statistic, assemble, volume_in};
use crate::read::collect::too_many_intervals;
use crate::read::lines::{Lines, cells};
use crate::read::numbers::{decimal, time};
use crate::read::{Broken, Hints, INTERVALS_TOTAL_MAX, Read};

/// Maximum number of rows before the values.
const LABEL_ROWS_MAX: usize = 64;

/// Reads a table.
///
/// # Errors
/// Returns [`Broken`] if a row is invalid, or if no column is of a volume's metric.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut labels: Vec<Vec<String>> = Vec::new();
    let mut columns: Option<Vec<Option<Series>>> = None;
    let mut has_zone = true;
    let mut points = 0;
    while let Some((number, line)) = lines.next()? {
        let (cells, _) = cells(line, ',');
        let Some(first) = cells.first().filter(|_| !line.trim().is_empty()) else { continue };
        let Some(time) = time(first) else {
            if columns.is_some() || labels.len() >= LABEL_ROWS_MAX {
                let expected = "a time in the first column, as 2026/11/25 19:00:00";
                return Err(Broken::at(number, line, expected));
            }
            labels.push(cells);
            continue;
        };
        has_zone &= time.has_zone;
        if columns.is_none() {
            columns = Some(columns_of(&labels, number)?);
        }
        let values = cells.iter().skip(1);
        for (cell, series) in values.zip(columns.iter_mut().flatten()) {
            let Some(series) = series else { continue };
            let cell = cell.trim();
            if cell.is_empty() {
                continue;
            }
            let value = decimal(cell).ok_or_else(|| {
                Broken::at(number, cell, "a number, or nothing where there is no value")
            })?;
            points += 1;
            if points > INTERVALS_TOTAL_MAX {
                return Err(too_many_intervals(&series.place));
            }
            series.points.push((time.unix_ms, value));
        }
    }
    let Some(columns) = columns else {
        return Err(Broken::whole("no values", "rows that begin with a time"));
    };
    let mut traces =
        assemble(columns.into_iter().flatten().collect(), period(&labels), true, hints)?;
    if !has_zone {
        let remark = "the times have no zone; they are read as UTC";
        for trace in &mut traces {
            trace.notes.push(crate::trace::Note::Remark(remark.to_owned()));
        }
    }
    Ok(traces)
}

/// Returns the series of each column after the times; `None` for a column without a metric of a
/// volume.
fn columns_of(labels: &[Vec<String>], number: u64) -> Result<Vec<Option<Series>>, Broken> {
    let width = labels.iter().map(Vec::len).max().unwrap_or(0);
    let series = |column: usize| {
        let words: Vec<&str> =
            labels.iter().filter_map(|row| row.get(column)).map(String::as_str).collect();
        let all = words.join(" ");
        let named = Named::find(&all)?;
        Some(Series {
            named,
            volume: volume_in(&all, named).map(str::to_owned),
            statistic: Statistic::find(&all),
            place: all,
            points: Vec::new(),
        })
    };
    let columns: Vec<Option<Series>> = (1..width).map(series).collect();
    for (at, later) in columns.iter().enumerate() {
        let Some(later) = later else { continue };
        let is_same = |other: &Series| {
            (other.named, &other.volume, other.statistic)
                == (later.named, &later.volume, later.statistic)
        };
        if columns.iter().take(at).flatten().any(is_same) {
            let expected = "each metric of a volume in one column: another one has these labels";
            return Err(Broken::at(number, &later.place, expected));
        }
    }
    if columns.iter().all(Option::is_none) {
        let expected = "labels above the values that name a metric, as VolumeReadOps";
        return Err(Broken::at(number, "no metric of a volume", expected));
    }
    Ok(columns)
}

/// Returns the period, if a row of labels has the same one for all columns.
fn period(labels: &[Vec<String>]) -> Option<u64> {
    let row = labels.iter().find(|row| row.first().is_some_and(|name| name.trim() == "Period"))?;
    let mut seconds = row.iter().skip(1).filter_map(|cell| cell.trim().parse::<u64>().ok());
    let first = seconds.next()?;
    seconds.all(|other| other == first).then_some(first.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_what_the_columns_are() {
        let text = include_str!("../../../samples/cloudwatch_console.csv");
        let traces = read(&mut text.as_bytes(), &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one volume") };
        assert_eq!(trace.name, "vol-0123456789abcdef0");
        assert_eq!((trace.intervals.len(), trace.intervals[0].length_ms), (5, 300_000));
        assert_eq!((trace.intervals[1].reads, trace.intervals[1].writes), (3_001, 900));
        assert_eq!(trace.partial().count(), 1);
    }

    #[test]
    fn a_column_that_is_there_twice_is_refused() {
        let label = "vol-0123456789abcdef0 VolumeReadOps Sum";
        let text = format!("Label,{label},{label}\n2026/11/25 19:00:00,1,1\n");
        let broken = read(&mut text.as_bytes(), &Hints::default()).unwrap_err();
        assert_eq!((broken.line, broken.found.as_str()), (Some(2), label));
    }

    #[test]
    fn quotes_hold_commas() {
        assert_eq!(cells(r#"a,"b,""c""",,d"#, ',').0, ["a", "b,\"c\"", "", "d"]);
    }
}
