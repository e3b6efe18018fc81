//! Where the model is kept: one SQLite file. The only file that knows SQL; `schema.sql` has the
//! tables.
//!
//! One writer. Every batch of events is one transaction, synced before the call returns, so what a
//! client was told survives kill -9 and power loss. Users may read the file with `sqlite3` while
//! the server runs.

pub mod reserve;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::agent::HostAddress;
use rusqlite::config::DbConfig;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use crate::credits::{Moment, Stop};
use crate::model::{
    Attachment, AttachmentState, Event, Host, Model, Modification, ModificationPhase, Phase, Tags,
    Token, UnixMs, Volume,
};

/// Version of the tables; in the file's `user_version`.
const SCHEMA_VERSION: i64 = 3;

/// Room that is kept in log and database for changes on a full disk: for some hundred.
const ROOM_BYTES: u64 = 512 << 10;

const SCHEMA: &str = include_str!("sqlite/schema.sql");

/// What a file of version 1 lacks to be one of version 2.
const FROM_1: &str = "CREATE TABLE host_credits (
    host_id TEXT PRIMARY KEY, operations INTEGER, bytes INTEGER, saved_ms INTEGER NOT NULL
) STRICT;";

/// What a file of version 2 lacks to be one of version 3. Its balances are not leased: `unleased`
/// has no row until they are.
const FROM_2: &str = "ALTER TABLE credits DROP COLUMN saved_ms;
ALTER TABLE host_credits DROP COLUMN saved_ms;
ALTER TABLE clean_stop ADD COLUMN boot_id TEXT;
ALTER TABLE clean_stop ADD COLUMN boot_ms INTEGER;
CREATE TABLE leased (only INTEGER PRIMARY KEY CHECK (only = 1)) STRICT;";

/// Why the database could not be used.
#[derive(Debug)]
pub enum DbError {
    /// SQLite failed.
    Sqlite(PathBuf, rusqlite::Error),
    /// The file was written by a newer version of this program.
    TooNew(PathBuf, i64),
}

impl DbError {
    /// Whether the cause is a full disk.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Sqlite(_, error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull))
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path, error) => write!(f, "{}: {error}", path.display()),
            Self::TooNew(path, version) => write!(
                f,
                "{}: written by a newer version (tables of version {version}, known up to \
                 {SCHEMA_VERSION}); run that version",
                path.display()
            ),
        }
    }
}

impl std::error::Error for DbError {}

/// Credit balances.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credits {
    /// Of volumes.
    pub volumes: BTreeMap<VolumeId, Balances>,
    /// Of hosts whose type bursts.
    pub hosts: BTreeMap<InstanceId, Balances>,
}

impl Credits {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.hosts.is_empty()
    }

    /// What is known of a volume.
    #[must_use]
    pub fn volume(&self, id: VolumeId) -> Balances {
        self.volumes.get(&id).copied().unwrap_or_default()
    }

    /// What is known of a host.
    #[must_use]
    pub fn host(&self, id: InstanceId) -> Balances {
        self.hosts.get(&id).copied().unwrap_or_default()
    }

    /// Puts those amounts of others in the place of these that there are, where there are any.
    pub fn overlay(&mut self, others: &Self) {
        let overlay = |over: &Balances, row: &mut Balances| {
            row.operations = over.operations.or(row.operations);
            row.bytes = over.bytes.or(row.bytes);
        };
        for (id, over) in &others.volumes {
            if let Some(row) = self.volumes.get_mut(id) {
                overlay(over, row);
            }
        }
        for (id, over) in &others.hosts {
            if let Some(row) = self.hosts.get_mut(id) {
                overlay(over, row);
            }
        }
    }

    /// Puts others in the place of these, as far as there are.
    pub fn extend(&mut self, others: &Self) {
        self.volumes.extend(&others.volumes);
        self.hosts.extend(&others.hosts);
    }
}

/// What was found in the file.
#[derive(Debug)]
pub struct Loaded {
    /// Everything that exists.
    pub model: Model,
    /// The balances as stored.
    pub credits: Credits,
    /// How the server stopped.
    pub stop: Stop,
}

/// The open database.
#[derive(Debug)]
pub struct Db {
    path: PathBuf,
    connection: Connection,
}

impl Db {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn open(path: &Path) -> Result<Self, DbError> {
        let sqlite = |error| DbError::Sqlite(path.into(), error);
        let connection = Connection::open(path).map_err(sqlite)?;
        // FULL: a commit is on the disk when it returns, in WAL mode too.
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;",
            )
            .map_err(sqlite)?;
        let version: i64 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(sqlite)?;
        let steps: &[&str] = match version {
            SCHEMA_VERSION => &[],
            0 => &[SCHEMA],
            1 => &[FROM_1, FROM_2],
            2 => &[FROM_2],
            newer => return Err(DbError::TooNew(path.into(), newer)),
        };
        // The log stays when the server stops, and the next start needs no room for another.
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .map_err(sqlite)?;
        if !steps.is_empty() {
            let steps = steps.concat();
            connection
                .execute_batch(&format!(
                    "BEGIN; {steps} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                ))
                .map_err(sqlite)?;
        }
        let mut db = Self { path: path.into(), connection };
        db.keep_room();
        Ok(db)
    }

    /// Makes log and database large enough for the changes that a full disk must not keep anybody
    /// from: a log is written over from its beginning, and free pages are used before the file
    /// grows. As far as there is room; on a full disk it stays as it is.
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
        let taken = self.transaction(|tx| tx.execute_batch(&fill));
        // In another one: what a transaction takes and gives back again is not written at all.
        let given =
            taken.and_then(|()| self.transaction(|tx| tx.execute_batch("DROP TABLE room;")));
        if let Err(error) = given.and_then(|()| self.reuse_log()) {
            tracing::warn!(%error, "the database keeps no room for when the disk is full");
        }
    }

    /// Reads everything.
    ///
    /// # Errors
    /// See [`DbError`]; a row that makes no sense is an error that names its column.
    pub fn load(&self) -> Result<Loaded, DbError> {
        load(&self.connection).map_err(|error| DbError::Sqlite(self.path.clone(), error))
    }

    /// Stores events and what is unleased of balances in one transaction. Any commit ends the state
    /// of having been stopped cleanly; [`Self::stop_cleanly`] begins it.
    ///
    /// # Errors
    /// See [`DbError`]; nothing was stored then.
    pub fn commit(&mut self, events: &[Event], unleased: &Credits) -> Result<(), DbError> {
        self.transaction(|tx| {
            tx.execute("DELETE FROM clean_stop", [])?;
            tx.execute("INSERT OR IGNORE INTO leased VALUES (1)", [])?;
            events.iter().try_for_each(|event| store(tx, event))?;
            store_credits(tx, unleased)
        })
    }

    /// Stores the final balances and that there was nothing after them.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn stop_cleanly(&mut self, credits: &Credits, now: &Moment) -> Result<(), DbError> {
        self.transaction(|tx| {
            store_credits(tx, credits)?;
            let (boot_id, boot_ms) = now.boot.as_ref().map(|(id, ms)| (id, to_i64(*ms))).unzip();
            tx.execute(
                "INSERT OR REPLACE INTO clean_stop (only, stopped_ms, boot_id, boot_ms) \
                 VALUES (1, ?, ?, ?)",
                params![to_i64(now.unix.0), boot_id, boot_ms],
            )?;
            Ok(())
        })
    }

    /// Puts what the log holds into the database's own pages, so that the next commit writes over
    /// the log's beginning instead of growing it.
    ///
    /// # Errors
    /// When the database itself would have to grow and cannot.
    pub fn reuse_log(&mut self) -> Result<(), DbError> {
        let checkpoint =
            self.connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
        checkpoint.map_err(|error| DbError::Sqlite(self.path.clone(), error))
    }

    fn transaction(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), DbError> {
        let run = || {
            let tx = self.connection.transaction()?;
            work(&tx)?;
            tx.commit()
        };
        run().map_err(|error| DbError::Sqlite(self.path.clone(), error))
    }
}

fn store(tx: &Transaction<'_>, event: &Event) -> rusqlite::Result<()> {
    match event {
        Event::Volume(volume) => store_volume(tx, volume),
        Event::VolumeGone(id) => {
            let id = id.to_string();
            forget_parts(tx, &id)?;
            tx.execute("DELETE FROM credits WHERE volume_id = ?", [&id])?;
            tx.execute("DELETE FROM volumes WHERE id = ?", [&id]).map(drop)
        }
        Event::Host(host) => {
            let id = host.id.to_string();
            let address = match host.address {
                HostAddress::Local => None,
                HostAddress::Remote(ip) => Some(ip.to_string()),
            };
            tx.execute(
                "INSERT OR REPLACE INTO hosts VALUES (?, ?, ?, ?)",
                params![id, host.instance_type, address, to_i64(host.registered.0)],
            )?;
            store_tags(tx, &id, &host.tags)
        }
        Event::HostGone(id) => {
            let id = id.to_string();
            tx.execute("DELETE FROM tags WHERE resource_id = ?", [&id])?;
            tx.execute("DELETE FROM host_credits WHERE host_id = ?", [&id])?;
            tx.execute("DELETE FROM hosts WHERE id = ?", [&id]).map(drop)
        }
        Event::Token(name, token) => tx
            .execute(
                "INSERT OR REPLACE INTO client_tokens VALUES (?, ?, ?, ?)",
                params![name, token.fingerprint, token.volume.to_string(), to_i64(token.used.0)],
            )
            .map(drop),
        Event::TokenGone(name) => {
            tx.execute("DELETE FROM client_tokens WHERE token = ?", [name]).map(drop)
        }
    }
}

fn store_volume(tx: &Transaction<'_>, volume: &Volume) -> rusqlite::Result<()> {
    let id = volume.id.to_string();
    forget_parts(tx, &id)?;
    let (phase, reason) = match &volume.phase {
        Phase::Creating => ("creating", None),
        Phase::Ready => ("ready", None),
        Phase::Deleting => ("deleting", None),
        Phase::Error(reason) => ("error", Some(reason)),
    };
    let spec = &volume.spec;
    tx.execute(
        "INSERT OR REPLACE INTO volumes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            id,
            volume.zone,
            to_i64(volume.created.0),
            spec.volume_type.name(),
            spec.size_gib,
            spec.iops,
            spec.throughput_mibps,
            spec.multi_attach,
            phase,
            reason
        ],
    )?;
    for (position, attachment) in (0_i64..).zip(&volume.attachments) {
        tx.execute(
            "INSERT INTO attachments VALUES (?, ?, ?, ?, ?, ?)",
            params![
                id,
                position,
                attachment.instance.to_string(),
                attachment.device,
                attachment.state.name(),
                to_i64(attachment.attached.0)
            ],
        )?;
    }
    for (position, start) in (0_i64..).zip(&volume.modification_starts) {
        tx.execute(
            "INSERT INTO modification_starts VALUES (?, ?, ?)",
            params![id, position, to_i64(start.0)],
        )?;
    }
    if let Some(modification) = &volume.modification {
        store_modification(tx, &id, modification)?;
    }
    store_tags(tx, &id, &volume.tags)
}

fn store_modification(
    tx: &Transaction<'_>,
    id: &str,
    modification: &Modification,
) -> rusqlite::Result<()> {
    let (phase, since, ended, reason) = match &modification.phase {
        ModificationPhase::Modifying => ("modifying", None, None, None),
        ModificationPhase::Optimizing { since, until } => {
            ("optimizing", Some(*since), Some(*until), None)
        }
        ModificationPhase::Completed { ended } => ("completed", None, Some(*ended), None),
        ModificationPhase::Failed { ended, reason } => ("failed", None, Some(*ended), Some(reason)),
    };
    let (old, new) = (&modification.original, &modification.target);
    tx.execute(
        "INSERT INTO modifications VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            id,
            to_i64(modification.started.0),
            phase,
            since.map(|t| to_i64(t.0)),
            ended.map(|t| to_i64(t.0)),
            reason,
            old.volume_type.name(),
            old.size_gib,
            old.iops,
            old.throughput_mibps,
            old.multi_attach,
            new.volume_type.name(),
            new.size_gib,
            new.iops,
            new.throughput_mibps,
            new.multi_attach
        ],
    )
    .map(drop)
}

/// Removes the rows that belong to a volume, before they are written anew or not at all.
fn forget_parts(tx: &Transaction<'_>, id: &str) -> rusqlite::Result<()> {
    tx.execute("DELETE FROM attachments WHERE volume_id = ?", [id])?;
    tx.execute("DELETE FROM modifications WHERE volume_id = ?", [id])?;
    tx.execute("DELETE FROM modification_starts WHERE volume_id = ?", [id])?;
    tx.execute("DELETE FROM tags WHERE resource_id = ?", [id]).map(drop)
}

fn store_tags(tx: &Transaction<'_>, id: &str, tags: &Tags) -> rusqlite::Result<()> {
    tx.execute("DELETE FROM tags WHERE resource_id = ?", [id])?;
    for (key, value) in tags {
        tx.execute("INSERT INTO tags VALUES (?, ?, ?)", params![id, key, value])?;
    }
    Ok(())
}

fn store_credits(tx: &Transaction<'_>, credits: &Credits) -> rusqlite::Result<()> {
    let row = |id: String, balances: &Balances| {
        let amount = |balance: Option<u64>| balance.map(to_i64);
        (id, amount(balances.operations), amount(balances.bytes))
    };
    let mut insert = tx.prepare_cached("INSERT OR REPLACE INTO credits VALUES (?, ?, ?)")?;
    for (id, balances) in &credits.volumes {
        insert.execute(row(id.to_string(), balances))?;
    }
    let mut insert = tx.prepare_cached("INSERT OR REPLACE INTO host_credits VALUES (?, ?, ?)")?;
    for (id, balances) in &credits.hosts {
        insert.execute(row(id.to_string(), balances))?;
    }
    Ok(())
}

fn load_credits(db: &Connection) -> rusqlite::Result<Credits> {
    let balances = |row: &Row<'_>| {
        let amount =
            |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(to_u64));
        Ok::<_, rusqlite::Error>(Balances {
            operations: amount("operations")?,
            bytes: amount("bytes")?,
        })
    };
    let mut credits = Credits::default();
    each(db, "SELECT * FROM credits", |row| {
        credits.volumes.insert(parsed(row, "volume_id")?, balances(row)?);
        Ok(())
    })?;
    each(db, "SELECT * FROM host_credits", |row| {
        credits.hosts.insert(parsed(row, "host_id")?, balances(row)?);
        Ok(())
    })?;
    Ok(credits)
}

fn load(db: &Connection) -> rusqlite::Result<Loaded> {
    let mut model = Model::default();
    each(db, "SELECT * FROM volumes", |row| {
        let volume = volume(row)?;
        model.volumes.insert(volume.id, volume);
        Ok(())
    })?;
    let volumes = &mut model.volumes;
    each(db, "SELECT * FROM attachments ORDER BY volume_id, position", |row| {
        if let Some(volume) = volumes.get_mut(&parsed(row, "volume_id")?) {
            volume.attachments.push(attachment(row)?);
        }
        Ok(())
    })?;
    each(db, "SELECT * FROM modifications", |row| {
        if let Some(volume) = volumes.get_mut(&parsed(row, "volume_id")?) {
            volume.modification = Some(modification(row)?);
        }
        Ok(())
    })?;
    each(db, "SELECT * FROM modification_starts ORDER BY volume_id, position", |row| {
        if let Some(volume) = volumes.get_mut(&parsed(row, "volume_id")?) {
            volume.modification_starts.push(time(row, "started_ms")?);
        }
        Ok(())
    })?;
    each(db, "SELECT * FROM hosts", |row| {
        let address: Option<String> = row.get("address")?;
        let host = Host {
            id: parsed(row, "id")?,
            instance_type: row.get("type")?,
            address: match address {
                None => HostAddress::Local,
                Some(_) => HostAddress::Remote(parsed(row, "address")?),
            },
            registered: time(row, "registered_ms")?,
            tags: Tags::new(),
        };
        model.hosts.insert(host.id, host);
        Ok(())
    })?;
    load_tags(db, &mut model)?;
    each(db, "SELECT * FROM client_tokens", |row| {
        let fingerprint = row.get("fingerprint")?;
        let token =
            Token { fingerprint, volume: parsed(row, "volume_id")?, used: time(row, "used_ms")? };
        model.tokens.insert(row.get("token")?, token);
        Ok(())
    })?;
    model.reindex();
    let credits = load_credits(db)?;
    let stopped = db.query_row("SELECT * FROM clean_stop", [], |row| {
        let boot_ms: Option<i64> = row.get("boot_ms")?;
        let boot = row.get::<_, Option<String>>("boot_id")?.zip(boot_ms.map(to_u64));
        Ok(Moment { unix: time(row, "stopped_ms")?, boot })
    });
    let leased = db.query_row("SELECT only FROM leased", [], |_| Ok(())).optional()?;
    let stop = match (stopped.optional()?, leased) {
        (Some(stopped), _) => Stop::Clean(stopped),
        (None, Some(())) => Stop::Crash,
        (None, None) => Stop::CrashBeforeLeases,
    };
    Ok(Loaded { model, credits, stop })
}

fn load_tags(db: &Connection, model: &mut Model) -> rusqlite::Result<()> {
    each(db, "SELECT * FROM tags", |row| {
        let id: String = row.get("resource_id")?;
        let volume = id.parse().ok().and_then(|id| model.volumes.get_mut(&id));
        let tags = match volume {
            Some(volume) => Some(&mut volume.tags),
            None => {
                let host = id.parse().ok().and_then(|id| model.hosts.get_mut(&id));
                host.map(|host| &mut host.tags)
            }
        };
        if let Some(tags) = tags {
            tags.insert(row.get("key")?, row.get("value")?);
        }
        Ok(())
    })
}

fn volume(row: &Row<'_>) -> rusqlite::Result<Volume> {
    let phase: String = row.get("phase")?;
    Ok(Volume {
        id: parsed(row, "id")?,
        zone: row.get("zone")?,
        created: time(row, "created_ms")?,
        spec: spec(row, "")?,
        phase: match phase.as_str() {
            "creating" => Phase::Creating,
            "ready" => Phase::Ready,
            "deleting" => Phase::Deleting,
            "error" => Phase::Error(row.get("reason")?),
            other => return Err(senseless(row, "phase", other)),
        },
        attachments: vec![],
        tags: Tags::new(),
        modification: None,
        modification_starts: vec![],
    })
}

fn spec(row: &Row<'_>, prefix: &str) -> rusqlite::Result<VolumeSpec> {
    let column = |name: &str| format!("{prefix}{name}");
    Ok(VolumeSpec {
        volume_type: parsed(row, &column("type"))?,
        size_gib: row.get(column("size_gib").as_str())?,
        iops: row.get(column("iops").as_str())?,
        throughput_mibps: row.get(column("throughput_mibps").as_str())?,
        multi_attach: row.get(column("multi_attach").as_str())?,
    })
}

fn attachment(row: &Row<'_>) -> rusqlite::Result<Attachment> {
    use AttachmentState::{Attached, Attaching, Detaching};
    let state: String = row.get("state")?;
    let known = [Attaching, Attached, Detaching].into_iter().find(|s| s.name() == state);
    Ok(Attachment {
        instance: parsed(row, "instance_id")?,
        device: row.get("device")?,
        state: known.ok_or_else(|| senseless(row, "state", &state))?,
        attached: time(row, "attached_ms")?,
    })
}

fn modification(row: &Row<'_>) -> rusqlite::Result<Modification> {
    let phase: String = row.get("phase")?;
    Ok(Modification {
        original: spec(row, "original_")?,
        target: spec(row, "target_")?,
        started: time(row, "started_ms")?,
        phase: match phase.as_str() {
            "modifying" => ModificationPhase::Modifying,
            "optimizing" => ModificationPhase::Optimizing {
                since: time(row, "since_ms")?,
                until: time(row, "ended_ms")?,
            },
            "completed" => ModificationPhase::Completed { ended: time(row, "ended_ms")? },
            "failed" => ModificationPhase::Failed {
                ended: time(row, "ended_ms")?,
                reason: row.get("reason")?,
            },
            other => return Err(senseless(row, "phase", other)),
        },
    })
}

fn each(
    db: &Connection,
    sql: &str,
    mut take: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}

fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    text.parse().map_err(|_| senseless(row, column, &text))
}

fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<UnixMs> {
    row.get::<_, i64>(column).map(|ms| UnixMs(to_u64(ms)))
}

/// The value does not come from this program, or from a newer one.
fn senseless(row: &Row<'_>, column: &str, value: &str) -> rusqlite::Error {
    let index = row.as_ref().column_index(column).unwrap_or(usize::MAX);
    let what = format!("column {column} has the value '{value}', which makes no sense there");
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, what.into())
}

/// SQLite's integers are signed. Nothing here comes near 2^63.
fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn to_u64(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of version 2, as that version made them.
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
    fn a_file_of_version_2_becomes_like_a_new_one_and_keeps_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old.db", "new.db"].map(|name| folder.path().join(name));
        let volume = VolumeId::from_bits(7);
        of_version_2(&old, &format!("INSERT INTO credits VALUES ('{volume}', 5, NULL, 99);"));
        let loaded = Db::open(&old).unwrap().load().unwrap();
        assert_eq!(loaded.credits.volume(volume).operations, Some(5));
        // It was stored a moment before the end: less than that may be left.
        assert_eq!(loaded.stop, Stop::CrashBeforeLeases);
        let mut db = Db::open(&old).unwrap();
        db.commit(&[], &Credits::default()).unwrap();
        assert_eq!(db.load().unwrap().stop, Stop::Crash);
        drop(Db::open(&new).unwrap());
        assert_eq!(tables(&old), tables(&new));
        let clean = folder.path().join("clean.db");
        of_version_2(&clean, "INSERT INTO clean_stop VALUES (1, 12345);");
        let stopped = Moment { unix: UnixMs(12_345), boot: None };
        assert_eq!(Db::open(&clean).unwrap().load().unwrap().stop, Stop::Clean(stopped));
    }
}
