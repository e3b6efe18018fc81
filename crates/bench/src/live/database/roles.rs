//! The roles of a scenario's clients in a database.

use super::NS_PER_S;
use crate::databases::Readers;
use crate::live::writer::Writer;
use evenkeel_lab::LabError;
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::program::{Engine, Program, ProgramSetup};
use evenkeel_sim::scenario::setup::{ClientSetup, Load, Setup, Target, Think};

/// Returns the load that a client stands for, and its share of the maximum in percent, if the load
/// is transactions.
pub fn load(client: &ClientSetup) -> Option<(Program, u64)> {
    let ProgramSetup { program, calls, .. } = client.program?;
    program.is_transactions().then_some((program, calls))
}

/// The roles: the volume, and the numbers of the clients.
pub struct Roles {
    pub volume: usize,
    pub program: Program,
    pub engine: Engine,
    pub transactions: usize,
    pub percent: u64,
    /// The limit of the volume, in IOPS, during the measurement of the maximum.
    pub probe_iops: u64,
    pub log: Option<usize>,
    /// In the order of their starts; each ends when the next one begins.
    pub batches: Vec<Batch>,
}

/// A batch job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    pub client: usize,
    pub start_ns: u64,
    stop_ns: u64,
    pub readers: Readers,
}

impl Roles {
    pub fn of(case: &Case) -> Result<Self, LabError> {
        let setup = &case.setup;
        let refuse = |client: &ClientSetup, why: &str| {
            let what = format!("{}: client \"{}\" {why}", case.label, client.name);
            Err(LabError::Unjudgeable(what))
        };
        let mut roles: Option<Self> = None;
        for (number, client) in setup.clients.iter().enumerate() {
            let Some((program, percent)) = load(client) else { continue };
            let (Target::Volume(volume), Load::Open { per_second, .. }, 1..=100, Some(engine)) =
                (client.target, &client.load, percent, program.engine())
            else {
                return refuse(client, "is no database at 1 to 100 % of its maximum on one volume");
            };
            if roles.is_some() {
                return refuse(client, "is a second database");
            }
            roles = Some(Self {
                volume: volume as usize,
                program,
                engine,
                transactions: number,
                percent,
                // The same share applies to the requests: at this limit the client's rate is
                // `percent` of it.
                probe_iops: per_second * 100 / percent,
                log: None,
                batches: Vec::new(),
            });
        }
        let none = || LabError::Unjudgeable(format!("{}: there is no database", case.label));
        let mut roles = roles.ok_or_else(none)?;
        for (number, client) in setup.clients.iter().enumerate() {
            if number == roles.transactions {
                continue;
            }
            let is_there = client.target == setup.clients[roles.transactions].target;
            match (Writer::of(number, setup), Batch::of(number, setup)) {
                (Some(_), _) if is_there && roles.log.is_none() => roles.log = Some(number),
                (None, Some(batch)) if is_there => roles.batches.push(batch),
                _ => return refuse(client, "is neither the database's log nor a batch job on it"),
            }
        }
        roles.batches.sort_by_key(|batch| batch.start_ns);
        match roles.batches.windows(2).find(|pair| pair[0].stop_ns > pair[1].start_ns) {
            None => Ok(roles),
            Some(pair) => {
                refuse(&setup.clients[pair[1].client], "begins before the last batch ends")
            }
        }
    }
}

impl Batch {
    /// Returns the client as a batch of sessions that read one page at a time; `None` if it is
    /// another load.
    fn of(number: usize, setup: &Setup) -> Option<Self> {
        let client = &setup.clients[number];
        let Load::Closed { threads, depth: 1, think: Think::Constant(pause_ns) } = client.load
        else {
            return None;
        };
        if client.shape.read_percent != 100 || client.shape.sequential {
            return None;
        }
        let start_ns = client.start_ns;
        let stop_ns = client.stop_ns.min(setup.duration_ns);
        let length_s = stop_ns.saturating_sub(start_ns).div_ceil(NS_PER_S).max(1);
        let readers = Readers { sessions: threads, pause_us: pause_ns / 1_000, length_s };
        Some(Self { client: number, start_ns, stop_ns, readers })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::case_of;
    use super::*;
    use evenkeel_sim::scenario::catalogue;

    #[test]
    fn every_client_beside_a_database_has_its_role() {
        let text = catalogue::find("batch-beside-oltp-short").unwrap();
        let case = case_of(text, "PostgreSQL on gp2");
        let roles = Roles::of(&case).unwrap();
        assert_eq!((roles.volume, roles.transactions, roles.log), (0, 0, Some(1)));
        assert_eq!((roles.percent, roles.probe_iops), (20, 500), "100 IOPS are a fifth");
        let readers = Readers { sessions: 64, pause_us: 36_000, length_s: 40 };
        let [batch] = roles.batches[..] else { panic!("{:?}", roles.batches) };
        assert_eq!((batch.client, batch.start_ns, batch.readers), (2, 10 * NS_PER_S, readers));
        let whole = case_of(catalogue::find("batch-beside-oltp").unwrap(), "PostgreSQL on io1");
        let starts = Roles::of(&whole).unwrap().batches.into_iter().map(|batch| batch.start_ns);
        assert_eq!(starts.collect::<Vec<_>>(), [60 * NS_PER_S, 360 * NS_PER_S]);
    }

    #[test]
    fn client_that_is_no_part_of_a_database_is_refused() {
        let database = "title = \"t\"\nduration_s = 9\n[[volume]]\nname = \"v\"\niops = 9\n\
                        [[volume]]\nname = \"w\"\niops = 9\n[[client]]\nname = \"c\"\n\
                        on = \"v\"\niops = 3\nprogram = \"pgbench\"\nprogram_calls = 20\n";
        for (more, why) in [
            ("on = \"w\"\nthink_us = 9", "\"o\" is neither the database's log nor a batch job"),
            ("on = \"v\"\niops = 3", "\"o\" is neither the database's log nor a batch job on it"),
            ("on = \"v\"\nthink_us = 9\nread_percent = 50", "\"o\" is neither"),
            (
                "on = \"v\"\nthink_us = 9\n[[client]]\nname = \"p\"\non = \"v\"\nthink_us = 9",
                "\"p\" begins before the last batch ends",
            ),
            (
                "on = \"w\"\niops = 3\nprogram = \"pgbench\"\nprogram_calls = 20",
                "\"o\" is a second database",
            ),
        ] {
            let case = case_of(&format!("{database}[[client]]\nname = \"o\"\n{more}\n"), "");
            let text = Roles::of(&case).err().unwrap().to_string();
            assert!(text.contains(why), "{text}");
        }
    }
}
