//! Which errors of the EC2 API may be gone at the next try.

use crate::Fault;
use evenkeel_client::output::{Exit, Failure};

/// Codes of refusals that depend on the state of a volume or on other requests. The credentials can
/// be renewed. A refusal for want of capacity is none of them: it may last for hours, and another
/// way to grow may be accepted at once.
const LATER: [&str; 15] = [
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncorrectInstanceState",
    "IncorrectModificationState",
    "IncorrectState",
    "InternalError",
    "InternalFailure",
    "RequestExpired",
    "RequestLimitExceeded",
    "ResourceLimitExceeded",
    "ServiceUnavailable",
    "Unavailable",
    "VolumeInUse",
    "VolumeModificationRateExceeded",
];
/// The code of a refusal for want of capacity.
const NO_CAPACITY: &str = "InsufficientVolumeCapacity";
/// The text that the AWS CLI prints before the code of an error.
const AWS_START: &str = "An error occurred (";

/// Returns the code of the API's error in a message of either client; `None` if it has none.
pub fn code(message: &str) -> Option<&str> {
    let inner = match message.split_once(AWS_START) {
        Some((_, rest)) => rest.split_once(')')?.0,
        None => message.strip_suffix(')')?.rsplit_once('(')?.1,
    };
    let is_code = !inner.is_empty()
        && inner.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
        && inner.starts_with(|letter: char| letter.is_ascii_uppercase());
    is_code.then_some(inner)
}

/// Returns whether a fault is a refusal for want of capacity.
pub fn lacks_capacity(fault: &Fault) -> bool {
    matches!(fault, Fault::Refused(text) if text.contains(NO_CAPACITY))
}

/// Returns whether a failure is of an object that does not exist.
pub fn is_not_found(failure: &Failure) -> bool {
    failure.exit == Exit::NotFound
        || code(&failure.message).is_some_and(|code| code.ends_with(".NotFound"))
}

/// Returns the fault of a failure. Without a code of the API there was no answer.
pub fn fault(failure: &Failure) -> Fault {
    let text = match &failure.hint {
        Some(hint) if code(&failure.message).is_none() => format!("{}; {hint}", failure.message),
        _ => failure.message.clone(),
    };
    let is_later = match code(&failure.message) {
        None => failure.exit != Exit::Usage,
        Some(code) => LATER.contains(&code) || code.starts_with("Throttl"),
    };
    if is_later { Fault::Later(text) } else { Fault::Refused(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_both_clients_is_found() {
        let aws = "aws ec2 modify-volume failed: An error occurred (IncorrectModificationState) \
                   when calling the ModifyVolume operation: (see below)";
        assert_eq!(code(aws), Some("IncorrectModificationState"));
        assert_eq!(
            code("The volume 'vol-1' is gone. (InvalidVolume.NotFound)"),
            Some("InvalidVolume.NotFound")
        );
        for message in ["no server at 127.0.0.1:1", "something (else)", "()", "(A b)"] {
            assert_eq!(code(message), None, "{message}");
        }
    }

    #[test]
    fn fault_is_later_if_it_depends_on_state_or_load() {
        let made = |message: &str| fault(&Failure::new(message));
        for code in [
            "IncorrectState",
            "Throttling",
            "ThrottlingException",
            "RequestLimitExceeded",
            "VolumeModificationRateExceeded",
        ] {
            assert!(matches!(made(&format!("m ({code})")), Fault::Later(_)), "{code}");
        }
        for code in [
            "InvalidParameterValue",
            "UnauthorizedOperation",
            "VolumeLimitExceeded",
            "DryRun",
            NO_CAPACITY,
        ] {
            assert!(matches!(made(&format!("m ({code})")), Fault::Refused(_)), "{code}");
        }
        assert!(matches!(made("127.0.0.1:1 did not answer within 30 s"), Fault::Later(_)));
        let usage = Failure::new("endpoint a: expected http://HOST:PORT").exit(Exit::Usage);
        assert!(matches!(fault(&usage), Fault::Refused(_)));
    }
}
