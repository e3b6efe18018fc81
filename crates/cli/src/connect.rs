//! How a verb reaches its server: address and keys, by flags, the data folder or the environment.

use crate::endpoint::{self, Scheme};
use crate::flags::Connection;
use evenkeel_client::output::Failure;
use evenkeel_client::{Client, Keys};
use evenkeel_control::credentials::{self, Credentials, CredentialsError};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;

/// The variables of the environment that SDKs read.
const SDK_VARIABLES: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// Creates a client for the server that the flags name. Does not connect yet.
pub fn client(connection: &Connection) -> Result<Client, Failure> {
    let authorities = endpoint::authorities(connection);
    let region = endpoint::region(connection);
    let keys = keys(connection)?;
    Client::trusting(authorities.as_deref(), &endpoint::of(connection), &region, keys)
}

/// Creates a client for a server, with the keys in a data folder of this machine.
pub fn client_of_server(
    api: SocketAddr,
    scheme: Scheme<'_>,
    region: &str,
    data_dir: &Path,
) -> Result<Client, Failure> {
    let kept = credentials::load(data_dir).map_err(|error| Failure::new(error.to_string()))?;
    let keys = keys_from(kept);
    match scheme {
        Scheme::Http => Client::new(&format!("http://{api}"), region, keys),
        Scheme::Https(authorities) => {
            Client::trusting(authorities, &format!("https://{api}"), region, keys)
        }
    }
}

/// Creates a client for a server on this machine in the default region, as [`client_of_server`].
pub fn client_in_default_region(api: SocketAddr, data_dir: &Path) -> Result<Client, Failure> {
    client_of_server(api, Scheme::Http, endpoint::DEFAULT_REGION, data_dir)
}

/// Reads the server's keys from its data folder or the environment.
pub fn keys(connection: &Connection) -> Result<Keys, Failure> {
    match credentials::load(connection.data_folder()) {
        Ok(credentials) => Ok(keys_from(credentials)),
        Err(error) => keys_of(SDK_VARIABLES)
            .ok_or_else(|| Failure::new(error.to_string()).hint(next_step(&error))),
    }
}

/// Returns what helps if the keys of a data folder cannot be read.
fn next_step(error: &CredentialsError) -> &'static str {
    match error {
        CredentialsError::Io(_, error) if error.kind() == ErrorKind::PermissionDenied => {
            "root and the server's user may read it: run this with sudo, or first \
             `eval \"$(sudo evenkeel env)\"`"
        }
        _ => "start it with `evenkeel serve`, or name its folder with --data-dir",
    }
}

/// Returns the keys in two variables of the environment, if both are set.
pub fn keys_of(variables: [&str; 2]) -> Option<Keys> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let [access_key_id, secret_access_key] = variables.map(variable);
    Some(Keys { access_key_id: access_key_id?, secret_access_key: secret_access_key? })
}

/// Converts the credentials of a data folder.
pub fn keys_from(kept: Credentials) -> Keys {
    Keys { access_key_id: kept.access_key_id, secret_access_key: kept.secret_access_key }
}
