//! DescribeUnownedSnapshots (not an EC2 action): returns stored snapshots that the database does
//! not have, for example after it was lost or replaced by an older one.

use evenkeel_wire::agent::StoredSnapshot;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};

pub const ACTION: Action = Action { name: "DescribeUnownedSnapshots", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    // No parameters: there is only one store.
    call.args.done()?;
    let item = |snapshot: StoredSnapshot| {
        let volume = snapshot.volume.map(|volume| Element::text("volumeId", volume));
        let mut fields = vec![Element::text("snapshotId", snapshot.id)];
        fields.extend(volume);
        fields.push(Element::text("bytes", snapshot.data.0));
        Element::list("item", fields)
    };
    let items = call.plane.unowned_snapshots()?.into_iter().map(item);
    Ok(vec![Element::list("unownedSnapshotSet", items)])
}
