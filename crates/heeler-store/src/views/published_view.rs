//! The list of views: which file shows what.

use std::fmt;

use heeler_model::{AgentName, JobId, SessionId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishedView {
    /// `state.yaml`
    State,
    /// `jobs/<job-id>.yaml`
    Job(JobId),
    /// `sessions/<agent>.json`: the session that the agent's next job continues.
    AgentSession(AgentName),
    /// `sessions/<sess-id>.json` and its `.context`
    Session(SessionId),
}

impl PublishedView {
    /// Returns the file's path, relative to the state directory.
    pub fn path(&self) -> String {
        match self {
            PublishedView::State => "state.yaml".to_owned(),
            PublishedView::Job(id) => format!("jobs/{id}.yaml"),
            PublishedView::AgentSession(agent) => format!("sessions/{agent}.json"),
            PublishedView::Session(id) => format!("sessions/{id}.json"),
        }
    }

    pub fn from_path(path: &str) -> Option<PublishedView> {
        if path == "state.yaml" {
            return Some(PublishedView::State);
        }
        if let Some(id) = path.strip_prefix("jobs/").and_then(|name| name.strip_suffix(".yaml")) {
            return id.parse().ok().map(PublishedView::Job);
        }
        let name = path.strip_prefix("sessions/")?.strip_suffix(".json")?;
        // Agent names that look like a session id are not allowed.
        let session = name.parse().map(PublishedView::Session);
        session.ok().or_else(|| name.parse().ok().map(PublishedView::AgentSession))
    }
}

impl fmt::Display for PublishedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.path())
    }
}
