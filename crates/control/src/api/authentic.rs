//! Signatures and rights, for all services of the endpoint.

use std::net::IpAddr;

use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::sigv4::{self, Payload, Scope, SignatureError, Verified};

use super::error::ApiError;
use super::{Api, adopt_volume};
use crate::random;
use crate::rights::{self, Caller, Identity, Known, message};
use crate::trail::Asked;
use evenkeel_os::clock;

/// The service whose requests may be signed for any region: IAM has no regions.
const WITHOUT_REGION: &str = "iam";
/// Stands for the encoded message if it could not be made.
const NO_MESSAGE: &str = "none";

/// Returns the parameters of a request whose signature is verified: of its query and of its body.
///
/// # Errors
/// They cannot be decoded, or one is given twice.
pub(crate) fn parameters(request: &sigv4::Request<'_>) -> Result<Params, ApiError> {
    let mut in_query = Params::decode(request.query.as_bytes())?;
    // These belong to the signature.
    in_query.retain(|name| !name.starts_with("X-Amz-"));
    Ok(in_query.and(Params::decode(request.body)?)?)
}

/// The signer has no right to the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unauthorized {
    /// The user, the action, the resource and the reason.
    pub text: String,
    /// The encoded message with all facts.
    pub encoded: String,
}

impl Unauthorized {
    /// Returns the error of the services other than EC2.
    #[must_use]
    pub fn denied(self) -> ApiError {
        ApiError { status: 403, code: "AccessDenied", message: self.text }
    }
}

impl From<Unauthorized> for ApiError {
    fn from(unauthorized: Unauthorized) -> Self {
        let Unauthorized { text, encoded } = unauthorized;
        let message = format!(
            "You are not authorized to perform this operation. {text}. Encoded authorization \
             failure message: {encoded}"
        );
        Self { status: 403, code: "UnauthorizedOperation", message }
    }
}

impl Api {
    fn scope<'a>(&'a self, service: &'a str) -> Scope<'a> {
        let region = self.plane.settings.signed_region();
        let region = if service == WITHOUT_REGION { "" } else { region };
        Scope { region, service }
    }

    /// Checks the parts of a request's signature for this service that do not need the body.
    ///
    /// # Errors
    /// See [`sigv4::verify_head`].
    pub fn check_head(
        &self,
        request: &sigv4::Request<'_>,
        service: &str,
    ) -> Result<(), SignatureError> {
        let is_known =
            |key: &str| key == self.credentials.access_key_id || self.plane.keyring().has(key);
        let now_s = clock::unix_ms().0 / 1_000;
        sigv4::verify_head(request, self.scope(service), is_known, now_s)
    }

    /// Checks the signature of a request from `address`. Returns its signer.
    ///
    /// # Errors
    /// EC2's errors for signatures.
    pub fn signer(
        &self,
        request: &sigv4::Request<'_>,
        service: &str,
        address: IpAddr,
    ) -> Result<Caller, ApiError> {
        let (_, caller) = self.verify(request, service, address)?;
        Ok(caller)
    }

    /// Checks the signature of a request from `address`.
    ///
    /// # Errors
    /// See [`sigv4::verify`].
    pub(crate) fn verify(
        &self,
        request: &sigv4::Request<'_>,
        service: &str,
        address: IpAddr,
    ) -> Result<(Verified, Caller), SignatureError> {
        let hash = sigv4::sha256_hex(request.body);
        self.verify_hashed(request, Payload::Signed(&hash), service, address)
    }

    /// Checks the signature as [`Self::verify`], with the hash of the body from the caller.
    ///
    /// # Errors
    /// See [`sigv4::verify_hashed`].
    pub(crate) fn verify_hashed(
        &self,
        request: &sigv4::Request<'_>,
        payload: Payload<'_>,
        service: &str,
        address: IpAddr,
    ) -> Result<(Verified, Caller), SignatureError> {
        let mut identity = Identity::Root;
        let secret = |key: &str| {
            if key == self.credentials.access_key_id {
                return Some(self.credentials.secret_access_key.clone());
            }
            let (secret, principal) = self.plane.keyring().find(key)?;
            identity = Identity::User(principal);
            Some(secret)
        };
        let now_s = clock::unix_ms().0 / 1_000;
        let scope = self.scope(service);
        let verified = sigv4::verify_hashed(request, payload, scope, secret, now_s)?;
        let access_key_id = verified.access_key_id.clone();
        Ok((verified, Caller { identity, address, access_key_id }))
    }

    /// Checks that the caller may execute the action.
    ///
    /// # Errors
    /// [`Unauthorized`].
    pub(crate) fn authorize(&self, asked: &Asked<'_>) -> Result<(), Unauthorized> {
        let Asked { caller, service, action, params, .. } = *asked;
        let Identity::User(principal) = &caller.identity else { return Ok(()) };
        let settings = &self.plane.settings;
        // Without such bytes the action is refused, whatever the rights.
        let adopted = (action == adopt_volume::ACTION.name).then(|| params.get("VolumeId"));
        let adopted = adopted.flatten().and_then(|id| id.parse().ok());
        let stored = adopted.and_then(|id| self.plane.unowned_volume(id).ok());
        let stored = stored.as_ref();
        let experiments = self.plane.experiments();
        let known = Known { model: &self.plane.model(), settings, experiments, stored };
        let checked = rights::check(caller, (service, action), params, &known);
        checked.map_err(|refused| {
            let secret = &self.credentials.secret_access_key;
            let encoded = random::nonce()
                .ok()
                .and_then(|nonce| message::seal(secret, &refused, &principal.id, nonce));
            let encoded = encoded.unwrap_or_else(|| NO_MESSAGE.to_owned());
            Unauthorized { text: refused.text(), encoded }
        })
    }
}
