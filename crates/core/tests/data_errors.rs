//! The data files are checked when they are built in: each kind of mistake stops the build with an
//! error that names the file, the key and the value.
#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

#[allow(dead_code, reason = "the build needs a part of it")]
#[path = "../src/volume/date.rs"]
mod date;
#[path = "../build/instances.rs"]
mod instances;
#[path = "../build/limits.rs"]
mod limits;
#[path = "../build/prices.rs"]
mod prices;
#[path = "../build/quotas.rs"]
mod quotas;
#[path = "../build/reader.rs"]
mod reader;

use std::fs;
use std::path::{Path, PathBuf};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data");

/// Returns a folder with one data file, `name`: the real one with the first `from` replaced by
/// `to`.
fn spoilt(test: &str, kind: &str, name: &str, from: &str, to: &str) -> PathBuf {
    let text = fs::read_to_string(Path::new(DATA).join(kind).join(name)).unwrap();
    assert!(text.contains(from), "{name} does not contain {from:?}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), text.replacen(from, to, 1)).unwrap();
    folder
}

#[test]
fn the_real_data_is_accepted() {
    let data = Path::new(DATA);
    assert!(limits::generate(&data.join("limits")).is_ok());
    assert!(prices::generate(&data.join("prices"), &data.join("regions")).is_ok());
    assert!(instances::generate(&data.join("instances.csv")).is_ok());
    assert!(quotas::generate(&data.join("quotas.toml")).is_ok());
}

#[test]
fn mistakes_in_quotas_name_the_key() {
    let table = [
        ("snapshots = 100_000", "snapshots = 0", "snapshots = 0: expected"),
        ("io2 = 20\n", "", "storage_tib.io2 is missing"),
        ("gp3 = 50\n", "gp3 = 50\ngp4 = 1\n", "storage_tib.gp4 = 1: unknown key"),
    ];
    for (from, to, expected) in table {
        let folder = spoilt("quotas", "", "quotas.toml", from, to);
        let error = quotas::generate(&folder.join("quotas.toml")).unwrap_err();
        assert!(error.contains("quotas.toml") && error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn mistakes_in_limits_name_key_and_value() {
    let file = "2026-01-15.toml";
    let table = [
        ("boot = true", "boots = true", "standard.boot is missing"),
        ("boot = true", "boot = true\nbooot = 7", "standard.booot = 7: unknown key"),
        ("boot = true", "boot = 1", "standard.boot = 1: expected true or false"),
        ("min = 1, max = 1024", "min = 0, max = 1024", "standard.size_gib.min = 0: expected"),
        ("min = 1, max = 1024", "min = 9, max = 8", "standard.size_gib.max = 8: expected"),
        ("min = 1, max = 1024", "min = -1, max = 8", "standard.size_gib.min = -1: expected"),
        ("max = 80000", "max = 8e4", "gp3.iops.max = 80000.0: expected"),
        ("max = 80000", "max = 80000000", "gp3.iops.max = 80000000: expected"),
        ("default = 3000", "default = 2999", "gp3.iops.default = 2999: expected"),
        ("\"1/4\"", "\"1/0\"", "gp3.throughput.mibps_per_iops = 1/0: expected a ratio"),
        ("\"1/4\"", "\"quarter\"", "gp3.throughput.mibps_per_iops = quarter: expected"),
        ("\"piecewise\"", "\"curved\"", "standard.throughput.rule = curved: expected one of"),
        ("by = \"iops\"", "by = \"size_gib\"", "io1.throughput.pieces[0].mibps_per_iops"),
        ("up_to = 170, mibps = 128", "up_to = 170, mibps = 251", "pieces[0].mibps = 251"),
        (
            "up_to = 170, mibps = 128 }, { mibps = 250",
            "up_to = 170, mibps = 128 }, { mibps = 100",
            "gp2.throughput.pieces = [1]: less throughput",
        ),
        ("pieces = [{ mibps = 90 }]", "pieces = []", "standard.throughput.pieces = []"),
        ("reservation = \"baseline\"", "reservation = \"provisioned\"", "gp2.reservation"),
        ("merge_min_bytes = 32768", "merge_min_bytes = 999999", "merge_min_bytes = 999999"),
        ("tolerance_ms = 50", "tolerance_ms = 0", "standard.tolerance_ms = 0: expected"),
        ("[gp2]", "[gp4]", "gp2.size_gib is missing"),
        ("policy = \"rolling\"", "policy = \"never\"", "modify.policy = never: expected one of"),
        ("date = \"2026-01-15\"", "date = \"2026-01-16\"", "date = 2026-01-16"),
        ("date = \"2026-01-15\"", "date = ", "not TOML"),
        (
            "min = 998000, max = 999000",
            "min = 998000, max = 997999",
            "st1.promise.durability_ppm.max = 997999: expected a whole number, 998000 to 1000000",
        ),
        ("base_max_mibps = 500", "base_max_mibps = 501", "st1.throughput.burst_max_mibps = 500"),
    ];
    for (from, to, expected) in table {
        let folder = spoilt("limits", "limits", file, from, to);
        let error = limits::generate(&folder).unwrap_err();
        assert!(error.contains(file) && error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn mistakes_in_prices_name_key_and_value() {
    let file = "2025-10-14.toml";
    let table = [
        ("gib_month = 45000", "gib_month = 0", "st1.gib_month = 0: expected"),
        ("gib_month = 45000", "gb_month = 45000", "st1.gib_month is missing"),
        ("{ price = 31850 }", "{ cost = 31850 }", "io2.iops_month[2].price is missing"),
        ("up_to = 64000", "up_to = 32000", "io2.iops_month[1].up_to = 32000: expected"),
        ("[st1]", "[st2]\n[st1]", "st2 = {}: unknown key"),
        ("hour = 750000", "hour = -1", "fast_restore.hour = -1: expected"),
    ];
    for (from, to, expected) in table {
        let folder = spoilt("prices", "prices", file, from, to);
        let regions = Path::new(DATA).join("regions");
        let error = prices::generate(&folder, &regions).unwrap_err();
        assert!(error.contains(file) && error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn mistakes_in_prices_of_regions_name_the_line() {
    let file = "2026-10-15.csv";
    let table = [
        ("region,st1_gib", "region,st2_gib", "expected the header \"region,st1_gib"),
        ("eu-west-1,50000,", "eu-west-1,0,", "0: expected millionths of a dollar"),
        ("eu-west-1,50000,", "eu-west-1,", "eu-west-1,16800,"),
        ("eu-west-1,50000,", "eu-west-1,,", "eu-west-1,,16800"),
    ];
    for (from, to, expected) in table {
        let folder = spoilt("regions", "regions", file, from, to);
        let error = prices::generate(&Path::new(DATA).join("prices"), &folder).unwrap_err();
        assert!(error.contains(file) && error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn mistakes_in_instances_name_the_line() {
    let line = "m5.large,2026-08-02,default,650,4750,3600,18750,27,shared,getmoto/moto@34d6cad5a";
    let end = "27,shared,x";
    let table = [
        (format!("m5.large,2026-08-02,default,4751,4750,3600,18750,{end}"), "mbps = \"4751\""),
        (format!("m5.large,2026-08-02,default,650,4750,3600,,{end}"), "max_iops = \"\""),
        ("m5.large,2026-08-02,default,650,4750,,,,,x".into(), "m5.large: no row has IOPS"),
        (format!("m5.large,2026-08-02,sometimes,650,4750,3600,18750,{end}"), "= \"sometimes\""),
        (format!("m5.large,2026-08-32,default,650,4750,3600,18750,{end}"), "date = \"2026-08-32\""),
        ("m5.large,2026-08-02,default,650,4750,3600,18750".into(), "7 fields instead of 10"),
        ("m5.large,2026-08-02,default,650,4750,3600,18750,27,shared,".into(), "source is missing"),
        ("m5.large,2026-08-02,default,650,4750,3600,18750,0,shared,x".into(), "1 to 1000"),
        ("m5.large,2026-08-02,default,650,4750,3600,18750,27,,x".into(), "shared or dedicated"),
        (format!("m5 large,2026-08-02,default,650,4750,3600,18750,{end}"), "not the name"),
        (format!("m5.xlarge,2026-08-02,default,650,4750,3600,18750,{end}"), "two rows"),
    ];
    for (to, expected) in table {
        let folder = spoilt("instances", "", "instances.csv", line, &to);
        let error = instances::generate(&folder.join("instances.csv")).unwrap_err();
        assert!(error.contains("instances.csv") && error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn data_folder_accepts_only_files_named_by_date() {
    let folder = spoilt("names", "prices", "2025-10-14.toml", "", "");
    fs::rename(folder.join("2025-10-14.toml"), folder.join("2025-10.toml")).unwrap();
    let regions = Path::new(DATA).join("regions");
    let refused = || prices::generate(&folder, &regions).unwrap_err();
    assert!(refused().contains("2025-10.toml: a data file is called"));
    fs::write(folder.join("notes.txt"), "").unwrap();
    assert!(refused().contains("notes.txt: only <date>.toml files"));
    assert!(limits::generate(&folder.join("none")).unwrap_err().contains("cannot list"));
}

#[test]
fn every_block_of_limits_and_prices_names_its_source() {
    for kind in ["limits", "prices"] {
        for file in reader::dated_files(&Path::new(DATA).join(kind), "toml").unwrap() {
            let text = fs::read_to_string(&file).unwrap();
            for block in text.split("\n[").skip(1) {
                let name = block.split(']').next().unwrap_or_default();
                assert!(block.contains("# source: "), "{}: [{name}]", file.display());
            }
        }
    }
}
