//! DescribeImages, DescribeVpcs, DescribeAddresses: resources of EC2 that do not exist here, for
//! tools that list them. All lists are empty, and an id is not found.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};

pub const IMAGES: Action =
    Action { name: "DescribeImages", mutates: false, run: |call| run(call, &IMAGES_KIND) };
pub const VPCS: Action =
    Action { name: "DescribeVpcs", mutates: false, run: |call| run(call, &VPCS_KIND) };
pub const ADDRESSES: Action =
    Action { name: "DescribeAddresses", mutates: false, run: |call| run(call, &ADDRESSES_KIND) };

/// A kind of resources.
struct Kind {
    /// The list in the reply.
    set: &'static str,
    /// Lists of ids in the request: the parameter, the error's code, and the words before the id.
    ids: &'static [(&'static str, &'static str, &'static str)],
    /// Lists in the request that select by other properties.
    lists: &'static [&'static str],
    /// Parameters that are true or false.
    flags: &'static [&'static str],
    /// Maximum number of results in a page; `None` if the action has no pages.
    results_max: Option<usize>,
    filters: &'static [&'static str],
}

const IMAGES_KIND: Kind = Kind {
    set: "imagesSet",
    ids: &[("ImageId", "InvalidAMIID.NotFound", "The image id")],
    lists: &["ExecutableBy", "Owner"],
    flags: &["IncludeDeprecated", "IncludeDisabled"],
    results_max: Some(1_000),
    filters: &[
        "architecture",
        "block-device-mapping.delete-on-termination",
        "block-device-mapping.device-name",
        "block-device-mapping.encrypted",
        "block-device-mapping.snapshot-id",
        "block-device-mapping.volume-size",
        "block-device-mapping.volume-type",
        "creation-date",
        "description",
        "image-id",
        "image-type",
        "is-public",
        "name",
        "owner-alias",
        "owner-id",
        "platform",
        "root-device-name",
        "root-device-type",
        "state",
        "tag:",
        "tag-key",
        "virtualization-type",
    ],
};

const VPCS_KIND: Kind = Kind {
    set: "vpcSet",
    ids: &[("VpcId", "InvalidVpcID.NotFound", "The vpc ID")],
    lists: &[],
    flags: &[],
    results_max: Some(1_000),
    filters: &["cidr", "is-default", "owner-id", "state", "tag:", "tag-key", "vpc-id"],
};

const ADDRESSES_KIND: Kind = Kind {
    set: "addressesSet",
    ids: &[
        ("AllocationId", "InvalidAllocationID.NotFound", "The allocation ID"),
        ("PublicIp", "InvalidAddress.NotFound", "The address"),
    ],
    lists: &[],
    flags: &[],
    results_max: None,
    filters: &[
        "allocation-id",
        "association-id",
        "instance-id",
        "network-border-group",
        "network-interface-id",
        "network-interface-owner-id",
        "private-ip-address",
        "public-ip",
        "tag:",
        "tag-key",
    ],
};

fn run(call: &mut Call<'_>, kind: &Kind) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let mut absent = None;
    for (parameter, code, words) in kind.ids {
        let first = args.list(parameter).into_iter().next();
        let error = |id: String| ApiError::new(code, format!("{words} '{id}' does not exist"));
        absent = absent.or(first.map(error));
    }
    for list in kind.lists {
        args.list(list);
    }
    for flag in kind.flags {
        args.boolean(flag)?;
    }
    args.filters(kind.filters)?;
    if let Some(results_max) = kind.results_max {
        args.page(5, results_max)?;
    }
    args.done()?;
    match absent {
        Some(error) => Err(error),
        None => Ok(vec![Element::new(kind.set)]),
    }
}
