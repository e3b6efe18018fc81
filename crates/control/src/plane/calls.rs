//! Calls to the data plane: reports, latencies, and commands that are answered with success or
//! failure only.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::Latencies;
use evenkeel_wire::agent::{Command as AgentCommand, Failed, FailedKind, Reply, Report};

use super::{Plane, PlaneError};

impl Plane {
    /// The state of all volumes and hosts, as the data plane reports it.
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

    /// Where requests spent their time: of one volume, or of every volume that had requests.
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
