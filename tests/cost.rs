//! The cost of volumes: the report of a server, and messages on errors.

mod support;

use serde_json::Value;
use support::metrics::Metrics;
use support::server::Server;

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/planner/books/price_book.toml");

/// More than a page of DescribeVolumes.
const MANY: usize = 520;

fn report(server: &Server, flags: &str) -> Value {
    let text = server.evenkeel(&format!("report cost {flags} -o json")).ok();
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["schema"], "evenkeel.cost/1");
    value
}

fn total(value: &Value) -> u64 {
    value["monthly_micro_usd"]["total"].as_u64().expect("a total")
}

#[test]
fn cost_report_adds_up_by_any_grouping() {
    let server = Server::start("--store memory");
    let attached = server.attached("--type gp3 --size 100 --iops 4000 --throughput 200");
    server.create("--type io2 --size 10 --iops 1000 --tag team=db");
    server.create("--type st1 --size 125 --tag team=logs");
    // 8 + 5 + 3, 1.25 + 65, 5.625.
    let expected = 16_000_000 + 66_250_000 + 5_625_000;
    for by in ["type", "tag:team", "host", "volume"] {
        let value = report(&server, &format!("--by {by} --as-of 2025-10-14"));
        let groups = value["groups"].as_array().expect("groups");
        assert_eq!(groups.iter().map(total).sum::<u64>(), expected, "{by}: {value}");
        assert_eq!(total(&value["total"]), expected, "{by}");
    }
    let text = server.evenkeel("report cost --by tag:team --as-of 2025-10-14").ok();
    let total_line = text.lines().find(|line| line.starts_with("total")).expect("a total");
    assert!(total_line.ends_with("87.88"), "{text}");
    assert!(text.contains("(no tag team)") && text.contains("attached to no host: 2"), "{text}");
    let csv = server.evenkeel("report cost --by volume --as-of 2025-10-14 -o csv").ok();
    assert!(csv.contains(&format!("\n{attached},1,100,0,8.00,5.00,3.00,0.00,16.00\n")), "{csv}");
    // In 2013, gp3, io2 and st1 had no price.
    let old = report(&server, "--as-of 2013-06");
    assert_eq!((total(&old["total"]), &old["total"]["unpriced"]), (0, &3.into()), "{old}");
}

#[test]
fn each_volume_has_its_price_wherever_it_is_listed() {
    let server = Server::start("--store memory");
    let id = server.create("--type gp3 --size 100 --iops 4001");
    let volumes = server.list("volume ls");
    let monthly = volumes[0]["monthly_micro_usd"].as_u64().expect("a price");
    assert_eq!(monthly, total(&report(&server, "")["total"]));
    let usd = format!("{}.{:02}", monthly / 1_000_000, (monthly / 1_000 % 1_000 + 5) / 10);
    let csv = server.evenkeel("volume ls -o csv").ok();
    assert!(csv.contains(&format!("available,{usd},")), "{csv}");
    let shown = server.evenkeel(&format!("volume show {id}")).ok();
    assert!(shown.contains(&format!("{usd} USD a month")), "{shown}");
    let rows = server.list("top --sort cost");
    assert_eq!(rows[0]["monthly_micro_usd"].as_u64(), Some(monthly));
    let metrics = Metrics::of(&server);
    let price = metrics.sum("monthly_list_price_usd", &[&id]);
    assert!((price * 1e6 - monthly as f64).abs() < 1.0, "{price}");
}

#[test]
fn a_price_book_stands_beside_aws() {
    let server = Server::start("--store memory");
    server.create("--type io2 --size 400 --iops 8000");
    let value = report(&server, &format!("--prices {BOOK}"));
    // A tenth of a device that costs 63.96 a month.
    assert_eq!(value["total"]["own_monthly_micros"], 6_396_000);
    assert_eq!(value["hardware"]["currency"], "EUR");
    let text = server.evenkeel(&format!("report cost --prices {BOOK}")).ok();
    assert!(text.contains("EUR/MONTH  USD/MONTH AT AWS"), "{text}");
    assert!(text.contains("613.04 of it are not charged"), "{text}");
    std::fs::write(server.folder().join("bad.toml"), "currency = \"EUR\"\nkwh = -1\n").expect("it");
    let refused = server.evenkeel("report cost --prices bad.toml").fails_with(3);
    assert!(refused.contains("bad.toml: line 2: kwh = -1 in the price book"), "{refused}");
}

#[test]
fn more_volumes_than_a_page_are_all_counted() {
    let server = Server::start("--store memory");
    let line = server.command_line();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..MANY / 4).for_each(|_| {
                    line.run("volume create --type gp3 --size 1").ok();
                });
            });
        }
    });
    let value = report(&server, "");
    assert_eq!(value["total"]["volumes"], MANY);
    assert_eq!(value["groups"][0]["volumes"], MANY);
    let csv = server.evenkeel("report cost --by volume -o csv").ok();
    assert_eq!(csv.lines().count(), MANY + 1);
}

#[test]
fn mistakes_are_named_with_the_next_step() {
    let server = Server::start("--store memory");
    for (flags, code, words) in [
        ("--by tag", 2, "expected type, tag:KEY, host or volume"),
        ("--as-of 2001-01-01", 1, "the oldest are those of 2013-01-01: choose that date"),
    ] {
        let refused = server.evenkeel(&format!("report cost {flags}")).fails_with(code);
        assert!(refused.contains(words), "{flags}: {refused}");
    }
    let text = server.evenkeel("report cost").ok();
    assert!(text.contains("no volumes and no snapshots"), "{text}");
}
