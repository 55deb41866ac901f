//! Values of an object store with the API of S3. Start at [`S3Location`].

use std::fmt;
use std::str::FromStr;

use serde_json::json;
use url::Url;

use crate::github::is_safe_for_credentials;
use crate::value::text_value;

/// Longest name of a region.
const REGION_LEN_MAX: usize = 40;

/// Bucket and common beginning of keys: `s3://BUCKET/PREFIX`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct S3Location {
    pub bucket: String,
    /// Without slashes at its ends; may be empty.
    pub prefix: String,
}

impl S3Location {
    /// Returns the key of an object below the prefix.
    pub fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) }
    }
}

impl fmt::Display for S3Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let S3Location { bucket, prefix } = self;
        if prefix.is_empty() {
            write!(f, "s3://{bucket}")
        } else {
            write!(f, "s3://{bucket}/{prefix}")
        }
    }
}

impl FromStr for S3Location {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<S3Location, &'static str> {
        let rest = text.strip_prefix("s3://").ok_or("it must begin with s3://")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_bucket = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let has_ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if !(3..=63).contains(&bucket.len())
            || !bucket.chars().all(is_bucket)
            || !bucket.starts_with(has_ends)
            || !bucket.ends_with(has_ends)
            || bucket.contains("..")
        {
            return Err("a bucket has 3 to 63 lower-case letters, digits, `-` and `.`");
        }
        let prefix = prefix.trim_end_matches('/');
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/=".contains(c);
        let is_prefix = prefix.split('/').all(is_part) && prefix.chars().all(is_plain);
        if !prefix.is_empty() && !is_prefix {
            return Err("a prefix has letters, digits, `-`, `.`, `_`, `=` and `/`");
        }
        Ok(S3Location { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

/// Address of a server with the API of S3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Endpoint(Url);

impl S3Endpoint {
    pub fn url(&self) -> &Url {
        &self.0
    }
}

impl FromStr for S3Endpoint {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<S3Endpoint, &'static str> {
        let url: Url = text.parse().map_err(|_| "it is no address")?;
        match is_safe_for_credentials(text) && url.fragment().is_none() {
            true => Ok(S3Endpoint(url)),
            false => Err("it must begin with https:// and have no login, query or fragment"),
        }
    }
}

/// Region of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Region(String);

impl S3Region {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for S3Region {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<S3Region, &'static str> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        match !text.is_empty() && text.len() <= REGION_LEN_MAX && text.chars().all(is_plain) {
            true => Ok(S3Region(text.to_owned())),
            false => Err("only lower-case letters, digits and `-` are allowed"),
        }
    }
}

text_value! {
    S3Endpoint: "the address of an object store", "`https://minio.example.com`", None,
        |endpoint| json!(endpoint.0.as_str());
    S3Region: "a region", "`eu-central-1`", None, |region| json!(region.as_str());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_bucket_and_a_plain_prefix() {
        for (text, expected) in [
            ("s3://heeler-files", "s3://heeler-files"),
            ("s3://heeler-files/", "s3://heeler-files"),
            ("s3://heeler.files/team/fleet/", "s3://heeler.files/team/fleet"),
        ] {
            assert_eq!(text.parse::<S3Location>().unwrap().to_string(), expected);
        }
        for text in [
            "heeler-files",
            "s3://",
            "s3://ab",
            "s3://Heeler",
            "s3://-heeler",
            "s3://a..b",
            "s3://user:pass@bucket",
            "s3://heeler-files/a//b",
            "s3://heeler-files/../b",
            "s3://heeler-files/a b",
            "s3://heeler-files/a?x",
        ] {
            text.parse::<S3Location>().unwrap_err();
        }
    }

    #[test]
    fn an_endpoint_is_safe_and_a_region_is_plain() {
        for good in ["https://minio.example.com", "http://127.0.0.1:9000", "https://h/base"] {
            good.parse::<S3Endpoint>().unwrap();
        }
        for bad in ["http://minio:9000", "https://me:pw@h", "https://h/?x", "minio", "ftp://h"] {
            bad.parse::<S3Endpoint>().unwrap_err();
        }
        "eu-central-1".parse::<S3Region>().unwrap();
        for bad in ["", "EU", "a.b", "x/y", "a\nb"] {
            bad.parse::<S3Region>().unwrap_err();
        }
    }
}
