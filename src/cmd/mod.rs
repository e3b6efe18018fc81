//! One file a verb.

use crate::cli::{BenchVerb, Cli, Verb};
use crate::message::Failure;

mod bench;
mod demo;
mod doctor;
mod env;
mod host;
mod limits;
mod man;
mod serve;
mod volume;

/// Carries out what the command line says.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.verb {
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::Demo(arguments) => demo::run(&arguments),
        Verb::Env(arguments) => env::run(&arguments),
        Verb::Volume(arguments) => volume::run(&arguments),
        Verb::Host(arguments) => host::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Bench(arguments) => match arguments.verb {
            BenchVerb::Nbd(arguments) => bench::nbd(&arguments),
            BenchVerb::Limits(arguments) => limits::run(&arguments),
            BenchVerb::Export(arguments) => bench::export(&arguments),
        },
        Verb::Completions(arguments) => man::completions(&arguments),
        Verb::Man(arguments) => man::run(&arguments),
    }
}
