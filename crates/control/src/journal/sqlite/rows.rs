//! Conversion between the model's types and the rows of the tables. Returns SQLite's error if a
//! value in a row is unknown.

use std::collections::BTreeSet;

use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::agent::HostAddress;
use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use crate::credits::{Moment, Stop};
use crate::journal::{Credits, Loaded, Revision};
use crate::model::{
    Account, Attachment, AttachmentState, Event, FastRestore, Filled, Host, HostState, Lock,
    LockMode, Model, Modification, ModificationPhase, Phase, Snapshot, SnapshotPhase, Tags,
    TierOperation, Tiering, Token, UnixMs, Volume,
};

pub(super) fn store(tx: &Transaction<'_>, event: &Event) -> rusqlite::Result<()> {
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
            let terminated = match host.state {
                HostState::Terminated { at } => Some(to_i64(at.0)),
                HostState::Running | HostState::Stopped => None,
            };
            let (state, _) = host.state.name();
            let registered = to_i64(host.registered.0);
            tx.execute(
                "INSERT OR REPLACE INTO hosts VALUES (?, ?, ?, ?, ?, ?, ?)",
                params![id, host.instance_type, address, registered, state, terminated, host.zone],
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
                "INSERT INTO client_tokens VALUES (?, ?, ?, ?)",
                params![name, token.fingerprint, token.volume.to_string(), to_i64(token.used.0)],
            )
            .map(drop),
        Event::TokenGone(name) => {
            tx.execute("DELETE FROM client_tokens WHERE token = ?", [name]).map(drop)
        }
        Event::Snapshot(snapshot) => store_snapshot(tx, snapshot),
        Event::SnapshotGone(id) => {
            let id = id.to_string();
            tx.execute("DELETE FROM tags WHERE resource_id = ?", [&id])?;
            tx.execute("DELETE FROM snapshot_shares WHERE snapshot_id = ?", [&id])?;
            tx.execute("DELETE FROM snapshots WHERE id = ?", [&id]).map(drop)
        }
        Event::Account(account) => tx
            .execute(
                "INSERT OR REPLACE INTO account (only, encrypt_by_default, public_access)
                VALUES (1, ?, ?)",
                params![account.encrypt_by_default, account.public_access.to_string()],
            )
            .map(drop),
    }
}

fn store_snapshot(tx: &Transaction<'_>, snapshot: &Snapshot) -> rusqlite::Result<()> {
    let id = snapshot.id.to_string();
    let (phase, data, ended, reason) = match &snapshot.phase {
        SnapshotPhase::Pending => ("pending", None, None, None),
        SnapshotPhase::Filling => ("filling", None, None, None),
        SnapshotPhase::Copying { data } => ("copying", Some(*data), None, None),
        SnapshotPhase::Binned { data, ended, .. } => ("binned", Some(*data), Some(*ended), None),
        SnapshotPhase::Completed { data, ended } => ("completed", Some(*data), Some(*ended), None),
        SnapshotPhase::Error(reason) => ("error", None, None, Some(reason)),
        SnapshotPhase::Deleting { data } => ("deleting", Some(*data), None, None),
    };
    let filled = snapshot.filled.as_ref();
    let token = filled.and_then(|filled| filled.token.as_ref());
    let (lock, fast) = (snapshot.lock.as_ref(), snapshot.fast_restore.as_ref());
    let tiering = snapshot.tiering.as_ref();
    let binned = match &snapshot.phase {
        SnapshotPhase::Binned { entered, until, .. } => Some((entered, until)),
        _ => None,
    };
    tx.execute(
        "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            id,
            snapshot.volume.to_string(),
            snapshot.size_gib,
            snapshot.description,
            to_i64(snapshot.started.0),
            phase,
            data.map(|data| to_i64(data.0)),
            ended.map(|ended| to_i64(ended.0)),
            reason,
            filled.and_then(|filled| filled.parent).map(|parent| parent.to_string()),
            filled.map(|filled| filled.timeout_min),
            token.map(|(name, _)| name),
            token.map(|(_, fingerprint)| fingerprint),
            snapshot.copy_of.map(|of| of.to_string()),
            snapshot.for_volume.map(|volume| volume.to_string()),
            snapshot.is_encrypted,
            lock.map(|lock| lock.mode.name()),
            lock.map(|lock| to_i64(lock.created.0)),
            lock.map(|lock| lock.cool_off_hours),
            lock.map(|lock| lock.days),
            lock.and_then(|lock| lock.until).map(|until| to_i64(until.0)),
            fast.map(|fast| to_i64(fast.since.0)),
            fast.map(|fast| to_i64(fast.credits)),
            fast.map(|fast| to_i64(fast.counted.0)),
            binned.map(|(entered, _)| to_i64(entered.0)),
            binned.map(|(_, until)| to_i64(until.0)),
            tiering.map(|it| tier_operation(it.last).0),
            tiering.map(|it| to_i64(it.began.0)),
            tiering.map(|it| to_i64(it.archived.0)),
            tiering.and_then(|it| tier_operation(it.last).1).map(|until| to_i64(until.0))
        ],
    )?;
    tx.execute("DELETE FROM snapshot_shares WHERE snapshot_id = ?", [&id])?;
    for account in &snapshot.shared_with {
        tx.execute("INSERT INTO snapshot_shares VALUES (?, ?)", params![id, account])?;
    }
    store_tags(tx, &id, &snapshot.tags)
}

/// The name of an operation in the table, and when a temporary restore ends.
const fn tier_operation(last: TierOperation) -> (&'static str, Option<UnixMs>) {
    match last {
        TierOperation::Archive => ("archive", None),
        TierOperation::TemporaryRestore { until } => ("temporary_restore", Some(until)),
        TierOperation::PermanentRestore => ("permanent_restore", None),
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
        Phase::Binned { .. } => ("binned", None),
    };
    let binned = match &volume.phase {
        Phase::Binned { entered, until } => Some((entered, until)),
        _ => None,
    };
    let spec = &volume.spec;
    tx.execute(
        "INSERT OR REPLACE INTO volumes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         ?, ?, ?, ?, ?, ?, ?)",
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
            reason,
            volume.snapshot.map(|snapshot| snapshot.to_string()),
            volume.source.map(|source| source.to_string()),
            volume.through.map(|snapshot| snapshot.to_string()),
            volume.is_encrypted,
            volume.is_fast_restored,
            volume.auto_enable_io,
            binned.map(|(entered, _)| to_i64(entered.0)),
            binned.map(|(_, until)| to_i64(until.0))
        ],
    )?;
    for (position, attachment) in (0_i64..).zip(&volume.attachments) {
        tx.execute(
            "INSERT INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?)",
            params![
                id,
                position,
                attachment.instance.to_string(),
                attachment.device,
                attachment.state.name(),
                to_i64(attachment.attached.0),
                attachment.delete_on_termination
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

/// Removes the rows of a volume before they are written again, or for its deletion.
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

pub(super) fn store_credits(tx: &Transaction<'_>, credits: &Credits) -> rusqlite::Result<()> {
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

/// Records a clean stop: no change follows this one.
pub(super) fn store_clean_stop(tx: &Transaction<'_>, now: &Moment) -> rusqlite::Result<()> {
    let (boot_id, boot_ms) = now.boot.as_ref().map(|(id, ms)| (id, to_i64(*ms))).unzip();
    tx.execute(
        "INSERT OR REPLACE INTO clean_stop (only, stopped_ms, boot_id, boot_ms) \
         VALUES (1, ?, ?, ?)",
        params![to_i64(now.unix.0), boot_id, boot_ms],
    )
    .map(drop)
}

/// Records the server's time.
pub(super) fn store_clock(tx: &Transaction<'_>, now: &Moment) -> rusqlite::Result<()> {
    let (boot_id, boot_ms) = now.boot.as_ref().map(|(id, ms)| (id, to_i64(*ms))).unzip();
    tx.execute(
        "INSERT OR REPLACE INTO clock (only, unix_ms, boot_id, boot_ms) VALUES (1, ?, ?, ?)",
        params![to_i64(now.unix.0), boot_id, boot_ms],
    )
    .map(drop)
}

fn load_credits(db: &Connection) -> rusqlite::Result<Credits> {
    let balances = |row: &Cells<'_>| {
        let amount = |column| Ok::<_, rusqlite::Error>(row.get::<Option<i64>>(column)?.map(to_u64));
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

pub(super) fn load(db: &Connection) -> rusqlite::Result<Loaded> {
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
    load_hosts(db, &mut model)?;
    load_snapshots(db, &mut model)?;
    each(db, "SELECT * FROM account", |row| {
        model.account = Account {
            encrypt_by_default: row.get("encrypt_by_default")?,
            public_access: parsed(row, "public_access")?,
        };
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
    let mut stopped = None;
    each(db, "SELECT * FROM clean_stop", |row| {
        let boot_ms: Option<i64> = row.get("boot_ms")?;
        let boot = row.get::<Option<String>>("boot_id")?.zip(boot_ms.map(to_u64));
        stopped = Some(Moment { unix: time(row, "stopped_ms")?, boot });
        Ok(())
    })?;
    let leased = db.query_row("SELECT only FROM leased", [], |_| Ok(())).optional()?;
    let stop = match (stopped, leased) {
        (Some(stopped), _) => Stop::Clean(stopped),
        (None, Some(())) => Stop::Crash,
        (None, None) => Stop::CrashBeforeLeases,
    };
    let mut clock = None;
    each(db, "SELECT * FROM clock", |row| {
        let boot_ms: Option<i64> = row.get("boot_ms")?;
        let boot = row.get::<Option<String>>("boot_id")?.zip(boot_ms.map(to_u64));
        clock = Some(Moment { unix: time(row, "unix_ms")?, boot });
        Ok(())
    })?;
    let revision = revision(db)?;
    Ok(Loaded { model, credits, stop, clock, revision })
}

fn load_hosts(db: &Connection, model: &mut Model) -> rusqlite::Result<()> {
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
            state: host_state(row)?,
            tags: Tags::new(),
            zone: row.get("zone")?,
        };
        model.hosts.insert(host.id, host);
        Ok(())
    })
}

fn load_snapshots(db: &Connection, model: &mut Model) -> rusqlite::Result<()> {
    each(db, "SELECT * FROM snapshots", |row| {
        let snapshot = snapshot(row)?;
        model.snapshots.insert(snapshot.id, snapshot);
        Ok(())
    })?;
    each(db, "SELECT * FROM snapshot_shares", |row| {
        if let Some(snapshot) = model.snapshots.get_mut(&parsed(row, "snapshot_id")?) {
            snapshot.shared_with.insert(row.get("account")?);
        }
        Ok(())
    })
}

/// The journal's revision.
pub(super) fn revision(db: &Connection) -> rusqlite::Result<Revision> {
    let number = db.query_row("SELECT number FROM revision", [], |row| row.get::<_, i64>(0))?;
    Ok(Revision(to_u64(number)))
}

fn load_tags(db: &Connection, model: &mut Model) -> rusqlite::Result<()> {
    // Those of one resource were stored together, and come together.
    let (mut id, mut tags) = (String::new(), Tags::new());
    each(db, "SELECT * FROM tags", |row| {
        let next = row.text("resource_id")?.unwrap_or_default();
        if next != id {
            set_tags(model, &id, std::mem::take(&mut tags));
            next.clone_into(&mut id);
        }
        tags.insert(row.get("key")?, row.get("value")?);
        Ok(())
    })?;
    set_tags(model, &id, tags);
    Ok(())
}

/// Gives a resource tags beside those that it has.
fn set_tags(model: &mut Model, id: &str, mut tags: Tags) {
    let volume = id.parse().ok().and_then(|id| model.volumes.get_mut(&id));
    let host = id.parse().ok().and_then(|id| model.hosts.get_mut(&id));
    let snapshot = id.parse().ok().and_then(|id| model.snapshots.get_mut(&id));
    let of_volume = volume.map(|volume| &mut volume.tags);
    let of_host = host.map(|host| &mut host.tags);
    if let Some(present) = of_volume.or(of_host).or(snapshot.map(|snapshot| &mut snapshot.tags)) {
        present.append(&mut tags);
    }
}

fn volume(row: &Cells<'_>) -> rusqlite::Result<Volume> {
    let phase: String = row.get("phase")?;
    Ok(Volume {
        id: parsed(row, "id")?,
        zone: row.get("zone")?,
        created: time(row, "created_ms")?,
        snapshot: parsed_if_any(row, "snapshot_id")?,
        source: parsed_if_any(row, "source_id")?,
        through: parsed_if_any(row, "through_id")?,
        is_encrypted: row.get("encrypted")?,
        is_fast_restored: row.get("fast_restored")?,
        auto_enable_io: row.get("auto_enable_io")?,
        spec: spec(row, "")?,
        phase: match phase.as_str() {
            "creating" => Phase::Creating,
            "ready" => Phase::Ready,
            "deleting" => Phase::Deleting,
            "error" => Phase::Error(row.get("reason")?),
            "binned" => Phase::Binned {
                entered: time(row, "binned_ms")?,
                until: time(row, "bin_until_ms")?,
            },
            other => return Err(senseless(row, "phase", other)),
        },
        attachments: vec![],
        tags: Tags::new(),
        modification: None,
        modification_starts: vec![],
    })
}

fn snapshot(row: &Cells<'_>) -> rusqlite::Result<Snapshot> {
    let phase: String = row.get("phase")?;
    let data = || row.get::<i64>("data_bytes").map(|bytes| ByteCount(to_u64(bytes)));
    Ok(Snapshot {
        id: parsed(row, "id")?,
        volume: parsed(row, "volume_id")?,
        size_gib: row.get("volume_size_gib")?,
        description: row.get("description")?,
        started: time(row, "started_ms")?,
        phase: match phase.as_str() {
            "pending" => SnapshotPhase::Pending,
            "filling" => SnapshotPhase::Filling,
            "copying" => SnapshotPhase::Copying { data: data()? },
            "binned" => SnapshotPhase::Binned {
                data: data()?,
                ended: time(row, "ended_ms")?,
                entered: time(row, "binned_ms")?,
                until: time(row, "bin_until_ms")?,
            },
            "completed" => {
                SnapshotPhase::Completed { data: data()?, ended: time(row, "ended_ms")? }
            }
            "error" => SnapshotPhase::Error(row.get("reason")?),
            "deleting" => SnapshotPhase::Deleting { data: data()? },
            other => return Err(senseless(row, "phase", other)),
        },
        tags: Tags::new(),
        filled: filled(row)?,
        copy_of: parsed_if_any(row, "copy_of_id")?,
        for_volume: parsed_if_any(row, "for_volume_id")?,
        is_encrypted: row.get("encrypted")?,
        lock: lock(row)?,
        shared_with: BTreeSet::new(),
        fast_restore: fast_restore(row)?,
        tiering: tiering(row)?,
    })
}

fn filled(row: &Cells<'_>) -> rusqlite::Result<Option<Filled>> {
    let Some(timeout_min) = row.get("timeout_min")? else { return Ok(None) };
    let parent = parsed_if_any(row, "parent_id")?;
    let name: Option<String> = row.get("token")?;
    let token = name.map(|name| Ok::<_, rusqlite::Error>((name, row.get("fingerprint")?)));
    Ok(Some(Filled { parent, timeout_min, token: token.transpose()? }))
}

fn lock(row: &Cells<'_>) -> rusqlite::Result<Option<Lock>> {
    let Some(mode) = row.get::<Option<String>>("lock_mode")? else { return Ok(None) };
    let known = [LockMode::Governance, LockMode::Compliance];
    let known = known.into_iter().find(|known| known.name() == mode);
    let until: Option<i64> = row.get("lock_until_ms")?;
    Ok(Some(Lock {
        mode: known.ok_or_else(|| senseless(row, "lock_mode", &mode))?,
        created: time(row, "lock_created_ms")?,
        cool_off_hours: row.get("lock_cool_off_hours")?,
        days: row.get("lock_days")?,
        until: until.map(|until| UnixMs(to_u64(until))),
    }))
}

fn fast_restore(row: &Cells<'_>) -> rusqlite::Result<Option<FastRestore>> {
    if row.get::<Option<i64>>("fast_since_ms")?.is_none() {
        return Ok(None);
    }
    Ok(Some(FastRestore {
        since: time(row, "fast_since_ms")?,
        credits: to_u64(row.get("fast_credits_micro")?),
        counted: time(row, "fast_counted_ms")?,
    }))
}

fn tiering(row: &Cells<'_>) -> rusqlite::Result<Option<Tiering>> {
    let Some(last) = row.get::<Option<String>>("tier_operation")? else { return Ok(None) };
    Ok(Some(Tiering {
        last: match last.as_str() {
            "archive" => TierOperation::Archive,
            "temporary_restore" => {
                TierOperation::TemporaryRestore { until: time(row, "tier_until_ms")? }
            }
            "permanent_restore" => TierOperation::PermanentRestore,
            other => return Err(senseless(row, "tier_operation", other)),
        },
        began: time(row, "tier_began_ms")?,
        archived: time(row, "tier_archived_ms")?,
    }))
}

fn host_state(row: &Cells<'_>) -> rusqlite::Result<HostState> {
    let state: String = row.get("state")?;
    match state.as_str() {
        "running" => Ok(HostState::Running),
        "stopped" => Ok(HostState::Stopped),
        "terminated" => Ok(HostState::Terminated { at: time(row, "terminated_ms")? }),
        other => Err(senseless(row, "state", other)),
    }
}

fn spec(row: &Cells<'_>, prefix: &str) -> rusqlite::Result<VolumeSpec> {
    let column = |name: &str| format!("{prefix}{name}");
    Ok(VolumeSpec {
        volume_type: parsed(row, &column("type"))?,
        size_gib: row.get(&column("size_gib"))?,
        iops: row.get(&column("iops"))?,
        throughput_mibps: row.get(&column("throughput_mibps"))?,
        multi_attach: row.get(&column("multi_attach"))?,
    })
}

fn attachment(row: &Cells<'_>) -> rusqlite::Result<Attachment> {
    use AttachmentState::{Attached, Attaching, Detaching};
    let state: String = row.get("state")?;
    let known = [Attaching, Attached, Detaching].into_iter().find(|s| s.name() == state);
    Ok(Attachment {
        instance: parsed(row, "instance_id")?,
        device: row.get("device")?,
        state: known.ok_or_else(|| senseless(row, "state", &state))?,
        attached: time(row, "attached_ms")?,
        delete_on_termination: row.get("delete_on_termination")?,
    })
}

fn modification(row: &Cells<'_>) -> rusqlite::Result<Modification> {
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
    mut take: impl FnMut(&Cells<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = db.prepare(sql)?;
    let mut columns: Vec<(String, usize)> =
        statement.column_names().map(str::to_owned).zip(0..).collect();
    columns.sort_unstable();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(&Cells { row, columns: &columns })?;
    }
    Ok(())
}

/// A row whose columns are found by their names. SQLite compares a name with those of all columns,
/// which is half of the work where there are many rows.
struct Cells<'a> {
    row: &'a Row<'a>,
    /// By name.
    columns: &'a [(String, usize)],
}

impl Cells<'_> {
    fn index(&self, column: &str) -> usize {
        let found = self.columns.binary_search_by(|(name, _)| name.as_str().cmp(column));
        found.ok().and_then(|at| self.columns.get(at)).map_or(usize::MAX, |(_, index)| *index)
    }

    fn get<T: FromSql>(&self, column: &str) -> rusqlite::Result<T> {
        self.row.get(self.index(column))
    }

    /// The text of a column; `None` if it is NULL.
    fn text(&self, column: &str) -> rusqlite::Result<Option<&str>> {
        Ok(self.row.get_ref(self.index(column))?.as_str_or_null()?)
    }
}

fn parsed<T: std::str::FromStr>(row: &Cells<'_>, column: &str) -> rusqlite::Result<T> {
    let text = row.text(column)?.unwrap_or_default();
    text.parse().map_err(|_| senseless(row, column, text))
}

/// The same of a column that may be NULL.
fn parsed_if_any<T: std::str::FromStr>(
    row: &Cells<'_>,
    column: &str,
) -> rusqlite::Result<Option<T>> {
    let parsed = |text: &str| text.parse().map_err(|_| senseless(row, column, text));
    row.text(column)?.map(parsed).transpose()
}

fn time(row: &Cells<'_>, column: &str) -> rusqlite::Result<UnixMs> {
    row.get::<i64>(column).map(|ms| UnixMs(to_u64(ms)))
}

/// The error of a value that this version of the program has not written.
fn senseless(row: &Cells<'_>, column: &str, value: &str) -> rusqlite::Error {
    let index = row.index(column);
    let what = format!("column {column} has the value '{value}', which makes no sense there");
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, what.into())
}

/// Converts to SQLite's signed integers. No value here comes near 2^63.
pub(super) fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn to_u64(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
