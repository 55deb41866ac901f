//! Search over many files.

use std::ops::ControlFlow;

use camino::Utf8PathBuf;
use heeler_transcript::{
    CaseSensitivity, SearchPattern, TranscriptHit, TranscriptQuery, TranscriptSearchOutcome, search,
};

use crate::folder;

fn query(pattern: SearchPattern) -> TranscriptQuery {
    TranscriptQuery { pattern, case: CaseSensitivity::Smart, hits_max: 100 }
}

fn literal(text: &str) -> TranscriptQuery {
    query(SearchPattern::Literal(text.to_owned()))
}

fn found(query: &TranscriptQuery, paths: &[Utf8PathBuf]) -> (Vec<String>, TranscriptSearchOutcome) {
    let mut hits = Vec::new();
    let searched = search(query, paths, &mut |TranscriptHit { path, line, record }| {
        let name = path.file_name().unwrap();
        hits.push(format!("{name}:{line}@{} {}", record.offset, record.text));
        ControlFlow::Continue(())
    });
    (hits, searched.unwrap())
}

#[test]
fn matching_records_of_all_files_are_found_in_order() {
    let (_temp, folder) = folder();
    let paths = [folder.join("a.jsonl"), folder.join("b.jsonl")];
    std::fs::write(&paths[0], "{\"t\":\"one\"}\n{\"t\":\"Two\"}\n{\"t\":\"one two\"}\n").unwrap();
    std::fs::write(&paths[1], "\0\0\n{\"t\":\"TWO\"}\n").unwrap();
    let (hits, searched) = found(&literal("two"), &paths);
    assert_eq!(
        hits,
        [
            r#"a.jsonl:1@12 {"t":"Two"}"#,
            r#"a.jsonl:2@24 {"t":"one two"}"#,
            r#"b.jsonl:1@3 {"t":"TWO"}"#,
        ]
    );
    assert_eq!((searched.hits, searched.faults, searched.ended_early), (3, 0, false));
    assert_eq!(found(&literal("Two"), &paths).0.len(), 1);
    let exact = TranscriptQuery { case: CaseSensitivity::Sensitive, ..literal("two") };
    assert_eq!(found(&exact, &paths).0.len(), 1);
    let any_case = TranscriptQuery { case: CaseSensitivity::Insensitive, ..literal("Two") };
    assert_eq!(found(&any_case, &paths).0.len(), 3);
}

#[test]
fn expressions_are_expressions_and_texts_are_not() {
    let (_temp, folder) = folder();
    let paths = [folder.join("a.jsonl")];
    std::fs::write(&paths[0], "{\"t\":\"a.b\"}\n{\"t\":\"acb\"}\n").unwrap();
    assert_eq!(found(&literal("a.b"), &paths).0.len(), 1);
    assert_eq!(found(&query(SearchPattern::Regex("a.b".to_owned())), &paths).0.len(), 2);
    let error = search(&query(SearchPattern::Regex("a(".to_owned())), &paths, &mut |_| {
        ControlFlow::Continue(())
    });
    assert_eq!(error.unwrap_err().to_string(), "cannot search for \"a(\"");
}

#[test]
fn what_is_not_a_record_is_counted_and_not_shown() {
    let (_temp, folder) = folder();
    let paths = [folder.join("a.jsonl")];
    std::fs::write(&paths[0], "x garbage\n{\"x\":1}{\"y\":2}{\"z\":\"x\"}\n\0{\"x\":3}\n{\"x\"")
        .unwrap();
    let (hits, searched) = found(&literal("x"), &paths);
    assert_eq!(
        hits,
        [r#"a.jsonl:1@10 {"x":1}"#, r#"a.jsonl:1@24 {"z":"x"}"#, r#"a.jsonl:2@35 {"x":3}"#,]
    );
    // The garbage and the NUL; the torn tail is not even looked at.
    assert_eq!(searched.faults, 2);
}

#[test]
fn the_search_ends_at_its_limit_or_when_told() {
    let (_temp, folder) = folder();
    let paths = [folder.join("a.jsonl"), folder.join("missing.jsonl")];
    std::fs::write(&paths[0], "{\"x\":1}\n".repeat(10)).unwrap();
    let (hits, searched) = found(&TranscriptQuery { hits_max: 4, ..literal("x") }, &paths);
    assert_eq!((hits.len(), searched.hits, searched.ended_early), (4, 4, true));
    let (hits, searched) = found(&TranscriptQuery { hits_max: 0, ..literal("x") }, &paths);
    assert_eq!((hits.len(), searched.ended_early), (0, true));
    let told = search(&literal("x"), &paths, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((told.hits, told.ended_early), (1, true));
}

#[test]
fn a_file_that_cannot_be_read_does_not_end_the_search() {
    let (_temp, folder) = folder();
    let paths = [folder.join("missing.jsonl"), folder.join("a.jsonl")];
    std::fs::write(&paths[1], "{\"x\":1}\n").unwrap();
    let (hits, searched) = found(&literal("x"), &paths);
    assert_eq!(hits.len(), 1);
    assert_eq!(searched.unreadable.len(), 1);
    assert_eq!(searched.unreadable[0].path, paths[0]);
}

#[test]
fn a_huge_line_is_passed_over_and_the_rest_is_found_with_its_numbers() {
    let (_temp, folder) = folder();
    let paths = [folder.join("a.jsonl")];
    // Three pieces of the longest line, with a match in each.
    let huge = format!("{{\"x\":\"{}\"}}", "y".repeat(heeler_transcript::LINE_BYTES_MAX * 2));
    std::fs::write(&paths[0], format!("{{\"x\":1}}\n{huge}x\n{{\"x\":2}}\n")).unwrap();
    let (hits, searched) = found(&literal("x"), &paths);
    let offset = 8 + huge.len() + 2;
    assert_eq!(
        hits,
        [r#"a.jsonl:0@0 {"x":1}"#.to_owned(), format!(r#"a.jsonl:2@{offset} {{"x":2}}"#)]
    );
    assert_eq!(searched.faults, 2);
    assert!(searched.unreadable.is_empty(), "{:?}", searched.unreadable);
}
