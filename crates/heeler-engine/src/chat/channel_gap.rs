//! Gaps: times without a connection to a chat platform, whose messages are read afterwards.
//!
//! A gap is on record before the first later message can be. So a daemon that is killed while it reads
//! the messages of a gap leaves the times from which the next one reads. Start at
//! [`LinkWorker::begin_gap`].

use heeler_connect::ChatPlatform;
use heeler_model::error_chain;
use heeler_store::{ChatGapKey, ChatGapMark, StoreReader};

use super::gap_change::ChatGapChange;
use super::link_worker::{LinkWorker, wait_for_record};
use crate::fault::{self, FaultPoint};

/// Returns the marks of gaps that were not read completely.
pub(super) fn recorded_marks(
    reader: &StoreReader,
    platform: ChatPlatform,
    account: &str,
) -> Result<Vec<ChatGapMark>, String> {
    reader.chat_gap_marks(platform.as_str(), account).map_err(|error| error_chain(&error))
}

impl LinkWorker {
    /// Records a gap; returns after the commit.
    pub(super) fn begin_gap(
        &self,
        platform: ChatPlatform,
        account: &str,
        marks: Vec<ChatGapMark>,
    ) -> Result<ChatGapKey, String> {
        let key = ChatGapKey {
            platform: platform.to_string(),
            account: account.to_owned(),
            gap: uuid::Uuid::new_v4().to_string(),
        };
        if !marks.is_empty() {
            let change = ChatGapChange::Begin { key: key.clone(), marks };
            wait_for_record(&self.pass_gap(change)).map_err(|refused| refused.message)?;
            fault::reach(FaultPoint::GapRecorded);
        }
        Ok(key)
    }

    /// Records that a gap was read, except for some channels. A link that is stopped leaves it to the
    /// next one.
    pub(super) fn end_gap(&mut self, key: &ChatGapKey, kept: &[ChatGapMark]) {
        if !self.is_stopped() {
            fault::reach(FaultPoint::GapRead);
        }
        while !self.is_stopped() {
            let change = ChatGapChange::End { key: key.clone(), kept: kept.to_vec() };
            match wait_for_record(&self.pass_gap(change)) {
                Ok(_) => return,
                Err(refused) => {
                    let problem =
                        format!("the end of a gap is not recorded yet: {}", refused.message);
                    self.note_limitation(problem);
                    self.rest();
                }
            }
        }
    }
}
