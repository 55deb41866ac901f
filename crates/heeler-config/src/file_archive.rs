//! Key `archive` of a fleet: the place to which hosts move files of ended jobs. Start at
//! [`FileArchiveConfig`].

use std::fmt;
use std::str::FromStr;

use serde_json::{Value as Json, json};

use crate::duration::ConfigDuration;
use crate::reader::ConfigReader;
use crate::s3_location::{S3Endpoint, S3Location, S3Region};
use crate::shape::{ValueShape, read_default, section};
use crate::store_url::StoreUrl;
use crate::value::{ConfigValue, SpannedValue, VarName, text_value};
use crate::yaml::{YamlKind, YamlNode};

/// Place of the files of ended jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileArchivePlace {
    /// There is no archive.
    Off,
    /// Compressed, in the fleet's database.
    Database,
    /// Compressed, in an object store.
    S3(S3Location),
}

impl fmt::Display for FileArchivePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileArchivePlace::Off => f.write_str("off"),
            FileArchivePlace::Database => f.write_str("database"),
            FileArchivePlace::S3(location) => location.fmt(f),
        }
    }
}

impl FromStr for FileArchivePlace {
    type Err = String;
    fn from_str(text: &str) -> Result<FileArchivePlace, String> {
        match text {
            "off" => Ok(FileArchivePlace::Off),
            "database" => Ok(FileArchivePlace::Database),
            _ if text.starts_with("s3://") => Ok(FileArchivePlace::S3(text.parse()?)),
            _ => Err("write `off`, `database` or `s3://BUCKET/PREFIX`".to_owned()),
        }
    }
}

text_value! {
    FileArchivePlace: "a place for files", "`database` or `s3://BUCKET/PREFIX`",
        Some("^(off|database|s3://.+)$"), |place| json!(place.to_string());
}

section! {
    /// Archive of the files of ended jobs, for hosts that join later.
    pub struct FileArchiveConfig ("archive") {
        /// Place of the archive: `off`, `database` (compressed, in the database that `store` names) or
        /// `s3://BUCKET/PREFIX` (compressed, in an object store with the API of S3).
        to: FileArchivePlace,
        /// Time after the last change of a file at which it is moved to the archive, if its job has
        /// ended.
        after: ConfigDuration = "1d",
        /// Address of the object store, if it is not that of AWS: `https://minio.example.com`.
        endpoint: Option<S3Endpoint>,
        /// Region of the bucket.
        region: S3Region = "us-east-1",
        /// Environment variable that holds the ID of the access key to the bucket.
        access_key_env: VarName = "AWS_ACCESS_KEY_ID",
        /// Environment variable that holds the secret access key.
        secret_key_env: VarName = "AWS_SECRET_ACCESS_KEY",
    }
}

impl FileArchiveConfig {
    /// Returns the variables that hold credentials.
    pub(crate) fn secret_variables(&self) -> Vec<&VarName> {
        match self.to {
            FileArchivePlace::S3(_) => vec![&self.access_key_env, &self.secret_key_env],
            FileArchivePlace::Off | FileArchivePlace::Database => Vec::new(),
        }
    }
}

/// `archive` as a word or with settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FileArchiveSetting(pub(crate) FileArchiveConfig);

impl ConfigValue for FileArchiveSetting {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![FileArchivePlace::shape(), FileArchiveConfig::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<FileArchiveSetting> {
        if matches!(node.kind, YamlKind::Map(_)) {
            return FileArchiveConfig::read(node, reader).map(FileArchiveSetting);
        }
        let to = FileArchivePlace::read(node, reader)?;
        Some(FileArchiveSetting(FileArchiveConfig { to, ..FileArchiveConfig::default() }))
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

impl Default for FileArchiveConfig {
    fn default() -> FileArchiveConfig {
        read_default("{to: off}").expect("a test reads the default")
    }
}

/// Refuses an archive in a fleet that has one machine only.
pub(crate) fn check_file_archive(
    written: Option<&SpannedValue<FileArchiveSetting>>,
    store: Option<&StoreUrl>,
    reader: &mut ConfigReader,
) {
    let Some(archive) = written else { return };
    if store.is_some() || archive.value.0.to == FileArchivePlace::Off {
        return;
    }
    let message =
        "there is nothing to archive for: this fleet has one machine, which has all files";
    reader
        .error(archive.at, message.to_owned())
        .expected("set `store` to a PostgreSQL server, or remove `archive`");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn without_the_key_there_is_no_archive() {
        let config = FileArchiveConfig::default();
        assert_eq!(config.to, FileArchivePlace::Off);
        assert_eq!(config.after.get(), Duration::from_secs(24 * 3600));
    }
}
