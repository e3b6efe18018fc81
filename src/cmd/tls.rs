//! `evenkeel tls`: a local authority, and the certificates that it signs.

use crate::cli::{ServerNames, TlsArgs, TlsVerb};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_os::{clock, files};
use evenkeel_tls::authority::{AUTHORITY_DAYS, Authority, Made, Validity};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The authority's certificate, which clients and the server need.
const CA_CERT: &str = "ca-cert.pem";
/// The authority's key, which signs all others.
const CA_KEY: &str = "ca-key.pem";
const SERVER_CERT: &str = "server-cert.pem";
const SERVER_KEY: &str = "server-key.pem";
/// Folder of the certificates of hosts. The names of its files are those of QEMU and libnbd.
const HOSTS: &str = "hosts";
const CLIENT_CERT: &str = "client-cert.pem";
const CLIENT_KEY: &str = "client-key.pem";

/// Access to a private key: its owner only.
const KEY_MODE: u32 = 0o600;
/// Access to a certificate, which is public.
const CERT_MODE: u32 = 0o644;
/// Access to a folder with keys.
const FOLDER_MODE: u32 = 0o755;

pub fn run(arguments: &TlsArgs) -> Result<(), Failure> {
    let dir = std::path::absolute(&arguments.dir)
        .map_err(|error| Failure::new(format!("{}: {error}", arguments.dir.display())))?;
    let days = arguments.days;
    let text = match &arguments.verb {
        TlsVerb::Init { names } => init(&dir, names, days)?,
        TlsVerb::Server { names } => server(&dir, names, days)?,
        TlsVerb::Host { host, replace } => host_of(&dir, &host.to_string(), *replace, days)?,
    };
    output::print(&text)
}

fn failed(path: &Path, error: impl ToString) -> Failure {
    Failure::new(format!("{}: {}", path.display(), error.to_string()))
}

fn validity(days: u32) -> Validity {
    Validity { now: clock::since_1970(), days }
}

/// Returns the failure of a verb that would overwrite a file.
fn exists(path: &Path, hint: &str) -> Failure {
    let message = format!("{} exists, and is not overwritten", path.display());
    Failure::new(message).exit(Exit::Refused).hint(hint)
}

fn make_folder(path: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
    made.map_err(|error| failed(path, error))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    files::write_whole_with_mode(path, text.as_bytes(), mode)
        // The process may mask bits of the mode.
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|error| failed(path, error))
}

/// Writes the key first: a certificate without its key would be of no use.
fn write_pair(made: &Made, certificate: &Path, key: &Path) -> Result<(), Failure> {
    write(key, &made.key, KEY_MODE)?;
    write(certificate, &made.certificate, CERT_MODE)
}

fn all_names(names: &ServerNames) -> Vec<String> {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let usual = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut all = Vec::new();
    for name in names.names.iter().cloned().chain(usual).chain([machine]) {
        if !name.is_empty() && !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

fn init(dir: &Path, names: &ServerNames, days: u32) -> Result<String, Failure> {
    make_folder(dir)?;
    let files = [CA_CERT, CA_KEY, SERVER_CERT, SERVER_KEY].map(|name| dir.join(name));
    if let Some(present) = files.iter().find(|path| path.exists()) {
        let hint = "name another folder with --dir; `evenkeel tls server` renews the server's \
                    certificate";
        return Err(exists(present, hint));
    }
    let names = all_names(names);
    let (authority, made) =
        Authority::create(validity(AUTHORITY_DAYS)).map_err(|error| failed(dir, error))?;
    let server = authority.server(&names, validity(days)).map_err(|error| failed(dir, error))?;
    let [ca_cert, ca_key, server_cert, server_key] = &files;
    write_pair(&made, ca_cert, ca_key)?;
    write_pair(&server, server_cert, server_key)?;
    let mut text = format!("made in {}:\n", dir.display());
    let _ = writeln!(text, "  {CA_CERT}      the authority: copy it to every client");
    let _ =
        writeln!(text, "  {CA_KEY}       its key: keep it secret, and off the server if you can");
    let _ = writeln!(text, "  {SERVER_CERT}  the server, as {}", names.join(", "));
    let _ = writeln!(text, "  {SERVER_KEY}   its key");
    let _ = writeln!(text, "serve with them, the API at https and NBD over TLS:");
    let _ = writeln!(text, "  evenkeel serve --tls-cert {} \\", server_cert.display());
    let _ =
        writeln!(text, "    --tls-key {} --tls-ca {} \\", server_key.display(), ca_cert.display());
    let _ = writeln!(text, "    --nbd-tls-listen ADDRESS:10809");
    let _ =
        writeln!(text, "for each client host, with the id that `evenkeel host register` prints:");
    let _ = writeln!(text, "  evenkeel tls host HOST");
    Ok(text)
}

/// Opens the authority of a folder.
fn authority(dir: &Path) -> Result<Authority, Failure> {
    let path = dir.join(CA_KEY);
    let key = fs::read_to_string(&path).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => "make the authority with `evenkeel tls init`, or name its --dir",
            _ => "run this as the owner of the authority's key",
        };
        failed(&path, error).hint(hint)
    })?;
    Authority::of_key(&key).map_err(|error| failed(&path, error))
}

fn server(dir: &Path, names: &ServerNames, days: u32) -> Result<String, Failure> {
    let names = all_names(names);
    let made = authority(dir)?.server(&names, validity(days));
    let made = made.map_err(|error| failed(dir, error))?;
    let certificate = dir.join(SERVER_CERT);
    write_pair(&made, &certificate, &dir.join(SERVER_KEY))?;
    Ok(format!(
        "made {}, valid for {days} days, for {}\n\
         a running server uses it for new connections within ten seconds\n",
        certificate.display(),
        names.join(", ")
    ))
}

fn host_of(dir: &Path, host: &str, replace: bool, days: u32) -> Result<String, Failure> {
    let made = authority(dir)?.host(host, validity(days));
    let made = made.map_err(|error| failed(dir, error))?;
    let folder: PathBuf = dir.join(HOSTS).join(host);
    let certificate = folder.join(CLIENT_CERT);
    if certificate.exists() && !replace {
        return Err(exists(&certificate, "--replace makes it anew"));
    }
    let ca = dir.join(CA_CERT);
    let ca_text = fs::read_to_string(&ca).map_err(|error| failed(&ca, error))?;
    make_folder(&folder)?;
    write_pair(&made, &certificate, &folder.join(CLIENT_KEY))?;
    write(&folder.join(CA_CERT), &ca_text, CERT_MODE)?;
    let mut text = format!("made in {}:\n", folder.display());
    let _ = writeln!(text, "  {CA_CERT}, {CLIENT_CERT}, {CLIENT_KEY}, valid for {days} days");
    let _ = writeln!(text, "copy the three files to {host}, into a folder DIR of root; there:");
    let _ = writeln!(text, "  nbdinfo 'nbds://SERVER:10809/VOLUME?tls-certificates=DIR'");
    let _ = writeln!(text, "  qemu-img info \\");
    let _ = writeln!(text, "    --object tls-creds-x509,id=tls0,endpoint=client,dir=DIR \\");
    let _ = writeln!(
        text,
        "    --image-opts driver=nbd,host=SERVER,port=10809,export=VOLUME,tls-creds=tls0"
    );
    let _ = writeln!(text, "  nbd-client -name VOLUME -cacertfile DIR/{CA_CERT} \\");
    let _ = writeln!(text, "    -certfile DIR/{CLIENT_CERT} -keyfile DIR/{CLIENT_KEY} \\");
    let _ = writeln!(text, "    SERVER 10809 /dev/nbd0");
    Ok(text)
}
