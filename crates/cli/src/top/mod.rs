//! The screen of `evenkeel top`, which shows the rows of [`evenkeel_client::top`]. One thread reads
//! samples from the server; this one draws and handles keys, so a slow server does not delay a key.

mod view;

#[cfg(test)]
mod tests;

use self::view::View;
use crate::signals::stop_signal;
use evenkeel_client::Client;
use evenkeel_client::output::Failure;
use evenkeel_client::top::{self, Sort};
use evenkeel_client::volume_samples::{self, Sample};
use evenkeel_os::clock;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// The longest time until an answer of the server, or a request to stop, is handled.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Restores the terminal on drop.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the table of a server until the user quits: a sample at each `interval`, the `first` of
/// them now.
pub fn run(
    client: Client,
    endpoint: &str,
    first: Sample,
    interval: Duration,
    sort: Sort,
) -> Result<(), Failure> {
    let stop = stop_flag()?;
    let answers = ask(client, interval)?;
    let view = View::new(endpoint, sort);
    let _restored = Restored;
    let mut terminal = ratatui::try_init().map_err(|error| broken(&error))?;
    show(&mut terminal, view, first, &answers, &stop).map_err(|error| broken(&error))
}

fn broken(error: &io::Error) -> Failure {
    Failure::new(format!("the terminal: {error}")).hint("--once prints one sample without one")
}

/// Reads samples in a loop, with an interval after each.
fn ask(client: Client, interval: Duration) -> Result<Receiver<Result<Sample, Failure>>, Failure> {
    // At most one sample waits for the screen, so it never shows an old one while newer ones queue.
    let (to, answers) = sync_channel(1);
    let work = move || {
        loop {
            clock::pause(interval);
            if to.send(volume_samples::take(&client)).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("samples".to_owned()).spawn(work);
    thread.map_err(|error| Failure::new(format!("a thread for samples: {error}")))?;
    Ok(answers)
}

/// Becomes true when the process gets a signal to stop. Ctrl-C is a key while the screen is active.
fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let its = Arc::clone(&flag);
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(stop_signal());
            its.store(true, Ordering::Release);
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map_err(|error| Failure::new(format!("a thread for signals: {error}")))?;
    Ok(flag)
}

fn show(
    terminal: &mut DefaultTerminal,
    mut view: View,
    mut earlier: Sample,
    answers: &Receiver<Result<Sample, Failure>>,
    stop: &AtomicBool,
) -> io::Result<()> {
    view.update(top::between(&Sample::new(), &earlier));
    while !stop.load(Ordering::Acquire) {
        while let Ok(answer) = answers.try_recv() {
            match answer {
                Ok(sample) => {
                    view.update(top::between(&earlier, &sample));
                    earlier = sample;
                }
                // The server may come back: the last sample stays on the screen, with a remark.
                Err(failure) => view.fail(failure.message),
            }
        }
        terminal.draw(|frame| view.draw(frame))?;
        if event::poll(LOOK_INTERVAL)?
            && let Event::Key(key) = event::read()?
            && !obey(&mut view, key)
        {
            return Ok(());
        }
    }
    Ok(())
}

/// Handles a key; returns false if it quits.
fn obey(view: &mut View, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('s') | KeyCode::Right => view.sort_by_next(),
        KeyCode::Char('S') | KeyCode::Left => view.sort_by_previous(),
        KeyCode::Char('r') => view.reverse(),
        KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
        KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => view.scroll_pages(1),
        KeyCode::PageUp => view.scroll_pages(-1),
        KeyCode::Home => view.scroll(isize::MIN),
        KeyCode::End => view.scroll(isize::MAX),
        _ => {}
    }
    true
}
