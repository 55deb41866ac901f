//! A job that is asked for, as whoever asks can say it: by names, without what the config adds.

use serde::{Deserialize, Serialize};

use crate::session_choice::SessionChoice;
use crate::{AgentName, JobId, TriggerType, WorkflowRunId};

/// The longest prompt that can be asked.
pub const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// A job that is asked for. It may wait in the queue, so everything in it can be written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Who is to do it.
    pub agent: AgentName,
    /// What to do; the schedule's or the agent's own prompt if left out.
    #[serde(default)]
    pub prompt: Option<String>,
    /// The schedule that it is a run of.
    #[serde(default)]
    pub schedule: Option<String>,
    /// Which conversation.
    #[serde(default = "usual")]
    pub session: SessionChoice,
    /// The chat channel that it comes from.
    #[serde(default)]
    pub channel: Option<String>,
    /// Whether to go on although somebody else has gone on with the session meanwhile.
    #[serde(default)]
    pub take_in: bool,
    /// Whether its rows are also written as text.
    #[serde(default)]
    pub output_file: bool,
    /// Whether somebody can answer questions.
    #[serde(default)]
    pub attended: bool,
    /// What started it.
    #[serde(default = "manual")]
    pub trigger: TriggerType,
    /// What is higher starts first.
    #[serde(default)]
    pub priority: i64,
    /// The job that asks for it.
    #[serde(default)]
    pub parent: Option<JobId>,
    /// The model that answers, if not the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The worker that it is done as, in the conversation of the job that asks for it. One without a
    /// name is given one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The part of a workflow run that it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Box<PhaseJobRequest>>,
}

/// What a job does as a part of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseJobRequest {
    /// The run.
    pub run: WorkflowRunId,
    /// What is done, in its agent's name.
    pub work: PhaseJobKind,
    /// How long it may take, if not as long as its agent.
    pub timeout_ms: Option<u64>,
    /// Where, inside of its agent's folder.
    pub folder: Option<String>,
    /// What is left of the run's budget, in millionths of a dollar.
    pub micros_left: Option<i64>,
}

/// What is done in an agent's name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum PhaseJobKind {
    /// The agent is asked.
    Ask {
        /// The model that answers, if not the agent's own.
        model: Option<String>,
    },
    /// A command is run where the agent works; what it is asked is its input.
    Command {
        /// The command.
        command: String,
        /// Further variables.
        env: Vec<(String, String)>,
    },
    /// Nobody is asked: this is what would have been said.
    Play {
        /// The words.
        text: String,
    },
}

impl JobRequest {
    /// Asks for a job of an agent as a person would who says nothing else.
    pub fn new(agent: AgentName) -> JobRequest {
        JobRequest {
            agent,
            prompt: None,
            schedule: None,
            session: SessionChoice::Usual,
            channel: None,
            take_in: false,
            output_file: false,
            attended: false,
            trigger: TriggerType::Manual,
            priority: 0,
            parent: None,
            model: None,
            worker: None,
            phase: None,
        }
    }

    /// Says whether no agent is asked, only something done in its name.
    pub fn runs_no_agent(&self) -> bool {
        let work = self.phase.as_ref().map(|phase| &phase.work);
        matches!(work, Some(PhaseJobKind::Command { .. } | PhaseJobKind::Play { .. }))
    }
}

fn usual() -> SessionChoice {
    SessionChoice::Usual
}

fn manual() -> TriggerType {
    TriggerType::Manual
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_enough_to_ask_for_a_job() {
        let wanted: JobRequest = serde_json::from_str(r#"{"agent":"web.coder"}"#).unwrap();
        assert_eq!(wanted, JobRequest::new("web.coder".parse().unwrap()));
    }

    #[test]
    fn what_was_asked_survives_being_written_down() {
        let wanted = JobRequest {
            prompt: Some("go on".to_owned()),
            schedule: Some("hourly".to_owned()),
            session: SessionChoice::Given { id: "3f".parse().unwrap() },
            channel: Some("C1".to_owned()),
            take_in: true,
            output_file: true,
            attended: true,
            trigger: TriggerType::Spawned,
            priority: -3,
            parent: Some("job-2024-01-19-abc123".parse().unwrap()),
            model: Some("opus".to_owned()),
            worker: Some("coder-1".to_owned()),
            ..JobRequest::new("coder".parse().unwrap())
        };
        let text = serde_json::to_string(&wanted).unwrap();
        assert_eq!(serde_json::from_str::<JobRequest>(&text).unwrap(), wanted);
    }

    #[test]
    fn a_word_that_nobody_knows_is_refused() {
        let error = serde_json::from_str::<JobRequest>(r#"{"agent":"a","promt":"x"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `promt`"), "{error}");
    }
}
