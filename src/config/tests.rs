//! Precedence, unknown keys, and the exact words of each complaint.

use super::*;
use crate::cli::{Verb, command};
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

/// The settings of a file that was named.
fn settings_of(path: &Path) -> Result<BTreeMap<String, Setting>, Failure> {
    Source::Named(path.to_owned()).settings()
}

/// Parses as the program does, with `file` as the configuration file.
fn parse_with(file: &str, line: &str) -> Result<Cli, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evenkeel.toml");
    fs::write(&path, file).unwrap();
    let prefix = format!("{}/", folder.path().display());
    let settings = settings_of(&path).map_err(|f| f.to_string().replace(&prefix, ""))?;
    let command = with_defaults(command(), &path, &settings)
        .map_err(|failure| failure.to_string().replace(&prefix, ""))?;
    from(command, &words(line)).map_err(|error| error.to_string())
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

/// A test may not change the environment of its process (others run beside it), so the variable is
/// one that every process has.
#[test]
fn the_environment_beats_the_file_and_the_flag_beats_the_environment() {
    let home = std::env::var("PATH").unwrap();
    let settings = BTreeMap::from([(
        "region".to_owned(),
        Setting { values: vec!["from-file".to_owned()], line: 1 },
    )]);
    let command = || {
        let command = command().mut_subcommand("serve", |serve| {
            serve.mut_arg("region", |argument| argument.env("PATH"))
        });
        with_defaults(command, Path::new("evenkeel.toml"), &settings).unwrap()
    };
    let region = |line| match from(command(), &words(line)).unwrap().verb {
        Verb::Serve(serve) => serve.region,
        other => panic!("not serve: {other:?}"),
    };
    assert_eq!(region("evenkeel serve"), home);
    assert_eq!(region("evenkeel serve --region from-flag"), "from-flag");
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
    for file in ["nbd-listen = []\n", "nbd-listen = \"none\"\n"] {
        match parse_with(file, "evenkeel serve").unwrap().verb {
            Verb::Serve(serve) => {
                assert_eq!(crate::cli::NbdListen::addresses(&serve.nbd_listen), [], "{file}");
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

#[test]
fn a_file_that_was_named_must_be_there() {
    let failure = settings_of(Path::new("no/such.toml")).unwrap_err();
    assert_eq!(failure.exit, Exit::Usage);
    assert_eq!(
        failure.to_string(),
        "error: no/such.toml: No such file or directory (os error 2)\n \
         hint: --config names the configuration file"
    );
}

#[test]
fn the_flag_names_the_file_before_the_environment_does() {
    let path = |line, environment: Option<&str>| {
        source(&words(line), environment.map(OsString::from))
            .map(|source| source.path().display().to_string())
    };
    assert_eq!(path("evenkeel --config a serve", Some("b")).unwrap(), "a");
    assert_eq!(path("evenkeel serve --config=a", Some("b")).unwrap(), "a");
    assert_eq!(path("evenkeel serve", Some("b")).unwrap(), "b");
    assert_eq!(path("evenkeel serve -- --config a", Some("")), None);
}

/// docs/operating/configuration.md shows a file with everything at its default, and explains every
/// key.
#[test]
fn the_documented_file_is_complete_and_at_its_defaults() {
    let text = include_str!("../../docs/operating/configuration.md");
    let sample = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let outside_of_blocks: String = text.split("```").step_by(2).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evenkeel.toml");
    fs::write(&path, sample).unwrap();
    let settings = settings_of(&path).unwrap();
    for (key, argument) in keys(&command()) {
        let defaults: Vec<_> = argument.get_default_values().iter().collect();
        match settings.get(&key) {
            Some(setting) => {
                assert_eq!(defaults, setting.values.iter().collect::<Vec<_>>(), "{key}")
            }
            None => {
                assert_eq!(defaults, [""; 0], "{key} has a default: it belongs into the sample");
                assert!(sample.contains(&format!("# {key} = ")), "{key} is not in the sample");
            }
        }
        let explained = outside_of_blocks.contains(&format!("`{key}`"));
        assert!(explained, "{key} is in no table");
    }
    with_defaults(command(), &path, &settings).unwrap();
}

/// A folder with a configuration file, which is read because it is there.
fn found(text: &str, of_file: u32, of_folder: u32) -> (tempfile::TempDir, Source) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_DEFAULT);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(of_file)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(of_folder)).unwrap();
    (folder, Source::Found(path))
}

#[test]
fn a_found_file_is_refused_where_others_can_write_it() {
    for (of_file, of_folder, expected) in [
        (0o644, 0o755, None),
        (0o600, 0o700, None),
        (0o646, 0o700, Some("because it can be written by others (mode 0646)")),
        (0o664, 0o700, Some("because it can be written by others (mode 0664)")),
        (0o644, 0o777, Some("because its folder can be written by others (mode 0777)")),
        (0o644, 0o1777, Some("because its folder can be written by others (mode 1777)")),
        (0o644, 0o775, Some("because its folder can be written by others (mode 0775)")),
    ] {
        let (_folder, source) = found("region = \"a\"\n", of_file, of_folder);
        let is_read = source.settings();
        match expected {
            None => assert_eq!(is_read.unwrap()["region"].values, ["a"]),
            Some(reason) => {
                let failure = is_read.unwrap_err();
                assert_eq!(failure.exit, Exit::Usage);
                assert!(failure.message.ends_with(reason), "{failure}");
                assert!(failure.to_string().contains("--config"), "{failure}");
            }
        }
        // A file that is named is read as it is.
        let named = Source::Named(source.path().to_owned());
        assert!(named.settings().is_ok());
    }
}

#[test]
fn a_file_of_another_user_is_refused_and_one_of_root_is_not() {
    let (folder, source) = found("", 0o644, 0o755);
    let (of_file, of_folder) =
        (source.path().metadata().unwrap(), folder.path().metadata().unwrap());
    let owner = of_file.uid();
    assert_eq!((exposure(&of_file, owner), exposure(&of_folder, owner)), (None, None));
    let of_others = exposure(&of_file, owner + 1);
    match owner {
        0 => assert_eq!(of_others, None),
        _ => assert!(of_others.unwrap().starts_with(&format!("belongs to user {owner}"))),
    }
    // Only root can give a file away.
    if owner == 0 {
        std::os::unix::fs::chown(source.path(), Some(61_001), None).unwrap();
        let failure = source.settings().unwrap_err();
        assert!(failure.message.contains("it belongs to user 61001, not to user 0"), "{failure}");
    }
}

#[test]
fn a_found_file_names_no_key_and_no_program() {
    for key in NAMED_ONLY {
        let (_folder, source) = found(&format!("region = \"a\"\n{key} = \"x\"\n"), 0o600, 0o700);
        let failure = source.settings().unwrap_err();
        let expected = format!("evenkeel.toml:2: {key} is not read from the working folder's file");
        assert!(failure.message.ends_with(&expected), "{failure}");
        assert!(failure.hint.unwrap().contains("--config"));
        assert!(settings_of(source.path()).is_ok());
    }
}

#[test]
fn a_file_that_never_ends_is_refused() {
    let failure = settings_of(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(failure.message, "/dev/zero: it has more than 1048576 bytes");
}
