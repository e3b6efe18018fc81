//! `evenkeel bench`: the published figures, each with the command that finds it again.

mod idle;
mod instance;
mod isolation;
mod limits;
mod nbd;
mod replay;
mod reservation;
mod served;

use crate::cli::BenchVerb;
use crate::message::Failure;

pub fn run(verb: &BenchVerb) -> Result<(), Failure> {
    match verb {
        BenchVerb::Nbd(arguments) => nbd::nbd(arguments),
        BenchVerb::Limits(arguments) => limits::run(arguments),
        BenchVerb::Isolation(arguments) => isolation::run(arguments),
        BenchVerb::Reservation(arguments) => reservation::run(arguments),
        BenchVerb::Instance(arguments) => instance::run(arguments),
        BenchVerb::Idle(arguments) => idle::run(arguments),
        BenchVerb::Replay(arguments) => replay::run(arguments),
        BenchVerb::Export(arguments) => nbd::export(arguments),
    }
}

/// The libraries' errors name the thing, the value and the next step themselves.
fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}
