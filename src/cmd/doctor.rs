//! `evenkeel doctor`: checks this machine and prints how to fix the problems found. The exit code
//! is 1 if a check fails.

use crate::cli::{Doctor, LocalStore};
use evenkeel_cli::tls::NbdListen;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_server::doctor::{self, Subject, Verdict};
use evenkeel_server::store_options::StoreOptions;

pub fn run(arguments: &Doctor) -> Result<(), Failure> {
    let options = StoreOptions::of(&LocalStore::default(), &arguments.rbd, &arguments.store)?;
    let checks = doctor::checks(&Subject {
        data_dir: &arguments.data_dir,
        region: &arguments.region,
        listen: arguments.listen,
        nbd_listen: &NbdListen::addresses(&arguments.nbd_listen),
        options: &options,
    });
    output::print(&output::listing(&checks, arguments.output.format, ""))?;
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail).count();
    if failed == 0 {
        Ok(())
    } else {
        Err(Failure::new(format!("{failed} of {} checks failed", checks.len())).exit(Exit::Failed))
    }
}
