//! The metrics of the last days: one SQLite file of bounded size. Only this module uses its SQL.
//!
//! A row has the minutes of one volume in one hour, as a [`Block`]. Rows are ordered by hour, so
//! that the minutes written together are adjacent, and so are those deleted together. The file is
//! not part of the server's promises: without it, or on a full disk, the server runs and metrics
//! are lost, with a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use tracing::{error, warn};

use super::record::{Block, Record};
use super::{HOUR_S, MINUTE_S, metrics};
use crate::private;
use crate::retention::first_deleted;

/// The file in the data folder.
pub const FILE_NAME: &str = "cloudwatch.db";
/// The name to which a damaged file is renamed.
const DAMAGED_NAME: &str = "cloudwatch.db.damaged";
/// Number of hours that are kept: 15 days, as CloudWatch keeps minutes.
pub const HOURS_MAX: u64 = 15 * 24;
/// Future hours with a larger gap before them than this are deleted first, see [`first_deleted`].
/// The gap is longer than a server is down for maintenance.
const GAP_HOURS_MAX: u64 = 24;

const PAGE_BYTES: u64 = 16 << 10;
/// One in this number of parts of the file is kept free.
const FREE_PART: u64 = 16;
/// Version of the tables, stored in the file's `user_version`.
const SCHEMA_VERSION: i64 = 1;
/// Volumes by the last hour in which they have minutes, and a bit for each metric they had then.
const SCHEMA: &str = "CREATE TABLE minutes (
    hour INTEGER NOT NULL, volume_id TEXT NOT NULL, records BLOB NOT NULL,
    PRIMARY KEY (hour, volume_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE volumes (
    volume_id TEXT PRIMARY KEY, hour INTEGER NOT NULL, metrics INTEGER NOT NULL
) STRICT, WITHOUT ROWID;";

/// A volume that has minutes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The last hour since 1970 for which it has minutes.
    pub hour: u64,
    /// A bit for each metric that it had in that hour.
    pub metrics: u32,
}

/// Minutes of one volume in one hour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The hour since 1970.
    pub hour: u64,
    /// The volume.
    pub id: VolumeId,
    /// The minutes.
    pub block: Block,
}

/// Creates a block from bytes. Malformed entries count as missing.
pub const fn block(bytes: Vec<u8>) -> Block {
    Block(bytes)
}

/// The minutes of all volumes.
#[derive(Debug)]
pub struct Store {
    /// `None` if nothing is stored on disk.
    path: Option<PathBuf>,
    pages_max: u64,
    connection: Connection,
    contents: Contents,
    /// Whether the last write failed, so that it is logged once.
    is_failing: bool,
}

/// The part of a file's content that is kept in memory.
#[derive(Default, Debug)]
struct Contents {
    volumes: BTreeMap<VolumeId, Listed>,
    /// The hours with minutes.
    hours: BTreeSet<u64>,
}

/// Why a file cannot be used.
enum Unfit {
    /// It is damaged, or another program's.
    Damaged(String),
    /// A newer version wrote it.
    Newer(i64),
    /// Another error; the file may be intact.
    Failed(String),
}

impl From<rusqlite::Error> for Unfit {
    fn from(error: rusqlite::Error) -> Self {
        if is_damage(&error) {
            Self::Damaged(error.to_string())
        } else {
            Self::Failed(error.to_string())
        }
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    let damage = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
    error.sqlite_error_code().is_some_and(|code| damage.contains(&code))
        || matches!(error, rusqlite::Error::InvalidColumnType(..))
}

impl Store {
    /// Opens the file of a data folder, or creates it. It takes at most `space`, and its log a few
    /// MiB more. If that fails, it is logged, and metrics are kept in memory only, as many as the
    /// file would hold.
    ///
    /// # Errors
    /// There is no memory for a database.
    pub fn open(folder: &Path, space: ByteCount) -> rusqlite::Result<Self> {
        let path = folder.join(FILE_NAME);
        let pages_max = space.0 / PAGE_BYTES;
        let opened = match connect(&path, pages_max) {
            Err(Unfit::Damaged(reason)) => {
                set_aside(&path, &reason);
                connect(&path, pages_max)
            }
            opened => opened,
        };
        let reason = match opened {
            Ok((connection, contents)) => {
                return Ok(Self::over(Some(path), pages_max, connection, contents));
            }
            Err(Unfit::Newer(version)) => format!(
                "written by a newer version (tables of version {version}, known up to \
                 {SCHEMA_VERSION}); run that version, or remove the file"
            ),
            Err(Unfit::Damaged(reason) | Unfit::Failed(reason)) => reason,
        };
        let path = path.display();
        warn!("{path}: {reason}; metrics of volumes are lost when the server stops");
        let connection = Connection::open_in_memory()?;
        prepare(&connection, pages_max)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self::over(None, pages_max, connection, Contents::default()))
    }

    const fn over(
        path: Option<PathBuf>,
        pages_max: u64,
        connection: Connection,
        contents: Contents,
    ) -> Self {
        Self { path, pages_max, connection, contents, is_failing: false }
    }

    /// Returns the volumes that have minutes.
    pub fn volumes(&self) -> impl Iterator<Item = (VolumeId, Listed)> + '_ {
        self.contents.volumes.iter().map(|(id, listed)| (*id, *listed))
    }

    /// Stores the records of a minute, which begins at this second of Unix time, with the bits of
    /// their metrics. If there is no room they are dropped, which is logged once.
    pub fn write(&mut self, start_s: u64, records: &[(VolumeId, Record, u32)]) {
        let hour = start_s / HOUR_S;
        let written = self.make_room(hour).and_then(|()| self.try_write(start_s, records));
        match written {
            Ok(()) => {
                self.is_failing = false;
                for &(id, _, metrics) in records {
                    let listed = self.listed_with(id, hour, metrics);
                    self.contents.volumes.insert(id, listed);
                }
                if !records.is_empty() {
                    self.contents.hours.insert(hour);
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Returns the minutes of a volume that begin at or after `from_s` and before `until_s`, in
    /// seconds of Unix time, in order. Minutes that cannot be read are left out, and logged.
    pub fn read(&mut self, id: VolumeId, from_s: u64, until_s: u64) -> Vec<(u64, Record)> {
        let read = self.try_read(id, from_s, until_s);
        let mut minutes = read.unwrap_or_else(|error| {
            self.failed(&error);
            Vec::new()
        });
        minutes.sort_by_key(|(start, _)| *start);
        minutes
    }

    fn try_read(
        &self,
        id: VolumeId,
        from_s: u64,
        until_s: u64,
    ) -> rusqlite::Result<Vec<(u64, Record)>> {
        if !self.contents.volumes.contains_key(&id) || from_s >= until_s {
            return Ok(Vec::new());
        }
        let find = "SELECT records FROM minutes WHERE hour = ? AND volume_id = ?";
        let mut find = self.connection.prepare_cached(find)?;
        let mut minutes = Vec::new();
        let name = id.to_string();
        for &hour in self.contents.hours.range(from_s / HOUR_S..=until_s / HOUR_S) {
            let found = find.query_row(params![to_i64(hour), name], |row| row.get(0));
            let Some(bytes) = found.optional()? else { continue };
            let start = |place: u8| hour * HOUR_S + u64::from(place) * MINUTE_S;
            let block = Block(bytes);
            let records = block.records().map(|(place, record)| (start(place), record));
            minutes.extend(records.filter(|(start, _)| (from_s..until_s).contains(start)));
        }
        Ok(minutes)
    }

    /// Returns minutes that begin at or after this second of Unix time, by hour and volume, after
    /// this place. Returns at most `bytes_max`, but at least one part if there is any.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn parts(
        &self,
        from_s: u64,
        after: Option<(u64, VolumeId)>,
        bytes_max: usize,
    ) -> rusqlite::Result<Vec<Part>> {
        // Sorts before all volumes of the first hour.
        let after = after.map(|(hour, id)| (hour, id.to_string()));
        let (hour, name) = after.unwrap_or_else(|| (from_s / HOUR_S, String::new()));
        let find = "SELECT hour, volume_id, records FROM minutes
            WHERE hour >= ?1 AND (hour, volume_id) > (?1, ?2) ORDER BY hour, volume_id";
        let mut find = self.connection.prepare_cached(find)?;
        let mut rows = find.query(params![to_i64(hour), name])?;
        let mut parts = Vec::new();
        let mut bytes = 0;
        while let Some(row) = rows.next()? {
            if bytes >= bytes_max {
                break;
            }
            let hour = u64::try_from(row.get::<_, i64>(0)?).unwrap_or_default();
            let Ok(id) = row.get::<_, String>(1)?.parse() else { continue };
            let whole = Block(row.get(2)?);
            let mut block = Block::default();
            for (place, record) in whole.records() {
                if hour * HOUR_S + u64::from(place) * MINUTE_S >= from_s {
                    block.set(place, &record);
                }
            }
            if !block.0.is_empty() {
                bytes += block.0.len();
                parts.push(Part { hour, id, block });
            }
        }
        Ok(parts)
    }

    /// Returns a volume's entry after minutes of this hour are added.
    fn listed_with(&self, id: VolumeId, hour: u64, metrics: u32) -> Listed {
        // After the clock was set back, a later hour stays the last one.
        let hour = self.contents.volumes.get(&id).map_or(hour, |listed| listed.hour.max(hour));
        Listed { hour, metrics }
    }

    /// Adds minutes of another server. Minutes that are there already are kept, and hours that are
    /// older than 15 days or in the future are left out. A failure is logged once.
    ///
    /// # Errors
    /// They cannot be stored. A damaged file is set aside, and a new one is created.
    pub fn merge(&mut self, now_hour: u64, parts: &[Part]) -> rusqlite::Result<()> {
        let kept = now_hour.saturating_sub(HOURS_MAX - 1)..=now_hour;
        let merged = self.make_room(now_hour).and_then(|()| self.try_merge(&kept, parts));
        match merged {
            Ok(merged) => {
                self.is_failing = false;
                self.contents.volumes.extend(merged.volumes);
                self.contents.hours.extend(merged.hours);
                Ok(())
            }
            Err(error) => {
                self.failed(&error);
                Err(error)
            }
        }
    }

    /// Returns the volumes that have later minutes than before, and the hours of all parts.
    fn try_merge(
        &mut self,
        kept: &RangeInclusive<u64>,
        parts: &[Part],
    ) -> rusqlite::Result<Contents> {
        let mut merged = Contents::default();
        let tx = self.connection.transaction()?;
        {
            let find = "SELECT records FROM minutes WHERE hour = ? AND volume_id = ?";
            let mut find = tx.prepare_cached(find)?;
            let mut set = tx.prepare_cached("INSERT OR REPLACE INTO minutes VALUES (?, ?, ?)")?;
            let mut list = tx.prepare_cached("INSERT OR REPLACE INTO volumes VALUES (?, ?, ?)")?;
            for Part { hour, id, block } in parts.iter().filter(|part| kept.contains(&part.hour)) {
                let name = id.to_string();
                let found = find.query_row(params![to_i64(*hour), name], |row| row.get(0));
                let mut own = Block(found.optional()?.unwrap_or_default());
                let known: BTreeMap<u8, Record> = own.records().collect();
                let new = block.records().filter(|(place, it)| known.get(place) != Some(it));
                let new: Vec<(u8, Record)> = new.collect();
                new.iter().for_each(|(place, record)| own.set(*place, record));
                if !new.is_empty() {
                    set.execute(params![to_i64(*hour), name, own.0])?;
                    merged.hours.insert(*hour);
                }
                let listed = merged.volumes.get(id).or_else(|| self.contents.volumes.get(id));
                let is_later = listed.is_none_or(|listed| listed.hour <= *hour);
                let last = own.records().max_by_key(|(place, _)| *place);
                if let Some((_, last)) = last.filter(|_| is_later) {
                    let metrics = metrics::mask(&last);
                    list.execute(params![name, to_i64(*hour), metrics])?;
                    merged.volumes.insert(*id, Listed { hour: *hour, metrics });
                }
            }
        }
        tx.commit()?;
        Ok(merged)
    }

    /// Deletes hours until there is room for this one.
    fn make_room(&mut self, now_hour: u64) -> rusqlite::Result<()> {
        while self.hours_with(now_hour) > HOURS_MAX
            || self.pages_free()? < self.pages_max / FREE_PART
        {
            let hours = &self.contents.hours;
            let Some(hour) = first_deleted(hours, now_hour, GAP_HOURS_MAX) else { break };
            self.delete(hour, now_hour)?;
        }
        Ok(())
    }

    /// Returns the number of hours that have minutes, including this one.
    fn hours_with(&self, now_hour: u64) -> u64 {
        let hours = &self.contents.hours;
        hours.len() as u64 + u64::from(!hours.contains(&now_hour))
    }

    fn pages_free(&self) -> rusqlite::Result<u64> {
        let pages = |pragma| self.connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
        let used = pages("PRAGMA page_count")? - pages("PRAGMA freelist_count")?;
        Ok(self.pages_max.saturating_sub(u64::try_from(used).unwrap_or_default()))
    }

    /// Deletes an hour.
    fn delete(&mut self, hour: u64, now_hour: u64) -> rusqlite::Result<()> {
        let tx = self.connection.transaction()?;
        tx.prepare_cached("DELETE FROM minutes WHERE hour = ?")?.execute([to_i64(hour)])?;
        if hour > now_hour {
            // The volumes that were listed with it may have earlier minutes. They stay listed until
            // these are deleted, too.
            tx.prepare_cached("UPDATE volumes SET hour = ? WHERE hour = ?")?
                .execute([to_i64(now_hour), to_i64(hour)])?
        } else {
            tx.prepare_cached("DELETE FROM volumes WHERE hour = ?")?.execute([to_i64(hour)])?
        };
        tx.commit()?;
        self.contents.hours.remove(&hour);
        if hour > now_hour {
            let volumes = self.contents.volumes.values_mut();
            volumes.filter(|volume| volume.hour == hour).for_each(|volume| volume.hour = now_hour);
        } else {
            self.contents.volumes.retain(|_, listed| listed.hour != hour)
        }
        Ok(())
    }

    fn try_write(
        &mut self,
        start_s: u64,
        records: &[(VolumeId, Record, u32)],
    ) -> rusqlite::Result<()> {
        let hour = start_s / HOUR_S;
        let minute = start_s % HOUR_S / MINUTE_S;
        let tx = self.connection.transaction()?;
        {
            let find = "SELECT records FROM minutes WHERE hour = ? AND volume_id = ?";
            let mut find = tx.prepare_cached(find)?;
            let mut set = tx.prepare_cached("INSERT OR REPLACE INTO minutes VALUES (?, ?, ?)")?;
            let mut list = tx.prepare_cached("INSERT OR REPLACE INTO volumes VALUES (?, ?, ?)")?;
            for (id, record, metrics) in records {
                let name = id.to_string();
                let found = find.query_row(params![to_i64(hour), name], |row| row.get(0));
                let mut block = Block(found.optional()?.unwrap_or_default());
                block.set(u8::try_from(minute).unwrap_or_default(), record);
                set.execute(params![to_i64(hour), name, block.0])?;
                let known = self.contents.volumes.get(id);
                let last = known.map_or(hour, |listed| listed.hour.max(hour));
                if known != Some(&Listed { hour: last, metrics: *metrics }) {
                    list.execute(params![name, to_i64(last), metrics])?;
                }
            }
        }
        tx.commit()
    }

    /// Logs an error once. Sets a damaged file aside, and creates a new one.
    fn failed(&mut self, error: &rusqlite::Error) {
        if let Some(path) = self.path.as_ref().filter(|_| is_damage(error)) {
            // Closed before its file is renamed, since it would remove the log of the new one.
            if let Ok(none) = Connection::open_in_memory() {
                self.connection = none;
            }
            set_aside(path, &error.to_string());
            match connect(path, self.pages_max) {
                Ok((connection, contents)) => {
                    (self.connection, self.contents) = (connection, contents);
                    return;
                }
                Err(Unfit::Damaged(reason) | Unfit::Failed(reason)) => {
                    error!("{}: {reason}", path.display());
                }
                Err(Unfit::Newer(_)) => {}
            }
        }
        if !std::mem::replace(&mut self.is_failing, true) {
            let path = self.path.as_deref().unwrap_or(Path::new("memory")).display();
            warn!("{path}: {error}; metrics of volumes are dropped until that is over");
        }
    }
}

/// Renames a file that cannot be read. Replaces one that was set aside before.
fn set_aside(path: &Path, reason: &str) {
    let aside = path.with_file_name(DAMAGED_NAME);
    let result = std::fs::rename(path, &aside);
    for log in ["-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(log);
        // Useless without the file.
        let _ = std::fs::remove_file(beside);
    }
    let path = path.display();
    let aside = aside.display();
    match result {
        Ok(()) => warn!("{path}: {reason}; it is kept as {aside}, and metrics begin anew"),
        Err(error) => warn!("{path}: {reason}; it cannot be renamed to {aside}: {error}"),
    }
}

/// Opens the file, or creates it, and lists its volumes and hours.
fn connect(path: &Path, pages_max: u64) -> Result<(Connection, Contents), Unfit> {
    private::prepare_database(path).map_err(|error| Unfit::Failed(error.to_string()))?;
    let connection = Connection::open(path)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > SCHEMA_VERSION {
        return Err(Unfit::Newer(version));
    }
    prepare(&connection, pages_max)?;
    let count = "SELECT count(*) FROM sqlite_schema";
    let tables: i64 = connection.query_row(count, [], |row| row.get(0))?;
    match (version, tables) {
        (SCHEMA_VERSION, _) => {}
        (0, 0) => connection.execute_batch(&format!(
            "BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        ))?,
        _ => return Err(Unfit::Damaged("these are not the tables of metrics".into())),
    }
    let contents = contents(&connection).map_err(|error| match error {
        // The table does not exist.
        error if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {
            Unfit::Damaged(error.to_string())
        }
        error => error.into(),
    })?;
    Ok((connection, contents))
}

/// Configures a connection. NORMAL: a power failure may lose the last minutes, but never damages
/// the file.
fn prepare(connection: &Connection, pages_max: u64) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
         PRAGMA busy_timeout = 1000; PRAGMA wal_autocheckpoint = 256;
         PRAGMA journal_size_limit = 4194304; PRAGMA max_page_count = {pages_max};"
    ))
}

fn contents(connection: &Connection) -> rusqlite::Result<Contents> {
    Ok(Contents { volumes: listed(connection)?, hours: hours(connection)? })
}

/// Returns the hours that have stored minutes. Each is one search of the index, not a scan.
fn hours(connection: &Connection) -> rusqlite::Result<BTreeSet<u64>> {
    let mut find = connection.prepare("SELECT min(hour) FROM minutes WHERE hour > ?")?;
    let mut hours = BTreeSet::new();
    let mut last = -1;
    while let Some(hour) = find.query_row([last], |row| row.get::<_, Option<i64>>(0))? {
        hours.extend(u64::try_from(hour));
        last = hour;
    }
    Ok(hours)
}

fn listed(connection: &Connection) -> rusqlite::Result<BTreeMap<VolumeId, Listed>> {
    let mut find = connection.prepare("SELECT volume_id, hour, metrics FROM volumes")?;
    let rows = find.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    })?;
    let mut volumes = BTreeMap::new();
    for row in rows {
        let (name, hour, metrics) = row?;
        // A row that cannot be parsed is skipped, since no volume can have its minutes.
        if let (Ok(id), Ok(hour), Ok(metrics)) =
            (name.parse(), u64::try_from(hour), u32::try_from(metrics))
        {
            volumes.insert(id, Listed { hour, metrics });
        }
    }
    Ok(volumes)
}

fn to_i64(hour: u64) -> i64 {
    saturating(hour)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloudwatch::METRICS_SPACE;
    use proptest::prelude::*;

    /// An hour of 2023.
    const H0: u64 = 472_222;

    fn open(folder: &tempfile::TempDir) -> Store {
        Store::open(folder.path(), METRICS_SPACE).unwrap()
    }

    fn id(bits: u128) -> VolumeId {
        VolumeId::from_bits(bits)
    }

    fn write(store: &mut Store, start_s: u64, volumes: &[(u128, u64)]) {
        let records = volumes.iter().map(|(bits, seed)| {
            let record = Record::example(*seed);
            (id(*bits), record, metrics::mask(&record))
        });
        store.write(start_s, &records.collect::<Vec<_>>());
    }

    fn all(store: &mut Store, bits: u128) -> Vec<(u64, Record)> {
        store.read(id(bits), 0, u64::MAX)
    }

    fn file_bytes(folder: &Path) -> u64 {
        std::fs::metadata(folder.join(FILE_NAME)).unwrap().len()
    }

    #[test]
    fn minutes_survive_a_restart_for_fifteen_days() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(&folder);
        let start = H0 * HOUR_S + 59 * MINUTE_S;
        write(&mut store, start, &[(1, 1), (2, 2)]);
        write(&mut store, start + MINUTE_S, &[(1, 3)]);
        drop(store);
        let mut store = open(&folder);
        let expected = [(start, Record::example(1)), (start + MINUTE_S, Record::example(3))];
        assert_eq!(all(&mut store, 1), expected);
        assert_eq!(store.read(id(1), start + 1, start + 61), expected[1..]);
        assert_eq!(store.read(id(1), start, start + MINUTE_S), expected[..1]);
        assert_eq!(all(&mut store, 2), [(start, Record::example(2))]);
        assert_eq!(all(&mut store, 3), []);
        let listed: Vec<_> = store.volumes().map(|(id, listed)| (id, listed.hour)).collect();
        assert_eq!(listed, [(id(1), H0 + 1), (id(2), H0)]);
        for hour in 2..HOURS_MAX {
            write(&mut store, (H0 + hour) * HOUR_S, &[(9, 1)]);
        }
        assert_eq!(all(&mut store, 2).len(), 1);
        write(&mut store, (H0 + HOURS_MAX) * HOUR_S, &[(9, 1)]);
        assert_eq!(all(&mut store, 2), []);
        assert_eq!(all(&mut store, 1), expected[1..]);
        assert_eq!(store.volumes().map(|(id, _)| id).collect::<Vec<_>>(), [id(1), id(9)]);
    }

    #[test]
    fn minutes_outlive_a_clock_that_is_set_in_either_direction() {
        const MONTH: u64 = 30 * 24;
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(&folder);
        let hours = HOURS_MAX - 4;
        (0..hours).for_each(|hour| write(&mut store, (H0 + hour) * HOUR_S, &[(1, hour)]));
        write(&mut store, H0 * HOUR_S, &[(2, 2)]);
        // A start with a wrong clock, its correction, and another start in 1970.
        for hour in [H0 + hours + MONTH, H0 + hours, H0 - MONTH, 7] {
            write(&mut store, hour * HOUR_S, &[(1, hour)]);
            drop(store);
            store = open(&folder);
            let found = all(&mut store, 1);
            let there = found.iter().filter(|(at, _)| (H0..H0 + hours).contains(&(at / HOUR_S)));
            assert_eq!(there.count() as u64, hours, "{hour}");
            assert!(found.contains(&(hour * HOUR_S, Record::example(hour))), "{hour}");
            assert_eq!(all(&mut store, 2).len(), 1, "{hour}");
        }
        // There is no more room: the next hour replaces that of the wrong clock.
        let after = H0 + hours + 1;
        write(&mut store, after * HOUR_S, &[(2, 1)]);
        let wrong = H0 + hours + MONTH;
        assert!(all(&mut store, 1).iter().all(|(at, _)| *at != wrong * HOUR_S));
        assert_eq!(all(&mut store, 1).len() as u64, HOURS_MAX - 1);
        assert_eq!(all(&mut store, 2).len(), 2);
    }

    #[test]
    fn kept_hours_are_bounded_when_the_clock_jumps() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(&folder);
        for number in 0..2 * HOURS_MAX {
            // By a day ahead and by almost as much back.
            let hour = H0 + number * 24 % 997;
            write(&mut store, hour * HOUR_S, &[(1, number)]);
            assert!(
                all(&mut store, 1).contains(&(hour * HOUR_S, Record::example(number))),
                "{number}"
            );
        }
        assert_eq!(all(&mut store, 1).len() as u64, HOURS_MAX);
    }

    #[test]
    fn merge_skips_malformed_parts_and_hours_out_of_range() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(&folder);
        let mut good = Block::default();
        good.set(5, &Record::example(1));
        let part = |hour, bytes: &[u8]| Part { hour, id: id(1), block: block(bytes.to_vec()) };
        let whole = good.0.as_slice();
        let torn = [whole, &[6, 200, 1, 2]].concat();
        let parts = [
            part(H0 - HOURS_MAX, whole),
            part(H0 - HOURS_MAX + 1, whole),
            part(H0 - 1, &torn),
            part(H0, &[9, 9, 9]),
            part(H0 + 1, whole),
        ];
        store.merge(H0, &parts).unwrap();
        store.merge(H0, &parts).unwrap();
        let at = |hour: u64| (hour * HOUR_S + 5 * MINUTE_S, Record::example(1));
        assert_eq!(all(&mut store, 1), [at(H0 - HOURS_MAX + 1), at(H0 - 1)]);
        assert_eq!(store.volumes().map(|(_, it)| it.hour).collect::<Vec<_>>(), [H0 - 1]);
    }

    #[test]
    fn the_oldest_hours_go_when_there_is_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let bytes_max = 64 * PAGE_BYTES;
        let mut store = Store::open(folder.path(), ByteCount(bytes_max)).unwrap();
        for minute in 0..4_800_u64 {
            let volumes: Vec<_> = (1..=8).map(|bits| (bits, minute * 8 + bits as u64)).collect();
            write(&mut store, H0 * HOUR_S + minute * MINUTE_S, &volumes);
        }
        assert!(!store.is_failing);
        assert!(file_bytes(folder.path()) <= bytes_max);
        for bits in 1..=8 {
            let found = all(&mut store, bits);
            let first = found[0].0;
            let last = found[found.len() - 1].0;
            assert_eq!(last, H0 * HOUR_S + 4_799 * MINUTE_S);
            assert!(first > H0 * HOUR_S && first.is_multiple_of(HOUR_S), "{first}");
            assert_eq!(found.len() as u64, (last - first) / MINUTE_S + 1);
            assert!(found.len() > 1_500, "{}", found.len());
        }
    }

    #[test]
    fn minute_that_does_not_fit_is_dropped_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let bytes_max = 16 * PAGE_BYTES;
        let mut store = Store::open(folder.path(), ByteCount(bytes_max)).unwrap();
        write(&mut store, H0 * HOUR_S, &[(1, 1)]);
        let many: Vec<_> = (1..=10_000).map(|bits| (bits, 7)).collect();
        write(&mut store, H0 * HOUR_S + MINUTE_S, &many);
        assert!(store.is_failing);
        write(&mut store, H0 * HOUR_S + 2 * MINUTE_S, &[(1, 2)]);
        assert!(!store.is_failing);
        let expected =
            [(H0 * HOUR_S, Record::example(1)), (H0 * HOUR_S + 2 * MINUTE_S, Record::example(2))];
        assert_eq!(all(&mut store, 1), expected);
        assert_eq!(store.volumes().count(), 1);
        assert!(file_bytes(folder.path()) <= bytes_max);
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_a_newer_one_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let aside = folder.path().join(DAMAGED_NAME);
        std::fs::write(&path, [7; 5_000]).unwrap();
        let mut store = open(&folder);
        assert_eq!(std::fs::read(&aside).unwrap(), [7; 5_000]);
        write(&mut store, H0 * HOUR_S, &[(1, 1)]);
        drop(store);
        let foreign = Connection::open(&path).unwrap();
        foreign.execute_batch("DROP TABLE volumes;").unwrap();
        drop(foreign);
        let mut store = open(&folder);
        assert_eq!(all(&mut store, 1), []);
        write(&mut store, H0 * HOUR_S, &[(1, 1)]);
        drop(store);
        Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 2;").unwrap();
        let mut store = open(&folder);
        assert_eq!(store.path, None);
        write(&mut store, H0 * HOUR_S, &[(2, 2)]);
        assert_eq!(all(&mut store, 2).len(), 1, "in memory");
        drop(store);
        Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 1;").unwrap();
        let mut store = open(&folder);
        assert_eq!((all(&mut store, 1).len(), all(&mut store, 2).len()), (1, 0));
    }

    #[test]
    fn damage_that_shows_later_costs_the_metrics_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let mut store = open(&folder);
        for minute in 0..60 {
            let volumes: Vec<_> = (1..=40).map(|bits| (bits, minute + bits as u64)).collect();
            write(&mut store, H0 * HOUR_S + minute * MINUTE_S, &volumes);
        }
        store.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE);").unwrap();
        drop(store);
        let mut bytes = std::fs::read(&path).unwrap();
        let page = PAGE_BYTES as usize;
        // Damages all pages but those of the schema and of the list of volumes.
        for at in (3 * page..bytes.len()).step_by(page) {
            bytes[at..at + page].fill(0xff);
        }
        std::fs::write(&path, bytes).unwrap();
        let mut store = open(&folder);
        for bits in 1..=40 {
            let _ = all(&mut store, bits);
        }
        write(&mut store, (H0 + 1) * HOUR_S, &[(1, 1)]);
        write(&mut store, (H0 + 1) * HOUR_S + MINUTE_S, &[(1, 2)]);
        assert_eq!(
            all(&mut store, 1).last(),
            Some(&((H0 + 1) * HOUR_S + MINUTE_S, Record::example(2)))
        );
        assert!(folder.path().join(DAMAGED_NAME).exists());
    }

    /// Minutes by which the clock moves: ahead, or a month in either direction.
    fn any_step() -> impl Strategy<Value = i64> {
        const MONTH: i64 = 30 * 24 * 60;
        prop_oneof![8 => -20..200_i64, 1 => Just(MONTH), 1 => Just(-MONTH)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

        /// Two servers record in turn, and the other one copies. The oracle is a map of all
        /// minutes.
        #[test]
        fn copied_minutes_equal_the_recorded_ones(
            terms in proptest::collection::vec((any::<bool>(), 1..90_u64), 1..12),
            bytes_max in 1..2_000_usize,
        ) {
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let mut stores = [open(&folders[0]), open(&folders[1])];
            let mut oracle = BTreeMap::new();
            let mut minute = H0 * 60 + 7;
            let mut since = 0;
            for (seed, (leads, length)) in (0..).zip(terms) {
                let leads = usize::from(leads);
                for _ in 0..length {
                    let start = minute * MINUTE_S;
                    let number = seed * 90 + minute;
                    // One of the volumes has minutes only sometimes.
                    let bits = if minute.is_multiple_of(7) { 2 } else { 1 };
                    write(&mut stores[leads], start, &[(bits, number)]);
                    oracle.insert((bits, start), Record::example(number));
                    minute += 1;
                }
                let mut after = None;
                loop {
                    let parts = stores[leads].parts(since, after, bytes_max).unwrap();
                    stores[1 - leads].merge(minute / 60, &parts).unwrap();
                    let Some(last) = parts.last() else { break };
                    after = Some((last.hour, last.id));
                }
                since = minute.saturating_sub(3) * MINUTE_S;
                for bits in 1..=2 {
                    let of_it = oracle.iter().filter(|((of, _), _)| *of == bits);
                    let expected: Vec<_> = of_it.map(|((_, at), r)| (*at, *r)).collect();
                    for store in &mut stores {
                        prop_assert_eq!(&all(store, bits), &expected);
                    }
                }
                let [one, other] = &stores;
                prop_assert!(one.volumes().eq(other.volumes()));
            }
        }

        /// The oracle is a map of all minutes. The clock may be set; there is room for all hours.
        #[test]
        fn minutes_read_agree_with_a_map(
            steps in proptest::collection::vec((0..3_u128, any_step(), any::<bool>()), 1..60),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut store = open(&folder);
            let mut oracle = BTreeMap::new();
            let mut minute = (H0 * 60) as i64;
            for (seed, (bits, forward, reopen)) in (0..).zip(steps) {
                minute += forward;
                let start = minute as u64 * MINUTE_S;
                write(&mut store, start, &[(bits, seed)]);
                oracle.insert((bits, start), Record::example(seed));
                if reopen {
                    drop(store);
                    store = open(&folder);
                }
                for bits in 0..3 {
                    let of_it = oracle.iter().filter(|((of, _), _)| *of == bits);
                    let expected: Vec<_> = of_it.map(|((_, at), r)| (*at, *r)).collect();
                    let last = expected.last().map(|(at, _)| at / HOUR_S);
                    prop_assert_eq!(all(&mut store, bits), expected);
                    let mut listed = store.volumes().filter(|(of, _)| *of == id(bits));
                    prop_assert_eq!(listed.next().map(|(_, it)| it.hour), last);
                }
            }
        }
    }
}
