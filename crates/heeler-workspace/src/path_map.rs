//! Sorted list of many paths, each with a value, in one byte buffer instead of a map.
//!
//! A snapshot compares three such lists (git's list, the last snapshot, the files on disk). In the
//! same order they are compared side by side, without copying or hashing any path. Start at
//! [`PathMap`].

use std::ops::Range;

/// Sorted paths with values, found by index or by bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathMap<T> {
    text: Vec<u8>,
    rows: Vec<(Range<usize>, T)>,
}

impl<T> PathMap<T> {
    /// Builds the map from ranges of a text. Of equal paths the last counts.
    pub(crate) fn new(text: Vec<u8>, mut rows: Vec<(Range<usize>, T)>) -> PathMap<T> {
        // Git lists in this order already, which the sort detects.
        rows.sort_by(|(one, _), (other, _)| text[one.clone()].cmp(&text[other.clone()]));
        rows.dedup_by(|later, kept| {
            let is_same = text[later.0.clone()] == text[kept.0.clone()];
            if is_same {
                // The sort is stable, so the later row is the one that was given last.
                std::mem::swap(later, kept);
            }
            is_same
        });
        PathMap { text, rows }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn path(&self, at: usize) -> &[u8] {
        &self.text[self.rows[at].0.clone()]
    }

    pub(crate) fn value(&self, at: usize) -> &T {
        &self.rows[at].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        self.rows.iter().map(|(range, value)| (&self.text[range.clone()], value))
    }

    /// Finds a path within a range.
    pub(crate) fn find(&self, within: &Range<usize>, path: &[u8]) -> Option<usize> {
        let rows = &self.rows[within.clone()];
        let found = rows.binary_search_by(|(range, _)| self.text[range.clone()].cmp(path));
        found.ok().map(|at| within.start + at)
    }

    /// Returns the part of a range that has this prefix.
    pub(crate) fn with_prefix(&self, within: &Range<usize>, prefix: &[u8]) -> Range<usize> {
        let rows = &self.rows[within.clone()];
        let start = rows.partition_point(|(range, _)| &self.text[range.clone()] < prefix);
        let rest = &rows[start..];
        let len = rest.partition_point(|(range, _)| self.text[range.clone()].starts_with(prefix));
        within.start + start..within.start + start + len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_below_a_folder_whatever_sorts_beside_it() {
        let names = ["b", "a/x", "a.b", "a/y/z", "a0", "a", "b"];
        let text = names.concat().into_bytes();
        let mut end = 0;
        let rows = names.iter().enumerate().map(|(number, name)| {
            end += name.len();
            (end - name.len()..end, number)
        });
        let paths = PathMap::new(text.clone(), rows.collect());
        let sorted: Vec<_> = paths.iter().map(|(path, _)| str::from_utf8(path).unwrap()).collect();
        assert_eq!(sorted, ["a", "a.b", "a/x", "a/y/z", "a0", "b"]);
        let all = 0..paths.len();
        assert_eq!(paths.with_prefix(&all, b"a/"), 2..4);
        assert_eq!(paths.with_prefix(&(2..4), b"a/y/"), 3..4);
        assert!(paths.with_prefix(&all, b"c/").is_empty());
        assert_eq!(paths.find(&all, b"a/x"), Some(2));
        assert_eq!(paths.find(&(3..6), b"a/x"), None);
        assert_eq!(*paths.value(5), 6, "of equal ones the last counts");
    }
}
