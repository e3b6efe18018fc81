//! `evenkeel snapshot export`, `import` and what belongs to them.

use crate::cli::{ExportAt, ExportKeys, ExportWork, S3, SnapshotExport, SnapshotImport};
use evenkeel_client::Client;
use evenkeel_client::export::destination::{Place, S3Options};
use evenkeel_client::export::restore::NewImport;
use evenkeel_client::export::{UNIT_BYTES, restore, write};
use evenkeel_client::output::{self, Exit, Failure, Format, Item, or_dash};
use evenkeel_client::pace::Pace;
use evenkeel_client::snapshots::Snapshot;
use evenkeel_server::store_options::StoreOptions;
use evenkeel_store::encryption::keys::Keys;
use serde::Serialize;
use serde_json::json;

const NO_EXPORTS: &str =
    "no exports here yet; make one with `evenkeel snapshot export SNAPSHOT --to PLACE`";

fn pace(work: &ExportWork) -> Pace {
    Pace::new(work.rate.map(|mib| mib << 20))
}

fn s3(flags: &S3) -> S3Options {
    S3Options { endpoint: flags.s3_endpoint.clone(), region: flags.s3_region.clone() }
}

/// The keys that the flags name.
fn keys(flags: &ExportKeys) -> Result<Option<Keys>, Failure> {
    let ExportKeys { key_file, key_command } = flags;
    let key_file = key_file.clone();
    let key_command = key_command.clone();
    StoreOptions { key_file, key_command, ..StoreOptions::default() }.keys()
}

/// A place that is there.
fn opened(at: &ExportAt) -> Result<Place, Failure> {
    Place::open(&at.place, &s3(&at.s3), keys(&at.keys)?.as_ref(), false)
}

/// An encrypted snapshot is written without encryption only if the user asks for that.
fn warn_or_refuse(id: &str, place: &Place, is_plain: bool) -> Result<(), Failure> {
    if is_plain {
        eprintln!(
            "warning: {id} is encrypted, and its export is not: every user who can read {place} \
             can read its data"
        );
        return Ok(());
    }
    let message = format!("{id} is encrypted, and its export to {place} would not be");
    let hint = "name a key with --key-file or --key-command, or export it with --plain";
    Err(Failure::new(message).exit(Exit::Usage).hint(hint))
}

pub fn export(
    client: &Client,
    snapshot: &Snapshot,
    export: &SnapshotExport,
    format: Format,
) -> Result<(), Failure> {
    let id = &snapshot.snapshot_id;
    if snapshot.state != "completed" {
        let message = format!("{id} is {}, and only a completed one is exported", snapshot.state);
        return Err(Failure::new(message).hint("`evenkeel snapshot show` shows its state"));
    }
    let keys = if export.plain { None } else { keys(&export.keys)? };
    let place = Place::open(&export.to, &s3(&export.s3), keys.as_ref(), true)?;
    if snapshot.encrypted && !place.is_sealed() {
        warn_or_refuse(id, &place, export.plain)?;
    }
    let parent = export.parent.map(|parent| parent.to_string());
    let pace = pace(&export.work);
    let jobs = usize::from(export.work.jobs);
    let written = write::export(client, &place, snapshot, parent.as_deref(), &pace, jobs)?;
    if format == Format::Json {
        let value = json!({ "schema": "evenkeel.export/1", "export": written });
        return output::print(&output::json(&value));
    }
    let mib = |bytes: u64| bytes >> 20;
    output::print(&format!(
        "{id} is exported to {place}: {} MiB of data, of which {} MiB were written now and {} MiB \
         were there\n",
        mib(written.units * UNIT_BYTES),
        mib(written.bytes_written),
        mib((written.units * UNIT_BYTES).saturating_sub(written.bytes_written)),
    ))
}

pub fn import(client: &Client, import: &SnapshotImport, format: Format) -> Result<(), Failure> {
    let keys = keys(&import.keys)?;
    let place = Place::open(&import.from, &s3(&import.s3), keys.as_ref(), false)?;
    let pace = pace(&import.work);
    let jobs = usize::from(import.work.jobs);
    if place.is_sealed() && import.unencrypted {
        eprintln!(
            "warning: the export of {} is encrypted, and its import is only if {} encrypts new \
             volumes",
            import.snapshot,
            client.authority()
        );
    }
    let new = NewImport {
        description: import.description.as_deref(),
        tags: &import.tags,
        is_encrypted: place.is_sealed() && !import.unencrypted,
    };
    let snapshot = import.snapshot.to_string();
    let restored = restore::import(client, &place, &snapshot, &new, &pace, jobs)?;
    tell(&restored, &place, format)
}

pub fn verify(
    at: &ExportAt,
    work: &ExportWork,
    snapshot: &str,
    format: Format,
) -> Result<(), Failure> {
    let place = opened(at)?;
    let restored = restore::verify(&place, snapshot, &pace(work), usize::from(work.jobs))?;
    tell(&restored, &place, format)
}

fn tell(restored: &restore::Restored, place: &Place, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let value = json!({ "schema": "evenkeel.import/1", "import": restored });
        return output::print(&output::json(&value));
    }
    let exported = &restored.exported;
    let mib = (restored.units * UNIT_BYTES) >> 20;
    output::print(&match &restored.snapshot {
        Some(id) if restored.bytes == 0 && restored.units > 0 => {
            format!("{id} is an import of {exported} already\n")
        }
        Some(id) => format!("{id} is an import of {exported}: {mib} MiB of data, verified\n"),
        None => format!("{exported} in {place} is whole: {mib} MiB of data\n"),
    })
}

pub fn remove(at: &ExportAt, snapshot: &str) -> Result<(), Failure> {
    opened(at)?.remove(snapshot)
}

/// A row of the list of exports.
#[derive(Serialize, Debug)]
struct Exported {
    snapshot_id: String,
    size_gib: u64,
    parent: Option<String>,
    data_bytes: u64,
    start_time: String,
    description: String,
}

impl Item for Exported {
    const SCHEMA: &'static str = "evenkeel.exports/1";
    const FIELD: &'static str = "exports";
    const COLUMNS: &'static [&'static str] =
        &["SNAPSHOT", "GIB", "PARENT", "DATA BYTES", "STARTED", "DESCRIPTION"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.snapshot_id.clone(),
            self.size_gib.to_string(),
            or_dash(self.parent.clone()),
            self.data_bytes.to_string(),
            self.start_time.clone(),
            self.description.clone(),
        ]
    }
}

pub fn list(at: &ExportAt, format: Format) -> Result<(), Failure> {
    let place = opened(at)?;
    let mut rows = Vec::new();
    for id in place.snapshots()? {
        let manifest = place.known(&id)?;
        rows.push(Exported {
            snapshot_id: id,
            size_gib: manifest.size_gib,
            parent: manifest.parent,
            data_bytes: manifest.units.len() as u64 * UNIT_BYTES,
            start_time: manifest.started,
            description: manifest.description,
        });
    }
    output::print(&output::listing(&rows, format, NO_EXPORTS))
}
