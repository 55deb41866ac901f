//! Requests for jobs, expressed by names and without the settings that the config adds.
//!
//! Start at [`JobRequest`].

use heeler_config::ReasoningEffort;
use heeler_config::workflow::{GitAccessProfile, RunClonePolicy};
use serde::{Deserialize, Serialize};

use crate::permission_grant::PermissionGrant;
use crate::session_choice::SessionChoice;
use crate::{AgentName, JobId, PromptAuthor, TriggerType, WorkflowRunId};

/// Longest prompt of a request, in bytes.
pub const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// Request for a job. It may wait in the queue, so every field is serializable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    pub agent: AgentName,
    /// Prompt. Defaults to the prompt of the schedule or agent.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Schedule that creates the job.
    #[serde(default)]
    pub schedule: Option<String>,
    #[serde(default = "usual")]
    pub session: SessionChoice,
    /// Chat channel that the request comes from.
    #[serde(default)]
    pub channel: Option<String>,
    /// Resumes the session even if it has external messages, and imports them.
    #[serde(default)]
    pub take_in: bool,
    /// Also writes the job's rows as text.
    #[serde(default)]
    pub output_file: bool,
    /// True if a person can answer questions.
    #[serde(default)]
    pub attended: bool,
    #[serde(default = "manual")]
    pub trigger: TriggerType,
    /// Queue priority; higher starts first.
    #[serde(default)]
    pub priority: i64,
    /// Job that made the request.
    #[serde(default)]
    pub parent: Option<JobId>,
    /// Model to use instead of the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Permissions that a person has given in this conversation.
    #[serde(default, skip_serializing_if = "PermissionGrant::is_empty")]
    pub permissions: PermissionGrant,
    /// Name of the worker that executes the job, in the conversation of the requesting job.
    /// Defaults to a generated name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The agent that wrote the prompt; `None` if a person or the config did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_by: Option<PromptAuthor>,
    /// PID of the conversation that the job is a turn of. While that process lives, the agent's
    /// process may stay for the next turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_pid: Option<u32>,
    /// Part of a workflow run that the job executes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Box<PhaseJobRequest>>,
    /// Files of a chat message, which are fetched before the agent starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Box<MessageFiles>>,
}

/// Files of a chat message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageFiles {
    /// Chat platform that has them.
    pub platform: String,
    /// Account of the bot.
    pub account: String,
    /// Directory for them, within the working directory.
    pub folder: String,
    /// Most bytes of one file.
    pub bytes_max: u64,
    pub files: Vec<MessageFile>,
}

/// A file of a chat message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageFile {
    /// Name under which it is stored. Heeler chose it.
    pub name: String,
    pub media_type: String,
    /// ID or address by which the platform hands it out.
    pub source: String,
    /// True for a voice message, which is transcribed and not stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_voice: bool,
}

/// Job that executes a part of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseJobRequest {
    pub run: WorkflowRunId,
    pub work: PhaseJobKind,
    /// Time limit. Defaults to the agent's.
    pub timeout_ms: Option<u64>,
    /// Directory to work in, within the agent's working directory.
    pub folder: Option<String>,
    /// Remaining budget of the workflow run, in millionths of a US dollar.
    pub micros_left: Option<i64>,
    /// Skills with files that the agent may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills: Option<SkillSource>,
    /// Highest permissions of the token for GitHub that the agent gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_access: Option<GitAccessProfile>,
    /// Set if the job works in the clone of its workflow run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_clone: Option<RunClonePolicy>,
}

/// Place of the files of a phase's skills. The files may be large, so a request only names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillSource {
    /// Hash of the run's workflow definition.
    pub definition: String,
    /// Name of the phase.
    pub phase: String,
}

/// Work of a workflow job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum PhaseJobKind {
    /// Prompts the agent.
    Ask {
        /// Model to use instead of the agent's own.
        model: Option<String>,
        /// Reasoning effort to use instead of the agent's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effort: Option<ReasoningEffort>,
    },
    /// Runs a command in the agent's working directory, with the prompt as its input.
    Command {
        command: String,
        /// Additional environment variables.
        env: Vec<(String, String)>,
    },
    /// Replays a given text instead of prompting an agent.
    Play { text: String },
}

impl JobRequest {
    /// Creates a manual request with default settings.
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
            permissions: PermissionGrant::default(),
            worker: None,
            prompt_by: None,
            conversation_pid: None,
            phase: None,
            files: None,
        }
    }

    /// Returns true if the job runs something in the agent's name without prompting the agent.
    pub fn runs_no_agent(&self) -> bool {
        let work = self.phase.as_ref().map(|phase| &phase.work);
        // Both run in the name of an agent, which only lends its directory and environment.
        matches!(work, Some(PhaseJobKind::Command { .. } | PhaseJobKind::Play { .. }))
    }

    /// Returns true if the job is a command of a workflow. It has no session, because a command has no
    /// conversation that a job could continue.
    pub fn is_phase_command(&self) -> bool {
        let work = self.phase.as_ref().map(|phase| &phase.work);
        matches!(work, Some(PhaseJobKind::Command { .. }))
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
            permissions: PermissionGrant::default(),
            worker: Some("coder-1".to_owned()),
            ..JobRequest::new("coder".parse().unwrap())
        };
        let text = serde_json::to_string(&wanted).unwrap();
        assert_eq!(serde_json::from_str::<JobRequest>(&text).unwrap(), wanted);
    }

    #[test]
    fn only_a_command_of_a_workflow_has_no_session() {
        let request = |work: serde_json::Value| -> JobRequest {
            let phase = serde_json::json!({"run": "wf-2026-11-15-k3v9q1", "work": work});
            let wanted = serde_json::json!({"agent": "coder", "phase": phase});
            serde_json::from_value(wanted).unwrap()
        };
        let command = serde_json::json!({"kind": "command", "command": "true", "env": []});
        assert!(request(command).is_phase_command());
        assert!(!request(serde_json::json!({"kind": "ask", "model": null})).is_phase_command());
        assert!(!request(serde_json::json!({"kind": "play", "text": "hi"})).is_phase_command());
        assert!(!JobRequest::new("coder".parse().unwrap()).is_phase_command());
    }

    #[test]
    fn a_word_that_nobody_knows_is_refused() {
        let error = serde_json::from_str::<JobRequest>(r#"{"agent":"a","promt":"x"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `promt`"), "{error}");
    }
}
