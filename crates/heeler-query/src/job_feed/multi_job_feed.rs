//! Rows of several jobs as they are written. Start at [`MultiJobFeed`].

use std::time::Duration;

use camino::Utf8Path;
use heeler_transcript::{
    DiskError, FollowStart, FollowUpdate, TranscriptFault, TranscriptFollower, TranscriptRecord,
};

/// Follower of the transcripts of several jobs, without the live events of their runs. `J` describes
/// a job to the caller.
#[derive(Debug)]
pub struct MultiJobFeed<J> {
    follower: TranscriptFollower,
    /// The job of each file of the follower.
    jobs: Vec<J>,
}

/// Event of one followed transcript.
#[derive(Debug)]
pub enum MultiJobFeedEvent {
    Row(TranscriptRecord),
    /// New bytes that are no row.
    Fault(TranscriptFault),
    /// The file was replaced; it is read from its beginning again.
    Restarted,
}

impl<J> Default for MultiJobFeed<J> {
    fn default() -> MultiJobFeed<J> {
        MultiJobFeed { follower: TranscriptFollower::new(), jobs: Vec::new() }
    }
}

impl<J> MultiJobFeed<J> {
    /// Also follows this transcript, which need not exist yet.
    pub fn add(&mut self, job: J, transcript: &Utf8Path, start: FollowStart) {
        self.follower.add(transcript, start);
        self.jobs.push(job);
    }

    /// Returns the next event with its job; `None` if there is none within this time.
    pub fn next(
        &mut self,
        wait: Duration,
    ) -> Result<Option<(&mut J, MultiJobFeedEvent)>, DiskError> {
        let Some(update) = self.follower.next(wait)? else { return Ok(None) };
        let (file, event) = match update {
            FollowUpdate::Record { file, record, .. } => (file, MultiJobFeedEvent::Row(record)),
            FollowUpdate::Fault { file, fault } => (file, MultiJobFeedEvent::Fault(fault)),
            FollowUpdate::Restarted { file, .. } => (file, MultiJobFeedEvent::Restarted),
        };
        Ok(Some((&mut self.jobs[file], event)))
    }
}
