//! `evenkeel man`: the manual and the reference of this program.

use crate::cli;
use evenkeel_cli::man::{self, Man};
use evenkeel_cli::reference::Introduction;
use evenkeel_client::output::Failure;

/// The parts of the reference that are not in the definition.
const INTRODUCTION: Introduction = Introduction {
    title: "The command line",
    source: "src/cli.rs",
    settings: "A flag with an environment variable is a setting: its name without the dashes is \
               its key in the configuration file\n(`evenkeel.toml`, or `--config FILE`).\n",
};

pub fn run(arguments: &Man) -> Result<(), Failure> {
    man::run(cli::command(), &INTRODUCTION, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_cli::reference::markdown;
    use evenkeel_client::output::Exit;

    #[test]
    fn every_verb_has_a_page() {
        fn check(command: &clap::Command, path: &[String]) {
            let text = man::page(cli::command(), path).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{path:?}");
            for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
                check(verb, &[path, &[verb.get_name().to_owned()]].concat());
            }
        }
        check(&cli::command(), &[]);
    }

    #[test]
    fn an_unknown_verb_is_a_usage_error() {
        let path = ["volume".to_owned(), "paint".to_owned()];
        let failure = man::page(cli::command(), &path).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(
            failure.to_string(),
            "error: there is no verb \"paint\"\n hint: `evenkeel help` lists the verbs"
        );
    }

    #[test]
    fn a_verb_shows_usage_defaults_and_variables() {
        let text = markdown(&cli::command(), &INTRODUCTION);
        let attach = text.split("## evenkeel volume attach\n").nth(1).unwrap();
        let attach = attach.split("\n## ").next().unwrap();
        assert!(attach.contains("evenkeel volume attach [OPTIONS] <VOLUME>\n"), "{attach}");
        assert!(attach.contains("- `--timeout <TIME>`: Longest wait"), "{attach}");
        assert!(!attach.contains("--endpoint"), "shared flags are listed once");
        assert_eq!(
            text.matches("- `--endpoint <URL>`: ").count(),
            19,
            "volume, snapshot, host, node, store, clock, fault, env, top, report, events, health, \
             plan and three of its verbs, record, prove, agent"
        );
        assert!(text.contains(
            "- `--data-dir <DIR>`: The server's data folder, for its credentials; if the default \
             one does not exist, that of the Debian package, /var/lib/evenkeel. Without \
             credentials, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are used. Default \
             `./evenkeel-data`. Variable `EVENKEEL_DATA_DIR`.\n"
        ));
        assert!(text.contains("evenkeel volume create [OPTIONS]\n"), "{text}");
        assert!(text.contains("evenkeel volume rm [OPTIONS] <VOLUME>...\n"));
        assert!(text.contains("`uring` (io_uring, one ring per core), `pread` ("));
    }
}
