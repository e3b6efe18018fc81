//! Flags of TLS between a server and its clients, and of listeners that do without.

use clap::{Args, ValueEnum, ValueHint};
use evenkeel_client::output::{Exit, Failure};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The server's certificate, and what may be served without one.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct Tls {
    /// The certificate that the server shows its clients, in PEM form, and intermediate ones. With
    /// it the API, /metrics included, is served at https only; `evenkeel tls init` makes one. Files
    /// that change are read again within ten seconds.
    #[arg(long, env = "EVENKEEL_TLS_CERT", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_cert: Option<PathBuf>,

    /// The key of that certificate, in PEM form, not readable by others.
    #[arg(long, env = "EVENKEEL_TLS_KEY", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_key: Option<PathBuf>,

    /// The certificates of the authority, in PEM form, with which the certificates of client hosts
    /// are signed. The verbs of this program on this machine and `evenkeel env` trust the server's
    /// own certificate by it, too.
    #[arg(long, env = "EVENKEEL_TLS_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_ca: Option<PathBuf>,

    /// Addresses of NBD over TLS, separated by commas; port 0 takes a free port. A client shows the
    /// certificate of a host, and reaches the volumes that are attached to that host. Needs
    /// --tls-ca. `none`: no NBD over TLS.
    #[arg(long, env = "EVENKEEL_NBD_TLS_LISTEN", default_value = "none", value_name = "ADDR")]
    #[arg(value_delimiter = ',')]
    pub nbd_tls_listen: Vec<NbdListen>,

    /// Listeners that may be reached by other machines without TLS, separated by commas. Without
    /// this, a server with such a listener does not start.
    #[arg(long, env = "EVENKEEL_INSECURE", value_name = "LISTENER", value_delimiter = ',')]
    pub insecure: Vec<PlainListener>,
}

/// A listener that can be without TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PlainListener {
    /// The API: anyone on the network path reads requests and replies.
    Listen,
    /// NBD: anyone on the network path reads and changes the data of volumes.
    NbdListen,
}

/// Where NBD is served over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NbdListen {
    /// Nowhere.
    None,
    /// There.
    At(SocketAddr),
}

impl NbdListen {
    /// Returns the addresses in the list of a setting.
    ///
    /// # Errors
    /// `none` stands beside an address.
    pub fn only_addresses(setting: &str, listed: &[Self]) -> Result<Vec<SocketAddr>, Failure> {
        if listed.len() > 1 && listed.contains(&Self::None) {
            let both = format!("{setting}: none stands beside an address; leave one of them out");
            return Err(Failure::new(both).exit(Exit::Usage));
        }
        Ok(Self::addresses(listed))
    }

    /// Returns the addresses in a list of values.
    pub fn addresses(listed: &[Self]) -> Vec<SocketAddr> {
        let address = |listen: &Self| match listen {
            Self::None => None,
            Self::At(address) => Some(*address),
        };
        listed.iter().filter_map(address).collect()
    }
}

impl FromStr for NbdListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            text => text
                .parse()
                .map(Self::At)
                .map_err(|error| format!("{error}; expected ADDRESS:PORT, or none")),
        }
    }
}
