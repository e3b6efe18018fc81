//! Moves a volume from one server to another, through their APIs only, so it works between any two
//! of them.
//!
//! 1. A snapshot of the volume in use is copied into a snapshot that is being filled at the target:
//!    the *first copy*. It is completed and compared.
//! 2. Later changes are copied, round by round, into a second snapshot that begins as the first
//!    one. So a target on Ceph has two parents to search, however many rounds there were.
//! 3. When a round was small, the volume is detached, the last round is copied, and compared.
//! 4. The new volume is made of it. If the source was not written to since, the migration is
//!    complete.
//!
//! | file | what it does |
//! | --- | --- |
//! | `units` | a set of units. Pure |
//! | `copy` | copies and compares units of snapshots |
//! | `state` | state of the migration, in tags |
//! | `rounds` | what changed since the first copy |
//! | `ending` | detaching, the new volume, credits, cleaning up |

mod copy;
mod ending;
mod rounds;
mod state;
mod units;

use crate::Client;
use crate::direct::NewSnapshot;
use crate::export::UNIT_BYTES;
use crate::model::VolumeDescription;
use crate::output::{Exit, Failure};
use crate::pace::Pace;
use crate::snapshots::{self, Snapshot};
use crate::volumes::{self, is_provisioned, tag_specification};
use copy::{Copied, Copier};
use evenkeel_core::ids::VolumeId;
use serde::Serialize;
use state::{Base, Far};
use std::time::Duration;

/// Maximum number of rounds while the volume is in use.
const ROUNDS_MAX: u32 = 4;
/// Maximum number of units of a small round, 64 MiB: another one while the volume is in use would
/// save little.
const SMALL: u64 = 128;
/// Maximum interruption of a migration, in minutes: three days, the maximum of the servers.
const TIMEOUT_MIN: u32 = 4_320;
/// Longest wait for a snapshot, or for a volume's state.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Advice after an interruption.
const AGAIN: &str = "run the same command again: it resumes the copy";

/// Result of a migration, for people.
#[derive(Serialize, Debug, Default)]
pub struct Migrated {
    pub source: String,
    pub source_volume_id: String,
    pub target: String,
    /// The new volume.
    pub volume_id: String,
    /// Whether an earlier run had completed the migration.
    pub was_done: bool,
    /// Copies made by this run, each of one snapshot.
    pub rounds: u32,
    /// Bytes of units that this run has copied.
    pub copied_bytes: u64,
    /// Bytes of them that were copied while the volume was detached.
    pub copied_detached_bytes: u64,
    /// Units that were compared by their SHA-256: all that this run or an earlier one has copied.
    pub compared_units: u64,
    /// Time from the detaching of the volume, or from the moment at which it was found detached,
    /// until the new one can be attached.
    pub detached_ms: Option<u64>,
    /// Hosts to which it was attached.
    pub hosts: Vec<Had>,
    /// The balances that the new volume begins with.
    pub credits: Vec<Credit>,
    pub is_encrypted: bool,
    pub source_removed: bool,
}

/// A host that had the volume.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Had {
    pub host_id: String,
    pub device: String,
}

/// A balance that was carried over.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Credit {
    /// `operations` or `bytes`.
    pub unit: &'static str,
    pub balance: u64,
}

/// The user's choices for a migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The volume to move.
    pub volume: VolumeId,
    /// Whether to detach the volume when little is left to copy.
    pub detach: bool,
    /// Longest wait for the operator to detach the volume, if `detach` is false.
    pub wait: Duration,
    /// Whether the copy of an encrypted volume is encrypted only if the target encrypts new ones.
    pub unencrypted: bool,
    /// Whether to delete the volume at the source after the migration.
    pub remove_source: bool,
    /// Maximum rate of copies and comparisons in MiB/s; `None` for no limit.
    pub rate_mibps: Option<u64>,
    /// Number of units of 512 KiB that are copied at once.
    pub jobs: u8,
}

/// A migration under way.
pub struct Migration<'a> {
    copier: Copier<'a>,
    id: String,
    options: &'a Options,
    /// The target's zone.
    zone: String,
    told: Migrated,
    /// Time since which the volume is detached, in milliseconds since 1970.
    detached_ms: Option<u64>,
}

impl<'a> Migration<'a> {
    /// Creates a migration between two servers.
    pub fn new(source: &'a Client, target: &'a Client, options: &'a Options) -> Self {
        let pace = Pace::new(options.rate_mibps.map(|mibps| mibps << 20));
        let copier = Copier { source, target, pace, jobs: usize::from(options.jobs) };
        let id = options.volume.to_string();
        let migrated = Migrated {
            source: source.authority().to_owned(),
            source_volume_id: id.clone(),
            target: target.authority().to_owned(),
            ..Migrated::default()
        };
        Self { copier, id, options, zone: String::new(), told: migrated, detached_ms: None }
    }

    /// Moves the volume.
    pub fn run(mut self) -> Result<Migrated, Failure> {
        let volume = volumes::get(self.copier.source, &self.id)?;
        self.check_target(&volume)?;
        if let Some(made) = state::volumes(self.copier.target, &self.id, true)?.pop() {
            self.clean_up()?;
            self.told.was_done = true;
            self.told.is_encrypted = made.encrypted;
            self.told.volume_id = made.volume_id;
            return Ok(self.told);
        }
        self.zone = volumes::zone(self.copier.target)?;
        self.would_be_made(&volume)?;
        match self.move_volume() {
            Ok(()) => Ok(self.told),
            Err(failure) => Err(self.with_next_step(failure)),
        }
    }

    fn move_volume(&mut self) -> Result<(), Failure> {
        let base = self.base()?;
        let mut rounds = self.rounds(&base)?;
        for _ in 0..ROUNDS_MAX {
            if self.is_detached()? || self.round(&base, &mut rounds)? <= SMALL {
                break;
            }
        }
        // So that the volume is not detached in vain.
        self.would_be_made(&volumes::get(self.copier.source, &self.id)?)?;
        self.detach(&base)?;
        let before = self.told.copied_bytes;
        self.round(&base, &mut rounds)?;
        self.told.copied_detached_bytes = self.told.copied_bytes - before;
        let image = self.complete(&base, &rounds)?;
        self.make_volume(&image, &rounds.last)?;
        self.clean_up()?;
        self.remove_source()
    }

    /// Returns an error if the target is unsuitable.
    fn check_target(&self, volume: &VolumeDescription) -> Result<(), Failure> {
        let id = &self.id;
        let target = self.copier.target;
        if !["available", "in-use"].contains(&volume.state.as_str()) {
            let message = format!("{id} is {}; it must be available or in-use", volume.state);
            return Err(Failure::new(message).hint("`evenkeel volume show` shows more"));
        }
        match volumes::get(target, id) {
            Ok(_) => Err(Failure::new(format!(
                "the server at {} has {id} itself: it is the source, a node of the same cluster, \
                 or has its database from there",
                target.authority()
            ))
            .exit(Exit::Usage)
            .hint("--to names another server")),
            Err(failure) if failure.exit == Exit::NotFound => Ok(()),
            Err(failure) => Err(match failure.hint.as_ref() {
                Some(hint) if hint.contains("--data-dir") => failure.hint(
                    "keys or region are not the target's: --to-data-dir and --to-region name them",
                ),
                _ => failure,
            }),
        }
    }

    /// Checks by a dry run that the target would make the volume now.
    fn would_be_made(&self, volume: &VolumeDescription) -> Result<(), Failure> {
        state::check_tags(volume)?;
        let parameters = self.parameters(volume, None);
        let parameters: Vec<(&str, &str)> =
            parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let would = self.copier.target.would("CreateVolume", &parameters);
        would.map_err(|mut failure| {
            let to = self.copier.target.authority();
            failure.message = format!("{} would not be made at {to}: {}", self.id, failure.message);
            match (failure.exit, volume.encrypted && !self.options.unencrypted) {
                (Exit::Refused, _) => failure
                    .hint("`evenkeel volume capacity` shows what the target has left to sell"),
                (_, true) => failure
                    .hint("it is encrypted; --unencrypted lets the copy be as the target has it"),
                _ => failure,
            }
        })
    }

    /// Returns the parameters of the new volume.
    fn parameters(
        &self,
        volume: &VolumeDescription,
        snapshot: Option<&str>,
    ) -> Vec<(String, String)> {
        let mut all = vec![
            ("AvailabilityZone", self.zone.clone()),
            ("VolumeType", volume.volume_type.clone()),
            ("Size", volume.size_gib.to_string()),
        ];
        if is_provisioned(volume) {
            all.extend(volume.iops.map(|iops| ("Iops", iops.to_string())));
            all.extend(volume.throughput_mibps.map(|mibps| ("Throughput", mibps.to_string())));
        }
        if volume.multi_attach {
            all.push(("MultiAttachEnabled", "true".to_owned()));
        }
        match snapshot {
            Some(snapshot) => all.push(("SnapshotId", snapshot.to_owned())),
            None if self.is_to_be_encrypted(volume) => all.push(("Encrypted", "true".to_owned())),
            None => {}
        }
        let mut tags = state::own_tags(volume);
        tags.push(state::from(&self.id, false));
        let all = all.into_iter().map(|(name, value)| (name.to_owned(), value));
        all.chain(tag_specification("volume", &tags)).collect()
    }

    const fn is_to_be_encrypted(&self, volume: &VolumeDescription) -> bool {
        volume.encrypted && !self.options.unencrypted
    }

    fn is_detached(&self) -> Result<bool, Failure> {
        let volume = volumes::get(self.copier.source, &self.id)?;
        Ok(volume.attachments.is_empty() && volume.state == "available")
    }

    /// Makes a snapshot of the volume.
    fn snapshot(&self) -> Result<Snapshot, Failure> {
        let source = self.copier.source;
        let target = self.copier.target;
        let description = format!("for the migration to {}", target.authority());
        let mut parameters =
            vec![("VolumeId", self.id.as_str()), ("Description", description.as_str())];
        let tag = (state::OF.to_owned(), target.access_key_id().to_owned());
        let tags = tag_specification("snapshot", &[tag]);
        parameters.extend(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let made = Snapshot::read(&source.call("CreateSnapshot", &parameters)?);
        snapshots::completed(source, &made.snapshot_id, WAIT_MAX)
    }

    /// Starts a snapshot at the target.
    fn start(
        &self,
        size_gib: u64,
        parent: Option<&str>,
        tag: (&str, String),
        token: &str,
    ) -> Result<String, Failure> {
        let volume = volumes::get(self.copier.source, &self.id)?;
        let (key, value) = tag;
        let tags = [(state::OF.to_owned(), self.id.clone()), (key.to_owned(), value)];
        let description =
            format!("migration of {} from {}", self.id, self.copier.source.authority());
        let started = self.copier.target.start_snapshot(&NewSnapshot {
            size_gib,
            parent,
            is_encrypted: self.is_to_be_encrypted(&volume),
            description: &description,
            tags: &tags,
            token,
            timeout_min: TIMEOUT_MIN,
        })?;
        Ok(started.id)
    }

    /// Returns the first copy, complete and compared: made, continued or found.
    fn base(&mut self) -> Result<Base, Failure> {
        let mut base = match self.known_base()? {
            Some(known) => known,
            None => self.new_base()?,
        };
        let snapshot = snapshots::get(self.copier.source, &base.of)?;
        let note = |base: &Base| {
            let tag = (state::BASE.to_owned(), base.tag());
            state::set_tags(self.copier.target, &base.id, &[tag])
        };
        if let Far::Copied { mut next, mut put } = base.far {
            let copied =
                Copied { from: &base.of, older: None, into: &base.id, size_gib: snapshot.size_gib };
            let is_complete = self.copier.target.has_snapshot(&base.id);
            if !is_complete {
                let before = put;
                self.copier.copy(&copied, next, |segment| {
                    next = segment.units.last().map_or(next, |last| last + 1);
                    put += segment.put;
                    note(&Base { far: Far::Copied { next, put }, ..base.clone() })
                })?;
                self.told.rounds += 1;
                self.told.copied_bytes += (put - before) * UNIT_BYTES;
                self.complete_at_target(&base.id, put)?;
            }
            let units = self.copier.compare_all(&base.of, &base.id, snapshot.size_gib);
            let units = units.map_err(|failure| self.damaged(failure, &base.id))?;
            base.far = Far::Compared(units);
            note(&base)?;
        }
        if let Far::Compared(units) = base.far {
            self.told.compared_units = units;
        }
        Ok(base)
    }

    fn complete_at_target(&self, id: &str, units: u64) -> Result<(), Failure> {
        self.copier.target.complete_snapshot(id, units, None)?;
        snapshots::completed(self.copier.target, id, WAIT_MAX).map(drop)
    }

    /// Returns the first copy of an earlier run, if it can be continued. Others are deleted.
    fn known_base(&self) -> Result<Option<Base>, Failure> {
        let source = self.copier.source;
        let target = self.copier.target;
        let mut found = None;
        for snapshot in state::snapshots(target, state::OF, &self.id)? {
            if !snapshot.tags.contains_key(state::BASE) {
                continue;
            }
            let base = Base::read(&snapshot).filter(|base| {
                let is_whole = match base.far {
                    Far::Copied { .. } => snapshot.state != "error",
                    Far::Compared(_) => snapshot.state == "completed",
                };
                is_whole && source.has_snapshot(&base.of)
            });
            match base {
                Some(base) if found.is_none() => found = Some(base),
                _ => state::delete(target, state::SNAPSHOT, &snapshot.snapshot_id)?,
            }
        }
        Ok(found)
    }

    fn new_base(&self) -> Result<Base, Failure> {
        let first = self.snapshot()?;
        let of = first.snapshot_id.clone();
        let mut base = Base { id: String::new(), of, far: Far::Copied { next: 0, put: 0 } };
        let token = format!("migrate-{}", base.of);
        let started = self.start(first.size_gib, None, (state::BASE, base.tag()), &token);
        base.id = match started {
            Ok(id) => id,
            Err(failure) => {
                // The snapshot is not needed. Whether it can be deleted or not, the first failure
                // is returned.
                let _ = state::delete(self.copier.source, state::SNAPSHOT, &base.of);
                return Err(failure);
            }
        };
        Ok(base)
    }

    /// Returns the failure for a damaged snapshot at the target.
    fn damaged(&self, failure: Failure, id: &str) -> Failure {
        failure.hint(format!(
            "`evenkeel snapshot rm {id}` at {}, and {AGAIN}",
            self.copier.target.authority()
        ))
    }

    /// Adds the next steps to a failure.
    fn with_next_step(&self, failure: Failure) -> Failure {
        let mut steps: Vec<String> = Vec::new();
        match &failure.hint {
            // This wait has no flag.
            Some(hint) if failure.exit == Exit::Timeout && hint.contains("--timeout") => {}
            Some(hint) => steps.push(hint.clone()),
            None => {}
        }
        if !steps.iter().any(|step| step.contains(AGAIN)) {
            steps.push(AGAIN.to_owned());
        }
        for Had { host_id, device } in self.told.hosts.iter().filter(|_| self.options.detach) {
            if self.detached_ms.is_some() {
                let id = &self.id;
                let attach = format!("evenkeel volume attach {id} --host {host_id}");
                steps.push(format!("`{attach} --device {device}` gives it back"));
            }
        }
        failure.hint(steps.join("; "))
    }
}
