//! The login cookie of browsers and the CSRF token.
//!
//! The CSRF token is a hash of the cookie, so it needs no storage, and the cookie cannot be derived
//! from it.

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use heeler_engine::LOGIN_LIFETIME;
use heeler_model::secret_hash;
use subtle::ConstantTimeEq as _;

/// Cookie name prefix that browsers accept only over TLS and only from the exact host that sets the
/// cookie.
const HOST_PREFIX: &str = "__Host-";

/// Hash characters in the cookie name, to tell fleets apart.
const TAG_CHARS: usize = 8;

/// Name of the login cookie.
///
/// Cookies are shared by all ports of a host, and by all fleets behind a proxy: two fleets on one
/// host would log each other out. So the name contains the port that the browser uses and a hash of
/// the fleet's URL.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CookieName {
    plain: String,
    /// The browser certainly uses TLS; only the cookie with [`HOST_PREFIX`] counts.
    is_strict: bool,
}

impl CookieName {
    /// Returns the cookie name for a fleet at `url` whose host is `authority` in the browser.
    pub(super) fn new(url: &str, authority: &str, is_strict: bool) -> CookieName {
        // `[::1]` has colons but no port; its last part is not a number.
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let port = port.map(|port| format!("{port}-")).unwrap_or_default();
        let tag = host_tag(url);
        CookieName { plain: format!("heeler-{port}{tag}"), is_strict }
    }

    /// Returns the cookie's value, or `None` if the cookie is missing or sent twice.
    pub(super) fn value_in<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        // Any app on the host can set the plain cookie, but not the prefixed one, so that one comes
        // first.
        let plain = || find_cookie(headers, &self.plain).filter(|_| !self.is_strict);
        find_cookie(headers, &self.host_prefixed_name()).or_else(plain)
    }

    /// Returns the `Set-Cookie` header for a value.
    pub(super) fn set_header(&self, value: &str, is_secure: bool) -> HeaderValue {
        let age = LOGIN_LIFETIME.as_secs();
        let mut header = match is_secure {
            true => cookie_header(&self.host_prefixed_name(), value, age, "; Secure"),
            false => cookie_header(&self.plain, value, age, ""),
        };
        // Sensitive values are left out where headers are logged.
        header.set_sensitive(true);
        header
    }

    /// Returns the `Set-Cookie` headers that delete both forms of the cookie.
    pub(super) fn clear_headers(&self) -> [HeaderValue; 2] {
        [
            // Browsers ignore a deletion of this cookie without `Secure`.
            cookie_header(&self.host_prefixed_name(), "", 0, "; Secure"),
            cookie_header(&self.plain, "", 0, ""),
        ]
    }

    #[cfg(test)]
    pub(super) fn plain(&self) -> &str {
        &self.plain
    }

    fn host_prefixed_name(&self) -> String {
        format!("{HOST_PREFIX}{}", self.plain)
    }
}

/// Returns a short name of a fleet's URL.
pub(super) fn host_tag(url: &str) -> String {
    secret_hash(url)[..TAG_CHARS].to_owned()
}

fn cookie_header(name: &str, value: &str, age: i64, secure: &str) -> HeaderValue {
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
    HeaderValue::from_str(&text).expect("name and value are plain")
}

/// Returns the value of a cookie, or `None` if it is missing or sent twice.
fn find_cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    let mut found = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    let value = found.next()?;
    // Somebody else set the second cookie, and it is unknown which one that is.
    found.next().is_none().then_some(value)
}

/// Returns the CSRF token that belongs to a login cookie.
pub(super) fn csrf_token(cookie: &str) -> String {
    // The prefix makes the token differ from the hash that the database stores.
    secret_hash(&format!("heeler csrf {cookie}"))
}

/// Compares two secrets in constant time.
pub(super) fn constant_time_eq(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_and_never_guessed() {
        let headers = |lines: &[&'static str]| -> HeaderMap {
            lines.iter().map(|line| (COOKIE, HeaderValue::from_static(line))).collect()
        };
        let find =
            |lines: &[&'static str]| find_cookie(&headers(lines), "heeler-7878").map(str::to_owned);
        assert_eq!(find(&["a=b; heeler-7878=x; c=d"]).as_deref(), Some("x"));
        assert_eq!(find(&["a=b", "heeler-7878=x"]).as_deref(), Some("x"));
        assert_eq!(find(&["heeler-787=x; xheeler-7878=y; heeler-7878"]), None);
        assert_eq!(find(&["heeler-7878=x; heeler-7878=y"]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn fleets_on_one_host_have_cookies_of_their_own() {
        let name = |url: &str, authority: &str| CookieName::new(url, authority, false).plain;
        let home = name("http://127.0.0.1:7878", "127.0.0.1:7878");
        assert!(home.starts_with("heeler-7878-") && home.len() == 20, "{home}");
        // Other ports; containers that all listen on 7878; proxies that do not forward the host
        // name.
        assert_ne!(home, name("http://127.0.0.1:7879", "127.0.0.1:7879"));
        assert_ne!(home, name("http://127.0.0.1:7878", "127.0.0.1:8080"));
        let proxied = |url| name(url, "heeler:7878");
        assert_ne!(proxied("https://h.example"), proxied("https://h.example:8443"));
        assert_eq!(name("https://h.example", "h.example").len(), 15);
    }

    #[test]
    fn a_cookie_is_for_our_pages_alone() {
        let name = CookieName::new("http://x", "x:1", false);
        let plain = name.plain.clone();
        let rest = "Path=/; HttpOnly; SameSite=Strict; Max-Age=1209600";
        assert_eq!(name.set_header("x", true), format!("__Host-{plain}=x; {rest}; Secure"));
        assert_eq!(name.set_header("x", false), format!("{plain}=x; {rest}"));
        let cleared = name.clear_headers().map(|it| it.to_str().unwrap().to_owned());
        assert!(cleared[0].starts_with(&format!("__Host-{plain}=; Path=/;")), "{cleared:?}");
        assert!(cleared[0].ends_with("Max-Age=0; Secure"), "browsers heed no other");
        assert!(cleared[1].starts_with(&format!("{plain}=; ")), "{cleared:?}");
    }

    #[test]
    fn behind_tls_a_cookie_that_anybody_on_the_host_can_set_counts_for_nothing() {
        let [loose, strict] = [false, true].map(|it| CookieName::new("https://h", "h", it));
        let plain = loose.plain.clone();
        let given = |line: String| -> HeaderMap {
            [(COOKIE, HeaderValue::from_str(&line).unwrap())].into_iter().collect()
        };
        let (tossed, own) = (given(format!("{plain}=x")), given(format!("__Host-{plain}=y")));
        assert_eq!((loose.value_in(&tossed), strict.value_in(&tossed)), (Some("x"), None));
        assert_eq!((loose.value_in(&own), strict.value_in(&own)), (Some("y"), Some("y")));
        let both = given(format!("{plain}=x; __Host-{plain}=y"));
        assert_eq!((loose.value_in(&both), strict.value_in(&both)), (Some("y"), Some("y")));
    }

    #[test]
    fn what_proves_a_page_is_not_the_cookie() {
        assert_ne!(csrf_token("x"), csrf_token("y"));
        assert_ne!(csrf_token("x"), secret_hash("x"));
        assert!(
            constant_time_eq("a", "a")
                && !constant_time_eq("a", "b")
                && !constant_time_eq("a", "aa")
        );
    }
}
