//! Programs that are started, observed and ended. Every wait has a deadline.

use super::PATIENCE;
use super::clock::Deadline;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The exit status and output of a program.
pub struct Output {
    pub name: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// Returns the standard output, if the program succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self}");
        self.stdout
    }

    /// Returns both outputs, if the program failed with this exit code.
    #[track_caller]
    pub fn fails_with(self, code: i32) -> String {
        assert_eq!(self.status.code(), Some(code), "{self}");
        self.stdout + &self.stderr
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, status, stdout, stderr } = self;
        write!(f, "{name}: {status}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}

enum Event {
    Stdout(String),
    Stderr(String),
    End,
}

/// A running program. Dropping it kills the program and its children, and nothing else.
pub struct Running {
    name: String,
    child: Child,
    pid: Pid,
    events: Receiver<Event>,
    streams_open: u32,
    stdout: String,
    stderr: String,
    reaped: Option<ExitStatus>,
}

/// Starts a program in a process group of its own.
pub fn start(command: &mut Command) -> Running {
    let name = command.get_program().to_string_lossy().into_owned();
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A tool without input must not read that of the test run; `converse` sets its own.
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    let (sender, events) = channel();
    listen(child.stdout.take().unwrap(), sender.clone(), Event::Stdout);
    listen(child.stderr.take().unwrap(), sender, Event::Stderr);
    let pid = Pid::from_child(&child);
    let stdout = String::new();
    let stderr = String::new();
    Running { name, child, pid, events, streams_open: 2, stdout, stderr, reaped: None }
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Output {
    start(command.stdin(Stdio::null())).finish()
}

fn listen(stream: impl Read + Send + 'static, to: Sender<Event>, event: fn(String) -> Event) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            // If the receiver has ended, the pipe is still emptied.
            let _ = to.send(event(String::from_utf8_lossy(&line).into_owned()));
            line.clear();
        }
        let _ = to.send(Event::End);
    });
}

impl Running {
    /// Returns the next line of standard output that contains `wanted`.
    #[track_caller]
    pub fn wait_for_line(&mut self, wanted: &str) -> String {
        let deadline = Deadline::after(PATIENCE);
        while let Some(line) = self.next_line(deadline) {
            if line.contains(wanted) {
                return line;
            }
        }
        let Self { name, stdout, stderr, .. } = self;
        panic!("{name} did not say \"{wanted}\"\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }

    /// Returns the next line of standard output; `None` after its end or the deadline.
    pub fn next_line(&mut self, deadline: Deadline) -> Option<String> {
        loop {
            match self.next_event(deadline)? {
                Event::Stdout(line) => return Some(line),
                Event::Stderr(_) => {}
                Event::End if self.streams_open > 0 => {}
                Event::End => return None,
            }
        }
    }

    /// Returns the log so far.
    pub fn logged(&mut self) -> &str {
        while let Ok(event) = self.events.try_recv() {
            self.keep(&event);
        }
        &self.stderr
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) {
        self.try_to_tell(line).expect("it reads");
    }

    /// Writes a line to the standard input of a program that may have ended.
    pub fn try_to_tell(&mut self, line: &str) -> std::io::Result<()> {
        let input = self.child.stdin.as_mut().expect("started without standard input");
        input.write_all(format!("{line}\n").as_bytes())?;
        input.flush()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn finish(self) -> Output {
        self.finish_within(PATIENCE)
    }

    /// Waits for its end, for no longer than this.
    #[track_caller]
    pub fn finish_within(mut self, longest: Duration) -> Output {
        let deadline = Deadline::after(longest);
        drop(self.child.stdin.take());
        while self.streams_open > 0 {
            if self.next_event(deadline).is_none() {
                let Self { name, stdout, stderr, .. } = &self;
                panic!("{name} does not end\nstdout:\n{stdout}\nstderr:\n{stderr}")
            }
        }
        let what = format!("end of {}", self.name);
        deadline.ask(&what, || {
            self.reaped = self.child.try_wait().expect("our own child");
            self.reaped.is_some()
        });
        Output {
            name: self.name.clone(),
            status: self.reaped.expect("it has ended"),
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        assert!(self.reaped.is_none(), "{} has ended", self.name);
        kill_process(self.pid, signal).unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Sends a signal to it and its process group, as a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        assert!(self.reaped.is_none(), "{} has ended", self.name);
        kill_process_group(self.pid, signal)
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Kills it as a crash would: no handler runs, and nothing more is written.
    pub fn kill_9(self) {
        self.signal(Signal::KILL);
        let output = self.finish();
        assert_eq!(output.status.signal(), Some(Signal::KILL.as_raw()), "{output}");
    }

    /// Returns whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.reaped = self.child.try_wait().expect("our own child");
        self.reaped.is_none()
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns a file of the kernel about it, such as `/proc/PID/status`.
    pub fn proc_file(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.child.id());
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn next_event(&mut self, deadline: Deadline) -> Option<Event> {
        let event = self.events.recv_timeout(deadline.left().max(Duration::from_millis(1))).ok();
        if let Some(event) = &event {
            self.keep(event);
        }
        event
    }

    fn keep(&mut self, event: &Event) {
        match event {
            Event::Stdout(line) => self.stdout.push_str(line),
            Event::Stderr(line) => self.stderr.push_str(line),
            Event::End => self.streams_open -= 1,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.reaped.is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
