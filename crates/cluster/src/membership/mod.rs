//! The life of a node as a state machine: joining, electing, leading, being fenced, leaving.
//!
//! It has no thread, clock or I/O. [`Membership::handle`] takes an event and the time and returns
//! actions. A shell executes them and reports their outcome as further events. Every question has
//! at most one answer that counts: repeated, late and unknown answers change nothing, except that a
//! leadership which is won too late is given up again.
//!
//! ```text
//!             +--------------------------- fenced -----------------------------+
//!             v                                                                |
//! joining -> starting -> serving: follows <-> leads -> end of the term -> closing -> exit
//! ```
//!
//! What holds:
//!
//! - At most one question to the election and one term are open. A term ends before the next
//!   question is asked.
//! - A leader that has not heard of its lease ends its term [`UNHELD_MAX`] after the lease's end at
//!   the latest.
//! - After [`Event::Fenced`] nothing is served, led or relayed until the node has closed what it
//!   served and has joined again.
//! - A leadership that is not lost is resigned before the machine exits, and the node's presence in
//!   etcd ends with [`Action::Close`], after the data plane is closed.

mod events;
mod life;
#[cfg(test)]
mod tests;

use core::time::Duration;

pub use events::{Action, Answer, Asked, Event, Exit, JoinAnswer, Lease, Level, Question, Seen};
use life::{End, Life};

/// How long a node waits before it asks etcd again that has not answered.
pub const RETRY: Duration = Duration::from_millis(100);
/// Time between two questions about the leader. A change of the leader's key asks at once.
pub const ELECTION_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two questions to the store whether it has fenced this process.
pub const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a node that cannot run the control plane leaves that to others.
pub const LEAD_AGAIN: Duration = Duration::from_secs(2);
/// How long a leader continues after its lease's end without an answer. Others lead by then.
pub const UNHELD_MAX: Duration = Duration::from_secs(6);
/// How long a node that is to stop waits for its volumes to move to others.
pub const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long the last node that stops closes volumes.
pub const CLOSE_MAX: Duration = Duration::from_secs(30);

/// A node's life. See the module's text.
#[derive(Debug)]
pub struct Membership {
    phase: Phase,
    /// The last question that was asked.
    last: Question,
    is_stopped: bool,
}

/// Where the node is in its life.
#[derive(Debug)]
enum Phase {
    Joining(Joining),
    /// The store is being opened and the data plane started; it may have failed already.
    Starting(Option<End>),
    Serving(Life),
    /// What the node served is being closed.
    Closing(Closing),
    Exited,
}

/// Asking etcd for the node's number.
#[derive(Debug, Default)]
struct Joining {
    /// When to ask again; `None` while a question is open.
    again_at: Option<Duration>,
    was_logged: bool,
}

#[derive(Debug)]
struct Closing {
    end: End,
    is_closed: bool,
    /// A question that is still open: its answer may be a leadership.
    asked: Option<Question>,
    /// A leadership that is being given up.
    resigning: Option<Question>,
}

impl Membership {
    /// The life of a process that begins now, and its first actions.
    #[must_use]
    pub fn new() -> (Self, Vec<Action>) {
        let phase = Phase::Joining(Joining::default());
        let membership = Self { phase, last: Question(0), is_stopped: false };
        (membership, vec![Action::Join])
    }

    /// Takes an event in and returns what is to be done, in order. `now` is the time since an
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

    /// When [`Event::Time`] is due; `None` if only other events can change anything.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Joining(joining) => joining.again_at,
            Phase::Serving(life) => life.deadline(),
            Phase::Starting(_) | Phase::Closing(_) | Phase::Exited => None,
        }
    }

    /// The question that won the term in which this node runs the control plane.
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

    /// Does what is due by now.
    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Joining(joining) => {
                let is_waiting = joining.again_at.is_some();
                if is_waiting && self.is_stopped {
                    self.exit(Exit::Stopped, actions);
                } else if joining.again_at.is_some_and(|at| now >= at) {
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

/// Gives up a leadership that no question waits for. `known` is one that is dealt with already.
fn give_up_unknown(event: &Event, known: Option<Question>, actions: &mut Vec<Action>) {
    if let Event::ElectionAnswered(question, Answer::Leads(_)) = event
        && known != Some(*question)
    {
        actions.push(Action::Resign(*question));
    }
}
