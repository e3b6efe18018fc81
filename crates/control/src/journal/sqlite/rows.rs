//! Rows of the tables: the records, which hold the JSON of [`mod@format`], and the balances.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

use evenkeel_core::convert::{exact, saturating};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use rusqlite::{Connection, Rows, Transaction, params};

use super::Fault;
use crate::credits::Stop;
use crate::journal::format::{self, FormatError};
use crate::journal::{Credits, Loaded, Revision, Subject, fill};
use crate::model::{Event, Model};
use crate::time::Moment;

/// The kinds of records that hold a point in time.
const STOP: &str = "stop";
const CLOCK: &str = "clock";

pub(super) fn store(tx: &Transaction<'_>, event: &Event) -> Result<(), Fault> {
    let (subject, is_there) = Subject::of(event);
    let (kind, id) = subject.kind_and_id();
    if is_there {
        let json = format::encode(event).map_err(|error| unreadable(kind, &id, error))?;
        return Ok(put(tx, kind, &id, &json)?);
    }
    delete(tx, kind, &id)?;
    if let Event::VolumeGone(_) | Event::HostGone(_) = event {
        tx.prepare_cached("DELETE FROM credits WHERE id = ?")?.execute([&id])?;
    }
    Ok(())
}

/// Stores when the server stopped cleanly, or that it did not.
pub(super) fn store_stop(tx: &Transaction<'_>, moment: Option<&Moment>) -> Result<(), Fault> {
    match moment {
        Some(moment) => store_moment(tx, STOP, moment),
        None => Ok(delete(tx, STOP, "")?),
    }
}

/// Stores the server's time.
pub(super) fn store_clock(tx: &Transaction<'_>, now: &Moment) -> Result<(), Fault> {
    store_moment(tx, CLOCK, now)
}

fn store_moment(tx: &Transaction<'_>, kind: &str, moment: &Moment) -> Result<(), Fault> {
    let json = format::encode_moment(moment).map_err(|error| unreadable(kind, "", error))?;
    Ok(put(tx, kind, "", &json)?)
}

/// Writes a record. An update instead of a replacement leaves the index as it is.
fn put(tx: &Transaction<'_>, kind: &str, id: &str, json: &str) -> rusqlite::Result<()> {
    let put = "INSERT INTO records VALUES (?, ?, ?)
        ON CONFLICT (kind, id) DO UPDATE SET json = excluded.json";
    tx.prepare_cached(put)?.execute([kind, id, json]).map(drop)
}

fn delete(tx: &Transaction<'_>, kind: &str, id: &str) -> rusqlite::Result<()> {
    let delete = "DELETE FROM records WHERE kind = ? AND id = ?";
    tx.prepare_cached(delete)?.execute([kind, id]).map(drop)
}

/// Returns whether the token exists.
pub(super) fn is_taken(tx: &Transaction<'_>, token: &str) -> rusqlite::Result<bool> {
    let (kind, id) = Subject::Token(token.to_owned()).kind_and_id();
    let mut find = tx.prepare_cached("SELECT 1 FROM records WHERE kind = ? AND id = ?")?;
    find.exists([kind, id.as_str()])
}

pub(super) fn store_credits(tx: &Transaction<'_>, credits: &Credits) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached("INSERT OR REPLACE INTO credits VALUES (?, ?, ?)")?;
    let volumes = credits.volumes.iter().map(|(id, balances)| (id.to_string(), balances));
    let hosts = credits.hosts.iter().map(|(id, balances)| (id.to_string(), balances));
    for (id, balances) in volumes.chain(hosts) {
        insert.execute(params![id, balances.operations.map(to_i64), balances.bytes.map(to_i64)])?;
    }
    Ok(())
}

fn load_credits(db: &Connection) -> Result<Credits, Fault> {
    let mut credits = Credits::default();
    let mut find = db.prepare("SELECT id, operations, bytes FROM credits")?;
    let mut rows = find.query([])?;
    while let Some(row) = rows.next()? {
        let id = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
        let amount =
            |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(to_u64));
        let balances = Balances { operations: amount(1)?, bytes: amount(2)? };
        if let Ok(volume) = id.parse::<VolumeId>() {
            credits.volumes.insert(volume, balances);
        } else if let Ok(host) = id.parse::<InstanceId>() {
            credits.hosts.insert(host, balances);
        } else {
            let why = "it is the id of no volume and of no host".to_owned();
            return Err(unreadable("credits", id, FormatError::Malformed(why)));
        }
    }
    Ok(credits)
}

pub(super) fn load(db: &Connection) -> Result<Loaded, Fault> {
    let mut model = Model::default();
    let mut stop = None;
    let mut clock = None;
    let mut find = db.prepare("SELECT kind, id, json FROM records")?;
    let mut rows = find.query([])?;
    let mut add = |decoded: Decoded| {
        decoded.events.into_iter().for_each(|event| fill(&mut model, event));
        stop = decoded.stop.or(stop.take());
        clock = decoded.clock.or(clock.take());
    };
    // Parsing takes most of a start with many objects, and this thread is busy with reading.
    let threads_max = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let mut decoding = VecDeque::with_capacity(threads_max);
        loop {
            let batch = next_batch(&mut rows)?;
            let is_last = batch.len() < BATCH_RECORDS;
            decoding.push_back(scope.spawn(move || decode_all(&batch)));
            while decoding.len() == threads_max || (is_last && !decoding.is_empty()) {
                let oldest = decoding.pop_front().expect("invariant: it is not empty");
                add(oldest.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            }
            if is_last {
                return Ok::<_, Fault>(());
            }
        }
    })?;
    model.reindex();
    let credits = load_credits(db)?;
    let revision = revision(db)?;
    let stop = stop.map_or(Stop::Crash, Stop::Clean);
    Ok(Loaded { model, credits, stop, clock, revision })
}

/// The number of records that one thread decodes: some megabytes of JSON.
pub(super) const BATCH_RECORDS: usize = 4_096;

/// A row of the table of records.
struct Row {
    kind: String,
    id: String,
    json: String,
}

/// The values of a batch of records.
#[derive(Default)]
struct Decoded {
    events: Vec<Event>,
    stop: Option<Moment>,
    clock: Option<Moment>,
}

impl Decoded {
    fn add(&mut self, row: &Row) -> Result<(), FormatError> {
        let json = row.json.as_bytes();
        match row.kind.as_str() {
            STOP => self.stop = Some(format::decode_moment(json)?),
            CLOCK => self.clock = Some(format::decode_moment(json)?),
            kind => {
                let event = format::decode(json)?;
                let (subject, is_there) = Subject::of(&event);
                let found = subject.kind_and_id();
                if !is_there || found.0 != kind || found.1 != row.id {
                    return Err(FormatError::Malformed(
                        "its value is of another object".to_owned(),
                    ));
                }
                self.events.push(event);
            }
        }
        Ok(())
    }
}

/// Returns the next rows; fewer than [`BATCH_RECORDS`] at the end.
fn next_batch(rows: &mut Rows<'_>) -> rusqlite::Result<Vec<Row>> {
    let mut batch = Vec::new();
    while batch.len() < BATCH_RECORDS {
        let Some(row) = rows.next()? else { break };
        batch.push(Row { kind: row.get(0)?, id: row.get(1)?, json: row.get(2)? });
    }
    Ok(batch)
}

fn decode_all(rows: &[Row]) -> Result<Decoded, Fault> {
    let mut decoded = Decoded::default();
    for row in rows {
        decoded.add(row).map_err(|error| unreadable(&row.kind, &row.id, error))?;
    }
    Ok(decoded)
}

/// Returns the journal's revision.
pub(super) fn revision(db: &Connection) -> rusqlite::Result<Revision> {
    let number = db.query_row("SELECT number FROM revision", [], |row| row.get::<_, i64>(0))?;
    Ok(Revision(to_u64(number)))
}

fn unreadable(kind: &str, id: &str, error: FormatError) -> Fault {
    Fault::Format(format!("{kind} {id}").trim_end().to_owned(), error)
}

/// Converts to SQLite's signed integers.
pub(super) fn to_i64(value: u64) -> i64 {
    exact(value, "no value of the model comes near 2^63")
}

/// Converts from SQLite's signed integers. A negative number is not written by the server, and
/// counts as 0.
fn to_u64(value: i64) -> u64 {
    saturating(value)
}
