//! The volumes and the metrics of an account at AWS: the calls of the AWS CLI that ask for them,
//! and their answers. The caller runs the calls.

pub mod answers;
pub mod queries;

use crate::case::rules_of;
use crate::fleet::list::{self, List, Options};
use crate::refusal::{Cause, Refusal};
use evenkeel_core::volume::Date;
use serde_json::Value;

/// The policy of IAM with the two actions that are needed. Neither has resources.
pub const POLICY: &str = r#"{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "EvenkeelPlan",
      "Effect": "Allow",
      "Action": ["ec2:DescribeVolumes", "cloudwatch:GetMetricData"],
      "Resource": "*"
    }
  ]
}
"#;

/// Reads the answer of `aws ec2 describe-volumes`, by the rules of a day.
///
/// # Errors
/// If none of its volumes can be judged.
pub fn volumes(text: &[u8], as_of: Option<Date>, region: Option<&str>) -> Result<List, Refusal> {
    let what = "aws ec2 describe-volumes";
    let has_none = serde_json::from_slice::<Value>(text)
        .is_ok_and(|value| value["Volumes"].as_array().is_some_and(Vec::is_empty));
    if has_none {
        return Err(Refusal::new(format!("{what} lists no volume in this region"))
            .cause(Cause::NotFound)
            .hint("name another region with --region, or another account with --profile"));
    }
    let options = Options { region, group_by: None, allows_partial: false };
    let list = list::read(&mut &text[..], rules_of(as_of)?, options);
    let mut list = list.map_err(|broken| Refusal::new(format!("{what}: {broken}")))?;
    // The ids become names of files.
    list.volumes.retain(|volume| is_id(&volume.id));
    match list.refused.first().filter(|_| list.volumes.is_empty()) {
        Some(refused) => {
            let message = format!("{what}: no volume can be judged; {}", refused.reason);
            Err(Refusal::new(message).cause(Cause::Question))
        }
        None if list.volumes.is_empty() => {
            Err(Refusal::new(format!("{what}: no volume has an id such as vol-0123456789abcdef0")))
        }
        None => Ok(list),
    }
}

fn is_id(id: &str) -> bool {
    id.strip_prefix("vol-")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_json_with_the_two_actions() {
        let policy: Value = serde_json::from_str(POLICY).unwrap();
        let actions = policy["Statement"][0]["Action"].as_array().unwrap();
        assert_eq!(actions.len(), 2, "{policy}");
    }

    #[test]
    fn an_id_is_the_name_of_a_file() {
        assert!(is_id("vol-0123456789abcdef0") && is_id("vol-049df61146c4d7901"));
        for id in ["vol-", "vol-..", "vol-0/1", "../vol-01", "vol-0x"] {
            assert!(!is_id(id), "{id}");
        }
    }
}
