//! Notices to people, one entry per event with all its channels. Start at [`FleetReader::notices`].

use heeler_store::NoticeRecord;
use jiff::Timestamp;
use serde_json::Value as Json;

use crate::{FleetReader, QueryError};

/// Most records that are read for the list. An event has one for each of its channels.
const RECORDS_MAX: usize = 500;

/// Event of which people were told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeSummary {
    /// Kind of event: `question`, `failed`, …
    pub event: String,
    /// Agent that is concerned; `None` for the whole fleet.
    pub agent: Option<String>,
    pub title: String,
    pub text: String,
    /// Text of the agent.
    pub quote: Option<String>,
    /// Path of the dashboard page about it.
    pub page: Option<String>,
    pub created_at: Timestamp,
    /// True while something is left to do about it.
    pub is_open: bool,
    pub deliveries: Vec<NoticeDelivery>,
}

/// Delivery of a notice to one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeDelivery {
    /// Name of the channel in the config.
    pub channel: String,
    /// `sent`, `failed`, `dropped` or `waits`.
    pub state: String,
    /// Error of the last attempt, or the reason why it was not sent.
    pub reason: Option<String>,
    /// Time at which it was sent or given up; while it waits, the earliest time of the next attempt.
    pub at: Timestamp,
}

impl FleetReader {
    /// Lists the events of which people were told, newest first.
    pub fn notices(&self) -> Result<Vec<NoticeSummary>, QueryError> {
        let records = self.reader()?.newest_notices(RECORDS_MAX)?;
        let mut found: Vec<(String, NoticeSummary)> = Vec::new();
        for record in records {
            let delivery = NoticeDelivery::of(&record);
            // A notice and the one that closes it have the same subject and different times.
            let key = format!("{} {} {}", record.event, record.subject, record.created_at);
            match found.iter_mut().rev().take(RECENT_EVENTS_MAX).find(|(known, _)| *known == key) {
                Some((_, notice)) => {
                    notice.is_open |= record.closed_at.is_none();
                    notice.deliveries.push(delivery);
                }
                None => found.push((key, NoticeSummary::of(record, delivery))),
            }
        }
        Ok(found.into_iter().map(|(_, notice)| notice).collect())
    }
}

/// Records of one event are next to each other, except for events of the same instant.
const RECENT_EVENTS_MAX: usize = 20;

impl NoticeSummary {
    fn of(record: NoticeRecord, delivery: NoticeDelivery) -> NoticeSummary {
        // A record of another release may have another form: the rest of it is shown all the same.
        let payload: Json = serde_json::from_str(&record.payload).unwrap_or_default();
        let text = |key: &str| payload[key].as_str().unwrap_or_default().to_owned();
        let title = text("title");
        let page = payload["page"].as_str().filter(|page| is_local(page));
        NoticeSummary {
            title: if title.is_empty() { record.subject.clone() } else { title },
            text: text("text"),
            quote: payload["quote"].as_str().map(str::to_owned),
            page: page.map(str::to_owned),
            created_at: record.created_at,
            is_open: record.closed_at.is_none(),
            event: record.event,
            agent: record.agent,
            deliveries: vec![delivery],
        }
    }
}

/// Returns true for the path of a page of this dashboard, and false for an address elsewhere.
fn is_local(page: &str) -> bool {
    page.starts_with('/') && !page.starts_with("//") && !page.contains('\\')
}

impl NoticeDelivery {
    fn of(record: &NoticeRecord) -> NoticeDelivery {
        NoticeDelivery {
            channel: record.channel_name().to_owned(),
            state: record.outcome.clone().unwrap_or_else(|| "waits".to_owned()),
            reason: record.last_error.clone(),
            at: record.ended_at.unwrap_or(record.due_at),
        }
    }
}
