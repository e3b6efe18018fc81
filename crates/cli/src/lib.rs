//! Code of both programs, `evenkeel` and `evenkeel-bench`, and the values of a server's flags.
//!
//! [`flags`], [`store`], [`tls`], [`etcd`] and [`calibrate`] are flags with their values, [`man`]
//! and [`mod@reference`] the texts that are generated from the definition of a program. [`config`]
//! reads the configuration file. [`connect`] and [`endpoint`] find a server and its keys, and
//! [`top`] shows the load of its volumes on a terminal. [`log`] sets the log up, and [`signals`]
//! ends a program and the programs that it has started. [`service`] notifies a service manager.
//! [`runs`] has the folders of measurements, [`verdict`] the exit codes of their outcomes, and
//! [`exit`] those of programs.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod config;
pub mod connect;
pub mod endpoint;
pub mod etcd;
pub mod exit;
pub mod flags;
pub mod log;
pub mod man;
pub mod reference;
pub mod runs;
pub mod service;
pub mod signals;
pub mod store;
pub mod tls;
pub mod top;
pub mod verdict;
