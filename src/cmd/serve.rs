//! `evenkeel serve`: runs the server in the foreground until a signal stops it.

use super::env::word_of_sh;
use crate::cli::Serve;
use crate::server_config;
use evenkeel_cli::flags::DATA_DIR;
use evenkeel_cli::{log, service, signals};
use evenkeel_client::output::Failure;
use evenkeel_server::events;
use evenkeel_server::store_options;
use evenkeel_server::{Addresses, Config};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::oneshot;

pub fn run(arguments: &Serve) -> Result<(), Failure> {
    log::to_stderr(&arguments.log)?;
    // Before the first secret is read: the access key, passwords, keys of volumes and of TLS.
    store_options::forbid_core_dumps()?;
    // Before anything is opened, since a script that waits for a sign of life may stop the server
    // at once.
    let stop = StopRequest::awaited()?;
    let config = server_config::of(arguments)?;
    events::warn_of_arguments(std::env::args_os(), &arguments.events_webhook);
    let shown = config.clone();
    // A script that starts the server waits for this text: all addresses answer by then. If the
    // script has closed the pipe since, the server continues.
    let ready = move |addresses: &Addresses| {
        let mut stdout = std::io::stdout();
        let _ = stdout.write_all(greeting(&shown, addresses).as_bytes());
        if !service::is_managed() {
            let is_terminal = std::io::stdin().is_terminal() && stdout.is_terminal();
            let _ = stdout.write_all(next_steps(&shown.data_dir, is_terminal).as_bytes());
        }
        let _ = stdout.flush();
        service::ready();
    };
    // The thread that listens for signals ends only after it has sent.
    evenkeel_server::run(&config, &stop.made, ready, async { drop(stop.comes.await) })
}

/// A request to stop, at any time of the server's life.
struct StopRequest {
    /// Whether it was made, for tasks that poll it.
    made: Arc<AtomicBool>,
    /// Resolves when it is made.
    comes: oneshot::Receiver<()>,
}

impl StopRequest {
    /// Starts to listen for a request. No signal is missed after this returns. A thread waits for
    /// signals, because the server's runtime starts only when everything is open.
    fn awaited() -> Result<Self, Failure> {
        let made = Arc::new(AtomicBool::new(false));
        let (come, comes) = oneshot::channel();
        let (flag, mut come) = (Arc::clone(&made), Some(come));
        signals::when_signalled(move |_| {
            service::stopping();
            flag.store(true, Ordering::Release);
            come.take().map(|come| come.send(()));
            false
        })?;
        Ok(Self { made, comes })
    }
}

/// Returns the next steps of a user. Programs wait for the words `stops it`.
fn next_steps(data_dir: &Path, is_terminal: bool) -> String {
    let stop = if is_terminal { "Ctrl-C" } else { "SIGTERM" };
    let usual = std::path::absolute(DATA_DIR);
    let (place, flag) = match usual {
        Ok(usual) if usual == data_dir => (", same folder", String::new()),
        _ => ("", format!(" --data-dir {}", word_of_sh(&data_dir.display().to_string()))),
    };
    format!(
        "{stop} stops it. In another shell{place}:\n  \
         eval \"$(evenkeel env{flag})\"\n  \
         evenkeel volume create --size 10 --attach\n  \
         aws ec2 describe-volumes\n"
    )
}

fn greeting(config: &Config, addresses: &Addresses) -> String {
    let mut text = format!("evenkeel {} is serving\n", env!("CARGO_PKG_VERSION"));
    let scheme = if config.transport.files.is_some() { "https" } else { "http" };
    let region = &config.settings.region;
    let _ = writeln!(text, "  API    {scheme}://{}  region {region}", addresses.api);
    for address in &addresses.nbd {
        let _ = writeln!(text, "  NBD    nbd://{address}/VOLUME");
    }
    for address in &addresses.nbd_tls {
        let _ = writeln!(text, "  NBD    nbds://{address}/VOLUME");
    }
    if let Some(socket) = &config.nbd_unix {
        let _ = writeln!(text, "  NBD    nbd+unix:///VOLUME?socket={}", socket.display());
    }
    let _ = writeln!(text, "  data   {}", config.data_dir.display());
    let _ = writeln!(text, "  rules  {}", config.settings.rules.date());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use evenkeel_client::output::Exit;

    #[test]
    fn the_greeting_shows_every_address() {
        let line = "evenkeel serve --data-dir /srv/e --as-of 2025-10 --region r --zone z";
        let cli = crate::cli::Cli::parse_from(line.split(' '));
        let crate::cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
        let addresses = Addresses {
            api: "127.0.0.1:8650".parse().unwrap(),
            nbd: vec!["127.0.0.1:10809".parse().unwrap()],
            nbd_tls: vec!["127.0.0.1:10810".parse().unwrap()],
        };
        let text = greeting(&server_config::of(&arguments).unwrap(), &addresses);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text,
            format!(
                "evenkeel {version} is serving\n  \
                 API    http://127.0.0.1:8650  region r\n  \
                 NBD    nbd://127.0.0.1:10809/VOLUME\n  \
                 NBD    nbds://127.0.0.1:10810/VOLUME\n  \
                 NBD    nbd+unix:///VOLUME?socket=/srv/e/nbd.sock\n  \
                 data   /srv/e\n  \
                 rules  2025-09-26\n"
            )
        );
    }

    #[test]
    fn the_next_steps_name_the_data_folder_unless_it_is_the_usual_one() {
        let usual = std::path::absolute("evenkeel-data").unwrap();
        let steps = next_steps(&usual, true);
        assert!(steps.starts_with("Ctrl-C stops it. In another shell, same folder:\n"), "{steps}");
        assert!(steps.contains("\"$(evenkeel env)\"\n"), "{steps}");
        for (folder, word) in [("/srv/e", "/srv/e"), ("/srv/my e", "'/srv/my e'")] {
            let steps = next_steps(Path::new(folder), false);
            assert!(steps.starts_with("SIGTERM stops it. In another shell:\n"), "{steps}");
            assert!(steps.contains(&format!("$(evenkeel env --data-dir {word})")), "{steps}");
        }
    }

    #[test]
    fn rules_older_than_the_oldest_are_refused() {
        let line = "evenkeel serve --as-of 2001-01-01";
        let cli = crate::cli::Cli::parse_from(line.split(' '));
        let crate::cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
        let failure = server_config::of(&arguments).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("2001-01-01"), "{failure}");
    }
}
