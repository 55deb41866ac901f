//! Secrets that are recognized by their shape, without knowing their value: Heeler's own tokens
//! (`heeler_` and 64 hexadecimal digits), the capabilities of runs (`heeler-run.RUN.SECRET`), and
//! credentials in URLs (`scheme://user:password@host`).
//!
//! Start at [`find_shapes`].

use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::REDACTION_MARKER;

const TOKEN_PREFIX: &[u8] = b"heeler_";

/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 64;

const CAPABILITY_PREFIX: &[u8] = b"heeler-run.";

/// Characters of the run in a capability: a UUID.
const RUN_DIGITS: usize = 36;

const CAPABILITY_BYTES: usize = CAPABILITY_PREFIX.len() + RUN_DIGITS + 1 + TOKEN_DIGITS;

/// Text between scheme and authority of a URL, plain and as some writers escape it in JSON.
const URL_SEPARATORS: [&[u8]; 2] = [b"://", b":\\/\\/"];

/// Longest authority of a URL. Bounds the text that a stream must hold back.
const AUTHORITY_BYTES_MAX: usize = 1024;

/// Shortest user name without password that counts as a token. Shorter ones are names of people.
const USER_TOKEN_BYTES_MIN: usize = 20;

static TOKEN_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(TOKEN_PREFIX));
static CAPABILITY_FINDER: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(CAPABILITY_PREFIX));
static URL_FINDERS: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| URL_SEPARATORS.map(Finder::new));

/// Secret that was recognized by its shape.
#[derive(Debug, PartialEq)]
pub(super) struct ShapeMatch {
    /// Start of the text by which it was recognized.
    pub(super) anchor: usize,
    pub(super) secret: Range<usize>,
}

/// Returns all secrets that are recognized by their shape, ordered by their anchors.
pub(super) fn find_shapes(bytes: &[u8]) -> Vec<ShapeMatch> {
    let mut found: Vec<ShapeMatch> = TOKEN_FINDER
        .find_iter(bytes)
        .filter(|&at| digits_after(bytes, at) >= TOKEN_DIGITS)
        .map(|at| ShapeMatch { anchor: at, secret: at..at + TOKEN_PREFIX.len() + TOKEN_DIGITS })
        .collect();
    let capabilities = CAPABILITY_FINDER.find_iter(bytes).filter_map(|at| {
        let secret = at..at + CAPABILITY_BYTES;
        let is_whole = bytes.get(secret.clone()).is_some_and(is_capability_start);
        is_whole.then_some(ShapeMatch { anchor: at, secret })
    });
    found.extend(capabilities);
    for (finder, separator) in URL_FINDERS.iter().zip(URL_SEPARATORS) {
        found.extend(finder.find_iter(bytes).filter_map(|anchor| {
            let start = anchor + separator.len();
            let authority = authority(&bytes[start..])?;
            let secret = credential(authority)?;
            Some(ShapeMatch { anchor, secret: start + secret.start..start + secret.end })
        }));
    }
    found.sort_by_key(|shape| shape.anchor);
    found
}

/// Returns the start of an incomplete shape at the end of the bytes, or their length if none.
pub(super) fn partial_shape_start(bytes: &[u8]) -> usize {
    let tail = |len: usize| bytes.len().saturating_sub(len - 1)..bytes.len();
    let token = tail(TOKEN_PREFIX.len() + TOKEN_DIGITS).find(|&at| is_token_start(&bytes[at..]));
    let capability = tail(CAPABILITY_BYTES).find(|&at| is_capability_start(&bytes[at..]));
    let open_token = token.into_iter().chain(capability).min();
    let open_url = URL_SEPARATORS.iter().filter_map(|separator| open_url(bytes, separator)).min();
    let open = open_token.unwrap_or(bytes.len());
    open_url.map_or(open, |url| url.min(open))
}

/// Returns true if the bytes are a token that is not complete.
fn is_token_start(bytes: &[u8]) -> bool {
    let prefix = bytes.len().min(TOKEN_PREFIX.len());
    bytes[..prefix] == TOKEN_PREFIX[..prefix] && bytes[prefix..].iter().all(is_hex_digit)
}

/// Returns true if the bytes are a capability, whole or not complete.
fn is_capability_start(bytes: &[u8]) -> bool {
    let run_end = CAPABILITY_PREFIX.len() + RUN_DIGITS;
    bytes.len() <= CAPABILITY_BYTES
        && bytes.iter().enumerate().all(|(at, byte)| match CAPABILITY_PREFIX.get(at) {
            Some(expected) => byte == expected,
            None if at < run_end => is_hex_digit(byte) || *byte == b'-',
            None if at == run_end => *byte == b'.',
            None => is_hex_digit(byte),
        })
}

fn open_url(bytes: &[u8], separator: &[u8]) -> Option<usize> {
    // An earlier separator has ended: the later one contains a slash, which ends an authority.
    let reach = bytes.len().saturating_sub(AUTHORITY_BYTES_MAX + separator.len());
    let tail = &bytes[reach..];
    if let Some(at) = tail.windows(separator.len()).rposition(|window| window == separator) {
        let authority = &tail[at + separator.len()..];
        if !authority.iter().any(ends_authority) {
            return Some(reach + at);
        }
    }
    let is_open = |len: &usize| bytes.ends_with(&separator[..*len]);
    (1..separator.len()).rev().find(is_open).map(|len| bytes.len() - len)
}

fn digits_after(bytes: &[u8], token: usize) -> usize {
    let digits = bytes[token + TOKEN_PREFIX.len()..].iter().take(TOKEN_DIGITS);
    digits.take_while(|byte| is_hex_digit(byte)).count()
}

fn is_hex_digit(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Returns the authority at the start of the bytes, unless it is too long.
fn authority(bytes: &[u8]) -> Option<&[u8]> {
    let within = &bytes[..bytes.len().min(AUTHORITY_BYTES_MAX + 1)];
    let end = within.iter().position(ends_authority).unwrap_or(within.len());
    (end <= AUTHORITY_BYTES_MAX).then_some(&within[..end])
}

fn ends_authority(byte: &u8) -> bool {
    byte.is_ascii_control() || b" /?#\"'<>\\`".contains(byte)
}

/// Returns the password of an authority, or its user name if that can only be a token.
fn credential(authority: &[u8]) -> Option<Range<usize>> {
    // A password may contain the sign too, so the last one counts, as in browsers.
    let end = memchr::memrchr(b'@', authority)?;
    let colon = memchr::memchr(b':', &authority[..end]);
    let start = colon.map_or(0, |colon| colon + 1);
    let least = if colon.is_some() { 1 } else { USER_TOKEN_BYTES_MIN };
    let secret = &authority[start..end];
    (secret.len() >= least && !is_placeholder(secret)).then_some(start..end)
}

/// Returns true for text that stands for a password: a variable, a mask, or our own marker.
fn is_placeholder(password: &[u8]) -> bool {
    let is_variable = |rest: &[u8]| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_{}".contains(byte);
        !rest.is_empty() && rest.iter().all(is_name) && !rest[0].is_ascii_digit()
    };
    password == REDACTION_MARKER.as_bytes()
        || password.strip_prefix(b"$").is_some_and(is_variable)
        || password.starts_with(b"{")
        || password.iter().all(|byte| b"*.".contains(byte))
}
