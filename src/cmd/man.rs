//! `evenkeel man` and `evenkeel completions`: both are generated from the definition of verbs and
//! flags.

use crate::cli::{self, Completions, Man, ManFormat};
use crate::reference;
use evenkeel_client::output::{self, Exit, Failure};

pub fn run(arguments: &Man) -> Result<(), Failure> {
    let text = match arguments.format {
        ManFormat::Markdown => reference::markdown(&cli::command()),
        ManFormat::Roff => page(&arguments.verb)?,
    };
    output::print(&text)
}

pub fn completions(arguments: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut cli::command(), "evenkeel", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// The page of the verb at `path`.
fn page(path: &[String]) -> Result<String, Failure> {
    let mut root = cli::command();
    // Computes inherited properties: full names and global flags.
    root.build();
    let mut command = &root;
    for word in path {
        command = command.find_subcommand(word).ok_or_else(|| {
            Failure::new(format!("there is no verb {word:?}"))
                .exit(Exit::Usage)
                .hint("`evenkeel help` lists the verbs")
        })?;
    }
    let name = command.get_display_name().unwrap_or("evenkeel").to_owned();
    let mut roff = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(name)
        .section("1")
        // No date, so that the page of a version is always the same.
        .date("")
        .render(&mut roff)
        .map_err(|error| Failure::new(format!("manual page: {error}")))?;
    Ok(String::from_utf8_lossy(&roff).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page() {
        fn check(command: &clap::Command, path: &[String]) {
            let text = page(path).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{path:?}");
            for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
                check(verb, &[path, &[verb.get_name().to_owned()]].concat());
            }
        }
        check(&cli::command(), &[]);
    }

    #[test]
    fn an_unknown_verb_is_a_usage_error() {
        let failure = page(&["volume".to_owned(), "paint".to_owned()]).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(
            failure.to_string(),
            "error: there is no verb \"paint\"\n hint: `evenkeel help` lists the verbs"
        );
    }
}
