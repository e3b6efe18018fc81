//! The grammar of AWS query APIs: parameters, XML replies, SigV4 signatures.
//!
//! No EC2 action is defined here. [`query`] reads and writes form parameters, [`sigv4`] signs and
//! verifies requests, [`xml`] reads and writes documents, [`timestamp`] has AWS's two forms of a
//! time.

mod percent;
pub mod query;
pub mod sigv4;
pub mod timestamp;
pub mod xml;
