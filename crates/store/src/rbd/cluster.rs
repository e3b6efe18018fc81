//! A connection to a Ceph cluster, with one of its pools and a namespace. All operations of a
//! process use one RADOS instance, so that one entry of the blocklist fences all of them.

use super::library::{Handle, Library, library};
use crate::{Space, StoreError};
use evenkeel_core::units::ByteCount;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Place of the volumes in a Ceph cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The configuration file of the cluster; `None` for the libraries' own search.
    pub conf: Option<PathBuf>,
    /// The name of the user, such as `client.admin`.
    pub user: String,
    /// The pool.
    pub pool: String,
    /// The namespace in the pool.
    pub namespace: String,
}

impl Place {
    /// Returns the place as one word.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.pool, self.namespace)
    }
}

/// Maximum number of seconds to find a monitor, and for its answer.
const MONITOR_MAX_S: &str = "30";

/// Settings of the client, which replace those of the configuration file.
///
/// Without the cache an acknowledged write is on the devices. A lock is broken only after Evenkeel
/// has fenced its owner, so breaking a lock adds nothing to the blocklist. A plugin would be a
/// cache on a local device. The bounds in flight are those of the volumes. `rbd_qos_*` would be a
/// second limit below Evenkeel's.
///
/// librbd copies writes in the caller's thread. With zero-copy writes
/// (`rbd_disable_zero_copy_writes` = false) a write that a fenced instance begins is never
/// completed: librbd 16.2 fails it in the dispatch of the exclusive lock, and then waits until its
/// memory is released, which the failed request itself still refers to.
const SETTINGS: [(&str, &str); 12] = [
    ("rbd_cache", "false"),
    ("rbd_disable_zero_copy_writes", "true"),
    ("rbd_blocklist_on_break_lock", "false"),
    ("objecter_inflight_ops", "8192"),
    ("objecter_inflight_op_bytes", "1073741824"),
    ("rbd_plugins", ""),
    ("rbd_qos_iops_limit", "0"),
    ("rbd_qos_bps_limit", "0"),
    ("rbd_qos_read_iops_limit", "0"),
    ("rbd_qos_write_iops_limit", "0"),
    ("client_mount_timeout", MONITOR_MAX_S),
    ("rados_mon_op_timeout", MONITOR_MAX_S),
];

/// A connected RADOS instance.
pub(super) struct Cluster {
    pub(super) library: &'static Library,
    rados: Handle,
    /// The pool, for images and metadata.
    pub(super) io: Handle,
    place: Place,
    fsid: String,
    /// Whether the cluster refuses this instance. That does not change back.
    is_shut_down: AtomicBool,
    /// Called once when the instance is refused.
    when_shut_down: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

// SAFETY: librados and librbd may be called from any thread; the handles do not change.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

/// Returns the result of a function of the libraries; a negative number is a negated error number.
pub(super) fn check(code: i32, doing: impl FnOnce() -> String) -> Result<i32, StoreError> {
    match code {
        0.. => Ok(code),
        _ => Err(StoreError::io(doing(), io::Error::from_raw_os_error(code.wrapping_neg()))),
    }
}

/// Adds advice to an error, if it has this error number.
fn explained(error: StoreError, number: i32, hint: &str) -> StoreError {
    match errno(&error) {
        Some(found) if found == number => StoreError::Cluster { why: format!("{error}; {hint}") },
        _ => error,
    }
}

/// Returns the error number of a failed call.
pub(super) fn errno(error: &StoreError) -> Option<i32> {
    match error {
        StoreError::Io { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

/// Converts a text for the libraries.
pub(super) fn text(text: &str) -> Result<CString, StoreError> {
    CString::new(text)
        .map_err(|_| StoreError::Cluster { why: format!("{text:?} has a zero byte in it") })
}

impl Cluster {
    /// Connects to the cluster of a place.
    ///
    /// # Errors
    /// When the libraries are missing, the cluster cannot be reached, or there is no such pool.
    pub(super) fn connect(place: &Place) -> Result<Self, StoreError> {
        let cluster = Self::look(place)?;
        cluster.enter_namespace()?;
        Ok(cluster)
    }

    /// Connects to the cluster of a place and opens the pool, but not the namespace. Changes
    /// nothing.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(super) fn look(place: &Place) -> Result<Self, StoreError> {
        let library = library().map_err(|why| StoreError::Cluster { why })?;
        let mut rados = ptr::null_mut();
        let name = text("ceph")?;
        let user = text(&place.user)?;
        // SAFETY: both texts end with a zero byte, and `rados` has room for the handle.
        let code =
            unsafe { (library.rados_create2)(&raw mut rados, name.as_ptr(), user.as_ptr(), 0) };
        check(code, || format!("begin a connection to Ceph as {}", place.user)).map_err(
            |error| {
                let hint = "a user's name begins with its kind, as in --ceph-user client.evenkeel";
                explained(error, libc::EINVAL, hint)
            },
        )?;
        let place = place.clone();
        let fsid = String::new();
        // Dropping the cluster releases the handle after this.
        let io = ptr::null_mut();
        let is_shut_down = AtomicBool::new(false);
        let when_shut_down = Mutex::new(None);
        let mut cluster = Self { library, rados, io, place, fsid, is_shut_down, when_shut_down };
        cluster.configure()?;
        // SAFETY: the handle was made above.
        check(unsafe { (library.rados_connect)(rados) }, || {
            format!("connect to the Ceph cluster of {}", cluster.conf_name())
        })
        .map_err(|error| {
            let user = &cluster.place.user;
            let hint = format!(
                "the cluster does not know {user} by the key of its keyring file; name another \
                 user with --ceph-user"
            );
            explained(error, libc::EACCES, &hint)
        })?;
        cluster.fsid = cluster.read_fsid()?;
        cluster.open_pool()?;
        Ok(cluster)
    }

    fn conf_name(&self) -> String {
        let conf = self.place.conf.as_ref();
        conf.map_or_else(|| "/etc/ceph/ceph.conf".to_owned(), |conf| conf.display().to_string())
    }

    fn configure(&self) -> Result<(), StoreError> {
        let conf =
            self.place.conf.as_ref().map(|path| text(&path.to_string_lossy())).transpose()?;
        let path = conf.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: the path ends with a zero byte; without one the library searches.
        check(unsafe { (self.library.rados_conf_read_file)(self.rados, path) }, || {
            format!("read {}, the configuration of a Ceph cluster", self.conf_name())
        })?;
        for (name, value) in SETTINGS {
            let key = text(name)?;
            let value = text(value)?;
            // SAFETY: both texts end with a zero byte.
            let code =
                unsafe { (self.library.rados_conf_set)(self.rados, key.as_ptr(), value.as_ptr()) };
            check(code, || format!("set {name} of Ceph's client"))?;
        }
        // A cache would acknowledge writes that a crash loses.
        match self.setting("rbd_cache")?.as_str() {
            "false" => Ok(()),
            other => Err(StoreError::Cluster {
                why: format!(
                    "rbd_cache is {other} although it was set to false, and acknowledged writes \
                     could be lost; take it out of {} and of the monitors' configuration",
                    self.conf_name()
                ),
            }),
        }
    }

    fn setting(&self, name: &str) -> Result<String, StoreError> {
        let key = text(name)?;
        let mut value = [0_u8; 256];
        let room = value.as_mut_ptr().cast::<c_char>();
        // SAFETY: the room is as long as it is said to be.
        let code =
            unsafe { (self.library.rados_conf_get)(self.rados, key.as_ptr(), room, value.len()) };
        check(code, || format!("read {name} of Ceph's client"))?;
        Ok(until_zero(&value))
    }

    fn read_fsid(&self) -> Result<String, StoreError> {
        let mut fsid = [0_u8; 64];
        let room = fsid.as_mut_ptr().cast::<c_char>();
        // SAFETY: the room is as long as it is said to be.
        let code = unsafe { (self.library.rados_cluster_fsid)(self.rados, room, fsid.len()) };
        check(code, || "read the id of the Ceph cluster".to_owned())?;
        Ok(until_zero(&fsid))
    }

    fn open_pool(&mut self) -> Result<(), StoreError> {
        let pool = &self.place.pool;
        let name = text(pool)?;
        // SAFETY: the name ends with a zero byte, and `io` has room for the handle.
        let code = unsafe {
            (self.library.rados_ioctx_create)(self.rados, name.as_ptr(), &raw mut self.io)
        };
        if code == -libc::ENOENT {
            let why = format!(
                "the Ceph cluster {} has no pool {pool}; make it: ceph osd pool create {pool} && \
                 rbd pool init {pool}; or name another one with --rbd-pool",
                self.fsid
            );
            return Err(StoreError::Cluster { why });
        }
        check(code, || format!("open the pool {pool} of the Ceph cluster {}", self.fsid)).map(drop)
    }

    /// Selects the namespace for all later operations, if it exists. Returns whether it does.
    pub(super) fn enter_existing_namespace(&self) -> Result<bool, StoreError> {
        let space = text(&self.place.namespace)?;
        let exists = self.has_namespace(&space)?;
        if exists {
            // SAFETY: the handle is that of the pool, and the namespace ends with a zero byte.
            unsafe { (self.library.rados_ioctx_set_namespace)(self.io, space.as_ptr()) };
        }
        Ok(exists)
    }

    fn has_namespace(&self, space: &CStr) -> Result<bool, StoreError> {
        let mut exists = false;
        // SAFETY: the namespace ends with a zero byte, and there is room for the answer.
        let code = unsafe {
            (self.library.rbd_namespace_exists)(self.io, space.as_ptr(), &raw mut exists)
        };
        check(code, || format!("look for the namespace {}", self.place.name())).map_err(
            |error| {
                let Place { user, pool, .. } = &self.place;
                let hint = format!("give {user} the right: osd 'profile rbd pool={pool}'");
                explained(error, libc::EPERM, &hint)
            },
        )?;
        Ok(exists)
    }

    /// Creates the namespace if it is missing, and selects it for all later operations.
    fn enter_namespace(&self) -> Result<(), StoreError> {
        let space = text(&self.place.namespace)?;
        if !self.has_namespace(&space)? {
            // SAFETY: the namespace ends with a zero byte.
            let code = unsafe { (self.library.rbd_namespace_create)(self.io, space.as_ptr()) };
            match code {
                // Another node has created it.
                code if code == -libc::EEXIST => {}
                code => drop(check(code, || format!("make the namespace {}", self.place.name()))?),
            }
        }
        // SAFETY: the handle is that of the pool. A full pool fails writes at once after this, and
        // images that are opened later inherit that.
        unsafe {
            (self.library.rados_ioctx_set_namespace)(self.io, space.as_ptr());
            (self.library.rados_set_pool_full_try)(self.io);
        }
        Ok(())
    }

    /// Returns the place of the connection.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the id of the Ceph cluster.
    pub(super) fn fsid(&self) -> &str {
        &self.fsid
    }

    /// Records that this instance was fenced. That cannot be undone.
    pub(super) fn note_shut_down(&self) {
        self.is_shut_down.store(true, Ordering::Release);
        let tell = self.when_shut_down.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tell) = tell {
            tell();
        }
    }

    /// Calls `tell` once this instance is known to be fenced.
    pub(super) fn when_shut_down(&self, tell: Box<dyn FnOnce() + Send>) {
        *self.when_shut_down.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
        if self.is_shut_down() {
            self.note_shut_down();
        }
    }

    /// Returns whether this instance was fenced, as far as one of its requests has been refused.
    pub(super) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
    }

    /// Returns the address of this instance, as in entries of the blocklist.
    pub(super) fn address(&self) -> Result<String, StoreError> {
        let mut addresses = ptr::null_mut();
        // SAFETY: `addresses` has room for the text, which is given back below.
        let code = unsafe { (self.library.rados_getaddrs)(self.rados, &raw mut addresses) };
        check(code, || "ask Ceph's client for its address".to_owned())?;
        // SAFETY: a successful call has put a text there.
        let text = unsafe { CStr::from_ptr(addresses) }.to_string_lossy().into_owned();
        // SAFETY: it came from the library, and is not used any more.
        unsafe { (self.library.rados_buffer_free)(addresses) };
        Ok(plain(&text))
    }

    /// Waits until this instance has the newest map of the devices. Its later requests bring that
    /// map to each device, with every entry of the blocklist.
    pub(super) fn wait_for_latest_map(&self) -> Result<(), StoreError> {
        // SAFETY: the handle is connected.
        let code = unsafe { (self.library.rados_wait_for_latest_osdmap)(self.rados) };
        check(code, || "wait for the newest map of the Ceph cluster".to_owned()).map(drop)
    }

    /// Sends a command to the monitors. Returns their answer, which is text.
    pub(super) fn monitors(&self, command: &str) -> Result<Vec<u8>, StoreError> {
        self.ask(self.library.rados_mon_command, "the monitors", command)
    }

    /// Adds an instance to the blocklist. The monitors refuse a duration without a decimal point.
    pub(super) fn blocklist(&self, address: &str, expire_s: u32) -> Result<(), StoreError> {
        let added = self.monitors(&format!(
            "{{\"prefix\": \"osd blocklist\", \"blocklistop\": \"add\", \"addr\": \"{address}\", \
             \"expire\": {expire_s}.0}}"
        ));
        let hint = "give the user the right: mon 'profile rbd'";
        added.map(drop).map_err(|error| explained(error, libc::EACCES, hint))
    }

    /// Sends a command to the manager. Returns its answer, which is text.
    pub(super) fn manager(&self, command: &str) -> Result<Vec<u8>, StoreError> {
        self.ask(self.library.rados_mgr_command, "the manager", command)
    }

    fn ask(&self, of: Ask, whom: &str, command: &str) -> Result<Vec<u8>, StoreError> {
        let asked = text(command)?;
        let commands = [asked.as_ptr()];
        let mut answer = ptr::null_mut();
        let mut answer_bytes = 0_usize;
        let mut words = ptr::null_mut();
        let mut words_bytes = 0_usize;
        // SAFETY: one command is passed, without input, and there is room for both answers.
        let code = unsafe {
            of(
                self.rados,
                commands.as_ptr(),
                1,
                ptr::null(),
                0,
                &raw mut answer,
                &raw mut answer_bytes,
                &raw mut words,
                &raw mut words_bytes,
            )
        };
        let [bytes, said] = [(answer, answer_bytes), (words, words_bytes)].map(|(from, length)| {
            if from.is_null() {
                return Vec::new();
            }
            // SAFETY: the library returns the length of its text, and the text is released once.
            let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }.to_vec();
            // SAFETY: as above.
            unsafe { (self.library.rados_buffer_free)(from) };
            bytes
        });
        let said = String::from_utf8_lossy(&said);
        check(code, || format!("have {whom} run {command} ({said})"))?;
        Ok(bytes)
    }

    /// Sends a command without arguments to the monitors. Returns their answer, read as JSON.
    pub(super) fn monitors_json<T: DeserializeOwned>(&self, prefix: &str) -> Result<T, StoreError> {
        let command = format!("{{\"prefix\": \"{prefix}\", \"format\": \"json\"}}");
        serde_json::from_slice(&self.monitors(&command)?)
            .map_err(|error| unreadable(prefix, &error.to_string()))
    }

    /// Returns the space of the pool, limited by its copies and its fullest device.
    pub(super) fn space(&self) -> Result<Space, StoreError> {
        let df: Df = self.monitors_json("df")?;
        let pool = &self.place.pool;
        let found = df.pools.into_iter().find(|found| found.name == *pool);
        let stats = found.ok_or_else(|| unreadable("df", &format!("it has no pool {pool}")))?.stats;
        let free = ByteCount(stats.max_avail);
        Ok(Space { total: ByteCount(stats.stored.saturating_add(stats.max_avail)), free })
    }
}

/// Function that sends a command to the monitors or the manager.
type Ask = unsafe extern "C" fn(
    Handle,
    *const *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut *mut c_char,
    *mut usize,
) -> c_int;

fn unreadable(command: &str, what: &str) -> StoreError {
    StoreError::Cluster { why: format!("the monitors' answer to {command} cannot be read: {what}") }
}

/// The answer of the monitors to `df`.
#[derive(Deserialize)]
pub(super) struct Df {
    pub(super) pools: Vec<DfPool>,
}

#[derive(Deserialize)]
pub(super) struct DfPool {
    pub(super) name: String,
    pub(super) stats: DfStats,
}

#[derive(Deserialize)]
pub(super) struct DfStats {
    pub(super) stored: u64,
    pub(super) max_avail: u64,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: no image is open any more, since each holds the cluster.
        unsafe {
            if !self.io.is_null() {
                (self.library.rados_ioctx_destroy)(self.io);
            }
            (self.library.rados_shutdown)(self.rados);
        }
    }
}

/// Returns the text before the first zero byte.
pub(super) fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Returns an address without the version of the protocol: `v2:10.0.0.1:0/77` and `10.0.0.1:0/77`
/// are the same instance. In a list of addresses, each has the same number at its end.
pub(super) fn plain(address: &str) -> String {
    let is_list = address.starts_with("[v") || address.starts_with("[any");
    let list =
        if is_list { address.trim_start_matches('[').trim_end_matches(']') } else { address };
    let first = list.split(',').next().unwrap_or(list);
    let bare = ["v1:", "v2:", "any:"].iter().find_map(|kind| first.strip_prefix(kind));
    bare.unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_one_address_however_it_is_written() {
        for text in [
            "10.0.0.1:0/77",
            "v2:10.0.0.1:0/77",
            "any:10.0.0.1:0/77",
            "[v2:10.0.0.1:0/77,v1:10.0.0.1:0/77]",
        ] {
            assert_eq!(plain(text), "10.0.0.1:0/77");
        }
        for text in ["[v2:[fd00::1]:0/77]", "[fd00::1]:0/77", "v2:[fd00::1]:0/77"] {
            assert_eq!(plain(text), "[fd00::1]:0/77");
        }
    }
}
