//! The file of policies, read with a bound.

use evenkeel_client::output::{Exit, Failure};
use evenkeel_planner::autopilot::PolicyFile;
use evenkeel_planner::autopilot::policy::POLICY_BYTES_MAX;
use evenkeel_planner::fleet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

const EVERY_KEY: &str = "`evenkeel agent --print-policy` prints every key with its default, and \
                         docs/operating/autopilot.md explains them";

/// Reads a file of policies; returns its text, too. `plan` has the rules and prices by which
/// recordings are judged.
///
/// # Errors
/// If it is no regular file, is too large, is no text, or is malformed.
pub fn read(path: &Path, plan: &fleet::Policy) -> Result<(String, PolicyFile), Failure> {
    let failed = |exit: Exit| {
        move |text: String| {
            Failure::new(format!("{}: {text}", path.display())).exit(exit).hint(EVERY_KEY)
        }
    };
    let bytes = bytes(path).map_err(failed(Exit::Input))?;
    let text = text(bytes).map_err(failed(Exit::Usage))?;
    let file = PolicyFile::parse(&text, plan).map_err(|error| error.to_string());
    Ok((text, file.map_err(failed(Exit::Usage))?))
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    // A pipe would block, and could not be read again when the policies change.
    let found = fs::metadata(path).map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is no regular file: name a file with policies".to_owned());
    }
    let bytes_max = POLICY_BYTES_MAX as u64;
    if found.len() > bytes_max {
        return Err(format!(
            "the policy has {} bytes, of at most {bytes_max}: split its groups among files",
            found.len()
        ));
    }
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    // The file may grow in the meantime.
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        format!("byte {valid} is not UTF-8: save the file as UTF-8 text")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_file_that_is_no_text_too_large_or_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let refused = || read(&path, &fleet::Policy::usual()).unwrap_err();
        let failure = refused();
        assert_eq!(failure.exit, Exit::Input);
        assert!(failure.message.ends_with("policy.toml: No such file or directory (os error 2)"));
        assert_eq!(failure.hint.as_deref(), Some(EVERY_KEY));
        fs::write(&path, b"[[group]]\nname = \"\xff\"\n").unwrap();
        let message = refused().message;
        assert!(
            message.ends_with("byte 18 is not UTF-8: save the file as UTF-8 text"),
            "{message}"
        );
        fs::write(&path, "#".repeat(10 << 20)).unwrap();
        let message = refused().message;
        let expected = "the policy has 10485760 bytes, of at most 1048576: split its groups";
        assert!(message.contains(expected), "{message}");
        fs::write(&path, "").unwrap();
        assert_eq!(refused().exit, Exit::Usage);
        let message = refused().message;
        assert!(message.ends_with("it has no [[group]]: add one"), "{message}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let message = refused().message;
        assert!(message.ends_with("it is no regular file: name a file with policies"), "{message}");
    }
}
