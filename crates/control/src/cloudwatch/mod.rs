//! CloudWatch's actions for volumes, and the thread that samples the metrics which they read
//! ([`evenkeel_telemetry::cloudwatch`]).
//!
//! | module | contents |
//! | --- | --- |
//! | `sampling` | the thread that samples the data plane |
//! | [`actions`] | ListMetrics, GetMetricData, GetMetricStatistics, DescribeAlarms |
//! | `plan` | the queries of a GetMetricData, checked against each other; pure |
//! | `input` | the parameters of an action |
//! | [`forms`] | requests and replies in the three protocols: JSON, CBOR, query |
//! | `value` | the values of all three |
//! | `cbor` | its bytes in CBOR |

pub mod actions;
mod cbor;
pub mod forms;
mod input;
mod plan;
mod sampling;
mod value;

pub use self::sampling::Sampling;
