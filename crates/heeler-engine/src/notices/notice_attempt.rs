//! One attempt to send a notice, or several notices in one message.
//!
//! Start at [`attempt_notice`].

use heeler_config::NotifyEvent;
use heeler_model::{ApprovalId, ApprovalStatus};
use heeler_notify::{NoticeSendError, PersonNotice, combine_notices};
use heeler_store::{DatabaseError, NoticeRecord, StateDatabase};
use jiff::{SignedDuration, Timestamp};

use super::browser_client::browser_client;
use super::channel_client::ChannelClient;
use super::page_link;
use crate::setup::DaemonSetup;

/// Attempts after which a notice is given up. With the delays below they take about 24 hours.
const ATTEMPTS_MAX: i64 = 150;

/// Delay after the first failed attempt. Each further delay is twice as long.
const RETRY_FIRST: SignedDuration = SignedDuration::from_secs(2);

/// Longest delay.
const RETRY_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Notices of one channel that are sent in one message.
#[derive(Debug, Clone)]
pub(crate) struct NoticeAttempt {
    pub(crate) channel: String,
    /// Oldest first; not empty.
    pub(crate) records: Vec<NoticeRecord>,
}

/// Result of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct NoticeResult {
    /// IDs of the notices.
    pub(crate) notices: Vec<String>,
    pub(crate) outcome: NoticeOutcome,
}

#[derive(Debug, Clone)]
pub(crate) enum NoticeOutcome {
    /// It was sent, with the ID of the message if there is one.
    Sent(Option<String>),
    /// It is not sent, because nothing is left to do.
    Dropped(String),
    /// It failed finally.
    Failed(String),
    /// It failed finally, because the push service does not know the browser any more.
    BrowserGone { browser: String, reason: String },
    /// It is tried again.
    Postponed { error: String, until: Timestamp },
}

/// Makes an attempt. It may wait for the channel.
pub(crate) fn attempt_notice(
    setup: &DaemonSetup,
    db: &StateDatabase,
    attempt: &NoticeAttempt,
    now: fn() -> Timestamp,
) -> NoticeResult {
    let mut notices = Vec::new();
    for record in &attempt.records {
        match serde_json::from_str::<PersonNotice>(&record.payload) {
            Ok(notice) => notices.push(notice),
            Err(error) => {
                let reason = format!("it cannot be read: {error}");
                return result(attempt, NoticeOutcome::Failed(reason));
            }
        }
    }
    let outcome = match send(setup, db, attempt, &notices, now()) {
        Ok(SendOutcome::Sent(message)) => NoticeOutcome::Sent(message),
        Ok(SendOutcome::Needless(reason)) => NoticeOutcome::Dropped(reason.to_owned()),
        Err(failure) => after_failure(attempt, failure, now()),
    };
    result(attempt, outcome)
}

enum SendOutcome {
    Sent(Option<String>),
    Needless(&'static str),
}

fn result(attempt: &NoticeAttempt, outcome: NoticeOutcome) -> NoticeResult {
    let notices = attempt.records.iter().map(|record| record.id.clone()).collect();
    NoticeResult { notices, outcome }
}

/// Decides whether an attempt is repeated. Delays count from the answer of the channel.
fn after_failure(
    attempt: &NoticeAttempt,
    failure: NoticeSendError,
    now: Timestamp,
) -> NoticeOutcome {
    let attempts = attempt.records.iter().map(|record| record.attempts).max().unwrap_or(0);
    let browser = attempt.records.first().and_then(NoticeRecord::browser);
    if let (true, Some(browser)) = (failure.is_gone(), browser) {
        let (browser, reason) = (browser.to_owned(), failure.message);
        return NoticeOutcome::BrowserGone { browser, reason };
    }
    if !failure.is_transient || attempts + 1 >= ATTEMPTS_MAX {
        return NoticeOutcome::Failed(failure.message);
    }
    let factor = 1_i32 << attempts.clamp(0, 20);
    let delay = RETRY_FIRST.checked_mul(factor).map_or(RETRY_MAX, |delay| delay.min(RETRY_MAX));
    let demanded = failure.retry_after.and_then(|pause| SignedDuration::try_from(pause).ok());
    let delay = demanded.map_or(delay, |demanded| demanded.max(RETRY_FIRST));
    let until = now.checked_add(delay).unwrap_or(Timestamp::MAX);
    NoticeOutcome::Postponed { error: failure.message, until }
}

fn send(
    setup: &DaemonSetup,
    db: &StateDatabase,
    attempt: &NoticeAttempt,
    notices: &[PersonNotice],
    now: Timestamp,
) -> Result<SendOutcome, NoticeSendError> {
    let first = attempt.records.first();
    let name = first.map_or(attempt.channel.as_str(), NoticeRecord::channel_name);
    let root = setup.root();
    let found = root.and_then(|root| {
        let config = root.notify.as_ref()?;
        Some((root, config, config.channel(name)?))
    });
    let Some((root, config, channel)) = found else {
        let message = format!("the config has no channel `{name}` any more");
        return Err(NoticeSendError::permanent(message));
    };
    let mut needed = Vec::new();
    for notice in notices {
        if is_needed(db, notice)? {
            needed.push(notice.clone());
        }
    }
    if needed.is_empty() {
        return Ok(SendOutcome::Needless("it was answered before the notice was due"));
    }
    let client = match first.and_then(NoticeRecord::browser) {
        Some(id) => {
            let unread = |error: DatabaseError| {
                NoticeSendError::transient(heeler_model::error_chain(&error))
            };
            let browser = db.push_browser(id).map_err(unread)?;
            // One that was moved to another channel receives the notices of that one.
            let Some(browser) = browser.filter(|browser| browser.channel == channel.name) else {
                return Ok(SendOutcome::Needless("the browser was removed"));
            };
            let client = browser_client(root, db, &browser, now);
            ChannelClient::Remote(Box::new(client.map_err(NoticeSendError::permanent)?))
        }
        // A secret may be set later, without a change of the config.
        None => {
            ChannelClient::new(config, channel, &setup.env).map_err(NoticeSendError::transient)?
        }
    };
    let link = page_link(root, "/");
    let Some(notice) = combine_notices(&needed, link) else {
        return Ok(SendOutcome::Needless("there is nothing to tell"));
    };
    let id = first.map_or("", |record| record.id.as_str());
    let earlier = first.and_then(|record| record.message_id.as_deref());
    client.send(id, &notice, earlier).map(SendOutcome::Sent)
}

/// Returns false for a question that was answered before its notice was sent.
fn is_needed(db: &StateDatabase, notice: &PersonNotice) -> Result<bool, NoticeSendError> {
    if notice.event != NotifyEvent::Question || notice.is_closing {
        return Ok(true);
    }
    let Ok(id) = notice.subject.parse::<ApprovalId>() else { return Ok(true) };
    let approval = db
        .approval(&id)
        .map_err(|error| NoticeSendError::transient(heeler_model::error_chain(&error)))?;
    Ok(approval.is_some_and(|approval| approval.status == ApprovalStatus::Pending))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn attempt(attempts: i64) -> NoticeAttempt {
        let record = NoticeRecord {
            id: "a".to_owned(),
            channel: "phone".to_owned(),
            event: "failed".to_owned(),
            subject: "job-1".to_owned(),
            agent: None,
            created_at: Timestamp::UNIX_EPOCH,
            due_at: Timestamp::UNIX_EPOCH,
            in_digest: false,
            attempts,
            last_error: None,
            message_id: None,
            outcome: None,
            ended_at: None,
            closed_at: None,
            payload: String::new(),
        };
        NoticeAttempt { channel: "phone".to_owned(), records: vec![record] }
    }

    fn delay_of(attempts: i64, retry_after: Option<u64>) -> Option<i64> {
        let failure = NoticeSendError {
            retry_after: retry_after.map(Duration::from_secs),
            ..NoticeSendError::transient("no")
        };
        match after_failure(&attempt(attempts), failure, Timestamp::UNIX_EPOCH) {
            NoticeOutcome::Postponed { until, .. } => Some(until.as_second()),
            _ => None,
        }
    }

    #[test]
    fn a_notice_is_tried_less_and_less_often_and_given_up() {
        assert_eq!(delay_of(0, None), Some(2));
        assert_eq!(delay_of(3, None), Some(16));
        assert_eq!(delay_of(60, None), Some(600));
        assert_eq!(delay_of(0, Some(77)), Some(77));
        assert_eq!(delay_of(ATTEMPTS_MAX - 2, None), Some(600));
        assert_eq!(delay_of(ATTEMPTS_MAX - 1, None), None);
        let refused = NoticeSendError::permanent("no");
        let outcome = after_failure(&attempt(0), refused, Timestamp::UNIX_EPOCH);
        assert!(matches!(outcome, NoticeOutcome::Failed(_)), "{outcome:?}");
    }

    #[test]
    fn a_browser_that_is_gone_is_removed_and_another_receiver_is_not() {
        let gone = NoticeSendError { status: Some(410), ..NoticeSendError::permanent("gone") };
        let outcome = after_failure(&attempt(0), gone.clone(), Timestamp::UNIX_EPOCH);
        assert!(matches!(outcome, NoticeOutcome::Failed(_)), "{outcome:?}");
        let mut of_browser = attempt(0);
        of_browser.records[0].channel = "phone/browser-1".to_owned();
        let outcome = after_failure(&of_browser, gone, Timestamp::UNIX_EPOCH);
        assert!(
            matches!(&outcome, NoticeOutcome::BrowserGone { browser, .. } if browser == "browser-1"),
            "{outcome:?}"
        );
    }
}
