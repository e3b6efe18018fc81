//! The encoded message of a refusal, which only this server opens.
//!
//! A message is sealed with AES-256-GCM (NIST SP 800-38D) by a key that is derived from the secret
//! of the root user, so all nodes of a cluster have the same. It names the user, the action, the
//! resource and the facts of a request, and no secret. `sts decode-authorization-message` opens it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_wire::aws::sigv4::hmac;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::{Value, json};

use super::Refused;

/// Maximum number of characters of an encoded message: STS's own.
pub const ENCODED_MAX: usize = 10_240;
/// Maximum of bytes of a message. In base64, with nonce and tag, they are below [`ENCODED_MAX`].
const PLAIN_BYTES_MAX: usize = 7_000;
/// The purpose of the derived key.
const PURPOSE: &[u8] = b"evenkeel-authorization-message";
/// The form of a message: its first byte.
const FORM: u8 = 1;

fn key(secret: &str) -> Option<LessSafeKey> {
    let key = hmac(secret.as_bytes(), PURPOSE);
    UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
}

/// Returns the encoded message of a refusal; `None` if the cipher fails.
#[must_use]
pub fn seal(
    secret: &str,
    refused: &Refused,
    user_id: &str,
    nonce: [u8; NONCE_LEN],
) -> Option<String> {
    let mut bytes = content(refused, user_id, true);
    if bytes.len() > PLAIN_BYTES_MAX {
        bytes = content(refused, user_id, false);
    }
    let sealing = Nonce::assume_unique_for_key(nonce);
    key(secret)?.seal_in_place_append_tag(sealing, Aad::from([FORM]), &mut bytes).ok()?;
    let whole: Vec<u8> = [FORM].into_iter().chain(nonce).chain(bytes).collect();
    Some(URL_SAFE_NO_PAD.encode(whole))
}

/// Returns the text of an encoded message; `None` if this server has not made it.
#[must_use]
pub fn open(secret: &str, encoded: &str) -> Option<String> {
    if encoded.len() > ENCODED_MAX {
        return None;
    }
    let whole = URL_SAFE_NO_PAD.decode(encoded).ok()?;
    let (form, rest) = whole.split_first().filter(|(form, _)| **form == FORM)?;
    let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
    let mut sealed = sealed.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let text = key(secret)?.open_in_place(nonce, Aad::from([*form]), &mut sealed).ok()?;
    String::from_utf8(text.to_vec()).ok()
}

/// Returns the JSON of a refusal in the form of AWS. Without `has_facts` the conditions are left
/// out, because they would not fit.
fn content(refused: &Refused, user_id: &str, has_facts: bool) -> Vec<u8> {
    let Refused { user, request, is_explicit, statements } = refused;
    let items = |all: Vec<Value>| json!({ "items": all });
    let value = |value: &String| json!({ "value": value });
    let fact = |(key, values): (&str, &[String])| {
        let values = items(values.iter().map(value).collect());
        json!({ "key": key, "values": values })
    };
    let facts: Vec<Value> =
        if has_facts { request.context.iter().map(fact).collect() } else { Vec::new() };
    let statement =
        |(policy, sid): &(String, String)| json!({ "sourcePolicyId": policy, "statementId": sid });
    // Of many statements the first tell enough.
    let statements = statements.iter().take(8).map(statement).collect();
    let name = user.rsplit('/').next().unwrap_or_default();
    let message = json!({
        "allowed": false,
        "explicitDeny": is_explicit,
        "matchedStatements": items(statements),
        "failures": items(Vec::new()),
        "context": {
            "principal": { "id": user_id, "name": name, "arn": user },
            "action": request.action,
            "resource": request.resource,
            "conditions": items(facts),
        },
    });
    message.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_iam::{Context, Request};

    fn refused(facts: usize) -> Refused {
        let mut context = Context::default();
        for number in 0..facts {
            context.add(format!("aws:ResourceTag/{number}"), vec!["v".repeat(256)]);
        }
        let action = "ec2:DeleteVolume".to_owned();
        let resource = format!("arn:aws:ec2:local-1:000000000000:volume/{}", "x".repeat(2_000));
        let request = Request { action, resource, context };
        let statements = vec![("p".repeat(128), "s".repeat(64)); 40];
        let user = format!("arn:aws:iam::000000000000:user/{}ann", "p/".repeat(256));
        Refused { user, request, is_explicit: true, statements }
    }

    #[test]
    fn a_message_is_opened_with_its_secret_only_and_is_bounded() {
        for facts in [0, 3, 100] {
            let sealed = seal("secret", &refused(facts), "AIDA", [7; NONCE_LEN]).unwrap();
            assert!(sealed.len() <= ENCODED_MAX, "{}", sealed.len());
            let opened: Value = serde_json::from_str(&open("secret", &sealed).unwrap()).unwrap();
            assert_eq!(opened["context"]["action"], "ec2:DeleteVolume");
            assert_eq!(opened["context"]["principal"]["name"], "ann");
            assert_eq!(opened["explicitDeny"], true);
            let conditions = opened["context"]["conditions"]["items"].as_array().unwrap();
            assert_eq!(conditions.len(), if facts > 20 { 0 } else { facts });
            assert_eq!(open("other", &sealed), None);
            for place in [0, 5, sealed.len() / 2, sealed.len() - 2] {
                let mut bytes = sealed.clone().into_bytes();
                bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
                assert_eq!(open("secret", &String::from_utf8(bytes).unwrap()), None, "{place}");
            }
        }
        for text in ["", "AQ", "!", &"A".repeat(ENCODED_MAX + 1), &"A".repeat(100)] {
            assert_eq!(open("secret", text), None);
        }
    }
}
