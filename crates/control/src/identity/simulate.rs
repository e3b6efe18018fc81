//! SimulatePrincipalPolicy: what the policies of a user would decide.

use std::collections::BTreeSet;

use evenkeel_iam::{Context, Decision, Policy, Request, Statement, decide};
use evenkeel_wire::aws::xml::Element;

use super::Call;
use super::error::validation;
use super::policies::check_bytes;
use crate::api::args::Args;
use crate::api::error::ApiError;
use crate::model::User;
use crate::model::users::OWN_POLICIES_MAX;
use crate::rights::Principal;
use crate::rights::caller::{NamedPolicy, Origin};

/// Maximum number of decisions of a request.
const DECISIONS_MAX: usize = 1_000;
/// Maximum number of characters of an action's name, as at AWS.
const ACTION_MAX: usize = 128;
/// Maximum number of characters of a resource's ARN, as at AWS.
const ARN_MAX: usize = 2_048;
/// Maximum number of characters of a context key and of each of its values: that of a tag's value.
const CONTEXT_TEXT_MAX: usize = 256;
/// Maximum number of context keys and values of a request.
const CONTEXT_MAX: usize = 300;
/// Maximum number of comparisons of a byte of a policy with a byte of a request, in the worst case:
/// about a second of one core. A simulation is a read, of which few run at a time.
const COMPARISONS_MAX: usize = 1 << 28;

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
    check_lengths("ActionNames.member", &actions, ACTION_MAX)?;
    check_lengths("ResourceArns.member", &resources, ARN_MAX)?;
    if let Some(name) = actions.iter().find(|name| !is_action(name)) {
        let text = format!(
            "ActionNames has '{name}'; an action is named SERVICE:NAME without wildcards, such as \
             ec2:CreateVolume"
        );
        return Err(ApiError::new("InvalidInput", text));
    }
    let mut policies = policies_of(call, &source)?;
    policies.extend(given_policies(&given)?);
    check_comparisons(&policies, (&actions, &resources), &context)?;
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

fn is_action(name: &str) -> bool {
    let parts = name.split_once(':');
    parts.is_some_and(|(service, name)| !service.is_empty() && !name.is_empty())
        && !name.contains(['*', '?'])
}

fn check_lengths(list: &str, texts: &[String], max: usize) -> Result<(), ApiError> {
    texts.iter().zip(1..).try_for_each(|(text, number)| {
        check_length(&format!("{list}.{number}"), text.chars().count(), max)
    })
}

fn check_length(parameter: &str, characters: usize, max: usize) -> Result<(), ApiError> {
    if characters <= max {
        return Ok(());
    }
    let text = format!("{parameter} has {characters} characters; it must have {max} at most");
    Err(validation(text))
}

/// Returns the policies of a request. Each may be as long as those that PutUserPolicy accepts.
fn given_policies(documents: &[String]) -> Result<Vec<NamedPolicy>, ApiError> {
    let policy = |(document, number): (&String, u32)| {
        let parameter = format!("PolicyInputList.member.{number}");
        check_bytes(&parameter, document)?;
        let characters = document.chars().filter(|letter| !letter.is_whitespace()).count();
        let counted = format!("{parameter}, without white space,");
        check_length(&counted, characters, OWN_POLICIES_MAX)?;
        let policy = Policy::parse(document)
            .map_err(|why| ApiError::new("InvalidInput", format!("{parameter}: {why}")))?;
        let name = format!("PolicyInputList.{number}");
        Ok(NamedPolicy { name, origin: Origin::Given, policy })
    };
    documents.iter().zip(1..).map(policy).collect()
}

/// Checks that all decisions together compare [`COMPARISONS_MAX`] bytes at most.
fn check_comparisons(
    policies: &[NamedPolicy],
    (actions, resources): (&[String], &[String]),
    context: &Context,
) -> Result<(), ApiError> {
    // Managed policies are short and have no costly patterns.
    let compared = policies.iter().filter(|named| named.origin != Origin::Managed);
    let statements = compared.flat_map(|named| named.policy.statements());
    let of_policies: usize = statements.map(Statement::bytes).sum();
    let bytes = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
    let of_context: usize = context.iter().map(|(key, values)| key.len() + bytes(values)).sum();
    let decisions = actions.len().saturating_mul(resources.len());
    // Those of all decisions.
    let of_requests = bytes(actions)
        .saturating_mul(resources.len())
        .saturating_add(bytes(resources).saturating_mul(actions.len()))
        .saturating_add(of_context.saturating_mul(decisions));
    let comparisons = of_requests.saturating_mul(of_policies);
    if comparisons <= COMPARISONS_MAX {
        return Ok(());
    }
    Err(validation(format!(
        "{decisions} decisions have {of_requests} bytes of actions, resources and context, and the \
         policies {of_policies}: the product must be {COMPARISONS_MAX} at most; ask with fewer \
         resources or shorter policies"
    )))
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
    let mut count = 0;
    for (number, mut fields) in args.structures("ContextEntries.member") {
        let prefix = format!("ContextEntries.member.{number}.");
        let key = fields.required("ContextKeyName")?;
        let values = fields.list("ContextKeyValues.member");
        // Values are compared as the operator asks, whatever their declared type.
        fields.text("ContextKeyType");
        fields.structure_done(&prefix)?;
        let parameter = format!("{prefix}ContextKeyName");
        check_length(&parameter, key.chars().count(), CONTEXT_TEXT_MAX)?;
        let parameter = format!("{prefix}ContextKeyValues.member");
        check_lengths(&parameter, &values, CONTEXT_TEXT_MAX)?;
        count += 1 + values.len();
        context.add(key, values);
    }
    if count > CONTEXT_MAX {
        return Err(validation(format!(
            "ContextEntries has {count} keys and values; it must have {CONTEXT_MAX} at most"
        )));
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
