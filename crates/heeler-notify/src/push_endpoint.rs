//! Addresses of browsers at push services.
//!
//! An address comes from a browser, so it is not trusted: the daemon would send requests to it. Only
//! the services of the known browsers are accepted, and those that the config names. Start at
//! [`PushEndpoint::parse`].

use std::fmt;

use heeler_config::WebOrigin;
use url::{Host, Url};

/// Longest address.
const ENDPOINT_BYTES_MAX: usize = 2048;

/// Hosts of the push services of Google, Mozilla and Apple.
const SERVICE_HOSTS: [&str; 3] =
    ["fcm.googleapis.com", "updates.push.services.mozilla.com", "web.push.apple.com"];

/// Ends of the hosts of push services that have many: Mozilla, Apple and Microsoft.
const SERVICE_DOMAINS: [&str; 3] =
    [".push.services.mozilla.com", ".push.apple.com", ".notify.windows.com"];

/// Checked address of a browser.
#[derive(Clone, PartialEq, Eq)]
pub struct PushEndpoint(Url);

impl PushEndpoint {
    /// Checks an address. `services` are those that the config names besides the known ones.
    pub fn parse(text: &str, services: &[WebOrigin]) -> Result<PushEndpoint, String> {
        if text.len() > ENDPOINT_BYTES_MAX {
            return Err(format!(
                "the address of the browser has more than {ENDPOINT_BYTES_MAX} bytes"
            ));
        }
        let wrong = || "the address of the browser is not one of a push service".to_owned();
        let url: Url = text.parse().map_err(|_| wrong())?;
        let is_plain = url.username().is_empty() && url.password().is_none();
        if !is_plain || url.fragment().is_some() {
            return Err(wrong());
        }
        let origin = url.origin().ascii_serialization();
        let is_named = services.iter().any(|service| service.as_str() == origin);
        let is_known = match url.host() {
            // The port is not the usual one only if the address says so.
            Some(Host::Domain(host)) => {
                url.scheme() == "https" && url.port().is_none() && is_known_host(host)
            }
            _ => false,
        };
        match is_named || is_known {
            true => Ok(PushEndpoint(url)),
            false => Err(format!(
                "the push service {} is not known: if you trust it, add it to \
                 `notify.web_push.services`",
                heeler_config::reveal_line(&origin)
            )),
        }
    }

    pub(crate) fn url(&self) -> &Url {
        &self.0
    }

    /// Returns the scheme, host and port.
    pub(crate) fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }

    /// Returns the host of the push service.
    pub fn service(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }
}

/// Shows the service only, because the rest is a secret.
impl fmt::Debug for PushEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PushEndpoint({})", self.service())
    }
}

fn is_known_host(host: &str) -> bool {
    SERVICE_HOSTS.contains(&host) || SERVICE_DOMAINS.iter().any(|domain| host.ends_with(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_known_services_are_accepted() {
        for text in [
            "https://fcm.googleapis.com/fcm/send/abc:def",
            "https://updates.push.services.mozilla.com/wpush/v2/gAAA",
            "https://web.push.apple.com/QGuQ",
            "https://wns2-par02p.notify.windows.com/w/?token=BQYA",
        ] {
            let endpoint = PushEndpoint::parse(text, &[]).unwrap();
            assert!(!format!("{endpoint:?}").contains("send"), "{endpoint:?}");
        }
    }

    #[test]
    fn other_addresses_are_refused() {
        for text in [
            "http://fcm.googleapis.com/fcm/send/abc",
            "https://fcm.googleapis.com:8443/fcm/send/abc",
            "https://user@fcm.googleapis.com/fcm/send/abc",
            "https://fcm.googleapis.com/fcm/send/abc#x",
            "https://fcm.googleapis.com.evil.example/fcm",
            "https://evilnotify.windows.com/w",
            "https://notify.windows.com/w",
            "https://127.0.0.1/push",
            "https://[::1]/push",
            "https://10.0.0.1/push",
            "https://169.254.169.254/latest/meta-data",
            "https://localhost/push",
            "file:///etc/passwd",
            "unix:/run/heeler.sock",
            "",
        ] {
            assert!(PushEndpoint::parse(text, &[]).is_err(), "{text}");
        }
        let long = format!("https://fcm.googleapis.com/{}", "x".repeat(ENDPOINT_BYTES_MAX));
        assert!(PushEndpoint::parse(&long, &[]).unwrap_err().contains("2048"));
    }
}
