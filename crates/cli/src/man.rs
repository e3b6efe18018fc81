//! The verbs `man` and `completions`: both are generated from the definition of verbs and flags.

use crate::reference::{self, Introduction};
use clap::{Args, Command, ValueEnum};
use evenkeel_client::output::{self, Exit, Failure};

/// The form in which the manual is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ManFormat {
    /// One page for man(1).
    Roff,
    /// The reference of all verbs, as in docs/reference.
    Markdown,
}

#[derive(Args, Debug)]
pub struct Man {
    /// The words of the verb whose page to print. [default: the program's own page]
    #[arg(value_name = "VERB")]
    pub verb: Vec<String>,

    /// Form of the output.
    #[arg(long, default_value = "roff", value_name = "FORMAT")]
    pub format: ManFormat,
}

#[derive(Args, Debug)]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Returns the definition without values of environment variables in its help: they may be secret
/// or long.
pub fn without_values_of_variables(command: Command) -> Command {
    command
        .mut_args(|argument| argument.hide_env_values(true))
        .mut_subcommands(without_values_of_variables)
}

/// Prints the manual of a program.
///
/// # Errors
/// If the program has no such verb.
pub fn run(command: Command, introduction: &Introduction, arguments: &Man) -> Result<(), Failure> {
    let text = match arguments.format {
        ManFormat::Markdown => reference::markdown(&command, introduction),
        ManFormat::Roff => page(command, &arguments.verb)?,
    };
    output::print(&text)
}

/// Prints the completion script of a program.
///
/// # Errors
/// If it cannot be printed.
pub fn completions(mut command: Command, arguments: &Completions) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Returns the page of the verb at `path`.
///
/// # Errors
/// If there is no such verb.
pub fn page(mut root: Command, path: &[String]) -> Result<String, Failure> {
    let program = root.get_name().to_owned();
    // The long version names a commit and a date: the page of a version is always the same.
    root = root.long_version(None::<&'static str>);
    // Computes inherited properties: full names and global flags.
    root.build();
    let mut command = &root;
    for word in path {
        command = command.find_subcommand(word).ok_or_else(|| {
            Failure::new(format!("there is no verb {word:?}"))
                .exit(Exit::Usage)
                .hint(format!("`{program} help` lists the verbs"))
        })?;
    }
    let name = command.get_display_name().unwrap_or(&program).to_owned();
    let mut roff = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(name)
        .section("1")
        .date("")
        .render(&mut roff)
        .map_err(|error| Failure::new(format!("manual page: {error}")))?;
    Ok(String::from_utf8_lossy(&roff).into_owned())
}
