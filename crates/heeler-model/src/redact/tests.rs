//! All encodings against real encoders, and streams against whole texts.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Secret that every encoding changes.
const AWKWARD: &str = "p/é\"\\<+ &ü'ß?~\tq\u{2028}`日𝄞=z";
const PLAIN: &str = "sk-ant-0123456789abcdef";

fn redactor(secrets: &[&str]) -> SecretRedactor {
    let secrets: Vec<String> = secrets.iter().map(|&secret| secret.to_owned()).collect();
    SecretRedactor::new(&secrets)
}

#[track_caller]
fn check(secret: &str, text: &str, expected: &str) {
    assert_eq!(redactor(&[secret]).redact_text(text), expected);
}

/// Secret in the middle of a text, by encoder.
#[track_caller]
fn check_form(secret: &str, form: &str) {
    check(secret, &format!("<{form}>"), "<[secret]>");
}

#[test]
fn a_raw_secret_is_replaced_wherever_it_stands() {
    check(PLAIN, PLAIN, "[secret]");
    check(PLAIN, &format!("{PLAIN}{PLAIN} and {PLAIN}"), "[secret][secret] and [secret]");
    check(PLAIN, "sk-ant-0123456789abcde", "sk-ant-0123456789abcde");
    check_form(AWKWARD, AWKWARD);
}

#[test]
fn a_text_without_secrets_is_not_copied() {
    let clean = "nothing to see here";
    assert!(matches!(redactor(&[PLAIN]).redact_text(clean), Cow::Borrowed(_)));
    assert!(matches!(redactor(&[]).redact_text(PLAIN), Cow::Borrowed(PLAIN)));
}

#[test]
fn json_escapes_of_common_writers_are_known_also_twice() {
    let quoted = |text: &str| {
        let json = serde_json::to_string(text).unwrap();
        json[1..json.len() - 1].to_owned()
    };
    let once = quoted(AWKWARD);
    check_form(AWKWARD, &once);
    check_form(AWKWARD, &quoted(&once));
    // As Python, PHP, Go and .NET write it, and two of them nested.
    let python = r#"p/\u00e9\"\\<+ &\u00fc'\u00df?~\tq\u2028`\u65e5\ud834\udd1e=z"#;
    let php = r#"p\/\u00e9\"\\<+ &\u00fc'\u00df?~\tq\u2028`\u65e5\ud834\udd1e=z"#;
    let go = r#"p/é\"\\\u003c+ \u0026ü'ß?~\tq\u2028`日𝄞=z"#;
    let dotnet = r"p/\u00E9\u0022\\\u003C\u002B \u0026\u00FC\u0027\u00DF?~\tq\u2028\u0060\u65E5\uD834\uDD1E=z";
    for form in [python, php, go, dotnet] {
        check_form(AWKWARD, form);
        check_form(AWKWARD, &quoted(form));
    }
    check_form("a/b/c/d/e/f", r"a\/b\/c\/d\/e\/f");
}

#[test]
fn percent_encodings_are_known_in_both_cases_and_as_forms() {
    let secret = "pä ss/wo+rd&=?";
    let strict = "p%C3%A4%20ss%2Fwo%2Brd%26%3D%3F";
    check_form(secret, strict);
    check_form(secret, "p%c3%a4%20ss%2fwo%2brd%26%3d%3f");
    check_form(secret, "p%C3%A4+ss%2Fwo%2Brd%26%3D%3F");
    check_form(secret, "p%C3%A4%20ss/wo+rd&=?");
    let form: String = url::form_urlencoded::byte_serialize(AWKWARD.as_bytes()).collect();
    check_form(AWKWARD, &form);
    let every_byte: String = PLAIN.bytes().map(|byte| format!("%{byte:02x}")).collect();
    check_form(PLAIN, &every_byte);
}

#[test]
fn base64_is_known_in_both_alphabets_with_and_without_padding() {
    for secret in [PLAIN, AWKWARD, "12345678", "123456789", "1234567890", "????>>>>~~~~"] {
        for engine in [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD] {
            check_form(secret, &engine.encode(secret));
        }
    }
}

#[test]
fn base64_of_a_longer_text_loses_the_secret_at_any_place_in_it() {
    for before in 0..7 {
        for after in 0..7 {
            let text = format!("{}{PLAIN}{}", "x".repeat(before), "y".repeat(after));
            for engine in [STANDARD, URL_SAFE_NO_PAD] {
                let shown = redactor(&[PLAIN]).redact_text(&engine.encode(&text)).into_owned();
                assert!(
                    shown.contains(REDACTION_MARKER),
                    "{before} before and {after} after: {shown}"
                );
                // The rest on each side holds at most one character that depends on the secret.
                let rest = shown.len() - REDACTION_MARKER.len();
                assert!(rest * 6 <= (before + after) * 8 + 2 * 6 + 2 * 6, "{shown}");
            }
        }
    }
}

#[test]
fn base64_and_hex_are_known_when_they_are_broken_into_lines() {
    let long = "a secret that is rather long, so that the lines of base64 break within it, twice?";
    let encoded = STANDARD.encode(format!("{}{long}", "xyz".repeat(10)));
    let whole = STANDARD.encode(long);
    let kept = encoded.strip_suffix(&whole).unwrap();
    for line_break in ["\n", "\r\n", "\\n", "\\\\n", "\n    "] {
        let lines: Vec<&str> =
            encoded.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
        check(long, &lines.join(line_break), &format!("{kept}[secret]"));
    }
    let hex: String = PLAIN.bytes().map(|byte| format!("{byte:02x}")).collect();
    check_form(PLAIN, &hex);
    check_form(PLAIN, &hex.to_uppercase());
    check_form(PLAIN, &format!("{}\n{}", &hex[..9], &hex[9..]));
    // PHP escapes the slashes of base64 in JSON.
    check_form("????????", r"Pz8\/Pz8\/Pz8=");
    let gap = " ".repeat(65);
    let apart = format!("{}{gap}{}", &hex[..9], &hex[9..]);
    check(PLAIN, &apart, &apart);
}

#[test]
fn the_longest_of_several_secrets_wins_and_overlapping_ones_go_together() {
    let redactor = redactor(&["abcdefgh", "abcdefgh12", "gh12345678"]);
    assert_eq!(redactor.redact_text("abcdefgh12!"), "[secret]!");
    assert_eq!(redactor.redact_text("abcdefgh12345678!"), "[secret]!");
    assert_eq!(redactor.redact_text("abcdefgh abcdefgh"), "[secret] [secret]");
}

#[test]
fn short_secrets_are_refused_by_name_and_otherwise_left_out() {
    assert_eq!(redactor(&["1234567", " 123456 "]).redact_text("1234567"), "1234567");
    check_secret("API_KEY", "12345678").unwrap();
    let refused = check_secret("API_KEY", " 1234567\n").unwrap_err();
    expect_test::expect![[r#"the value of secret `API_KEY` is shorter than 8 bytes and cannot be told from ordinary text; use a longer one, or list `API_KEY` under `env` if it is no secret"#]]
    .assert_eq(&refused.to_string());
}

#[test]
fn white_space_around_a_secret_does_not_hide_it() {
    check(" 1234567890\n", "is 1234567890.", "is [secret].");
}

#[test]
fn lines_of_a_key_are_secrets_and_its_fences_are_not() {
    let key =
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nshort\n-----END PRIVATE KEY-----";
    let shown = "-----BEGIN PRIVATE KEY-----\n> [secret]\n> short\n";
    for key in [key.to_owned(), key.replace('\n', "\r\n"), key.replace('\n', "\\n")] {
        let text = "-----BEGIN PRIVATE KEY-----\n> MIIEvQIBADANBgkqhkiG9w0\n> short\n";
        check(&key, text, shown);
        check_form(&key, &key);
    }
}

#[test]
fn a_line_of_a_secret_is_a_secret_when_a_secret_of_its_length_is() {
    let key = "{\n\"id\": \"x\",\npw 12345\n1234567\n}";
    check(key, "pw 12345 and 1234567", "[secret] and 1234567");
}

#[test]
fn json_values_lose_secrets_in_strings_keys_and_numbers() {
    let redactor = redactor(&[PLAIN, "1234567890"]);
    let mut value = json!({
        "list": [PLAIN, true, null, 12_345_678_901_u64, 12],
        PLAIN: {"deep": format!("Bearer {PLAIN}")},
        "1234567890": 2,
    });
    redactor.redact_json(&mut value);
    let expected = json!({
        "list": ["[secret]", true, null, "[secret]1", 12],
        "[secret]": {"deep": "Bearer [secret]"},
        "[secret] 2": 2,
    });
    assert_eq!(value, expected);
}

/// Redacted as text it would no longer be JSON: the secret includes the second half of an escape.
/// So JSON is redacted before serialization.
#[test]
fn a_secret_that_begins_within_an_escape_is_taken_out_of_the_value() {
    let mut row = json!({"text": r#"\/cPééW"+""#});
    redactor(&[r#"/cPééW"+""#]).redact_json(&mut row);
    assert_eq!(row.to_string(), r#"{"text":"\\[secret]"}"#);
}

#[test]
fn bytes_that_are_no_text_are_redacted_too() {
    let bytes = [b"\xff\xfe", PLAIN.as_bytes(), b"\0\xff"].concat();
    assert_eq!(&*redactor(&[PLAIN]).redact_bytes(&bytes), b"\xff\xfe[secret]\0\xff");
}

#[test]
fn names_of_secrets_are_known_by_their_words() {
    for name in ["ANTHROPIC_API_KEY", "GITHUB_TOKEN", "client_secret", "DB_PASSWORD_FILE"] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in ["PATH", "HOME", "LANG", "PASS"] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn a_redactor_does_not_tell_its_secrets() {
    let redactor = redactor(&[PLAIN]);
    assert_eq!(format!("{redactor:?}"), "SecretRedactor(…)");
    assert_eq!(format!("{:?}", redactor.stream()), "StreamRedactor(…)");
}

#[test]
fn a_stream_holds_back_only_what_may_begin_a_secret() {
    let mut stream = redactor(&[PLAIN]).stream();
    assert_eq!(stream.push("the key is sk-a"), "the key is ");
    assert_eq!(stream.push("nt or not"), "sk-ant or not");
    assert_eq!(stream.push(" sk-ant-012345"), " ");
    // The marker is returned as soon as the secret is complete.
    assert_eq!(stream.push("6789abcdef"), "[secret]");
    assert_eq!(stream.push(" end sk"), " end ");
    assert_eq!(stream.finish(), "sk");
}

#[test]
fn a_stream_of_nothing_but_secret_holds_back_little() {
    let mut stream = redactor(&["aaaaaaaa"]).stream();
    let mut shown = String::new();
    for _ in 0..1000 {
        shown += &stream.push("aaa");
        assert!(stream.pending.len() <= 8, "{}", stream.pending.len());
    }
    assert_eq!(shown + &stream.finish(), "[secret]");
}

#[test]
fn long_runs_of_backslashes_and_white_space_are_read_in_linear_time() {
    let redactor = redactor(&[PLAIN]);
    for unit in ["\\", " ", "\n", "\\n", "s", "c2st"] {
        let text = unit.repeat(200_000);
        assert_eq!(redactor.redact_text(&text), text);
        let mut stream = redactor.stream();
        assert_eq!(stream.push(&text) + &stream.finish(), text);
    }
}

/// Texts made of secrets, their fragments and encodings, and other text between them.
fn text() -> impl Strategy<Value = (Vec<String>, String)> {
    let secret = prop_oneof![
        "[a-c]{8,12}",
        "[a-cA-Z0-9/+=\\\\\"é ]{8,40}",
        Just("line one of a key\nline two of a key".to_owned()),
    ];
    proptest::collection::vec(secret, 1..4).prop_flat_map(|secrets| {
        let parts = proptest::collection::vec((0..12_u8, any::<prop::sample::Index>()), 0..12);
        (Just(secrets), parts).prop_map(|(secrets, parts)| {
            let text = parts.iter().map(|(kind, at)| part(*kind, *at, &secrets)).collect();
            (secrets, text)
        })
    })
}

fn part(kind: u8, at: prop::sample::Index, secrets: &[String]) -> String {
    let secret = at.get(secrets);
    let cut = (0..=secret.len())
        .rev()
        .find(|&cut| cut <= at.index(secret.len() + 1) && secret.is_char_boundary(cut));
    let (head, tail) = secret.split_at(cut.unwrap_or(0));
    let folded = |text: &str| {
        let at = at.index(text.len());
        format!("{}\n{}", &text[..at], &text[at..])
    };
    match kind {
        0 => secret.clone(),
        1 => head.to_owned(),
        2 => tail.to_owned(),
        3 => json!(secret).to_string(),
        4 => json!(json!(secret).to_string()).to_string(),
        5 => STANDARD.encode(secret),
        6 => folded(&URL_SAFE_NO_PAD.encode(format!("{head}{secret}"))),
        7 => folded(&secret.bytes().map(|byte| format!("{byte:02x}")).collect::<String>()),
        8 => url::form_urlencoded::byte_serialize(secret.as_bytes()).collect(),
        9 => "\\".to_owned(),
        10 => " \n".repeat(at.index(40)),
        _ => ["a", "é", "日", "\"", " "][at.index(5)].to_owned(),
    }
}

#[test]
fn the_letter_of_an_escape_is_no_letter_of_a_secret() {
    // In base64, if not aligned to three bytes, this secret begins with `n`.
    let secret = "ghp_Zm9vYmFyYmF6cXV4MTIz";
    let encoded = STANDARD.encode(format!("ab{secret}"));
    let form = &encoded[3..encoded.len() - 4];
    assert!(form.starts_with('n'), "{form}");
    let rest = &form[1..];
    for text in [format!("\\n{rest}"), format!("x\\\\n{rest}"), format!("{rest}\\{form}")] {
        let redactor = redactor(&[secret]);
        let mut stream = redactor.stream();
        let shown: String = text.chars().map(|c| stream.push(&c.to_string())).collect();
        assert_eq!(shown + &stream.finish(), redactor.redact_text(&text));
    }
}

proptest! {
    #[test]
    fn a_stream_says_what_the_whole_text_says(
        (secrets, text) in text(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let redactor = SecretRedactor::new(&secrets);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.retain(|&cut| text.is_char_boundary(cut));
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut stream = redactor.stream();
        let pieces = cuts.windows(2).map(|cut| stream.push(&text[cut[0]..cut[1]]));
        let shown: String = pieces.collect();
        prop_assert_eq!(shown + &stream.finish(), redactor.redact_text(&text));
    }

    #[test]
    fn no_secret_is_left_in_any_encoding((secrets, text) in text()) {
        let redactor = SecretRedactor::new(&secrets);
        let shown = redactor.redact_text(&text);
        for secret in secrets.iter().map(|secret| secret.trim()).filter(|s| s.len() >= 8) {
            for form in encodings::exact_encodings(secret).into_iter().chain(encodings::foldable_encodings(secret)) {
                prop_assert!(!shown.contains(&form), "{form:?} is in {shown:?}");
            }
        }
    }

    #[test]
    fn redacted_json_has_the_same_shape_and_no_secret_in_any_string((secrets, text) in text()) {
        let redactor = SecretRedactor::new(&secrets);
        let inner = json!({"text": text}).to_string();
        let mut row = json!({"text": text, "inner": [inner, {"deep": text}], text.as_str(): 1});
        redactor.redact_json(&mut row);
        let key = redactor.redact_text(&text);
        prop_assert_eq!(&row["text"], &*key);
        prop_assert_eq!(&row["inner"][1]["deep"], &*key);
        prop_assert!(row["inner"][0].is_string() && row.as_object().unwrap().len() >= 2);
        for secret in secrets.iter().map(|secret| secret.trim()).filter(|s| s.len() >= 8) {
            for form in encodings::exact_encodings(secret).into_iter().chain(encodings::foldable_encodings(secret)) {
                let shown = row["inner"][0].as_str().unwrap();
                prop_assert!(!shown.contains(&form), "{form:?} is in {shown:?}");
                prop_assert!(row.as_object().unwrap().keys().all(|key| !key.contains(&form)));
            }
        }
    }
}

/// Token of Heeler, as programs get it.
fn token() -> String {
    format!("heeler_{}", "0123456789abcdef".repeat(4))
}

#[test]
fn tokens_of_heeler_are_found_without_knowing_them() {
    let (redactor, token) = (redactor(&[]), token());
    assert_eq!(redactor.redact_text(&format!("it is {token}, yes")), "it is [secret], yes");
    assert_eq!(redactor.redact_text(&format!("{token}{token}")), "[secret][secret]");
    let short = &token[..token.len() - 1];
    assert_eq!(redactor.redact_text(short), short);
    let other = "heeler_jobs_running and heeler_ and heeler";
    assert!(matches!(redactor.redact_text(other), Cow::Borrowed(_)));
}

/// Capability of a run, as its processes get it.
fn capability() -> String {
    format!("heeler-run.01a1e8aa-3ec9-7ba6-9aa8-62fa88526ffe.{}", "0123456789abcdef".repeat(4))
}

#[test]
fn capabilities_of_runs_are_found_without_knowing_them() {
    let (redactor, capability) = (redactor(&[]), capability());
    assert_eq!(redactor.redact_text(&format!("A={capability}, yes")), "A=[secret], yes");
    assert_eq!(redactor.redact_text(&format!("{capability}{capability}")), "[secret][secret]");
    for other in [&capability[..capability.len() - 1], "heeler-run.x.y", "heeler-run."] {
        assert!(matches!(redactor.redact_text(other), Cow::Borrowed(_)), "{other}");
    }
}

#[test]
fn credentials_in_urls_are_found_without_knowing_them() {
    let redactor = redactor(&[]);
    for (text, expected) in [
        ("postgres://u:pass@db/x", "postgres://u:[secret]@db/x"),
        ("DB=redis://:p@h:1 ok", "DB=redis://:[secret]@h:1 ok"),
        ("https://u:p@ss:w@h", "https://u:[secret]@h"),
        (r#"{"u":"https:\/\/u:p\/"}"#, r#"{"u":"https:\/\/u:p\/"}"#),
        (r#"{"u":"https:\/\/u:p@h\/"}"#, r#"{"u":"https:\/\/u:[secret]@h\/"}"#),
        ("https://0123456789abcdef0123@host/r", "https://[secret]@host/r"),
    ] {
        assert_eq!(redactor.redact_text(text), expected);
        assert_eq!(redactor.redact_text(expected), expected, "once redacted it stays as it is");
    }
    for plain in [
        "http://localhost:3000/@user",
        "ssh://git@github.com/a/b",
        "https://u:$PASSWORD@h",
        "https://u:${PASSWORD}@h",
        "https://u:***@h",
        "see a://b and mail me@example.org: 12:30",
        "http://h:80 a@b",
    ] {
        assert!(matches!(redactor.redact_text(plain), Cow::Borrowed(_)), "{plain}");
    }
    let long = format!("https://u:{}@h", "p".repeat(2_000));
    assert_eq!(redactor.redact_text(&long), long);
}

#[test]
fn a_text_that_was_cut_off_ends_before_half_a_secret() {
    let redactor = redactor(&[PLAIN]);
    let cut = |text: &str| {
        String::from_utf8(redactor.redact_beginning(text.as_bytes()).into_owned()).unwrap()
    };
    assert_eq!(cut(&format!("a {PLAIN} b {}", &PLAIN[..9])), "a [secret] b ");
    assert_eq!(cut(&format!("a {}", &token()[..40])), "a ");
    assert_eq!(cut(&format!("a {}", &capability()[..100])), "a ");
    assert_eq!(cut("a postgres://u:pas"), "a postgres");
    assert_eq!(cut(&format!("a {PLAIN}")), "a [secret]");
}

proptest! {
    /// A stream shows what the whole text shows, however the shapes are cut into fragments and
    /// whatever known secret begins within them.
    #[test]
    fn shapes_in_a_stream_are_those_of_the_whole_text(
        parts in proptest::collection::vec(0..11_usize, 1..8),
        cuts in proptest::collection::vec(1..9_usize, 1..40),
    ) {
        let (token, capability) = (token(), capability());
        let choices = [
            "postgres://user1:pw@host/", " ", ":", "//", &token, "heeler_", "user1:pw@host/ xyz",
            "a://b@c:d@", "word", &capability, "heeler-run.0",
        ];
        let text: String = parts.iter().map(|&part| choices[part]).collect();
        let redactor = redactor(&["user1:pw@host/ xyz"]);
        let mut stream = redactor.stream();
        let (mut shown, mut rest) = (String::new(), text.as_str());
        for cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            shown += &stream.push(now);
            rest = later;
        }
        shown += &stream.push(rest);
        shown += &stream.finish();
        prop_assert_eq!(shown, redactor.redact_text(&text));
    }
}
