//! The one action of STS, GetCallerIdentity: tools call it first, to learn the owner of their keys.
//! Query protocol, by GET or POST; replies are XML.

use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::sigv4;
use evenkeel_wire::aws::xml::Element;

use crate::api::Api;
use crate::api::error::ApiError;
use crate::credentials::Credentials;
use evenkeel_os::clock;

/// The name of the service in signatures.
pub const SERVICE: &str = "sts";
/// The version of the API.
const VERSION: &str = "2011-06-15";
const NAMESPACE: &str = "https://sts.amazonaws.com/doc/2011-06-15/";
const ACTION: &str = "GetCallerIdentity";

impl Api {
    /// Checks a request and executes it; the result is the reply's document.
    ///
    /// # Errors
    /// EC2's errors for signatures and parameters; `InvalidAction` for other actions of STS.
    pub fn run_sts(
        &self,
        request: &sigv4::Request<'_>,
        request_id: &str,
    ) -> Result<String, ApiError> {
        let settings = &self.plane().settings;
        let scope = sigv4::Scope { region: settings.signed_region(), service: SERVICE };
        let Credentials { access_key_id, secret_access_key } = &self.credentials;
        let secret = |key: &str| (key == access_key_id).then(|| secret_access_key.clone());
        sigv4::verify(request, scope, secret, clock::unix_ms().0 / 1_000)?;
        let mut in_query = Params::decode(request.query.as_bytes())?;
        // These parameters belong to the signature, which is verified.
        in_query.retain(|name| !name.starts_with("X-Amz-"));
        let mut params = in_query.and(Params::decode(request.body)?)?;
        let action = params.take("Action").ok_or_else(ApiError::missing_action)?;
        if action != ACTION {
            let text = format!("The action {action} of STS is not supported; {ACTION} is.");
            return Err(ApiError::new("InvalidAction", text));
        }
        match params.take("Version") {
            Some(version) if version == VERSION => {}
            _ => {
                let text = format!("the parameter Version must be {VERSION}");
                return Err(ApiError::new("NoSuchVersion", text));
            }
        }
        if let Some(name) = params.first_name() {
            return Err(ApiError::unknown_parameter(name));
        }
        Ok(identity(&settings.account, request_id))
    }
}

/// Returns the reply. The server has one key, which has every right: it is that of the account's
/// root user, whose id is the account's number.
fn identity(account: &str, request_id: &str) -> String {
    let fields = [
        Element::text("Arn", format!("arn:aws:iam::{account}:root")),
        Element::text("UserId", account),
        Element::text("Account", account),
    ];
    let id = Element::text("RequestId", request_id);
    let mut root = Element::new(&format!("{ACTION}Response"));
    root.namespace = Some(NAMESPACE.into());
    root.children.push(Element::list(&format!("{ACTION}Result"), fields));
    root.children.push(Element::list("ResponseMetadata", [id]));
    root.document()
}

/// Returns the reply to a refused request.
#[must_use]
pub fn refusal(error: &ApiError, request_id: &str) -> String {
    let side = if error.is_the_servers() { "Receiver" } else { "Sender" };
    let fields = [("Type", side), ("Code", error.code), ("Message", error.message.as_str())];
    let fields = fields.map(|(name, text)| Element::text(name, text));
    let mut root = Element::new("ErrorResponse");
    root.namespace = Some(NAMESPACE.into());
    root.children.push(Element::list("Error", fields));
    root.children.push(Element::text("RequestId", request_id));
    root.document()
}
