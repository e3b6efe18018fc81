//! A running server: its store, data plane and control plane together.
//!
//! [`run`] gets a [`Config`] and blocks until shutdown. A server either serves alone, or is a node
//! of a [`cluster`]. The programs read the flags, and this crate knows no verb.
//!
//! | module | contents |
//! | --- | --- |
//! | `server` | [`Config`] and [`run`]: the order in which the parts start and stop |
//! | [`cluster`] | the life of a node: it joins, follows, leads and leaves |
//! | [`calibration`] | measurements of the store, their record, and its use at each start |
//! | [`store_options`] | where a store is, and its keys |
//! | [`doctor`] | checks of the machine, the data folder and the running server, with remedies |
//! | [`events`] | posts of events to webhooks, over HTTP |
//! | [`accounts`] | numbers of users and groups by their names |
//! | `faults` | injected faults of I/O, from the control plane to the store |
//! | `private_file` | files with secrets, refused if other users can use them |
//! | `certificates` | certificates that are read again, and warnings before they expire |
//! | [`transport`] | TLS of the listeners, and which of them may be without |
//! | `takeover_watch` | ends a server whose store another one has taken over |
//! | `watchdog` | reports to the service manager while the server works |
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod accounts;
pub mod calibration;
mod certificates;
pub mod cluster;
pub mod doctor;
pub mod events;
mod faults;
mod private_file;
mod server;
pub mod store_options;
mod takeover_watch;
pub mod transport;
mod watchdog;

pub use server::{Addresses, Config, cores, open_pool, run};
