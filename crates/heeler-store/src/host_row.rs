//! Columns of a row that the server sends as text. Start at [`text`].

pub(crate) fn number(row: &[Option<String>], at: usize) -> i64 {
    text(row, at).and_then(|text| text.parse().ok()).unwrap_or_default()
}

pub(crate) fn text(row: &[Option<String>], at: usize) -> Option<String> {
    row.get(at).cloned().flatten()
}

pub(crate) fn flag(row: &[Option<String>], at: usize) -> bool {
    text(row, at).as_deref() == Some("t")
}
