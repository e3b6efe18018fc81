//! Faults from the ends of programs.

use super::job::Ended;
use crate::Fault;

/// Parts of messages of conditions that pass: of the kernel's errors and of `btrfs`.
const PASSING: [&str; 9] = [
    "another exclusive operation",
    "busy",
    "Cannot allocate memory",
    "in progress",
    "Interrupted",
    "Operation canceled",
    "Operation cancelled",
    "Resource temporarily unavailable",
    "signal ",
];

/// Parts of messages, with the next step.
const STEPS: [(&str, &str); 9] = [
    ("No space left", "add a volume, or compact, first"),
    ("Text file busy", "run swapoff for the swap file on it"),
    ("Read-only file system", "see dmesg, and mount it again"),
    ("Input/output error", "see dmesg and `btrfs device stats`"),
    ("appears to contain", "wipefs -a clears a device whose content is not needed"),
    ("unable to go below", "convert the profile, or add a volume, first"),
    ("No such file or directory", "attach the volume"),
    ("Operation not permitted", "run the agent as root"),
    ("Permission denied", "run the agent as root, with the capability CAP_SYS_RESOURCE"),
];

/// Returns the fault of a program that ended without success.
pub(super) fn fault(command: &str, ended: &Ended) -> Fault {
    let Ended { status, printed, said } = ended;
    let said = if said.is_empty() { printed.trim() } else { said.as_str() };
    let status = status.map_or_else(|| "a signal".to_owned(), |code| format!("status {code}"));
    let mut text = format!("{command}: ended with {status}: {said}");
    if let Some((_, step)) = STEPS.iter().find(|(part, _)| said.contains(part)) {
        text.push_str("; ");
        text.push_str(step);
    }
    if PASSING.iter().any(|part| said.contains(part)) {
        Fault::Later(text)
    } else {
        Fault::Refused(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(said: &str) -> Fault {
        let ended = Ended { status: Some(1), printed: String::new(), said: said.to_owned() };
        fault("btrfs device remove 2 /data", &ended)
    }

    #[test]
    fn message_without_room_is_refused_with_the_next_step() {
        let said = "ERROR: error removing devid 2: No space left on device";
        let text = format!(
            "btrfs device remove 2 /data: ended with status 1: {said}; add a volume, or compact, \
             first"
        );
        assert_eq!(of(said), Fault::Refused(text));
    }

    #[test]
    fn message_of_a_passing_condition_is_for_later() {
        let said = "ERROR: unable to start device remove, another exclusive operation 'balance' \
                    in progress";
        assert!(matches!(of(said), Fault::Later(_)));
        assert!(matches!(of("signal 9; "), Fault::Later(_)));
        assert!(matches!(of("ERROR: unknown"), Fault::Refused(_)));
    }
}
