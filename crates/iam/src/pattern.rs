//! Names of actions and resources with wildcards.

/// Returns whether `text` matches `pattern`, in which `*` stands for any text and `?` for any one
/// character. The cost is linear in both lengths, and bounded by their product if a `?` stands
/// between two `*`.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = after_start(first, text) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    // Each part matches as early as possible, which leaves the most to the others.
    for part in parts {
        let Some(after) = after_first(part, rest) else { return false };
        rest = after;
    }
    let mut letters = rest.chars().rev();
    last.chars().rev().all(|wanted| letters.next().is_some_and(|found| is_one(wanted, found)))
}

const fn is_one(wanted: char, found: char) -> bool {
    wanted == '?' || wanted == found
}

/// Returns what follows in `text` after `part`, which has no `*`, at its start.
fn after_start<'a>(part: &str, text: &'a str) -> Option<&'a str> {
    let mut letters = text.chars();
    part.chars()
        .all(|wanted| letters.next().is_some_and(|found| is_one(wanted, found)))
        .then_some(letters.as_str())
}

/// Returns what follows in `text` after the first place of `part`, which has no `*`.
fn after_first<'a>(part: &str, text: &'a str) -> Option<&'a str> {
    if !part.contains('?') {
        // The standard library's search is linear.
        return text.split_once(part).map(|(_, after)| after);
    }
    let mut rest = text.chars();
    loop {
        if let Some(after) = after_start(part, rest.as_str()) {
            return Some(after);
        }
        rest.next()?;
    }
}

/// The actions that a statement names: `ec2:Describe*`, or `*`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionPattern(String);

impl ActionPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The text names no service, or has wildcards in it. The error has the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_name = |name: &str, more: &[char]| {
            let is_part = |letter: char| letter.is_ascii_alphanumeric() || more.contains(&letter);
            !name.is_empty() && name.chars().all(is_part)
        };
        let is_action = text == "*"
            || text.split_once(':').is_some_and(|(service, name)| {
                is_name(service, &['-']) && is_name(name, &['*', '?'])
            });
        if is_action {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(format!(
                "the action '{text}' must be '*', or a service and a name, such as ec2:Describe*"
            ))
        }
    }

    /// Returns the number of bytes of the pattern.
    pub const fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the pattern matches an action, whose case does not matter.
    pub fn matches(&self, action: &str) -> bool {
        matches(&self.0, &action.to_ascii_lowercase())
    }
}

/// Number of fields of an ARN: `arn`, partition, service, region, account, resource.
const ARN_FIELDS: usize = 6;
/// Number of fields of an ARN that a pattern must have; the others match anything.
const ARN_FIELDS_MIN: usize = 3;

/// The resources that a statement names: an ARN with wildcards, or `*`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResourcePattern {
    /// `*`.
    Any,
    /// The fields of an ARN, each a pattern.
    Arn(Vec<String>),
}

impl ResourcePattern {
    /// Reads a pattern. The fields that an ARN lacks at its end match anything.
    ///
    /// # Errors
    /// The text is neither `*` nor an ARN. The error has the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if text.contains("${") {
            return Err(format!(
                "the resource '{text}' has a policy variable, which is not evaluated"
            ));
        }
        let mut fields: Vec<String> = text.splitn(ARN_FIELDS, ':').map(str::to_owned).collect();
        let is_arn = fields.len() >= ARN_FIELDS_MIN
            && fields.first().is_some_and(|first| first == "arn")
            && fields.get(2).is_some_and(|service| !service.contains(['*', '?']));
        if !is_arn {
            return Err(format!("Resource {text} must be in ARN format or \"*\"."));
        }
        fields.resize(ARN_FIELDS, "*".to_owned());
        Ok(Self::Arn(fields))
    }

    /// Returns the number of bytes of the pattern.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Any => 1,
            Self::Arn(fields) => fields.iter().map(String::len).sum(),
        }
    }

    /// Returns whether the pattern matches a resource: an ARN, or `*` of an action without one.
    pub fn matches(&self, resource: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Arn(patterns) => {
                let fields: Vec<&str> = resource.splitn(ARN_FIELDS, ':').collect();
                fields.len() == patterns.len()
                    && patterns.iter().zip(fields).all(|(pattern, field)| matches(pattern, field))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_any_text_and_for_one_character() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("**", "x", true),
            ("?", "", false),
            ("?", "é", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("a*b*c", "aXbXbXc", true),
            ("*ab", "aab", true),
            ("volume/*", "volume/*", true),
            ("a?c", "abbc", false),
            ("a*a", "a", false),
            ("ab*ba", "aba", false),
            ("*a?*c", "aabcc", true),
            ("*?é?*", "éé", false),
            ("*?é?*x", "ééax", true),
            ("**?", "ü", true),
            ("*??", "ü", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_is_decided_in_bounded_work() {
        assert!(!matches(&"*a".repeat(2_000), &"a".repeat(1_999)));
        assert!(matches(&"*a".repeat(2_000), &"a".repeat(2_000)));
    }

    #[test]
    fn actions_have_a_service_and_no_case() {
        assert!(ActionPattern::parse("EC2:describe*").unwrap().matches("ec2:DescribeVolumes"));
        assert!(ActionPattern::parse("*").unwrap().matches("iam:CreateUser"));
        assert!(!ActionPattern::parse("ec2:*").unwrap().matches("ebs:GetSnapshotBlock"));
        for text in ["", "ec2", "ec2:", ":x", "e*:x", "*:*", "ec2:a b", "ec2:${x}", "ec2:a:b"] {
            assert!(ActionPattern::parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn resources_match_field_by_field() {
        let volume = "arn:aws:ec2:local-1:000000000000:volume/vol-1";
        for (pattern, expected) in [
            ("*", true),
            ("arn:aws:ec2:*:*:volume/*", true),
            ("arn:aws:ec2:local-?:000000000000:volume/vol-1", true),
            ("arn:aws:ec2", true),
            ("arn:aws:ec2:*", true),
            ("arn:aws:ec2:*:volume/*", false),
            ("arn:aws:ec2::*:volume/*", false),
            ("arn:aws:ec2:*:*:snapshot/*", false),
            ("arn:aws:ebs:*:*:volume/*", false),
        ] {
            assert_eq!(ResourcePattern::parse(pattern).unwrap().matches(volume), expected);
        }
        // Only `*` matches an action without resources.
        assert!(ResourcePattern::Any.matches("*"));
        assert!(!ResourcePattern::parse("arn:*:ec2:*:*:*").unwrap().matches("*"));
        for text in ["", "x", "arn:aws", "volume/*", "arn:aws:*:*:*:*", "arn:aws:ec2:::${x}"] {
            assert!(ResourcePattern::parse(text).unwrap_err().contains(text), "{text}");
        }
    }
}
