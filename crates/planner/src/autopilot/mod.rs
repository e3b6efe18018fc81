//! The policy of the autopilot: changes of the volumes below a file system, with brakes.
//!
//! Pure, as the rest of the crate. An [`Observation`] has all that is known of one file system and
//! its volumes at one moment. [`decide()`] is given it with the [`State`] of earlier decisions and
//! the [`Policy`] of the group, and returns a [`Decision`]: intents, or the brakes that prevent
//! them. An intent is an [`Operation`]; [`next_step`] compares its goal with a later observation
//! and returns the one call or verb that is due. Neither relies on what an executor believes that
//! it did: after a crash, the executor observes again and asks for the next step.
//!
//! The agent (crate `autopilot`) executes steps on a real host, and its simulated world executes
//! the same steps in virtual time.

pub mod decide;
pub mod evidence;
pub mod observation;
pub mod operation;
pub mod page;
pub mod policy;
mod spec_form;
pub mod state;

pub use decide::{Brake, Decision, Forecast, Intent, decide};
pub use evidence::Evidence;
pub use observation::Observation;
pub use operation::{Call, Operation, Step, Verb, next_step};
pub use policy::{Mode, Policy, PolicyFile};
pub use state::State;
