//! Users and groups by number or by name, from `/etc/passwd` and `/etc/group`. An unknown name is
//! an error that names the setting.

use evenkeel_client::output::{Exit, Failure};
use std::fs;

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// The number of a user; `key` is the setting that names it.
pub fn user(key: &str, text: &str) -> Result<u32, Failure> {
    named(key, "user", text, USERS)
}

/// The number of a group; `key` is the setting that names it.
pub fn group(key: &str, text: &str) -> Result<u32, Failure> {
    named(key, "group", text, GROUPS)
}

fn named(key: &str, what: &str, text: &str, file: &str) -> Result<u32, Failure> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let usage = |message| Failure::new(message).exit(Exit::Usage);
    let known =
        fs::read_to_string(file).map_err(|error| usage(format!("{key}: {file}: {error}")))?;
    number_of(&known, text).ok_or_else(|| {
        usage(format!("{key}: {file} has no {what} \"{text}\"; write its number instead"))
    })
}

/// In both files the name is the first field and the number the third.
fn number_of(known: &str, name: &str) -> Option<u32> {
    let mut lines = known.lines().map(|line| line.split(':'));
    let number = |mut fields: std::str::Split<'_, char>| {
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    lines.find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_and_numbers_are_their_own() {
        let known = "root:x:0:0:root:/root:/bin/sh\nbroken\nqemu:x:64055:64055::/:/bin/false\n";
        assert_eq!(number_of(known, "qemu"), Some(64_055));
        assert_eq!(number_of(known, "root"), Some(0));
        assert_eq!((number_of(known, "broken"), number_of(known, "x")), (None, None));
        assert_eq!(user("nbd-unix-users", "4711"), Ok(4_711));
        assert_eq!(user("nbd-unix-users", "root"), Ok(0));
    }

    #[test]
    fn who_is_unknown_is_named_with_the_next_step() {
        let failure = group("nbd-unix-group", "no-such-group").unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(
            failure.message,
            "nbd-unix-group: /etc/group has no group \"no-such-group\"; write its number instead"
        );
    }
}
