//! The journal of one server on one machine: one SQLite file. Only this module and its submodules
//! use SQL. `sqlite/schema.sql` has the tables, `sqlite/rows.rs` reads and writes their rows.
//!
//! The state is the last event of each object, as JSON, under its kind and id, as in etcd. Views
//! show it in columns. A file of another form is refused and stays unchanged.
//!
//! Every change is one transaction that is synced before the call returns. So every reply that a
//! client has received survives kill -9 and power loss. Users may read the file with `sqlite3`
//! while the server runs.
//!
//! **On a full disk** a server must still start, and volumes must still be detached and deleted, or
//! the disk would stay full for ever. Three measures keep room for that:
//!
//! 1. When the file is opened, log and database are grown to hold some hundred further changes. The
//!    log is overwritten from its beginning; free pages are used before the file grows.
//! 2. If the log cannot grow, its content is moved into the database's pages and it is reused.
//! 3. A file beside the database ([`ballast`]) is removed while the server starts, and for a change
//!    that leads to free space.

pub mod ballast;
mod rows;

use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, params};

use self::ballast::Ballast;
use super::format::{FORM, FormatError};
use super::watch::{Watch, Watchers};
use super::{Change, Journal, JournalError, Loaded, Revision};
use crate::model::{Attachment, AttachmentState, Event, Phase, SnapshotPhase, Volume};

/// Room that log and database keep for some hundred changes on a full disk.
const ROOM_BYTES: u64 = 512 << 10;

/// The tables of form [`FORM`], whose number is in the file's `user_version`.
const SCHEMA: &str = include_str!("sqlite/schema.sql");

/// The open file.
#[derive(Debug)]
pub struct SqliteJournal {
    path: PathBuf,
    connection: Connection,
    /// Disk space that is freed for changes that free more; `None` for a database without a file.
    ballast: Option<Ballast>,
    /// Whether this server has committed a change; after that the ballast is kept.
    has_committed: bool,
    watchers: Watchers,
}

/// Why a transaction failed.
enum Fault {
    Sqlite(rusqlite::Error),
    /// The journal is at this revision, not at the expected one.
    Conflict(Revision),
    TokenTaken(String),
    /// A record of this name cannot be read or written.
    Format(String, FormatError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl SqliteJournal {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// [`JournalError::OtherForm`], [`JournalError::NoRoom`], [`JournalError::Failed`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let mut ballast = Ballast::released(path);
        let connection = match Connection::open(path) {
            Ok(connection) => connection,
            Err(error) => return Err(failed(path, error)),
        };
        if let Err(error) = prepare(path, &connection) {
            if let JournalError::OtherForm(_) = error {
                ballast.keep();
            }
            return Err(error);
        }
        let mut journal = Self::over(path, connection, Some(ballast));
        journal.keep_room();
        Ok(journal)
    }

    /// Creates a database without a file.
    #[cfg(test)]
    pub fn in_memory() -> Self {
        let path = Path::new(":memory:");
        let connection = Connection::open_in_memory().unwrap();
        prepare(path, &connection).unwrap();
        Self::over(path, connection, None)
    }

    fn over(path: &Path, connection: Connection, ballast: Option<Ballast>) -> Self {
        let path = path.into();
        let watchers = Watchers::default();
        Self { path, connection, ballast, has_committed: false, watchers }
    }

    /// Grows log and database to hold the changes that must be possible on a full disk: the log is
    /// overwritten from its beginning, and free pages are used before the file grows. If the disk
    /// is full already, both stay as they are.
    fn keep_room(&mut self) {
        let log = self.path.with_extension("db-wal");
        let log_bytes = std::fs::metadata(log).map_or(0, |file| file.len());
        if log_bytes >= ROOM_BYTES {
            return;
        }
        let fill = format!(
            "DROP TABLE IF EXISTS room; CREATE TABLE room (bytes BLOB) STRICT;
             INSERT INTO room VALUES (zeroblob({ROOM_BYTES}));"
        );
        let taken = self.transaction(|tx| Ok(tx.execute_batch(&fill)?));
        // In a second transaction: pages that one transaction takes and frees are never written.
        let given =
            taken.and_then(|()| self.transaction(|tx| Ok(tx.execute_batch("DROP TABLE room;")?)));
        if let Err(error) = given.and_then(|()| self.write_log_again()) {
            let error = self.meaning(error, Revision::default());
            tracing::warn!(%error, "the database keeps no room for when the disk is full");
        }
    }

    /// Writes a change and returns the new revision.
    fn write(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError> {
        let next = Revision(expected.0.saturating_add(1));
        let written = self.transaction(|tx| {
            let counted = tx.execute(
                "UPDATE revision SET number = ? WHERE number = ?",
                params![rows::to_i64(next.0), rows::to_i64(expected.0)],
            )?;
            if counted == 0 {
                return Err(Fault::Conflict(rows::revision(tx)?));
            }
            rows::store_stop(tx, change.stopped.as_ref())?;
            if let Some(moment) = &change.clock {
                rows::store_clock(tx, moment)?;
            }
            for event in &change.events {
                if let Event::Token(name, _) = event
                    && rows::is_taken(tx, name)?
                {
                    return Err(Fault::TokenTaken(name.clone()));
                }
                rows::store(tx, event)?;
            }
            Ok(rows::store_credits(tx, &change.unleased)?)
        });
        written.map(|()| next).map_err(|fault| self.meaning(fault, expected))
    }

    /// Makes the database reuse its log from the beginning. The log's content may need new pages in
    /// the database; if so, the ballast is removed once to make room for them.
    fn reuse_log(&mut self) -> Result<(), JournalError> {
        let reused = self.write_log_again().map_err(|fault| self.meaning(fault, Revision(0)));
        if !is_no_room(&reused) || !self.release() {
            return reused;
        }
        let reused = self.write_log_again().map_err(|fault| self.meaning(fault, Revision(0)));
        self.keep();
        reused
    }

    /// Moves the log's content into the database's own pages, so that the next commit overwrites
    /// the log instead of growing it. Fails if the database must grow and cannot.
    fn write_log_again(&self) -> Result<(), Fault> {
        Ok(self.connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?)
    }

    /// Removes the ballast. Returns whether that has freed space.
    fn release(&mut self) -> bool {
        self.ballast.as_mut().is_some_and(Ballast::release)
    }

    fn keep(&mut self) {
        if let Some(ballast) = &mut self.ballast {
            ballast.keep();
        }
    }

    fn transaction(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let tx = self.connection.transaction()?;
        work(&tx)?;
        Ok(tx.commit()?)
    }

    fn meaning(&self, fault: Fault, expected: Revision) -> JournalError {
        match fault {
            Fault::Sqlite(error) => failed(&self.path, error),
            Fault::Conflict(found) => JournalError::Conflict { expected, found },
            Fault::TokenTaken(name) => JournalError::TokenTaken(name),
            Fault::Format(record, error) => error.at(&format!("{}: {record}", self.path.display())),
        }
    }
}

impl Journal for SqliteJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        rows::load(&self.connection).map_err(|fault| self.meaning(fault, Revision::default()))
    }

    fn commit(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError> {
        let mut stored = self.write(change, expected);
        // Balances change every second, and a restart must not restore spent credits. So they are
        // written into space that the database has already.
        if is_no_room(&stored) && self.reuse_log().is_ok() {
            stored = self.write(change, expected);
        }
        // Detaching and deleting must work on a full disk, or it would stay full for ever.
        if is_no_room(&stored) && change.events.iter().any(leads_to_room) && self.release() {
            stored = self.write(change, expected);
            // Takes the unused rest back at once, before other volumes do.
            self.keep();
        }
        let makes_room =
            |event: &Event| matches!(event, Event::VolumeGone(_) | Event::SnapshotGone(_));
        let is_first = !std::mem::replace(&mut self.has_committed, true);
        if is_first || (stored.is_ok() && change.events.iter().any(makes_room)) {
            self.keep();
        }
        if let Ok(revision) = &stored {
            self.watchers.publish(*revision, change);
        }
        stored
    }

    /// Past changes are not stored. Only changes by this server are delivered.
    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError> {
        let oldest = rows::revision(&self.connection).map_err(|error| failed(&self.path, error))?;
        if after == oldest {
            Ok(self.watchers.add([]))
        } else {
            Err(JournalError::Compacted { after, oldest })
        }
    }
}

/// Returns whether an event leads to a volume's deletion (it is being detached, is no longer
/// attached, or is deleted) or to a snapshot's.
fn leads_to_room(event: &Event) -> bool {
    match event {
        Event::Volume(Volume { phase: Phase::Creating | Phase::Binned { .. }, .. }) => false,
        Event::Volume(volume) => {
            let detaching = |a: &Attachment| a.state == AttachmentState::Detaching;
            volume.attachments.is_empty() || volume.attachments.iter().any(detaching)
        }
        Event::Snapshot(snapshot) => matches!(snapshot.phase, SnapshotPhase::Deleting { .. }),
        Event::VolumeGone(_) | Event::SnapshotGone(_) => true,
        _ => false,
    }
}

fn is_no_room<T>(result: &Result<T, JournalError>) -> bool {
    result.as_ref().is_err_and(JournalError::is_no_room)
}

/// Checks the form of a database and configures its use. Creates the tables of an empty one.
fn prepare(path: &Path, connection: &Connection) -> Result<(), JournalError> {
    let failed = |error| failed(path, error);
    // The log stays when the server stops. So the next start needs no room for a new one, and a
    // file of another form stays unchanged.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000;").map_err(failed)?;
    let number = |query| connection.query_row(query, [], |row| row.get::<_, u32>(0));
    let form = number("PRAGMA user_version").map_err(failed)?;
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(failed)?;
    let is_new = (form, tables) == (0, 0);
    if !is_new && u64::from(form) != FORM {
        return Err(FormatError::Form(form.into()).at(&path.display().to_string()));
    }
    // FULL: a commit is on the disk when it returns, in WAL mode too.
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        .map_err(failed)?;
    if is_new {
        let create = format!("BEGIN; {SCHEMA} PRAGMA user_version = {FORM}; COMMIT;");
        connection.execute_batch(&create).map_err(failed)?;
    }
    Ok(())
}

fn failed(path: &Path, error: rusqlite::Error) -> JournalError {
    let text = format!("{}: {error}", path.display());
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => JournalError::NoRoom(text),
        _ => JournalError::Failed(text),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_core::ids::VolumeId;
    use evenkeel_core::time::UnixMs;

    use super::*;
    use crate::journal::{Subject, conformance, format};
    use crate::model::{Event, Model, Token};

    #[test]
    fn conforms() {
        conformance::check(&mut || {
            let folder = tempfile::tempdir().unwrap();
            Box::new(move || {
                let path = folder.path().join("control.db");
                Box::new(SqliteJournal::open(&path).unwrap())
            })
        });
    }

    /// Returns the bytes of all files in a folder except SQLite's index of its log, which every
    /// reader creates.
    fn bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(folder).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        });
        files.filter(|(name, _)| !name.ends_with("-shm")).collect()
    }

    /// Another number in the file's head, and a file of another program, with and without a log.
    #[test]
    fn a_file_of_another_form_is_refused_and_stays_as_it_is() {
        for mode in ["DELETE", "WAL"] {
            for (form, table) in [(2, "records"), (9, "volumes"), (0, "t")] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("control.db");
                let db = Connection::open(&path).unwrap();
                db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
                let create = format!(
                    "PRAGMA journal_mode = {mode}; CREATE TABLE {table} (a); \
                     INSERT INTO {table} VALUES (7); PRAGMA user_version = {form};"
                );
                db.execute_batch(&create).unwrap();
                drop(db);
                Ballast::released(&path).keep();
                let before = bytes(folder.path());
                let error = SqliteJournal::open(&path).unwrap_err();
                assert!(matches!(error, JournalError::OtherForm(_)), "{error}");
                let words = format!("written in form {form}, and this program reads form 1");
                assert!(error.to_string().contains(&words), "{error}");
                assert!(bytes(folder.path()) == before, "{mode} {form}");
            }
        }
    }

    /// A path of a view that does not match the JSON gives NULL, and no error.
    #[test]
    fn every_column_of_the_views_shows_the_records() {
        let db = SqliteJournal::in_memory().connection;
        for (number, event) in format::tests::events().iter().enumerate() {
            let (subject, _) = Subject::of(event);
            let (kind, _) = subject.kind_and_id();
            // Several events are about the same object; each gets a record of its own.
            let values = params![kind, number.to_string(), format::encode(event).unwrap()];
            db.execute("INSERT INTO records VALUES (?, ?, ?)", values).unwrap();
        }
        let text = "SELECT name FROM sqlite_schema WHERE type = 'view'";
        let mut find = db.prepare(text).unwrap();
        let views = find.query_map([], |row| row.get(0)).unwrap();
        let views: Vec<String> = views.map(Result::unwrap).collect();
        assert_eq!(views.len(), 7);
        for view in views {
            let find = db.prepare(&format!("SELECT * FROM {view}")).unwrap();
            for column in find.column_names() {
                let count = format!("SELECT count({column}) FROM {view}");
                let count: u32 = db.query_row(&count, [], |row| row.get(0)).unwrap();
                assert!(count > 0, "{column} of {view} is always NULL");
            }
        }
    }

    /// They are decoded in several batches, and the last one may be empty.
    #[test]
    fn many_records_are_loaded_as_they_were_stored() {
        let volume = VolumeId::from_bits(7);
        for count in [2 * rows::BATCH_RECORDS, 2 * rows::BATCH_RECORDS + 1] {
            let mut journal = SqliteJournal::in_memory();
            let mut model = Model::default();
            let tokens = (0..count).map(|number| {
                let used = UnixMs(u64::try_from(number).unwrap());
                let token = Token { fingerprint: format!("f{number}"), volume, used };
                Event::Token(format!("t{number}"), token)
            });
            let events: Vec<Event> = tokens.collect();
            events.iter().for_each(|event| model.apply(event.clone()));
            journal.commit(&Change::from(events), Revision::default()).unwrap();
            assert_eq!(journal.load().unwrap().model, model);
            let update = "UPDATE records SET json = '{}' WHERE id = 't5000'";
            journal.connection.execute(update, []).unwrap();
            let error = journal.load().unwrap_err().to_string();
            assert!(error.contains("token t5000: the value cannot be read"), "{error}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_is_named() {
        let volume = r#"{"version":2,"kind":"volume","event":{}}"#;
        let gone = r#"{"version":1,"kind":"token_gone","event":{"name":"t"}}"#;
        for (kind, id, json, words, is_other_form) in [
            ("volume", "vol-00000000000000007", volume, "written in form 2", true),
            ("token", "t", gone, "token t: the value cannot be read: its value is of", false),
            ("stop", "", "{}", "stop: the value cannot be read: missing field `unix_ms`", false),
        ] {
            let mut journal = SqliteJournal::in_memory();
            let row = params![kind, id, json];
            journal.connection.execute("INSERT INTO records VALUES (?, ?, ?)", row).unwrap();
            let error = journal.load().unwrap_err();
            assert_eq!(matches!(error, JournalError::OtherForm(_)), is_other_form, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        let mut journal = SqliteJournal::in_memory();
        journal.connection.execute("INSERT INTO credits VALUES ('x', 1, 1)", []).unwrap();
        let error = journal.load().unwrap_err().to_string();
        assert!(error.contains("credits x: "), "{error}");
    }
}
