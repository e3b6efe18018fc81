//! `evenkeel demo ceph`: a temporary Ceph cluster for trying the store `rbd`.

use crate::cli::DemoCeph;
use evenkeel_cli::signals;
use evenkeel_client::output::{self, Failure, failed};
use evenkeel_lab::cancel;
use evenkeel_lab::ceph::{Ceph, Setup, USER};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Time between two checks whether its daemons run.
const LOOK: Duration = Duration::from_secs(1);

pub fn run(arguments: &DemoCeph) -> Result<(), Failure> {
    let (told, tells) = channel();
    signals::when_signalled(move |_| {
        cancel::stop();
        let _ = told.send(());
        false
    })?;
    let folder = std::path::absolute(&arguments.folder)
        .map_err(|error| Failure::new(format!("{}: {error}", arguments.folder.display())))?;
    let setup = Setup {
        osds: arguments.osds,
        osd_gib: arguments.osd_gib,
        propose_ms: arguments.propose_ms,
    };
    let mut ceph = match Ceph::start(&folder, setup) {
        Ok(ceph) => ceph,
        // The started daemons end with this process.
        Err(_) if cancel::is_stopped() => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    output::print(&format!(
        "a Ceph cluster runs in {}; Ctrl-C ends it\n\
         evenkeel serve --store rbd --ceph-user {USER} --ceph-conf {}\n",
        folder.display(),
        ceph.conf().display()
    ))?;
    while tells.recv_timeout(LOOK).is_err() {
        if !ceph.runs() {
            let daemon = "the monitor or the manager of the cluster in";
            let what = format!("{daemon} {} has ended", folder.display());
            return Err(Failure::new(what).hint("its log is in the folder `log` there"));
        }
        // A user may have killed it on purpose.
        for number in ceph.take_ended_osds() {
            let conf = ceph.conf();
            let again = format!("ceph-osd -c {} -i {number} -f", conf.display());
            output::print(&format!("osd.{number} has ended; `{again}` starts it again\n"))?;
        }
    }
    ceph.stop();
    Ok(())
}
