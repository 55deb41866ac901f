//! Copies of a transcript's beginning.

use heeler_transcript::{CopyLimit, OsDisk, TranscriptCopyError, copy_prefix};

use crate::{folder, read_all};

const TEXT: &str = "{\"n\":0}\ngarbage\n{\"n\":2}\n{\"n\"";

#[test]
fn whole_lines_are_copied_by_number_and_by_offset() {
    let (_temp, folder) = folder();
    let source = folder.join("a.jsonl");
    std::fs::write(&source, TEXT).unwrap();
    let second = read_all(&source).0[1].next;
    for (n, up_to, len) in [
        (0, CopyLimit::Line(0), 0),
        (1, CopyLimit::Line(2), 16),
        (2, CopyLimit::Line(3), 24),
        (3, CopyLimit::Offset(second), 24),
        (4, CopyLimit::Offset(8), 8),
        (5, CopyLimit::Offset(0), 0),
    ] {
        let copy = folder.join(format!("{n}.jsonl"));
        assert_eq!(copy_prefix(&OsDisk, &source, &copy, up_to).unwrap(), len as u64);
        assert_eq!(std::fs::read_to_string(&copy).unwrap(), TEXT[..len], "{up_to:?}");
    }
}

#[test]
fn what_is_not_there_is_not_copied() {
    let (_temp, folder) = folder();
    let (source, copy) = (folder.join("a.jsonl"), folder.join("b.jsonl"));
    std::fs::write(&source, TEXT).unwrap();
    let refused = |up_to| copy_prefix(&OsDisk, &source, &copy, up_to).unwrap_err();
    assert!(matches!(refused(CopyLimit::Line(4)), TranscriptCopyError::TooShort { end: 24, .. }));
    assert!(matches!(
        refused(CopyLimit::Offset(25)),
        TranscriptCopyError::TooShort { end: 24, .. }
    ));
    assert!(matches!(
        refused(CopyLimit::Offset(7)),
        TranscriptCopyError::InsideLine { offset: 7, .. }
    ));
    assert!(!copy.exists());
    std::fs::write(&copy, "mine").unwrap();
    assert!(matches!(refused(CopyLimit::Line(1)), TranscriptCopyError::Exists { .. }));
    assert_eq!(std::fs::read(&copy).unwrap(), b"mine");
}
