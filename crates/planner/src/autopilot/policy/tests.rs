//! Tests of reading policies.

use super::*;

fn parse(text: &str) -> Result<PolicyFile, Malformed> {
    PolicyFile::parse(text, &fleet::Policy::usual())
}

fn error(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

/// Returns everything of a file except the rules of the plan, and its headroom.
fn shown(file: &PolicyFile) -> String {
    let group = |policy: &Policy| {
        let Policy {
            name, tags, mode, day_s, space, rate, budget, brakes, windows, schedules, ..
        } = policy;
        let plan = (policy.plan.headroom_percent, policy.plan.less_durable, &policy.plan.types);
        format!(
            "{name} {tags:?} {mode:?} {day_s} {space:?} {rate:?} {budget:?} {brakes:?} {windows:?} \
             {schedules:?} {plan:?}"
        )
    };
    let groups: Vec<String> = file.groups.iter().map(group).collect();
    format!("{} {groups:?}", file.paused)
}

#[test]
fn usual_text_has_the_defaults() {
    let file = parse(PolicyFile::usual_text()).unwrap();
    let [group] = file.groups.as_slice() else { panic!("one group") };
    assert_eq!(group.space, Space::default());
    assert_eq!(group.rate, Rate::default());
    assert_eq!(group.budget, Budget::default());
    assert_eq!(group.brakes, Brakes::default());
    assert!(!file.paused && !group.is_paused && group.mode == Mode::Observe);
    assert!(group.tags.is_empty() && group.windows.is_empty() && group.schedules.is_empty());
    assert_eq!(shown(&file), shown(&parse("[[group]]\nname = \"default\"").unwrap()));
}

#[test]
fn server_text_differs_in_two_keys() {
    let text = PolicyFile::server_text();
    let file = parse(&text).unwrap();
    let [group] = file.groups.as_slice() else { panic!("one group") };
    let space = Space { grows_volumes: false, actuation_s: 10, ..Space::default() };
    assert_eq!(group.space, space);
    let lines = PolicyFile::usual_text().lines().zip(text.lines());
    assert_eq!(lines.filter(|(usual, own)| usual != own).count(), 4, "{text}");
    assert_eq!(text.lines().count(), PolicyFile::usual_text().lines().count());
    let mut usual = parse(PolicyFile::usual_text()).unwrap();
    usual.groups[0].space = space;
    assert_eq!(shown(&file), shown(&usual));
}

/// Each key of the text has an effect: another number there is another policy.
#[test]
fn usual_text_has_only_keys_with_an_effect() {
    let text = PolicyFile::usual_text();
    let usual = shown(&parse(text).unwrap());
    let mut changed = 0;
    for (number, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(" = ") else { continue };
        let is_comment = key.starts_with('#');
        let end = value.find("  ").unwrap_or(value.len());
        let Ok(value) = value[..end].trim().parse::<u64>() else { continue };
        if is_comment {
            continue;
        }
        let other = if value > 1 { value - 1 } else { value + 1 };
        let lines = text.lines().enumerate();
        let lines = lines.map(|(at, line)| {
            if at == number { format!("{key} = {other}\n") } else { format!("{line}\n") }
        });
        let file = parse(&lines.collect::<String>()).unwrap();
        assert_ne!(shown(&file), usual, "{key}");
        changed += 1;
    }
    assert_eq!(changed, 39);
}

#[test]
fn days_of_a_trial_are_shorter() {
    let file = parse("[autopilot]\nday_s = 30\n[[group]]\nname = \"a\"").unwrap();
    let trial = &file.groups[0];
    assert_eq!((trial.day_ms(), trial.hour_ms()), (30_000, 1_250));
    assert!(!trial.has_whole_days());
    let usual = Policy::usual("a", fleet::Policy::usual());
    assert_eq!((usual.day_ms(), usual.hour_ms()), (86_400_000, 3_600_000));
    assert!(usual.has_whole_days());
    let text = error("[autopilot]\nday_s = 9\n[[group]]\nname = \"a\"");
    let expected = "line 2: day_s = 9 in [autopilot]: expected a whole number from 10 to 86400";
    assert_eq!(text, expected);
}

/// The examples in comments are valid, too.
#[test]
fn usual_text_has_valid_examples() {
    let is_example = |line: &str| {
        let rest = line.strip_prefix("# ").unwrap_or_default();
        rest.starts_with("[[") || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
    };
    let uncommented: String = PolicyFile::usual_text()
        .lines()
        .map(|line| if is_example(line) { &line[2..] } else { line })
        .map(|line| format!("{line}\n"))
        .collect();
    let file = parse(&uncommented).unwrap();
    let group = &file.groups[0];
    assert_eq!(group.tags.get("Team").map(String::as_str), Some("payments"));
    assert_eq!(group.budget.monthly_micro_max, Some(500_000_000));
    assert_eq!(group.budget.fleet_monthly_micro_max, Some(10_000_000_000));
    assert_eq!(group.plan.types.len(), 2);
    assert_eq!(group.windows, [Window { days: 0b001_1111, from_minute: 60, minutes: 240 }]);
    let [schedule] = group.schedules.as_slice() else { panic!("one schedule") };
    assert_eq!(schedule.window, Window { days: 0b001_1111, from_minute: 1_200, minutes: 210 });
    assert_eq!(
        (schedule.iops_min, schedule.mibps_min, schedule.gib_min),
        (Some(12_000), Some(500), Some(500))
    );
}

#[test]
fn parse_names_the_line_the_key_the_value_and_the_limit() {
    let group = "[[group]]\nname = \"a\"\n";
    for (rest, expected) in [
        (
            "[group.space]\ngrow_percent = 0",
            "line 4: grow_percent = 0 in [group.space]: expected a whole number from 1 to 100",
        ),
        (
            "[group.budget]\nmonthly_max = 12.3456789",
            "line 4: monthly_max = 12.3456789 in [group.budget]: expected a number from 0 to \
             1000000000 with at most 6 decimals, such as 1.5",
        ),
        (
            "mode = \"acting\"",
            "line 3: mode = \"acting\" in [[group]]: expected \"observe\", \"advise\" or \"act\"",
        ),
        (
            "[group.space]\nkeep = 3",
            "line 4: keep = 3 in [group.space]: expected \"hard\" or \"likely\"",
        ),
        (
            "[group.rate]\nmanaged = \"yes\"",
            "line 4: managed = \"yes\" in [group.rate]: expected true or false",
        ),
        (
            "[group.rate]\ntypes = [\"gp4\"]",
            "line 4: types = [\"gp4\"] in [group.rate]: expected a list of standard, st1, sc1, \
             gp2, gp3, io1, io2",
        ),
        (
            "[[group.window]]\ndays = \"mon-fry\"\nfrom = \"01:00\"\nto = \"05:00\"",
            "line 4: days = \"mon-fry\" in [[group.window]]: expected days of the week, as \
             \"mon-fri\", \"sat,sun\" or \"daily\"",
        ),
        (
            "[[group.window]]\ndays = \"mon\"\nfrom = \"24:00\"\nto = \"05:00\"",
            "line 5: from = \"24:00\" in [[group.window]]: expected a time from \"00:00\" to \
             \"23:59\"",
        ),
        (
            "[[group.window]]\ndays = \"mon\"\nfrom = \"01:00\"\nto = \"01:00\"",
            "line 3: it begins and ends at the same time: write `to = \"24:00\"` for the end of \
             the day",
        ),
        (
            "[[group.schedule]]\ndays = \"mon\"\nfrom = \"01:00\"\nto = \"02:00\"",
            "line 3: [[group.schedule]] has no limit: add iops_min, mibps_min or gib_min",
        ),
        (
            "[group.space]\ngib_min = 20\ngib_max = 10",
            "line 3: gib_min = 20 in [group.space] is more than gib_max = 10",
        ),
        (
            "[group.budget]\nkept_for_undo = 3",
            "line 3: kept_for_undo and kept_for_emergency in [group.budget] are 4 together: \
             expected less than modifications_per_day = 4",
        ),
        ("[[group]]\nname = \"a\"", "line 3: two groups have the name \"a\": rename one"),
        ("[[group]]", "line 3: [[group]] has no name: add a name for the group"),
    ] {
        assert_eq!(error(&format!("{group}{rest}\n")), expected);
    }
    assert_eq!(error(""), "it has no [[group]]: add one");
    let long = "#".repeat(POLICY_BYTES_MAX + 1);
    assert!(error(&long).starts_with("the policy has 1048577 bytes, of at most 1048576"));
    assert!(error("a = ").starts_with("line 1: "));
}

#[test]
fn parse_refuses_keys_that_contradict_each_other() {
    for (rest, expected) in [
        (
            "[group.budget]\nmonthly_max = 500\ngroup_monthly_max = 1.5",
            "line 3: group_monthly_max = 1.50 in [group.budget] is less than monthly_max = \
             500.00, which is of one file system",
        ),
        (
            "[group.rate]\nexceeded_s_max = 900",
            "line 3: exceeded_s_max = 900 in [group.rate]: expected less than window_s = 900, or \
             limits never rise; managed = false leaves them as they are",
        ),
        (
            "[[group.schedule]]\ndays = \"mon\"\nfrom = \"01:00\"\nto = \"02:00\"\n\
             gib_min = 16385",
            "line 3: gib_min = 16385 in [[group.schedule]] is more than gib_max = 16384 in \
             [group.space]",
        ),
    ] {
        assert_eq!(error(&format!("[[group]]\nname = \"a\"\n{rest}\n")), expected);
    }
}

#[test]
fn parse_suggests_a_key_that_is_near() {
    let error = error("[[group]]\nname = \"a\"\n[group.space]\ngrow_precent = 3\n");
    let start = "line 4: unknown key \"grow_precent\" in [group.space]: did you mean \
                 grow_percent?; the keys are managed, grow_volumes, keep, ";
    assert!(error.starts_with(start), "{error}");
    let error = super::tests::error("[autopilot]\nzzzzzz = 1\n");
    assert_eq!(
        error,
        "line 2: unknown key \"zzzzzz\" in [autopilot]; the keys are paused, day_s, \
         fleet_monthly_max, fleet_percent_per_hour_max"
    );
}

#[test]
fn parse_reads_days_and_times() {
    let window = |days: &str, from: &str, to: &str| {
        let text = format!(
            "[[group]]\nname = \"a\"\n[[group.window]]\ndays = \"{days}\"\nfrom = \"{from}\"\nto = \
             \"{to}\"\n"
        );
        let window = parse(&text).unwrap().groups[0].windows[0];
        (window.days, window.from_minute, window.minutes)
    };
    assert_eq!(window("daily", "00:00", "24:00"), (127, 0, 1_440));
    assert_eq!(window("sat-mon", "23:00", "01:30"), (0b110_0001, 1_380, 150));
    assert_eq!(window("sun, wed", "09:05", "09:06"), (0b100_0100, 545, 1));
}

#[test]
fn group_is_the_first_whose_tags_all_match() {
    let text = "[[group]]\nname = \"both\"\ntags = { Team = \"a\", Env = \"prod\" }\n\
                [[group]]\nname = \"team\"\ntags = { Team = \"a\" }\n";
    let name = |tags: &[(&str, &str)], text: &str| {
        let tags = tags.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        parse(text).unwrap().group(&tags).map(|policy| policy.name.clone())
    };
    assert_eq!(name(&[("Team", "a"), ("Env", "prod")], text).as_deref(), Some("both"));
    assert_eq!(name(&[("Team", "a"), ("Env", "test")], text).as_deref(), Some("team"));
    assert_eq!(name(&[("Team", "b")], text), None);
    assert_eq!(name(&[], "[[group]]\nname = \"all\"").as_deref(), Some("all"));
}

#[test]
fn parse_pauses_all_groups() {
    let file = parse(
        "[autopilot]\npaused = true\nfleet_percent_per_hour_max = 9\n[[group]]\nname = \"a\"\n",
    );
    let file = file.unwrap();
    assert!(file.paused && file.groups[0].is_paused);
    assert_eq!(file.groups[0].budget.fleet_percent_per_hour_max, 9);
}
