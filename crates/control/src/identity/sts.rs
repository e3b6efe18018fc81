//! The actions of STS. GetCallerIdentity is what tools call first, to learn the owner of their
//! keys; every signer may. DecodeAuthorizationMessage opens the message of a refusal.

use evenkeel_wire::aws::xml::Element;

use super::Call;
use crate::api::error::ApiError;
use crate::rights::message::{self, ENCODED_MAX};

/// GetCallerIdentity.
pub fn identity(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    let identity = &call.caller.identity;
    let account = call.account();
    Ok(vec![
        Element::text("Arn", identity.arn(account)),
        Element::text("UserId", identity.id(account)),
        Element::text("Account", account),
    ])
}

/// DecodeAuthorizationMessage.
pub fn decode(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let encoded = call.args.required("EncodedMessage")?;
    call.args.done()?;
    let decoded = message::open(&call.root.secret_access_key, &encoded).ok_or_else(|| {
        let text = format!(
            "EncodedMessage is not a message of this server: it has {} characters, of \
             {ENCODED_MAX} at most; copy all of it from the error, and use the server that refused \
             the request",
            encoded.len()
        );
        ApiError::new("InvalidAuthorizationMessageException", text)
    })?;
    Ok(vec![Element::text("DecodedMessage", decoded)])
}
