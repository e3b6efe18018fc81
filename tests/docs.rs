//! The commands that the documentation shows do what it says they do.

mod support;

use std::collections::BTreeSet;
use support::process::run;
use support::server::{Server, evenkeel};
use support::tools::{absent, in_venv};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Pages, and the server that they are about.
const PAGES: [(&str, &str); 6] = [
    ("README.md", ""),
    ("docs/start.md", ""),
    ("docs/operating/calibrate.md", ""),
    ("docs/operating/capacity.md", "--sell-iops 10000 --sell-throughput 500 --oversell gp3=2"),
    ("docs/operating/snapshots.md", "--store local"),
    ("docs/operating/watching.md", ""),
];

/// Programs whose commands are tried. The others build this very program, talk to the kernel, or
/// need an image of a virtual machine.
const TRIED: [&str; 9] = [
    "export",
    "eval",
    "VOLUME=$(aws",
    "VOLUME=vol-...",
    "aws",
    "evenkeel",
    "nbdinfo",
    "fio",
    "mkdir",
];
const NOT_TRIED: [&str; 5] = ["make", "qemu-system-x86_64", "qemu-img", "nbdcopy", "nbd-client"];

fn page(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The lines of all code blocks, continued ones joined. What programs print stands in blocks of
/// `text`.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2).filter(|block| !block.starts_with("text"));
    let joined = blocks.map(|block| block.replace("\\\n", " ")).collect::<Vec<_>>().join("\n");
    let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// What a shell can run here: this server's addresses, an id for each placeholder, and no more than
/// a second for each measurement, or three for a calibration.
fn runnable(server: &Server, command: &str) -> String {
    let default_nbd = "127.0.0.1:10809";
    let command = command.replace(default_nbd, &server.nbd.to_string());
    let command = match command.split_whitespace().next() {
        // Where the server is, the shell was told already.
        Some("export" | "eval") => return String::new(),
        Some("evenkeel") if command.starts_with("evenkeel calibrate") => {
            format!("{} --quick", command.replace("--quick", ""))
        }
        Some("VOLUME=vol-...") => "VOLUME=$(latest)".to_owned(),
        Some("fio") => {
            let words = command
                .split_whitespace()
                .map(|word| if word.starts_with("--runtime=") { "--runtime=1" } else { word });
            words.collect::<Vec<_>>().join(" ")
        }
        _ => command,
    };
    let command =
        command.replace("crates/planner/samples", &format!("{ROOT}/crates/planner/samples"));
    command.replace("vol-...", "$(latest)").replace("snap-...", "$(latest_snapshot)")
}

/// The newest volume that is attached, and the newest snapshot.
const LATEST: &str = "latest() { aws ec2 describe-volumes --output text --query \
    'sort_by(Volumes[?State==`in-use`], &CreateTime)[-1].VolumeId'; }\n\
    latest_snapshot() { aws ec2 describe-snapshots --output text --query \
    'sort_by(Snapshots, &StartTime)[-1].SnapshotId'; }\n";

#[test]
fn the_commands_of_the_first_pages_run() {
    if absent(&[&in_venv("aws"), "fio", "nbdinfo"]) {
        return;
    }
    for (path, options) in PAGES {
        let store = if options.contains("--store") { "" } else { "--store memory" };
        let server = Server::start(&format!("{store} {options}"));
        let mut script = LATEST.to_owned();
        if path.ends_with("snapshots.md") {
            script.push_str("evenkeel volume create --size 8 --attach\n");
        }
        let mut tried = 0;
        for command in commands(&page(path)) {
            let program = command.split_whitespace().next().expect("a word").to_owned();
            if NOT_TRIED.contains(&program.as_str()) {
                continue;
            }
            assert!(TRIED.contains(&program.as_str()), "{path}: {command}: neither tried nor not");
            let command = runnable(&server, &command);
            script.push_str(&format!("echo '== '{tried}; {{ true; {command}\n}}\n"));
            tried += 1;
        }
        let output = run(&mut server.shell(&script));
        println!("{script}\n{output}");
        assert!(tried > 4, "{path}: {tried} commands");
        output.ok();
    }
}

/// `make bench` is that verb with a suite, and leaves a page where the README says; here without
/// the minutes that it takes live.
#[test]
fn the_experiment_that_the_readme_shows_leaves_its_page() {
    let shown = commands(&page("README.md"));
    let suite = shown.iter().find_map(|line| line.strip_prefix("make bench SUITE=")).expect("it");
    assert!(
        page("Makefile")
            .contains("\n\tcargo run --release --quiet --bin evenkeel -- bench run $(SUITE)\n")
    );
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = evenkeel(folder.path());
    command.env("XDG_DATA_HOME", folder.path());
    let output = run(command.args(["bench", "run", suite, "--simulate", "--only", "stripe of 1"]));
    let told = output.stderr.lines().find_map(|line| line.strip_prefix("report: "));
    let report = std::path::Path::new(told.unwrap_or_else(|| panic!("no report: {output}")));
    assert!(report.starts_with(folder.path().join("evenkeel/results")), "{output}");
    let text = std::fs::read_to_string(report).expect("a page");
    assert!(text.contains("<svg ") && text.ends_with("</html>\n"));
    output.ok();
}

/// `make demo` and `make serve` build the program once, where the shell of the first pages looks
/// for it.
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

/// The verbs of the reference: its headings.
fn documented_verbs() -> BTreeSet<String> {
    let reference = page("docs/reference/cli.md");
    let headings = reference.lines().filter_map(|line| line.strip_prefix("## evenkeel "));
    headings.map(str::to_owned).collect()
}

#[test]
fn every_documented_verb_has_help() {
    let server = Server::start("--store memory");
    let verbs = documented_verbs();
    assert!(verbs.len() > 15, "{verbs:?}");
    for verb in &verbs {
        let help = server.evenkeel(&format!("{verb} --help")).ok();
        assert!(help.contains(&format!("Usage: evenkeel {verb}")), "{verb}: {help}");
    }
    let help = server.evenkeel("--help").ok();
    for verb in verbs.iter().filter(|verb| !verb.contains(' ')) {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} is not in: {help}");
    }
    let version = server.evenkeel("--version").ok();
    assert_eq!(version, format!("evenkeel {}\n", env!("CARGO_PKG_VERSION")));
    server.evenkeel("nonsense").fails_with(2);
}
