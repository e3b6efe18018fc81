//! `evenkeel audit`: checks the record of all calls of the API.

use crate::cli::{AuditArgs, AuditVerb, AuditVerify};
use evenkeel_client::output::{self, Failure};
use evenkeel_telemetry::audit::{self, Fault, Verified};
use std::io::ErrorKind;

pub fn run(arguments: &AuditArgs) -> Result<(), Failure> {
    match &arguments.verb {
        AuditVerb::Verify(arguments) => verify(arguments),
    }
}

fn verify(AuditVerify { data_dir, expect }: &AuditVerify) -> Result<(), Failure> {
    let mut is_found = false;
    let checked = audit::verify(data_dir, |hash| {
        is_found |= expect.as_ref().is_some_and(|expect| expect == hash);
    });
    let checked = checked.map_err(|fault| {
        let why = match &fault {
            Fault::Io(_, error) if error.kind() == ErrorKind::NotFound => {
                "; the audit cannot be read: give the data folder by --data-dir"
            }
            Fault::Io(..) => "; the audit cannot be read: run this as the server's user",
            Fault::Line(..) => "; the audit is not as it was written: compare it with a copy",
        };
        Failure::new(format!("{fault}{why}"))
    })?;
    if let Some(expect) = expect
        && !is_found
    {
        let text = format!(
            "no line has the hash {expect}: lines were cut off at the end, or it is of another \
             audit"
        );
        return Err(Failure::new(text));
    }
    output::print(&shown(&checked))
}

fn shown(checked: &Verified) -> String {
    let Verified { files, lines, first, last, lost, hash } = checked;
    let mut text = if *lines == 0 {
        "the audit has no lines\n".to_owned()
    } else {
        format!(
            "{lines} lines in {files} files, numbers {first} to {last}, are as they were written\n"
        )
    };
    if *first > 1 {
        text.push_str(&format!(
            "the audit begins with number {first}: {} earlier lines are missing, deleted for the \
             size of all files or by hand\n",
            first - 1
        ));
    }
    if *lost > 0 {
        text.push_str(&format!("{lost} records were lost, because they could not be written\n"));
    }
    if *lines > 0 {
        text.push_str(&format!("hash of the last line: {hash}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_lost_records_are_named() {
        let mut checked =
            Verified { files: 1, lines: 3, first: 1, last: 3, lost: 0, hash: "7".repeat(64) };
        let text = shown(&checked);
        assert!(!text.contains("missing") && !text.contains("lost"), "{text}");
        (checked.first, checked.last, checked.lost) = (1_001, 1_003, 12);
        let text = shown(&checked);
        assert!(text.contains("with number 1001: 1000 earlier lines are missing"), "{text}");
        assert!(text.contains("12 records were lost"), "{text}");
    }
}
