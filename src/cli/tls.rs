//! Flags of `evenkeel tls`.

use super::instance_id;
use clap::{Args, Subcommand, ValueHint};
use evenkeel_core::ids::InstanceId;
use evenkeel_tls::authority;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct TlsArgs {
    #[command(subcommand)]
    pub verb: TlsVerb,

    /// Folder of the authority, and of the certificates that it signs.
    #[arg(long, global = true, value_name = "DIR", default_value = "./evenkeel-tls")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,

    /// Days for which the certificates of servers and hosts are valid. The authority's own is valid
    /// for ten years.
    #[arg(long, global = true, value_name = "DAYS", default_value_t = authority::DAYS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(authority::DAYS)))]
    pub days: u32,
}

#[derive(Subcommand, Debug)]
pub enum TlsVerb {
    /// Make an authority and the server's certificate in a new folder.
    ///
    /// Nothing is overwritten. The key of the authority, ca-key.pem, signs every other certificate:
    /// keep it where the server cannot read it, if you can.
    Init {
        #[command(flatten)]
        names: ServerNames,
    },
    /// Make the server's certificate anew, before it expires or for more names.
    ///
    /// The names of the certificate that it replaces stay. A running server uses it for new
    /// connections within ten seconds.
    Server {
        #[command(flatten)]
        names: ServerNames,
    },
    /// Make the certificate of a client host, which connects to NBD over TLS.
    ///
    /// It is made in hosts/HOST below the folder, under the names that libnbd and QEMU expect.
    Host {
        /// The host's id, as `evenkeel host register` prints it.
        #[arg(value_name = "HOST", value_parser = instance_id)]
        host: InstanceId,

        /// Replace the certificate that was made before.
        #[arg(long)]
        replace: bool,
    },
}

#[derive(Args, Debug)]
pub struct ServerNames {
    /// A name or an address under which clients reach the server; may be repeated. This machine's
    /// name, localhost, 127.0.0.1 and ::1 are always among them.
    #[arg(long = "name", value_name = "NAME", value_parser = super::host_name)]
    pub names: Vec<String>,
}
