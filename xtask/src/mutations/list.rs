//! One broken rule for each property: what is put in the place of what, and the test that must
//! notice.

/// A rule to break.
pub struct Mutation {
    /// Number of the property that the rule is behind, as in docs/internals/iops_promise.md.
    pub property: u32,
    /// What is broken, in words.
    pub what: &'static str,
    /// The package that is tested.
    pub package: &'static str,
    /// What of the package: arguments of `cargo test`.
    pub target: &'static str,
    /// The source file.
    pub file: &'static str,
    /// Text that is there exactly once.
    pub before: &'static str,
    /// What is put there.
    pub after: &'static str,
    /// The test that must fail.
    pub test: &'static str,
}

const QOS: (&str, &str) = ("evenkeel-core", "--test qos");
const SHARING: (&str, &str) = ("evenkeel-core", "--test sharing");
const UNIT: (&str, &str) = ("evenkeel-core", "--lib");

const BUCKET: &str = "crates/core/src/qos/bucket.rs";
const GATE: &str = "crates/core/src/qos/gate.rs";
const SCHEDULER: &str = "crates/core/src/qos/scheduler/mod.rs";
const SHARE: &str = "crates/core/src/qos/scheduler/share.rs";
const DOORS: &str = "crates/core/src/qos/scheduler/doors.rs";
const TURNS: &str = "crates/core/src/qos/scheduler/turns.rs";
const EXPORT: &str = "crates/core/src/qos/scheduler/export.rs";
const DEVICE: &str = "crates/core/src/qos/sharing/device.rs";
const WHEEL: &str = "crates/core/src/qos/wheel.rs";
const QUEUE: &str = "crates/core/src/qos/queue.rs";
const COST: &str = "crates/core/src/qos/cost.rs";

const fn mutation(
    property: u32,
    what: &'static str,
    (package, target): (&'static str, &'static str),
    file: &'static str,
    (before, after): (&'static str, &'static str),
    test: &'static str,
) -> Mutation {
    Mutation { property, what, package, target, file, before, after, test }
}

/// In the order of the properties.
pub const MUTATIONS: &[Mutation] = &[
    mutation(
        1,
        "a charge never makes debt",
        QOS,
        BUCKET,
        (
            "self.level = self.level.saturating_sub(cost);",
            "self.level = (self.level - cost).max(0);",
        ),
        "p01_",
    ),
    mutation(
        2,
        "each settling forgets what is less than a microsecond",
        QOS,
        BUCKET,
        ("* u128::from(elapsed.ns);", "* u128::from(elapsed.ns / 1_000 * 1_000);"),
        "p02_",
    ),
    mutation(
        3,
        "the level rises beyond the depth",
        QOS,
        BUCKET,
        (
            "saturating_add_unsigned(inflow).min(depth);",
            "saturating_add_unsigned(inflow); let _ = depth;",
        ),
        "p03_",
    ),
    mutation(
        4,
        "a charge takes a thousandth more",
        QOS,
        BUCKET,
        (
            "i128::from(tokens) * i128::from(LEVEL_PER_TOKEN);\n        self.level = self.level.saturating_sub",
            "i128::from(tokens) * i128::from(LEVEL_PER_TOKEN) * 1_001 / 1_000;\n        self.level = self.level.saturating_sub",
        ),
        "p04_",
    ),
    mutation(
        5,
        "waits are rounded down",
        QOS,
        BUCKET,
        ("amount.div_ceil(self.rate_per_second)", "amount / self.rate_per_second"),
        "p05_",
    ),
    mutation(
        6,
        "a large charge is taken in part",
        QOS,
        BUCKET,
        (
            "i128::from(tokens) * i128::from(LEVEL_PER_TOKEN);\n        self.level = self.level.saturating_sub",
            "i128::from(tokens.min(64)) * i128::from(LEVEL_PER_TOKEN);\n        self.level = self.level.saturating_sub",
        ),
        "p06_a_million_steps",
    ),
    mutation(
        7,
        "inflow is added without regard to the type's end",
        QOS,
        BUCKET,
        (
            "u128::from(self.rate_per_second) * u128::from(elapsed.ns)",
            "u128::from(self.rate_per_second * elapsed.ns)",
        ),
        "p07_",
    ),
    mutation(
        8,
        "odd rates save half as much",
        QOS,
        BUCKET,
        (
            "{ LEVEL_PER_TOKEN } else { rate };",
            "{ LEVEL_PER_TOKEN } else if rate % 2 == 1 { rate / 2 } else { rate };",
        ),
        "p08_",
    ),
    mutation(
        9,
        "a poll lets go what becomes due within the tick",
        SHARING,
        WHEEL,
        ("let now_tick = now.ns / TICK.ns;", "let now_tick = now.ns.div_ceil(TICK.ns);"),
        "p09_",
    ),
    mutation(
        10,
        "deadlines are two ticks late",
        QOS,
        WHEEL,
        (
            "let tick = deadline.ns.div_ceil(TICK.ns).max(self.next_tick);",
            "let tick = deadline.ns.div_ceil(TICK.ns).max(self.next_tick) + 2;",
        ),
        "p10_",
    ),
    mutation(
        11,
        "a queue gives out its last request first",
        SHARING,
        QUEUE,
        (
            "            nodes.at(self.tail).next = at;\n        }\n        self.tail = at;\n        self.requests += 1;",
            "            nodes.at(at).next = self.head;\n            self.head = at;\n            self.requests += 1;\n            self.bytes += payload_bytes(&io);\n            return;\n        }\n        self.tail = at;\n        self.requests += 1;",
        ),
        "p11_",
    ),
    mutation(
        12,
        "a volume's turn ends only when it has nothing left",
        QOS,
        SCHEDULER,
        ("for _ in 0..TURN_DISPATCHES_MAX {", "for _ in 0..OUTPUT_DISPATCHES_MAX {"),
        "p12_volumes_take_turns",
    ),
    mutation(
        13,
        "instances are not charged",
        SHARING,
        DOORS,
        (
            "self.sharing.instances[index(instance)].charge(&cost, portion.operation, moved);",
            "let _ = (cost, moved);",
        ),
        "p13_",
    ),
    mutation(
        14,
        "units are rounded down",
        UNIT,
        COST,
        ("uncovered.div_ceil(unit)\n", "uncovered / unit\n"),
        "p14_",
    ),
    mutation(
        15,
        "a turn at an instance never ends",
        SHARING,
        "crates/core/src/qos/sharing/instance.rs",
        ("        ring.first = flow.next;\n        ring.turns += 1;", "        ring.turns += 1;"),
        "p15_",
    ),
    mutation(
        16,
        "a change of the limits refills",
        QOS,
        GATE,
        (
            "(Some(bucket), Some(rate)) => bucket.set_rate(rate, depth),",
            "(Some(bucket), Some(rate)) => *bucket = Bucket::full(rate, depth),",
        ),
        "p16_",
    ),
    mutation(
        17,
        "a clock that steps back is believed",
        QOS,
        SCHEDULER,
        (
            "            self.clock_steps_back += 1;\n        } else {\n            self.now = now;\n        }",
            "            self.clock_steps_back += 1;\n        }\n        self.now = now;",
        ),
        "p17_",
    ),
    mutation(
        18,
        "reservations are ignored",
        SHARING,
        DEVICE,
        ("self.reserved_ns_per_s > 0\n", "self.reserved_ns_per_s == u64::MAX\n"),
        "p18_",
    ),
    mutation(
        19,
        "all weigh the same",
        SHARING,
        DEVICE,
        ("/ u64::from(place.weight);", "/ 1_000;"),
        "p19_weights",
    ),
    mutation(
        20,
        "urgent requests are not counted",
        SHARING,
        SHARE,
        (
            "            self.urgent.charge(1);\n        }\n        ready",
            "            self.urgent.charge(1);\n        }\n        true",
        ),
        "p20_",
    ),
    mutation(
        21,
        "what a volume gets by weight costs it its reservation",
        SHARING,
        DEVICE,
        (
            "place.virtual_time = virtual_time.saturating_add(step);",
            "place.virtual_time = virtual_time.saturating_add(step);\n            place.tag = place.tag.max(now) + Duration::from_us(100);",
        ),
        "p21_",
    ),
    mutation(
        23,
        "a flow that goes away stays in line at its device",
        SHARING,
        SHARE,
        (
            "                self.shops[index(device)].device.forget(flow);\n",
            "                let _ = device;\n",
        ),
        "p23_p25_",
    ),
    mutation(
        24,
        "balances do not go with a volume",
        SHARING,
        EXPORT,
        ("        self.reserves[index(slot)] = reserves;\n", "        let _ = reserves;\n"),
        "p24_",
    ),
    mutation(
        25,
        "a completion told twice is believed twice",
        SHARING,
        SHARE,
        ("if entry.1 != ticket.generation {", "if entry.1 == 0 {"),
        "p25_completions",
    ),
    mutation(
        26,
        "time is counted a little differently in every run",
        SHARING,
        GATE,
        (
            "        let elapsed = now.since(self.settled_at);\n        self.settled_at = now;\n        for bucket in [&mut self.operations, &mut self.bytes].into_iter().flatten() {\n            bucket.settle(elapsed);",
            "        static COUNT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);\n        let extra = COUNT.fetch_add(1, core::sync::atomic::Ordering::Relaxed) % 1_000;\n        let elapsed = now.since(self.settled_at) + Duration::from_ns(extra);\n        self.settled_at = now;\n        for bucket in [&mut self.operations, &mut self.bytes].into_iter().flatten() {\n            bucket.settle(elapsed);",
        ),
        "p09_p26_",
    ),
    mutation(
        27,
        "waiting for a device is nobody's time",
        SHARING,
        SHARE,
        (
            "                self.shops[index(device)].device.forget(flow);\n                self.close_account(now, share, flow);\n",
            "                self.shops[index(device)].device.forget(flow);\n",
        ),
        "p27_the_time",
    ),
    mutation(
        28,
        "delays of ours are the tenant's loss",
        SHARING,
        TURNS,
        (
            "{ Duration::ZERO } else { lost.min(delay) };",
            "{ Duration::ZERO } else { lost.min(Duration::ZERO) };",
        ),
        "p28_",
    ),
];
