//! Location of the records: the file `store.json` of a state directory on PostgreSQL, and the
//! passwords of servers.
//!
//! A state directory may come with a clone, so `store.json` names no file and no variable. A password
//! is sent only to the server beside which the user wrote it. Start at [`PostgresLocation`].

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{StoreHost, StoreUrl, parse_with_password};
use heeler_model::LocalName;
use heeler_transcript::{DiskBackend as _, OsDisk, replace_file, untrusted_file};
use serde::{Deserialize, Serialize};

use crate::layout::{StateDir, StateDirError};

/// Name of the file.
pub(crate) const STORE_FILE: &str = "store.json";

/// Version of the file's format.
const FILE_VERSION: u32 = 1;

/// The same of a file that names a host. Releases that know no hosts refuse it: they would take runs of
/// other machines for dead.
const HOST_FILE_VERSION: u32 = 2;

/// Most bytes of the file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Records on a PostgreSQL server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresLocation {
    pub url: StoreUrl,
    /// Identifies the fleet. The database has it too, so two fleets never write to one database.
    pub fleet: String,
    /// Set if the state directory is one of several hosts of the fleet.
    pub host: Option<HostIdentity>,
}

/// A state directory as a host of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostIdentity {
    pub name: LocalName,
    /// Identifies the state directory: another one with the same name is another host.
    pub id: String,
}

impl HostIdentity {
    /// Returns the identity of a new host.
    pub fn new(name: LocalName) -> HostIdentity {
        HostIdentity { name, id: uuid::Uuid::new_v4().to_string() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreFile {
    version: u32,
    postgres: String,
    fleet: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<HostIdentity>,
}

impl PostgresLocation {
    /// Returns the location for a new fleet.
    pub fn for_new_fleet(url: StoreUrl) -> PostgresLocation {
        PostgresLocation { url, fleet: uuid::Uuid::new_v4().to_string(), host: None }
    }

    /// Reads the file of a state directory; `None` if the records are in `heeler.db`.
    pub(crate) fn read(root: &Utf8Path) -> Result<Option<PostgresLocation>, StateDirError> {
        let path = root.join(STORE_FILE);
        let refused = |reason: String| StateDirError::Store { path: path.clone(), reason };
        let text = match read_limited(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(error.to_string())),
        };
        let file: StoreFile =
            serde_json::from_str(&text).map_err(|error| refused(error.to_string()))?;
        if ![FILE_VERSION, HOST_FILE_VERSION].contains(&file.version) {
            return Err(refused(format!(
                "version {} is not known; use a newer heeler",
                file.version
            )));
        }
        let url = file.postgres.parse().map_err(refused)?;
        Ok(Some(PostgresLocation { url, fleet: file.fleet, host: file.host }))
    }

    /// Makes this the location of a state directory's records.
    pub fn write(&self, dir: &StateDir) -> Result<StateDir, StateDirError> {
        let file = StoreFile {
            version: if self.host.is_some() { HOST_FILE_VERSION } else { FILE_VERSION },
            postgres: self.url.to_string(),
            fleet: self.fleet.clone(),
            host: self.host.clone(),
        };
        let mut text = serde_json::to_string_pretty(&file).expect("text is JSON");
        text.push('\n');
        replace_file(&OsDisk, &dir.root().join(STORE_FILE), text.as_bytes()).map_err(|error| {
            StateDirError::Io { attempt: error.action, path: error.path, source: error.source }
        })?;
        StateDir::open(dir.root())
    }

    /// Makes `heeler.db` the location of a state directory's records.
    pub fn remove(dir: &StateDir) -> Result<StateDir, StateDirError> {
        let path = dir.root().join(STORE_FILE);
        let failed = |attempt, path: &Utf8Path| {
            let path = path.to_owned();
            move |source| StateDirError::Io { attempt, path, source }
        };
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed("remove", &path))?,
        }
        OsDisk.sync_folder(dir.root()).map_err(failed("sync", dir.root()))?;
        StateDir::open(dir.root())
    }

    /// Returns the password for the server; `None` if the user has given none.
    pub(crate) fn password(&self) -> Result<Option<String>, String> {
        CREDENTIALS.get().map_or(Ok(None), |credentials| credentials.password_for(&self.url))
    }
}

/// Passwords of PostgreSQL servers, as the user gives them to this process.
#[derive(Clone, Default)]
pub struct StoreCredentials {
    /// A URL with a password: it applies to this server, user and database only.
    pub url: Option<String>,
    /// A file in the format of `~/.pgpass`.
    pub password_file: Option<Utf8PathBuf>,
}

// Every process that opens a store needs the same passwords, and most open it in many places.
static CREDENTIALS: OnceLock<StoreCredentials> = OnceLock::new();

/// Sets the passwords of this process. Only the first call has an effect.
pub fn set_store_credentials(credentials: StoreCredentials) {
    let _is_first = CREDENTIALS.set(credentials);
}

impl StoreCredentials {
    fn password_for(&self, url: &StoreUrl) -> Result<Option<String>, String> {
        if let Some(text) = &self.url {
            let given = parse_with_password(text)
                .map_err(|reason| format!("HEELER_STORE_URL is not usable: {reason}"))?;
            let StoreUrl { user, host, port, database, ca_file: _ } = &given.url;
            if (user, host, port, database) == (&url.user, &url.host, &url.port, &url.database) {
                return Ok(given.password);
            }
        }
        let Some(path) = &self.password_file else { return Ok(None) };
        let text = match read_private(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot use {path}: {error}")),
        };
        Ok(find_password(&text, url))
    }
}

fn read_limited(path: &Utf8Path) -> io::Result<String> {
    let bytes = untrusted_file::read(path, FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Reads a file that only its owner may read.
fn read_private(path: &Utf8Path) -> io::Result<String> {
    let mode = std::fs::metadata(path)?.mode();
    if mode & 0o077 != 0 {
        return Err(io::Error::other("others can read it; run `chmod 600` on it"));
    }
    // A link is the user's own choice here.
    std::fs::read_to_string(path)
}

/// Finds the password of a server in the text of a `.pgpass` file: the first line that matches.
fn find_password(text: &str, url: &StoreUrl) -> Option<String> {
    let port = url.port.to_string();
    let is_socket = matches!(url.host, StoreHost::SocketFolder(_));
    let host = url.host.to_string();
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let [on, at, database, user, password] = split_line(line)?;
        let is = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        // `localhost` stands for a unix socket too, as in PostgreSQL's own tools.
        let is_host = is(&on, &host) || (is_socket && on == "localhost");
        let is_match =
            is_host && is(&at, &port) && is(&database, &url.database) && is(&user, &url.user);
        is_match.then_some(password)
    })
}

/// Splits a line at its colons; a backslash escapes one.
fn split_line(line: &str) -> Option<[String; 5]> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => fields.last_mut()?.extend(characters.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            other => fields.last_mut()?.push(other),
        }
    }
    fields.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> StoreUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_password_is_found_beside_its_server_only() {
        let file = "# mine\ndb:5432:fleet:me:se\\:cr\\\\et\nlocalhost:*:*:me:local:s\nbad line\n";
        let find = |text: &str| find_password(file, &url(text));
        assert_eq!(find("postgres://me@db/fleet").as_deref(), Some("se:cr\\et"));
        assert_eq!(find("postgres://me@db/other"), None);
        assert_eq!(find("postgres://me@evil/fleet"), None);
        assert_eq!(find("postgres://me@db:1/fleet"), None);
        assert_eq!(find("postgres://me@/x?host=/run").as_deref(), Some("local:s"));
        assert_eq!(find("postgres://you@/x?host=/run"), None);
    }

    #[test]
    fn a_url_with_a_password_applies_to_its_own_server() {
        let given = Some("postgres://me:secret@db/fleet".to_owned());
        let credentials = StoreCredentials { url: given, password_file: None };
        let of = |text: &str| credentials.password_for(&url(text)).unwrap();
        assert_eq!(of("postgres://me@db/fleet?sslrootcert=/ca").as_deref(), Some("secret"));
        assert_eq!(of("postgres://me@evil/fleet"), None);
        let bad = StoreCredentials { url: Some("me:secret@db".to_owned()), password_file: None };
        let error = bad.password_for(&url("postgres://me@db/fleet")).unwrap_err();
        assert!(error.contains("HEELER_STORE_URL") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_file_of_passwords_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("pgpass");
        std::fs::write(&path, "*:*:*:me:secret\n").unwrap();
        let credentials = StoreCredentials { url: None, password_file: Some(path.clone()) };
        let find = || credentials.password_for(&url("postgres://me@db/fleet"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(find().unwrap_err().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find().unwrap().as_deref(), Some("secret"));
    }

    #[test]
    fn the_location_survives_in_the_state_directory() {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::create(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        assert_eq!(dir.postgres(), None);
        let location = PostgresLocation::for_new_fleet(url("postgres://me@/x?host=/run"));
        let dir = location.write(&dir).unwrap();
        assert_eq!((dir.postgres(), dir.host()), (Some(&location), None));
        let host = Some(HostIdentity::new("alpha".parse().unwrap()));
        let location = PostgresLocation { host, ..location };
        let dir = location.write(&dir).unwrap();
        assert_eq!(dir.postgres(), Some(&location));
        assert_eq!(dir.host().map(|host| host.name.to_string()).as_deref(), Some("alpha"));
        assert_eq!(PostgresLocation::remove(&dir).unwrap().postgres(), None);
        std::fs::write(dir.root().join(STORE_FILE), "{}").unwrap();
        let error = StateDir::open(dir.root()).unwrap_err();
        assert!(error.to_string().contains("store.json"), "{error}");
    }
}
