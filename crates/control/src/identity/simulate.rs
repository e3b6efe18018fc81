//! SimulatePrincipalPolicy: what the policies of a user would decide.

use std::collections::BTreeSet;

use evenkeel_iam::{Context, Decision, Policy, Request, decide};
use evenkeel_wire::aws::xml::Element;

use super::Call;
use super::error::validation;
use crate::api::args::Args;
use crate::api::error::ApiError;
use crate::model::User;
use crate::rights::Principal;
use crate::rights::caller::{NamedPolicy, Origin};

/// Maximum number of decisions of a request.
const DECISIONS_MAX: usize = 1_000;

pub fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let source = args.required("PolicySourceArn")?;
    let actions = args.list("ActionNames.member");
    let mut resources = args.list("ResourceArns.member");
    let given = args.list("PolicyInputList.member");
    let context = context(args)?;
    args.unsupported(&["CallerArn", "ResourceHandlingOption", "ResourceOwner", "ResourcePolicy"])?;
    args.done()?;
    if actions.is_empty() {
        return Err(ApiError::missing("ActionNames"));
    }
    if resources.is_empty() {
        resources.push("*".into());
    }
    let decisions = actions.len().saturating_mul(resources.len());
    if decisions > DECISIONS_MAX {
        let text = format!(
            "{} actions on {} resources are {decisions} decisions; a request may have \
             {DECISIONS_MAX} at most",
            actions.len(),
            resources.len()
        );
        return Err(validation(text));
    }
    let mut policies = policies_of(call, &source)?;
    for (document, number) in given.iter().zip(1..) {
        let policy = Policy::parse(document).map_err(|why| {
            ApiError::new("InvalidInput", format!("PolicyInputList.member.{number}: {why}"))
        })?;
        let name = format!("PolicyInputList.{number}");
        policies.push(NamedPolicy { name, origin: Origin::Given, policy });
    }
    let mut results = Vec::new();
    for action in &actions {
        for resource in &resources {
            let request = Request {
                action: action.clone(),
                resource: resource.clone(),
                context: context.clone(),
            };
            results.push(Element::list("member", result(&policies, &request)));
        }
    }
    let list = Element::list("EvaluationResults", results);
    Ok(vec![Element::text("IsTruncated", false), list])
}

/// Returns the policies of the user with this ARN.
fn policies_of(call: &Call<'_>, source: &str) -> Result<Vec<NamedPolicy>, ApiError> {
    let account = call.account();
    let model = call.plane.model();
    let name = source.rsplit('/').next().unwrap_or_default();
    let user = model.users.get(&User::key_of(name)).filter(|user| user.arn(account) == source);
    let user = user.ok_or_else(|| {
        let text = format!("The entity {source} cannot be found.");
        ApiError { status: 404, ..ApiError::new("NoSuchEntity", text) }
    })?;
    Ok(Principal::of(user, account).policies)
}

fn context(args: &mut Args) -> Result<Context, ApiError> {
    let mut context = Context::default();
    for (number, mut fields) in args.structures("ContextEntries.member") {
        let prefix = format!("ContextEntries.member.{number}.");
        let key = fields.required("ContextKeyName")?;
        let values = fields.list("ContextKeyValues.member");
        // Values are compared as the operator asks, whatever their declared type.
        fields.text("ContextKeyType");
        fields.structure_done(&prefix)?;
        context.add(key, values);
    }
    Ok(context)
}

fn result(policies: &[NamedPolicy], request: &Request) -> Vec<Element> {
    let verdict = decide(policies.iter().map(|named| &named.policy), request);
    let decision = match verdict.decision {
        Decision::Allowed => "allowed",
        Decision::ExplicitDeny => "explicitDeny",
        Decision::ImplicitDeny => "implicitDeny",
    };
    let matched = verdict.statements.iter().filter_map(|(number, _)| policies.get(*number));
    let matched = matched.map(|named| {
        let kind = match named.origin {
            Origin::Own | Origin::Given => "IAM Policy",
            Origin::Managed => "AWS Managed Policy",
        };
        let fields =
            [Element::text("SourcePolicyId", &named.name), Element::text("SourcePolicyType", kind)];
        Element::list("member", fields)
    });
    let statements = policies.iter().flat_map(|named| named.policy.statements());
    let missing: BTreeSet<&str> = statements
        .flat_map(|statement| statement.keys())
        .filter(|key| request.context.values(key).is_empty())
        .collect();
    let missing = missing.into_iter().map(|key| Element::text("member", key));
    vec![
        Element::text("EvalActionName", &request.action),
        Element::text("EvalResourceName", &request.resource),
        Element::text("EvalDecision", decision),
        Element::list("MatchedStatements", matched),
        Element::list("MissingContextValues", missing),
    ]
}
