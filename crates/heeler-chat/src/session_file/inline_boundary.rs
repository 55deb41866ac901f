//! Comparison of an inline transcript with the transcript file.

use camino::Utf8Path;
use heeler_transcript::{DiskError, read_tail};
use serde_json::Value as Json;

use super::records::{is_line_start, is_missing, read_records};
use crate::conversation_state::InlineBoundary;
use crate::session_metadata::SessionMetadata;

/// Returns the boundary of the inline entries that the transcript file lacks; `None` if it has all
/// of them.
///
/// Both may hold the same entries: after an import, or for older programs. Where they differ, an
/// older program that knows only the array has continued the session: its entries come after those
/// of the file.
pub(crate) fn find_inline_boundary(
    path: &Utf8Path,
    metadata: &SessionMetadata,
) -> Result<Option<InlineBoundary>, DiskError> {
    let inline = &metadata.inline;
    if inline.is_empty() {
        return Ok(None);
    }
    // A crash interrupted the move. The noted position is right although the file has grown since.
    if let Some(adopting) = metadata.state.adopting
        && adopting.entries < inline.len()
        && is_line_start(path, adopting.bytes)?
    {
        return Ok(Some(adopting));
    }
    let mut entries = 0;
    for (record, line) in read_records(path, 0)?.zip(inline) {
        if !is_same_entry(&record?.text, line) {
            break;
        }
        entries += 1;
    }
    if entries == inline.len() {
        return Ok(None);
    }
    match read_tail(path, 0) {
        Ok(page) => Ok(Some(InlineBoundary { bytes: page.end, entries })),
        Err(error) if is_missing(&error.source) => Ok(Some(InlineBoundary { bytes: 0, entries })),
        Err(error) => Err(error),
    }
}

/// Compares two entries as JSON values: a program that rewrites them may format them differently.
pub(super) fn is_same_entry(a: &str, b: &str) -> bool {
    let value = |text: &str| serde_json::from_str::<Json>(text).ok();
    a == b || value(a).is_some_and(|a| Some(a) == value(b))
}
