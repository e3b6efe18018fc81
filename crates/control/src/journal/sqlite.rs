//! The journal of one server on one machine: one SQLite file. Only this module and its submodules
//! use SQL. `sqlite/schema.sql` has the tables, `sqlite/rows.rs` converts their rows.
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
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use self::ballast::Ballast;
use super::watch::{Watch, Watchers};
use super::{Change, Journal, JournalError, Loaded, Revision};
use crate::model::{Attachment, AttachmentState, Event, Phase, SnapshotPhase, Volume};
use crate::private;

/// Version of the tables, stored in the file's `user_version`.
const SCHEMA_VERSION: i64 = 9;

/// Room that log and database keep for some hundred changes on a full disk.
const ROOM_BYTES: u64 = 512 << 10;

const SCHEMA: &str = include_str!("sqlite/schema.sql");

/// Upgrades a file of version 1 to version 2.
const FROM_1: &str = "CREATE TABLE host_credits (
    host_id TEXT PRIMARY KEY, operations INTEGER, bytes INTEGER, saved_ms INTEGER NOT NULL
) STRICT;";

/// Upgrades a file of version 2 to version 3. Its balances are not leased: `leased` has no row
/// until they are.
const FROM_2: &str = "ALTER TABLE credits DROP COLUMN saved_ms;
ALTER TABLE host_credits DROP COLUMN saved_ms;
ALTER TABLE clean_stop ADD COLUMN boot_id TEXT;
ALTER TABLE clean_stop ADD COLUMN boot_ms INTEGER;
CREATE TABLE leased (only INTEGER PRIMARY KEY CHECK (only = 1)) STRICT;";

/// Upgrades a file of version 3 to version 4.
const FROM_3: &str = "CREATE TABLE revision (
    only INTEGER PRIMARY KEY CHECK (only = 1), number INTEGER NOT NULL
) STRICT;
INSERT INTO revision VALUES (1, 0);";

/// Upgrades a file of version 4 to version 5.
const FROM_4: &str = "ALTER TABLE volumes ADD COLUMN snapshot_id TEXT;
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY, volume_id TEXT NOT NULL, volume_size_gib INTEGER NOT NULL,
    description TEXT NOT NULL, started_ms INTEGER NOT NULL, phase TEXT NOT NULL,
    data_bytes INTEGER, ended_ms INTEGER, reason TEXT
) STRICT;";

/// Upgrades a file of version 5 to version 6.
const FROM_5: &str = "ALTER TABLE snapshots ADD COLUMN parent_id TEXT;
ALTER TABLE snapshots ADD COLUMN timeout_min INTEGER;
ALTER TABLE snapshots ADD COLUMN token TEXT;
ALTER TABLE snapshots ADD COLUMN fingerprint TEXT;";

/// Upgrades a file of version 6 to version 7.
const FROM_6: &str = "ALTER TABLE volumes ADD COLUMN source_id TEXT;
ALTER TABLE volumes ADD COLUMN through_id TEXT;
ALTER TABLE volumes ADD COLUMN encrypted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE volumes ADD COLUMN fast_restored INTEGER NOT NULL DEFAULT 0;
ALTER TABLE volumes ADD COLUMN auto_enable_io INTEGER NOT NULL DEFAULT 0;
ALTER TABLE volumes ADD COLUMN binned_ms INTEGER;
ALTER TABLE volumes ADD COLUMN bin_until_ms INTEGER;
ALTER TABLE attachments ADD COLUMN delete_on_termination INTEGER NOT NULL DEFAULT 0;
ALTER TABLE snapshots ADD COLUMN copy_of_id TEXT;
ALTER TABLE snapshots ADD COLUMN for_volume_id TEXT;
ALTER TABLE snapshots ADD COLUMN encrypted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE snapshots ADD COLUMN lock_mode TEXT;
ALTER TABLE snapshots ADD COLUMN lock_created_ms INTEGER;
ALTER TABLE snapshots ADD COLUMN lock_cool_off_hours INTEGER;
ALTER TABLE snapshots ADD COLUMN lock_days INTEGER;
ALTER TABLE snapshots ADD COLUMN lock_until_ms INTEGER;
ALTER TABLE snapshots ADD COLUMN fast_since_ms INTEGER;
ALTER TABLE snapshots ADD COLUMN fast_credits_micro INTEGER;
ALTER TABLE snapshots ADD COLUMN fast_counted_ms INTEGER;
ALTER TABLE snapshots ADD COLUMN binned_ms INTEGER;
ALTER TABLE snapshots ADD COLUMN bin_until_ms INTEGER;
ALTER TABLE hosts ADD COLUMN state TEXT NOT NULL DEFAULT 'running';
ALTER TABLE hosts ADD COLUMN terminated_ms INTEGER;
CREATE TABLE snapshot_shares (
    snapshot_id TEXT NOT NULL, account TEXT NOT NULL, PRIMARY KEY (snapshot_id, account)
) STRICT;
CREATE TABLE account (
    only INTEGER PRIMARY KEY CHECK (only = 1), encrypt_by_default INTEGER
) STRICT;";

/// Upgrades a file of version 7 to version 8.
const FROM_7: &str =
    "ALTER TABLE account ADD COLUMN public_access TEXT NOT NULL DEFAULT 'unblocked';";

/// Upgrades a file of version 8 to version 9.
const FROM_8: &str = "ALTER TABLE snapshots ADD COLUMN tier_operation TEXT;
ALTER TABLE snapshots ADD COLUMN tier_began_ms INTEGER;
ALTER TABLE snapshots ADD COLUMN tier_archived_ms INTEGER;
ALTER TABLE snapshots ADD COLUMN tier_until_ms INTEGER;
ALTER TABLE hosts ADD COLUMN zone TEXT;";

/// The server's time. The table is no part of a version: an older version can use a file that has
/// it, and does not read it.
const CLOCK: &str = "
CREATE TABLE IF NOT EXISTS clock (
    only INTEGER PRIMARY KEY CHECK (only = 1), unix_ms INTEGER NOT NULL,
    boot_id TEXT, boot_ms INTEGER
) STRICT;";

/// Makes the file, and SQLite's files beside it, accessible to their owner only. Files that SQLite
/// creates beside it later get the same mode.
///
/// # Errors
/// The file cannot be opened or created.
pub fn make_private(path: &Path) -> std::io::Result<()> {
    private::open(path)?;
    for beside in ["-wal", "-shm", "-journal"] {
        let mut beside_it = path.as_os_str().to_owned();
        beside_it.push(beside);
        private::mend(Path::new(&beside_it));
    }
    Ok(())
}

/// The open file.
#[derive(Debug)]
pub struct SqliteJournal {
    path: PathBuf,
    connection: Connection,
    /// Space to free for changes that lead to more; `None` for a database without a file.
    ballast: Option<Ballast>,
    /// Whether this server has committed a change; from then on the ballast is kept.
    has_committed: bool,
    watchers: Watchers,
}

/// Why a transaction failed.
enum Fault {
    Sqlite(rusqlite::Error),
    /// The journal is at this revision, not at the expected one.
    Conflict(Revision),
    TokenTaken(String),
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
    /// [`JournalError::TooNew`], [`JournalError::NoRoom`], [`JournalError::Failed`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let ballast = Ballast::released(path);
        let connection = Connection::open(path).map_err(|error| failed(path, error))?;
        let mut journal = Self::over(path, connection, Some(ballast))?;
        journal.keep_room();
        Ok(journal)
    }

    /// A database without a file.
    #[cfg(test)]
    pub fn in_memory() -> Self {
        let connection = Connection::open_in_memory().unwrap();
        Self::over(Path::new(":memory:"), connection, None).unwrap()
    }

    fn over(
        path: &Path,
        connection: Connection,
        ballast: Option<Ballast>,
    ) -> Result<Self, JournalError> {
        let failed = |error| failed(path, error);
        // FULL: a commit is on the disk when it returns, in WAL mode too.
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;",
            )
            .map_err(failed)?;
        let version: i64 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        let steps: &[&str] = match version {
            SCHEMA_VERSION => &[],
            0 => &[SCHEMA],
            older @ 1..SCHEMA_VERSION => {
                const UPGRADES: [&str; 8] =
                    [FROM_1, FROM_2, FROM_3, FROM_4, FROM_5, FROM_6, FROM_7, FROM_8];
                &UPGRADES[usize::try_from(older - 1).unwrap_or_default()..]
            }
            newer => return Err(too_new(path, newer)),
        };
        connection.execute_batch(CLOCK).map_err(failed)?;
        // The log stays when the server stops, so the next start needs no room for a new one.
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .map_err(failed)?;
        if !steps.is_empty() {
            let steps = steps.concat();
            connection
                .execute_batch(&format!(
                    "BEGIN; {steps} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                ))
                .map_err(failed)?;
        }
        let (path, watchers) = (path.into(), Watchers::default());
        Ok(Self { path, connection, ballast, has_committed: false, watchers })
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
            match &change.stopped {
                Some(moment) => rows::store_clean_stop(tx, moment)?,
                None => {
                    tx.execute("DELETE FROM clean_stop", [])?;
                    tx.execute("INSERT OR IGNORE INTO leased VALUES (1)", [])?;
                }
            }
            if let Some(moment) = &change.clock {
                rows::store_clock(tx, moment)?;
            }
            for event in &change.events {
                if let Event::Token(name, _) = event
                    && is_taken(tx, name)?
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
        }
    }
}

impl Journal for SqliteJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        rows::load(&self.connection).map_err(|error| failed(&self.path, error))
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

    /// Past changes are not kept. Only changes by this server are seen.
    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError> {
        let oldest = rows::revision(&self.connection).map_err(|error| failed(&self.path, error))?;
        match after == oldest {
            true => Ok(self.watchers.add([])),
            false => Err(JournalError::Compacted { after, oldest }),
        }
    }
}

/// Whether an event leads to a volume's deletion (it is being detached, is no longer attached, or
/// is deleted) or to a snapshot's.
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

fn is_taken(tx: &Transaction<'_>, token: &str) -> rusqlite::Result<bool> {
    let found = "SELECT 1 FROM client_tokens WHERE token = ?";
    tx.query_row(found, [token], |_| Ok(())).optional().map(|found| found.is_some())
}

fn failed(path: &Path, error: rusqlite::Error) -> JournalError {
    let text = format!("{}: {error}", path.display());
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => JournalError::NoRoom(text),
        _ => JournalError::Failed(text),
    }
}

fn too_new(path: &Path, version: i64) -> JournalError {
    JournalError::TooNew(format!(
        "{}: written by a newer version (tables of version {version}, known up to \
         {SCHEMA_VERSION}); run that version",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credits::{Moment, Stop};
    use crate::journal::conformance;
    use crate::model::UnixMs;
    use evenkeel_core::ids::VolumeId;

    /// The tables of version 2, as that version created them.
    const SCHEMA_2: &str = include_str!("../../tests/schema_2.sql");

    fn of_version_2(path: &Path, rows: &str) {
        let db = Connection::open(path).unwrap();
        db.execute_batch(&format!("{SCHEMA_2} PRAGMA user_version = 2; {rows}")).unwrap();
    }

    fn tables(path: &Path) -> Vec<(String, String)> {
        let db = Connection::open(path).unwrap();
        let columns =
            "SELECT t.name, group_concat(c.name || ' ' || c.type || c.\"notnull\" || c.pk)
            FROM sqlite_schema t, pragma_table_info(t.name) c
            WHERE t.type = 'table' GROUP BY t.name ORDER BY t.name";
        let mut statement = db.prepare(columns).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.collect::<rusqlite::Result<_>>().unwrap()
    }

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

    #[test]
    fn a_file_of_version_2_becomes_like_a_new_one_and_keeps_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old.db", "new.db"].map(|name| folder.path().join(name));
        let volume = VolumeId::from_bits(7);
        of_version_2(&old, &format!("INSERT INTO credits VALUES ('{volume}', 5, NULL, 99);"));
        let loaded = SqliteJournal::open(&old).unwrap().load().unwrap();
        assert_eq!(loaded.credits.volume(volume).operations, Some(5));
        // The balance was stored a moment before the crash: less may be left.
        assert_eq!(loaded.stop, Stop::CrashBeforeLeases);
        let mut journal = SqliteJournal::open(&old).unwrap();
        journal.commit(&Change::default(), loaded.revision).unwrap();
        assert_eq!(journal.load().unwrap().stop, Stop::Crash);
        drop(SqliteJournal::open(&new).unwrap());
        assert_eq!(tables(&old), tables(&new));
        let clean = folder.path().join("clean.db");
        of_version_2(&clean, "INSERT INTO clean_stop VALUES (1, 12345);");
        let stopped = Moment { unix: UnixMs(12_345), boot: None };
        let loaded = SqliteJournal::open(&clean).unwrap().load().unwrap();
        assert_eq!(loaded.stop, Stop::Clean(stopped));
    }
}
