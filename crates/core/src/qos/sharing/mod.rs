//! What several volumes share: instances (the client hosts), and devices.
//!
//! A volume that is held by its own limits alone is served by the scheduler directly. One with a
//! [`Claim`] passes two more limiters:
//!
//! ```text
//!  classes of a flow ─▶ volume's limiter ─▶ instance's limiter ─▶ device's window ─▶ dispatch
//!    urgent, normal       wheel               ring (DRR)         by tag, by weight
//! ```
//!
//! A *flow* is one attachment of a volume to an instance, with two classes of requests. Only the
//! first request of a flow is ever past the volume's limiter, and nothing is charged until all
//! limiters let it pass: then all at once. So a flow that waits at a limiter can always be sent
//! back, and nothing is ever rewound.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `model` | devices, claims and instances as plain numbers |
//! | `flow` | the classes of one attachment |
//! | `instance`, `ring` | the limits of an instance and whose turn it is |
//! | `device`, `heap` | reservations before weights |
//! | `window` | what may be in flight, learnt from completions |
//! | `spare` | how much of the window is kept free for urgent requests |
//! | `division` | which part of the window is which node's |

pub(crate) mod device;
pub mod division;
pub(crate) mod flow;
mod heap;
pub(crate) mod instance;
pub mod model;
pub(crate) mod ring;
mod spare;
mod window;

pub use device::{DeviceCounters, DispatchReason, URGENT_RECENT};
pub use instance::InstanceCounters;
pub use model::{Claim, DeviceModel, DeviceOthers, InstancePacing, OperationCost, Window};
