//! Changes of notices to people, and of the browsers that receive them.

use jiff::Timestamp;

use super::StoreTransaction;
use crate::db::DatabaseError;
use crate::db::notices::{self, NoticeEnd, NoticeRecord};
use crate::db::push_browsers::{self, PushBrowser};

impl StoreTransaction<'_> {
    /// Records a notice; returns true if its ID was new.
    pub fn add_notice(&mut self, notice: &NoticeRecord) -> Result<bool, DatabaseError> {
        notices::insert(&self.conn, notice)
    }

    /// Records the end of a notice; returns true if it waited.
    pub fn end_notice(
        &mut self,
        id: &str,
        end: NoticeEnd<'_>,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        notices::end(&self.conn, id, end, now)
    }

    /// Records a failed attempt at a notice, and the time of the next one.
    pub fn postpone_notice(
        &mut self,
        id: &str,
        error: &str,
        until: Timestamp,
    ) -> Result<(), DatabaseError> {
        notices::postpone(&self.conn, id, error, until)
    }

    /// Records that nothing is left to do about the subject of a notice.
    pub fn close_notice(&mut self, id: &str, now: Timestamp) -> Result<(), DatabaseError> {
        notices::close(&self.conn, id, now)
    }

    /// Removes notices of before a time that have ended.
    pub fn prune_notices(&mut self, before: Timestamp) -> Result<(), DatabaseError> {
        notices::prune(&self.conn, before)
    }

    /// Adds a browser that receives notices, or replaces what is on record of it.
    pub fn put_push_browser(&mut self, browser: &PushBrowser) -> Result<(), DatabaseError> {
        push_browsers::put(&self.conn, browser)
    }

    /// Removes a browser; returns true if it existed.
    pub fn remove_push_browser(&mut self, id: &str) -> Result<bool, DatabaseError> {
        push_browsers::remove(&self.conn, id)
    }
}
