//! Values of flags of a calibration.

use clap::ValueEnum;
use std::fmt;

/// When a server calibrates its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CalibrateWhen {
    /// At the first start on a data folder, for three seconds, and if the record there is of
    /// another store or device.
    FirstStart,
    /// Never; a matching record is used if there is one.
    Never,
}

/// State in which a pool is to be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum As {
    /// All devices serve. What is measured is the base of what may be sold.
    Healthy,
    /// The devices of the largest failure domain are stopped, and nothing is copied elsewhere yet.
    Degraded,
    /// Copies are being made.
    Recovering,
}

impl fmt::Display for As {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Recovering => "recovering",
        })
    }
}
