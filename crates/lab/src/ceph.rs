//! A Ceph cluster for tests and trials: one monitor, one manager and some OSDs as plain processes
//! on loopback, all in one folder, without containers or root. A user that can read the folder can
//! use the cluster. It ends when its value is dropped, and its data is not worth keeping.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::LabError;
use crate::child::{Guarded, run_within, wait_for};
use evenkeel_os::clock;

/// The name of its pool.
pub const POOL: &str = "evenkeel";
/// The user that serves volumes of the pool.
pub const USER: &str = "client.evenkeel";
/// The user's capabilities, exactly those that the manual grants.
const USER_CAPS: [(&str, &str); 3] =
    [("mon", "profile rbd"), ("osd", "profile rbd pool=evenkeel"), ("mgr", "allow r")];
const ADMIN_CAPS: [(&str, &str); 3] = [("mon", "allow *"), ("osd", "allow *"), ("mgr", "allow *")];
const MANAGER_CAPS: [(&str, &str); 2] = [("mon", "allow profile mgr"), ("osd", "allow *")];
const OSD_CAPS: [(&str, &str); 3] =
    [("mon", "allow profile osd"), ("mgr", "allow profile osd"), ("osd", "allow *")];
/// The keyring that the monitor begins with.
const KEYS: &str = "mon.keyring";
/// Placement groups of the pool.
const GROUPS: u32 = 32;
/// Time limit of a command.
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// Longest wait until every placement group is active and clean.
const CLEAN_MAX: Duration = Duration::from_secs(180);
/// Time between two checks for it.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for a daemon to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// The configuration of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// OSDs; each holds a copy of everything, up to three.
    pub osds: u32,
    /// Size of an OSD in GiB; sparse.
    pub osd_gib: u32,
    /// How long the monitors collect changes, in milliseconds: 1,000 is Ceph's default.
    pub propose_ms: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self { osds: 1, osd_gib: 8, propose_ms: 100 }
    }
}

/// A running cluster; killed when dropped.
#[derive(Debug)]
pub struct Ceph {
    folder: PathBuf,
    setup: Setup,
    // The OSDs come first, since they are clients of the monitor.
    osds: Vec<Option<Guarded>>,
    manager: Option<Guarded>,
    monitor: Option<Guarded>,
}

/// Returns a free port of loopback. Another program may take it before it is used.
fn free_port() -> Result<u16, LabError> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(LabError::io("cannot find a free port", "127.0.0.1"))
}

/// Returns a random id in the form of a UUID.
fn uuid() -> Result<String, LabError> {
    let path = "/proc/sys/kernel/random/uuid";
    let text = fs::read_to_string(path).map_err(LabError::io("cannot read", path))?;
    Ok(text.trim().to_owned())
}

impl Ceph {
    /// Makes a cluster in a folder, which must be empty or absent, and starts it. Returns when
    /// every placement group is active and clean.
    ///
    /// # Errors
    /// When Ceph is not installed, the folder is not empty, or a daemon does not start.
    pub fn start(folder: &Path, setup: Setup) -> Result<Self, LabError> {
        let used = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if used {
            let what = format!("{} is not empty; name a new folder", folder.display());
            return Err(LabError::Failed { what, hint: None });
        }
        for part in ["log", "mon", "mgr", "run"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(LabError::io("cannot make", &path))?;
        }
        let osds = (0..setup.osds).map(|_| None).collect();
        let folder = folder.to_owned();
        let mut ceph = Self { folder, setup, osds, manager: None, monitor: None };
        ceph.make()?;
        Ok(ceph)
    }

    /// Returns the path of its configuration file, for clients.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    fn make(&mut self) -> Result<(), LabError> {
        let fsid = uuid()?;
        let port = free_port()?;
        let conf = self.conf();
        fs::write(&conf, self.text(&fsid, port)).map_err(LabError::io("cannot write", &conf))?;
        let map = self.folder.join("monmap");
        let address = format!("[v2:127.0.0.1:{port}]");
        let mut make = Command::new("monmaptool");
        make.args(["--create", "--fsid", &fsid, "--addv", "a", &address]).arg(map);
        run_within(COMMAND_MAX, &mut make, "ceph-common")?;
        self.make_keys()?;
        let mut make = self.daemon("mon", "a");
        make.arg("--mkfs").arg("--keyring").arg(self.folder.join(KEYS));
        run_within(COMMAND_MAX, &mut make, "ceph-mon")?;
        self.monitor = Some(Guarded::spawn(&mut self.daemon("mon", "a"), "ceph-mon")?);
        self.manager = Some(Guarded::spawn(&mut self.daemon("mgr", "x"), "ceph-mgr")?);
        for number in 0..self.setup.osds {
            let id = uuid()?;
            self.client(&["osd", "new", &id])?;
            let path = self.folder.join(format!("osd.{number}"));
            fs::create_dir(&path).map_err(LabError::io("cannot make", &path))?;
            let mut make = self.daemon("osd", &number.to_string());
            run_within(COMMAND_MAX, make.args(["--mkfs", "--osd-uuid", &id]), "ceph-osd")?;
            self.start_osd(number)?;
        }
        let groups = GROUPS.to_string();
        self.client(&["osd", "pool", "create", POOL, &groups, &groups])?;
        self.client(&["osd", "pool", "application", "enable", POOL, "rbd"])?;
        self.wait_until_clean()
    }

    /// Creates the keys of all daemons and users, each in a file of its own.
    fn make_keys(&self) -> Result<(), LabError> {
        self.make_key("mon.", &[("mon", "allow *")])?;
        self.make_key("client.admin", &ADMIN_CAPS)?;
        self.make_key(USER, &USER_CAPS)?;
        self.make_key("mgr.x", &MANAGER_CAPS)?;
        (0..self.setup.osds)
            .try_for_each(|number| self.make_key(&format!("osd.{number}"), &OSD_CAPS))
    }

    fn make_key(&self, name: &str, caps: &[(&str, &str)]) -> Result<(), LabError> {
        let own = match name {
            "mon." => KEYS.to_owned(),
            _ => format!("{name}.keyring"),
        };
        let mut make = Command::new("ceph-authtool");
        make.current_dir(&self.folder).args(["--create-keyring", &own, "--gen-key", "-n", name]);
        for (service, cap) in caps {
            make.args(["--cap", service, cap]);
        }
        run_within(COMMAND_MAX, &mut make, "ceph-common")?;
        if own == KEYS {
            return Ok(());
        }
        let mut import = Command::new("ceph-authtool");
        import.current_dir(&self.folder).args([KEYS, "--import-keyring", &own]);
        run_within(COMMAND_MAX, &mut import, "ceph-common").map(drop)
    }

    /// Returns the text of the configuration file. All OSDs are on one host, so the report of one
    /// is enough to mark another one down. Their caches are small and their logs short, as they
    /// would grow to gigabytes otherwise.
    fn text(&self, fsid: &str, port: u16) -> String {
        let folder = self.folder.display();
        let copies = self.setup.osds.clamp(1, 3);
        let least = copies.div_ceil(2);
        let bytes = u64::from(self.setup.osd_gib) << 30;
        let propose = f64::from(self.setup.propose_ms) / 1_000.0;
        let mut text = String::from("[global]\n");
        for line in [
            format!("fsid = {fsid}"),
            format!("mon host = [v2:127.0.0.1:{port}]"),
            "mon initial members = a".to_owned(),
            format!("mon data = {folder}/mon"),
            format!("mgr data = {folder}/mgr"),
            format!("osd data = {folder}/osd.$id"),
            format!("run dir = {folder}/run"),
            format!("log file = {folder}/log/$name.log"),
            format!("admin socket = {folder}/run/$name.$pid.asok"),
            format!("crash dir = {folder}/run"),
            format!("pid file = {folder}/run/$name.pid"),
            "public addr = 127.0.0.1".to_owned(),
            "ms bind msgr1 = false".to_owned(),
            format!("keyring = {folder}/$name.keyring"),
            "auth allow insecure global id reclaim = false".to_owned(),
            format!("paxos propose interval = {propose}"),
            "mon allow pool size one = true".to_owned(),
            "mon warn on pool no redundancy = false".to_owned(),
            // A nearly full disk would stop the monitor; tests and trials need little space.
            "mon data avail warn = 1".to_owned(),
            "mon data avail crit = 0".to_owned(),
            "mon osd min down reporters = 1".to_owned(),
            "mon osd reporter subtree level = osd".to_owned(),
            "mgr initial modules =".to_owned(),
            "mgr stats period = 1".to_owned(),
            "osd crush chooseleaf type = 0".to_owned(),
            format!("osd pool default size = {copies}"),
            format!("osd pool default min size = {least}"),
            "osd pool default pg autoscale mode = off".to_owned(),
            format!("bluestore block size = {bytes}"),
            "bluestore cache autotune = false".to_owned(),
            "bluestore cache size = 67108864".to_owned(),
            "osd min pg log entries = 250".to_owned(),
            "osd max pg log entries = 500".to_owned(),
        ] {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Returns the command of a daemon in the foreground.
    fn daemon(&self, kind: &str, id: &str) -> Command {
        let mut command = Command::new(format!("ceph-{kind}"));
        command.arg("-c").arg(self.conf()).args(["-i", id, "-f"]);
        if kind == "mon" {
            command.arg("--monmap").arg(self.folder.join("monmap"));
        }
        // Without tcmalloc the arena of each thread keeps unused memory.
        command.env("MALLOC_ARENA_MAX", "2").stdout(Stdio::null());
        command
    }

    /// Runs `ceph` with these arguments; returns its output.
    ///
    /// # Errors
    /// When it fails or hangs.
    pub fn client(&self, words: &[&str]) -> Result<String, LabError> {
        let mut command = Command::new("ceph");
        command.arg("-c").arg(self.conf()).args(["--connect-timeout", "20"]).args(words);
        run_within(COMMAND_MAX, &mut command, "ceph-common")
    }

    /// Waits until every OSD is up and every placement group active and clean.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_until_clean(&self) -> Result<(), LabError> {
        wait_for("a healthy Ceph cluster", CLEAN_MAX, LOOK, || Ok(self.is_clean()?.then_some(())))
    }

    fn is_clean(&self) -> Result<bool, LabError> {
        let printed = self.client(&["status", "--format", "json"])?;
        let bad = |what: String| LabError::BadOutput { tool: "ceph", what };
        let status: serde_json::Value =
            serde_json::from_str(printed.trim()).map_err(|error| bad(error.to_string()))?;
        let up = status["osdmap"]["num_up_osds"].as_u64();
        let states = status["pgmap"]["pgs_by_state"].as_array().cloned().unwrap_or_default();
        let clean: u64 = states
            .iter()
            .filter(|state| {
                state["state_name"].as_str().is_some_and(|name| name.starts_with("active+clean"))
            })
            .filter_map(|state| state["count"].as_u64())
            .sum();
        let all = status["pgmap"]["num_pgs"].as_u64().unwrap_or(0);
        Ok(up == Some(u64::from(self.setup.osds)) && all >= u64::from(GROUPS) && clean == all)
    }

    fn osd(&self, number: u32) -> Result<&Guarded, LabError> {
        let running = self.osds.get(number as usize).and_then(Option::as_ref);
        running.ok_or_else(|| LabError::NotFound(format!("osd.{number} does not run")))
    }

    fn signal(&self, number: u32, signal: Signal) -> Result<(), LabError> {
        let pid = i32::try_from(self.osd(number)?.id()).ok().and_then(Pid::from_raw);
        let sent = pid.map(|pid| kill_process(pid, signal));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(LabError::NotFound(format!("osd.{number} does not run"))),
        }
    }

    /// Starts an OSD that does not run.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_osd(&mut self, number: u32) -> Result<(), LabError> {
        let osd = Guarded::spawn(&mut self.daemon("osd", &number.to_string()), "ceph-osd")?;
        if let Some(slot) = self.osds.get_mut(number as usize) {
            *slot = Some(osd);
        }
        Ok(())
    }

    /// Kills an OSD.
    ///
    /// # Errors
    /// When it does not run.
    ///
    /// For tests.
    pub fn kill_osd(&mut self, number: u32) -> Result<(), LabError> {
        self.osd(number)?;
        self.osds[number as usize] = None;
        Ok(())
    }

    /// Stops an OSD with SIGSTOP: its connections stay open.
    ///
    /// # Errors
    /// When it does not run.
    ///
    /// For tests.
    pub fn pause_osd(&self, number: u32) -> Result<(), LabError> {
        self.signal(number, Signal::STOP)
    }

    /// Resumes a stopped OSD.
    ///
    /// # Errors
    /// When it does not run.
    ///
    /// For tests.
    pub fn resume_osd(&self, number: u32) -> Result<(), LabError> {
        self.signal(number, Signal::CONT)
    }

    /// Returns whether the monitor and the manager run.
    pub fn runs(&mut self) -> bool {
        let daemons = [&mut self.manager, &mut self.monitor].into_iter();
        daemons.flatten().all(|daemon| daemon.wait_until(clock::now()).is_none())
    }

    /// Returns the OSDs that have ended since the last call, and not by [`Self::kill_osd`].
    pub fn take_ended_osds(&mut self) -> Vec<u32> {
        let has_ended = |osd: &mut Guarded| osd.wait_until(clock::now()).is_some();
        let ended = (0..).zip(&mut self.osds);
        ended.filter_map(|(number, slot)| slot.take_if(has_ended).map(|_| number)).collect()
    }

    /// Stops the OSDs, then the manager, then the monitor.
    pub fn stop(&mut self) {
        let daemons = self.osds.iter_mut().chain([&mut self.manager, &mut self.monitor]);
        for daemon in daemons.flatten() {
            daemon.stop(GRACE);
        }
    }
}
