//! Checks that the commands in the documentation work.
//!
//! The blocks of each page with commands run in one shell, from the first to the last, as they are
//! written, against a server of the page's own. If a block needs something that a machine may lack,
//! it says so in a line `# needs ...`. With EVENKEEL_PAGE only the page of that path is checked.

mod support;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::bench::{benchmarks, run_within};
use support::ceph::USER;
use support::cluster::ground;
use support::file_system::has_no_mounts;
use support::machine::{beside_others, mounts};
use support::pages::{self, END_OF_NEEDS, ROOT, commands, page};
use support::process::run;
use support::server::Server;
use support::tools::{absent, in_venv, skipped};

/// The place in which the commands of a page run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    /// A server with these options, with every change.
    Server(&'static str),
    /// A server with these options, in `cargo x ci --full` only: it takes longer than a few
    /// seconds.
    Long(&'static str),
    /// A temporary Ceph cluster and etcd, in `cargo x ci --full`: the blocks that need them.
    Cluster,
    /// A server with these options, as root in a mount namespace: the blocks that need them.
    Mounts(&'static str),
    /// The sources: all its commands are of cargo and make, which
    /// `commands_that_build_or_test_name_existing_targets` checks.
    Sources,
    /// Another test runs its commands: its file and name.
    Test(&'static str),
}

/// A page with commands.
struct Page {
    path: &'static str,
    on: On,
    /// A script that runs before the first command.
    before: &'static str,
    /// Replacements of texts that only the reader knows, and of commands that take too long.
    instead: &'static [(&'static str, &'static str)],
}

const fn on(path: &'static str, on: On) -> Page {
    Page { path, on, before: "", instead: &[] }
}

/// The beginning of a script with mounts of its own: folders that it may change, and stand-ins for
/// systemd that start a service without the variables of the shell, as systemd does.
const WITH_MOUNTS: &str = r#"
for folder in /run /srv /var/lib; do mount -t tmpfs -o mode=755 tmpfs $folder; done
cp -r $ROOT/deploy . && ln -s $EVENKEEL_DATA_DIR evenkeel-data && mkdir bin
cat >bin/systemd-run <<'END'
#!/bin/sh -e
# systemd-run --unit NAME --same-dir -p KillMode=process PROGRAM ARGUMENTS...
test "$1 $3 $4 $5" = "--unit --same-dir -p KillMode=process"
unit=$2; shift 5
env -i PATH="$PATH" setsid "$@" </dev/null >"$unit.log" 2>&1 &
echo $! >"$unit.pid"
END
cat >bin/systemctl <<'END'
#!/bin/sh -e
# systemctl stop NAME
pid=$(cat "$2.pid"); kill $pid
while grep -qs 'State:.[^Z]' /proc/$pid/status; do sleep 0.1; done
END
chmod +x bin/*; PATH=$PWD/bin:$PATH
clean() {
    set +e
    test ! -e autopilot.log || cat autopilot.log
    systemctl stop autopilot; umount /srv
    for folder in /run/evenkeel/*; do
        deploy/agent/detach ${folder##*/} $(losetup -n -O NAME -j $folder/nbd)
    done
}
trap clean EXIT
devices() { btrfs filesystem show /srv | grep -c devid; }
wait_for_devices() {
    set +x; tries=0
    until test $(devices) = $1; do tries=$((tries + 1)); test $tries -lt 240; sleep 0.5; done
    set -x
}
is_as_before() {
    evenkeel autopilot status | grep 'no agent runs'
    test $(devices) = 3 && echo bytes >/srv/file && sync /srv/file
    btrfs scrub start -B /srv
}
"#;

const A_VOLUME: &str = "evenkeel volume create --size 8 --attach";

/// Every page with commands. A page occurs twice if some of its blocks need a cluster.
const PAGES: &[Page] = &[
    on("README.md", On::Server("")),
    Page {
        before: "qemu-img create -q -f qcow2 image.qcow2 64M
            evenkeel volume create --type gp3 --size 1 --throughput 750 --attach
            SMALL=$(latest)",
        // Reading all of a volume of 100 GiB would take too long.
        instead: &[
            ("image.qcow2 nbd://127.0.0.1:10809/$VOLUME", "image.qcow2 nbd://$NBD/$SMALL"),
            ("nbdcopy nbd://127.0.0.1:10809/$VOLUME", "nbdcopy nbd://$NBD/$SMALL"),
        ],
        ..on("docs/start.md", On::Server(""))
    },
    Page {
        // One case of many, and the shortened load, as the article's takes hours.
        instead: &[
            (" --only gp3", ""),
            (" --full", " --live"),
            ("run burst-and-stripe", "run burst-and-stripe --only 'gp3 5 x 100 behind 8,000'"),
            ("A B", "$(ls $HOME/.local/share/evenkeel/results | sed -n s/[.]json$//p | tail -n 2)"),
        ],
        ..on("docs/experiments/README.md", On::Long(""))
    },
    Page {
        instead: &[("--time 4s --rounds 2", "--time 1s --rounds 1"), ("timeout 60", "timeout 15")],
        ..on("docs/internals/benchmarks.md", On::Long(""))
    },
    on("docs/internals/checkers.md", On::Long("")),
    on("docs/internals/fencing.md", On::Sources),
    on("docs/internals/iops_promise.md", On::Long("")),
    Page {
        before: A_VOLUME,
        // The page's file is in the server's data folder.
        instead: &[("sqlite3 control.db", "sqlite3 $1/control.db")],
        ..on("docs/internals/journal.md", On::Server(""))
    },
    on("docs/internals/disk_format.md", On::Sources),
    on("docs/internals/autopilot_world.md", On::Server("")),
    on("docs/operating/autopilot.md", On::Server("")),
    Page {
        before: WITH_MOUNTS,
        instead: &[
            // The agent has added a volume by then.
            ("systemctl stop", "wait_for_devices 3; systemctl stop"),
            // The stop has changed nothing, and no agent is left.
            ("evenkeel agent --print-rights", "is_as_before; evenkeel agent --print-rights"),
            (" --aws --region", " --aws --instance-id $(this_host) --region"),
            // The devices of this machine keep their size, unlike those at AWS.
            ("--aws --print-policy", "--aws --print-policy | sed '/^grow_volumes/s/true/false/'"),
        ],
        ..on("docs/operating/autopilot.md", On::Mounts("--any-region"))
    },
    Page {
        before: "evenkeel volume create --type gp2 --size 1
            evenkeel calibrate a --quick && cp -r a b
            first_toml $ROOT/docs/operating/capacity.md >book.toml",
        // The planned volumes reserve so little that they fit on any machine.
        instead: &[("ls -o csv >", "ls -o csv | grep -v -e ,io2, -e ,gp3, >")],
        ..on(
            "docs/operating/capacity.md",
            On::Server("--sell-iops 10000 --sell-throughput 500 --oversell gp3=2"),
        )
    },
    Page {
        instead: &[("/var/lib/evenkeel --store rbd", "measured --store rbd --ceph-user $USER")],
        ..on("docs/operating/capacity.md", On::Cluster)
    },
    on(
        "docs/operating/clients.md",
        On::Test("tests/reconnect.rs::a_mounted_file_system_lives_through_restarts_behind_nbdkit"),
    ),
    Page {
        before: "evenkeel volume create --type gp3 --size 1 --attach
            stand target serve --store local
            TARGET=$ADDRESS",
        instead: &[("http://10.0.0.11:8650", "$TARGET")],
        ..on("docs/operating/cluster.md", On::Server("--store local"))
    },
    Page {
        before: "sed -n '/^openssl/,/^done/p' $ROOT/docs/operating/cluster.md >certificates
            sh -e certificates
            evenkeel tls init --dir .",
        instead: &[
            ("http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379", "$ETCD"),
            ("10.0.0.11:8650", "127.0.0.1:0"),
            ("--nbd-tls-listen 10.0.0.11:10809", "--nbd-tls-listen 127.0.0.1:0"),
            ("--node-listen 10.0.0.11:8660", "--node-listen 127.0.0.1:18660"),
        ],
        ..on("docs/operating/cluster.md", On::Cluster)
    },
    on("docs/operating/configuration.md", On::Server("")),
    Page {
        before: "cp $ROOT/deploy/prometheus/* .",
        instead: &[(
            "prometheus --config.file=prometheus.yml",
            "timeout 5 prometheus --config.file=prometheus.yml \
                --web.listen-address=127.0.0.1:0 || test $? = 124",
        )],
        ..on("docs/operating/monitoring.md", On::Server(""))
    },
    on("docs/operating/security.md", On::Server("")),
    on("docs/operating/service.md", On::Server("")),
    on("docs/operating/test_server.md", On::Server("--store local --test-server --feel ebs")),
    Page {
        before: "evenkeel volume create --type io2 --size 4 --iops 1000 --attach
            echo 'type = \"io2\"\nsize = 4\niops = 1000' >promise.toml
            truncate -s 1G disk
            test $(id -u) != 0 || DISK=$(losetup -f --show disk)",
        instead: &[("10809/disk", "10809/$(latest)"), ("/dev/nvme1n1", "$DISK")],
        ..on("docs/operating/prove.md", On::Long(""))
    },
    Page {
        before: "evenkeel volume create --size 1 --attach
            evenkeel volume create --size 1 --attach
            python3 -uB $ROOT/tests/python/s3.py backups key >s3.log 2>&1 &
            BESIDE=$!
            until grep -q port s3.log; do sleep 0.1; done",
        instead: &[
            ("KEY_ID=... S3_SECRET_ACCESS_KEY=...", "KEY_ID=key S3_SECRET_ACCESS_KEY=secret"),
            ("https://s3.example.org", "http://127.0.0.1:$(grep -o '[0-9]*' s3.log)"),
            // The first one was exported before.
            (
                "evenkeel snapshot export snap-... --to s3://backups/db --parent snap-...",
                "FIRST=$(latest_snapshot); evenkeel snapshot create $(latest) --wait
                evenkeel snapshot export snap-... --to s3://backups/db --parent $FIRST",
            ),
            // `sh` does not have this command.
            ("time ", ""),
            ("create V", "create $(latest)"),
            ("/disk", "."),
            ("evenkeel-data", "$EVENKEEL_DATA_DIR"),
        ],
        ..on("docs/operating/snapshots.md", On::Server("--store local"))
    },
    // A pool is on a block device, which is a loop device here and needs root.
    Page {
        before: "truncate -s 4G disk
            test $(id -u) != 0 || DISK=$(losetup -f --show disk)",
        instead: &[("/dev/sdb", "$DISK"), ("/etc/evenkeel.key", "./evenkeel.key")],
        ..on("docs/operating/store.md", On::Server("--store local"))
    },
    Page {
        instead: &[("/etc/ceph/ceph.client", "./ceph.client")],
        ..on("docs/operating/store.md", On::Cluster)
    },
    on("docs/reference/api_matrix.md", On::Sources),
    Page { before: A_VOLUME, ..on("docs/reference/metrics.md", On::Server("")) },
    Page { before: A_VOLUME, ..on("docs/reference/events.md", On::Server("")) },
    Page {
        before: "evenkeel volume create --size 8 --attach && mkdir metrics
            cd metrics && sed s/vol-0123456789abcdef0/$(latest)/g >one.json \\
                $ROOT/crates/planner/samples/cloudwatch_data.json && cd ..",
        // The list is from the server, whose zone is in no region of AWS.
        instead: &[("fleet volumes.json", "fleet volumes.json --region us-east-1")],
        ..on("docs/reference/fleet.md", On::Server(""))
    },
    on(
        "docs/reference/plan.md",
        On::Test("tests/plan/answers.rs::the_examples_of_the_documentation_are_what_is_printed"),
    ),
    Page {
        before: "first_toml $ROOT/docs/reference/scenarios.md >my.toml",
        ..on("docs/reference/scenarios.md", On::Server(""))
    },
];

/// The environment of a walk through a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The machine as it is.
    Machine,
    Cluster,
    Mounts,
}

/// Whether a need of a block is met.
enum Is {
    /// Met where the page's commands run in this place.
    At(Place),
    /// Not met by this test, but by the named one.
    In(&'static str),
    /// Met on the machine if the function says so.
    Here(fn() -> bool),
}

/// The needs that blocks may name, beside a machine with the packages of `cargo x setup`.
const NEEDS: [(&str, Is); 11] = [
    // A test must not use a mount point of the machine, so that one boots a guest.
    ("# needs root and a kernel with nbd", Is::In("tests/reconnect.rs")),
    ("# needs root and a block device", Is::Here(is_root)),
    ("# needs root and mounts of its own", Is::At(Place::Mounts)),
    ("# needs a Ceph cluster", Is::At(Place::Cluster)),
    ("# needs a Ceph cluster with OSDs that are stopped", Is::In("tests/calibrate.rs")),
    ("# needs a Ceph cluster and an etcd", Is::At(Place::Cluster)),
    ("# needs Prometheus", Is::Here(has_prometheus)),
    // Packages are installed into a bare system there, not into this one.
    ("# needs root and the package", Is::In("tests/packages.rs")),
    ("# needs root and the service", Is::In("tests/packages.rs")),
    // The image is unpacked there, and its program runs without an engine.
    ("# needs an engine for containers", Is::In("tests/packages.rs")),
    // The output of the first command is simulated there.
    ("# needs an account at AWS", Is::In("tests/plan/fleet.rs")),
];

/// The beginning of the scripts of all pages. A server that a command starts gets free ports and a
/// folder other than that of the page's server, and is stopped once it runs. Commands that would
/// run until Ctrl-C get it.
const BEGIN: &str = r#"
BESIDE= DISK=
trap 'kill $BESIDE 2>/dev/null || true; test -z "$DISK" || losetup -d $DISK' EXIT
latest() { aws ec2 describe-volumes --output text --query \
    'sort_by(Volumes[?State==`in-use`], &CreateTime)[-1].VolumeId'; }
latest_snapshot() { aws ec2 describe-snapshots --output text --query \
    'sort_by(Snapshots, &StartTime)[-1].SnapshotId'; }
first_toml() { awk '/^```/ { is_first = /toml/ && !count++; next } is_first' "$1"; }
this_host() { command evenkeel host ls -o csv | grep -o 'i-[0-9a-f]*' | head -n 1; }
evenkeel() {
    case "$*" in
        serve*) stand ./served "$@"; kill $!; wait $! ;;
        *--follow*) timeout -s INT 2 evenkeel "$@" || test $? = 124 ;;
        store\ inspect*|store\ check*)
            EVENKEEL_DATA_DIR=./served command evenkeel "$@" ;;
        demo*|prove\ vol*|prove\ nbd*) command evenkeel "$@" || test $? = 6 ;;
        prove*) measured evenkeel "$@" ;;
        *) command evenkeel "$@" ;;
    esac
}
evenkeel_bench() {
    case "$*" in
        export*) exec evenkeel-bench "$@" ;;
        ls*|show*|compare*) command evenkeel-bench "$@" ;;
        *) measured evenkeel-bench "$@" ;;
    esac
}
# Its figures are printed, whatever this machine makes of them.
measured() {
    STATUS=0; command "$@" >figures 2>errors || STATUS=$?
    case $STATUS in 0|4|6) ;; *) test -s figures ;; esac
    cat figures errors
}
stand() {
    set +x
    folder=$1; shift
    : >served.log
    EVENKEEL_LISTEN=127.0.0.1:0 EVENKEEL_NBD_LISTEN=127.0.0.1:0 EVENKEEL_CALIBRATE=never \
        EVENKEEL_OVERSELL_SPACE=unlimited EVENKEEL_DATA_DIR=$folder \
        command evenkeel "$@" >>served.log 2>&1 &
    BESIDE="$BESIDE $!"
    until grep -q 'SIGTERM stops it' served.log; do
        kill -0 $! || { cat served.log; return 1; }
        sleep 0.1
    done
    ADDRESS=$(grep -o 'http://[^ ]*' served.log | head -n 1)
    set -x
}
set -x
"#;

/// Flags that shorten a measurement from minutes to seconds.
const SHORTER: [(&str, &str); 10] = [
    ("evenkeel-bench limits", "--time 8s"),
    ("evenkeel-bench nbd", "--time 1s --rounds 1"),
    ("evenkeel-bench reservation", "--time 4s"),
    ("evenkeel-bench instance", "--time 4s"),
    ("evenkeel-bench idle", "--volumes 1000 --time 3s"),
    ("evenkeel-bench cluster", "--quick --only moves"),
    ("evenkeel-bench plan", "--time 30s"),
    ("evenkeel-bench prove", "--time 5s"),
    ("evenkeel prove", "--time 5s"),
    ("evenkeel demo", "--time 12s"),
];

/// Time limit of a page.
const PAGE_MAX: Duration = Duration::from_secs(1_800);

/// Returns the words of a command without assignments of variables in front of it.
fn words(command: &str) -> Vec<&str> {
    let words = command.split('#').next().unwrap_or_default().split_whitespace();
    words.skip_while(|word| word.contains('=') && !word.contains('"')).collect()
}

/// Returns whether it builds or tests the sources, or runs the result of such a command.
fn is_of_sources(command: &str) -> bool {
    let is_built = command.contains("target/release/");
    is_built || matches!(words(command).first(), Some(&("cargo" | "make")))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn has_prometheus() -> bool {
    !absent(&["prometheus"])
}

/// Converts a command so that a shell can run it here: with this server's addresses, an id for each
/// placeholder, and at most a second for each measurement, or three for a calibration.
fn runnable(server: &Server, page: &Page, command: &str) -> String {
    let mut command = command.to_owned();
    for (shown, here) in page.instead {
        command = command.replace(shown, here);
    }
    for (shown, here) in [
        ("127.0.0.1:10809", server.nbd.to_string().as_str()),
        ("vol-...", "$(latest)"),
        ("vol-0123456789abcdef0", "$(latest)"),
        ("snap-...", "$(latest_snapshot)"),
        ("i-...", "$(this_host)"),
        ("crates/planner/samples", "$ROOT/crates/planner/samples"),
    ] {
        command = command.replace(shown, here);
    }
    if command.starts_with("evenkeel calibrate") {
        command = format!("{} --quick", command.replace("--quick", ""));
    }
    if let Some((verb, shorter)) = SHORTER.iter().find(|(verb, _)| command.starts_with(verb)) {
        let (before, rest) = command.split_at(verb.len());
        let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        command = format!("{before}{word} {shorter} {rest}");
    }
    let runtime = |word: &str| {
        if word.starts_with("--runtime=") { "--runtime=1".to_owned() } else { word.to_owned() }
    };
    if command.starts_with("fio") {
        command.split_whitespace().map(runtime).collect::<Vec<_>>().join(" ")
    } else {
        command
    }
}

/// Returns whether a need of a block is met. Prints that the block is skipped if not, unless the
/// page also runs in another place.
fn is_here(path: &str, needs: &str, place: Place) -> bool {
    let known = NEEDS.iter().find(|(known, _)| *known == needs);
    let (_, is) = known.unwrap_or_else(|| panic!("{path}: {needs}: not one of those known"));
    let why = match is {
        Is::At(wanted) => return place == *wanted,
        Is::Here(is_here) if is_here() => return place == Place::Machine,
        Is::Here(_) => String::new(),
        Is::In(test) => format!("; {test} does it"),
    };
    skipped(&format!("{path}: {}{why}", &needs[2..]));
    false
}

/// Returns the commands of a page as a script, and their number. Blocks with unmet needs, and those
/// for another place, are left out.
fn script(server: &Server, of: &Page, place: Place) -> (String, usize) {
    let mut script = format!("{BEGIN}{}\n", of.before);
    let mut count = 0;
    let mut is_walked = place == Place::Machine;
    for command in commands(&page(of.path)) {
        // `cargo x bench` runs this verb of a release build.
        let command = command.replace("cargo x bench ", "evenkeel-bench ");
        if command == END_OF_NEEDS {
            is_walked = place == Place::Machine;
        } else if command.starts_with("# needs ") {
            is_walked = is_here(of.path, &command, place);
        } else if is_walked && !is_of_sources(&command) {
            // The name of a function of a shell has no hyphen.
            let command = runnable(server, of, &command);
            script += &format!("{}\n", command.replace("evenkeel-bench ", "evenkeel_bench "));
            count += 1;
        }
    }
    (script, count)
}

/// Runs the commands of a page on a server.
fn walk(of: &Page, server: &Server, settings: &[(&str, String)], place: Place) {
    let (script, count) = script(server, of, place);
    println!("== {}: {count} lines of commands", of.path);
    let mut shell = match place {
        Place::Mounts => with_own_mounts(&server.shell(&script)),
        Place::Machine | Place::Cluster => server.shell(&script),
    };
    shell.env("ROOT", ROOT).env("NBD", server.nbd.to_string()).env("USER", USER);
    shell.envs(settings.iter().map(|(name, value)| (name, value)));
    let output = run_within(&mut shell, PAGE_MAX);
    println!("{output}");
    assert!(output.status.success(), "{}: {output}", of.path);
}

/// Returns whether the tools exist that the pages call, beside those of their own packages.
fn has_clients() -> bool {
    !absent(&[&in_venv("aws"), "fio", "nbdinfo", "nbdcopy", "qemu-img", "openssl"])
}

/// Runs the commands of pages on a server each, some of them at once.
fn walk_on_servers(pages: &[(&Page, &str)], at_once: usize) {
    if !has_clients() {
        return;
    }
    let wanted = std::env::var("EVENKEEL_PAGE").ok();
    let is_wanted = |of: &Page| wanted.as_ref().is_none_or(|wanted| wanted == of.path);
    let next = AtomicUsize::new(0);
    let walk_some = || {
        while let Some((of, options)) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_wanted(of) {
                continue;
            }
            let store = if options.contains("--store") { "" } else { "--store memory" };
            let server = Server::start(&format!("{store} {options}"));
            walk(of, &server, &[], Place::Machine);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(walk_some);
        }
    });
}

#[test]
fn the_commands_of_the_pages_run() {
    let quick = |of: &'static Page| match of.on {
        On::Server(options) => Some((of, options)),
        _ => None,
    };
    walk_on_servers(&PAGES.iter().filter_map(quick).collect::<Vec<_>>(), 4);
}

#[test]
#[ignore = "full: tests/docs.rs::the_commands_of_the_pages_run stays"]
fn the_commands_of_the_pages_that_take_long_run() {
    let _turn = beside_others();
    let long = |of: &'static Page| match of.on {
        On::Long(options) => Some((of, options)),
        _ => None,
    };
    walk_on_servers(&PAGES.iter().filter_map(long).collect::<Vec<_>>(), 1);
}

#[test]
#[ignore = "full: tests/docs.rs::the_commands_of_the_pages_run stays"]
fn the_commands_of_the_pages_about_clusters_run() {
    if !has_clients() {
        return;
    }
    for of in PAGES.iter().filter(|of| of.on == On::Cluster) {
        let Some((_folder, ceph, etcd)) = ground("") else { return };
        let server = Server::start("--store memory");
        let settings = [("CEPH_CONF", ceph.conf.clone()), ("ETCD", etcd.endpoint().to_owned())];
        walk(of, &server, &settings, Place::Cluster);
    }
}

/// Returns a command in a mount namespace of its own, with its environment and folder.
fn with_own_mounts(inner: &Command) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command.arg(inner.get_program()).args(inner.get_args());
    command.stdin(Stdio::null()).current_dir(inner.get_current_dir().expect("a folder"));
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// From a btrfs on two volumes to an autopilot that acts, and back, with the real file system.
#[test]
fn the_commands_of_the_page_about_the_autopilot_run() {
    if has_no_mounts() || !has_clients() || absent(&["mkfs.btrfs", "btrfs", "unshare"]) {
        return;
    }
    let _turn = mounts();
    for of in PAGES {
        if let On::Mounts(options) = of.on {
            let server = Server::start(&format!("--store memory {options}"));
            walk(of, &server, &[], Place::Mounts);
        }
    }
}

/// The table has every page with commands, and no others.
#[test]
fn every_page_with_commands_is_walked() {
    let in_table: BTreeSet<String> = PAGES.iter().map(|of| of.path.to_owned()).collect();
    let has_commands = |path: &String| pages::has_commands(&page(path));
    let found: BTreeSet<String> = pages::all_pages().into_iter().filter(has_commands).collect();
    assert_eq!(in_table, found);
    for of in PAGES {
        let is_of_sources = |command: &String| command.starts_with('#') || is_of_sources(command);
        match of.on {
            On::Sources => assert!(commands(&page(of.path)).iter().all(is_of_sources)),
            On::Test(test) => {
                let (file, name) = test.split_once("::").expect("a file and a name");
                assert!(page(file).contains(&format!("fn {name}()")), "{test}");
            }
            On::Server(_) | On::Long(_) | On::Cluster | On::Mounts(_) => {}
        }
    }
}

/// The tag of each block says what it contains, so that no command is left out.
#[test]
fn every_block_has_a_tag_that_says_what_it_contains() {
    let mut faults = Vec::new();
    for path in pages::all_pages() {
        for block in pages::blocks(&page(&path)) {
            let wrong = pages::wrong(&block);
            faults.extend(wrong.map(|wrong| format!("{path}:{}: {wrong}", block.line)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the folder of a package's sources.
fn package(words: &[&str]) -> String {
    let name = words.iter().skip_while(|word| **word != "-p").nth(1);
    let name = name.and_then(|name| name.strip_prefix("evenkeel-"));
    name.map_or_else(String::new, |name| format!("crates/{name}/"))
}

/// Returns what a command of cargo or make names that does not exist; `None` if all of it exists.
fn missing(command: &str) -> Option<String> {
    let words = words(command);
    let is_there = |path: &str| std::path::Path::new(ROOT).join(path).exists();
    match words.as_slice() {
        ["make", target, ..] => {
            let has_it = page("Makefile").contains(&format!("\n{target}:"));
            (!has_it).then(|| format!("make {target}"))
        }
        ["cargo", "x", verb, rest @ ..] => {
            let source = page("xtask/src/main.rs");
            let named = if *verb == "bench" { rest.first().unwrap_or(verb) } else { verb };
            (!source.contains(&format!("\"{named}\""))).then(|| format!("cargo x {verb} {named}"))
        }
        ["cargo", verb @ ("test" | "bench"), rest @ ..] => {
            let package = package(rest);
            let folder = if *verb == "test" { "tests" } else { "benches" };
            let flag = format!("--{verb}");
            let targets = rest.iter().zip(rest.iter().skip(1)).filter(|(word, _)| **word == flag);
            let paths = targets.map(|(_, name)| format!("{package}{folder}/{name}"));
            let is_target = |path: &str| {
                is_there(&format!("{path}.rs")) || is_there(&format!("{path}/main.rs"))
            };
            paths.into_iter().find(|path| !is_target(path))
        }
        ["cargo", ..] => None,
        ["/usr/bin/time", "-v", ..] => None,
        _ => Some(format!("{command}: no command of the sources")),
    }
}

/// These commands take hours, so they are not run here: `cargo x ci` runs the tests, and benches
/// are run by hand. This test checks that all of them exist.
#[test]
fn commands_that_build_or_test_name_existing_targets() {
    let mut count = 0;
    for path in pages::all_pages() {
        for command in commands(&page(&path)).iter().filter(|command| is_of_sources(command)) {
            assert_eq!(missing(command), None, "{path}: {command}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

/// `make bench` runs this verb with a suite, and leaves a page at the README's path; here without
/// the minutes of the live part.
#[test]
fn the_experiment_that_the_readme_shows_leaves_its_page() {
    let shown = commands(&page("README.md"));
    let suite = shown.iter().find_map(|line| line.strip_prefix("make bench SUITE=")).expect("it");
    assert!(
        page("Makefile")
            .contains("\n\tcargo run --release --quiet --bin evenkeel-bench -- run $(SUITE)\n")
    );
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = benchmarks(folder.path());
    command.env("XDG_DATA_HOME", folder.path());
    let output = run(command.args(["run", suite, "--simulate", "--only", "stripe of 1"]));
    let told = output.stderr.lines().find_map(|line| line.strip_prefix("report: "));
    let report = std::path::Path::new(told.unwrap_or_else(|| panic!("no report: {output}")));
    assert!(report.starts_with(folder.path().join("evenkeel/results")), "{output}");
    let text = std::fs::read_to_string(report).expect("a page");
    assert!(text.contains("<svg ") && text.ends_with("</html>\n"));
    output.ok();
}

/// `make demo` and `make serve` build the program once, at the path that the shell of the first
/// pages uses.
#[test]
fn the_first_pages_find_the_program_that_make_serve_builds() {
    let makefile = page("Makefile");
    let built = |verb| format!("\n\tcargo run --profile quick --quiet --bin evenkeel -- {verb}\n");
    assert!(["demo", "serve"].into_iter().all(|verb| makefile.contains(&built(verb))));
    for path in ["README.md", "docs/start.md"] {
        let commands = commands(&page(path));
        let shown = commands.iter().find_map(|line| line.strip_prefix("export PATH="));
        assert_eq!(shown, Some("\"$PWD/target/quick:$PWD/target/venv/bin:$PATH\""), "{path}");
    }
}

/// Returns the verbs of the reference of a program: its headings.
fn documented_verbs(path: &str, program: &str) -> BTreeSet<String> {
    let reference = page(path);
    let heading = format!("## {program} ");
    let headings = reference.lines().filter_map(|line| line.strip_prefix(&heading));
    headings.map(str::to_owned).collect()
}

#[test]
fn every_documented_verb_has_help() {
    let server = Server::start("--store memory");
    let verbs = documented_verbs("docs/reference/cli.md", "evenkeel");
    assert!(verbs.len() > 15, "{verbs:?}");
    for verb in &verbs {
        let help = server.evenkeel(&format!("{verb} --help")).ok();
        assert!(help.contains(&format!("Usage: evenkeel {verb}")), "{verb}: {help}");
    }
    let help = server.evenkeel("--help").ok();
    for verb in verbs.iter().filter(|verb| !verb.contains(' ')) {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} is not in: {help}");
    }
    let version = server.evenkeel("-V").ok();
    assert_eq!(version, format!("evenkeel {}\n", env!("CARGO_PKG_VERSION")));
    server.evenkeel("nonsense").fails_with(2);
    let text = server.evenkeel("bench run burst-and-stripe").fails_with(2);
    assert!(text.contains("the suites are in evenkeel-bench"), "{text}");
}

#[test]
fn every_documented_benchmark_has_help() {
    let folder = tempfile::tempdir().expect("a folder");
    let verbs = documented_verbs("docs/reference/cli_bench.md", "evenkeel-bench");
    assert!(verbs.len() > 12, "{verbs:?}");
    let listed = run(benchmarks(folder.path()).arg("--help")).ok();
    for verb in &verbs {
        let help = run(benchmarks(folder.path()).args([verb, "--help"])).ok();
        assert!(help.contains(&format!("Usage: evenkeel-bench {verb}")), "{verb}: {help}");
        assert!(listed.contains(&format!("\n  {verb} ")), "{verb} is not in: {listed}");
    }
    let version = run(benchmarks(folder.path()).arg("--version")).ok();
    assert_eq!(version, format!("evenkeel-bench {}\n", env!("CARGO_PKG_VERSION")));
    run(benchmarks(folder.path()).arg("nonsense")).fails_with(2);
}
