//! The archive of files in an object store. Each host has its own access to it, by its config and its
//! environment.
//!
//! An object's key holds the hash of the content, so a repeated upload replaces an object by the same
//! one. Start at [`ObjectArchive::upload`] and [`ObjectArchive::chunks`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use heeler_config::{FileArchiveConfig, FileArchivePlace, S3Location, VarName};
use heeler_s3::{S3Client, S3Credentials, S3Error, S3ErrorKind, S3Place};
use heeler_store::{
    ARCHIVED_BYTES_MAX, PackError, PackedFile, StateDir, UnarchivedFile, pack_file,
};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::fault::{self, FaultPoint};
use crate::fleet_monitor::FleetMonitor;

/// Draft of an object, in the state directory. It has this name only for a moment.
const DRAFT: &str = ".file-archive.draft";

/// Object that `heeler doctor` writes.
const PROBE: &str = "heeler-doctor";

/// Bytes of a compressed file that are read at once.
const CHUNK_BYTES: u64 = 512 << 10;

/// Most bytes of an object: compression adds little to content that it cannot make smaller.
const OBJECT_BYTES_MAX: u64 = ARCHIVED_BYTES_MAX + (ARCHIVED_BYTES_MAX >> 6);

/// Characters of the hash in a key.
const KEY_HASH_LEN: usize = 32;

/// Access of this host to object stores.
#[derive(Debug, Clone)]
pub(super) struct ObjectArchive {
    monitor: FleetMonitor,
    now: fn() -> Timestamp,
    /// True if the daemon ends.
    stopping: Arc<AtomicBool>,
}

/// An object that was stored.
#[derive(Debug)]
pub(super) struct StoredObject {
    pub(super) packed: PackedFile,
    /// `s3://BUCKET/KEY`.
    pub(super) url: String,
}

/// Failure to store or read an object.
#[derive(Debug)]
pub(super) enum ObjectError {
    /// This file cannot be read, or the object is not there.
    File(String),
    /// The store cannot be used.
    Store(String),
    /// The daemon ends.
    Stopped,
}

impl From<S3Error> for ObjectError {
    fn from(error: S3Error) -> ObjectError {
        match error.kind {
            S3ErrorKind::NotFound => ObjectError::File(format!("the object is missing: {error}")),
            S3ErrorKind::Refused | S3ErrorKind::Transient => ObjectError::Store(error.to_string()),
        }
    }
}

impl ObjectArchive {
    pub(super) fn new(monitor: FleetMonitor, now: fn() -> Timestamp) -> ObjectArchive {
        ObjectArchive { monitor, now, stopping: Arc::default() }
    }

    pub(super) fn monitor(&self) -> &FleetMonitor {
        &self.monitor
    }

    /// Lets files that are being taken from the archive end at their next chunk.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Fails if the daemon ends.
    pub(super) fn check_stop(&self) -> Result<(), ObjectError> {
        match self.stopping.load(Ordering::Relaxed) {
            true => Err(ObjectError::Stopped),
            false => Ok(()),
        }
    }

    /// Returns a client for a bucket that this host's config names.
    fn client(&self, location: &S3Location) -> Result<S3Client, ObjectError> {
        let setup = self.monitor.setup();
        let config = setup.loaded.fleets.first().map(|fleet| &fleet.archive);
        let own = config.and_then(|config| match &config.to {
            FileArchivePlace::S3(own) => Some((config, own)),
            FileArchivePlace::Off | FileArchivePlace::Database => None,
        });
        let Some((config, own)) = own else {
            let why =
                format!("the config of this host names no object store, and {location} is used");
            return Err(ObjectError::Store(why));
        };
        // Credentials are for the bucket that the config names. A record cannot send them elsewhere.
        if own.bucket != location.bucket {
            let why = format!("it is in {location}, and the config of this host names {own}");
            return Err(ObjectError::File(why));
        }
        client_of(config, location, &setup.env).map_err(ObjectError::Store)
    }

    /// Compresses a file and stores it.
    pub(super) fn upload(
        &self,
        location: &S3Location,
        dir: &StateDir,
        (file, content): (&UnarchivedFile, File),
        mut check_stop: impl FnMut() -> Result<(), ObjectError>,
    ) -> Result<StoredObject, ObjectError> {
        let client = self.client(location)?;
        let disk = |error: io::Error| ObjectError::Store(format!("cannot write a draft: {error}"));
        let mut draft = create_draft(dir).map_err(disk)?;
        let (mut hasher, mut length) = (Sha256::new(), 0);
        let packed = pack_file(content, file.length, |_, chunk| {
            check_stop()?;
            hasher.update(chunk);
            length += chunk.len() as u64;
            draft.write_all(chunk).map_err(disk)
        });
        let packed = packed.map_err(|error| match error {
            PackError::Put(error) => error,
            PackError::Read(error) => ObjectError::File(format!("cannot read it: {error}")),
            PackError::TooShort(_) => ObjectError::File(error.to_string()),
        })?;
        draft.seek(SeekFrom::Start(0)).map_err(disk)?;
        let hash = packed.sha256.get(..KEY_HASH_LEN).unwrap_or_default();
        let key = location.key(&format!("{}.{}.{hash}.gz", file.path, file.length));
        let sha256: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        client.put(&key, draft, (length, &sha256), (self.now)())?;
        fault::reach(FaultPoint::ArchiveChunkStored);
        Ok(StoredObject { packed, url: format!("s3://{}/{key}", location.bucket) })
    }

    /// Reads an object in pieces.
    pub(super) fn chunks(
        &self,
        object: &str,
    ) -> Result<impl Iterator<Item = Result<Vec<u8>, ObjectError>> + use<>, ObjectError> {
        let missing = || ObjectError::File(format!("`{object}` is no object"));
        let (bucket, key) =
            object.strip_prefix("s3://").and_then(|it| it.split_once('/')).ok_or_else(missing)?;
        let location: S3Location = format!("s3://{bucket}").parse().map_err(|_| missing())?;
        let mut reader = self.client(&location)?.get(key, (self.now)())?.take(OBJECT_BYTES_MAX);
        Ok(std::iter::from_fn(move || {
            let mut chunk = Vec::new();
            match reader.by_ref().take(CHUNK_BYTES).read_to_end(&mut chunk) {
                Ok(0) => None,
                Ok(_) => Some(Ok(chunk)),
                Err(error) => {
                    let why = format!("the object store ended its answer: {error}");
                    Some(Err(ObjectError::Store(why)))
                }
            }
        }))
    }
}

/// Returns a client for a bucket; fails if a variable is not set.
fn client_of(
    config: &FileArchiveConfig,
    location: &S3Location,
    env: &BTreeMap<String, String>,
) -> Result<S3Client, String> {
    let value = |name: &VarName| {
        let value = env.get(name.as_str()).filter(|value| !value.is_empty());
        value.cloned().ok_or_else(|| format!("{} is not set", name.as_str()))
    };
    let credentials = S3Credentials {
        access_key: value(&config.access_key_env)?,
        secret_key: value(&config.secret_key_env)?,
    };
    let place = S3Place {
        location: location.clone(),
        endpoint: config.endpoint.as_ref().map(|endpoint| endpoint.url().clone()),
        region: config.region.as_str().to_owned(),
    };
    Ok(S3Client::new(place, credentials))
}

/// Writes an empty object into the object store that a config names, and looks at it. Returns `None` if it
/// names none.
pub fn check_file_archive(
    config: &FileArchiveConfig,
    env: &BTreeMap<String, String>,
    now: Timestamp,
) -> Option<Result<(), String>> {
    let FileArchivePlace::S3(location) = &config.to else { return None };
    let check = || {
        let client = client_of(config, location, env)?;
        let key = location.key(PROBE);
        let text = |error: S3Error| error.to_string();
        client.put_empty(&key, now).map_err(text)?;
        match client.head(&key, now).map_err(text)? {
            Some(0) => Ok(()),
            found => Err(format!("an object of 0 bytes was stored, and {found:?} are there")),
        }
    };
    Some(check())
}

/// Creates a file without a name, so that a kill leaves nothing.
fn create_draft(dir: &StateDir) -> io::Result<File> {
    let path = dir.root().join(DRAFT);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let draft = untrusted_file::open_with(&mut options, &path)?;
    std::fs::remove_file(&path)?;
    Ok(draft)
}
