//! `evenkeel volume migrate`: a volume moves to another server.

use crate::cli::{VolumeArgs, VolumeMigrate};
use evenkeel_cli::connect;
use evenkeel_cli::endpoint;
use evenkeel_client::Client;
use evenkeel_client::migrate::{Migrated, Migration, Options};
use evenkeel_client::output::{self, Exit, Failure, Format};
use serde_json::json;

/// Where the target's keys are if not in a folder.
const VARIABLES: [&str; 2] = ["EVENKEEL_TO_ACCESS_KEY_ID", "EVENKEEL_TO_SECRET_ACCESS_KEY"];

pub fn run(source: &Client, arguments: &VolumeArgs, flags: &VolumeMigrate) -> Result<(), Failure> {
    let target = target(arguments, flags)?;
    let options = options(flags);
    let migrated = Migration::new(source, &target, &options).run()?;
    match arguments.output.format {
        Format::Json => {
            let value = json!({ "schema": "evenkeel.migration/1", "migration": migrated });
            output::print(&output::json(&value))
        }
        Format::Csv => {
            let Migrated { source_volume_id, volume_id, .. } = migrated;
            let columns = ["SOURCE VOLUME ID", "VOLUME ID"];
            output::print(&output::csv(&columns, &[vec![source_volume_id, volume_id]]))
        }
        Format::Text => output::print(&told(&migrated)),
    }
}

fn options(flags: &VolumeMigrate) -> Options {
    Options {
        volume: flags.volume,
        detach: flags.detach,
        wait: flags.wait,
        unencrypted: flags.unencrypted,
        remove_source: flags.remove_source,
        rate_mibps: flags.rate,
        jobs: flags.jobs,
    }
}

/// The client for the target.
fn target(arguments: &VolumeArgs, flags: &VolumeMigrate) -> Result<Client, Failure> {
    let usage = |message: String| Failure::new(message).exit(Exit::Usage);
    let folder = flags.to_data_dir.as_deref();
    let noted = || folder.and_then(endpoint::noted);
    let endpoint = flags.to.clone().or_else(noted).ok_or_else(|| {
        let folder = folder.unwrap_or_else(|| std::path::Path::new("")).display();
        usage(format!("--to-data-dir {folder}: no server runs on this folder"))
            .hint("--to names the address of the target")
    })?;
    let noted_region = || folder.and_then(endpoint::noted_region);
    let source_region = || endpoint::region(&arguments.connection);
    let region = flags.to_region.clone().or_else(noted_region).unwrap_or_else(source_region);
    let keys = match folder {
        Some(folder) => evenkeel_control::credentials::load(folder)
            .map(connect::keys_from)
            .map_err(|error| usage(format!("--to-data-dir: {error}")))?,
        None => connect::keys_of(VARIABLES).ok_or_else(|| {
            usage(format!("{} or {} is not set", VARIABLES[0], VARIABLES[1]))
                .hint("--to-data-dir names a folder with the target's file `credentials` instead")
        })?,
    };
    let named = arguments.connection.ca.clone();
    let authorities = flags.to_ca.clone().or_else(|| folder.and_then(endpoint::noted_authorities));
    Client::trusting(authorities.or(named).as_deref(), &endpoint, &region, keys)
}

fn told(migrated: &Migrated) -> String {
    let Migrated { source, source_volume_id: from, target, volume_id: to, .. } = migrated;
    if migrated.was_done {
        return format!(
            "{from} is {to} at {target} already; it does not contain later writes to {from}\n\
             to move it again: `evenkeel volume rm {to}` at {target} first\n"
        );
    }
    let mib = |bytes: u64| bytes >> 20;
    let mut lines = vec![format!(
        "{from} at {source} is {to} at {target}: {} MiB copied in {} rounds, {} MiB of them while \
         it was detached",
        mib(migrated.copied_bytes),
        migrated.rounds,
        mib(migrated.copied_detached_bytes),
    )];
    let units = migrated.compared_units;
    lines.push(format!("compared: {units} units of 512 KiB, by their SHA-256, all the same"));
    let detached_ms = migrated.detached_ms.unwrap_or_default();
    lines.push(format!("detached: {}.{} s so far", detached_ms / 1_000, detached_ms % 1_000 / 100));
    let credits = migrated.credits.iter();
    lines.extend(credits.map(|credit| format!("credits: {} {}", credit.balance, credit.unit)));
    let hosts = migrated.hosts.iter();
    lines.extend(hosts.map(|had| format!("was attached: to {} as {}", had.host_id, had.device)));
    lines.push(if migrated.source_removed {
        format!("removed: {from} at {source}")
    } else {
        format!("kept: {from} at {source}; `evenkeel volume rm {from}` removes it")
    });
    lines.join("\n") + "\n"
}
