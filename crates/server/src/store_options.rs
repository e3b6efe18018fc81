//! Options of a store apart from the data folder: the place of a pool, the Ceph cluster, the keys.

use evenkeel_cli::store::{Bytes, CEPH_USER, LocalStore, RBD_NAME, RbdStore, StoreKind};
use evenkeel_client::output::{Exit, Failure, failed};
use evenkeel_store::encryption::keys::Keys;
use evenkeel_store::local::pool::LocalPool;
use evenkeel_store::rbd::{Place, RbdPool, Seat};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::path::{Path, PathBuf};

/// Options of a store apart from the data folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreOptions {
    /// The block device or file of the local store's pool, if it is not in the data folder.
    pub pool: Option<PathBuf>,
    /// File with the key that wraps the keys of encrypted volumes.
    pub key_file: Option<PathBuf>,
    /// Program that wraps and unwraps them instead.
    pub key_command: Option<String>,
    /// Place of the volumes in a Ceph cluster; absent for other stores.
    pub place: Option<Place>,
    /// Owner on whose behalf the volumes there are served, alone until a cluster is joined; `None`
    /// for other stores.
    pub seat: Option<Seat>,
}

/// Forbids core dumps of this process, which would contain its keys.
pub fn forbid_core_dumps() -> Result<(), Failure> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| Failure::new(format!("no way to forbid core dumps: {error}")))
}

/// Returns a path that does not depend on the current folder.
fn absolute(path: Option<&PathBuf>) -> Result<Option<PathBuf>, Failure> {
    let absolute = |path: &PathBuf| {
        std::path::absolute(path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    };
    path.map(absolute).transpose()
}

/// Returns an error for flags that a store does not take; `with` is the store that does.
fn refuse(given: &[(&str, bool)], store: &StoreKind, with: &str) -> Result<(), Failure> {
    let Some((flag, _)) = given.iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let message = format!("{flag}: the store \"{store}\" does not take it");
    let hint = format!("leave out --{flag}, or serve with --store {with}");
    Err(Failure::new(message).exit(Exit::Usage).hint(hint))
}

impl StoreOptions {
    /// Reads the flags; paths are made absolute.
    pub fn of(local: &LocalStore, rbd: &RbdStore, store: &StoreKind) -> Result<Self, Failure> {
        let LocalStore { pool, key_file, key_command } = local;
        if store.bytes != Bytes::Local {
            refuse(&[("pool", pool.is_some())], store, "local")?;
        }
        if !matches!(store.bytes, Bytes::Local | Bytes::Rbd) {
            let keys = [("key-file", key_file.is_some()), ("key-command", key_command.is_some())];
            refuse(&keys, store, "local")?;
        }
        if store.bytes != Bytes::Rbd {
            let given = [
                ("ceph-conf", rbd.ceph_conf.is_some()),
                ("ceph-user", rbd.ceph_user.is_some()),
                ("rbd-pool", rbd.rbd_pool.is_some()),
                ("rbd-namespace", rbd.rbd_namespace.is_some()),
            ];
            refuse(&given, store, "rbd")?;
        }
        if key_file.is_some() && key_command.is_some() {
            let both = "key-file and key-command: name one of them";
            return Err(Failure::new(both).exit(Exit::Usage));
        }
        let or = |given: &Option<String>, default: &str| {
            given.clone().unwrap_or_else(|| default.to_owned())
        };
        let place = Place {
            conf: absolute(rbd.ceph_conf.as_ref())?,
            user: or(&rbd.ceph_user, CEPH_USER),
            pool: or(&rbd.rbd_pool, RBD_NAME),
            namespace: or(&rbd.rbd_namespace, RBD_NAME),
        };
        Ok(Self {
            pool: absolute(pool.as_ref())?,
            key_file: absolute(key_file.as_ref())?,
            key_command: key_command.clone(),
            place: Some(place).filter(|_| store.bytes == Bytes::Rbd),
            seat: Some(Seat::Alone).filter(|_| store.bytes == Bytes::Rbd),
        })
    }

    /// Returns the keys, if there are any. Core dumps are forbidden before they are read.
    pub fn keys(&self) -> Result<Option<Keys>, Failure> {
        if self.key_file.is_some() || self.key_command.is_some() {
            forbid_core_dumps()?;
        }
        match (&self.key_file, &self.key_command) {
            (Some(path), _) => Keys::from_file(path).map(Some).map_err(failed),
            (None, Some(command)) => Ok(Some(Keys::Command(command.clone()))),
            (None, None) => Ok(None),
        }
    }

    /// Opens the local pool of a data folder.
    pub fn open_local(&self, data_dir: &Path) -> Result<LocalPool, Failure> {
        let keys = self.keys()?;
        let pool = LocalPool::in_folder(data_dir, self.pool.as_deref()).map_err(failed)?;
        Ok(match keys {
            Some(keys) => pool.with_keys(keys),
            None => pool,
        })
    }

    /// Opens the pool of a data folder in a Ceph cluster.
    pub fn open_rbd(&self, data_dir: &Path) -> Result<RbdPool, Failure> {
        let keys = self.keys()?;
        let (Some(place), Some(seat)) = (&self.place, &self.seat) else {
            unreachable!("the flags of the store \"rbd\" name a place or have defaults")
        };
        RbdPool::open_as(data_dir, place, keys, seat).map_err(failed)
    }
}
