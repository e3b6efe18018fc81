//! `evenkeel audit`: checks the record of all calls of the API.

use crate::cli::{AuditArgs, AuditVerb, AuditVerify};
use evenkeel_client::output::{self, Failure};
use evenkeel_telemetry::audit::{self, Fault, Verified};

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
        let why = match fault {
            Fault::Io(..) => "; the audit cannot be read: give the data folder by --data-dir",
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

fn shown(Verified { files, lines, first, last, hash }: &Verified) -> String {
    if *lines == 0 {
        return "the audit has no lines\n".to_owned();
    }
    format!(
        "{lines} lines in {files} files, numbers {first} to {last}, are as they were written\n\
         hash of the last line: {hash}\n"
    )
}
