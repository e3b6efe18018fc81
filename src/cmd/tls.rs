//! `evenkeel tls`: a local authority, and the certificates that it signs.

use crate::cli::{ServerNames, TlsArgs, TlsVerb};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_os::{clock, files};
use evenkeel_tls::authority::{AUTHORITY_DAYS, Authority, Made, NotAuthority, Validity};
use evenkeel_tls::{host_name, pem};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
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

/// The remedy for an authority whose files do not fit each other.
const BOTH_FILES: &str =
    "put ca-cert.pem and ca-key.pem of one `evenkeel tls init` into the folder";

/// Access to a private key: its owner only; and what is kept of the access to the file that it
/// replaces, which the group of a service may read.
const KEY_MODES: (u32, u32) = (0o600, 0o640);
/// Access to a certificate, which is public, and what is kept of that to a former one.
const CERT_MODES: (u32, u32) = (0o644, 0o644);
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

/// Replaces a file as a whole, with its owner, its group and its mode, or makes it.
fn write(path: &Path, text: &str, (mode, kept): (u32, u32)) -> Result<(), Failure> {
    let written = files::write_whole_with_access(path, text.as_bytes(), mode, kept);
    written.map_err(|error| {
        let failure = failed(path, &error);
        match (error.kind(), fs::metadata(path)) {
            (ErrorKind::PermissionDenied, Ok(former)) => {
                let user = former.uid();
                let group = former.gid();
                failure
                    .hint(format!("it stays user {user}'s and group {group}'s: run this as root"))
            }
            _ => failure,
        }
    })
}

/// Writes the key first: a certificate without its key would be of no use.
fn write_pair(made: &Made, certificate: &Path, key: &Path) -> Result<(), Failure> {
    write(key, &made.key, KEY_MODES)?;
    write(certificate, &made.certificate, CERT_MODES)
}

/// Returns the names of the certificate that a new one replaces, if there is one.
fn former_names(certificate: &Path) -> Result<Vec<String>, Failure> {
    if !certificate.exists() {
        return Ok(Vec::new());
    }
    let hint = "its names cannot be kept: remove the file, and give all names with --name";
    let read = pem::certificates(certificate).map_err(|error| Failure::new(error.to_string()));
    let found = read.and_then(|all| match all.first() {
        Some(first) => host_name::names_of(first).map_err(|error| failed(certificate, error)),
        None => Ok(Vec::new()),
    });
    found.map_err(|failure| failure.hint(hint))
}

/// Returns the names of a new certificate: the former ones, the given ones, and the usual ones.
fn all_names(former: Vec<String>, names: &ServerNames) -> Vec<String> {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let usual = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut all = Vec::new();
    let given = names.names.iter().cloned();
    for name in former.into_iter().chain(given).chain(usual).chain([machine]) {
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
    let names = all_names(Vec::new(), names);
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
    let certificate = dir.join(CA_CERT);
    let found = pem::certificates(&certificate);
    let found = found.map_err(|error| Failure::new(error.to_string()).hint(BOTH_FILES))?;
    let [found] = found.as_slice() else {
        let text = format!("{} certificates, and not only the authority's", found.len());
        return Err(failed(&certificate, text).hint(BOTH_FILES));
    };
    Authority::open(&key, found).map_err(|why| match why {
        NotAuthority::Key(error) => failed(&path, format!("it is no private key: {error}")),
        NotAuthority::Certificate(error) => failed(&certificate, error),
        NotAuthority::OtherKey => {
            let message = format!("{} is not the key of {CA_CERT} beside it", path.display());
            Failure::new(message).hint(BOTH_FILES)
        }
        NotAuthority::OtherName => {
            let text = "it is not a certificate of `evenkeel tls init`, which only makes \
                        certificates in the name of its own authorities";
            failed(&certificate, text).hint("make the certificate with your authority's tool")
        }
    })
}

fn server(dir: &Path, names: &ServerNames, days: u32) -> Result<String, Failure> {
    let authority = authority(dir)?;
    let certificate = dir.join(SERVER_CERT);
    let names = all_names(former_names(&certificate)?, names);
    let made = authority.server(&names, validity(days));
    let made = made.map_err(|error| failed(dir, error))?;
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
    write(&folder.join(CA_CERT), &ca_text, CERT_MODES)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn a_renewal_keeps_the_names_and_adds_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let named = |names: &[&str]| ServerNames {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        init(dir, &named(&["storage.example", "192.0.2.7"]), 1).unwrap();
        server(dir, &named(&["other.example"]), 1).unwrap();
        let names = former_names(&dir.join(SERVER_CERT)).unwrap();
        for name in ["storage.example", "192.0.2.7", "other.example", "localhost", "::1"] {
            assert!(names.iter().any(|other| other == name), "{name}: {names:?}");
        }
        // Without the file, only the given names are in.
        fs::remove_file(dir.join(SERVER_CERT)).unwrap();
        server(dir, &named(&["a.example"]), 1).unwrap();
        let names = former_names(&dir.join(SERVER_CERT)).unwrap();
        assert!(!names.contains(&"storage.example".to_owned()), "{names:?}");
        fs::write(dir.join(SERVER_CERT), "nothing").unwrap();
        let refused = server(dir, &named(&[]), 1).unwrap_err();
        assert!(refused.hint.unwrap().contains("remove the file"));
    }

    #[test]
    fn a_renewal_keeps_owner_group_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        write(&key, "first", KEY_MODES).unwrap();
        assert_eq!(mode(&key), 0o600);
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(&key, Some(65_532), Some(65_533)).unwrap();
        }
        for (former, kept) in [(0o600, 0o600), (0o640, 0o640), (0o400, 0o400), (0o666, 0o640)] {
            fs::set_permissions(&key, Permissions::from_mode(former)).unwrap();
            write(&key, "next", KEY_MODES).unwrap();
            assert_eq!(mode(&key), kept);
            let found = key.metadata().unwrap();
            assert!(!is_root || (found.uid(), found.gid()) == (65_532, 65_533));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }
}
