//! The definition is sound, and what people read of it stays as it is.

use super::*;

fn error(line: &str) -> String {
    command().try_get_matches_from(line.split(' ')).unwrap_err().to_string()
}

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

#[test]
fn a_share_is_in_percent_and_no_more_than_ten() {
    for (text, ppm) in [("0", 0), ("4", 40_000), ("3.7%", 37_000), (" 10 %", 100_000)] {
        assert_eq!(super::percent_ppm(text), Ok(ppm), "{text}");
    }
    for text in ["", "much", "nan", "-1", "10.1", "inf"] {
        assert!(super::percent_ppm(text).is_err(), "{text}");
    }
}

#[test]
fn an_amount_of_a_quota_is_named_with_its_limits() {
    assert_eq!("iops=4294967295".parse(), Ok(Quota::Iops(u32::MAX)));
    for (text, expected) in [
        ("iops=-1", "iops is '-1'; it must be a whole number from 0 to 4294967295"),
        ("iops=4294967296", "iops is '4294967296'; it must be a whole number from 0 to 4294967295"),
        ("throughput=", "throughput is ''; it must be a whole number from 0 to 4294967295"),
        ("size=x", "size is 'x': unit x is not GiB or TiB"),
        ("size=4194304TiB", "size is '4194304TiB': more than 4,294,967,295 GiB"),
    ] {
        assert_eq!(text.parse::<Quota>(), Err(expected.to_owned()));
    }
}

#[test]
fn the_first_screen() {
    let help = command().term_width(100).render_help().to_string();
    assert_eq!(help, include_str!("first_screen.txt"));
}

/// Every flag says what it is for; a setting's variable is named after its flag.
#[test]
fn every_flag_is_documented_and_every_variable_is_named_after_its_flag() {
    fn check(command: &clap::Command) {
        for argument in command.get_arguments() {
            let id = argument.get_id();
            assert!(argument.get_help().is_some(), "{} {id}: no help", command.get_name());
            if let (Some(env), Some(long)) = (argument.get_env(), argument.get_long()) {
                let expected = match long {
                    "report" => "EVENKEEL_DEMO_REPORT".to_owned(),
                    long => format!("EVENKEEL_{}", long.to_uppercase().replace('-', "_")),
                };
                assert_eq!(env.to_str().unwrap(), expected);
            }
        }
        command.get_subcommands().for_each(check);
    }
    check(&command());
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let first = |line| error(line).lines().next().unwrap().to_owned();
    assert_eq!(
        first("evenkeel volume show vol-1"),
        "error: invalid value 'vol-1' for '<VOLUME>': \
         expected vol- and 17 lower-case hexadecimal digits"
    );
    assert_eq!(
        first("evenkeel volume create --size 10GB"),
        "error: invalid value '10GB' for '--size <SIZE>': unit GB is not GiB or TiB"
    );
    assert_eq!(
        first("evenkeel volume create --size 10 --type gp4"),
        "error: invalid value 'gp4' for '--type <TYPE>': \
         expected standard, st1, sc1, gp2, gp3, io1 or io2"
    );
    assert_eq!(
        first("evenkeel volume create --size 10 --wait --timeout 2w"),
        "error: invalid value '2w' for '--timeout <TIME>': unit w is not s, m, h or d"
    );
    assert!(error("evenkeel volumes ls").contains("a similar subcommand exists: 'volume'"));
}

#[test]
fn sizes_and_spans_have_units() {
    assert_eq!(size_gib("100"), Ok(100));
    assert_eq!(size_gib("2TiB"), Ok(2_048));
    assert!(size_gib("4194304TiB").is_err());
    assert!(size_gib("-1").is_err() && size_gib("").is_err() && size_gib("é").is_err());
    assert_eq!(span("90"), Ok(Duration::from_secs(90)));
    assert_eq!(span("5m"), Ok(Duration::from_secs(300)));
    assert!(span("m").is_err() && span("1.5h").is_err());
}
