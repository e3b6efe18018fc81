//! The file with the highest generation that a node has received. With it, a restarted node refuses
//! the leaders that it refused before.
//!
//! Ceph's locks protect bytes without it. It keeps a leader that slept, and wakes after the node
//! was restarted, from setting limits or deleting things that its successor has kept.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use evenkeel_core::fencing::NodeId;
use evenkeel_os::files::write_whole;
use evenkeel_wire::agent::session::{Leader, LeaderGeneration};

use crate::LinkError;

/// The first word of the file, with its version.
const TITLE: &str = "evenkeel-agent-generation-1";
/// No valid file is longer.
const FILE_BYTES_MAX: u64 = 256;

/// See the module's text.
pub(crate) struct GenerationFile {
    path: PathBuf,
}

/// Content of the file.
pub(crate) type Heard = (LeaderGeneration, Leader);

impl GenerationFile {
    /// Opens the file. Returns no content if it does not exist yet.
    pub fn open(path: &Path) -> Result<(Self, Option<Heard>), LinkError> {
        let file = Self { path: path.into() };
        let heard = match fs::metadata(path) {
            Ok(found) if found.len() > FILE_BYTES_MAX => {
                return Err(file.wrong(format!("it has {} bytes", found.len())));
            }
            Ok(_) => {
                let text = fs::read_to_string(path).map_err(|error| file.wrong(error))?;
                let heard = parsed(&text).ok_or_else(|| {
                    file.wrong(
                        "it is damaged; delete it if no former leader of the cluster can still \
                         be running",
                    )
                })?;
                Some(heard)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(file.wrong(error)),
        };
        Ok((file, heard))
    }

    /// Stores it durably. After a crash the file has the old content or the new one.
    pub fn store(&self, (generation, leader): Heard) -> Result<(), LinkError> {
        let text = format!("{TITLE} {} {} {}\n", generation.0, leader.node.0, leader.incarnation);
        write_whole(&self.path, text.as_bytes())
            .map_err(|error| self.wrong(format!("cannot be stored: {error}")))
    }

    fn wrong(&self, problem: impl ToString) -> LinkError {
        LinkError::Generation { file: self.path.clone(), problem: problem.to_string() }
    }
}

fn parsed(text: &str) -> Option<Heard> {
    let mut words = text.strip_suffix('\n')?.split(' ');
    if words.next()? != TITLE {
        return None;
    }
    let generation = LeaderGeneration(words.next()?.parse().ok()?);
    let node = NodeId(words.next()?.parse().ok()?);
    let incarnation = words.next()?.parse().ok()?;
    words.next().is_none().then_some((generation, Leader { node, incarnation }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_generation_is_read_back_and_a_damaged_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("generation");
        let (file, heard) = GenerationFile::open(&path).unwrap();
        assert_eq!(heard, None);
        let leader = Leader { node: NodeId(3), incarnation: u64::MAX };
        for generation in [1, 2, u64::MAX].map(LeaderGeneration) {
            file.store((generation, leader)).unwrap();
            assert_eq!(GenerationFile::open(&path).unwrap().1, Some((generation, leader)));
        }
        let whole = fs::read_to_string(&path).unwrap();
        for damaged in ["", "x\n", &whole[..whole.len() - 1], &format!("{whole}{whole}")] {
            fs::write(&path, damaged).unwrap();
            let error = GenerationFile::open(&path).err().unwrap().to_string();
            assert!(error.contains("it is damaged; delete it if"), "{damaged:?}: {error}");
        }
        fs::write(&path, vec![b'a'; 300]).unwrap();
        assert!(GenerationFile::open(&path).err().unwrap().to_string().contains("300 bytes"));
    }

    #[test]
    fn missing_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (file, _) = GenerationFile::open(&folder.path().join("no/generation")).unwrap();
        let leader = Leader { node: NodeId(3), incarnation: 1 };
        let error = file.store((LeaderGeneration(1), leader)).unwrap_err().to_string();
        assert!(error.contains("cannot be stored"), "{error}");
    }
}
