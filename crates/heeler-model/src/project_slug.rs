//! Names of project directories for session transcripts, in Claude's scheme.

use camino::Utf8Path;

/// Longest name without a hash. Longer names are cut and get a hash of the whole path, because a
/// file name is limited to 255 bytes.
pub const SLUG_LEN_MAX: usize = 200;

/// Returns Claude's directory name for a project: every character except ASCII letters and digits
/// becomes `-`.
///
/// `cwd` must be a canonical path. Claude counts UTF-16 units, so a character beyond the basic
/// multilingual plane becomes two dashes. The hash distinguishes long paths with the same prefix.
pub fn project_slug(cwd: &Utf8Path) -> String {
    let plain = |unit: u16| match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii_alphanumeric() => char::from(byte),
        _ => '-',
    };
    // JavaScript counts UTF-16 units, and Claude's own names must be met exactly.
    let mut slug: String = cwd.as_str().encode_utf16().map(plain).collect();
    if slug.len() > SLUG_LEN_MAX {
        slug.truncate(SLUG_LEN_MAX);
        slug.push('-');
        slug.push_str(&base36(hash(cwd.as_str())));
    }
    slug
}

/// String hash that is common in JavaScript: `31 * hash + unit` in 32 signed bits.
fn hash(text: &str) -> u32 {
    let step = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    text.encode_utf16().fold(0, step).unsigned_abs()
}

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.iter().rev().map(|&digit| char::from(digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> String {
        project_slug(Utf8Path::new(path))
    }

    #[test]
    fn everything_but_letters_and_digits_becomes_a_dash() {
        assert_eq!(of("/tmp/a.b_c d-é"), "-tmp-a-b-c-d--");
        assert_eq!(of("/\u{1F415}"), "---");
    }

    #[test]
    fn a_long_path_is_cut_and_told_apart_by_its_hash() {
        let long = format!("/{}", "a".repeat(199));
        assert_eq!(of(&long), long.replace('/', "-"));
        let (one, two) = (of(&format!("{long}b")), of(&format!("{long}c")));
        assert!(one.starts_with(&format!("-{}-", "a".repeat(199))), "{one}");
        assert_ne!(one, two);
        let longest = of(&format!("/{}", "\u{1F415}".repeat(2000)));
        assert!(longest.len() + "/.jsonl".len() < 255, "{longest}");
    }

    #[test]
    fn the_hash_is_the_one_of_javascript_programs() {
        // Computed with `(hash << 5) - hash + unit | 0` and `Math.abs(hash).toString(36)`.
        assert_eq!(base36(hash("")), "0");
        assert_eq!(base36(hash("abc")), "22ci");
        assert_eq!(base36(hash("hello world, this is a long text")), "p6omqi");
        assert_eq!(base36(hash(&format!("/{}", "é\u{1F415}".repeat(150)))), "atih73");
    }
}
