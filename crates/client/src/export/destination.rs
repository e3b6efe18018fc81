//! The destination of exports: a folder, or a prefix in a bucket of an S3-compatible endpoint.

use super::manifest::{BYTES_MAX, Manifest};
use super::seal::{KEY_NAME, KEY_OBJECT_BYTES_MAX, Seal, TRAILER_BYTES};
use crate::output::{Exit, Failure};
use evenkeel_store::encryption::keys::Keys;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload};
use rustix::fs::Mode;
use std::ops::Range;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Prefix of the name of a bucket.
const S3_SCHEME: &str = "s3://";
/// The folder of manifests.
const MANIFESTS: &str = "manifests";

/// The S3-compatible endpoint of a bucket. Its keys are in the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct S3Options {
    /// Address of the endpoint; `None` for Amazon S3 of the region.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: String,
}

/// A place.
pub struct Place {
    store: Arc<dyn ObjectStore>,
    /// Prefix of every name.
    prefix: Path,
    /// Its name, as the user has given it.
    name: String,
    /// The keys of its objects; `None` if they are not encrypted.
    seal: Option<Seal>,
    /// Executes asynchronous calls for the place, from any thread.
    runtime: Runtime,
}

impl Place {
    /// Opens the place of this name. A folder is made if it does not exist and `is_new` allows it.
    /// A place that has no exports yet is encrypted if there are keys; one that is encrypted needs
    /// them.
    pub fn open(
        name: &str,
        s3: &S3Options,
        keys: Option<&Keys>,
        is_new: bool,
    ) -> Result<Self, Failure> {
        let mut place = Self::plain(name, s3, is_new)?;
        place.seal = place.sealed(keys, is_new)?;
        Ok(place)
    }

    /// The place without its key.
    fn plain(name: &str, s3: &S3Options, is_new: bool) -> Result<Self, Failure> {
        let failed = |error: Error| Failure::new(format!("{name}: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new(format!("{name}: {error}")))?;
        let (store, prefix): (Arc<dyn ObjectStore>, &str) = match name.strip_prefix(S3_SCHEME) {
            Some(rest) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                (Arc::new(bucket_of(bucket, s3)?.build().map_err(failed)?), prefix)
            }
            None => {
                if is_new {
                    // New folders and files are accessible only to this user.
                    rustix::process::umask(Mode::RWXG | Mode::RWXO);
                    std::fs::create_dir_all(name)
                        .map_err(|error| Failure::new(format!("{name}: {error}")))?;
                }
                let folder = LocalFileSystem::new_with_prefix(name).map_err(|error| {
                    let hint = "is it the folder of an export? s3://BUCKET/PREFIX names a bucket";
                    failed(error).exit(Exit::NotFound).hint(hint)
                })?;
                // A manifest survives a crash of the machine.
                (Arc::new(folder.with_fsync(true)), "")
            }
        };
        let prefix = Path::parse(prefix.trim_end_matches('/'))
            .map_err(|error| Failure::new(format!("{name}: {error}")).exit(Exit::Usage))?;
        Ok(Self { store, prefix, name: name.to_owned(), seal: None, runtime })
    }

    /// The key of the place. A new one is written if the place has none and no exports yet.
    fn sealed(&self, keys: Option<&Keys>, is_new: bool) -> Result<Option<Seal>, Failure> {
        let failed = |why: String| Failure::new(format!("{}: {KEY_NAME}: {why}", self.name));
        let is_there = self.stored_length(KEY_NAME)?.is_some();
        let Some(keys) = keys else {
            let hint = "name the key with --key-file or --key-command";
            let message = format!("{} is encrypted, and there is no key", self.name);
            return if is_there {
                Err(Failure::new(message).exit(Exit::Usage).hint(hint))
            } else {
                Ok(None)
            };
        };
        if !is_there && !is_new {
            return Ok(None);
        }
        if !is_there && !self.snapshots()?.is_empty() {
            let message = format!("{} has exports that are not encrypted", self.name);
            let hint = "export to another place, or with --plain without encryption";
            return Err(Failure::new(message).exit(Exit::Usage).hint(hint));
        }
        if !is_there {
            let (_, object) = Seal::new(keys).map_err(failed)?;
            self.put_as_it_is(KEY_NAME, object)?;
        }
        // Read also if it was just written: another export may have written one at the same time.
        let bytes = self.stored_length(KEY_NAME)?.unwrap_or_default();
        if bytes > KEY_OBJECT_BYTES_MAX {
            return Err(failed(format!("it has {bytes} bytes; at most {KEY_OBJECT_BYTES_MAX}")));
        }
        let object = self.stored_range(KEY_NAME, 0..bytes)?;
        Seal::read(keys, &object).map(Some).map_err(failed)
    }

    /// Returns whether new objects are encrypted.
    pub const fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failure(&self, name: &str, error: &Error) -> Failure {
        let failure = Failure::new(format!("{}: {name}: {error}", self.name));
        match error {
            Error::NotFound { .. } => failure.exit(Exit::NotFound),
            _ => failure,
        }
    }

    /// Writes an object as a whole: it is there completely, or not at all.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        match &self.seal {
            Some(seal) => self.put_as_it_is(name, seal.seal(name, bytes)),
            None => self.put_as_it_is(name, bytes),
        }
    }

    fn put_as_it_is(&self, name: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        let path = self.path(name);
        let put = self.store.put(&path, PutPayload::from(bytes));
        self.runtime.block_on(put).map(drop).map_err(|error| self.failure(name, &error))
    }

    /// Returns the length of an object; `None` if there is none.
    pub fn length(&self, name: &str) -> Result<Option<u64>, Failure> {
        let stored = self.stored_length(name)?;
        let (Some(_), Some(stored)) = (&self.seal, stored) else { return Ok(stored) };
        let from = stored.saturating_sub(TRAILER_BYTES);
        let trailer = self.stored_range(name, from..stored)?;
        let length = Seal::length(&trailer, stored);
        length.map(Some).map_err(|why| Failure::new(format!("{}: {name}: {why}", self.name)))
    }

    /// Returns the number of bytes that an object takes in the place; `None` if there is none.
    fn stored_length(&self, name: &str) -> Result<Option<u64>, Failure> {
        match self.runtime.block_on(self.store.head(&self.path(name))) {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failure(name, &error)),
        }
    }

    /// Some ranges of an object.
    pub fn ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, Failure> {
        let Some(seal) = &self.seal else { return self.stored(name, ranges) };
        let stored = self.stored(name, &ranges.iter().map(Seal::stored).collect::<Vec<_>>())?;
        let parts = ranges.iter().zip(stored);
        Ok(parts.map(|(range, stored)| seal.open(name, range, stored)).collect())
    }

    /// An object as a whole; an encrypted one is checked.
    fn whole(&self, name: &str, length: u64) -> Result<Vec<u8>, Failure> {
        let (Some(seal), Some(stored)) = (&self.seal, self.stored_length(name)?) else {
            return self.range(name, 0..length);
        };
        let bytes = self.stored_range(name, 0..stored)?;
        let opened = seal.open_whole(name, bytes);
        opened.map_err(|why| Failure::new(format!("{}: {name}: {why}", self.name)))
    }

    /// Some ranges of an object as it is stored.
    fn stored(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, Failure> {
        let got = self.runtime.block_on(self.store.get_ranges(&self.path(name), ranges));
        let got = got.map_err(|error| self.failure(name, &error))?;
        Ok(got.into_iter().map(Vec::from).collect())
    }

    /// One range of an object as it is stored.
    fn stored_range(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        let one = std::slice::from_ref(&range);
        Ok(self.stored(name, one)?.pop().unwrap_or_default())
    }

    /// One range of an object.
    pub fn range(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        let one = std::slice::from_ref(&range);
        Ok(self.ranges(name, one)?.pop().unwrap_or_default())
    }

    /// Deletes an object, if there is one.
    pub fn delete(&self, name: &str) -> Result<(), Failure> {
        match self.runtime.block_on(self.store.delete(&self.path(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failure(name, &error)),
        }
    }

    /// The names of the objects in a folder.
    pub fn list(&self, folder: &str) -> Result<Vec<String>, Failure> {
        let listed =
            self.runtime.block_on(self.store.list_with_delimiter(Some(&self.path(folder))));
        let listed = listed.map_err(|error| self.failure(folder, &error))?;
        let names = listed.objects.iter().filter_map(|found| found.location.filename());
        Ok(names.map(str::to_owned).collect())
    }

    /// The snapshots that are exported here, by id.
    pub fn snapshots(&self) -> Result<Vec<String>, Failure> {
        let names = self.list(MANIFESTS)?;
        let mut ids: Vec<String> =
            names.iter().filter_map(|name| Some(name.strip_suffix(".json")?.to_owned())).collect();
        ids.sort();
        Ok(ids)
    }

    /// The manifest of a snapshot; `None` if it is not exported here.
    pub fn manifest(&self, snapshot: &str) -> Result<Option<Manifest>, Failure> {
        let name = manifest_name(snapshot);
        let Some(length) = self.length(&name)? else { return Ok(None) };
        if length > BYTES_MAX {
            let message = format!("{}: {name}: it has {length} bytes", self.name);
            return Err(Failure::new(message).hint(format!("the most is {BYTES_MAX}")));
        }
        let bytes = self.whole(&name, length)?;
        let read = Manifest::decode(&bytes);
        let read = read.map_err(|why| Failure::new(format!("{}: {name}: {why}", self.name)))?;
        if read.snapshot != snapshot {
            let message = format!("{}: {name}: it is of {}", self.name, read.snapshot);
            return Err(Failure::new(message));
        }
        Ok(Some(read))
    }

    /// The manifest of a snapshot, which must be there.
    pub fn known(&self, snapshot: &str) -> Result<Manifest, Failure> {
        self.manifest(snapshot)?.ok_or_else(|| {
            Failure::new(format!("{} has no export of {snapshot}", self.name))
                .exit(Exit::NotFound)
                .hint("`evenkeel snapshot exports` lists the exports of a place")
        })
    }

    /// Writes the manifest: from now on the snapshot is exported here.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<(), Failure> {
        let name = manifest_name(&manifest.snapshot);
        let bytes = manifest.encode();
        let bytes = bytes.map_err(|why| Failure::new(format!("{}: {name}: {why}", self.name)))?;
        self.put(&name, bytes)
    }

    /// Removes an export: its manifest first, then the packs that no other one names.
    pub fn remove(&self, snapshot: &str) -> Result<(), Failure> {
        let gone = self.known(snapshot)?;
        let mut packs: std::collections::BTreeSet<String> = gone.packs.into_iter().collect();
        let own = self.list(&format!("packs/{snapshot}"))?;
        packs.extend(own.into_iter().map(|file| format!("packs/{snapshot}/{file}")));
        for other in self.snapshots()?.iter().filter(|other| *other != snapshot) {
            for pack in self.known(other)?.packs {
                packs.remove(&pack);
            }
        }
        self.delete(&manifest_name(snapshot))?;
        packs.iter().try_for_each(|pack| self.delete(pack))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

fn manifest_name(snapshot: &str) -> String {
    format!("{MANIFESTS}/{snapshot}.json")
}

/// The keys are not flags, which other users of the machine can read.
fn bucket_of(bucket: &str, s3: &S3Options) -> Result<AmazonS3Builder, Failure> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let keys = (variable("S3_ACCESS_KEY_ID"), variable("S3_SECRET_ACCESS_KEY"));
    let (Some(access), Some(secret)) = keys else {
        return Err(Failure::new(format!(
            "{S3_SCHEME}{bucket}: S3_ACCESS_KEY_ID or S3_SECRET_ACCESS_KEY is not set"
        ))
        .exit(Exit::Usage)
        .hint("the AWS_ variables are those of the Evenkeel server"));
    };
    // Once for the process; it fails where that has been done.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(&s3.region)
        .with_access_key_id(access)
        .with_secret_access_key(secret);
    if let Some(token) = variable("S3_SESSION_TOKEN") {
        builder = builder.with_token(token);
    }
    if let Some(endpoint) = &s3.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    Ok(builder)
}
