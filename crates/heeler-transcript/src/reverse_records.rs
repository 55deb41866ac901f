//! Records of a transcript from the newest to the oldest, read page by page.

use camino::Utf8Path;

use crate::disk::DiskError;
use crate::page::{PageBoundary, read_range};
use crate::record::TranscriptRecord;

/// Number of records read per page.
const PAGE_RECORDS: usize = 64;

/// Reader of records, newest first.
#[derive(Debug)]
pub struct ReverseRecordReader<'p> {
    path: &'p Utf8Path,
    before: PageBoundary,
    page: Vec<TranscriptRecord>,
}

impl<'p> ReverseRecordReader<'p> {
    /// Starts at the end of the file, which is opened by the first read.
    pub fn open(path: &'p Utf8Path) -> ReverseRecordReader<'p> {
        ReverseRecordReader { path, before: PageBoundary::End, page: Vec::new() }
    }

    /// Returns the next older record; `None` at the start of the file.
    pub fn next_record(&mut self) -> Result<Option<TranscriptRecord>, DiskError> {
        loop {
            if let Some(record) = self.page.pop() {
                return Ok(Some(record));
            }
            if self.before == PageBoundary::Offset(0) {
                return Ok(None);
            }
            let page = read_range(self.path, self.before, PAGE_RECORDS)?;
            // A page may have no records at all, only faults; the loop then reads the page before
            // it.
            self.before = PageBoundary::Offset(page.start);
            self.page = page.records;
        }
    }
}
