//! DescribeAccountAttributes: returns the attributes of the account that drivers read.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};
use crate::model::HOSTS_MAX;

pub const ACTION: Action = Action { name: "DescribeAccountAttributes", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let names = call.args.list("AttributeName");
    call.args.done()?;
    // This server has no networks of its own.
    let known = [
        ("supported-platforms", "VPC".to_owned()),
        ("default-vpc", "none".to_owned()),
        ("max-instances", HOSTS_MAX.to_string()),
    ];
    let is_known = |name: &&String| known.iter().any(|(known, _)| known == name);
    if let Some(absent) = names.iter().find(|name| !is_known(name)) {
        return Err(ApiError::value(format!(
            "Value ({absent}) for parameter attributeName is invalid. Must be supported-platforms, \
             default-vpc or max-instances."
        )));
    }
    let wanted = known
        .into_iter()
        .filter(|(name, _)| names.is_empty() || names.iter().any(|wanted| wanted == name));
    let items = wanted.map(|(name, value)| {
        let value = Element::list("item", [Element::text("attributeValue", value)]);
        let values = Element::list("attributeValueSet", [value]);
        Element::list("item", [Element::text("attributeName", name), values])
    });
    Ok(vec![Element::list("accountAttributeSet", items)])
}
