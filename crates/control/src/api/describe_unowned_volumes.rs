//! DescribeUnownedVolumes (not EC2's): bytes at rest that no volume has, as a lost or an older
//! database leaves them behind.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};

pub const ACTION: Action = Action { name: "DescribeUnownedVolumes", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    // Takes no parameters: there is one store.
    call.args.done()?;
    let items = call.plane.unowned()?.into_iter().map(|(id, bytes)| {
        Element::list("item", [Element::text("volumeId", id), Element::text("bytes", bytes.0)])
    });
    Ok(vec![Element::list("unownedVolumeSet", items)])
}
