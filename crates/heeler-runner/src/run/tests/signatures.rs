//! A result is signed, and vouches for the rows of its run.

use heeler_model::run::{ResultSigningKey, TranscriptHashRecord};

use super::*;
use crate::transcript_segment::{TranscriptHasher, hash_transcript};

#[test]
fn a_result_is_signed_and_each_run_vouches_for_its_own_rows() {
    let key = ResultSigningKey::from_seed([3; 32]);
    let mut trial = stream_fixture("await user; say one; result done");
    let mut parts: Vec<TranscriptHashRecord> = Vec::new();
    for _ in 0..2 {
        trial.folder.write_spec(&trial.spec);
        let host = trial.host().with_result_key(Some(key.clone()));
        let result = run_with(&trial.dir(), trial.spec.clone(), &host, &trial.means).unwrap();
        let file = std::fs::read(trial.dir().join(file::RESULT)).unwrap();
        assert!(key.public_key().has_signed(&file));
        parts.push(result.transcript.unwrap());
        trial.next_run();
        trial.spec.session.start =
            SessionStart::Resume { id: trial.spec.session.start.id().clone() };
    }
    let log = std::fs::read(&trial.spec.job_log).unwrap();
    assert_eq!((parts[0].from, parts[1].from), (0, parts[0].bytes));
    assert_eq!(parts[1].from + parts[1].bytes, log.len() as u64);
    for part in parts {
        let text = &log[part.from as usize..(part.from + part.bytes) as usize];
        let mut hasher = TranscriptHasher::new(part.from);
        text.trim_ascii_end().split(|byte| *byte == b'\n').for_each(|line| hasher.add_line(line));
        assert_eq!(hasher.segment(), part);
    }
    assert_eq!(hash_transcript(&trial.spec.job_log).unwrap().bytes, log.len() as u64);
}
