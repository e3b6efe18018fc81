//! Parameters of IAM: names, paths and pages.

use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::validation;
use crate::api::args::Args;
use crate::api::error::ApiError;

/// Maximum number of characters of a user's name, and of a policy's.
const USER_NAME_MAX: usize = 64;
const POLICY_NAME_MAX: usize = 128;
/// Maximum number of characters of a path.
const PATH_MAX: usize = 512;
/// The usual number of items of a page, and the maximum.
const ITEMS_USUAL: usize = 100;
const ITEMS_MAX: usize = 1_000;
/// Maximum number of characters of a marker: it is a name or an ARN.
const MARKER_MAX: usize = 1_024;

fn name(parameter: &str, text: String, max: usize) -> Result<String, ApiError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(&byte);
    if !text.is_empty() && text.len() <= max && text.bytes().all(is_letter) {
        return Ok(text);
    }
    Err(validation(format!(
        "The specified value for {parameter} is invalid. It must contain only alphanumeric \
         characters and/or the following: +=,.@_- , 1 to {max} of them"
    )))
}

/// Checks the name of a new user.
pub fn new_user_name(text: String) -> Result<String, ApiError> {
    name("userName", text, USER_NAME_MAX)
}

/// Takes the name of a policy.
pub fn policy_name(args: &mut Args) -> Result<String, ApiError> {
    name("policyName", args.required("PolicyName")?, POLICY_NAME_MAX)
}

/// Takes the path of a new user.
pub fn path(args: &mut Args) -> Result<String, ApiError> {
    let path = args.text("Path").unwrap_or_else(|| "/".into());
    let is_path = path.starts_with('/') && path.ends_with('/');
    if is_path && path.len() <= PATH_MAX && path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(path);
    }
    Err(validation(format!(
        "The specified value for path is invalid. It must begin and end with / and contain only \
         visible ASCII characters, {PATH_MAX} at most"
    )))
}

/// The requested part of a list.
pub struct Page {
    after: Option<String>,
    max: usize,
}

impl Page {
    /// Takes `Marker` and `MaxItems`.
    pub fn of(args: &mut Args) -> Result<Self, ApiError> {
        let after = args.text("Marker");
        let max = args.number("MaxItems")?.unwrap_or(ITEMS_USUAL);
        if !(1..=ITEMS_MAX).contains(&max) {
            let text = format!("MaxItems is {max}; it must be 1 to {ITEMS_MAX}");
            return Err(validation(text));
        }
        if after.as_ref().is_some_and(|marker| marker.len() > MARKER_MAX) {
            let text = format!("Marker has more than {MARKER_MAX} characters");
            return Err(validation(text));
        }
        Ok(Self { after, max })
    }

    /// Returns a list of the items of this page, and the fields that tell whether others follow.
    /// `all` is ordered by its keys. A marker is the key of the last item of a page.
    pub fn list(
        &self,
        name: &str,
        all: impl IntoIterator<Item = (String, Element)>,
    ) -> Vec<Element> {
        let is_new = |key: &str| self.after.as_deref().is_none_or(|after| key > after);
        let mut rest = all.into_iter().filter(|(key, _)| is_new(key)).peekable();
        let mut items = Vec::new();
        let mut last = None;
        while items.len() < self.max
            && let Some((key, item)) = rest.next()
        {
            items.push(item);
            last = Some(key);
        }
        let is_truncated = rest.peek().is_some();
        let marker = last.filter(|_| is_truncated).map(|key| Element::text("Marker", key));
        let fields = [Element::list(name, items), Element::text("IsTruncated", is_truncated)];
        fields.into_iter().chain(marker).collect()
    }
}

/// Returns a point in time, as IAM writes it: in whole seconds.
pub fn time(name: &str, at: UnixMs) -> Element {
    let seconds_ms = at.0 / 1_000 * 1_000;
    Element::text(name, timestamp::extended(seconds_ms).replace(".000Z", "Z"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_wire::aws::query::Params;

    fn args(text: &str) -> Args {
        Args::new(Params::decode(text.as_bytes()).unwrap())
    }

    #[test]
    fn names_and_paths_are_those_of_iam() {
        assert!(new_user_name("a.b@c=,+-_1".into()).is_ok());
        for text in ["", "a b", "a/b", "ü", &"x".repeat(65)] {
            assert_eq!(new_user_name(text.into()).unwrap_err().code, "ValidationError", "{text}");
        }
        assert_eq!(path(&mut args("")).unwrap(), "/");
        assert_eq!(path(&mut args("Path=/a/b/")).unwrap(), "/a/b/");
        for text in ["Path=a", "Path=/a", "Path=/a%20b/", &format!("Path=/{}/", "x".repeat(511))] {
            assert_eq!(path(&mut args(text)).unwrap_err().code, "ValidationError", "{text}");
        }
    }

    #[test]
    fn pages_follow_each_other() {
        let all = || ["a", "b", "c"].map(|key| (key.to_owned(), Element::text("member", key)));
        let page = |text: &str| Page::of(&mut args(text)).unwrap().list("All", all());
        let shown = |fields: Vec<Element>| {
            let keys = fields[0].children.iter().map(|item| item.text.clone());
            let rest = fields[1..].iter().map(|field| field.text.clone());
            keys.chain(rest).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(page("")), "a b c false");
        assert_eq!(shown(page("MaxItems=2")), "a b true b");
        assert_eq!(shown(page("MaxItems=2&Marker=b")), "c false");
        assert_eq!(shown(page("MaxItems=3")), "a b c false");
        for text in ["MaxItems=0", "MaxItems=1001", &format!("Marker={}", "x".repeat(1_025))] {
            assert!(Page::of(&mut args(text)).is_err(), "{text}");
        }
    }
}
