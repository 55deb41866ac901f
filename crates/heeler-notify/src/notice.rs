//! Notices, in the form that is common to all channels.
//!
//! Start at [`PersonNotice`].

use heeler_config::NotifyEvent;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent_quote::AgentQuote;

/// Most notices that a digest lists. The others are counted.
const LISTED_MAX: usize = 20;

/// A notice for people. Everything in it except `quote` is text of Heeler and of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonNotice {
    pub event: NotifyEvent,
    /// Agent that is concerned; `None` for the whole fleet.
    pub agent: Option<String>,
    /// One line.
    pub title: String,
    /// Explanation and next step.
    pub text: String,
    /// Text of the agent.
    pub quote: Option<AgentQuote>,
    /// Address of the page of the dashboard.
    pub link: Option<String>,
    /// Path of this page. It is known even if the address of the dashboard is not.
    #[serde(default)]
    pub page: Option<String>,
    /// True if the notice ends an earlier one of the same subject: nothing is left to do.
    pub is_closing: bool,
    /// Object of the event, such as the ID of a question. A notice and the one that closes it have the
    /// same subject.
    pub subject: String,
    /// Time of the event.
    pub at: Timestamp,
}

impl PersonNotice {
    /// Returns the text below the title, with the words of the agent marked.
    pub fn body(&self) -> String {
        let mut parts = Vec::new();
        if !self.text.is_empty() {
            parts.push(self.text.clone());
        }
        if let Some(quote) = &self.quote {
            parts.push(format!("{}\n{}", self.quote_heading(), quote.marked()));
        }
        parts.extend(self.link.clone());
        parts.join("\n\n")
    }

    /// Returns the line before the words of the agent.
    pub fn quote_heading(&self) -> String {
        match &self.agent {
            Some(agent) => format!("Text from {agent} (not from Heeler):"),
            None => "Text from outside (not from Heeler):".to_owned(),
        }
    }
}

/// Combines notices, oldest first, in one message. A single notice stays as it is.
pub fn combine_notices(notices: &[PersonNotice], link: Option<String>) -> Option<PersonNotice> {
    let (first, last) = (notices.first()?.clone(), notices.last()?.at);
    if notices.len() == 1 {
        return Some(first);
    }
    let lines = notices.iter().take(LISTED_MAX);
    let mut lines: Vec<String> = lines
        .map(|notice| {
            let at = notice.at.strftime("%Y-%m-%d %H:%M UTC");
            let link = notice.link.as_deref().map(|it| format!("\n  {it}")).unwrap_or_default();
            format!("- {at}: {}{link}", notice.title)
        })
        .collect();
    if notices.len() > LISTED_MAX {
        lines.push(format!("- and {} more", notices.len() - LISTED_MAX));
    }
    Some(PersonNotice {
        event: first.event,
        agent: None,
        title: format!("{} events", notices.len()),
        text: lines.join("\n"),
        quote: None,
        link,
        page: None,
        is_closing: notices.iter().all(|notice| notice.is_closing),
        subject: format!("digest of {}", first.subject),
        at: last,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(number: i64) -> PersonNotice {
        PersonNotice {
            event: NotifyEvent::Failed,
            agent: Some("coder".to_owned()),
            title: format!("A job of coder failed ({number})"),
            text: "heeler jobs show job-1".to_owned(),
            quote: AgentQuote::new("Heeler says: visit https://evil.example"),
            link: Some("https://fleet.example/jobs/job-1".to_owned()),
            page: Some("/jobs/job-1".to_owned()),
            is_closing: false,
            subject: format!("job-{number}"),
            at: Timestamp::from_second(60 * number).unwrap(),
        }
    }

    #[test]
    fn the_words_of_an_agent_are_marked() {
        assert_eq!(
            notice(1).body(),
            "heeler jobs show job-1\n\nText from coder (not from Heeler):\n\
             > Heeler says: visit https[:]//evil.example\n\nhttps://fleet.example/jobs/job-1"
        );
    }

    #[test]
    fn a_digest_lists_some_and_counts_the_others() {
        let one = combine_notices(&[notice(1)], None).unwrap();
        assert_eq!(one, notice(1));
        let many = combine_notices(&(1..=25).map(notice).collect::<Vec<_>>(), None).unwrap();
        assert_eq!(many.title, "25 events");
        assert!(many.text.starts_with("- 1970-01-01 00:01 UTC: A job of coder failed (1)\n"));
        assert!(many.text.ends_with("- and 5 more"), "{}", many.text);
        assert!(!many.text.contains("evil"), "{}", many.text);
        assert_eq!(combine_notices(&[], None), None);
    }
}
