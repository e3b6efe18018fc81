//! The approximate duration of a live case, for the progress bar.

use super::{Files, Method, database, files, seconds};
use crate::desktop;
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::setup::{ClientSetup, Load, Setup, Target};

/// Time of a run beside its load, in seconds: starting a server and fio, and reading its log.
const AROUND_A_RUN_S: u64 = 2;
/// Making a file system and taking it down again, in seconds.
const AROUND_FILES_S: u64 = 3;
const NS_PER_S: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;

/// Returns the approximate duration of a live case, in seconds.
#[must_use]
pub fn length_s(case: &Case) -> u64 {
    let setup = &case.setup;
    let sum = |of: fn(&Setup, &ClientSetup) -> u64| -> u64 {
        setup.clients.iter().map(|client| of(setup, client)).sum()
    };
    match Method::of(setup, Files::Mounted) {
        Method::Database => database::length_s(setup),
        Method::Programs => sum(of_program) + AROUND_FILES_S,
        // The passes that are not counted take about half as long again.
        Method::Batches => sum(of_batches) * 3 / 2 + 1,
        Method::Files => files::length_s(setup),
        Method::Requests => u64::from(seconds(setup.duration_ns)) + AROUND_A_RUN_S,
    }
}

fn of_program(setup: &Setup, client: &ClientSetup) -> u64 {
    let Load::Job { ios, .. } = client.load else { return 0 };
    match client.program {
        Some(of) if of.program.is_live_only() => AROUND_FILES_S + desktop::about_s(of),
        _ => ios / rate(setup, client).max(1) + 1,
    }
}

fn of_batches(setup: &Setup, client: &ClientSetup) -> u64 {
    let Load::Job { every_ns, ios, poisson: false, .. } = client.load else { return 0 };
    ios.saturating_mul(setup.duration_ns / every_ns.max(1)) / rate(setup, client).max(1)
}

/// Returns the requests per second that a client can make alone, by the limits of its volume and
/// its link, its device, and its requests under way.
fn rate(setup: &Setup, client: &ClientSetup) -> u64 {
    let (Target::Volume(volume), Load::Job { depth, .. }) = (client.target, &client.load) else {
        return u64::MAX;
    };
    let shape = &client.shape;
    let volume = &setup.volumes[volume as usize];
    let bytes = u64::from(shape.block_bytes.max(1));
    let operations = volume.pacing.operations.map(|limit| limit.per_second);
    let throughput = volume.pacing.bytes.map(|limit| limit.per_second / bytes);
    let link = volume.instance.and_then(|number| setup.instances.get(number as usize)).map(|of| {
        of.iops_max
            .min(of.bytes_per_second_max.saturating_mul(of.efficiency_ppm.into()) / MILLION / bytes)
    });
    let device = &setup.device;
    let time = if shape.read_percent >= 50 { device.read } else { device.write };
    let takes_ns = match device.near_ns.filter(|_| shape.sequential) {
        Some(near_ns) => near_ns + time.ns(shape.block_bytes).saturating_sub(time.ns(0)),
        None => time.ns(shape.block_bytes),
    };
    let at_once = u64::from(*depth).min(device.channels.map_or(u64::MAX, u64::from)).max(1);
    let device = at_once.saturating_mul(NS_PER_S) / takes_ns.max(1);
    [operations, throughput, link].into_iter().flatten().fold(device, u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim::scenario::{Source, read};

    fn case(volume: &str, client: &str) -> Case {
        let text = format!(
            "title = \"t\"\nduration_s = 100\n[device]\nchannels = 3\nread_us = 6_000\n\
             write_us = 3_000\n[[instance]]\nname = \"host\"\nmbps = 80\n[[volume]]\n\
             name = \"v\"\nsize_gib = 100\n{volume}\n[[client]]\non = \"v\"\nprogram_calls = 512\n\
             {client}\njob_every_s = 100\n"
        );
        read(&Source::new("s.toml", &text)).unwrap().cases.remove(0)
    }

    #[test]
    fn length_of_a_program_follows_its_tightest_limit() {
        let writes = |kib: u32, depth: u32| {
            format!(
                "program = \"iozone-write\"\nread_percent = 0\nblock_kib = {kib}\n\
                 depth = {depth}\njob_ios = 10_000"
            )
        };
        for (volume, client, expected_s) in [
            ("type = \"io1\"\niops = 100", writes(4, 8), 100),
            ("instance = \"host\"", writes(128, 8), 131),
            ("", writes(4, 1), 30),
            ("", writes(4, 8), 10),
        ] {
            let found_s = length_s(&case(volume, &client)) - AROUND_FILES_S - 1;
            assert!(found_s.abs_diff(expected_s) <= 1, "{found_s} s: {volume} {client}");
        }
    }

    #[test]
    fn length_of_a_client_bound_program_is_its_own() {
        let of = |program: &str, calls: &str| {
            length_s(&case(
                "type = \"io1\"\niops = 100",
                &format!("program = \"{program}\"\n{calls}\njob_ios = 9"),
            ))
        };
        assert!((600..620).contains(&of("dbench", "program_s = 600")));
        assert!((5..20).contains(&of("gzip", "")));
    }
}
