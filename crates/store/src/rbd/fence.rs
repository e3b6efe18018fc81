//! Fencing of processes. Each process registers the address of its connection before it takes its
//! first lock. If a process ended without removing its registration, the next start with its data
//! folder fences it: the cluster's devices then refuse its requests, even if it was only stopped
//! and resumes later. After that its locks may be broken, and no others.
//!
//! The lock of the data folder shows that no other process of this node runs. A process of another
//! node may run, so its locks stay until the cluster of servers decides that its node is fenced.

use super::cluster::{Cluster, Place, errno};
use super::metadata::{Books, Changes, FORMAT, InstanceRecord};
use crate::StoreError;
use crate::encryption::keys::hex;
use crate::folder::Folder;
use evenkeel_core::fencing::order::{self, FenceStep};
use evenkeel_core::fencing::{BLOCKLIST_EXPIRE_S, OwnEntry};
use evenkeel_os::clock::{self, BOOT_ID};
use evenkeel_os::files::write_whole;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// File in the data folder with the node's id, and the id of its cluster.
const FILE: &str = "rbd-node";
/// Prefix of a namespace's owner that is a cluster, not a data folder.
const OF_CLUSTER: &str = "etcd:";
/// The key of the cluster's number.
const NUMBER: &str = "number";
/// An address that no instance has, and the time that it is on the blocklist, in seconds.
const NOBODY: &str = "127.0.0.1:0/1";
const NOBODY_EXPIRE_S: u32 = 1;
/// Bytes of an id.
const ID_BYTES: usize = 8;

/// The owner on whose behalf a process serves the volumes of a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seat {
    /// It is the only server; the namespace belongs to its data folder.
    Alone,
    /// It is a node of a cluster of servers, to which the namespace belongs.
    Member {
        /// The name of the cluster.
        cluster: String,
        /// The number of the cluster; it distinguishes clusters with the same name.
        number: u128,
        /// The name of the node. Two live processes of a cluster never have the same one.
        node: String,
    },
}

impl Seat {
    /// Returns the owner, as the namespace records it.
    fn owner(&self, node: &Node) -> String {
        match self {
            Self::Alone => node.cluster.clone(),
            Self::Member { cluster, .. } => format!("{OF_CLUSTER}{cluster}"),
        }
    }

    /// Returns the node's name in the registrations of its instances.
    fn node(&self, node: &Node) -> String {
        match self {
            Self::Alone => node.node.clone(),
            Self::Member { node, .. } => node.clone(),
        }
    }
}

/// The registration of this process at the Ceph cluster.
#[derive(Debug)]
pub(super) struct Instance {
    /// Its address.
    address: String,
    record: InstanceRecord,
}

/// Ids in the data folder.
struct Node {
    cluster: String,
    node: String,
    is_new: bool,
}

fn random_id() -> Result<String, StoreError> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Cluster { why: format!("no random bytes: {error}") })?;
    Ok(hex(&bytes))
}

impl Node {
    fn of(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self { cluster: random_id()?, node: random_id()?, is_new: true })
            }
            Err(error) => Err(StoreError::io(format!("read {}", path.display()), error)),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, StoreError> {
        let mut words = text.split_whitespace();
        match (words.next(), words.next(), words.next(), words.next(), words.next()) {
            (Some("cluster"), Some(cluster), Some("node"), Some(node), None) => {
                Ok(Self { cluster: cluster.to_owned(), node: node.to_owned(), is_new: false })
            }
            _ => Err(StoreError::Format { path: path.to_owned(), found: text.trim().to_owned() }),
        }
    }

    /// Writes the ids durably, before the pool names them.
    fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(FILE);
        let text = format!("cluster {} node {}\n", self.cluster, self.node);
        write_whole(&path, text.as_bytes())
            .map_err(|error| StoreError::io(format!("write {}", path.display()), error))
    }
}

fn instance_key(address: &str) -> String {
    format!("i/{address}")
}

fn fenced_key(address: &str) -> String {
    format!("f/{address}")
}

impl Instance {
    /// Registers this process, after it has fenced earlier ones of its node.
    pub(super) fn register(
        folder: &Folder,
        cluster: &Cluster,
        books: &Books,
        seat: &Seat,
    ) -> Result<Self, StoreError> {
        let node = Node::of(folder.path())?;
        if node.is_new {
            // If the user may not fence, the first start fails, and not only the one after a lost
            // server.
            cluster.blocklist(NOBODY, NOBODY_EXPIRE_S)?;
        }
        own(cluster, books, &node, seat, folder.path())?;
        let boot =
            clock::boot_id().map_err(|error| StoreError::io(format!("read {BOOT_ID}"), error))?;
        let record = InstanceRecord { node: seat.node(&node), boot };
        let address = cluster.address()?;
        let others = registered(books, &record.node)?;
        let addresses: Vec<String> = others.keys().cloned().collect();
        let steps = order::register(&addresses, &address);
        let instance = Self { address, record };
        instance.execute(cluster, books, &others, steps)?;
        Ok(instance)
    }

    /// Returns the address of this process.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Fences all registered processes of another node. When this returns, this process may break
    /// their locks.
    pub(super) fn fence(
        &self,
        cluster: &Cluster,
        books: &Books,
        node: &str,
    ) -> Result<(), StoreError> {
        if node == self.record.node {
            return Err(StoreError::Cluster { why: format!("{node} does not fence itself") });
        }
        let others = registered(books, node)?;
        let addresses: Vec<String> = others.keys().cloned().collect();
        self.execute(cluster, books, &others, order::fence(&addresses, &self.address))
    }

    fn execute(
        &self,
        cluster: &Cluster,
        books: &Books,
        others: &BTreeMap<String, InstanceRecord>,
        steps: Vec<FenceStep<String>>,
    ) -> Result<(), StoreError> {
        for step in steps {
            match step {
                FenceStep::Blocklist(address) => {
                    cluster.blocklist(&address, BLOCKLIST_EXPIRE_S)?;
                    let node = &others[&address].node;
                    tracing::info!(address, node, "fenced a server that ended without leaving");
                }
                FenceStep::Note(address) => {
                    let key = fenced_key(&address);
                    let changes = Changes::default().set(&key, &others[&address])?;
                    books.change(&changes.remove(&instance_key(&address))?)?;
                }
                FenceStep::WaitForLatestMap => cluster.wait_for_latest_map()?,
                FenceStep::Register(address) => books.set(&instance_key(&address), &self.record)?,
            }
        }
        Ok(())
    }

    /// Reads the registration of this process.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub(super) fn own_entry(&self, books: &Books) -> Result<OwnEntry, StoreError> {
        match books.get::<InstanceRecord>(&instance_key(&self.address)) {
            Ok(Some(_)) => Ok(OwnEntry::There),
            Ok(None) => Ok(OwnEntry::Gone),
            Err(error) if errno(&error) == Some(libc::ESHUTDOWN) => Ok(OwnEntry::Refused),
            Err(error) => Err(error),
        }
    }

    /// Returns whether an instance was fenced, so that its locks may be broken.
    pub(super) fn is_fenced(&self, books: &Books, address: &str) -> Result<bool, StoreError> {
        Ok(books.get::<InstanceRecord>(&fenced_key(address))?.is_some())
    }

    /// Removes the registration: no volume is open, so the process need not be fenced.
    pub(super) fn leave(&self, books: &Books) {
        if let Err(error) = books.remove(&instance_key(&self.address)) {
            tracing::warn!(node = %self.record.node, %error, "the next start will fence this one");
        }
    }
}

/// Checks that the namespace belongs to the data folder or to the cluster; takes a new one.
fn own(
    cluster: &Cluster,
    books: &Books,
    node: &Node,
    seat: &Seat,
    folder: &Path,
) -> Result<(), StoreError> {
    let place = cluster.place().name();
    let ours = seat.owner(node);
    match books.get::<String>("format")? {
        Some(format) if format != FORMAT => {
            let path = PathBuf::from(place);
            return Err(StoreError::Format { path, found: format });
        }
        Some(_) => {
            let owner = books.get::<String>("owner")?.unwrap_or_default();
            if owner != ours {
                return Err(StoreError::Cluster { why: of_another(&place, &owner) });
            }
            if node.is_new {
                node.write(folder)?;
            }
            return check_number(cluster, books, seat);
        }
        None if !node.is_new && *seat == Seat::Alone => {
            let why = format!(
                "the data folder {} belongs to cluster {}, and {place} holds nothing of it; name \
                 the pool and the namespace that it had, or an empty folder",
                folder.display(),
                node.cluster
            );
            return Err(StoreError::Cluster { why });
        }
        None => {}
    }
    node.write(folder)?;
    let changes = Changes::default();
    books.change(&changes.set("owner", &ours)?.set("format", &FORMAT)?)?;
    check_number(cluster, books, seat)
}

/// Checks that the namespace belongs to the cluster with this number, and not to another one with
/// the same name. A namespace without a number, as earlier versions leave it, gets this one.
pub(super) fn check_number(
    cluster: &Cluster,
    books: &Books,
    seat: &Seat,
) -> Result<(), StoreError> {
    let Seat::Member { cluster: name, number, .. } = seat else { return Ok(()) };
    let ours = format!("{number:032x}");
    if books.get::<String>(NUMBER)?.is_none() {
        books.set(NUMBER, &ours)?;
    }
    // Another cluster may have written its number at the same time.
    match books.get::<String>(NUMBER)?.unwrap_or_default() {
        found if found == ours => Ok(()),
        found => {
            Err(StoreError::Cluster { why: of_namesake(cluster.place(), name, [&found, &ours]) })
        }
    }
}

fn of_namesake(place: &Place, name: &str, [found, ours]: [&str; 2]) -> String {
    let location = place.name();
    let Place { pool, namespace, .. } = place;
    format!(
        "{location} belongs to the cluster {name} with the number {found}, and the cluster \
         {name} in this etcd has the number {ours}: the servers of either would delete what the \
         other one stores. Name the etcd that has the number {found} in its key \
         /evenkeel/{name}/id, or another namespace with --rbd-namespace. If that etcd is lost \
         for good and none of its servers runs, give the namespace to this cluster: \
         rados -p {pool} -N '{namespace}' rmomapkey evenkeel.books number"
    )
}

fn of_another(place: &str, owner: &str) -> String {
    match owner.strip_prefix(OF_CLUSTER) {
        Some(cluster) => format!(
            "{place} holds volumes of the servers of the cluster {cluster}; serve with --etcd and \
             --cluster {cluster}, or name another namespace with --rbd-namespace"
        ),
        None => format!(
            "{place} holds volumes of another data folder (cluster {owner}); name another \
             namespace with --rbd-namespace, or serve from that folder"
        ),
    }
}

/// Returns the processes that are registered for a node, by their addresses.
fn registered(books: &Books, node: &str) -> Result<BTreeMap<String, InstanceRecord>, StoreError> {
    let mut all = books.all::<InstanceRecord>("i/")?;
    all.retain(|_, record| record.node == node);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namesake_error_has_both_numbers_and_the_remedy() {
        let place = Place {
            conf: None,
            user: "client.evenkeel".to_owned(),
            pool: "vms".to_owned(),
            namespace: "here".to_owned(),
        };
        let why = of_namesake(&place, "evenkeel", ["00aa", "00bb"]);
        for part in [
            "cluster evenkeel with the number 00aa,",
            "in this etcd has the number 00bb:",
            "the number 00aa in its key /evenkeel/evenkeel/id",
            "--rbd-namespace",
            "rados -p vms -N 'here' rmomapkey evenkeel.books number",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
