//! Rows of the tables: the records, which hold the JSON of [`mod@format`], and the balances.

use evenkeel_core::convert::{exact, saturating};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use rusqlite::{Connection, Transaction, params};

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
    let mut stop = Stop::Crash;
    let mut clock = None;
    let mut find = db.prepare("SELECT kind, id, json FROM records")?;
    let mut rows = find.query([])?;
    while let Some(row) = rows.next()? {
        let text = |column| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
        let kind = text(0)?;
        let id = text(1)?;
        let json = text(2)?.as_bytes();
        let unreadable = |error| unreadable(kind, id, error);
        match kind {
            STOP => stop = Stop::Clean(format::decode_moment(json).map_err(unreadable)?),
            CLOCK => clock = Some(format::decode_moment(json).map_err(unreadable)?),
            _ => {
                let event = format::decode(json).map_err(unreadable)?;
                let (subject, is_there) = Subject::of(&event);
                let found = subject.kind_and_id();
                if !is_there || (found.0, found.1.as_str()) != (kind, id) {
                    let why = "its value is of another object".to_owned();
                    return Err(unreadable(FormatError::Malformed(why)));
                }
                fill(&mut model, event);
            }
        }
    }
    model.reindex();
    let credits = load_credits(db)?;
    let revision = revision(db)?;
    Ok(Loaded { model, credits, stop, clock, revision })
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
