//! The server `heeler`: what an agent can ask of its fleet.
//!
//! Progress is recorded by the run itself. To ask a person or to start a job takes the daemon; without
//! it these tools fail and say so, so that the agent can go on in another way. Start at [`Fleet`].

use rmcp::model::{JsonObject, Tool};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::server::{Note, Outcome, check_message, harmless, read, record, tool};

pub(super) const SERVER: &str = "heeler";

const REPORT_PROGRESS: &str = "report_progress";
const ASK_HUMAN: &str = "ask_human";
const START_JOB: &str = "start_job";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Progress {
    /// What is done and what comes next, in a sentence.
    message: String,
    /// How much of the work is done, from 0 to 100.
    #[schemars(range(min = 0, max = 100))]
    percent: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "the daemon's part: until it answers, only the input's form is checked"
)]
struct Question {
    /// What you need to know, with all that a person needs to answer it.
    question: String,
    /// Answers to choose from, if there are only a few.
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "the daemon's part: until it answers, only the input's form is checked"
)]
struct Start {
    /// The agent of this fleet that is to do the job.
    agent: String,
    /// What it is to do.
    prompt: String,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        harmless(tool::<Progress>(
            REPORT_PROGRESS,
            "Record how far you are, for the people who follow this job. It does not wait for them.",
        )),
        harmless(tool::<Question>(
            ASK_HUMAN,
            "Ask a person and wait for the answer. Use it only when you cannot go on without it.",
        )),
        tool::<Start>(START_JOB, "Start a job of another agent of this fleet. Returns its id."),
    ]
}

/// The tools of the fleet.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    notes: mpsc::Sender<Note>,
}

impl Fleet {
    pub(super) fn new(notes: mpsc::Sender<Note>) -> Fleet {
        Fleet { notes }
    }

    pub(super) async fn call(&self, tool: &str, arguments: JsonObject) -> Outcome {
        match tool {
            REPORT_PROGRESS => self.report(read(arguments)?).await,
            ASK_HUMAN => {
                read::<Question>(arguments).and_then(|_| Err(no_daemon("nobody can be asked")))
            }
            _ => read::<Start>(arguments).and_then(|_| Err(no_daemon("no job can be started"))),
        }
    }

    async fn report(&self, Progress { message, percent }: Progress) -> Outcome {
        check_message(&message)?;
        let percent = match percent {
            None => None,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100")]
            Some(percent) if (0.0..=100.0).contains(&percent) => Some(percent.round() as u8),
            Some(percent) => return Err(format!("`percent` is {percent}; it goes from 0 to 100")),
        };
        record(&self.notes, Note::Progress { message, percent }).await?;
        Ok("recorded".to_owned())
    }
}

fn no_daemon(consequence: &str) -> String {
    format!(
        "the heeler daemon is not running, so {consequence}; go on without it if you can, and say in \
         your answer what is left open"
    )
}
