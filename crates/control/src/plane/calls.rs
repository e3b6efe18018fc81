//! Calls to the data plane: reports, latencies, and commands that are answered with success or
//! failure only.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::Latencies;
use evenkeel_wire::agent::{
    Command as AgentCommand, Failed, FailedKind, Reply, Report, VolumeReport,
};
use tracing::{info, warn};

use super::{Plane, PlaneError};
use crate::events::notice::{VolumeNews, What};
use crate::health::{Health, Now};
use evenkeel_os::clock;

impl Plane {
    /// Returns the state of all volumes and hosts, as the data plane reports it.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn report(&self) -> Result<Report, PlaneError> {
        self.report_by(AgentCommand::Report)
    }

    /// Returns the state of some volumes. The data plane reads no others, which would take time
    /// from its clients.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn report_of(
        &self,
        ids: Vec<VolumeId>,
    ) -> Result<BTreeMap<VolumeId, VolumeReport>, PlaneError> {
        let volumes = self.report_by(AgentCommand::ReportOf(ids))?.volumes;
        Ok(volumes.into_iter().map(|report| (report.id, report)).collect())
    }

    fn report_by(&self, command: AgentCommand) -> Result<Report, PlaneError> {
        match self.agent.call(command) {
            Reply::Report(report) => Ok(report),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Report was answered with something else"))),
        }
    }

    /// Returns the time of requests by stage: of one volume, or of every volume that had requests.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn latencies(
        &self,
        of: Option<VolumeId>,
    ) -> Result<Vec<(VolumeId, Box<Latencies>)>, PlaneError> {
        match self.agent.call(AgentCommand::Latencies(of)) {
            Reply::Latencies(latencies) => Ok(latencies),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Latencies was answered with something else"))),
        }
    }

    /// Processes the data plane's reports of all volumes, about once a second: updates their
    /// health, and sends events.
    pub fn observe(&self, reports: &[VolumeReport]) {
        self.feed.look(self, reports);
        // Whether a volume is stalled is a matter of real time, whatever a test clock shows.
        let now = Now { unix: self.clock.unix_ms(), since_boot: clock::since_boot() };
        let changed = self.health().look(now, reports);
        for (id, is_stalled) in changed {
            if is_stalled {
                warn!(volume = %id, "has requests and starts none")
            } else {
                info!(volume = %id, "starts requests again")
            }
            let news = if is_stalled { VolumeNews::Stalled } else { VolumeNews::Resumed };
            self.feed.tell(What::VolumeNews { id, news });
        }
    }

    /// Returns the health of volumes, by the last sample.
    pub fn health(&self) -> MutexGuard<'_, Health> {
        // A sample that was cut short by a panic may lose volumes; the next one adds them again.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn call(&self, command: AgentCommand) -> Result<(), Failed> {
        match self.agent.call(command) {
            Reply::Done => Ok(()),
            Reply::Failed(failed) => Err(failed),
            _ => Err(unexpected("a command was answered with something else")),
        }
    }
}

pub(super) fn unexpected(what: &str) -> Failed {
    Failed { kind: FailedKind::Internal, message: what.into() }
}
