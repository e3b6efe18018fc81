//! Finds images of volumes' namespace that nothing names: no volume, snapshot or record.

use super::{Finding, Weight};
use crate::StoreError;
use crate::rbd::cluster::{Cluster, Place};
use crate::rbd::image;
use crate::rbd::metadata::{Books, MakingRecord, SnapshotRecord, VolumeRecord};
use std::collections::BTreeSet;
use std::sync::Arc;

const WHAT: &str = "Ceph images";
/// Maximum number of images that a finding names.
const NAMED_MAX: usize = 8;

/// Returns the finding about the images of a cluster's namespace.
pub(super) fn finding(cluster: Cluster) -> Finding {
    let place = cluster.place().clone();
    match unrecorded(&Arc::new(cluster)) {
        Ok(images) => judged(&place, &images),
        Err(error) => Finding {
            what: WHAT,
            weight: Weight::Worse,
            found: format!("they cannot be compared with the records of volumes: {error}"),
            advice: "correct the problem, and ask again".to_owned(),
        },
    }
}

/// Returns the images that nothing names.
fn unrecorded(cluster: &Arc<Cluster>) -> Result<Vec<String>, StoreError> {
    if !cluster.enter_existing_namespace()? {
        return Ok(Vec::new());
    }
    let books = Books::new(Arc::clone(cluster))?;
    if books.get::<String>("format")?.is_none() {
        // No server has used it.
        return Ok(Vec::new());
    }
    let mut images = image::list(cluster)?;
    // In the order in which the records of an image follow each other. The first one is written
    // before the image is made.
    let mut named: BTreeSet<String> = books.all::<MakingRecord>("p/")?.into_keys().collect();
    named.extend(books.all::<VolumeRecord>("v/")?.into_values().map(|record| record.image));
    named.extend(books.all::<SnapshotRecord>("s/")?.into_values().map(|record| record.image));
    named.extend(books.all::<bool>("g/")?.into_keys());
    images.retain(|image| !named.contains(image));
    if !images.is_empty() {
        // The records of an image that was removed meanwhile are removed, too.
        let present: BTreeSet<String> = image::list(cluster)?.into_iter().collect();
        images.retain(|image| present.contains(image));
    }
    Ok(images)
}

fn judged(place: &Place, images: &[String]) -> Finding {
    let Place { pool, namespace, .. } = place;
    let Some(first) = images.first() else {
        let found = format!("each image of {} has its record", place.name());
        return Finding { what: WHAT, weight: Weight::Well, found, advice: String::new() };
    };
    let named: Vec<&str> = images.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = if images.len() > NAMED_MAX { ", ..." } else { "" };
    Finding {
        what: WHAT,
        weight: Weight::Worse,
        found: format!(
            "no volume and no snapshot has {} of {}: {}{more}",
            images.len(),
            place.name(),
            named.join(", ")
        ),
        advice: format!(
            "version 0.1.0 leaves such an image if it is killed while it makes a volume; if no \
             server of that version runs and no other program made it, remove it: rbd rm --pool \
             {pool} --namespace {namespace} {first}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_without_a_record_are_named_with_the_command_that_removes_them() {
        let place = Place {
            conf: None,
            user: "client.evenkeel".to_owned(),
            pool: "vms".to_owned(),
            namespace: "here".to_owned(),
        };
        assert_eq!(judged(&place, &[]).weight, Weight::Well);
        let images: Vec<String> = (1..=9).map(|number| format!("vol-{number}")).collect();
        let found = judged(&place, &images);
        assert_eq!(found.weight, Weight::Worse);
        let expected = "no volume and no snapshot has 9 of vms/here: vol-1, vol-2,";
        assert!(found.found.starts_with(expected), "{found:?}");
        assert!(found.found.ends_with("vol-8, ..."), "{found:?}");
        let command = "rbd rm --pool vms --namespace here vol-1";
        assert!(found.advice.ends_with(command), "{found:?}");
    }
}
