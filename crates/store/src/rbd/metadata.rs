//! Metadata of a pool on Ceph: one object with keys and values (OMAP) that every node reads and
//! writes. Reading the same from the images would take an opening of each, at least 10 ms.
//!
//! | key | value |
//! | --- | --- |
//! | `format` | [`FORMAT`] |
//! | `owner` | the id of the data folder's cluster; or `etcd:` and the name of the cluster |
//! | `number` | the number of the cluster, which is in its etcd |
//! | `v/<volume>` | [`VolumeRecord`] |
//! | `s/<snapshot>` | [`SnapshotRecord`] |
//! | `g/<image>` | an image that is removed when nothing needs it |
//! | `p/<image>` | [`MakingRecord`]: an image that is being made; no volume or snapshot has it |
//! | `i/<address>` | [`InstanceRecord`]: a process that may hold locks |
//! | `f/<address>` | [`InstanceRecord`]: one that was fenced |
//! | `u/<volume>` | `true`: a flush of the volume has failed, and it was not attached since |

use super::cluster::{Cluster, check, text};
use super::library::{EQUAL, Handle, Library};
use crate::StoreError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;

/// Name of the object.
const OBJECT: &str = "evenkeel.books";
/// Value of the key `format`.
pub(super) const FORMAT: &str = "evenkeel rbd 1";
/// Maximum number of entries in one read.
const PAGE: u64 = 1_000;

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct VolumeRecord {
    /// The image with its bytes.
    pub(super) image: String,
    /// Its size in bytes.
    pub(super) size: u64,
    /// The snapshot that it was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<String>,
    /// The wrapped key of its data, in hexadecimal digits; empty if it is not encrypted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) key: String,
}

/// Progress of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SnapshotState {
    /// It is being made of a volume.
    Making,
    /// It is being filled unit by unit.
    Filling,
    /// It is complete.
    Complete,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SnapshotRecord {
    /// The image that it is a snapshot of.
    pub(super) image: String,
    /// The volume that it was made of; none if it was filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) volume: Option<String>,
    /// Size in bytes.
    pub(super) size: u64,
    /// Bytes of the objects that have data of it.
    #[serde(default)]
    pub(super) data: u64,
    /// Its progress.
    pub(super) state: SnapshotState,
    /// The address of the process that makes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) maker: String,
    /// As in [`VolumeRecord`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) key: String,
}

/// An image that is being made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct MakingRecord {
    /// The address of the process that makes it.
    pub(super) maker: String,
}

/// A process that has, or had, an instance at the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct InstanceRecord {
    /// Its node.
    pub(super) node: String,
    /// Id of the start of the machine on which it runs or ran.
    pub(super) boot: String,
}

/// The metadata object of a cluster's namespace.
#[derive(Clone)]
pub(super) struct Books {
    cluster: Arc<Cluster>,
    object: CString,
}

/// Changes that take effect all together or not at all.
#[derive(Default)]
pub(super) struct Changes {
    /// An entry without which none takes effect.
    expected: Option<(CString, Vec<u8>)>,
    set: Vec<(CString, Vec<u8>)>,
    removed: Vec<CString>,
}

impl Changes {
    /// Makes the changes depend on an entry that the object must have. If it has not, the error has
    /// ECANCELED.
    pub(super) fn expect<T: Serialize>(mut self, key: &str, value: &T) -> Result<Self, StoreError> {
        let bytes = serde_json::to_vec(value).map_err(|error| unreadable(key, &error))?;
        self.expected = Some((text(key)?, bytes));
        Ok(self)
    }

    /// Adds the setting of an entry.
    pub(super) fn set<T: Serialize>(mut self, key: &str, value: &T) -> Result<Self, StoreError> {
        let bytes = serde_json::to_vec(value).map_err(|error| unreadable(key, &error))?;
        self.set.push((text(key)?, bytes));
        Ok(self)
    }

    /// Adds the removal of an entry, if it exists.
    pub(super) fn remove(mut self, key: &str) -> Result<Self, StoreError> {
        self.removed.push(text(key)?);
        Ok(self)
    }
}

fn unreadable(key: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Rotten { what: format!("the entry {key} of the object {OBJECT} ({error})") }
}

impl Books {
    pub(super) fn new(cluster: Arc<Cluster>) -> Result<Self, StoreError> {
        Ok(Self { cluster, object: text(OBJECT)? })
    }

    /// Sets one entry, durably.
    pub(super) fn set<T: Serialize>(&self, key: &str, value: &T) -> Result<(), StoreError> {
        self.change(&Changes::default().set(key, value)?)
    }

    /// Removes one entry durably, if it exists.
    pub(super) fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.change(&Changes::default().remove(key)?)
    }

    /// Makes the changes, durably.
    pub(super) fn change(&self, changes: &Changes) -> Result<(), StoreError> {
        let library = self.cluster.library;
        let pointers = |texts: &[&CString]| -> Vec<*const c_char> {
            texts.iter().map(|text| text.as_ptr()).collect()
        };
        let lengths = |texts: &[&CString]| -> Vec<usize> {
            texts.iter().map(|t| t.as_bytes().len()).collect()
        };
        let set: Vec<&CString> = changes.set.iter().map(|(key, _)| key).collect();
        let removed: Vec<&CString> = changes.removed.iter().collect();
        let values: Vec<*const c_char> =
            changes.set.iter().map(|(_, value)| value.as_ptr().cast()).collect();
        let value_lengths: Vec<usize> = changes.set.iter().map(|(_, value)| value.len()).collect();
        let set_pointers = pointers(&set);
        let set_lengths = lengths(&set);
        let gone_pointers = pointers(&removed);
        let gone_lengths = lengths(&removed);
        let mut compared = 0;
        // SAFETY: every pointer below is to memory that lives until the operation is released, and
        // every length is that of its memory.
        let code = unsafe {
            let operation = (library.rados_create_write_op)();
            (library.rados_write_op_create)(operation, 0, ptr::null());
            if let Some((key, value)) = &changes.expected {
                (library.rados_write_op_omap_cmp2)(
                    operation,
                    key.as_ptr(),
                    EQUAL,
                    value.as_ptr().cast(),
                    key.as_bytes().len(),
                    value.len(),
                    &raw mut compared,
                );
            }
            if !set.is_empty() {
                (library.rados_write_op_omap_set2)(
                    operation,
                    set_pointers.as_ptr(),
                    values.as_ptr(),
                    set_lengths.as_ptr(),
                    value_lengths.as_ptr(),
                    set.len(),
                );
            }
            if !removed.is_empty() {
                (library.rados_write_op_omap_rm_keys2)(
                    operation,
                    gone_pointers.as_ptr(),
                    gone_lengths.as_ptr(),
                    removed.len(),
                );
            }
            let code = (library.rados_write_op_operate)(
                operation,
                self.cluster.io,
                self.object.as_ptr(),
                ptr::null_mut(),
                0,
            );
            (library.rados_release_write_op)(operation);
            code
        };
        check(code, || format!("write the object {OBJECT} of {}", self.cluster.place().name()))?;
        Ok(())
    }

    /// Returns one entry.
    pub(super) fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StoreError> {
        let name = text(key)?;
        let names = [name.as_ptr()];
        let lengths = [name.as_bytes().len()];
        let found = self.read(|library, operation, list, result| {
            // SAFETY: one key of this length is asked for; list and result outlive the operation.
            unsafe {
                (library.rados_read_op_omap_get_vals_by_keys2)(
                    operation,
                    names.as_ptr(),
                    1,
                    lengths.as_ptr(),
                    list,
                    result,
                );
            }
        })?;
        found.get(key).map(|bytes| parse(key, bytes)).transpose()
    }

    /// Returns all entries whose keys begin with a prefix, by the rest of their keys.
    pub(super) fn all<T: DeserializeOwned>(
        &self,
        prefix: &str,
    ) -> Result<BTreeMap<String, T>, StoreError> {
        let mut all = BTreeMap::new();
        let mut after = String::new();
        let filter = text(prefix)?;
        loop {
            let begin = text(&after)?;
            let mut more = 0_u8;
            let more_at = &raw mut more;
            let page = self.read(|library, operation, list, result| {
                // SAFETY: both texts, the list and the result outlive the operation.
                unsafe {
                    (library.rados_read_op_omap_get_vals2)(
                        operation,
                        begin.as_ptr(),
                        filter.as_ptr(),
                        PAGE,
                        list,
                        more_at,
                        result,
                    );
                }
            })?;
            let Some((last, _)) = page.last_key_value() else { return Ok(all) };
            after.clone_from(last);
            for (key, bytes) in &page {
                let rest = key.strip_prefix(prefix).unwrap_or(key);
                all.insert(rest.to_owned(), parse(key, bytes)?);
            }
            if more == 0 {
                return Ok(all);
            }
        }
    }

    /// Runs one read, and returns its list.
    fn read(
        &self,
        add: impl FnOnce(&Library, Handle, *mut Handle, *mut c_int),
    ) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let library = self.cluster.library;
        let mut list = ptr::null_mut();
        let mut result = 0;
        // SAFETY: the operation is released below, after it has been run.
        let operation = unsafe { (library.rados_create_read_op)() };
        add(library, operation, &raw mut list, &raw mut result);
        // SAFETY: the operation is whole, and the object's name ends with a zero byte.
        let code = unsafe {
            let io = self.cluster.io;
            let object = self.object.as_ptr();
            let code = (library.rados_read_op_operate)(operation, io, object, 0);
            (library.rados_release_read_op)(operation);
            code
        };
        let mut found = BTreeMap::new();
        if code >= 0 && result >= 0 {
            self.collect(list, &mut found)?;
        }
        if !list.is_null() {
            // SAFETY: the list is released once.
            unsafe { (library.rados_omap_get_end)(list) };
        }
        match code {
            // The object does not exist before the first write.
            code if code == -libc::ENOENT => Ok(found),
            code => check(code.min(result), || {
                format!("read the object {OBJECT} of {}", self.cluster.place().name())
            })
            .map(|_| found),
        }
    }

    fn collect(
        &self,
        list: Handle,
        found: &mut BTreeMap<String, Vec<u8>>,
    ) -> Result<(), StoreError> {
        loop {
            let mut key = ptr::null_mut();
            let mut value = ptr::null_mut();
            let mut key_bytes = 0;
            let mut value_bytes = 0;
            // SAFETY: there is room for each of the four.
            let code = unsafe {
                (self.cluster.library.rados_omap_get_next2)(
                    list,
                    &raw mut key,
                    &raw mut value,
                    &raw mut key_bytes,
                    &raw mut value_bytes,
                )
            };
            check(code, || format!("read the object {OBJECT}"))?;
            if key.is_null() {
                return Ok(());
            }
            let bytes = |from: *mut c_char, length: usize| {
                if from.is_null() {
                    Vec::new()
                } else {
                    // SAFETY: the library returns the length; the text lives until the list is
                    // released.
                    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }.to_vec()
                }
            };
            let key = String::from_utf8_lossy(&bytes(key, key_bytes)).into_owned();
            found.insert(key, bytes(value, value_bytes));
        }
    }
}

fn parse<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| unreadable(key, &error))
}
