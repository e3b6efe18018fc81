//! Resources that several volumes share: instances (the client hosts), and devices.
//!
//! A volume with only its own limits is served by the scheduler directly. One with a [`Claim`]
//! passes two more limiters:
//!
//! ```text
//!  classes of a flow ─▶ volume's limiter ─▶ instance's limiter ─▶ device's window ─▶ dispatch
//!    urgent, normal       wheel               ring (DRR)         by tag, by weight
//! ```
//!
//! A *flow* is one attachment of a volume to an instance, with two classes of requests. Only the
//! first request of a flow is ever past the volume's limiter, and nothing is charged until all
//! limiters let it pass: then all at once. So a flow that waits at a limiter can always be sent
//! back, and nothing is ever undone.
//!
//! | file | content |
//! | --- | --- |
//! | `model` | devices, claims and instances as plain numbers |
//! | `flow` | the classes of one attachment |
//! | `instance`, `ring` | the limits of an instance, and the turns of its flows |
//! | `device`, `heap` | reservations before weights |
//! | `window` | the limit of requests in flight, from completions |
//! | `spare` | the part of the window that is kept free for urgent requests |
//! | `division` | the parts of the window among nodes |

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
