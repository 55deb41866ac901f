//! Location of the records of a fleet on a PostgreSQL server. Start at [`StoreUrl`].
//!
//! A URL never holds a password: it is shown, and stored in the state directory.

use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;
use percent_encoding::percent_decode_str;
use serde_json::json;
use url::Url;

use crate::value::text_value;

/// Port of PostgreSQL where the URL names none.
pub const POSTGRES_PORT: u16 = 5432;

/// Most bytes of a URL.
const URL_BYTES_MAX: usize = 1024;

/// Cure for a password in the URL.
const PASSWORD_CURE: &str = "a password does not belong in the config: put it in `~/.pgpass`, or in the \
    variable HEELER_STORE_URL with the whole URL";

/// Server and database of the store: `postgres://USER@HOST[:PORT]/DATABASE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    pub user: String,
    pub host: StoreHost,
    pub port: u16,
    pub database: String,
    /// Certificates of the authorities that may have signed the server's certificate; the public
    /// ones by default.
    pub ca_file: Option<Utf8PathBuf>,
}

/// Address of a PostgreSQL server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StoreHost {
    /// Name or address of a host.
    Name(String),
    /// Directory of the server's unix socket.
    SocketFolder(Utf8PathBuf),
}

impl StoreHost {
    /// Returns true if data to the host leaves the machine, so that TLS is required.
    pub fn needs_tls(&self) -> bool {
        match self {
            StoreHost::SocketFolder(_) => false,
            StoreHost::Name(name) => {
                let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|it| it.is_loopback());
                !is_loopback && name != "localhost"
            }
        }
    }
}

impl fmt::Display for StoreHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreHost::Name(name) => f.write_str(name),
            StoreHost::SocketFolder(path) => f.write_str(path.as_str()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encode = |text: &str| {
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
                .to_string()
                // Readable where the characters have no meaning in a URL.
                .replace("%2D", "-")
                .replace("%2E", ".")
                .replace("%5F", "_")
        };
        let (user, database) = (encode(&self.user), encode(&self.database));
        let mut query = Vec::new();
        match &self.host {
            StoreHost::Name(name) if name.contains(':') => write!(f, "postgres://{user}@[{name}]")?,
            StoreHost::Name(name) => write!(f, "postgres://{user}@{name}")?,
            StoreHost::SocketFolder(path) => {
                write!(f, "postgres://{user}@")?;
                query.push(format!("host={path}"));
            }
        }
        match (&self.host, self.port == POSTGRES_PORT) {
            (_, true) => {}
            (StoreHost::Name(_), false) => write!(f, ":{}", self.port)?,
            // A URL without a host has no port either.
            (StoreHost::SocketFolder(_), false) => query.push(format!("port={}", self.port)),
        }
        write!(f, "/{database}")?;
        query.extend(self.ca_file.iter().map(|path| format!("sslrootcert={path}")));
        if query.is_empty() { Ok(()) } else { write!(f, "?{}", query.join("&")) }
    }
}

/// A store URL, and the password that it holds.
pub struct StoreUrlWithPassword {
    pub url: StoreUrl,
    pub password: Option<String>,
}

impl FromStr for StoreUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<StoreUrl, String> {
        let StoreUrlWithPassword { url, password } = parse_with_password(text)?;
        match password {
            None => Ok(url),
            Some(_) => Err(PASSWORD_CURE.to_owned()),
        }
    }
}

/// Parses a URL that may hold a password, as a variable of the environment does.
pub fn parse_with_password(text: &str) -> Result<StoreUrlWithPassword, String> {
    if text.len() > URL_BYTES_MAX {
        return Err(format!("it has more than {URL_BYTES_MAX} bytes"));
    }
    let scheme = ["postgres://", "postgresql://"].into_iter().find(|it| text.starts_with(it));
    let scheme = scheme.ok_or("it does not start with `postgres://`")?;
    // A URL without a host (`postgres://me@/db`) names it in its query. The library refuses one with
    // a user and no host.
    let rest = &text[scheme.len()..];
    let rest = rest.replacen("@/", "@heeler-socket/", 1);
    let parsed: Url =
        format!("postgres://{rest}").parse().map_err(|error: url::ParseError| error.to_string())?;
    let decode = |text: &str| {
        percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| "it is not UTF-8")
    };
    let user = decode(parsed.username())?;
    let password = parsed.password().map(decode).transpose()?;
    let database = decode(parsed.path().trim_start_matches('/'))?;
    if user.is_empty() {
        return Err("it names no user: `postgres://USER@HOST/DATABASE`".to_owned());
    }
    if database.is_empty() || database.contains('/') {
        return Err("it names no database: `postgres://USER@HOST/DATABASE`".to_owned());
    }
    let (mut host, mut port, mut ca_file) = (None, parsed.port(), None);
    for (key, value) in parsed.query_pairs() {
        match &*key {
            "host" => host = Some(value.into_owned()),
            "port" => port = Some(value.parse().map_err(|_| format!("`{value}` is not a port"))?),
            "sslrootcert" => ca_file = Some(absolute(&value)?),
            "password" => return Err(PASSWORD_CURE.to_owned()),
            "sslmode" if value == "verify-full" => {}
            "sslmode" => {
                return Err(
                    "`sslmode` cannot be chosen: TLS with a verified certificate is always \
                            used, except on this machine; remove it"
                        .to_owned(),
                );
            }
            other => {
                return Err(format!(
                    "the parameter `{other}` is not supported; supported are `host`, `port` and \
                     `sslrootcert`"
                ));
            }
        }
    }
    let named =
        parsed.host_str().filter(|host| *host != "heeler-socket").map(decode).transpose()?;
    let host = match (named.filter(|named| !named.is_empty()), host) {
        (Some(_), Some(_)) => return Err("it names two hosts".to_owned()),
        (Some(name), None) | (None, Some(name)) => name,
        (None, None) => return Err("it names no host: `postgres://USER@HOST/DATABASE`".to_owned()),
    };
    let host = match host.starts_with('/') {
        true => StoreHost::SocketFolder(host.into()),
        false => StoreHost::Name(host.trim_matches(['[', ']']).to_owned()),
    };
    let url = StoreUrl { user, host, port: port.unwrap_or(POSTGRES_PORT), database, ca_file };
    Ok(StoreUrlWithPassword { url, password })
}

fn absolute(path: &str) -> Result<Utf8PathBuf, String> {
    match path.starts_with('/') {
        true => Ok(path.into()),
        false => Err(format!("`{path}` is not an absolute path")),
    }
}

text_value! {
    StoreUrl: "the URL of a PostgreSQL database", "`postgres://heeler@db.example.com/heeler`",
        Some("^postgres(ql)?://"), |url| json!(url.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        let url: StoreUrl = text.parse().unwrap();
        assert_eq!(url.to_string(), shown);
        assert_eq!(shown.parse::<StoreUrl>().unwrap(), url, "{shown}");
    }

    #[test]
    fn a_url_is_shown_as_it_is_read() {
        check("postgres://me@db/fleet", "postgres://me@db/fleet");
        check("postgresql://me@db:5432/fleet", "postgres://me@db/fleet");
        check("postgres://me@db:6543/fleet", "postgres://me@db:6543/fleet");
        check("postgres://me@[::1]:6543/fleet", "postgres://me@[::1]:6543/fleet");
        check("postgres://a%40b@db/fl%20eet?sslmode=verify-full", "postgres://a%40b@db/fl%20eet");
        check("postgres://me@/fleet?host=/run/pg", "postgres://me@/fleet?host=/run/pg");
        check("postgres://me@%2Frun%2Fpg/fleet", "postgres://me@/fleet?host=/run/pg");
        check(
            "postgres://me@/fleet?port=99&host=/run/pg",
            "postgres://me@/fleet?host=/run/pg&port=99",
        );
        check(
            "postgres://me@db/fleet?sslrootcert=/etc/ca.pem",
            "postgres://me@db/fleet?sslrootcert=/etc/ca.pem",
        );
    }

    #[test]
    fn a_url_that_cannot_be_honoured_is_refused_with_the_reason() {
        for (text, reason) in [
            ("mysql://me@db/fleet", "does not start with"),
            ("postgres://db/fleet", "names no user"),
            ("postgres://me@db", "names no database"),
            ("postgres://me@db/", "names no database"),
            ("postgres://me@/fleet", "names no host"),
            ("postgres://me@db/fleet?host=/run", "two hosts"),
            ("postgres://me:secret@db/fleet", "~/.pgpass"),
            ("postgres://me@db/fleet?password=secret", "~/.pgpass"),
            ("postgres://me@db/fleet?sslmode=disable", "cannot be chosen"),
            ("postgres://me@db/fleet?options=-c", "not supported"),
            ("postgres://me@db/fleet?sslrootcert=ca.pem", "absolute"),
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn only_hosts_of_this_machine_are_reached_without_tls() {
        let needs = |text: &str| text.parse::<StoreUrl>().unwrap().host.needs_tls();
        assert!(!needs("postgres://me@localhost/x"));
        assert!(!needs("postgres://me@127.0.0.1/x"));
        assert!(!needs("postgres://me@[::1]/x"));
        assert!(!needs("postgres://me@/x?host=/run"));
        assert!(needs("postgres://me@10.0.0.1/x"));
        assert!(needs("postgres://me@db.example.com/x"));
    }
}
