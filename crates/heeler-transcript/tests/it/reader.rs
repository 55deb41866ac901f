//! Readers on every kind of damage.

use heeler_testkit::ProofSettings;
use heeler_transcript::{LINE_BYTES_MAX, TranscriptFaultKind, read_tail};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};

use crate::properties::check_readers;
use crate::{folder, read_all, texts};

/// A piece of a file: good, bad, or the seam between the two.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "\\{\"[a-z]{0,5}\":[0-9]{1,3}\\}\n".prop_map(String::into_bytes),
        2 => "\\{\"t\":\"[a-zäö{}\\[\\] ]{0,40}\",\"o\":\\{\"x\":\\[1,\\{\\}\\]\\}\\}"
            .prop_map(String::into_bytes),
        2 => Just(b"\n".to_vec()),
        1 => Just(b"\r\n \t\n".to_vec()),
        1 => (1..40_usize).prop_map(|len| vec![0; len]),
        1 => proptest::collection::vec(any::<u8>(), 0..30),
        1 => Just(b"{\"a\":{\"b\":1}".to_vec()),
        1 => Just(b"\xff\xfe{}\n".to_vec()),
        1 => Just(b"}{".to_vec()),
        1 => (1..5_usize).prop_map(|n| {
            format!("{{\"long\":\"{}\"}}\n", "y".repeat(n * 7000)).into_bytes()
        }),
    ]
}

#[test]
fn proof_readers_hold_on_any_bytes() {
    let proof = ProofSettings::new(500);
    let config = Config {
        cases: u32::try_from(proof.rounds).unwrap_or(u32::MAX),
        failure_persistence: None,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(proof.seed),
        ..Config::default()
    };
    let (_temp, folder) = folder();
    let soup = proptest::collection::vec(piece(), 0..30);
    let result = TestRunner::new(config).run(&soup, |pieces| {
        check_readers(&folder, &pieces.concat());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("HEELER_PROOF_SEED={}: {error}", proof.seed));
}

#[test]
fn known_damage_holds_too() {
    let (_temp, folder) = folder();
    for bytes in [
        &b""[..],
        b"\n",
        b"\0",
        b"\n\n\n",
        b"{}",
        b"{}\n",
        b"{}{}{}{}{}\n{}\n",
        b"{}\0{}\n\0\0\0",
        b"{\"a\":1}{\"b\"\n{}\n",
        b"\xef\xbb\xbf{}\n{}\n",
        b"{}\r\n{}\r\n",
        b"{\"\\ud800\":1}\n",
    ] {
        check_readers(&folder, bytes);
    }
}

#[test]
fn a_line_that_is_too_long_is_reported_and_its_neighbours_are_found() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let too_long = LINE_BYTES_MAX + 1;
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(too_long - 8));
    std::fs::write(&path, format!("{{\"n\":1}}\n{long}\n{{\"n\":2}}\n")).unwrap();
    let (records, faults) = read_all(&path);
    assert_eq!(texts(&records), [r#"{"n":1}"#, r#"{"n":2}"#]);
    assert_eq!((faults[0].offset, faults[0].len), (8, too_long as u64));
    assert_eq!(faults[0].kind, TranscriptFaultKind::TooLong);
    let page = read_tail(&path, 5).unwrap();
    assert_eq!((page.records, page.faults), (records, faults));
}

#[test]
fn a_page_ends_at_its_limits_and_the_next_goes_on_there() {
    use heeler_transcript::{PAGE_BYTES_MAX, PAGE_FAULTS_MAX, PageBoundary, read_range};
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let line = format!("{{\"a\":\"{}\"}}\n", "x".repeat(PAGE_BYTES_MAX / 4));
    std::fs::write(&path, line.repeat(5)).unwrap();
    let page = read_tail(&path, 5).unwrap();
    assert_eq!(page.records.len(), 3);
    let page = read_range(&path, PageBoundary::Offset(page.start), 5).unwrap();
    assert_eq!((page.records.len(), page.start), (2, 0));

    std::fs::write(&path, format!("{{}}\n{}", "x\n".repeat(PAGE_FAULTS_MAX))).unwrap();
    let page = read_tail(&path, 5).unwrap();
    assert_eq!((page.records.len(), page.faults.len()), (0, PAGE_FAULTS_MAX));
    let page = read_range(&path, PageBoundary::Offset(page.start), 5).unwrap();
    assert_eq!((page.records.len(), page.start), (1, 0));
}
