//! The list of scenarios has exactly the files of the folder `scenarios/`.

use std::collections::BTreeSet;

use evenkeel_sim::scenario::catalogue::SCENARIOS;

#[test]
fn the_list_is_the_folder() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let files: BTreeSet<String> = files.map(|name| name.into_string().unwrap()).collect();
    assert!(SCENARIOS.map(|(name, _)| name).is_sorted());
    let listed = SCENARIOS.map(|(name, _)| format!("{name}.toml"));
    assert_eq!(BTreeSet::from(listed), files);
}
