//! Posts of each platform for a corpus of answers: their text as it is sent, and how it is split.
//!
//! `corpus/NAME.md` is an answer of an agent, `corpus/NAME.PLATFORM.txt` its posts. The posts are updated by
//! `UPDATE_EXPECT=1 cargo test -p heeler-connect --test rendering`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use heeler_connect::{ChatPlatform, post_parts, render_github, render_slack, render_telegram};

/// Line between two posts.
const SEPARATOR: &str = "\n======== next post ========\n";

/// Answers without code blocks and markup, of which no character may get lost.
const PLAIN: [&str; 2] = ["emoji", "long-answer"];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rendering/corpus")
}

/// Returns the answers by name.
fn answers() -> Vec<(String, String)> {
    let files = std::fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path());
    let mut answers: Vec<(String, String)> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    answers.sort();
    assert!(!answers.is_empty());
    answers
}

/// Returns the texts that are sent to a platform.
fn posts(platform: ChatPlatform, answer: &str) -> Vec<String> {
    let render = |part: String| match platform {
        ChatPlatform::Telegram => render_telegram(&part).html,
        ChatPlatform::Slack => render_slack(&part),
        ChatPlatform::Discord => part,
        ChatPlatform::Github => render_github(&part),
    };
    post_parts(platform, answer).into_iter().map(render).collect()
}

/// Returns the most UTF-16 units of a post.
fn units_max(platform: ChatPlatform) -> usize {
    match platform {
        ChatPlatform::Telegram => 4_096,
        ChatPlatform::Slack => 4_000,
        ChatPlatform::Discord => 2_000,
        ChatPlatform::Github => 65_536,
    }
}

#[test]
fn answers_are_posted_as_the_corpus_shows() {
    for (name, answer) in answers() {
        for platform in ChatPlatform::ALL {
            let posts = posts(*platform, &answer).join(SEPARATOR) + "\n";
            expect_file![corpus().join(format!("{name}.{platform}.txt"))].assert_eq(&posts);
        }
    }
}

#[test]
fn the_corpus_has_the_posts_of_its_answers_and_no_others() {
    let expected = answers().into_iter().flat_map(|(name, _)| {
        let posts = ChatPlatform::ALL.iter().map(|platform| format!("{name}.{platform}.txt"));
        posts.chain([format!("{name}.md")]).collect::<Vec<_>>()
    });
    let expected: BTreeSet<String> = expected.collect();
    let files = std::fs::read_dir(corpus()).unwrap();
    let found: BTreeSet<String> =
        files.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    assert_eq!(found, expected);
}

#[test]
fn every_post_of_the_corpus_fits_and_closes_its_code_blocks() {
    for (name, answer) in answers() {
        for platform in ChatPlatform::ALL {
            let posts = posts(*platform, &answer);
            for (number, post) in posts.iter().enumerate() {
                // Telegram counts the text without its markup.
                let text = match platform {
                    ChatPlatform::Telegram => without_tags(post),
                    _ => post.clone(),
                };
                let units = text.encode_utf16().count();
                assert!(units <= units_max(*platform), "{name} {platform} {number}: {units}");
                assert!(!post.trim().is_empty(), "{name} {platform} {number}");
                let is_last = number + 1 == posts.len();
                assert!(is_last || !has_open_block(post), "{name} {platform} {number}: {post}");
            }
        }
    }
}

#[test]
fn no_character_of_a_plain_answer_is_lost_or_torn() {
    let solid = |text: &str| text.split_whitespace().collect::<String>();
    for (name, answer) in answers().into_iter().filter(|(name, _)| PLAIN.contains(&name.as_str())) {
        let parts = post_parts(ChatPlatform::Discord, &answer);
        assert!(parts.len() > 1, "{name} is split");
        assert_eq!(solid(&parts.concat()), solid(&answer), "{name}");
        for part in parts.iter().skip(1) {
            let first = part.chars().next().unwrap();
            let is_inside = matches!(first, '\u{200d}' | '\u{fe0f}' | '\u{301}' | '\u{1f3fd}');
            assert!(!is_inside, "{name}: a part begins within a character: {first:?}");
        }
    }
}

#[test]
fn no_post_of_the_corpus_mentions_people_on_slack_or_github() {
    for (name, answer) in answers() {
        for post in posts(ChatPlatform::Slack, &answer) {
            for mark in ["<!", "<@", "<#"] {
                assert!(!post.contains(mark), "{name}: {post}");
            }
        }
        for post in posts(ChatPlatform::Github, &answer) {
            assert!(!post.lines().any(|line| line.trim_start().starts_with("/merge")), "{post}");
        }
    }
}

/// Returns the text of the HTML that Telegram takes.
fn without_tags(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        rest = after.split_once('>').unwrap().1;
    }
    text.push_str(rest);
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// Returns true if a block of code is open at the end of a post.
fn has_open_block(post: &str) -> bool {
    let mut open: Option<String> = None;
    for line in post.lines() {
        let text = line.trim();
        let sign = text.chars().next().filter(|sign| ['`', '~'].contains(sign));
        let Some(sign) = sign else { continue };
        let marker: String = text.chars().take_while(|c| *c == sign).collect();
        let is_bare = marker.len() == text.len();
        match &open {
            Some(opened) if is_bare && marker.starts_with(opened.as_str()) => open = None,
            None if marker.len() >= 3 && !text[marker.len()..].contains('`') => open = Some(marker),
            _ => {}
        }
    }
    open.is_some()
}
