//! The API, with the commands that make a device of an attached volume appear and disappear.
//!
//! A volume on NVMe has a device when it is attached. Where it does not, as over NBD, the attach
//! command makes one for each volume that an operation has created, and the detach command removes
//! it before the volume is detached.

use super::devices::Devices;
use crate::cloud::Ec2;
use crate::{Cloud, Fault, Known};
use evenkeel_lab::child::run_within;
use evenkeel_planner::autopilot::observation::{FrontEnd, Volume, VolumeState};
use evenkeel_planner::autopilot::operation::Call;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest time of a command.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// The commands of the front end: words in which `{volume}`, `{uri}` and `{device}` are replaced.
#[derive(Clone, Default, Debug)]
pub struct Commands {
    /// Makes the device of a volume appear, and prints its path as the last line.
    pub attach: Vec<String>,
    /// Makes it disappear.
    pub detach: Vec<String>,
}

impl Commands {
    /// Returns those of the documentation.
    fn of_documentation() -> Self {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        Self {
            attach: words("deploy/agent/attach {volume} {uri}"),
            detach: words("deploy/agent/detach {volume} {device}"),
        }
    }
}

/// Returns the address of a volume.
pub type Uri = Box<dyn Fn(&str) -> Result<String, Fault> + Send>;

/// The API and the devices of a file system.
pub struct Front {
    /// The API.
    pub ec2: Ec2,
    devices: Devices,
    commands: Commands,
    uri: Uri,
    /// Why the attach command has made no device, by volume.
    pub faults: Vec<String>,
    /// The commands by which a person makes disks of volumes.
    by_hand: Option<FrontEnd>,
}

impl Front {
    /// Creates it.
    pub const fn new(ec2: Ec2, devices: Devices, commands: Commands, uri: Uri) -> Self {
        Self { ec2, devices, commands, uri, faults: Vec::new(), by_hand: None }
    }

    /// Finds the commands by which a person makes disks of volumes: those of the agent, or those of
    /// the documentation. Volumes of AWS have no address, and devices by themselves.
    fn find_by_hand(&mut self, volumes: &[Volume]) {
        let Some(volume) = volumes.first().filter(|_| self.by_hand.is_none()) else { return };
        // The server answers again at a later observation.
        let Ok(uri) = (self.uri)(&volume.id) else { return };
        let has_own = !self.commands.attach.is_empty();
        if !has_own && uri.is_empty() {
            return;
        }
        let commands = if has_own { self.commands.clone() } else { Commands::of_documentation() };
        let Commands { attach, detach } = commands;
        let uri = uri.replace(&volume.id, "{volume}");
        self.by_hand = Some(FrontEnd { attach, detach, uri });
    }

    /// Makes the devices of volumes that an operation has made or retired, and attached: a retired
    /// volume is probed before it is detached and deleted.
    fn make_devices(&mut self, volumes: &[Volume]) {
        self.faults.clear();
        if self.commands.attach.is_empty() {
            return;
        }
        for volume in volumes {
            let is_own = volume.made_by.is_some() || volume.retired_ms.is_some();
            let is_wanted = is_own && volume.state == VolumeState::Attached;
            if is_wanted && !self.devices.has(&volume.id) {
                let made = self.make_device(&volume.id);
                self.faults.extend(made.err().map(|fault| fault.to_string()));
            }
        }
    }

    fn make_device(&self, volume: &str) -> Result<(), Fault> {
        let uri = (self.uri)(volume)?;
        let words = filled(&self.commands.attach, &[("{volume}", volume), ("{uri}", &uri)]);
        let printed = run(&words)?;
        let device = printed.lines().map(str::trim).rfind(|line| !line.is_empty());
        self.devices.add(volume, Path::new(device.unwrap_or_default()))
    }

    /// Removes the device of a volume, unless it goes with the volume.
    fn remove_device(&mut self, volume: &str) -> Result<(), Fault> {
        let made = self.devices.made_for(volume);
        let is_made = made.is_some();
        let Some(device) = made.or_else(|| self.devices.given_for(volume)) else {
            self.remove_found(volume);
            return self.devices.forget(volume);
        };
        if self.commands.detach.is_empty() && !is_made {
            return Ok(());
        }
        let device = device.display().to_string();
        if self.commands.detach.is_empty() {
            return Err(Fault::Refused(format!(
                "{device} of {volume} was made by an attach command: name its --detach-command"
            )));
        }
        run(&filled(&self.commands.detach, &[("{volume}", volume), ("{device}", &device)]))?;
        self.devices.forget(volume)
    }

    /// Removes the device over NBD of a volume that a person has attached. The command may not know
    /// that person's client of NBD, so the volume leaves also if it fails.
    fn remove_found(&mut self, volume: &str) {
        let Some(device) = self.devices.found_for(volume) else { return };
        if self.commands.detach.is_empty() {
            return;
        }
        let device = device.display().to_string();
        let words = filled(&self.commands.detach, &[("{volume}", volume), ("{device}", &device)]);
        if let Err(fault) = run(&words) {
            self.faults.push(format!("{device} of {volume} is still there: {fault}"));
        }
    }
}

impl Cloud for Front {
    fn observe(&mut self, uuid: &str, devices: &[String]) -> Result<Known, Fault> {
        let known = self.ec2.observe(uuid, devices)?;
        self.find_by_hand(&known.volumes);
        self.make_devices(&known.volumes);
        Ok(known)
    }

    fn front_end(&self) -> Option<FrontEnd> {
        self.by_hand.clone()
    }

    fn execute(&mut self, uuid: &str, call: &Call) -> Result<(), Fault> {
        if let Call::Detach { volume } = call {
            self.remove_device(volume)?;
        }
        self.ec2.execute(uuid, call)
    }
}

fn filled(words: &[String], values: &[(&str, &str)]) -> Vec<String> {
    let fill = |word: &String| {
        values.iter().fold(word.clone(), |word, (name, value)| word.replace(name, value))
    };
    words.iter().map(fill).collect()
}

/// Runs a command without a shell; returns the end of its output.
fn run(words: &[String]) -> Result<String, Fault> {
    let (program, rest) = words.split_first().expect("invariant: a command has a program");
    let mut command = Command::new(program);
    run_within(COMMAND_MAX, command.args(rest), "the front end of NBD")
        .map_err(|error| Fault::Later(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::tests::{UUID, with_retired};
    use std::collections::BTreeMap;

    /// Returns a front end whose commands note their words as names of files in a folder, with a
    /// retired volume that is attached.
    fn front(volume: &str, folder: &tempfile::TempDir) -> Front {
        let devices = Devices::new(BTreeMap::new(), folder.path().join("devices.json"));
        let devices = devices.with_disks(folder.path().join("block"));
        let path = folder.path().display();
        let words = |name: &str| vec!["touch".to_owned(), format!("{path}/{name}")];
        let attach = words("attach-{volume}-{uri}");
        let commands = Commands { attach, detach: words("detach-{volume}") };
        let uri: Uri = Box::new(|_| Ok("uri".to_owned()));
        Front::new(with_retired(volume, folder), devices, commands, uri)
    }

    /// An agent that starts again knows no probe, so the volume is attached for one.
    #[test]
    fn retired_volume_gets_a_device_to_be_probed() {
        let folder = tempfile::tempdir().unwrap();
        let mut front = front("vol-1", &folder);
        front.observe(UUID, &[]).unwrap();
        assert!(folder.path().join("attach-vol-1-uri").exists());
        // This command prints no path.
        assert!(front.faults[0].contains("which is no block device"), "{:?}", front.faults);
    }

    #[test]
    fn device_that_a_person_has_attached_is_removed_before_its_volume() {
        let folder = tempfile::tempdir().unwrap();
        let id = "vol-0123456789abcdef1";
        let disk = folder.path().join("block/loop77/loop");
        std::fs::create_dir_all(&disk).unwrap();
        std::fs::write(disk.join("backing_file"), format!("/run/evenkeel/{id}/nbd\n")).unwrap();
        let mut front = front(id, &folder);
        let detach = Call::Detach { volume: id.to_owned() };
        front.execute(UUID, &detach).unwrap();
        assert!(folder.path().join(format!("detach-{id}")).exists());
        assert_eq!(front.faults, Vec::<String>::new());
        // The command may not know the client of that person.
        front.commands.detach = vec!["false".to_owned()];
        front.execute(UUID, &detach).unwrap();
        assert!(front.faults[0].contains("/dev/loop77 of vol-"), "{:?}", front.faults);
    }

    #[test]
    fn printed_commands_are_those_of_the_agent_or_of_the_documentation() {
        let folder = tempfile::tempdir().unwrap();
        let found = |commands: Option<Commands>, uri: &'static str| {
            let mut front = front("vol-1", &folder);
            front.uri = Box::new(move |volume| Ok(uri.replace("VOLUME", volume)));
            front.commands = commands.unwrap_or(front.commands);
            front.observe(UUID, &[]).unwrap();
            front.front_end()
        };
        let own = found(None, "nbd://h:1/VOLUME").unwrap();
        assert_eq!(own.attach[0], "touch");
        assert_eq!(own.uri, "nbd://h:1/{volume}");
        let documented = found(Some(Commands::default()), "nbd://h:1/VOLUME").unwrap();
        assert_eq!(documented.attach, ["deploy/agent/attach", "{volume}", "{uri}"]);
        assert_eq!(documented.detach, ["deploy/agent/detach", "{volume}", "{device}"]);
        assert_eq!(found(Some(Commands::default()), ""), None, "a volume of AWS");
    }

    #[test]
    fn words_are_filled_without_a_shell() {
        let words = ["attach", "--id={volume}", "{uri}", "a b"].map(str::to_owned);
        let found = filled(&words, &[("{volume}", "vol-1"), ("{uri}", "nbd://h:1/vol-1; rm")]);
        assert_eq!(found, ["attach", "--id=vol-1", "nbd://h:1/vol-1; rm", "a b"]);
        let sh = |script: &str| run(&["sh", "-c", script].map(str::to_owned));
        assert_eq!(sh("echo one; echo /dev/two").unwrap().lines().last(), Some("/dev/two"));
        let failed = sh("echo no room >&2; exit 3").unwrap_err().to_string();
        assert!(failed.contains("no room"), "{failed}");
    }
}
