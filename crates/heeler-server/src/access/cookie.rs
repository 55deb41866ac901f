//! The cookie by which a browser is known again, and what proves that a page of ours asks.
//!
//! What proves it is made of the cookie, so that nothing more is to be kept: whoever knows it cannot
//! tell the cookie from it.

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use heeler_engine::LOGIN_LASTS;
use heeler_model::secret_hash;
use subtle::ConstantTimeEq as _;

/// Returns the cookie's name. Browsers do not tell ports of a host apart: each daemon has its own.
pub(super) fn name(port: u16) -> String {
    format!("heeler-{port}")
}

/// Returns the value of a cookie; none if it is there twice.
pub(super) fn find<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    let mut found = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    let value = found.next()?;
    found.next().is_none().then_some(value)
}

/// Returns the header that sets a cookie.
pub(super) fn set(name: &str, value: &str, is_secure: bool) -> HeaderValue {
    let secure = if is_secure { "; Secure" } else { "" };
    let age = LOGIN_LASTS.as_secs();
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
    let mut header = HeaderValue::from_str(&text).expect("name and value are plain");
    header.set_sensitive(true);
    header
}

/// Returns the header that takes a cookie away.
pub(super) fn clear(name: &str) -> HeaderValue {
    let text = format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    HeaderValue::from_str(&text).expect("the name is plain")
}

/// Returns what proves that a page asks that was given out for a cookie.
pub(super) fn csrf(cookie: &str) -> String {
    secret_hash(&format!("heeler csrf {cookie}"))
}

/// Compares without telling by the time it takes how much is the same.
pub(super) fn is_same(one: &str, other: &str) -> bool {
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
        let find = |lines: &[&'static str]| find(&headers(lines), "heeler-7878").map(str::to_owned);
        assert_eq!(find(&["a=b; heeler-7878=x; c=d"]).as_deref(), Some("x"));
        assert_eq!(find(&["a=b", "heeler-7878=x"]).as_deref(), Some("x"));
        assert_eq!(find(&["heeler-787=x; xheeler-7878=y; heeler-7878"]), None);
        assert_eq!(find(&["heeler-7878=x; heeler-7878=y"]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn a_cookie_is_for_our_pages_alone() {
        assert_eq!(
            set("heeler-1", "x", true),
            "heeler-1=x; Path=/; HttpOnly; SameSite=Strict; Max-Age=1209600; Secure"
        );
        assert!(!set("heeler-1", "x", false).to_str().unwrap().contains("Secure"));
        assert!(clear("heeler-1").to_str().unwrap().ends_with("Max-Age=0"));
    }

    #[test]
    fn what_proves_a_page_is_not_the_cookie() {
        assert_ne!(csrf("x"), csrf("y"));
        assert_ne!(csrf("x"), secret_hash("x"));
        assert!(is_same("a", "a") && !is_same("a", "b") && !is_same("a", "aa"));
    }
}
