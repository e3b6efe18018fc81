//! Storage of data keys: they are in the node table, wrapped by a key that is not in the pool. That
//! key is in a file, or in a program that wraps and unwraps (a key server, a token).

use super::crypt::{DataKey, KEY_BYTES};
use aes::Aes256;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use aes_kw::KwAes256;
use evenkeel_core::time::Duration;
use evenkeel_os::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use zeroize::Zeroizing;

/// Maximum size of a wrapped key, in bytes.
pub const WRAPPED_MAX: usize = 384;
/// Maximum run time of the program, in seconds.
const COMMAND_MAX_S: u64 = 30;
/// Bytes of the key in a file.
const FILE_KEY_BYTES: usize = 32;
/// Bytes that identify the key of a file that has wrapped a data key.
const PRINT_BYTES: usize = 8;

const BY_FILE: u8 = 1;
const BY_COMMAND: u8 = 2;

/// A key, or a program, that wraps and unwraps data keys.
pub enum Keys {
    /// A key of 256 bits, read from a file.
    File {
        /// The file.
        path: PathBuf,
        /// The key.
        key: Zeroizing<[u8; FILE_KEY_BYTES]>,
    },
    /// A program: `sh -c COMMAND` with `wrap` or `unwrap` as `$1`, hexadecimal digits on its
    /// standard input, and on its standard output.
    Command(String),
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "Keys::File({})", path.display()),
            Self::Command(_) => f.write_str("Keys::Command(..)"),
        }
    }
}

/// Error of wrapping or unwrapping a key.
#[derive(Debug)]
pub struct KeyError(String);

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KeyError {}

fn error<T>(text: String) -> Result<T, KeyError> {
    Err(KeyError(text))
}

/// Returns bytes that identify a key without revealing any of it.
fn print(key: &[u8; FILE_KEY_BYTES]) -> [u8; PRINT_BYTES] {
    let mut print = [0; PRINT_BYTES];
    print.copy_from_slice(&block(key)[..PRINT_BYTES]);
    print
}

/// Returns the permissions that a key file must not have. `credentials` is the folder of the
/// service manager, which only the service's user may enter: there the group's bits are the mask of
/// an access list that names this user.
fn forbidden(path: &Path, credentials: Option<&Path>) -> u32 {
    if credentials.is_some_and(|folder| path.starts_with(folder)) { 0o037 } else { 0o077 }
}

/// Encrypts a fixed block with a key.
fn block(key: &[u8; FILE_KEY_BYTES]) -> [u8; 16] {
    let mut block = Array([0x5a; 16]);
    Aes256::new(&Array(*key)).encrypt_block(&mut block);
    block.0
}

impl Keys {
    /// Reads the key of a file: 64 hexadecimal digits.
    ///
    /// # Errors
    /// When it cannot be read, has other contents, or other users may read it.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let shown = path.display();
        let failed =
            |doing: &str, source: io::Error| KeyError(format!("{doing} {shown}: {source}"));
        let metadata = fs::metadata(path).map_err(|source| failed("the key file", source))?;
        let kind = metadata.file_type();
        // A pipe is how a shell gives the output of a program: <(program).
        if !kind.is_file() && !kind.is_fifo() {
            let kind = if kind.is_dir() { "a folder" } else { "a device or a socket" };
            return error(format!(
                "the key file {shown} is {kind}; name a file with a key, made with: openssl rand \
                 -hex {FILE_KEY_BYTES}"
            ));
        }
        let mode = metadata.permissions().mode() & 0o777;
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
        if mode & forbidden(path, credentials.as_deref().map(Path::new)) != 0 {
            let next = if kind.is_file() {
                format!("run chmod 600 {shown}")
            } else {
                "it is a pipe; name a file that is yours alone".to_owned()
            };
            return error(format!(
                "the key file {shown} may be used by others (mode {mode:o}): {next}"
            ));
        }
        let text = fs::read(path).map(Zeroizing::new);
        let text = text.map_err(|source| failed("the key file", source))?;
        let digits = text.trim_ascii();
        let Some(bytes) = from_hex(digits).filter(|bytes| bytes.len() == FILE_KEY_BYTES) else {
            return error(format!(
                "the key file {shown} does not hold {} hexadecimal digits; make a new one with: \
                 openssl rand -hex {FILE_KEY_BYTES}",
                2 * FILE_KEY_BYTES
            ));
        };
        let mut key = Zeroizing::new([0; FILE_KEY_BYTES]);
        key.copy_from_slice(&bytes);
        Ok(Self::File { path: path.to_owned(), key })
    }

    /// Returns an id of the key, in the form of a UUID. The key of a file has the same id wherever
    /// the file is. The key of a program is not known, so all programs have the same id.
    #[must_use]
    pub fn id(&self) -> String {
        let bytes = match self {
            Self::File { key, .. } => block(key),
            Self::Command(_) => 1_u128.to_be_bytes(),
        };
        let digits = hex(&bytes);
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        parts.join("-")
    }

    /// Wraps a data key for the node table.
    ///
    /// # Errors
    /// When the program fails.
    pub fn wrap(&self, key: &DataKey) -> Result<Vec<u8>, KeyError> {
        let mut wrapped;
        match self {
            Self::File { key: with, .. } => {
                wrapped = vec![BY_FILE];
                wrapped.extend(print(with));
                let mut bytes = [0; KEY_BYTES + aes_kw::IV_LEN];
                let done = KwAes256::new(&Array(**with)).wrap_key(key.bytes(), &mut bytes);
                if done.is_err() {
                    return error("a data key cannot be wrapped".to_owned());
                }
                wrapped.extend(bytes);
            }
            Self::Command(command) => {
                wrapped = vec![BY_COMMAND];
                wrapped.extend_from_slice(&run(command, "wrap", key.bytes())?);
            }
        }
        if wrapped.len() > WRAPPED_MAX {
            return error(format!(
                "the key command has wrapped a key in {} bytes, and {} is the limit: have it keep \
                 the key, and answer a name",
                wrapped.len() - 1,
                WRAPPED_MAX - 1
            ));
        }
        // Checked, since data would be lost if its key cannot be unwrapped.
        match self.unwrap(&wrapped) {
            Ok(back) if back.bytes() == key.bytes() => Ok(wrapped),
            Ok(_) => error("the key command unwraps another key than it has wrapped".to_owned()),
            Err(failed) => Err(failed),
        }
    }

    /// Unwraps a data key of the node table.
    ///
    /// # Errors
    /// When another key or program has wrapped it, or the program fails.
    pub fn unwrap(&self, wrapped: &[u8]) -> Result<DataKey, KeyError> {
        let bytes = match (self, wrapped.split_first()) {
            (Self::File { path, key }, Some((&BY_FILE, rest))) => {
                let other = || {
                    let path = path.display();
                    KeyError(format!("its data key was wrapped by another key than {path}'s"))
                };
                let (print_of, rest) = rest.split_at_checked(PRINT_BYTES).ok_or_else(other)?;
                let mut bytes = Zeroizing::new([0; KEY_BYTES]);
                let kw = KwAes256::new(&Array(**key));
                if print_of != print(key) || kw.unwrap_key(rest, bytes.as_mut_slice()).is_err() {
                    return Err(other());
                }
                bytes.to_vec().into()
            }
            (Self::Command(command), Some((&BY_COMMAND, rest))) => run(command, "unwrap", rest)?,
            (Self::File { .. }, Some((&BY_COMMAND, _))) => {
                return error(
                    "a key command has its data key: serve with --key-command".to_owned(),
                );
            }
            (Self::Command(_), Some((&BY_FILE, _))) => {
                return error(
                    "a key file has wrapped its data key: serve with --key-file".to_owned(),
                );
            }
            _ => return error("its data key is wrapped in a way that is not known".to_owned()),
        };
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        if bytes.len() != KEY_BYTES {
            let got = bytes.len();
            return error(format!("the key command answers {got} bytes, not {KEY_BYTES}"));
        }
        key.copy_from_slice(&bytes);
        Ok(DataKey::new(*key))
    }
}

/// Runs the program, with hexadecimal digits as input and output.
fn run(command: &str, what: &str, input: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let failed = |source: io::Error| KeyError(format!("the key command ({what}): {source}"));
    let mut child = Command::new("sh")
        .args(["-c", command, "evenkeel", what])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let answered = answer_of(&mut child, input);
    // The program is not needed any more.
    let _ = child.kill();
    let status = child.wait().map_err(failed)?;
    let answer = answered.map_err(failed)?;
    if !status.success() && answer.is_empty() {
        return error(format!("the key command ({what}) ended with {status}"));
    }
    match from_hex(answer.trim_ascii()) {
        Some(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => error(format!("the key command ({what}) does not answer with hexadecimal digits")),
    }
}

/// Returns the output of a program until it closes its output, or an error if that takes too long.
fn answer_of(child: &mut Child, input: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
    let digits: Zeroizing<String> = Zeroizing::new(hex(input));
    if let Some(mut stdin) = child.stdin.take() {
        // The input fits in a pipe, so this does not block. A program that does not read may have
        // ended.
        let _ = stdin.write_all(digits.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
    }
    let end = clock::monotonic() + Duration::from_secs(COMMAND_MAX_S);
    let mut answer = Zeroizing::new(Vec::new());
    let Some(mut stdout) = child.stdout.take() else { return Ok(answer) };
    loop {
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
        let is_ready = poll(&mut fds, Some(&timeout))? > 0;
        if clock::monotonic() >= end {
            let text = format!("no answer in {COMMAND_MAX_S} s");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        if !is_ready {
            continue;
        }
        let mut part = Zeroizing::new([0; 4_096]);
        match stdout.read(part.as_mut_slice())? {
            0 => return Ok(answer),
            count if answer.len() + count <= 2 * part.len() => {
                answer.extend_from_slice(&part[..count]);
            }
            _ => return Err(io::Error::other("it answers more than 8 KiB")),
        }
    }
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of hexadecimal digits; `None` if they are not that.
pub(crate) fn from_hex(digits: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let byte = |[high, low]: &[u8; 2]| Some(((digit(*high)? << 4) | digit(*low)?) as u8);
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    fn key_file(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    #[test]
    fn key_is_unwrapped_only_by_the_key_that_wrapped_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, digit: &str| {
            Keys::from_file(&key_file(folder.path(), name, &digit.repeat(64))).unwrap()
        };
        let ours = file("ours", "a");
        let theirs = file("theirs", "b");
        let key = DataKey::random().unwrap();
        let wrapped = ours.wrap(&key).unwrap();
        assert!(wrapped.len() <= WRAPPED_MAX);
        assert_eq!(ours.unwrap(&wrapped).unwrap().bytes(), key.bytes());
        let refused = theirs.unwrap(&wrapped).unwrap_err().to_string();
        assert!(refused.contains("wrapped by another key than") && refused.contains("theirs"));
        for at in 0..wrapped.len() {
            let mut changed = wrapped.clone();
            changed[at] ^= 1;
            assert!(ours.unwrap(&changed).is_err(), "byte {at}");
        }
        let command = Keys::Command("cat".to_owned());
        assert!(command.unwrap(&wrapped).unwrap_err().to_string().contains("--key-file"));
        assert!(!format!("{ours:?}").contains("aaaa"));
    }

    #[test]
    fn a_credential_of_a_service_may_have_an_access_list() {
        let folder = Path::new("/run/credentials/evenkeel.service");
        assert_eq!(forbidden(&folder.join("evenkeel.key"), Some(folder)), 0o037);
        assert_eq!(forbidden(Path::new("/run/credentials/key"), Some(folder)), 0o077);
        assert_eq!(forbidden(&folder.join("evenkeel.key"), None), 0o077);
    }

    #[test]
    fn a_key_file_must_be_a_key_and_the_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| Keys::from_file(path).unwrap_err().to_string();
        let short = key_file(folder.path(), "short", "abc\n");
        assert!(refused(&short).contains("openssl rand -hex 32"), "{}", refused(&short));
        let open = key_file(folder.path(), "open", &"0".repeat(64));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused(&open).contains("chmod 600"), "{}", refused(&open));
        assert!(refused(&folder.path().join("none")).contains("No such file"));
        for (path, kind) in
            [(Path::new("/dev/null"), "is a device or a socket;"), (folder.path(), "is a folder;")]
        {
            let error = refused(path);
            assert!(error.contains(kind) && error.contains("name a file with a key"), "{error}");
            assert!(!error.contains("chmod"), "{error}");
        }
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_bits_truncate(0o622), 0).unwrap();
        fs::set_permissions(&pipe, fs::Permissions::from_mode(0o622)).unwrap();
        let expected = "(mode 622): it is a pipe; name a file that is yours alone";
        assert!(refused(&pipe).ends_with(expected), "{}", refused(&pipe));
    }

    #[test]
    fn a_command_wraps_and_unwraps() {
        let key = DataKey::random().unwrap();
        // Not much of a cipher: the digits the other way round.
        let reversed = Keys::Command("rev".to_owned());
        let wrapped = reversed.wrap(&key).unwrap();
        assert_ne!(wrapped[1..], key.bytes()[..]);
        assert_eq!(reversed.unwrap(&wrapped).unwrap().bytes(), key.bytes());
        let refused =
            |command: &str| Keys::Command(command.to_owned()).wrap(&key).unwrap_err().to_string();
        assert!(refused("exit 3").contains("ended with exit status: 3"), "{}", refused("exit 3"));
        assert!(refused("echo no").contains("hexadecimal"));
        assert!(
            refused("head -c 20").contains("another key")
                || refused("head -c 20").contains("bytes")
        );
        assert!(refused("cat; yes").contains("more than 8 KiB"), "{}", refused("cat; yes"));
        assert!(
            refused("head -c 1000 /dev/zero | od -An -v -tx1 | tr -d ' \\n'")
                .contains("is the limit")
        );
    }
}
