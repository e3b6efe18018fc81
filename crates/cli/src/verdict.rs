//! Ends of verbs whose verdict is not "kept": the message, the exit code and the next step.

use evenkeel_client::output::{Exit, Failure};
use evenkeel_lab::checker::Outcome;

/// The next step after a run that could not be decided.
pub const AGAIN: &str = "run it again when less runs beside it, or for longer with --time";

/// A verb's texts for outcomes other than "kept".
pub struct Says<'a> {
    /// Text for a broken one.
    pub broken: &'a str,
    /// Text for a server that is gone.
    pub gone: &'a str,
    /// The next step after either, if there is one.
    pub hint: Option<&'a str>,
    /// The next step after an undecided one.
    pub again: &'a str,
}

impl Says<'_> {
    /// Converts an outcome to the result of the verb.
    ///
    /// # Errors
    /// If it is not "kept"; with exit code 6 if it is undecided, and 1 otherwise.
    pub fn of(&self, outcome: Outcome) -> Result<(), Failure> {
        let failure = match outcome {
            Outcome::Kept => return Ok(()),
            Outcome::Undecided => {
                let undecided = Failure::new("no verdict could be reached");
                return Err(undecided.exit(Exit::Undecided).hint(self.again));
            }
            Outcome::ServerGone => Failure::new(self.gone),
            Outcome::Broken => Failure::new(self.broken),
        };
        Err(match self.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAYS: Says<'_> =
        Says { broken: "it is not met", gone: "it is gone", hint: None, again: AGAIN };

    #[test]
    fn a_verdict_has_one_exit_code_in_every_verb() {
        let code = |outcome| SAYS.of(outcome).map_or_else(|failure| failure.exit.code(), |()| 0);
        let outcomes =
            [Outcome::Kept, Outcome::Undecided, Outcome::ServerGone, Outcome::Broken].map(code);
        assert_eq!(outcomes, [0, 6, 1, 1]);
        // The page has the name and the code of each, too.
        let page = include_str!("../../../docs/operating/configuration.md");
        for (word, code) in [("kept", 0), ("undecided", 6), ("server gone", 1), ("broken", 1)] {
            assert!(page.contains(&format!("\n| {word} | {code} | ")), "{word} {code}");
        }
    }

    #[test]
    fn a_verdict_names_what_to_do() {
        let said = |says: &Says<'_>, outcome| says.of(outcome).unwrap_err().to_string();
        let undecided = format!("error: no verdict could be reached\n hint: {AGAIN}");
        assert_eq!(said(&SAYS, Outcome::Undecided), undecided);
        assert_eq!(said(&SAYS, Outcome::Broken), "error: it is not met");
        let with_hint = Says { hint: Some("look at it"), ..SAYS };
        assert_eq!(said(&with_hint, Outcome::ServerGone), "error: it is gone\n hint: look at it");
    }
}
