//! The parameters of an action. Each accessor removes its parameter, and [`Args::done`] returns an
//! error if an unknown one is left.

use std::fmt::Display;
use std::str::FromStr;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::aws::query::Params;

use super::error::{ApiError, lower_camel};
use super::filter::Filters;
use super::page::Page;
use crate::model::{Refusal, Settings, Tags};

/// Maximum number of characters of a tag's key.
const TAG_KEY_MAX: usize = 128;
/// Maximum number of characters of a tag's value.
const TAG_VALUE_MAX: usize = 256;
/// Number of hexadecimal digits of the ids that EC2 made until 2018.
const SHORT_ID_DIGITS: usize = 8;
/// Maximum of bytes of a client token.
const CLIENT_TOKEN_MAX: usize = 64;

/// The parameters that have not been read yet.
#[derive(Debug)]
pub struct Args {
    params: Params,
}

impl Args {
    /// Creates the arguments from all parameters of a request except `Action` and `Version`.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self { params }
    }

    /// Takes a text; an empty text counts as absent.
    pub fn text(&mut self, name: &str) -> Option<String> {
        self.params.take(name).filter(|value| !value.is_empty())
    }

    /// Takes a required text.
    ///
    /// # Errors
    /// `MissingParameter`.
    pub fn required(&mut self, name: &str) -> Result<String, ApiError> {
        self.text(name).ok_or_else(|| ApiError::missing(name))
    }

    /// Takes `true` or `false`.
    ///
    /// # Errors
    /// `InvalidParameterValue`.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.parsed(name, "Must be true or false", truth)
    }

    /// Takes a whole number, zero or more.
    ///
    /// # Errors
    /// `InvalidParameterValue`.
    pub fn number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        // Rust's parser would accept "+5".
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let is_number = self.params.get(name).is_some_and(|text| !text.is_empty() && plain(text));
        let problem = if is_number {
            "It is too large"
        } else {
            "Must be a whole number that is not negative"
        };
        self.parsed(name, problem, |text| text.parse().ok().filter(|_| plain(text)))
    }

    /// Takes a volume type.
    ///
    /// # Errors
    /// `UnknownVolumeType`.
    pub fn volume_type(&mut self, name: &str) -> Result<Option<VolumeType>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            let message = format!("Unsupported volume type '{text}' for volume creation.");
            ApiError::new("UnknownVolumeType", message)
        })
    }

    /// Takes a required volume id.
    ///
    /// # Errors
    /// `MissingParameter`, `InvalidVolumeID.Malformed`.
    pub fn volume_id(&mut self, name: &str) -> Result<VolumeId, ApiError> {
        volume_id(&self.required(name)?)
    }

    /// Takes a required snapshot id.
    ///
    /// # Errors
    /// `MissingParameter`, `InvalidSnapshotID.Malformed`.
    pub fn snapshot_id(&mut self, name: &str) -> Result<SnapshotId, ApiError> {
        snapshot_id(&self.required(name)?)
    }

    /// Takes a host id.
    ///
    /// # Errors
    /// `InvalidInstanceID.Malformed`.
    pub fn instance_id(&mut self, name: &str) -> Result<Option<InstanceId>, ApiError> {
        self.text(name).as_deref().map(instance_id).transpose()
    }

    /// Takes a list of volume ids.
    ///
    /// # Errors
    /// `InvalidVolumeID.Malformed`.
    pub fn volume_ids(&mut self, name: &str) -> Result<Vec<VolumeId>, ApiError> {
        self.list(name).iter().map(|text| volume_id(text)).collect()
    }

    /// Takes a list of snapshot ids.
    ///
    /// # Errors
    /// `InvalidSnapshotID.Malformed`.
    pub fn snapshot_ids(&mut self, name: &str) -> Result<Vec<SnapshotId>, ApiError> {
        self.list(name).iter().map(|text| snapshot_id(text)).collect()
    }

    /// Takes a list of host ids.
    ///
    /// # Errors
    /// `InvalidInstanceID.Malformed`.
    pub fn instance_ids(&mut self, name: &str) -> Result<Vec<InstanceId>, ApiError> {
        self.list(name).iter().map(|text| instance_id(text)).collect()
    }

    /// Takes a list of texts.
    pub fn list(&mut self, name: &str) -> Vec<String> {
        self.params.take_list(name)
    }

    /// Takes a client token.
    ///
    /// # Errors
    /// `InvalidParameterValue`.
    pub fn client_token(&mut self) -> Result<Option<String>, ApiError> {
        let fits = |text: &str| text.is_ascii() && text.len() <= CLIENT_TOKEN_MAX;
        let hint = format!("Must have at most {CLIENT_TOKEN_MAX} ASCII characters");
        self.parsed("ClientToken", &hint, |text| fits(text).then(|| text.to_owned()))
    }

    /// Takes the filters; `known` are the names that the action supports.
    ///
    /// # Errors
    /// `InvalidParameterValue`, `FilterLimitExceeded`, `UnknownParameter`.
    pub fn filters(&mut self, known: &[&str]) -> Result<Filters, ApiError> {
        let mut filters = Vec::new();
        for (number, mut fields) in self.params.take_structures("Filter") {
            let name = fields.take("Name").filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| ApiError::missing(&format!("Filter.{number}.Name")))?;
            let values = fields.take_list("Value");
            nothing_left(&fields, &format!("Filter.{number}."))?;
            filters.push((name, values));
        }
        Filters::new(filters, known)
    }

    /// Takes the requested page of the results. `min..=max` are the page sizes that the action
    /// allows; a larger size counts as `max`.
    ///
    /// # Errors
    /// `InvalidParameterValue`, `InvalidPaginationToken`.
    pub fn page(&mut self, min: usize, max: usize) -> Result<Page, ApiError> {
        let wanted: Option<usize> = self.number("MaxResults")?;
        // SDKs that do not distinguish zero from an absent number send a zero: the EBS CSI driver
        // does.
        let wanted = wanted.filter(|wanted| *wanted > 0 || min == 1);
        if let Some(wanted) = wanted.filter(|wanted| *wanted < min) {
            return Err(ApiError::value(format!(
                "Value ( {wanted} ) for parameter maxResults is invalid. Expecting a value of at \
                 least {min}."
            )));
        }
        Page::new(wanted.map(|wanted| wanted.min(max)), self.text("NextToken"))
    }

    /// Takes the tags of a new resource (`TagSpecification.1.Tag.1.Key`).
    ///
    /// # Errors
    /// `InvalidParameterValue`, `UnknownParameter`.
    pub fn tag_specifications(&mut self, resource_type: &str) -> Result<Tags, ApiError> {
        let [tags] = self.tag_specifications_of([resource_type])?;
        Ok(tags)
    }

    /// Takes the tags of new resources of several types, in the order of these types.
    ///
    /// # Errors
    /// `InvalidParameterValue`, `UnknownParameter`.
    pub fn tag_specifications_of<const N: usize>(
        &mut self,
        resource_types: [&str; N],
    ) -> Result<[Tags; N], ApiError> {
        let mut all = [const { Tags::new() }; N];
        for (number, mut fields) in self.params.take_structures("TagSpecification") {
            let prefix = format!("TagSpecification.{number}.");
            let kind = fields.take("ResourceType");
            let kind = kind.ok_or_else(|| ApiError::missing(&format!("{prefix}ResourceType")))?;
            let place = resource_types.iter().position(|known| *known == kind);
            let Some(tags) = place.and_then(|place| all.get_mut(place)) else {
                return Err(ApiError::value(format!(
                    "'{kind}' is not a valid taggable resource type for this operation."
                )));
            };
            if !tags.is_empty() {
                let text = "The same resource type may not be specified more than once in tag \
                            specifications";
                return Err(ApiError::value(text));
            }
            let mut fields = Self::new(fields);
            *tags = fields.tags(&prefix)?;
            nothing_left(&fields.params, &prefix)?;
            if tags.is_empty() {
                return Err(ApiError::value("Tag specification must have at least one tag"));
            }
        }
        Ok(all)
    }

    /// Takes a list of structures: the number of each, and its fields.
    pub fn structures(&mut self, name: &str) -> Vec<(u32, Self)> {
        let all = self.params.take_structures(name).into_iter();
        all.map(|(number, fields)| (number, Self::new(fields))).collect()
    }

    /// Takes the fields of one structure (`Ebs.VolumeSize`).
    #[must_use]
    pub fn nested(&mut self, name: &str) -> Self {
        Self::new(self.params.take_structure(name))
    }

    /// Checks that every field of a structure was read; `prefix` is for error messages.
    ///
    /// # Errors
    /// `UnknownParameter`.
    pub fn structure_done(&self, prefix: &str) -> Result<(), ApiError> {
        nothing_left(&self.params, prefix)
    }

    /// Takes the request for encryption, by `Encrypted` and `KmsKeyId`; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidParameterDependency`, `InvalidParameterValue`.
    pub fn encryption(&mut self, settings: &Settings) -> Result<Option<bool>, ApiError> {
        let is_encrypted = self.boolean("Encrypted")?;
        let Some(name) = self.text("KmsKeyId") else { return Ok(is_encrypted) };
        if is_encrypted != Some(true) {
            let text = "The parameter [KmsKeyId] requires the parameter Encrypted to be set.";
            return Err(ApiError::new("InvalidParameterDependency", text));
        }
        check_key(settings, &name)?;
        Ok(is_encrypted)
    }

    /// Takes tags (`Tag.1.Key`, `Tag.1.Value`); `prefix` is for error messages.
    ///
    /// # Errors
    /// `InvalidParameterValue`, `UnknownParameter`, `MissingParameter`.
    pub fn tags(&mut self, prefix: &str) -> Result<Tags, ApiError> {
        let mut tags = Tags::new();
        for (key, value) in self.tag_pairs(prefix)? {
            if key.starts_with("aws:") {
                let text = "Tag keys starting with 'aws:' are reserved for internal use";
                return Err(ApiError::value(text));
            }
            if tags.insert(key.clone(), value.unwrap_or_default()).is_some() {
                return Err(duplicate_key(&key));
            }
        }
        Ok(tags)
    }

    /// Takes tags whose value is optional, as in DeleteTags.
    ///
    /// # Errors
    /// As [`Self::tags`].
    pub fn tag_pairs(&mut self, prefix: &str) -> Result<Vec<(String, Option<String>)>, ApiError> {
        let mut pairs = Vec::new();
        for (number, mut fields) in self.params.take_structures("Tag") {
            let place = format!("{prefix}Tag.{number}.");
            let key = fields.take("Key").filter(|key| !key.is_empty());
            let key = key.ok_or_else(|| ApiError::missing(&format!("{place}Key")))?;
            let value = fields.take("Value");
            nothing_left(&fields, &place)?;
            tag_text("key", &key, TAG_KEY_MAX)?;
            tag_text("value", value.as_deref().unwrap_or_default(), TAG_VALUE_MAX)?;
            pairs.push((key, value));
        }
        Ok(pairs)
    }

    /// Refuses an EC2 parameter that is known but not supported.
    ///
    /// # Errors
    /// `UnsupportedOperation` if the parameter is present.
    pub fn unsupported(&mut self, names: &[&str]) -> Result<(), ApiError> {
        match names.iter().find(|name| self.text(name).is_some()) {
            Some(name) => {
                Err(ApiError::unsupported(format!("The parameter {name} is not supported")))
            }
            None => Ok(()),
        }
    }

    /// Checks that every parameter was read. Actions call this before they change anything.
    ///
    /// # Errors
    /// `UnknownParameter`.
    pub fn done(&self) -> Result<(), ApiError> {
        nothing_left(&self.params, "")
    }

    fn parsed<T>(
        &mut self,
        name: &str,
        hint: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(text) = self.params.take(name) else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| invalid(name, &text, hint))
    }
}

/// Parses `true` or `false`.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn invalid(name: &str, value: &str, hint: impl Display) -> ApiError {
    let shown = lower_camel(name);
    ApiError::value(format!("Value ({value}) for parameter {shown} is invalid. {hint}."))
}

fn nothing_left(params: &Params, prefix: &str) -> Result<(), ApiError> {
    match params.first_name() {
        Some(name) => Err(ApiError::unknown_parameter(&format!("{prefix}{name}"))),
        None => Ok(()),
    }
}

fn duplicate_key(key: &str) -> ApiError {
    ApiError::value(format!("Duplicate tag key '{key}' specified."))
}

fn tag_text(what: &str, text: &str, max: usize) -> Result<(), ApiError> {
    if text.chars().count() > max {
        let message = format!("Tag {what} exceeds the maximum length of {max} characters");
        return Err(ApiError::value(message));
    }
    if text.chars().any(char::is_control) {
        return Err(ApiError::value(format!("Tag {what} must not contain control characters")));
    }
    Ok(())
}

/// Checks that a key is the store's.
///
/// # Errors
/// `InvalidParameterValue`.
pub fn check_key(settings: &Settings, name: &str) -> Result<(), ApiError> {
    let Some(key) = &settings.key else { return Err(Refusal::NoKey.into()) };
    if key.is_named(name, settings) {
        Ok(())
    } else {
        Err(invalid("KmsKeyId", name, format!("The store has one key: {}", key.arn(settings))))
    }
}

/// Returns the error for an id of the form that EC2 used until 2018, with 8 digits: no resource has
/// such an id here. `None` if it is not of that form.
pub(super) fn absent_short_id(text: &str) -> Option<ApiError> {
    let (kind, digits) = text.split_once('-')?;
    let is_lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() != SHORT_ID_DIGITS || !digits.bytes().all(is_lower_hex) {
        return None;
    }
    let (code, what) = match kind {
        "vol" => ("InvalidVolume.NotFound", "The volume"),
        "snap" => ("InvalidSnapshot.NotFound", "The snapshot"),
        "i" => ("InvalidInstanceID.NotFound", "The instance ID"),
        _ => return None,
    };
    Some(ApiError::new(code, format!("{what} '{text}' does not exist.")))
}

/// Parses an id; `malformed` creates the error for a text that is no id.
fn id<T: FromStr>(
    text: &str,
    prefix: &str,
    malformed: impl FnOnce() -> ApiError,
) -> Result<T, ApiError> {
    text.parse().map_err(|_| {
        let absent = absent_short_id(text).filter(|_| text.starts_with(prefix));
        absent.unwrap_or_else(malformed)
    })
}

/// Parses a volume id.
///
/// # Errors
/// `InvalidVolumeID.Malformed`; `InvalidVolume.NotFound` for an id of 8 digits.
pub fn volume_id(text: &str) -> Result<VolumeId, ApiError> {
    id(text, VolumeId::PREFIX, || {
        let message =
            format!("Value ({text}) for parameter volumeId is invalid. Expected: 'vol-...'.");
        ApiError::new("InvalidVolumeID.Malformed", message)
    })
}

/// Parses a snapshot id.
///
/// # Errors
/// `InvalidSnapshotID.Malformed`; `InvalidSnapshot.NotFound` for an id of 8 digits.
pub fn snapshot_id(text: &str) -> Result<SnapshotId, ApiError> {
    id(text, SnapshotId::PREFIX, || {
        let message =
            format!("Value ({text}) for parameter snapshotId is invalid. Expected: 'snap-...'.");
        ApiError::new("InvalidSnapshotID.Malformed", message)
    })
}

/// Parses a host id.
///
/// # Errors
/// `InvalidInstanceID.Malformed`; `InvalidInstanceID.NotFound` for an id of 8 digits.
pub fn instance_id(text: &str) -> Result<InstanceId, ApiError> {
    id(text, InstanceId::PREFIX, || {
        ApiError::new("InvalidInstanceID.Malformed", format!("Invalid id: \"{text}\""))
    })
}
