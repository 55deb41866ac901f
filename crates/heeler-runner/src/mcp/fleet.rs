//! The server `heeler`: what an agent can ask of its fleet.
//!
//! Progress is recorded by the run itself, and people are asked as they are when the agent's own tools
//! ask; workers and tasks are reached through the fleet's door. What cannot be done fails and says so,
//! so that the agent can go on in another way. Start at [`Fleet`].

use heeler_model::question;
use heeler_model::run::Answer;
use rmcp::model::{JsonObject, Tool};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};

use super::door::Way;
use super::server::{Inquiry, Note, Outcome, check_message, harmless, read, record, tool};
use super::tasks::{self, Tasks};
use super::workers::{self, Workers};

pub(super) const SERVER: &str = "heeler";

const REPORT_PROGRESS: &str = "report_progress";
pub(crate) const ASK_HUMAN: &str = "ask_human";

/// What an agent does that nobody answers.
const WITHOUT: &str = "go on without it if you can, and say in your answer what is left open";

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
struct Question {
    /// What you need to know, with all that a person needs to answer it.
    question: String,
    /// Answers to choose from, if there are only a few.
    #[serde(default)]
    options: Vec<String>,
}

pub(super) fn tools() -> Vec<Tool> {
    let mut tools = vec![
        harmless(tool::<Progress>(
            REPORT_PROGRESS,
            "Record how far you are, for the people who follow this job. It does not wait for them.",
        )),
        harmless(tool::<Question>(
            ASK_HUMAN,
            "Ask a person and wait for the answer. Use it only when you cannot go on without it.",
        )),
    ];
    tools.extend(workers::tools());
    tools.extend(tasks::tools());
    tools
}

/// The tools of the fleet.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    notes: mpsc::Sender<Note>,
    inquiries: mpsc::Sender<Inquiry>,
    workers: Workers,
    tasks: Tasks,
}

impl Fleet {
    pub(super) fn new(
        notes: mpsc::Sender<Note>,
        inquiries: mpsc::Sender<Inquiry>,
        way: Way,
    ) -> Fleet {
        let tasks = Tasks::new(way.clone(), notes.clone());
        Fleet { notes, inquiries, workers: Workers::new(way), tasks }
    }

    /// Calls a tool. `key` names the call, for those that must not be done twice.
    pub(super) async fn call(&self, tool: &str, key: String, arguments: JsonObject) -> Outcome {
        match tool {
            REPORT_PROGRESS => self.report(read(arguments)?).await,
            ASK_HUMAN => self.ask(read(arguments)?).await,
            tasks::ADD_TASKS | tasks::LIST_TASKS | tasks::FINISH_TASK => {
                self.tasks.call(tool, arguments).await
            }
            _ => self.workers.call(tool, key, arguments).await,
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

    async fn ask(&self, Question { question, options }: Question) -> Outcome {
        check_message(&question)?;
        if question.trim().is_empty() {
            return Err("the question is empty".to_owned());
        }
        let option = |label: &String| json!({ "label": label, "description": "" });
        let options: Vec<Json> = options.iter().map(option).collect();
        let asked = json!({
            "question": question, "header": "Question", "multiSelect": false, "options": options,
        });
        let (reply, answered) = oneshot::channel();
        let inquiry = Inquiry { input: json!({ "questions": [asked] }), reply };
        let ending = || format!("the run is ending, so nobody is asked; {WITHOUT}");
        self.inquiries.send(inquiry).await.map_err(|_| ending())?;
        match answered.await.map_err(|_| ending())? {
            Answer::Allow { input } => {
                let words = input.as_ref().and_then(question::answers);
                Ok(words.unwrap_or_else(|| "the person left it to you".to_owned()))
            }
            Answer::Deny { message, .. } => {
                Err(format!("there is no answer: {message}; {WITHOUT}"))
            }
        }
    }
}
