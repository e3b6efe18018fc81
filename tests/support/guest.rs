//! A Linux guest for the kernel's NBD client: a virtual machine with Debian's kernel and a file
//! system in memory that is made from files of this machine. It reaches this machine's loopback as
//! 10.0.2.2, and its connections come from 127.0.0.1. Its shell is on a serial port.

use super::process::{Running, run, start};
use super::tools::{absent, skipped, tool};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// This machine's loopback, from the guest.
pub const HOST: &str = "10.0.2.2";

const NBD_CLIENT: &str = "/usr/sbin/nbd-client";

/// The kernel modules that the guest loads.
const MODULES: [&str; 5] = ["virtio", "failover", "net_failover", "virtio_net", "nbd"];

/// The first program. It runs each line of its input in a shell, and prints its exit code.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
stty -echo
depmod -a
modprobe virtio_pci
modprobe virtio_net
modprobe nbd nbds_max=4
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
echo "GUEST READY"
while read -r line; do
    eval "$line" </dev/null
    echo "DONE $?"
done
poweroff -f
"#;

/// A running guest. Dropping it ends it.
pub struct Guest {
    machine: Running,
}

/// The exit code and output of a command in the guest's shell.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub text: String,
}

impl Done {
    /// Returns the output, if the command succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.text);
        self.text
    }
}

/// Returns whether a guest cannot run here, and prints that.
pub fn has_no_guest() -> bool {
    if absent(&["qemu-system-x86_64", "busybox", NBD_CLIENT]) {
        return true;
    }
    let missing = kernel().is_none();
    if missing {
        skipped("there is no kernel for a guest in target/guest (cargo x setup unpacks one)");
    }
    missing
}

/// Returns the kernel that `cargo x setup` has unpacked.
fn kernel() -> Option<PathBuf> {
    let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/guest/boot");
    let mut files = std::fs::read_dir(boot).ok()?.flatten().map(|file| file.path());
    files.find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-")))
}

impl Guest {
    /// Boots a guest; its files are written to `folder`.
    #[track_caller]
    pub fn boot(folder: &Path) -> Self {
        let kernel = kernel().expect("has_no_guest was asked");
        let files = file_system(folder, &kernel);
        let mut machine = Command::new("qemu-system-x86_64");
        // /dev/kvm may exist and not work, as in a virtual machine. Without it a guest of this size
        // boots in three seconds.
        machine.args(["-accel", "tcg", "-cpu", "max", "-m", "256", "-nodefaults", "-no-reboot"]);
        machine.args(["-display", "none", "-serial", "stdio"]);
        machine.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        machine.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1"]);
        machine.arg("-kernel").arg(kernel).arg("-initrd").arg(files).stdin(Stdio::piped());
        let mut machine = start(&mut machine);
        machine.wait_for_line("GUEST READY");
        Self { machine }
    }

    /// Runs one line in its shell.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> Done {
        self.begin(line);
        self.finish()
    }

    /// Starts a line; [`Self::finish`] waits for its end.
    pub fn begin(&mut self, line: &str) {
        assert!(!line.contains('\n'), "one line");
        self.machine.tell(line);
    }

    /// Waits for the end of the line that was started.
    #[track_caller]
    pub fn finish(&mut self) -> Done {
        let mut text = String::new();
        loop {
            let line = self.machine.wait_for_line("");
            match line.trim_end().strip_prefix("DONE ") {
                Some(code) => return Done { code: code.parse().expect("a number"), text },
                None => text.push_str(&format!("{}\n", line.trim_end())),
            }
        }
    }
}

/// Writes the guest's files in the form that the kernel takes; returns the path.
fn file_system(folder: &Path, kernel: &Path) -> PathBuf {
    let root = folder.join("guest");
    let archive = folder.join("guest.cpio");
    for name in ["bin", "sbin", "proc", "sys", "dev", "mnt", "tmp"] {
        std::fs::create_dir_all(root.join(name)).expect("made");
    }
    let busybox = run(tool("sh", "-c").arg("command -v busybox")).ok();
    for program in [busybox.trim(), NBD_CLIENT] {
        let kept = if program == NBD_CLIENT { "sbin/nbd-client" } else { "bin/busybox" };
        std::fs::copy(program, root.join(kept)).expect("copied");
        for library in libraries(program) {
            let place = root.join(library.trim_start_matches('/'));
            std::fs::create_dir_all(place.parent().expect("a folder")).expect("made");
            std::fs::copy(&library, place).expect("copied");
        }
    }
    let version = kernel.file_name().expect("a file").to_string_lossy().replace("vmlinuz-", "");
    let modules = kernel.parent().and_then(Path::parent).expect("target/guest");
    let modules = modules.join("lib/modules").join(&version);
    let place = root.join("lib/modules").join(&version);
    std::fs::create_dir_all(&place).expect("made");
    for module in modules_below(&modules) {
        std::fs::copy(&module, place.join(module.file_name().expect("a file"))).expect("copied");
    }
    let init = root.join("init");
    std::fs::write(&init, INIT).expect("written");
    run(&mut tool("chmod", &format!("755 {}", init.display()))).ok();
    let pack = format!("cd {} && find . | busybox cpio -o -H newc", root.display());
    run(tool("sh", "-c").arg(format!("({pack}) > {}", archive.display()))).ok();
    archive
}

/// Returns the libraries that a program is linked to; empty if it is linked statically.
fn libraries(program: &str) -> Vec<String> {
    let output = run(&mut tool("ldd", program));
    let words = output.stdout.split_whitespace();
    words.filter(|word| word.starts_with('/') && *word != program).map(str::to_owned).collect()
}

/// Returns the needed modules of the kernel. A missing one is built into the kernel.
fn modules_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.join("kernel")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).expect("unpacked").flatten().map(|file| file.path()) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if MODULES.contains(&&*name) || name.starts_with("virtio_") {
                found.push(path);
            }
        }
    }
    found
}
