//! The grammar of AWS query APIs: parameters, XML replies, SigV4 signatures.
//!
//! No EC2 action is defined here. [`query`] reads and writes form parameters, [`sigv4`] signs and
//! verifies requests, [`xml`] reads and writes documents, [`timestamp`] has AWS's two forms of a
//! time, [`checksum`] the checksums of the EBS direct APIs, and [`signed_token`] makes tokens that
//! only their server can make.

pub mod checksum;
mod percent;
pub mod query;
pub mod signed_token;
pub mod sigv4;
pub mod timestamp;
pub mod xml;
