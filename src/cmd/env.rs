//! `evenkeel env`: prints the environment variables for aws-cli, other AWS SDKs and this program.

use crate::cli::{Env, EnvShell};
use evenkeel_cli::connect;
use evenkeel_cli::endpoint;
use evenkeel_client::output::{self, Failure};

pub fn run(arguments: &Env) -> Result<(), Failure> {
    let connection = &arguments.connection;
    let keys = connect::keys(connection)?;
    let endpoint = endpoint::of(connection);
    let region = endpoint::region(connection);
    // Absolute, so that it stays valid after a change of the working folder.
    let folder = connection.data_folder();
    let data_dir = std::path::absolute(folder)
        .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    let data_dir = data_dir.display().to_string();
    let authorities = endpoint::authorities(connection);
    let authorities = authorities.map(std::path::absolute).transpose();
    let authorities = authorities.map_err(|error| Failure::new(format!("ca: {error}")))?;
    let authorities = authorities.map(|path| path.display().to_string());
    let authorities = authorities.as_deref().filter(|_| endpoint.starts_with("https://"));
    let mut variables = vec![
        ("AWS_ENDPOINT_URL_EC2", endpoint.as_str()),
        ("AWS_ENDPOINT_URL_EBS", &endpoint),
        ("AWS_ENDPOINT_URL_CLOUDWATCH", &endpoint),
        ("AWS_ENDPOINT_URL_CLOUDTRAIL", &endpoint),
        ("AWS_ENDPOINT_URL_FIS", &endpoint),
        ("AWS_ENDPOINT_URL_IAM", &endpoint),
        ("AWS_ENDPOINT_URL_STS", &endpoint),
        ("AWS_ACCESS_KEY_ID", &keys.access_key_id),
        ("AWS_SECRET_ACCESS_KEY", &keys.secret_access_key),
        ("AWS_DEFAULT_REGION", &region),
        ("AWS_REGION", &region),
        ("EVENKEEL_ENDPOINT", endpoint.as_str()),
        ("EVENKEEL_DATA_DIR", &data_dir),
        ("EVENKEEL_REGION", &region),
    ];
    variables.extend(authorities.map(|path| ("AWS_CA_BUNDLE", path)));
    variables.extend(authorities.map(|path| ("EVENKEEL_CA", path)));
    output::print(&exports(arguments.shell, &variables, unset(&endpoint)))
}

/// Returns the variables that the shell may have of another server. With a session token or a
/// profile, the SDKs would not use these keys. An API without TLS has no authorities; if the file
/// of another server's is gone, the SDKs refuse to start.
fn unset(endpoint: &str) -> &'static [&'static str] {
    if endpoint.starts_with("https://") {
        &["AWS_SESSION_TOKEN", "AWS_PROFILE"]
    } else {
        &["AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CA_BUNDLE", "EVENKEEL_CA"]
    }
}

fn exports(shell: EnvShell, variables: &[(&str, &str)], unset: &[&str]) -> String {
    let mut text = String::new();
    for (name, value) in variables {
        text.push_str(&match shell {
            EnvShell::Sh => format!("export {name}={}\n", quoted_sh(value)),
            EnvShell::Fish => format!("set -gx {name} {}\n", quoted_fish(value)),
        });
    }
    match shell {
        EnvShell::Sh => text.push_str(&format!("unset {}\n", unset.join(" "))),
        EnvShell::Fish => {
            unset.iter().for_each(|name| text.push_str(&format!("set -e {name}; ")));
            text.push_str("true\n");
        }
    }
    text
}

/// Returns a text as one word of a shell, with quotes if it needs them.
pub fn word_of_sh(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@,".contains(&byte);
    if text.bytes().all(is_plain) { text.to_owned() } else { quoted_sh(text) }
}

/// In single quotes only the quote itself is special: close, escape, open again.
fn quoted_sh(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// In fish, a backslash escapes within single quotes.
fn quoted_fish(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_shell_gets_the_value_back() {
        let value = "it's $HOME `x` \\ \"y\" \n!";
        for (endpoint, kept) in [("https://a", "/x"), ("http://a", "")] {
            let text = exports(EnvShell::Sh, &[("A", value), ("B", "plain")], unset(endpoint));
            let script = "AWS_PROFILE=p AWS_CA_BUNDLE=/x; eval \"$1\"; \
                          printf %s \"$A$B$AWS_PROFILE$AWS_CA_BUNDLE\"";
            let output = Command::new("sh").args(["-c", script, "sh", &text]).output().unwrap();
            let output = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output, format!("{value}plain{kept}"));
        }
    }

    #[test]
    fn fish_has_its_own_words() {
        assert_eq!(
            exports(EnvShell::Fish, &[("A", r"it's \")], unset("https://a")),
            "set -gx A 'it\\'s \\\\'\nset -e AWS_SESSION_TOKEN; set -e AWS_PROFILE; true\n"
        );
    }
}
