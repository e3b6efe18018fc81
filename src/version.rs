//! The text of `evenkeel --version`. build.rs sets what it names.

/// The version, the commit, its date, the build, and the features.
///
/// No feature of Cargo changes the program: it always has all of them, and loads librbd when a
/// store needs it.
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("EVENKEEL_BUILD_COMMIT"),
    "\ndate: ",
    env!("EVENKEEL_BUILD_DATE"),
    "\nbuild: ",
    env!("EVENKEEL_BUILD_PROFILE"),
    ", ",
    env!("EVENKEEL_BUILD_TARGET"),
    ", ",
    env!("EVENKEEL_BUILD_COMPILER"),
    "\nfeatures: io_uring, pread; stores local (AES-256-XTS with a key), rbd (with librbd), memory"
);
