//! The value of `--store`: where the bytes of the volumes are stored, and the simulated device in
//! front of them, if any. Parsing returns an error that names the wrong part.

use clap::{Args, ValueHint};
use evenkeel_store::faulty::setup::Setup;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the bytes of the volumes are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreKind {
    pub bytes: Bytes,
    /// The simulated device in front of the bytes, if any.
    pub device: Option<Setup>,
}

impl StoreKind {
    /// Whether requests take time on a device, real or simulated.
    pub fn has_device(&self) -> bool {
        self.bytes != Bytes::Memory || self.device.is_some()
    }
}

/// Options of the store `local`, apart from the data folder.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct LocalStore {
    /// The block device or the file that holds the pool of the store `local`, if it is not the file
    /// `pool` in the data folder. At the first start it must be there and empty.
    #[arg(long, env = "EVENKEEL_POOL", value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub pool: Option<PathBuf>,

    /// Encrypt new volumes of the store `local` or `rbd`. The file holds the key that wraps theirs:
    /// 64 hexadecimal digits, readable by its owner alone. Without it the volumes are lost. Refused
    /// in ./evenkeel.toml, unless --config names that file.
    #[arg(long, env = "EVENKEEL_KEY_FILE", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,

    /// Encrypt new volumes of the store `local` or `rbd`. The command wraps and unwraps their keys:
    /// it is run by `sh` with `wrap` or `unwrap` as $1, gets hexadecimal digits on its standard
    /// input, and answers with such on its standard output. Refused in ./evenkeel.toml, unless
    /// --config names that file.
    #[arg(long, env = "EVENKEEL_KEY_COMMAND", value_name = "COMMAND", hide_env_values = true)]
    pub key_command: Option<String>,
}

/// The pool and the namespace of the store `rbd`, unless others are named.
pub const RBD_NAME: &str = "evenkeel";
/// The user of the Ceph cluster, unless another one is named.
pub const CEPH_USER: &str = "client.admin";

/// Options of the store `rbd`, apart from the data folder.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct RbdStore {
    /// The configuration file of the Ceph cluster of the store `rbd`. Without it, what CEPH_CONF
    /// names, or /etc/ceph/ceph.conf.
    #[arg(long, env = "EVENKEEL_CEPH_CONF", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ceph_conf: Option<PathBuf>,

    /// The user of the Ceph cluster; client.admin by default. It needs the capabilities
    /// `mon 'profile rbd'` and `osd 'profile rbd pool=POOL'`.
    #[arg(long, env = "EVENKEEL_CEPH_USER", value_name = "NAME")]
    pub ceph_user: Option<String>,

    /// The pool of the Ceph cluster that holds the volumes of the store `rbd`; evenkeel by default.
    #[arg(long, env = "EVENKEEL_RBD_POOL", value_name = "POOL")]
    pub rbd_pool: Option<String>,

    /// The namespace in that pool; evenkeel by default. Each data folder needs its own.
    #[arg(long, env = "EVENKEEL_RBD_NAMESPACE", value_name = "NAMESPACE")]
    pub rbd_namespace: Option<String>,
}

/// Kind of store that has the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// Blocks with checksums in one pool.
    Local,
    /// Images of a Ceph cluster.
    Rbd,
    /// Memory: fast, and lost when the process ends.
    Memory,
}

const BYTES: [(&str, Bytes); 3] =
    [("local", Bytes::Local), ("rbd", Bytes::Rbd), ("memory", Bytes::Memory)];

/// Prefix of a value with a simulated device.
const FAULTY: &str = "faulty:";

fn bytes(text: &str) -> Option<Bytes> {
    BYTES.iter().find(|(name, _)| *name == text).map(|(_, bytes)| *bytes)
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(bytes) = bytes(text) {
            return Ok(Self { bytes, device: None });
        }
        let Some(faulty) = text.strip_prefix(FAULTY) else {
            return Err(format!(
                "expected local, rbd, memory or {FAULTY}memory,channels=8,read_us=80"
            ));
        };
        let (below, device) = faulty.split_once(',').unwrap_or((faulty, ""));
        let Some(bytes) = bytes(below) else {
            return Err(format!("\"{below}\" after {FAULTY} is none of local, rbd and memory"));
        };
        let device: Setup = device.parse().map_err(|error| format!("{FAULTY}{below}: {error}"))?;
        Ok(Self { bytes, device: Some(device) })
    }
}

/// Writes what [`StoreKind::from_str`] reads.
impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            BYTES.iter().find(|(_, bytes)| *bytes == self.bytes).map_or("", |(name, _)| name);
        match &self.device {
            None => f.write_str(name),
            Some(device) => write!(f, "{FAULTY}{name},{device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_written_as_it_is_read() {
        for text in
            ["local", "rbd", "memory", "faulty:memory,channels=8,read_us=80,read_ns_per_byte=4"]
        {
            assert_eq!(text.parse::<StoreKind>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_wrong_store_is_an_error_that_names_the_wrong_part() {
        let wrong = |text: &str| text.parse::<StoreKind>().unwrap_err();
        assert_eq!(
            wrong("disk"),
            "expected local, rbd, memory or faulty:memory,channels=8,read_us=80"
        );
        assert_eq!(wrong("faulty:disk"), "\"disk\" after faulty: is none of local, rbd and memory");
        assert_eq!(
            wrong("faulty:memory"),
            "faulty:memory: channels is missing: requests that the device works on at once"
        );
    }
}
