//! The list of all dependencies with their versions and licences, as CycloneDX.

use super::{Options, program, write};
use crate::run;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Writes the list of the crates in the program.
pub fn make(root: &Path, options: &Options) -> Result<Vec<PathBuf>, String> {
    let words = ["metadata", "--format-version=1", "--locked", "--filter-platform"];
    let metadata = run::output(run::cargo(root, &words).arg(target()?))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let list = bill(&metadata, &program::epoch(root))?;
    let file = options.into.join("evenkeel.cdx.json");
    let text = serde_json::to_string_pretty(&list).map_err(|error| error.to_string())?;
    write(&file, &(text + "\n"))?;
    Ok(vec![file])
}

/// Returns the platform of this compiler.
fn target() -> Result<String, String> {
    let shown = run::output(std::process::Command::new("rustc").arg("-vV"))?;
    let host = shown.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

/// Returns the list for the metadata of cargo: the program, and each crate that is linked into it.
fn bill(metadata: &Value, epoch: &str) -> Result<Value, String> {
    let packages = array(&metadata["packages"]);
    let root = packages.iter().find(|package| package["name"] == "evenkeel");
    let root = root.ok_or("cargo metadata names no package evenkeel")?;
    let nodes = array(&metadata["resolve"]["nodes"]);
    let edges = |id: &Value| -> Vec<&Value> {
        let node = nodes.iter().find(|node| node["id"] == *id);
        let dependencies = node.map_or(&[][..], |node| array(&node["deps"]));
        let linked = dependencies.iter().filter(|dependency| is_linked(dependency));
        linked.map(|dependency| &dependency["pkg"]).collect()
    };
    let mut found = BTreeSet::new();
    let mut next = vec![&root["id"]];
    while let Some(id) = next.pop() {
        if found.insert(id.as_str().unwrap_or_default()) {
            next.extend(edges(id));
        }
    }
    let is_found = |package: &&Value| found.contains(package["id"].as_str().unwrap_or_default());
    let parts = packages.iter().filter(is_found);
    let components: Vec<Value> =
        parts.clone().filter(|part| part["id"] != root["id"]).map(component).collect();
    let dependencies: Vec<Value> = parts
        .map(|part| {
            let names: BTreeSet<String> = edges(&part["id"])
                .into_iter()
                .filter_map(|id| packages.iter().find(|package| package["id"] == *id))
                .map(reference)
                .collect();
            json!({ "ref": reference(part), "dependsOn": names })
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": component(root),
            "properties": [{ "name": "SOURCE_DATE_EPOCH", "value": epoch }],
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Returns whether a dependency is part of the program, and no tool of its build or tests.
fn is_linked(dependency: &Value) -> bool {
    array(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
}

/// Returns the reference of a package: its package URL.
fn reference(package: &Value) -> String {
    let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", field("name"), field("version"))
}

fn component(package: &Value) -> Value {
    let is_program = package["name"] == "evenkeel";
    let mut component = json!({
        "type": if is_program { "application" } else { "library" },
        "bom-ref": reference(package),
        "purl": reference(package),
        "name": package["name"],
        "version": package["version"],
    });
    // Old manifests separate alternatives with a slash.
    if let Some(license) = package["license"].as_str() {
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    component
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_what_is_linked_and_nothing_else() {
        let package = |name: &str| {
            let license = "MIT/Apache-2.0";
            json!({ "id": name, "name": name, "version": "1.0.0", "license": license })
        };
        let dependency =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let packages = ["evenkeel", "a", "b", "built", "tested", "apart"].map(package);
        let metadata = json!({
            "packages": packages,
            "resolve": { "nodes": [
                { "id": "evenkeel", "deps": [
                    dependency("a", Value::Null),
                    dependency("built", json!("build")),
                    dependency("tested", json!("dev")),
                ]},
                { "id": "a", "deps": [dependency("b", Value::Null)] },
                { "id": "b", "deps": [dependency("a", Value::Null)] },
            ]},
        });
        let list = bill(&metadata, "7").unwrap();
        let names: Vec<&str> =
            array(&list["components"]).iter().filter_map(|part| part["name"].as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(list["metadata"]["component"]["type"], "application");
        assert_eq!(list["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        let edges = json!({ "ref": "pkg:cargo/a@1.0.0", "dependsOn": ["pkg:cargo/b@1.0.0"] });
        assert!(array(&list["dependencies"]).contains(&edges), "{list}");
        assert!(bill(&json!({}), "7").is_err());
    }
}
