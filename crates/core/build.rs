//! Converts the dated data files under `data/` to checked `'static` tables, so that a wrong number
//! stops the build with the name of its file and key, and nothing is parsed at run time.

#[allow(dead_code, reason = "the build needs a part of it")]
#[path = "src/volume/date.rs"]
mod date;
#[path = "build/instances.rs"]
mod instances;
#[path = "build/latency.rs"]
mod latency;
#[path = "build/limits.rs"]
mod limits;
#[path = "build/prices.rs"]
mod prices;
#[path = "build/quotas.rs"]
mod quotas;
#[path = "build/reader.rs"]
mod reader;

use std::path::{Path, PathBuf};
use std::{env, fs, process};

fn main() {
    if let Err(error) = run() {
        println!("cargo::error={error}");
        process::exit(1);
    }
}

fn run() -> reader::Result<()> {
    let variable = |name| env::var_os(name).map(PathBuf::from).ok_or(format!("{name} is not set"));
    let data = variable("CARGO_MANIFEST_DIR")?.join("../../data");
    let out = variable("OUT_DIR")?;
    // A folder counts as changed when a file in it is changed, added or removed.
    for source in [
        "build.rs",
        "build",
        "src/volume/date.rs",
        "../../data/latency",
        "../../data/limits",
        "../../data/prices",
        "../../data/regions",
    ] {
        println!("cargo::rerun-if-changed={source}");
    }
    for file in ["instances.csv", "quotas.toml"] {
        println!("cargo::rerun-if-changed=../../data/{file}");
    }

    write(&out.join("limits.rs"), &limits::generate(&data.join("limits"))?)?;
    write(&out.join("latencies.rs"), &latency::generate(&data.join("latency"))?)?;
    write(&out.join("prices.rs"), &prices::generate(&data.join("prices"), &data.join("regions"))?)?;
    write(&out.join("quotas.rs"), &quotas::generate(&data.join("quotas.toml"))?)?;
    write(&out.join("instances.rs"), &instances::generate(&data.join("instances.csv"))?)
}

fn write(path: &Path, text: &str) -> reader::Result<()> {
    fs::write(path, text).map_err(|e| format!("{}: cannot write: {e}", path.display()))
}
