//! Calls to the data plane.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::Latencies;
use evenkeel_wire::agent::{Command as AgentCommand, Failed, FailedKind, Reply, Report};

use super::{Plane, PlaneError};

impl Plane {
    /// How volumes and hosts are, as the data plane sees them.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn report(&self) -> Result<Report, PlaneError> {
        match self.agent.call(AgentCommand::Report) {
            Reply::Report(report) => Ok(report),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Report was answered with something else"))),
        }
    }

    /// Where requests spent their time: of all volumes that were used, or of one.
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
