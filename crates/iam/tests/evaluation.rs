//! Random policies and requests, decided by [`evenkeel_iam`] and by a second evaluator that is
//! written here from the rules of the IAM documentation alone.

#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

use evenkeel_iam::{Context, Decision, Policy, Request, decide};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ACTIONS: &[&str] = &[
    "ec2:CreateVolume",
    "ec2:DeleteVolume",
    "ec2:DescribeVolumes",
    "ec2:CreateTags",
    "ebs:GetSnapshotBlock",
    "iam:CreateUser",
];
const ACTION_PATTERNS: &[&str] = &[
    "*",
    "ec2:*",
    "EC2:describe*",
    "ec2:*Volume",
    "ec2:Create????",
    "ec2:DeleteVolume",
    "ebs:*",
    "iam:CreateUser",
    "s3:*",
];
const RESOURCES: &[&str] = &[
    "*",
    "arn:aws:ec2:local-1:000000000000:volume/vol-1",
    "arn:aws:ec2:local-1:000000000000:volume/*",
    "arn:aws:ec2:local-1::snapshot/snap-1",
    "arn:aws:ec2:local-1:000000000000:instance/i-1",
];
const RESOURCE_PATTERNS: &[&str] = &[
    "*",
    "arn:aws:ec2:*:*:volume/*",
    "arn:aws:ec2:local-1::snapshot/snap-?",
    "arn:aws:ec2:*:000000000000:*",
    "arn:aws:ec2",
    "arn:aws:ec2:local-2:*:volume/*",
];
/// Keys with values of requests, and values of policies.
const TEXT_KEYS: &[(&str, &[&str], &[&str])] = &[
    ("aws:ResourceTag/team", &["blue", "Blue", "red"], &["blue", "b*", "*", "r?d", ""]),
    ("aws:RequestTag/team", &["blue", "green"], &["BLUE", "g*", "green"]),
    ("ec2:VolumeType", &["gp3", "io2"], &["gp3", "io?", "*"]),
];
const LIST_KEY: (&str, &[&str], &[&str]) =
    ("aws:TagKeys", &["team", "cost", "name"], &["team", "c*", "name"]);
const NUMBER_KEYS: &[(&str, &[&str], &[&str])] = &[
    ("ec2:VolumeIops", &["100", "3000", "16000"], &["3000", "0", "5000"]),
    ("ec2:VolumeSize", &["1", "100"], &["1", "50"]),
];
const BOOL_KEY: (&str, &[&str], &[&str]) =
    ("ec2:Encrypted", &["true", "false"], &["true", "false"]);
const ADDRESS_KEY: (&str, &[&str], &[&str]) = (
    "aws:SourceIp",
    &["192.0.2.7", "::ffff:192.0.2.200", "2001:db8::1"],
    &["192.0.2.0/25", "192.0.2.200", "2001:db8::/32", "0.0.0.0/0", "::/0"],
);

/// A statement before it is JSON.
#[derive(Clone, Debug)]
struct Draft {
    allows: bool,
    is_not_action: bool,
    actions: Vec<&'static str>,
    resources: Vec<&'static str>,
    conditions: Vec<Drafted>,
}

/// A condition before it is JSON.
#[derive(Clone, Debug)]
struct Drafted {
    prefix: &'static str,
    operator: &'static str,
    suffix: &'static str,
    key: &'static str,
    values: Vec<&'static str>,
}

fn some(all: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(all, 1..=all.len().min(3))
}

fn condition() -> impl Strategy<Value = Drafted> {
    const TEXT: &[&str] = &[
        "StringEquals",
        "StringNotEquals",
        "StringEqualsIgnoreCase",
        "StringNotEqualsIgnoreCase",
        "StringLike",
        "StringNotLike",
    ];
    const NUMBER: &[&str] = &[
        "NumericEquals",
        "NumericNotEquals",
        "NumericLessThan",
        "NumericLessThanEquals",
        "NumericGreaterThan",
        "NumericGreaterThanEquals",
    ];
    const PREFIXES: &[&str] = &["", "", "", "ForAnyValue:", "ForAllValues:"];
    let text = (select(TEXT_KEYS), select(TEXT), select(PREFIXES));
    let list = (Just(LIST_KEY), select(TEXT), select(&PREFIXES[3..]));
    let number = (select(NUMBER_KEYS), select(NUMBER), select(PREFIXES));
    let bool = (Just(BOOL_KEY), Just("Bool"), select(PREFIXES));
    let address = (Just(ADDRESS_KEY), select(&["IpAddress", "NotIpAddress"][..]), Just(""));
    let compared = prop_oneof![text, list, number, bool, address];
    let compared = (compared, select(&["", "", "IfExists"][..])).prop_flat_map(
        |(((key, _, values), operator, prefix), suffix)| {
            some(values).prop_map(move |values| Drafted { prefix, operator, suffix, key, values })
        },
    );
    let null = (select(TEXT_KEYS), some(&["true", "false"])).prop_map(|((key, ..), values)| {
        Drafted { prefix: "", operator: "Null", suffix: "", key, values }
    });
    prop_oneof![9 => compared, 1 => null]
}

fn statement() -> impl Strategy<Value = Draft> {
    let conditions = prop::collection::vec(condition(), 0..3);
    (
        any::<bool>(),
        prop::bool::weighted(0.2),
        some(ACTION_PATTERNS),
        some(RESOURCE_PATTERNS),
        conditions,
    )
        .prop_map(|(allows, is_not_action, actions, resources, conditions)| Draft {
            allows,
            is_not_action,
            actions,
            resources,
            conditions,
        })
}

fn context() -> impl Strategy<Value = BTreeMap<&'static str, Vec<&'static str>>> {
    let single = |(key, values, _): (&'static str, &'static [&'static str], _)| {
        prop::option::of(select(values))
            .prop_map(move |value| value.map(|value| (key, vec![value])))
    };
    let (key, values, _) = LIST_KEY;
    let list = subsequence(values, 0..=values.len());
    let list = list.prop_map(move |values| (!values.is_empty()).then_some((key, values)));
    let all = TEXT_KEYS.iter().chain(NUMBER_KEYS).chain([&BOOL_KEY, &ADDRESS_KEY]);
    let all: Vec<_> = all.map(|key| single(*key).boxed()).chain([list.boxed()]).collect();
    all.prop_map(|found| found.into_iter().flatten().collect())
}

fn json_of(policy: &[Draft]) -> String {
    let statement = |draft: &Draft| {
        let mut conditions = serde_json::Map::new();
        for Drafted { prefix, operator, suffix, key, values } in &draft.conditions {
            let name = format!("{prefix}{operator}{suffix}");
            let keys = conditions.entry(name).or_insert_with(|| json!({}));
            // Of two conditions with one operator and key, JSON has the last one.
            keys[*key] = json!(values);
        }
        let mut value = json!({
            "Effect": if draft.allows { "Allow" } else { "Deny" },
            "Resource": draft.resources,
            "Condition": conditions,
        });
        value[if draft.is_not_action { "NotAction" } else { "Action" }] = json!(draft.actions);
        value
    };
    let statements: Vec<Value> = policy.iter().map(statement).collect();
    json!({ "Version": "2012-10-17", "Statement": statements }).to_string()
}

/// The second evaluator, from here on.
fn expected(
    policies: &[Vec<Draft>],
    action: &str,
    resource: &str,
    context: &BTreeMap<&str, Vec<&str>>,
) -> Decision {
    let all: Vec<&Draft> = policies.iter().flatten().collect();
    let applying = all.iter().filter(|draft| {
        let is_action = draft
            .actions
            .iter()
            .any(|pattern| like(&pattern.to_lowercase(), &action.to_lowercase()));
        let is_resource = draft.resources.iter().any(|pattern| is_of(pattern, resource));
        let last = |(number, drafted): &(usize, &Drafted)| {
            let name = |it: &Drafted| (it.prefix, it.operator, it.suffix, it.key);
            draft.conditions[number + 1..].iter().all(|later| name(later) != name(drafted))
        };
        let conditions = draft.conditions.iter().enumerate().filter(last);
        is_action != draft.is_not_action
            && is_resource
            && conditions.into_iter().all(|(_, condition)| holds(condition, context))
    });
    let effects: Vec<bool> = applying.map(|draft| draft.allows).collect();
    if effects.contains(&false) {
        Decision::ExplicitDeny
    } else if effects.contains(&true) {
        Decision::Allowed
    } else {
        Decision::ImplicitDeny
    }
}

fn like(pattern: &str, text: &str) -> bool {
    let Some(first) = pattern.chars().next() else { return text.is_empty() };
    let rest = &pattern[first.len_utf8()..];
    if first == '*' {
        return (0..=text.len())
            .filter(|from| text.is_char_boundary(*from))
            .any(|from| like(rest, &text[from..]));
    }
    text.chars().next().is_some_and(|letter| {
        (first == '?' || first == letter) && like(rest, &text[letter.len_utf8()..])
    })
}

fn is_of(pattern: &str, resource: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let mut patterns: Vec<&str> = pattern.splitn(6, ':').collect();
    patterns.resize(6, "*");
    let fields: Vec<&str> = resource.splitn(6, ':').collect();
    fields.len() == 6 && (0..6).all(|number| like(patterns[number], fields[number]))
}

fn holds(condition: &Drafted, context: &BTreeMap<&str, Vec<&str>>) -> bool {
    let Drafted { prefix, operator, suffix, key, values } = condition;
    let found = context.get(key);
    if *operator == "Null" {
        return values.contains(&if found.is_none() { "true" } else { "false" });
    }
    let is_negated = operator.contains("Not");
    match (found, *suffix, *prefix) {
        (None, "IfExists", _) | (None, _, "ForAllValues:") => true,
        (None, _, "ForAnyValue:") => false,
        (None, _, _) => is_negated,
        (Some(found), ..) => {
            let mut results = found.iter().map(|value| {
                let some_match = values.iter().any(|wanted| fits(operator, value, wanted));
                some_match ^ is_negated
            });
            if *prefix == "ForAllValues:" {
                results.all(|result| result)
            } else {
                results.any(|result| result)
            }
        }
    }
}

fn fits(operator: &str, value: &str, wanted: &str) -> bool {
    let number = |text: &str| text.parse::<i64>().unwrap();
    match operator.replace("Not", "").as_str() {
        "StringEquals" => value == wanted,
        "StringEqualsIgnoreCase" => value.eq_ignore_ascii_case(wanted),
        "StringLike" => like(wanted, value),
        "NumericEquals" => number(value) == number(wanted),
        "NumericLessThan" => number(value) < number(wanted),
        "NumericLessThanEquals" => number(value) <= number(wanted),
        "NumericGreaterThan" => number(value) > number(wanted),
        "NumericGreaterThanEquals" => number(value) >= number(wanted),
        "Bool" => value == wanted,
        // A table in place of arithmetic.
        "IpAddress" => [
            ("192.0.2.7", "192.0.2.0/25"),
            ("192.0.2.7", "0.0.0.0/0"),
            ("::ffff:192.0.2.200", "192.0.2.200"),
            ("::ffff:192.0.2.200", "0.0.0.0/0"),
            ("2001:db8::1", "2001:db8::/32"),
            ("2001:db8::1", "::/0"),
        ]
        .contains(&(value, wanted)),
        other => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn decisions_are_those_of_a_second_evaluator(
        policies in prop::collection::vec(prop::collection::vec(statement(), 1..4), 0..3),
        context in context(),
    ) {
        let parsed: Vec<Policy> =
            policies.iter().map(|policy| Policy::parse(&json_of(policy)).unwrap()).collect();
        let mut facts = Context::default();
        for (key, values) in &context {
            facts.add(*key, values.iter().map(ToString::to_string).collect());
        }
        // Every action on every resource: the whole matrix of these policies.
        for action in ACTIONS {
            for resource in RESOURCES {
                let request = Request {
                    action: action.to_string(),
                    resource: resource.to_string(),
                    context: facts.clone(),
                };
                let found = decide(&parsed, &request).decision;
                prop_assert_eq!(
                    found,
                    expected(&policies, action, resource, &context),
                    "{} {}", action, resource
                );
            }
        }
    }
}

/// Without this, a generator of conditions that never hold would pass.
#[test]
fn the_random_policies_lead_to_every_decision() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts = [0; 3];
    for _ in 0..300 {
        let strategy = (prop::collection::vec(statement(), 1..4), context());
        let (policy, context) = strategy.new_tree(&mut runner).unwrap().current();
        for action in ACTIONS {
            for resource in RESOURCES {
                let decision = expected(std::slice::from_ref(&policy), action, resource, &context);
                counts[decision as usize] += 1;
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
}
