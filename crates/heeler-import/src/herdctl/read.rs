//! Reads the files that only herdctl writes, and its unfinished jobs; pure.
//!
//! An error is the reason why a file is refused. The files that Heeler also publishes are read by
//! [`heeler_store::view_records`]. Start at [`chat_sessions`].

use camino::Utf8PathBuf;
use heeler_model::{
    AgentName, ApprovalMode, ChannelKey, ExitReason, Job, JobStatus, JobTransition, Session,
    SessionMode,
};
use heeler_store::{LenientRecord, idle_session};

/// Error recorded for a job that a crashed herdctl left behind.
pub(crate) const INTERRUPTED: &str = "interrupted: herdctl ended without finishing this job";

/// Checks that herdctl allows a name. Heeler's own records may have others, from other sources.
pub(crate) fn check_agent(name: &str) -> Result<(), String> {
    name.parse::<AgentName>().map(drop).map_err(|error| error.to_string())
}

/// Ends the record of a job without a running process.
pub(crate) fn settle(job: &mut Job) {
    // No process of herdctl works on it any more.
    job.apply(JobTransition::Import { status: JobStatus::Failed });
    job.head.exit_reason = Some(ExitReason::Error);
    job.interrupted = true;
    job.error = Some(INTERRUPTED.to_owned());
}

/// A channel, and its session or the reason for its refusal.
pub(crate) type HerdctlChannelSession = (String, Result<Session, String>);

/// Reads `discord-sessions/<stem>.yaml` and similar files: one session per channel.
///
/// A channel that cannot be read is a separate error, named by the channel.
pub(crate) fn chat_sessions(
    platform: &str,
    stem: &str,
    text: &str,
) -> Result<Vec<HerdctlChannelSession>, String> {
    let record = LenientRecord::yaml(text)?;
    let name = record.filled("agentName").unwrap_or_else(|| stem.to_owned());
    let agent: AgentName = name.parse().map_err(|error| format!("{error}"))?;
    let channels = record.record("channels").unwrap_or_default();
    let read = channels.map().iter().map(|(channel, value)| {
        let session = match value.as_object() {
            Some(_) => channels.record(channel).ok_or_else(|| "it is no mapping".to_owned()),
            None => Err("it is not a mapping of keys to values".to_owned()),
        };
        let key = format!("{platform}/{channel}");
        let session = session.and_then(|record| chat_session(&agent, &key, &record));
        (channel.clone(), session)
    });
    Ok(read.collect())
}

fn chat_session(
    agent: &AgentName,
    channel: &str,
    record: &LenientRecord,
) -> Result<Session, String> {
    // The key by which a job names the channel. herdctl's files have only the platform's ID.
    let channel: ChannelKey = channel.parse().map_err(|error| format!("{error}"))?;
    let id = record.filled("sessionId").ok_or("it has no `sessionId`")?;
    let last = record.time("lastMessageAt").ok_or("it has no `lastMessageAt` that is a moment")?;
    let id = id.parse().map_err(|error| format!("{error}"))?;
    let mut session = idle_session(agent.as_str(), Some(id), last);
    session.mode = SessionMode::PerChannel;
    session.channel_id = Some(channel.to_string());
    Ok(session)
}

/// Reads `adopted-sessions/<stem>.yaml`: a session started by hand and assigned to an agent.
pub(crate) fn adopted_session(stem: &str, text: &str) -> Result<Session, String> {
    let record = LenientRecord::yaml(text)?;
    // The key may be missing. The file name is then the id.
    let id = record.filled("sessionId").unwrap_or_else(|| stem.to_owned());
    let agent = record.filled("agentName").ok_or("it names no agent")?;
    let agent: AgentName = agent.parse().map_err(|error| format!("{error}"))?;
    let at = record.time("adoptedAt").ok_or("it has no `adoptedAt` that is a moment in time")?;
    let id = id.parse().map_err(|error| format!("{error}"))?;
    let mut session = idle_session(agent.as_str(), Some(id), at);
    // A person started it in a terminal and answered its questions.
    session.approvals = ApprovalMode::Interactive;
    session.working_directory = record.filled("sourceCwd").map(Utf8PathBuf::from);
    Ok(session)
}

#[cfg(test)]
mod tests {
    use heeler_store::view_records::parse_job;

    use super::*;

    #[test]
    fn a_job_left_running_is_settled_as_interrupted() {
        let text = "agent: coder\ntrigger_type: manual\nstatus: running\n\
                    started_at: 2026-11-14T02:00:00Z\noutput_file: other.jsonl\n";
        let mut read = parse_job("job-2026-11-14-aaaaaa", text).unwrap();
        settle(&mut read.job);
        assert!(read.unfinished && read.job.interrupted);
        assert_eq!(read.job.head.status, JobStatus::Failed);
        assert_eq!(read.job.head.exit_reason, Some(ExitReason::Error));
        assert_eq!(read.job.error.as_deref(), Some(INTERRUPTED));
        assert_eq!(read.output_name.as_deref(), Some("other.jsonl"));
    }

    #[test]
    fn names_that_herdctl_would_not_allow_are_refused() {
        assert!(check_agent("website.coder").is_ok());
        assert!(check_agent("../x").unwrap_err().contains("agent name"));
    }

    #[test]
    fn each_chat_channel_is_a_session_or_a_refusal_of_its_own() {
        let text = "version: 3\nagentName: support\nchannels:\n  \"111\":\n    sessionId: s-1\n    \
                    lastMessageAt: 2026-11-01T10:00:00.000Z\n  \"222\":\n    sessionId: ../x\n    \
                    lastMessageAt: 2026-11-01T10:00:00.000Z\n  \"333\": gone\n";
        let read = chat_sessions("discord", "support", text).unwrap();
        let first = read[0].1.as_ref().unwrap();
        assert_eq!(first.channel_id.as_deref(), Some("discord/111"));
        assert_eq!(first.mode, SessionMode::PerChannel);
        assert!(read[1].1.as_ref().unwrap_err().contains("agent session id"));
        assert!(read[2].1.is_err());
    }
}
