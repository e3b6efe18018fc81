//! Which file is read, when it is refused, and the precedence of the environment.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

/// The settings of a file that was named.
fn settings_of(path: &Path) -> Result<BTreeMap<String, Setting>, Failure> {
    Source::Named(path.to_owned()).settings()
}

/// A test may not change the environment of its process (others run beside it), so the variable is
/// one that every process has.
#[test]
fn the_environment_beats_the_file_and_the_flag_beats_the_environment() {
    #[derive(clap::Parser)]
    struct Program {
        #[arg(long, env = "PATH")]
        region: String,
    }
    let path = std::env::var("PATH").unwrap();
    let settings = BTreeMap::from([(
        "region".to_owned(),
        Setting { values: vec!["from-file".to_owned()], line: 1 },
    )]);
    let region = |line| {
        let command = with_defaults(Program::command(), Path::new("evenkeel.toml"), &settings);
        from::<Program>(command.unwrap(), &words(line)).unwrap().region
    };
    assert_eq!(region("evenkeel"), path);
    assert_eq!(region("evenkeel --region from-flag"), "from-flag");
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

#[test]
fn a_flag_without_a_value_is_true_or_false_in_a_file() {
    #[derive(clap::Parser)]
    struct Program {
        #[arg(long, env = "EVENKEEL_TEST_OF_A_FLAG_WITHOUT_A_VALUE", hide_env_values = true)]
        test_server: bool,
    }
    let parsed = |value: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("evenkeel.toml");
        std::fs::write(&path, format!("test-server = {value}\n")).unwrap();
        let settings = settings_of(&path)?;
        let command = with_defaults(Program::command(), Path::new("evenkeel.toml"), &settings)?;
        Ok::<_, Failure>(from::<Program>(command, &words("evenkeel")).unwrap().test_server)
    };
    assert_eq!(parsed("true"), Ok(true));
    assert_eq!(parsed("false"), Ok(false));
    for value in ["\"yes\"", "1", "[true, true]"] {
        let failure = parsed(value).unwrap_err().to_string();
        assert!(failure.contains("evenkeel.toml:1: test-server = "), "{failure}");
        assert!(failure.ends_with(": must be true or false"), "{failure}");
    }
}
