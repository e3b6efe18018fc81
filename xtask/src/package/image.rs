//! The OCI image: a layout for engines and registries, made without an engine.
//!
//! umoci of Debian writes the layout, the layers and their configuration. The health check is added
//! afterwards: it is an extension of Docker's, for which umoci has no flag. The image has no shell.

use super::{Options, create, create_empty, program, write};
use crate::run;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The number of the server's user and group: the customary one of images without root.
const USER: &str = "65532";
/// The data folder, which is a volume.
const DATA: &str = "/var/lib/evenkeel";
const PROGRAM: &str = "/usr/bin/evenkeel";

/// Debian's packages with the libraries that the program is linked with.
const LIBRARIES: [&str; 2] = ["libc6", "libgcc-s1"];
/// Other files of this machine: certificates of public authorities, for webhooks and S3, and the
/// name of the system, by which scanners read the list of packages.
const FILES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/usr/lib/os-release"];
/// Files of this repository, and their places in the image.
const OWN: [(&str, &str); 4] = [
    ("packaging/image/passwd", "etc/passwd"),
    ("packaging/image/group", "etc/group"),
    ("packaging/image/nsswitch.conf", "etc/nsswitch.conf"),
    ("LICENSE", "usr/share/doc/evenkeel/copyright"),
];

/// The programs that make the image, and their packages.
const TOOLS: [(&str, &str); 3] =
    [("umoci", "umoci"), ("dpkg-query", "dpkg"), ("objcopy", "binutils")];

/// Makes the image as a layout in `image`, and as one archive, and returns the archive.
pub fn make(root: &Path, options: &Options) -> Result<Vec<PathBuf>, String> {
    for (tool, package) in TOOLS {
        let missing = || format!("package image: {tool} is missing: install {package} of Debian");
        run::find(tool).ok_or_else(missing)?;
    }
    let program = program::of(root, options)?;
    let epoch = program::epoch(root);
    let folder = root.join("target/package/image-parts");
    create_empty(&folder)?;
    let libraries = folder.join("libraries");
    copy_libraries(&libraries)?;
    let own = folder.join("own");
    copy_own(root, &program, &own)?;
    // Their time is 0, so that releases on the same libraries share this layer.
    let layers = [archived(&libraries, "0")?, archived(&own, &epoch)?];
    append_folders(&own, &layers[1], &epoch)?;

    let layout = options.into.join("image");
    if layout.exists() {
        std::fs::remove_dir_all(&layout).map_err(|error| at(&layout, &error))?;
    }
    let image = Image { layout, created: time(&epoch)? };
    image.make(root, &layers)?;
    let archive = options.into.join(format!("evenkeel-{VERSION}-image.tar"));
    run::status(tar(&archive, "0").arg("--directory").arg(&image.layout).arg("."))?;
    Ok(vec![archive])
}

/// Fills a folder with the libraries and licences of [`LIBRARIES`], the state of these packages for
/// scanners, and [`FILES`].
fn copy_libraries(into: &Path) -> Result<(), String> {
    // Debian's folders of libraries are links since its release 12.
    for link in ["lib", "lib64"] {
        create(&into.join("usr").join(link))?;
        let link = into.join(link);
        let target = Path::new("usr").join(link.file_name().unwrap_or_default());
        std::os::unix::fs::symlink(target, &link).map_err(|error| at(&link, &error))?;
    }
    for package in LIBRARIES {
        let query = |flag: &str| run::output(Command::new("dpkg-query").args([flag, package]));
        let listed = query("--listfiles")?;
        let licence = format!("/usr/share/doc/{package}/copyright");
        let needed = listed.lines().filter(|path| is_library(path)).chain([licence.as_str()]);
        for path in needed {
            copy(Path::new(path), into, path.trim_start_matches('/'))?;
        }
        // As distroless images have it.
        let status = into.join("var/lib/dpkg/status.d").join(package);
        create(status.parent().unwrap_or(into))?;
        write(&status, &query("--status")?)?;
    }
    FILES.iter().try_for_each(|path| copy(Path::new(path), into, path.trim_start_matches('/')))?;
    let release = into.join("etc/os-release");
    std::os::unix::fs::symlink("../usr/lib/os-release", &release)
        .map_err(|error| at(&release, &error))
}

/// Returns whether a file of a package is a library or the loader, and no converter of characters.
fn is_library(path: &str) -> bool {
    path.starts_with("/lib") && path.contains(".so") && !path.contains("/gconv/")
}

/// Fills a folder with the program, without the symbols for debuggers, and with [`OWN`].
fn copy_own(root: &Path, program: &Path, into: &Path) -> Result<(), String> {
    OWN.iter().try_for_each(|(from, to)| copy(&root.join(from), into, to))?;
    let stripped = into.join(PROGRAM.trim_start_matches('/'));
    create(stripped.parent().unwrap_or(into))?;
    run::status(Command::new("objcopy").arg("--strip-debug").arg(program).arg(&stripped))
}

/// Copies the content of a file to a path in a folder.
fn copy(from: &Path, into: &Path, path: &str) -> Result<(), String> {
    let to = into.join(path);
    create(to.parent().unwrap_or(into))?;
    std::fs::copy(from, &to).map(drop).map_err(|error| at(from, &error))
}

/// Makes a layer of a folder, and returns its file. It is the same for the same files.
fn archived(folder: &Path, epoch: &str) -> Result<PathBuf, String> {
    let file = folder.with_extension("tar");
    run::status(tar(&file, epoch).arg("--directory").arg(folder).arg("."))?;
    Ok(file)
}

/// Adds the folders of other rights to a layer: the server's, and the one for temporary files.
fn append_folders(tree: &Path, layer: &Path, epoch: &str) -> Result<(), String> {
    for (path, owner, mode) in [(DATA, USER, "0700"), ("/tmp", "0", "1777")] {
        let path = path.trim_start_matches('/');
        create(&tree.join(path))?;
        let mut append = Command::new("tar");
        append.arg("--append").arg("--file").arg(layer).args(["--format=gnu", "--numeric-owner"]);
        append.arg(format!("--mtime=@{epoch}")).arg(format!("--mode={mode}"));
        append.arg(format!("--owner={owner}")).arg(format!("--group={owner}"));
        run::status(append.arg("--directory").arg(tree).arg(format!("./{path}")))?;
    }
    Ok(())
}

/// Returns a command that writes an archive in the order of names, of root and of a time.
fn tar(file: &Path, epoch: &str) -> Command {
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(file).args(["--format=gnu", "--sort=name"]);
    tar.args(["--numeric-owner", "--owner=0", "--group=0", "--mode=u+rw,go+rX,go-w"]);
    tar.arg(format!("--mtime=@{epoch}"));
    tar
}

/// An image in the making.
struct Image {
    layout: PathBuf,
    /// Its time of creation: that of the commit, so that two images of the same files are equal.
    created: String,
}

impl Image {
    fn make(&self, root: &Path, layers: &[PathBuf]) -> Result<(), String> {
        let umoci = |words: &[&str]| {
            let mut umoci = Command::new("umoci");
            umoci.args(words);
            umoci
        };
        let tagged = format!("{}:{}", self.layout.display(), name());
        run::status(umoci(&["init", "--layout"]).arg(&self.layout))?;
        run::status(&mut umoci(&["new", "--image", &tagged]))?;
        for layer in layers {
            let mut add = umoci(&["raw", "add-layer", "--image", &tagged]);
            add.args(["--history.created", &self.created]);
            add.args(["--history.created_by", "cargo x package image"]);
            run::status(add.arg(layer))?;
        }
        let mut config = umoci(&["config", "--image", &tagged, "--no-history"]);
        config.args(["--created", &self.created, "--config.user", &format!("{USER}:{USER}")]);
        config.args(["--config.entrypoint", PROGRAM, "--config.cmd", "serve"]);
        config.args(["--config.env", &format!("EVENKEEL_DATA_DIR={DATA}")]);
        config.args(["--config.env", "PATH=/usr/bin", "--config.workingdir", DATA]);
        config.args(["--config.volume", DATA, "--config.stopsignal", "SIGTERM"]);
        for port in ["8650/tcp", "10809/tcp"] {
            config.args(["--config.exposedports", port]);
        }
        for (name, value) in labels(root) {
            config.arg("--config.label").arg(format!("org.opencontainers.image.{name}={value}"));
        }
        run::status(&mut config)?;
        self.add_health_check()?;
        run::status(umoci(&["gc", "--layout"]).arg(&self.layout))
    }

    /// Adds the health check to the configuration, and the list that `docker load` reads.
    fn add_health_check(&self) -> Result<(), String> {
        let index_file = self.layout.join("index.json");
        let mut index = read(&index_file)?;
        let mut manifest = read(&self.blob(&index["manifests"][0])?)?;
        let mut config = read(&self.blob(&manifest["config"])?)?;
        config["config"]["Healthcheck"] = health_check();
        self.store(&config, &mut manifest["config"])?;
        self.store(&manifest, &mut index["manifests"][0])?;
        write(&index_file, &index.to_string())?;
        let path = |part: &Value| Ok(format!("blobs/{}", digest(part)?.replace(':', "/")));
        let layers = manifest["layers"].as_array().into_iter().flatten().map(path);
        let list = json!([{
            "Config": path(&manifest["config"])?,
            "RepoTags": [name()],
            "Layers": layers.collect::<Result<Vec<String>, String>>()?,
        }]);
        write(&self.layout.join("manifest.json"), &list.to_string())
    }

    /// Returns the path of a blob that a document names.
    fn blob(&self, descriptor: &Value) -> Result<PathBuf, String> {
        Ok(self.layout.join("blobs").join(digest(descriptor)?.replace(':', "/")))
    }

    /// Writes a document as a blob, and names it by its digest and size.
    fn store(&self, document: &Value, descriptor: &mut Value) -> Result<(), String> {
        let text = document.to_string();
        let written = self.layout.join("blobs/sha256/new");
        write(&written, &text)?;
        let sum = run::output(Command::new("sha256sum").arg(&written))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        descriptor["digest"] = format!("sha256:{sum}").into();
        descriptor["size"] = text.len().into();
        let blob = self.blob(descriptor)?;
        std::fs::rename(&written, &blob).map_err(|error| at(&blob, &error))
    }
}

/// The health check, as Docker's extension of the configuration has it. Times are nanoseconds.
fn health_check() -> Value {
    const SECOND: u64 = 1_000_000_000;
    json!({
        "Test": ["CMD", PROGRAM, "health"],
        "Interval": 30 * SECOND,
        "Timeout": 10 * SECOND,
        // A start replays logs: failures do not count before.
        "StartPeriod": 15 * 60 * SECOND,
        "Retries": 3,
    })
}

/// Returns the name under which engines list the image.
fn name() -> String {
    format!("evenkeel:{VERSION}")
}

/// Returns what the image says of itself.
fn labels(root: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("title", "Evenkeel".to_owned()),
        ("description", "Block storage with provisioned IOPS that you run yourself".to_owned()),
        ("version", VERSION.to_owned()),
        ("revision", program::commit(root)),
        ("licenses", env!("CARGO_PKG_LICENSE").to_owned()),
        ("url", "https://evenkeel.dev".to_owned()),
    ]
}

/// Returns a time of Unix as RFC 3339 has it.
fn time(epoch: &str) -> Result<String, String> {
    let mut date = Command::new("date");
    date.args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]).arg(format!("--date=@{epoch}"));
    Ok(run::output(&mut date)?.trim().to_owned())
}

fn digest(descriptor: &Value) -> Result<&str, String> {
    let digest = descriptor["digest"].as_str();
    digest.ok_or_else(|| format!("package image: {descriptor} names no digest"))
}

fn read(file: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(file).map_err(|error| at(file, &error))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_libraries_of_a_package_only() {
        for (path, expected) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", true),
            ("/lib64/ld-linux-x86-64.so.2", true),
            ("/usr/lib/x86_64-linux-gnu/gconv/BIG5.so", false),
            ("/etc/ld.so.conf.d/x86_64-linux-gnu.conf", false),
        ] {
            assert_eq!(is_library(path), expected, "{path}");
        }
    }

    #[test]
    fn times_are_those_of_the_specification() {
        assert_eq!(time("86400"), Ok("1970-01-02T00:00:00Z".to_owned()));
    }
}
