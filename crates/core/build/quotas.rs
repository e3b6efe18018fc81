//! Converts `data/quotas.toml` to a `Quotas` expression. The types are those of `quota.rs`.

use crate::reader::{Result, Section, VOLUME_TYPES, read};
use std::path::Path;

const MAX: u64 = 100_000_000;

/// Returns the text of `quotas.rs` in the build's output folder.
pub fn generate(file: &Path) -> Result<String> {
    let mut top = Section::parse(&file.display().to_string(), &read(file)?)?;
    let mut fields = String::new();
    for key in [
        "snapshots",
        "fast_restores",
        "filling",
        "volume_copies",
        "snapshot_copies",
        "archived_snapshots",
    ] {
        fields.push_str(&format!("{key}: {}, ", top.number(key, 1..=MAX)?));
    }
    for key in ["storage_tib", "iops", "pending_snapshots"] {
        let mut section = top.section(key)?;
        let mut all = Vec::new();
        for (name, _) in VOLUME_TYPES {
            // Only some types have IOPS for sale.
            let number = match key {
                "iops" => section.number_if_any(name, 1..=MAX)?,
                _ => Some(section.number(name, 1..=MAX)?),
            };
            all.push(match (key, number) {
                ("iops", number) => format!("{number:?}"),
                (_, number) => number.unwrap_or_default().to_string(),
            });
        }
        section.finish()?;
        fields.push_str(&format!("{key}: [{}], ", all.join(", ")));
    }
    top.finish()?;
    Ok(format!("/// EC2's own.\npub const EC2: Quotas = Quotas {{ {fields} }};\n"))
}
