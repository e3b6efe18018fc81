//! TLS with the built binary and clients of others: the API at https, NBD with certificates of
//! hosts, and what each refusal says.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::PATIENCE;
use support::clock::Deadline;
use support::machine::alone;
use support::process::{Output, run};
use support::server::{Server, evenkeel, new_folder};
use support::tools::{absent, fio_result, in_venv, start_fio, tool};

/// A server with TLS, and the folder of its authority.
struct Encrypted {
    server: Server,
    authority: PathBuf,
}

/// Runs a verb of `evenkeel tls` on a folder.
fn tls(authority: &Path, verb: &str) -> Output {
    let mut command = evenkeel(authority.parent().expect("a folder"));
    run(command.arg("tls").args(verb.split(' ')).arg("--dir").arg(authority))
}

/// Runs a verb of `evenkeel tls` years ago, so that what it makes has expired.
fn tls_long_ago(authority: &Path, verb: &str) -> Output {
    let mut command = Command::new("faketime");
    command.args(["2020-01-01 00:00:00", env!("CARGO_BIN_EXE_evenkeel"), "tls"]);
    run(command.args(verb.split(' ')).arg("--dir").arg(authority))
}

impl Encrypted {
    fn start() -> Self {
        Self::start_with("init")
    }

    /// Starts a server with the certificates of this verb of `evenkeel tls`.
    fn start_with(verb: &str) -> Self {
        let (folder, data_dir) = new_folder();
        let authority = folder.path().join("tls");
        tls(&authority, verb).ok();
        let file = |name: &str| authority.join(name).display().to_string();
        let options = format!(
            "--store memory --nbd-tls-listen 127.0.0.1:0 --tls-cert {} --tls-key {} --tls-ca {}",
            file("server-cert.pem"),
            file("server-key.pem"),
            file("ca-cert.pem")
        );
        Self { server: Server::start_in(folder, data_dir, &options), authority }
    }

    /// Registers a host; returns its id.
    fn host(&self, flags: &str) -> String {
        let hosts = self.server.list(&format!("host register --type m5.large {flags}"));
        hosts[0]["host_id"].as_str().expect("an id").to_owned()
    }

    /// Makes the certificate of a host; returns its folder.
    fn certificate(&self, host: &str) -> PathBuf {
        tls(&self.authority, &format!("host {host}")).ok();
        self.authority.join("hosts").join(host)
    }

    /// Creates a volume and attaches it to a host; returns its id.
    fn attached_to(&self, host: &str) -> String {
        let volume = self.server.create("--size 1");
        self.server.evenkeel(&format!("volume attach {volume} --host {host} --wait")).ok();
        volume
    }

    fn uri(&self, volume: &str, certificate: &Path) -> String {
        let address = self.server.nbd_tls;
        format!("nbds://{address}/{volume}?tls-certificates={}", certificate.display())
    }
}

fn size(uri: &str) -> Output {
    run(&mut tool("nbdinfo", &format!("--size {uri}")))
}

#[track_caller]
fn fails_with(output: Output, texts: &[&str]) {
    assert!(!output.status.success(), "{output}");
    let prints = |text: &&str| output.stderr.contains(*text) || output.stdout.contains(*text);
    assert!(texts.iter().any(prints), "{texts:?}: {output}");
}

#[test]
fn the_authority_overwrites_nothing_and_keeps_its_keys_private() {
    let (folder, _) = new_folder();
    let authority = folder.path().join("tls");
    let text = tls(&authority, "init --name storage.example --name 192.0.2.7").ok();
    assert!(text.contains("as storage.example, 192.0.2.7, localhost, 127.0.0.1, ::1"), "{text}");
    for (file, mode) in [
        ("ca-cert.pem", 0o644),
        ("ca-key.pem", 0o600),
        ("server-cert.pem", 0o644),
        ("server-key.pem", 0o600),
    ] {
        let metadata = authority.join(file).metadata().expect(file);
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
    }
    let before = std::fs::read(authority.join("server-cert.pem")).expect("a file");
    let refused = tls(&authority, "init").fails_with(4);
    assert!(refused.contains("ca-cert.pem exists, and is not overwritten"), "{refused}");
    let host = "host i-0123456789abcdef0";
    let text = tls(&authority, host).ok();
    assert!(text.contains("nbds://SERVER:10809/VOLUME?tls-certificates=DIR"), "{text}");
    let refused = tls(&authority, host).fails_with(4);
    assert!(refused.contains("--replace makes it anew"), "{refused}");
    tls(&authority, &format!("{host} --replace")).ok();
    tls(&authority, "host storage").fails_with(2);
    assert_eq!(std::fs::read(authority.join("server-cert.pem")).expect("a file"), before);
    let text = tls(&authority, "server --name other.example").ok();
    for name in ["for storage.example, ", ", 192.0.2.7, ", ", other.example\n"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert_ne!(std::fs::read(authority.join("server-cert.pem")).expect("a file"), before);
    let elsewhere = tls(&folder.path().join("nowhere"), host).fails_with(1);
    assert!(elsewhere.contains("evenkeel tls init"), "{elsewhere}");
    // Clients would refuse what the key signs.
    let other = folder.path().join("other");
    tls(&other, "init").ok();
    std::fs::copy(other.join("ca-cert.pem"), authority.join("ca-cert.pem")).expect("a copy");
    for verb in ["server", "host i-00000000000000001"] {
        let refused = tls(&authority, verb).fails_with(1);
        assert!(
            refused.contains("ca-key.pem is not the key of ca-cert.pem beside it"),
            "{refused}"
        );
        assert!(refused.contains("of one `evenkeel tls init`"), "{refused}");
    }
}

#[test]
fn certificates_that_expire_and_names_that_are_not_in_them_are_reported() {
    let mut encrypted = Encrypted::start_with("init --days 20");
    let Encrypted { server, authority } = &mut encrypted;
    let process = server.process();
    let is_logged = || process.logged().contains("server-cert.pem expires on ");
    assert!(Deadline::after(PATIENCE).comes(is_logged), "no warning");
    assert!(process.logged().contains(" days; clients refuse it then"), "{}", process.logged());
    let ca = authority.join("ca-cert.pem").display().to_string();
    if !absent(&["curl"]) {
        let url = format!("--silent --fail --cacert {ca} {}/metrics", server.endpoint);
        let text = run(&mut tool("curl", &url)).ok();
        let until = |certificate: &str| -> f64 {
            let name = "evenkeel_certificate_expiry_time_seconds";
            let start = format!("{name}{{certificate=\"{certificate}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&start));
            value.expect(certificate).parse().expect("a number")
        };
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64();
        let days = |certificate| ((until(certificate) - now) / 86_400.0).ceil();
        assert_eq!((days("api"), days("nbd"), days("ca")), (20.0, 20.0, 3_650.0));
    }
    // A server on an address that its certificate does not name says so, and which names it has.
    let file = |name: &str| authority.join(name).display().to_string();
    let options = format!(
        "--store memory --nbd-tls-listen 127.0.0.2:0 --tls-cert {} --tls-key {} --tls-ca {ca}",
        file("server-cert.pem"),
        file("server-key.pem")
    );
    let mut misnamed = Server::start(&options);
    let log = misnamed.stop();
    let text = "nbd-tls-listen: clients that connect to 127.0.0.2 refuse the certificate ";
    assert!(log.contains(text) && log.contains("tls server --name 127.0.0.2`"), "{log}");
}

#[test]
fn the_api_is_served_at_https_to_clients_that_trust_its_authority() {
    let encrypted = Encrypted::start();
    let Encrypted { server, authority } = &encrypted;
    assert!(server.endpoint.starts_with("https://127.0.0.1:"), "{}", server.endpoint);
    // The verbs find address and authority in the data folder.
    let mut ls = evenkeel(server.folder());
    run(ls.args(["volume", "ls", "--data-dir"]).arg(server.data_dir())).ok();
    for probe in ["health", "health --ready"] {
        let mut health = evenkeel(server.folder());
        run(health.args(probe.split(' ')).arg("--data-dir").arg(server.data_dir())).ok();
    }
    let env = run(&mut server.shell("evenkeel env")).ok();
    let bundle = format!("export AWS_CA_BUNDLE='{}'\n", authority.join("ca-cert.pem").display());
    assert!(env.contains(&bundle), "{env}");
    let volume = server.attached("--size 1");
    let shown = server.evenkeel(&format!("volume show {volume}")).ok();
    assert!(shown.contains(&format!("nbds://{}/{volume}", server.nbd_tls)), "{shown}");
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("volume rm {volume}")).ok();
    let doctor = server.evenkeel("doctor").stdout;
    assert!(doctor.contains("volumes") && doctor.contains("none in error"), "{doctor}");
    let python = in_venv("python");
    if !absent(&[&python]) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/tls.py");
        run(&mut server.shell(&format!("{python} -B {script} works"))).ok();
        let other = server.folder().join("other");
        tls(&other, "init").ok();
        let with = format!("AWS_CA_BUNDLE={}", other.join("ca-cert.pem").display());
        let refused = "'certificate verify failed'";
        let refused = refused.trim_matches('\'');
        run(&mut server.shell(&format!("{with} {python} -B {script} '{refused}'"))).ok();
        let name = format!("AWS_ENDPOINT_URL_EC2=https://127.0.0.2:{}", server.api.port());
        // Also where the address is served, its name is not in the certificate.
        let mismatch = run(&mut server.shell(&format!("{name} {python} -B {script} works")));
        assert!(!mismatch.status.success(), "{mismatch}");
    }
    // A client without TLS is answered, and nothing else is done for it.
    let mut plain = TcpStream::connect(server.api).expect("it listens");
    plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
    let mut answer = String::new();
    plain.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
}

#[test]
fn a_verb_that_cannot_check_the_server_says_what_to_do() {
    let encrypted = Encrypted::start();
    let Encrypted { server, authority } = &encrypted;
    let ls = |endpoint: &str, ca: Option<&Path>| {
        let mut command = evenkeel(server.folder());
        command.args(["volume", "ls", "--data-dir"]).arg(server.data_dir());
        command.args(["--endpoint", endpoint]);
        command.args(ca.iter().flat_map(|ca| ["--ca".as_ref(), ca.as_os_str()]));
        run(&mut command)
    };
    let endpoint = server.endpoint.as_str();
    let ca = authority.join("ca-cert.pem");
    ls(endpoint, Some(&ca)).ok();
    let other = server.folder().join("other");
    tls(&other, "init").ok();
    fails_with(
        ls(endpoint, Some(&other.join("ca-cert.pem"))),
        &["other/ca-cert.pem has not signed the server"],
    );
    fails_with(ls(endpoint, Some(&other.join("ca-key.pem"))), &["no certificate in PEM form"]);
    fails_with(ls(endpoint, Some(&other.join("nothing"))), &["No such file"]);
    if !absent(&["faketime"]) {
        let mut later = Command::new("faketime");
        later.args(["2035-01-01 00:00:00", env!("CARGO_BIN_EXE_evenkeel"), "volume", "ls"]);
        later.args(["--endpoint", endpoint, "--data-dir"]).arg(server.data_dir());
        fails_with(run(&mut later), &["renew it on the server"]);
    }
    let plain = endpoint.replace("https://", "http://");
    fails_with(ls(&plain, None), &["send the request to https://"]);
    // A running server uses a certificate that replaces the former one, also for another name.
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["tls", "server", "--name", "127.0.0.2", "--dir"]).arg(authority);
    run(&mut command).ok();
    assert!(Deadline::after(PATIENCE).comes(|| ls(endpoint, None).status.success()));
}

#[test]
fn an_expired_certificate_does_not_replace_one_that_works() {
    if absent(&["faketime"]) {
        return;
    }
    let mut encrypted = Encrypted::start();
    let Encrypted { server, authority } = &mut encrypted;
    tls_long_ago(authority, "server").ok();
    let process = server.process();
    let is_refused = || process.logged().contains("it has expired on 2022-");
    assert!(Deadline::after(PATIENCE).comes(is_refused), "{}", process.logged());
    server.evenkeel("volume ls").ok();
}

#[test]
fn files_that_do_not_fit_keep_the_server_from_starting() {
    let (folder, data_dir) = new_folder();
    let authority = folder.path().join("tls");
    tls(&authority, "init").ok();
    let file = |name: &str| authority.join(name).display().to_string();
    let serve = |flags: &str| {
        let mut command = evenkeel(folder.path());
        command.args(["serve", "--listen", "127.0.0.1:0", "--nbd-listen", "none"]);
        command.args(["--store", "memory", "--data-dir"]).arg(&data_dir);
        run(command.args(flags.split_whitespace())).fails_with(2)
    };
    let cert = file("server-cert.pem");
    let key = file("server-key.pem");
    let alone = serve(&format!("--tls-cert {cert}"));
    assert!(alone.contains("tls-cert and tls-key: name both, or neither"), "{alone}");
    let no_pair = serve(&format!("--tls-cert {cert} --tls-key {}", file("ca-key.pem")));
    assert!(no_pair.contains("cannot be used with the key"), "{no_pair}");
    let swapped = serve(&format!("--tls-cert {key} --tls-key {key}"));
    assert!(swapped.contains("it has no certificate in PEM form"), "{swapped}");
    for (irregular, kind) in [("/tmp", "a folder"), ("/dev/null", "a device or a pipe")] {
        let refused = serve(&format!("--tls-cert {cert} --tls-key {irregular}"));
        assert!(refused.contains(&format!("tls-key: {irregular}: it is {kind}")), "{refused}");
        assert!(!refused.contains("chmod"), "{refused}");
        let refused = serve(&format!("--tls-cert {irregular} --tls-key {key}"));
        assert!(refused.contains(&format!("{irregular}: it is {kind}")), "{refused}");
    }
    let no_key = serve(&format!("--tls-cert {cert} --tls-key {cert}"));
    assert!(no_key.contains("has a certificate and no private key"), "{no_key}");
    let loose = file("loose-key.pem");
    std::fs::copy(&key, &loose).expect("copied");
    std::fs::set_permissions(&loose, std::fs::Permissions::from_mode(0o644)).expect("set");
    let open = serve(&format!("--tls-cert {cert} --tls-key {loose}"));
    assert!(open.contains("others can use"), "{open}");
    let no_authority = format!("--tls-cert {cert} --tls-key {key} --nbd-tls-listen 127.0.0.1:0");
    let no_authority = serve(&no_authority);
    assert!(no_authority.contains("cannot be checked without tls-ca"), "{no_authority}");
    assert!(!data_dir.exists(), "nothing was made");
}

#[test]
fn listeners_off_loopback_need_tls_or_the_operators_word() {
    let (folder, data_dir) = new_folder();
    for (flags, listener) in [
        ("--listen 0.0.0.0:0 --nbd-listen none", "listen"),
        ("--listen 127.0.0.1:0 --nbd-listen 0.0.0.0:0", "nbd-listen"),
        ("--listen 127.0.0.1:0 --nbd-listen [::]:0 --insecure listen", "nbd-listen"),
    ] {
        let mut command = evenkeel(folder.path());
        command.args(["serve", "--store", "memory", "--data-dir"]).arg(&data_dir);
        let refused = run(command.args(flags.split(' '))).fails_with(2);
        assert!(refused.contains(&format!("{listener}: other machines reach")), "{refused}");
        assert!(refused.contains(&format!("--insecure {listener}")), "{refused}");
        assert!(!data_dir.exists(), "nothing was made");
    }
    let mut server = Server::start("--store memory --nbd-listen 0.0.0.0:0 --insecure nbd-listen");
    let log = server.stop();
    let warning = "there is no TLS: anyone on the network path can read and change the data";
    assert!(log.contains(warning), "{log}");
}

#[test]
fn a_host_reaches_its_volumes_by_its_certificate_from_any_address() {
    if absent(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    let mut encrypted = Encrypted::start();
    let server = &encrypted.server;
    // The address of this host is no address of this machine.
    let far = encrypted.host("--address 192.0.2.9");
    // Two hosts of one address.
    let [first, second] = ["", ""].map(|flags| encrypted.host(flags));
    let volumes = [&far, &first, &second].map(|host| encrypted.attached_to(host));
    let certificates = [&far, &first, &second].map(|host| encrypted.certificate(host));
    for (number, certificate) in certificates.iter().enumerate() {
        for (other, volume) in volumes.iter().enumerate() {
            let output = size(&encrypted.uri(volume, certificate));
            if number == other {
                assert_eq!(output.ok().trim(), (1_u64 << 30).to_string());
            } else {
                fails_with(output, &["no export"]);
            }
        }
        let list = format!("--list {}", encrypted.uri("", certificate));
        let list = run(&mut tool("nbdinfo", &list)).ok();
        for (other, volume) in volumes.iter().enumerate() {
            assert_eq!(list.contains(volume.as_str()), other == number, "{list}");
        }
    }
    // 8 MiB there and back, by several connections.
    let bytes: Vec<u8> =
        (0..8_u32 << 20).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let there = server.folder().join("there");
    let back = server.folder().join("back");
    std::fs::write(&there, &bytes).expect("a file");
    let uri = encrypted.uri(&volumes[0], &certificates[0]);
    run(&mut tool("nbdcopy", &format!("{} {uri}", there.display()))).ok();
    run(&mut tool("nbdcopy", &format!("{uri} {}", back.display()))).ok();
    let read = std::fs::read(&back).expect("a file");
    assert!(read[..bytes.len()] == bytes[..] && read[bytes.len()..].iter().all(|byte| *byte == 0));
    // A detached volume's connections are closed, and its host is answered with the reason.
    server.evenkeel(&format!("volume detach {} --wait", volumes[0])).ok();
    // libnbd prints the server's error without its text.
    fails_with(size(&uri), &["server policy prevents"]);
    let text = format!("no volume is attached to host {far}");
    let process = encrypted.server.process();
    let is_logged = || process.logged().contains(&text);
    assert!(Deadline::after(PATIENCE).comes(is_logged), "{text}");
    // Each connection has records, with the host of its certificate.
    encrypted.server.stop();
    let records = encrypted.server.audited();
    let is_of = |record: &&serde_json::Value, name: &str, host: &str| {
        record["eventName"] == name && record["tlsDetails"]["clientCertificate"] == host
    };
    for (host, volume) in [&far, &first, &second].into_iter().zip(&volumes) {
        let connected: Vec<_> =
            records.iter().filter(|record| is_of(record, "ConnectVolume", host)).collect();
        let ended = records.iter().filter(|record| is_of(record, "DisconnectVolume", host)).count();
        assert!(!connected.is_empty() && connected.len() == ended, "{records:?}");
        for record in connected {
            assert_eq!(record["requestParameters"]["VolumeId"], volume.as_str());
            assert_eq!(record["sourceIPAddress"], "local");
        }
    }
    let refused = |record: &serde_json::Value| {
        let why = record["errorMessage"].as_str().unwrap_or_default();
        record["eventName"] == "RefuseConnection" && why.contains(&text)
    };
    assert!(records.iter().any(refused), "{records:?}");
}

#[test]
fn clients_without_the_right_certificate_are_refused_and_disturb_no_other() {
    if absent(&["nbdinfo", "faketime"]) {
        return;
    }
    let encrypted = Encrypted::start();
    let Encrypted { server, authority } = &encrypted;
    let host = encrypted.host("");
    let volume = encrypted.attached_to(&host);
    let good = encrypted.certificate(&host);
    let works = || assert_eq!(size(&encrypted.uri(&volume, &good)).ok().trim(), "1073741824");
    works();
    // Without TLS.
    let plain = format!("nbd://{}/{volume}", server.nbd_tls);
    fails_with(size(&plain), &["TLS"]);
    // Without a certificate.
    let bare = server.folder().join("bare");
    std::fs::create_dir(&bare).expect("a folder");
    std::fs::copy(good.join("ca-cert.pem"), bare.join("ca-cert.pem")).expect("a copy");
    fails_with(size(&encrypted.uri(&volume, &bare)), &["ertificate is required", "alert"]);
    // Of another authority, which is trusted by the client only.
    let other = server.folder().join("other");
    tls(&other, "init").ok();
    tls(&other, &format!("host {host}")).ok();
    let foreign = other.join("hosts").join(&host);
    std::fs::copy(good.join("ca-cert.pem"), foreign.join("ca-cert.pem")).expect("a copy");
    fails_with(size(&encrypted.uri(&volume, &foreign)), &["alert", "nknown"]);
    // A client that trusts another authority refuses the server.
    let distrusting = server.folder().join("distrusting");
    std::fs::create_dir(&distrusting).expect("a folder");
    for file in ["client-cert.pem", "client-key.pem"] {
        std::fs::copy(good.join(file), distrusting.join(file)).expect("a copy");
    }
    std::fs::copy(other.join("ca-cert.pem"), distrusting.join("ca-cert.pem")).expect("a copy");
    fails_with(size(&encrypted.uri(&volume, &distrusting)), &["certificate"]);
    // Expired.
    let late = server.folder().join("late");
    let before = server.folder().join("before");
    std::fs::create_dir_all(&before).expect("a folder");
    for file in ["ca-cert.pem", "ca-key.pem"] {
        std::fs::copy(authority.join(file), before.join(file)).expect("a copy");
    }
    tls_long_ago(&before, &format!("host {host}")).ok();
    std::fs::rename(before.join("hosts").join(&host), &late).expect("a move");
    fails_with(size(&encrypted.uri(&volume, &late)), &["xpired", "alert"]);
    // Of a host without a volume, and of a server.
    let idle = encrypted.certificate(&encrypted.host(""));
    fails_with(size(&encrypted.uri(&volume, &idle)), &["server policy prevents"]);
    let servers = server.folder().join("servers");
    std::fs::create_dir(&servers).expect("a folder");
    for (from, to) in [("server-cert.pem", "client-cert.pem"), ("server-key.pem", "client-key.pem")]
    {
        std::fs::copy(authority.join(from), servers.join(to)).expect("a copy");
    }
    std::fs::copy(authority.join("ca-cert.pem"), servers.join("ca-cert.pem")).expect("a copy");
    fails_with(size(&encrypted.uri(&volume, &servers)), &["alert", "ertificate"]);
    works();
}

#[test]
fn qemu_and_nbd_client_speak_tls() {
    if absent(&["qemu-img", "nbd-client"]) {
        return;
    }
    let encrypted = Encrypted::start();
    let host = encrypted.host("");
    let volume = encrypted.attached_to(&host);
    let certificate = encrypted.certificate(&host);
    let address = encrypted.server.nbd_tls;
    let dir = certificate.display();
    let export = format!(
        "driver=nbd,host={},port={},export={volume},tls-creds=t",
        address.ip(),
        address.port()
    );
    let info = format!(
        "info --object tls-creds-x509,id=t,endpoint=client,dir={dir} --image-opts {export}"
    );
    let shown = run(&mut tool("qemu-img", &info)).ok();
    assert!(shown.contains("1 GiB (1073741824 bytes)"), "{shown}");
    let files = format!(
        "-cacertfile {dir}/ca-cert.pem -certfile {dir}/client-cert.pem \
         -keyfile {dir}/client-key.pem -tlshostname 127.0.0.1"
    );
    let list = format!("-l {} {} {files}", address.ip(), address.port());
    let listed = run(&mut tool("nbd-client", &list));
    assert!(listed.to_string().contains(&volume), "{listed}");
}

/// Client flags and `NBD_OPT_STARTTLS`.
const STARTTLS: &[u8] = b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x05\x00\x00\x00\x00";
/// Length of the server's greeting and of its reply to that option.
const STARTED_BYTES: usize = 18 + 20;

/// Returns a connection that has started TLS and says nothing more.
fn silent(encrypted: &Encrypted) -> TcpStream {
    let mut stream = TcpStream::connect(encrypted.server.nbd_tls).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(STARTTLS).expect("sent");
    stream.read_exact(&mut [0; STARTED_BYTES]).expect("a reply");
    stream
}

fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let read = stream.read(&mut [0; 64]);
    matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn handshakes_that_fail_are_bounded_and_disturb_no_other() {
    if absent(&["nbdinfo"]) {
        return;
    }
    let mut encrypted = Encrypted::start();
    let host = encrypted.host("");
    let volume = encrypted.attached_to(&host);
    let uri = encrypted.uri(&volume, &encrypted.certificate(&host));
    // One address has 128 handshakes at most: the oldest ones are closed for others.
    let mut silent: Vec<TcpStream> = (0..300).map(|_| silent(&encrypted)).collect();
    let has_closed = || !is_open(&mut silent[0]);
    assert!(Deadline::after(PATIENCE).comes(has_closed), "300 handshakes are open");
    assert_eq!(size(&uri).ok().trim(), "1073741824");
    // Bytes that are not TLS, and NBD options in the same segment as NBD_OPT_STARTTLS.
    for after in [&b"this is no TLS at all, and longer than a record's head"[..], STARTTLS] {
        let mut stream = TcpStream::connect(encrypted.server.nbd_tls).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(&[STARTTLS, after].concat()).expect("sent");
        let mut answer = Vec::new();
        // Closed, or reset because bytes were unread.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= STARTED_BYTES + 7, "{answer:?}");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/handshakes.py");
    let python = if absent(&["python3"]) { return } else { "python3" };
    let address = encrypted.server.nbd_tls;
    let flood = format!("{script} {} {} 1000 50", address.ip(), address.port());
    let flood = support::process::start(&mut tool(python, &flood));
    assert_eq!(size(&uri).ok().trim(), "1073741824");
    assert!(flood.finish().ok().starts_with("50 of 50 refused"));
    assert_eq!(size(&uri).ok().trim(), "1073741824");
    drop(silent);
    let log = encrypted.server.process().logged().to_owned();
    assert!(log.contains("its handshake makes room for others"), "{log}");
}

fn print(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("standard output");
}

/// Prints the latency of a paced volume alone and beside 10,000 handshakes a minute that fail.
/// For docs/internals/benchmarks.md:
/// `cargo test --release --test tls -- --ignored --nocapture paced_volume`.
#[test]
#[ignore = "full: tests/tls.rs::handshakes_that_fail_are_bounded_and_disturb_no_other stays"]
fn a_paced_volume_beside_a_flood_of_handshakes_that_fail() {
    if absent(&["fio", "nice", "python3"]) {
        return;
    }
    let _alone = alone();
    let encrypted = Encrypted::start();
    let server = &encrypted.server;
    let volume = server.attached("--type io2 --size 8 --iops 2000");
    let address = server.nbd_tls;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/handshakes.py");
    let job = "--rw=randread --bs=4k --iodepth=1 --rate_iops=1000 --size=1g --time_based \
               --runtime=15s --randseed=1";
    let mut lost = 0;
    for round in 1..=3 {
        let mut p99 = [0.0; 2];
        for (flooded, p99) in [false, true].into_iter().zip(&mut p99) {
            // The client has its own processor time: it is not the server's.
            let flood =
                format!("-n 19 python3 {script} {} {} 167 2300", address.ip(), address.port());
            let flood = flooded.then(|| support::process::start(&mut tool("nice", &flood)));
            let result = fio_result(start_fio(server, &server.unix_uri(&volume), job));
            *p99 = result["read"]["clat_ns"]["percentile"]["99.000000"].as_f64().unwrap() / 1e3;
            assert!(result["read"]["total_ios"].as_u64() > Some(0), "{result}");
            if let Some(flood) = flood {
                // With the lowest priority, on a busy machine.
                let text = flood.finish_within(10 * PATIENCE).ok();
                assert!(text.starts_with("2300 of 2300 refused"), "{text}");
                print(&format!("round {round}: {}", text.trim()));
            }
        }
        let [alone, beside] = p99;
        print(&format!("round {round}: p99 {alone:.0} us alone, {beside:.0} us beside the flood"));
        lost += usize::from(beside > 1.05 * alone);
    }
    print(&format!("{lost} of 3 rounds lost more than 5 % of their p99"));
}
