//! Host and Origin of a request, and those that are allowed.
//!
//! A page of another site can make a browser reach this machine under a host name of its own (DNS
//! rebinding). So only configured names, and addresses of this machine, are accepted.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};

/// Allowed host names and origins.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AllowedHosts {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl AllowedHosts {
    pub(super) fn new(host: &str, origins: &[String]) -> AllowedHosts {
        let of_origin =
            |origin: &String| Some(origin_authority(origin)?.host().to_ascii_lowercase());
        let mut hosts: Vec<String> = origins.iter().filter_map(of_origin).collect();
        // Browsers resolve `localhost` themselves, so no other site can rebind it.
        hosts.extend(["localhost".to_owned(), bracket_ipv6(host).to_ascii_lowercase()]);
        AllowedHosts { hosts, origins: origins.iter().map(|it| it.to_ascii_lowercase()).collect() }
    }

    /// Also allows a host name, if there is one.
    pub(super) fn with_host(mut self, host: Option<String>) -> AllowedHosts {
        self.hosts.extend(host);
        self
    }

    /// Returns true if a Host header is allowed. An IP address is allowed if it is a loopback
    /// address or the address that the request was sent to.
    pub(super) fn is_allowed_host(&self, authority: &str, local: IpAddr) -> bool {
        let Some(authority) = parse_authority(authority) else { return false };
        let host = authority.host().to_ascii_lowercase();
        if self.hosts.contains(&host) {
            return true;
        }
        // DNS rebinding needs a name, so an address is safe if it is one of this machine.
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        // A dual-stack socket reports IPv4 addresses as mapped IPv6 addresses.
        let is_ours = |address: IpAddr| address.is_loopback() || address == local.to_canonical();
        address.is_ok_and(|address| is_ours(address.to_canonical()))
    }

    /// Returns true if an Origin header names a page of this dashboard.
    pub(super) fn is_own_page(&self, origin: &str, authority: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        // Without a proxy there is no TLS, so only `http` can be this server.
        self.origins.contains(&origin)
            || origin == format!("http://{}", authority.to_ascii_lowercase())
    }

    /// Returns true if the origin or host of a request is a URL under which a proxy serves the
    /// dashboard.
    pub(super) fn is_proxied(&self, origin: Option<&str>, authority: &str) -> bool {
        let is_called = |known: &String| {
            known.split_once("://").is_some_and(|(_, it)| it.eq_ignore_ascii_case(authority))
        };
        let is_page = |origin: &str| self.origins.contains(&origin.to_ascii_lowercase());
        origin.is_some_and(is_page) || self.origins.iter().any(is_called)
    }

    /// Returns true if the browser reached the dashboard through TLS.
    pub(super) fn is_secure(&self, origin: Option<&str>, authority: &str) -> bool {
        let secure = |origin: &str| origin.starts_with("https://");
        // A proxy may replace the Host, but the Origin is what the browser itself uses.
        match origin {
            Some(origin) => secure(&origin.to_ascii_lowercase()),
            None => {
                let wanted = format!("https://{}", authority.to_ascii_lowercase());
                self.origins.contains(&wanted)
            }
        }
    }
}

/// Returns the host that a request names, from the URI or the only Host header.
pub(super) fn authority<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    // An absolute request target carries the host itself, and takes precedence over the header.
    if let Some(authority) = uri.authority() {
        return Some(authority.as_str());
    }
    let mut hosts = headers.get_all(HOST).into_iter();
    let host = hosts.next()?.to_str().ok()?;
    // A proxy may read the other of two headers, so two count as none.
    hosts.next().is_none().then_some(host)
}

/// Returns the Origin header.
pub(super) fn origin_header(headers: &HeaderMap) -> Option<&str> {
    let mut origins = headers.get_all(ORIGIN).into_iter();
    let origin = origins.next()?.to_str().unwrap_or_default();
    // Browsers send one Origin; with two it is treated as invalid.
    Some(origins.next().map_or(origin, |_| ""))
}

/// Parses `host[:port]`; user information is rejected.
fn parse_authority(text: &str) -> Option<Authority> {
    // `Authority` accepts user information, which no Host header may have.
    text.parse::<Authority>().ok().filter(|_| !text.contains('@'))
}

fn origin_authority(origin: &str) -> Option<Authority> {
    parse_authority(origin.split_once("://")?.1)
}

fn bracket_ipv6(host: &str) -> String {
    if host.contains(':') {
        format!("[{}]", host.trim_matches(['[', ']']))
    } else {
        host.to_owned()
    }
}

/// Returns true if browsers on this machine reach a server that listens on `host` by the loopback
/// address.
pub(super) fn is_local_host(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_local = |it: IpAddr| it.to_canonical().is_loopback() || it.is_unspecified();
    address.map_or(host.eq_ignore_ascii_case("localhost"), is_local)
}

/// Returns the URL that a browser on this machine opens.
pub(super) fn local_url(host: &str, port: u16) -> String {
    let host = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        // Listening on all addresses is possible, but a browser cannot open the unspecified
        // address.
        Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(address)) if address.is_unspecified() => "[::1]".to_owned(),
        _ => bracket_ipv6(host),
    };
    format!("http://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(host: &str) -> AllowedHosts {
        AllowedHosts::new(host, &["https://Heeler.example.com".to_owned()])
    }

    #[test]
    fn only_names_that_we_were_given_mean_us() {
        let local: IpAddr = "10.0.0.7".parse().unwrap();
        for (name, means_us) in [
            ("localhost", true),
            ("LOCALHOST:7878", true),
            ("127.0.0.1:1", true),
            ("127.9.9.9", true),
            ("[::1]:7878", true),
            ("box.lan:7878", true),
            ("heeler.example.com", true),
            ("10.0.0.7:7878", true),
            ("[::ffff:10.0.0.7]", true),
            ("10.0.0.8", false),
            ("0.0.0.0", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("x@localhost", false),
            ("localhost@evil.example", false),
            ("localhost/evil", false),
            ("localhost.", false),
            ("", false),
        ] {
            assert_eq!(names("box.lan").is_allowed_host(name, local), means_us, "{name}");
        }
        assert!(names("::1").is_allowed_host("[::1]", local));
    }

    #[test]
    fn a_page_is_ours_if_it_came_from_where_the_request_goes_or_through_the_proxy() {
        for (origin, is_ours) in [
            ("http://localhost:7878", true),
            ("https://heeler.example.com", true),
            ("https://localhost:7878", false),
            ("http://localhost:3000", false),
            ("http://localhost", false),
            ("http://heeler.example.com", false),
            ("https://evil.example", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(names("x").is_own_page(origin, "localhost:7878"), is_ours, "{origin}");
        }
    }

    #[test]
    fn what_a_proxy_sends_is_known_by_the_names_that_it_serves() {
        let names = names("x");
        assert!(names.is_proxied(Some("https://heeler.example.com"), "127.0.0.1:7878"));
        assert!(names.is_proxied(None, "Heeler.example.com"));
        assert!(!names.is_proxied(Some("http://127.0.0.1:7878"), "127.0.0.1:7878"));
        assert!(!names.is_proxied(None, "localhost"));
    }

    #[test]
    fn a_cookie_is_for_tls_alone_where_it_was_reached_so() {
        let names = names("x");
        assert!(names.is_secure(Some("https://heeler.example.com"), "127.0.0.1:7878"));
        assert!(names.is_secure(None, "heeler.example.com"));
        assert!(!names.is_secure(Some("http://localhost:7878"), "localhost:7878"));
        assert!(!names.is_secure(None, "localhost:7878"));
    }
}
