//! The program's configuration file: precedence, unknown keys, and the exact words of each
//! complaint.

use crate::cli::{Cli, Verb, command};
use evenkeel_cli::config::{self, ParseError};
use evenkeel_cli::tls::NbdListen;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

/// Returns the words of a command line that names `file`, and the prefix of its messages.
fn naming(file: &Path, line: &str) -> (Vec<OsString>, String) {
    let mut words = words(line);
    words.extend([OsString::from("--config"), file.as_os_str().to_owned()]);
    let folder = file.parent().unwrap();
    (words, format!("{}/", folder.display()))
}

/// Parses as the program does, with `file` as the configuration file.
fn parse_with(file: &str, line: &str) -> Result<Cli, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evenkeel.toml");
    fs::write(&path, file).unwrap();
    let (words, prefix) = naming(&path, line);
    config::parse(command(), &words).map_err(|error| match error {
        ParseError::Usage(error) => error.to_string(),
        ParseError::File(failure) => failure.to_string().replace(&prefix, ""),
    })
}

fn listen(cli: Cli) -> String {
    match cli.verb {
        Verb::Serve(serve) => serve.listen.to_string(),
        other => panic!("not serve: {other:?}"),
    }
}

#[test]
fn the_default_holds_where_nothing_is_said() {
    assert_eq!(listen(parse_with("", "evenkeel serve").unwrap()), "127.0.0.1:8650");
}

#[test]
fn the_file_beats_the_default_and_the_flag_beats_the_file() {
    let file = "listen = \"127.0.0.1:9000\"\n";
    assert_eq!(listen(parse_with(file, "evenkeel serve").unwrap()), "127.0.0.1:9000");
    let flag = "evenkeel serve --listen 127.0.0.1:9001";
    assert_eq!(listen(parse_with(file, flag).unwrap()), "127.0.0.1:9001");
}

#[test]
fn a_key_reaches_every_verb_that_has_the_flag() {
    let file = "region = \"eu-1\"\ndata-dir = \"/srv/e\"\n";
    match parse_with(file, "evenkeel volume ls").unwrap().verb {
        Verb::Volume(volume) => {
            assert_eq!(volume.connection.region.as_deref(), Some("eu-1"));
            assert_eq!(volume.connection.data_dir, Path::new("/srv/e"));
        }
        other => panic!("not volume: {other:?}"),
    }
}

#[test]
fn lists_and_numbers_are_values_too() {
    let file = "cores = 2\nnbd-listen = [\"127.0.0.1:1\", \"127.0.0.2:2\"]\nas-of = 2012-08-01\n";
    match parse_with(file, "evenkeel serve").unwrap().verb {
        Verb::Serve(serve) => {
            assert_eq!(serve.cores, Some(2));
            assert_eq!(serve.nbd_listen.len(), 2);
            assert_eq!(serve.as_of.unwrap().to_string(), "2012-08-01");
        }
        other => panic!("not serve: {other:?}"),
    }
}

#[test]
fn zones_are_a_list_in_the_file_and_separated_by_commas_in_a_flag() {
    let zones = |file: &str, line: &str| {
        parse_with(file, line).map(|cli| match cli.verb {
            Verb::Serve(serve) => serve.zone,
            other => panic!("not serve: {other:?}"),
        })
    };
    let list = "zone = [\"a\", \"b\"]\n";
    assert_eq!(zones(list, "evenkeel serve").unwrap(), ["a", "b"]);
    assert_eq!(zones("zone = \"a\"\n", "evenkeel serve").unwrap(), ["a"]);
    assert_eq!(zones(list, "evenkeel serve --zone c,d").unwrap(), ["c", "d"]);
    assert_eq!(zones("", "evenkeel serve").unwrap(), ["local-1a"]);
    for wrong in ["zone = \"\"\n", "zone = [\"a b\"]\n"] {
        let error = zones(wrong, "evenkeel serve").unwrap_err();
        assert!(error.contains("without spaces, such as local-1a"), "{error}");
    }
}

#[test]
fn an_empty_list_is_no_address() {
    for value in ["[]", "\"none\""] {
        let file = format!("nbd-listen = {value}\nnbd-tls-listen = {value}\n");
        match parse_with(&file, "evenkeel serve").unwrap().verb {
            Verb::Serve(serve) => {
                assert_eq!(NbdListen::addresses(&serve.nbd_listen), [], "{file}");
                assert_eq!(NbdListen::addresses(&serve.tls.nbd_tls_listen), [], "{file}");
            }
            other => panic!("not serve: {other:?}"),
        }
    }
}

#[test]
fn complaints_name_the_line_and_the_next_step() {
    let complaint = |file| parse_with(file, "evenkeel serve").unwrap_err();
    assert_eq!(
        complaint("# ours\nlisten_ = \"x\"\n"),
        "error: evenkeel.toml:2: unknown key \"listen_\"\n hint: did you mean \"listen\"?"
    );
    assert_eq!(
        complaint("datadir = \"x\"\n"),
        "error: evenkeel.toml:1: unknown key \"datadir\"\n hint: did you mean \"data-dir\"?"
    );
    assert_eq!(
        complaint("banana = 1\n"),
        "error: evenkeel.toml:1: unknown key \"banana\"\n \
         hint: the keys are in docs/operating/configuration.md"
    );
    assert_eq!(
        complaint("listen = \"here\"\n"),
        "error: evenkeel.toml:1: listen = \"here\": invalid socket address syntax"
    );
    assert_eq!(
        complaint("io = \"fast\"\n"),
        "error: evenkeel.toml:1: io = \"fast\": must be one of auto, uring, pread"
    );
    assert_eq!(
        complaint("cores = 1.5\n"),
        "error: evenkeel.toml:1: cores must be a string, a number or a list of them"
    );
    assert_eq!(
        complaint("region = [\"a\", \"b\"]\n"),
        "error: evenkeel.toml:1: region = \"a, b\": may have one value only"
    );
    assert!(complaint("listen = \n").starts_with("error: evenkeel.toml:1: "));
}

/// docs/operating/configuration.md shows a file with everything at its default, and explains every
/// key.
#[test]
fn the_documented_file_is_complete_and_at_its_defaults() {
    let text = include_str!("../docs/operating/configuration.md");
    let sample = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let outside_of_blocks: String = text.split("```").step_by(2).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evenkeel.toml");
    fs::write(&path, sample).unwrap();
    let (words, _) = naming(&path, "evenkeel serve");
    let mut with_sample = config::keys(&config::with_file(command(), &words).unwrap());
    for (key, argument) in config::keys(&command()) {
        let defaults = argument.get_default_values();
        if sample.lines().any(|line| line.starts_with(&format!("{key} = "))) {
            let of_sample = with_sample.remove(&key).unwrap();
            assert_eq!(defaults, of_sample.get_default_values(), "{key}");
        } else {
            assert!(defaults.is_empty(), "{key} has a default: it belongs into the sample");
            assert!(sample.contains(&format!("# {key} = ")), "{key} is not in the sample");
        }
        let explained = outside_of_blocks.contains(&format!("`{key}`"));
        assert!(explained, "{key} is in no table");
    }
}
