//! `evenkeel store`: the pool of a data folder whose server is stopped.

use crate::cli::{Bytes, LocalStore, StoreArgs, StoreKind, StoreVerb};
use crate::message::{self, Exit, Failure, Format};
use crate::server::LocalOptions;
use evenkeel_core::units::ByteCount;
use evenkeel_store::Pool;
use evenkeel_store::local::place::{self, Note};
use evenkeel_store::local::pool::LocalPool;
use evenkeel_store::migrate::{self, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::Path;

pub fn run(arguments: &StoreArgs) -> Result<(), Failure> {
    let data_dir = std::path::absolute(&arguments.data_dir)
        .map_err(|error| Failure::new(format!("{}: {error}", arguments.data_dir.display())))?;
    let (text, value) = match &arguments.verb {
        StoreVerb::Init { local, force } => init(&data_dir, &options(local)?, *force)?,
        StoreVerb::Migrate { local } => migrate(&data_dir, &options(local)?)?,
    };
    message::print(&match arguments.output.format {
        Format::Json => message::json(&value),
        Format::Text => text,
        Format::Csv => {
            let message = "-o csv: what this verb finds is no list of items";
            return Err(Failure::new(message).exit(Exit::Usage).hint("use -o json, or text"));
        }
    })
}

fn options(local: &LocalStore) -> Result<LocalOptions, Failure> {
    LocalOptions::of(local, &StoreKind { bytes: Bytes::Local, device: None })
}

fn init(data_dir: &Path, local: &LocalOptions, force: bool) -> Result<(String, Value), Failure> {
    if Note::read(data_dir).map_err(failed)?.is_some_and(|note| note.session > 0) {
        let message = format!("{} has a pool already", data_dir.display());
        return Err(Failure::new(message).hint("serve it, or name another folder with --data-dir"));
    }
    if let Some(device) = local.pool.as_deref().filter(|_| force) {
        place::wipe(device).map_err(failed)?;
    }
    // Wrong keys are found before anything is made.
    local.keys()?;
    let pool = LocalPool::in_folder(data_dir, local.pool.as_deref()).map_err(failed)?;
    let space = pool.space().map_err(failed)?;
    let total = space.map_or(ByteCount(0), |space| space.total);
    let place = local.pool.clone().unwrap_or_else(|| data_dir.join(place::FILE));
    let text = format!("{}: a pool with room for {total}\n", place.display());
    let value = json!({
        "schema": "evenkeel.store-init/1",
        "pool": place,
        "total_bytes": total.0,
    });
    Ok((text, value))
}

fn migrate(data_dir: &Path, local: &LocalOptions) -> Result<(String, Value), Failure> {
    let bar = std::io::stderr().is_terminal().then(|| {
        let style = "{msg} {wide_bar} {bytes}/{total_bytes} {eta}";
        let style = ProgressStyle::with_template(style);
        ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    });
    let mut last = None;
    let mut show = |progress: Progress| {
        let Progress { id, is_check, done, size } = progress;
        let what = if is_check { "comparing" } else { "copying" };
        let is_new = last.replace((id, is_check)) != Some((id, is_check));
        match &bar {
            Some(bar) => {
                bar.set_length(size.0);
                bar.set_position(done.0);
                bar.set_message(format!("{what} {id}"));
            }
            None if is_new => eprintln!("{what} {id} ({size})"),
            None => {}
        }
    };
    let keys = local.keys()?;
    let done = migrate::migrate(data_dir, local.pool.as_deref(), keys, &mut show);
    let done = done.map_err(|error| {
        Failure::new(error.to_string()).hint("once the cause is gone, the same command goes on")
    })?;
    let kept = done.kept.display();
    let text = format!(
        "{} volumes are in the pool ({} copied) and equal to their files; serve with --store \
         local\nthe files are kept in {kept}; remove that folder when nobody needs it\n",
        done.volumes, done.copied
    );
    let value = json!({
        "schema": "evenkeel.store-migrate/1",
        "volumes": done.volumes,
        "copied_bytes": done.copied.0,
        "kept": done.kept,
    });
    Ok((text, value))
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}
