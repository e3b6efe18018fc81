//! `evenkeel capacity plan` through the command line: which volumes fit on which devices, what is
//! left, and messages on errors.

mod support;

use std::fmt::Write as _;
use std::process::Command;

use serde_json::Value;
use support::process::{Output, run};
use support::server::{Server, evenkeel};

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/planner/books/price_book.toml");

/// A folder with a list of volumes, in which the program runs.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with(volumes: &str) -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        folder.write("volumes.csv", volumes);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).expect("written");
    }

    fn plan(&self, flags: &str) -> Output {
        let mut command: Command = evenkeel(self.0.path());
        command.args(["capacity", "plan", "--volumes", "volumes.csv"]);
        run(command.args(flags.split_whitespace()))
    }

    fn json(&self, flags: &str) -> Value {
        let value: Value =
            serde_json::from_str(&self.plan(&format!("{flags} -o json")).ok()).expect("JSON");
        assert_eq!(value["schema"], "evenkeel.capacity-plan/1");
        value
    }
}

#[test]
fn volumes_that_fit_are_placed_on_devices_that_carry_them() {
    let folder = Folder::with("volume,type,gib,iops,count\nweb,gp3,100,3000,6\nlog,st1,500,,1\n");
    let value = folder.json(&format!("--prices {BOOK}"));
    assert_eq!((&value["fits"], &value["next"]["needed"]), (&true.into(), &0.into()), "{value}");
    let devices = value["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 10);
    let placement = value["placement"].as_array().expect("places");
    assert_eq!(placement.len(), 7);
    let on = |at: usize| placement[at]["device"].as_str().expect("a name");
    assert!(on(0).starts_with("nvme ") && on(6).starts_with("hdd "), "{value}");
    let empty =
        devices.iter().find(|device| device["volumes"] == 0 && device["left"]["gib"] == 4_000);
    let left = &empty.expect("an empty device")["left"];
    assert_eq!((&left["iops"], &left["largest_gp3"]["size_gib"]), (&80_000.into(), &4_000.into()));
    assert_eq!(left["most_io2"]["iops"], 80_000);
    let text = folder.plan(&format!("--prices {BOOK}")).ok();
    assert!(text.starts_with("7 volumes, 1100 GiB, on 10 devices: all fit\n"), "{text}");
    let csv = folder.plan(&format!("--prices {BOOK} -o csv")).ok();
    assert!(csv.starts_with("volume,type,gib,device\nweb 1,gp3,100,nvme "), "{csv}");
}

/// If volumes do not fit, the output has the number of further devices and their cost, and the exit
/// code says so.
#[test]
fn plan_of_too_many_volumes_names_the_devices_needed() {
    let folder = Folder::with("volume,type,gib,iops,count\ndb,io2,100,60000,11\n");
    let output = folder.plan(&format!("--prices {BOOK}"));
    let text = output.fails_with(4);
    assert!(text.contains("the volumes do not fit on the devices that there are"), "{text}");
    // Each takes three quarters of one of the eight devices that allow its type.
    let needed = "3 more like nvme are needed, for 191.88 EUR a month (no packing needs fewer)";
    assert!(text.contains(needed), "{text}");
    let stdout = folder.plan(&format!("--prices {BOOK} -o json")).stdout;
    let value: Value = serde_json::from_str(&stdout).expect("JSON");
    let next = &value["next"];
    assert_eq!((&next["needed"], &next["needed_min"]), (&3.into(), &3.into()), "{value}");
    assert_eq!((&next["each_monthly_micros"], &value["fits"]), (&63_960_000.into(), &false.into()));
    let large = Folder::with("type,gib,iops\nio2,100,90000\n");
    let refused = large.plan(&format!("--prices {BOOK}")).fails_with(4);
    assert!(refused.contains("line 2, io2 of 100 GiB with 90000 IOPS: no device is"), "{refused}");
    // A device sells 80,000 IOPS, and the slow ones do not allow io2.
    assert!(refused.contains("nvme: 112."), "{refused}");
    let lacks = "% of the device time that is sold are needed; hdd 1: carries no io2";
    assert!(refused.contains(lacks), "{refused}");
    let disks = Folder::with("type,gib,iops,count\nio2,100,60000,9\n");
    let refused = disks.plan(&format!("--prices {BOOK} --next hdd")).fails_with(4);
    assert!(refused.contains("a further hdd cannot carry it: hdd: carries no io2"), "{refused}");
}

#[test]
fn volumes_listed_by_a_server_fit_on_its_own_calibration() {
    let server = Server::start(
        "--store faulty:memory,channels=4,read_us=500,write_us=1000 --calibrate first-start",
    );
    server.create("--type io2 --size 10 --iops 200");
    server.create("--type st1 --size 125");
    let folder = Folder::with(&server.evenkeel("volume ls -o csv").ok());
    let record = server.data_dir().join("calibration.json");
    let flags = format!("--calibration {} --space 200", record.display());
    let value = folder.json(&flags);
    assert_eq!(value["fits"], true, "{value}");
    let device = &value["devices"][0];
    assert_eq!((&device["sold_gib"], &device["left"]["gib"]), (&135.into(), &65.into()));
    // The amounts that the plan leaves are those that the server still sells.
    let iops = device["left"]["iops"].as_u64().expect("a number");
    let flags = format!("volume create --type io2 --size 100 --iops {iops}");
    server.evenkeel(&flags).ok();
    server.evenkeel("volume create --type io2 --size 10 --iops 100").fails_with(4);
    let refused = folder.plan(&format!("--calibration {}", record.display())).fails_with(2);
    assert!(refused.contains("does not say how large its device is"), "{refused}");
}

#[test]
fn ten_thousand_volumes_are_planned() {
    let mut list = "volume,type,gib,iops\n".to_owned();
    for number in 0..10_000 {
        let gib = 10 + number * 7 % 90;
        let iops = 200 + number * 13 % 2_000;
        writeln!(list, "v{number},io2,{gib},{iops}").expect("a string");
    }
    let folder = Folder::with(&list);
    let output = folder.plan(&format!("--prices {BOOK} -o json"));
    let value: Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert_eq!(value["placement"].as_array().map(Vec::len), Some(10_000));
    let number = |name: &str| value["next"][name].as_u64().expect("a number");
    let needed = number("needed");
    let least = number("needed_min");
    assert!(least > 0 && needed >= least && needed - least <= needed / 50, "{needed} {least}");
    output.fails_with(4);
}

#[test]
fn mistakes_are_named_with_the_next_step() {
    let folder = Folder::with("type,gib\ngp3,0\n");
    folder.write("book.toml", "currency = \"EUR\"\n");
    folder.write("record.json", "{}");
    for (flags, code, words) in [
        ("", 2, "--calibration <FILE>..."),
        ("--calibration none.json", 3, "volumes.csv: line 2: \"gp3,0\": expected a volume"),
        ("--prices book.toml --space 3", 2, "cannot be used with"),
    ] {
        let refused = folder.plan(flags).fails_with(code);
        assert!(refused.contains(words), "{flags}: {refused}");
    }
    folder.write("volumes.csv", "type,gib\ngp3,1\n");
    for (flags, code, words) in [
        ("--calibration none.json", 3, "none.json: there is no such calibration record"),
        ("--calibration record.json", 3, "record.json: not a calibration record"),
        ("--prices book.toml", 3, "line 1: the price book has no kwh"),
        ("--prices none.toml", 3, "none.toml: No such file or directory"),
    ] {
        let refused = folder.plan(flags).fails_with(code);
        assert!(refused.contains(words), "{flags}: {refused}");
    }
    let refused = folder.plan(&format!("--prices {BOOK} --next ssd")).fails_with(2);
    assert!(refused.contains("--next ssd: there is no such device"), "{refused}");
    assert!(refused.contains("1 to 2, or one of nvme, hdd"), "{refused}");
    std::fs::remove_file(folder.0.path().join("volumes.csv")).expect("removed");
    let refused = folder.plan(&format!("--prices {BOOK}")).fails_with(3);
    assert!(refused.contains("volumes.csv: No such file or directory"), "{refused}");
}
