//! The life of a node as a state machine: joining, electing, leading, being fenced, leaving.
//!
//! It has no thread, clock or I/O. [`Membership::handle`] takes an event and the time and returns
//! actions. A shell executes them and reports their outcome as further events. Every question has
//! at most one answer that counts: repeated, late and unknown answers change nothing, except that a
//! leadership that is won too late is resigned.
//!
//! ```text
//!             +--------------------------- fenced -----------------------------+
//!             v                                                                |
//! joining -> starting -> serving: follows <-> leads -> end of the term -> closing -> exit
//! ```
//!
//! Invariants:
//!
//! - At most one question to the election and one term are open. A term ends before the next
//!   question is asked.
//! - A leader whose lease is not confirmed ends its term at most [`UNHELD_MAX`] after the lease's
//!   end.
//! - After [`Event::Fenced`] a node does not serve, lead or relay until it has closed its volumes
//!   and joined again.
//! - A leadership that is not lost is resigned before the machine exits, and the node's presence in
//!   etcd ends with [`Action::Close`], after the data plane is closed.

mod events;
mod life;
#[cfg(test)]
mod tests;

use core::time::Duration;

pub use events::{Action, Answer, Asked, Event, Exit, JoinAnswer, Lease, Level, Question, Seen};
use life::{End, Life};

/// Pause before a node repeats a request that etcd has not answered.
pub const RETRY: Duration = Duration::from_millis(100);
/// Time between two questions about the leader. After a change of the leader's key, a node asks at
/// once.
pub const ELECTION_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two questions to the store whether it has fenced this process.
pub const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a node that cannot run the control plane does not try to lead.
pub const LEAD_AGAIN: Duration = Duration::from_secs(2);
/// Maximum time for which a leader continues after its lease's end without an answer of etcd.
/// Another node can lead by then.
pub const UNHELD_MAX: Duration = Duration::from_secs(6);
/// Maximum time that a stopping node waits for its volumes to move to others.
pub const DRAIN_MAX: Duration = Duration::from_secs(60);
/// Maximum time for which the last node that stops closes volumes.
pub const CLOSE_MAX: Duration = Duration::from_secs(30);

/// The state machine of a node's life. See the module's text.
#[derive(Debug)]
pub struct Membership {
    phase: Phase,
    /// The last question that was asked.
    last: Question,
    is_stopped: bool,
}

/// The phase of a node's life.
#[derive(Debug)]
enum Phase {
    Joining(Joining),
    /// The store is being opened and the data plane started. The end is set if it has failed
    /// already.
    Starting(Option<End>),
    Serving(Life),
    /// The data plane and the store are being closed.
    Closing(Closing),
    Exited,
}

/// The state while the node asks etcd for its number.
#[derive(Debug, Default)]
struct Joining {
    /// Time of the next question; `None` while one is open.
    again_at: Option<Duration>,
    was_logged: bool,
}

#[derive(Debug)]
struct Closing {
    end: End,
    is_closed: bool,
    /// The open question, whose answer may be a leadership.
    asked: Option<Question>,
    /// The leadership that is being resigned.
    resigning: Option<Question>,
}

impl Membership {
    /// Creates the state machine of a new process. Returns it with its first actions.
    #[must_use]
    pub fn new() -> (Self, Vec<Action>) {
        let phase = Phase::Joining(Joining::default());
        let membership = Self { phase, last: Question(0), is_stopped: false };
        (membership, vec![Action::Join])
    }

    /// Handles an event. Returns the actions to execute, in order. `now` is the time since an
    /// arbitrary moment; it never decreases.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        if matches!(event, Event::StopRequested) {
            self.is_stopped = true;
        }
        match &mut self.phase {
            Phase::Joining(_) => self.join(event, now, &mut actions),
            Phase::Starting(_) => self.start(event, now, &mut actions),
            Phase::Serving(life) => life.absorb(event, now, &mut actions),
            Phase::Closing(_) => self.close(event, &mut actions),
            Phase::Exited => give_up_unknown(&event, None, &mut actions),
        }
        self.advance(now, &mut actions);
        self.check();
        actions
    }

    /// Returns the time at which [`Event::Time`] is due; `None` if time alone changes nothing.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Joining(joining) => joining.again_at,
            Phase::Serving(life) => life.deadline(),
            Phase::Starting(_) | Phase::Closing(_) | Phase::Exited => None,
        }
    }

    /// Returns the question that won the term in which this node runs the control plane.
    #[must_use]
    pub fn leads(&self) -> Option<Question> {
        match &self.phase {
            Phase::Serving(life) => life.leads(),
            _ => None,
        }
    }

    fn join(&mut self, event: Event, now: Duration, actions: &mut Vec<Action>) {
        let Phase::Joining(joining) = &mut self.phase else { return };
        match event {
            Event::JoinAnswered(answer) if joining.again_at.is_none() => match answer {
                JoinAnswer::Joined if self.is_stopped => self.exit(Exit::Stopped, actions),
                JoinAnswer::Joined => {
                    self.phase = Phase::Starting(None);
                    actions.push(Action::Start);
                }
                JoinAnswer::Refused => self.exit(Exit::Refused, actions),
                JoinAnswer::Unavailable(text) => {
                    if !core::mem::replace(&mut joining.was_logged, true) {
                        actions.push(Action::Log(
                            Level::Warn,
                            format!("waits until etcd answers: {text}"),
                        ));
                    }
                    joining.again_at = Some(now + RETRY);
                }
            },
            other => give_up_unknown(&other, None, actions),
        }
    }

    fn start(&mut self, event: Event, now: Duration, actions: &mut Vec<Action>) {
        let Phase::Starting(end) = &mut self.phase else { return };
        match event {
            Event::StartAnswered(None) => self.exit(Exit::Refused, actions),
            Event::StartAnswered(Some(seen)) => {
                let mut life = Life::new(self.last, seen, end.take(), now);
                if self.is_stopped {
                    life.leave(actions);
                }
                self.phase = Phase::Serving(life);
            }
            Event::Fenced => *end = end.take().or(Some(End::Fenced)),
            Event::DataPlaneFailed(why) => *end = end.take().or(Some(End::Failed(why))),
            other => give_up_unknown(&other, None, actions),
        }
    }

    fn close(&mut self, event: Event, actions: &mut Vec<Action>) {
        let Phase::Closing(closing) = &mut self.phase else { return };
        match event {
            Event::CloseAnswered => closing.is_closed = true,
            Event::ElectionAnswered(question, answer) if closing.asked == Some(question) => {
                closing.asked = None;
                if let Answer::Leads(_) = answer {
                    closing.resigning = Some(question);
                    actions.push(Action::Resign(question));
                }
            }
            Event::ResignAnswered(question) if closing.resigning == Some(question) => {
                closing.resigning = None;
            }
            other => give_up_unknown(&other, closing.resigning, actions),
        }
    }

    /// Performs the steps that are due.
    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Joining(joining) => {
                let is_waiting = joining.again_at.is_some();
                if is_waiting && self.is_stopped {
                    self.exit(Exit::Stopped, actions);
                } else if joining.again_at.is_some_and(|time| now >= time) {
                    joining.again_at = None;
                    actions.push(Action::Join);
                }
            }
            Phase::Serving(life) => {
                life.advance(now, actions);
                self.last = life.last;
                if let Some(end) = life.ended() {
                    let asked = life.asked();
                    actions.push(Action::Close);
                    let closing = Closing { end, is_closed: false, asked, resigning: None };
                    self.phase = Phase::Closing(closing);
                }
            }
            Phase::Closing(closing) => {
                if closing.is_closed && closing.asked.is_none() && closing.resigning.is_none() {
                    match closing.end.clone() {
                        End::Fenced if !self.is_stopped => {
                            let text = "the Ceph cluster has fenced this node: its volumes are \
                                        served elsewhere; it joins again";
                            actions.push(Action::Log(Level::Warn, text.to_owned()));
                            self.phase = Phase::Joining(Joining::default());
                            actions.push(Action::Join);
                        }
                        End::Fenced | End::Stop { .. } => self.exit(Exit::Stopped, actions),
                        End::Failed(why) => self.exit(Exit::Failed(why), actions),
                    }
                }
            }
            Phase::Starting(_) | Phase::Exited => {}
        }
    }

    fn exit(&mut self, exit: Exit, actions: &mut Vec<Action>) {
        self.phase = Phase::Exited;
        actions.push(Action::Exit(exit));
    }

    /// Asserts the invariants in debug builds and tests, after every event.
    fn check(&self) {
        if let Phase::Serving(life) = &self.phase {
            life.check();
        }
        if let Phase::Closing(closing) = &self.phase {
            let is_one = closing.asked.is_none() || closing.resigning.is_none();
            debug_assert!(is_one, "one leadership is won at a time");
        }
    }
}

/// Resigns a leadership that answers no open question. `known` is a leadership that is handled
/// already.
fn give_up_unknown(event: &Event, known: Option<Question>, actions: &mut Vec<Action>) {
    if let Event::ElectionAnswered(question, Answer::Leads(_)) = event
        && known != Some(*question)
    {
        actions.push(Action::Resign(*question));
    }
}
