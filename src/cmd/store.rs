//! `evenkeel store`: the pool of a data folder. `scrub` asks the server; the other verbs read the
//! pool directly, while the server is stopped.

use crate::cli::{Bytes, LocalStore, RbdStore, StoreArgs, StoreKind, StoreVerb, Wait};
use evenkeel_cli::connect;
use evenkeel_client::Client;
use evenkeel_client::output::{self, Exit, Failure, Format, Item, failed};
use evenkeel_client::scrub::Scrub;
use evenkeel_core::units::ByteCount;
use evenkeel_server::store_options::StoreOptions;
use evenkeel_store::Pool;
use evenkeel_store::folder::Folder;
use evenkeel_store::local::device::FileDevice;
use evenkeel_store::local::discovery::{self, Note};
use evenkeel_store::local::pool::LocalPool;
use evenkeel_store::local::{BLOCK_BYTES, CHUNK_BLOCKS, check, inspect};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::path::Path;

pub fn run(arguments: &StoreArgs) -> Result<(), Failure> {
    let named = &arguments.connection.data_dir;
    let data_dir = std::path::absolute(named)
        .map_err(|error| Failure::new(format!("{}: {error}", named.display())))?;
    let (text, value) = match &arguments.verb {
        StoreVerb::Init { local, force } => init(&data_dir, &options(local)?, *force)?,
        StoreVerb::Inspect { pool } => {
            return output::print(&inspect(&data_dir, pool.as_deref(), arguments.output.format)?);
        }
        StoreVerb::Check { data } => check(&data_dir, *data, arguments.output.format)?,
        StoreVerb::Scrub { rate, stop, status, wait } => {
            let client = connect::client(&arguments.connection)?;
            let scrub = match (stop, status) {
                (true, _) => Scrub::read(&client.call("StopScrub", &[])?),
                (_, true) => Scrub::read(&client.call("DescribeScrub", &[])?),
                _ => scrub(&client, *rate, wait)?,
            };
            let Some(scrub) = scrub else {
                let hint = "start one with `evenkeel store scrub`";
                return Err(Failure::new("there was no scrub yet").exit(Exit::NotFound).hint(hint));
            };
            found(arguments.output.format, &scrub)?
        }
    };
    output::print(&match arguments.output.format {
        Format::Json => output::json(&value),
        Format::Text => text,
        Format::Csv => {
            let message = "-o csv: what this verb finds is no list of items";
            return Err(Failure::new(message).exit(Exit::Usage).hint("use -o json, or text"));
        }
    })
}

/// Starts a scrub, and waits for its end if that is requested.
fn scrub(client: &Client, rate: u32, wait: &Wait) -> Result<Option<Scrub>, Failure> {
    let started = client.call("StartScrub", &[("MiBPerSecond", &rate.to_string())])?;
    if !wait.wait {
        return Ok(Scrub::read(&started));
    }
    client.wait("the scrub to be completed", wait.timeout, |client| {
        let scrub = Scrub::read(&client.call("DescribeScrub", &[])?);
        match scrub.as_ref().map(|scrub| scrub.state.as_str()) {
            Some("running") => Ok(None),
            Some("completed") => Ok(Some(scrub)),
            _ => Err(Failure::new("the scrub was stopped").hint("the next scrub resumes there")),
        }
    })
}

/// Returns the findings of a scrub; prints them and returns a failure if there is damage.
fn found(format: Format, scrub: &Scrub) -> Result<(String, Value), Failure> {
    let value = json!({ "schema": "evenkeel.scrub/1", "scrub": scrub });
    let text = scrub.lines();
    let rotten = scrub.rotten_places;
    if rotten == 0 {
        return Ok((text, value));
    }
    let shown = if format == Format::Json { output::json(&value) } else { text };
    output::print(&shown)?;
    Err(Failure::new(format!("{rotten} places are not as they were written"))
        .hint("write them anew, or restore the volumes from snapshots or copies"))
}

fn options(local: &LocalStore) -> Result<StoreOptions, Failure> {
    StoreOptions::of(local, &RbdStore::default(), &StoreKind { bytes: Bytes::Local, device: None })
}

fn init(data_dir: &Path, local: &StoreOptions, force: bool) -> Result<(String, Value), Failure> {
    if Note::read(data_dir).map_err(failed)?.is_some_and(|note| note.session > 0) {
        let message = format!("{} has a pool already", data_dir.display());
        return Err(Failure::new(message).hint("serve it, or name another folder with --data-dir"));
    }
    if let Some(device) = local.pool.as_deref().filter(|_| force) {
        discovery::wipe(device).map_err(failed)?;
    }
    // Wrong keys are found before a pool is made.
    local.keys()?;
    let pool = LocalPool::in_folder(data_dir, local.pool.as_deref()).map_err(failed)?;
    let space = pool.space().map_err(failed)?;
    let total = space.map_or(ByteCount(0), |space| space.total);
    let place = local.pool.clone().unwrap_or_else(|| data_dir.join(discovery::FILE));
    let text = format!("{}: a pool with room for {total}\n", place.display());
    let value = json!({
        "schema": "evenkeel.store-init/1",
        "pool": place,
        "total_bytes": total.0,
    });
    Ok((text, value))
}

/// Returns a data folder's note of its pool.
fn note_of(data_dir: &Path) -> Result<Note, Failure> {
    match Note::read(data_dir).map_err(failed)? {
        Some(note) => Ok(note),
        None => {
            let message = format!("{} has no pool", data_dir.display());
            let hint = "name the data folder with --data-dir; `evenkeel store init` makes a pool";
            Err(Failure::new(message).exit(Exit::NotFound).hint(hint))
        }
    }
}

impl Item for Inspected {
    const SCHEMA: &'static str = "evenkeel.store-items/1";
    const FIELD: &'static str = "items";
    const COLUMNS: &'static [&'static str] =
        &["ID", "KIND", "SIZE", "DATA", "OWNED", "ENCRYPTED", "OF"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.kind.to_owned(),
            self.size_bytes.to_string(),
            self.data_bytes.map_or_else(|| "unknown".to_owned(), |data| data.to_string()),
            self.owned_bytes.to_string(),
            if self.encrypted { "yes" } else { "no" }.to_owned(),
            self.parent.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

/// A volume or a snapshot in the listing.
#[derive(Serialize)]
struct Inspected {
    id: String,
    kind: &'static str,
    #[serde(serialize_with = "bytes")]
    size_bytes: ByteCount,
    #[serde(serialize_with = "maybe_bytes")]
    data_bytes: Option<ByteCount>,
    #[serde(serialize_with = "bytes")]
    owned_bytes: ByteCount,
    encrypted: bool,
    parent: Option<String>,
}

fn bytes<S: Serializer>(bytes: &ByteCount, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(bytes.0)
}

fn maybe_bytes<S: Serializer>(bytes: &Option<ByteCount>, to: S) -> Result<S::Ok, S::Error> {
    bytes.map(|bytes| bytes.0).serialize(to)
}

fn inspect(data_dir: &Path, pool: Option<&Path>, format: Format) -> Result<String, Failure> {
    let place = match pool {
        Some(pool) => pool.to_owned(),
        None => data_dir.join(note_of(data_dir)?.device),
    };
    let device = FileDevice::open_to_read(&place).map_err(failed)?;
    let found = inspect::inspect(&device).map_err(failed)?;
    let shown = |item: inspect::Inspected| Inspected {
        id: item.id,
        kind: item.kind,
        size_bytes: item.size,
        data_bytes: item.data,
        owned_bytes: item.owned,
        encrypted: item.is_encrypted,
        parent: item.parent,
    };
    let items: Vec<Inspected> = found.items.into_iter().map(shown).collect();
    let list = output::listing(&items, format, "no volumes and no snapshots");
    if format != Format::Text {
        return Ok(list);
    }
    let mut text = format!(
        "{}: pool {:032x}, opened {} times, {} of {} are free (it may grow to {})\n",
        place.display(),
        found.identity,
        found.session,
        found.free,
        found.size,
        found.size_max,
    );
    if found.damaged > 0 {
        let damaged = found.damaged;
        text.push_str(&format!("{damaged} sectors of its tables are damaged in both copies\n"));
    }
    let unknown = items.iter().filter(|item| item.data_bytes.is_none()).count();
    if unknown > 0 {
        text.push_str(&format!(
            "{unknown} cannot be opened, because their first pages are damaged; what is left of a \
             deleted volume is freed with the last of its snapshots\n"
        ));
    }
    text.push_str(&list);
    Ok(text)
}

fn check(data_dir: &Path, data: bool, format: Format) -> Result<(String, Value), Failure> {
    let note = note_of(data_dir)?;
    let place = data_dir.join(&note.device);
    // No server may change it meanwhile.
    let _folder = Folder::claim(data_dir, discovery::KIND).map_err(failed)?;
    let device = FileDevice::open_at_rest(&place).map_err(failed)?;
    let mut report = check::check(&device, data).map_err(failed)?;
    // A server refuses some undamaged pools, too.
    if let Err(error) = note.accepts(&device) {
        report.problems_total += 1;
        report.problems.insert(0, error.to_string());
    }
    let mut text = format!(
        "{}: {} volumes, {} snapshots, {} of {} blocks in use",
        place.display(),
        report.volumes,
        report.snapshots,
        report.in_use,
        report.chunks * u64::from(CHUNK_BLOCKS),
    );
    if data {
        text.push_str(&format!(", {} blocks of data as they were written", report.verified));
    }
    text.push('\n');
    if report.leaked > 0 {
        let lost = ByteCount(report.leaked * BLOCK_BYTES as u64);
        text.push_str(&format!("{lost} are in use by nothing: space that is lost, not data\n"));
    }
    for problem in &report.problems {
        text.push_str(&format!("problem: {problem}\n"));
    }
    let value = json!({
        "schema": "evenkeel.store-check/1",
        "pool": place,
        "volumes": report.volumes,
        "snapshots": report.snapshots,
        "chunks": report.chunks,
        "blocks_in_use": report.in_use,
        "blocks_leaked": report.leaked,
        "blocks_verified": report.verified,
        "problems": report.problems,
        "problems_total": report.problems_total,
    });
    if report.problems_total == 0 {
        text.push_str("no problems\n");
        return Ok((text, value));
    }
    // The findings are printed first.
    output::print(&if format == Format::Json { output::json(&value) } else { text })?;
    let message = format!("{} problems in {}", report.problems_total, place.display());
    let hint = "restore damaged volumes from a copy, or delete them; the others can be served";
    Err(Failure::new(message).exit(Exit::Failed).hint(hint))
}
