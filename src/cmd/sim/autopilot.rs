//! `evenkeel sim autopilot`: years of file systems under the autopilot, in virtual time.

use crate::cli::SimAutopilot;
use evenkeel_autopilot::world::{self, Generator, Options, Plan, Row};
use evenkeel_client::output::{self, Exit, Failure, Format};
use evenkeel_lab::files;
use evenkeel_planner::autopilot::policy::{Mode, Policy, PolicyFile};
use evenkeel_planner::fleet;
use evenkeel_sim::text::{command_line, thousands};
use std::path::Path;

/// Worlds that failed and are printed.
const FAILED_MAX: usize = 10;
/// Sentences of a world that failed.
const REASONS_MAX: usize = 3;

/// Runs the verb.
pub fn run(arguments: &SimAutopilot, format: Format) -> Result<(), Failure> {
    let policy = policy(arguments.policy.as_deref())?;
    let generators = match arguments.generator.as_slice() {
        [] => Generator::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    if let Some(path) = &arguments.audit {
        write_audit(arguments, &generators, &policy, path)?;
    }
    let options = Options {
        generators,
        seed: arguments.seed,
        worlds: arguments.worlds,
        years: arguments.years,
        faults: arguments.faults,
        compares: arguments.compare,
        policy,
    };
    let report = world::report(&options, &mut |_, _| {});
    let rows = &report.rows;
    output::print(&output::listing(rows, format, "no worlds"))?;
    let others = world::others(rows);
    if format == Format::Text && !others.is_empty() {
        output::print(&format!("\n{others}"))?;
    }
    tell(&options, rows);
    if report.failed.is_empty() {
        return Ok(());
    }
    for failed in report.failed.iter().take(FAILED_MAX) {
        eprintln!("{} with seed {}:", failed.generator, failed.seed);
        for reason in failed.reasons.iter().take(REASONS_MAX) {
            eprintln!("  {reason}");
        }
        eprintln!("  again: {}", again(arguments, failed.generator, failed.seed));
    }
    let full: u64 = rows.iter().map(|row| row.full_events).sum();
    let broken: u64 = rows.iter().map(|row| row.violations).sum();
    Err(Failure::new(format!("{full} full events, and {broken} rules that did not hold")))
}

/// Reads the first group of a policy file. The simulation carries its decisions out.
fn policy(path: Option<&Path>) -> Result<Policy, Failure> {
    let plan = fleet::Policy::usual();
    let policy = match path {
        None => Policy::usual("world", plan),
        Some(path) => {
            let name = path.display();
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("{name}: {error}")).exit(Exit::Input))?;
            let file = PolicyFile::parse(&text, &plan)
                .map_err(|error| Failure::new(format!("{name}: {error}")).exit(Exit::Usage))?;
            let first = file.groups.into_iter().next();
            first
                .ok_or_else(|| Failure::new(format!("{name}: it has no group")).exit(Exit::Usage))?
        }
    };
    Ok(Policy { mode: Mode::Act, ..policy })
}

/// Writes the audit of one world.
fn write_audit(
    arguments: &SimAutopilot,
    generators: &[Generator],
    policy: &Policy,
    path: &Path,
) -> Result<(), Failure> {
    let [generator] = generators else {
        let failure = Failure::new("--audit: it is written for one world").exit(Exit::Usage);
        return Err(failure.hint("name its generator: --generator imports --worlds 1"));
    };
    if arguments.worlds != 1 {
        let failure = Failure::new(format!(
            "--audit: it is written for one world, and --worlds is {}",
            arguments.worlds
        ));
        return Err(failure.exit(Exit::Usage).hint("add --worlds 1"));
    }
    let outcome = world::run(&Plan {
        generator: *generator,
        seed: arguments.seed,
        years: arguments.years,
        faults: arguments.faults,
        policy: policy.clone(),
        every_minute: arguments.every_minute,
        keeps_audit: true,
    });
    let mut text = outcome.audit.join("\n");
    text.push('\n');
    files::write(path, &text)?;
    eprintln!("audit: {} lines in {}", outcome.audit.len(), path.display());
    Ok(())
}

fn again(arguments: &SimAutopilot, generator: &str, seed: u64) -> String {
    let seed = seed.to_string();
    let years = arguments.years.to_string();
    let mut words = vec!["evenkeel", "sim", "autopilot", "--generator", generator];
    words.extend(["--seed", &seed, "--worlds", "1", "--years", &years]);
    if arguments.faults {
        words.push("--faults");
    }
    let policy = arguments.policy.as_ref().map(|path| path.display().to_string());
    if let Some(policy) = &policy {
        words.extend(["--policy", policy]);
    }
    words.extend(["--audit", "audit.jsonl"]);
    command_line(&words)
}

/// Prints the sums to standard error.
fn tell(options: &Options, rows: &[Row]) {
    let years: u64 = rows.iter().map(|row| row.years).sum();
    let checks: u64 = rows.iter().map(|row| row.checks).sum();
    let ticks: u64 = rows.iter().map(|row| row.ticks).sum();
    let undos: u64 = rows.iter().map(|row| row.undos.executed).sum();
    let no_room: u64 = rows.iter().map(|row| row.undos.no_room).sum();
    let advised: u64 = rows.iter().map(|row| row.undos.advised).sum();
    let lowered: u64 = rows.iter().map(|row| row.lowered).sum();
    let raised_back: u64 = rows.iter().map(|row| row.raised_back).sum();
    let faults = if options.faults { "with faults" } else { "without faults" };
    eprintln!(
        "{} years {faults}, {} ticks of the agent, {} checks of rules",
        thousands(years),
        thousands(ticks),
        thousands(checks)
    );
    eprintln!(
        "{} printed undos executed, {} refused for want of room, {} that are only an advice",
        thousands(undos),
        thousands(no_room),
        thousands(advised)
    );
    eprintln!(
        "{} lower limits after a replay, {} of them taken back since requests waited",
        thousands(lowered),
        thousands(raised_back)
    );
}
