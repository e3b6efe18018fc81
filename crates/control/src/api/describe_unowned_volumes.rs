//! DescribeUnownedVolumes (not an EC2 action): returns stored bytes that belong to no volume, for
//! example after the database was lost or replaced by an older one.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};

pub const ACTION: Action = Action { name: "DescribeUnownedVolumes", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    // No parameters: there is only one store.
    call.args.done()?;
    let items = call.plane.unowned()?.into_iter().map(|stored| {
        let id = stored.id;
        let bytes = stored.size.0;
        Element::list("item", [Element::text("volumeId", id), Element::text("bytes", bytes)])
    });
    Ok(vec![Element::list("unownedVolumeSet", items)])
}
