//! The grammar of AWS query APIs: parameters in, XML out, SigV4 signatures around them.
//!
//! It knows no EC2 action. [`query`] reads and writes form parameters, [`sigv4`] signs and verifies
//! requests, [`xml`] reads and writes documents, [`timestamp`] the two ways AWS spells a time.

mod percent;
pub mod query;
pub mod sigv4;
pub mod timestamp;
pub mod xml;
