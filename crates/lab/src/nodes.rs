//! Nodes of a cluster on this machine, on a temporary Ceph cluster and etcd, for measurements and
//! trials.

use std::io::BufReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};

use crate::LabError;
use crate::ceph::{Ceph, USER};
use crate::child::Guarded;
use crate::etcd::Etcd;
use crate::program::{address_in, greeting, without_settings};

/// A running node. Dropping it kills it.
pub struct Node {
    process: Guarded,
    /// Kept open, as the node's next line would fail otherwise.
    _stdout: BufReader<ChildStdout>,
    /// The folder of the node's own files, with the access key of the API.
    pub data_dir: PathBuf,
    /// The address of its API.
    pub api: SocketAddr,
    /// The address for clients of any volume.
    pub nbd: SocketAddr,
}

impl Node {
    /// Starts a node of the program `evenkeel` in a folder of its name and waits until it serves.
    ///
    /// # Errors
    /// If it does not start within a minute.
    pub fn start(
        evenkeel: &Path,
        folder: &Path,
        name: &str,
        (ceph, etcd): (&Ceph, &Etcd),
        options: &[&str],
    ) -> Result<Self, LabError> {
        let data_dir = folder.join(name);
        let mut command = without_settings(evenkeel, folder);
        command.args(["serve", "--store", "rbd", "--ceph-user", USER]);
        command.arg("--ceph-conf").arg(ceph.conf());
        command.args(["--etcd", &etcd.endpoints().join(","), "--node", name, "--no-guarantee"]);
        command.arg("--data-dir").arg(&data_dir).args(["--config", "/dev/null"]);
        command.args(["--listen", "127.0.0.1:0", "--nbd-listen", "127.0.0.1:0"]).args(options);
        let mut process = Guarded::spawn(command.stdout(Stdio::piped()), "evenkeel")?;
        let stdout = process.take_stdout().ok_or_else(|| LabError::failed("no output"))?;
        let Some((stdout, lines)) = greeting(stdout) else {
            let said = process.stderr();
            return Err(LabError::failed(format!("node {name} does not start: {said}")));
        };
        let [api, nbd] = ["http://", "nbd://"].map(|before| address_in(&lines, before));
        Ok(Self { process, _stdout: stdout, data_dir, api: api?, nbd: nbd? })
    }

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills it, as a loss of power would.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}
