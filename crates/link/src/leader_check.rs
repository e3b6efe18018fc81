//! Decides whether a command is executed, by its session and the newest leader.
//!
//! A session's commands are executed until a later session is let in. Commands of former sessions
//! that had begun cannot be stopped, so they run to their end. Until then a new command that
//! changes the same thing is refused. So the last complete command about a thing takes effect last,
//! even if an earlier one hung.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::limits::{AGENT_BUFFERED_BYTES_MAX, AGENT_RUNNING_MAX};
use evenkeel_wire::agent::Touched;
use evenkeel_wire::agent::session::{self, Hello, LeaderGeneration, Verdict};

use crate::channel::Channel;
use crate::generation::{GenerationFile, Heard};
use evenkeel_os::clock::Deadline;

/// Number of a session, in the order in which sessions were let in.
pub(crate) type SessionId = u64;

/// Why a command is not executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// There is a later session.
    Fenced,
    /// An earlier command that changes the same thing still runs, and no caller waits for it.
    Conflict(Touched),
    /// The maximum number of commands run already.
    Full,
}

struct Running {
    touched: Vec<Touched>,
    bytes: usize,
    /// No caller waits for its reply.
    abandoned: bool,
}

struct State {
    heard: Option<Heard>,
    /// The generation that etcd has confirmed to this process.
    confirmed: Option<LeaderGeneration>,
    file: GenerationFile,
    /// The latest session, and its connection.
    session: SessionId,
    channel: Option<Arc<Channel>>,
    running: BTreeMap<(SessionId, u64), Running>,
    /// The node has stopped: no leader is let in.
    is_closed: bool,
}

/// See the module's text.
pub(crate) struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

impl Gate {
    pub fn new(file: GenerationFile, heard: Option<Heard>) -> Self {
        let running = BTreeMap::new();
        let state = State {
            heard,
            confirmed: None,
            file,
            session: 0,
            channel: None,
            running,
            is_closed: false,
        };
        Self { state: Mutex::new(state), left: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether etcd must confirm that the leader of a generation leads. The content of the
    /// file is not enough: volumes of a node that was stopped have other homes by a later leader,
    /// which the node's next process has not heard, and a former leader may wake.
    pub fn must_confirm(&self, generation: LeaderGeneration) -> bool {
        let state = self.state();
        let is_lower = state.heard.is_some_and(|(heard, _)| generation < heard);
        !is_lower && state.confirmed != Some(generation)
    }

    /// Returns the highest generation that was received.
    pub fn generation(&self) -> LeaderGeneration {
        self.state().heard.map_or(LeaderGeneration(0), |(generation, _)| generation)
    }

    /// Lets a leader in, and ends the former session. Returns an error if the leader is refused.
    pub fn admit(
        &self,
        hello: &Hello,
        channel: &Arc<Channel>,
    ) -> Result<SessionId, (Verdict, String)> {
        let mut state = self.state();
        if state.is_closed {
            // The connection may have been accepted in the moment in which the node stopped.
            return Err((Verdict::Busy, "this node has stopped".to_owned()));
        }
        let said = (hello.generation, hello.leader);
        let is_new = session::admit(state.heard, said).map_err(|verdict| {
            let (heard, by) = state.heard.expect("only a newer leader makes a node refuse one");
            let other =
                if verdict == Verdict::OtherLeader { "another leader," } else { "the leader" };
            (verdict, format!("this node has heard {heard} of {other} on {by}"))
        })?;
        if is_new {
            // Stored before any command is executed, so that no restart lets an older leader in.
            state.file.store(said).map_err(|error| (Verdict::Busy, error.to_string()))?;
            state.heard = Some(said);
        }
        state.confirmed = Some(hello.generation);
        state.session += 1;
        if let Some(former) = state.channel.replace(Arc::clone(channel)) {
            former.close();
        }
        state.running.values_mut().for_each(|running| running.abandoned = true);
        // Readers of former sessions may wait for room.
        self.left.notify_all();
        Ok(state.session)
    }

    /// Waits until there is room for the bytes of a command. Returns whether the session is the
    /// latest.
    pub fn wait_for_room(&self, session: SessionId, bytes: usize) -> bool {
        let mut state = self.state();
        loop {
            let kept: usize = state.running.values().map(|running| running.bytes).sum();
            if state.session != session {
                return false;
            }
            if kept == 0 || kept + bytes <= AGENT_BUFFERED_BYTES_MAX {
                return true;
            }
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Begins a command. Returns an error if it must not be executed.
    pub fn enter(
        &self,
        session: SessionId,
        number: u64,
        touched: Vec<Touched>,
        bytes: usize,
    ) -> Result<(), Kept> {
        let mut state = self.state();
        if state.session != session {
            return Err(Kept::Fenced);
        }
        let abandoned = state.running.values().filter(|running| running.abandoned);
        let mut taken = abandoned.flat_map(|running| &running.touched);
        if let Some(taken) = taken.find(|taken| touched.contains(taken)) {
            return Err(Kept::Conflict(*taken));
        }
        if state.running.len() >= AGENT_RUNNING_MAX {
            return Err(Kept::Full);
        }
        let running = Running { touched, bytes, abandoned: false };
        state.running.insert((session, number), running);
        Ok(())
    }

    /// Returns the number of a session's commands that run.
    pub fn running(&self, session: SessionId) -> usize {
        self.state().running.range((session, 0)..=(session, u64::MAX)).count()
    }

    /// Records that no caller waits for this command any more.
    pub fn abandon(&self, session: SessionId, number: u64) {
        if let Some(running) = self.state().running.get_mut(&(session, number)) {
            running.abandoned = true;
        }
    }

    /// Records that a command has ended. Returns whether its reply may still be sent.
    pub fn leave(&self, session: SessionId, number: u64) -> bool {
        let mut state = self.state();
        state.running.remove(&(session, number));
        self.left.notify_all();
        state.session == session
    }

    /// Records that a session has ended: no caller waits for its commands.
    pub fn end(&self, session: SessionId) {
        let mut state = self.state();
        let of = state.running.range_mut((session, 0)..=(session, u64::MAX));
        of.for_each(|(_, running)| running.abandoned = true);
        if state.session == session {
            state.channel = None;
        }
    }

    /// Ends the present session, lets no other one in, and waits at most `at_most` for commands to
    /// end.
    pub fn close(&self, at_most: Duration) {
        let deadline = Deadline::after(at_most);
        let mut state = self.state();
        state.is_closed = true;
        state.session += 1;
        if let Some(channel) = state.channel.take() {
            channel.close();
        }
        self.left.notify_all();
        while !state.running.is_empty() && !deadline.left().is_zero() {
            let waited = self.left.wait_timeout(state, deadline.left());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use evenkeel_core::fencing::NodeId;
    use evenkeel_wire::agent::session::Leader;

    use super::*;

    /// A leader that connects again in the moment of a stop would stay connected to what has
    /// stopped, and would never reach the node that starts next at the address.
    #[test]
    fn stopped_node_lets_no_leader_in() {
        let folder = tempfile::tempdir().unwrap();
        let (file, heard) = GenerationFile::open(&folder.path().join("generation")).unwrap();
        let gate = Gate::new(file, heard);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let second = Duration::from_secs(1);
        let open = || {
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            Channel::open(socket, None, second, Deadline::after(second)).unwrap().0
        };
        let hello = Hello {
            agent_version: 1,
            cluster: 1,
            node: NodeId(7),
            leader: Leader { node: NodeId(1), incarnation: 1 },
            generation: LeaderGeneration(1),
        };
        assert!(gate.must_confirm(hello.generation));
        assert_eq!(gate.admit(&hello, &open()), Ok(1));
        assert!(!gate.must_confirm(hello.generation));
        assert!(gate.must_confirm(LeaderGeneration(2)));
        assert!(!gate.must_confirm(LeaderGeneration(0)), "it is refused");
        let (file, heard) = GenerationFile::open(&folder.path().join("generation")).unwrap();
        let next_process = Gate::new(file, heard);
        assert!(next_process.must_confirm(hello.generation));
        gate.close(second);
        let refused = gate.admit(&hello, &open());
        assert_eq!(refused, Err((Verdict::Busy, "this node has stopped".to_owned())));
    }
}
