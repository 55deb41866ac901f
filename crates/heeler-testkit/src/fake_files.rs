//! Files that people sent to a fake chat platform.
//!
//! Start at [`FakeFiles`].

/// Files by number, and the number of downloads.
#[derive(Debug, Default)]
pub(crate) struct FakeFiles {
    contents: Vec<Vec<u8>>,
    fetches: usize,
}

impl FakeFiles {
    /// Adds a file; returns its number.
    pub(crate) fn add(&mut self, content: &[u8]) -> usize {
        self.contents.push(content.to_vec());
        self.contents.len() - 1
    }

    /// Returns the file of a number.
    pub(crate) fn fetch(&mut self, number: &str) -> Option<Vec<u8>> {
        self.fetches += 1;
        self.contents.get(number.parse::<usize>().ok()?).cloned()
    }

    pub(crate) fn has(&self, number: &str) -> bool {
        number.parse().is_ok_and(|number: usize| number < self.contents.len())
    }

    /// Returns the number of downloads.
    pub(crate) fn fetch_count(&self) -> usize {
        self.fetches
    }
}
