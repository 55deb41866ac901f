//! The server `heeler`: tools by which an agent uses its fleet.
//!
//! Progress is recorded by the run itself, and questions to people are handled like those of the
//! agent's own tools; workers and tasks are reached through the
//! [`FleetClient`](super::fleet_client::FleetClient). A tool that cannot do its work fails with an
//! explanation, so that the agent can proceed in another way. Start at [`FleetTools`].

use heeler_model::question;
use heeler_model::run::QuestionAnswer;
use rmcp::model::{JsonObject, Tool};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};

use super::fleet_client::AsyncFleetClient;
use super::task_tools::{self, TaskTools};
use super::tool_definition::{ToolCallOutcome, define_tool, mark_read_only, parse_input};
use super::tool_note::{ToolNote, ToolQuestion, check_message, send_note};
use super::worker_tools::{self, WorkerTools};

pub(super) const SERVER: &str = "heeler";

const REPORT_PROGRESS: &str = "report_progress";
const ASK_HUMAN: &str = "ask_human";

/// Advice for an agent that gets no answer.
const NO_ANSWER_ADVICE: &str =
    "go on without it if you can, and say in your answer what is left open";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReportProgressInput {
    /// Work done and next step, in one sentence
    message: String,
    /// Percentage of the work that is done, from 0 to 100
    #[schemars(range(min = 0, max = 100))]
    percent: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskHumanInput {
    /// The question, with all the context a person needs to answer it
    question: String,
    /// Answers to choose from, if there are only a few
    #[serde(default)]
    options: Vec<String>,
}

fn tools(may_start_jobs: bool) -> Vec<Tool> {
    let mut tools = vec![
        mark_read_only(define_tool::<ReportProgressInput>(
            REPORT_PROGRESS,
            "Report your progress to the people who follow this job. Returns at once.",
        )),
        mark_read_only(define_tool::<AskHumanInput>(
            ASK_HUMAN,
            "Ask a person and wait for the answer. Use it only when you cannot continue without it.",
        )),
    ];
    // Without a right to start jobs there are no workers.
    if may_start_jobs {
        tools.extend(worker_tools::tools());
    }
    tools.extend(task_tools::tools());
    tools
}

#[derive(Debug, Clone)]
pub(super) struct FleetTools {
    notes: mpsc::Sender<ToolNote>,
    questions: mpsc::Sender<ToolQuestion>,
    workers: WorkerTools,
    tasks: TaskTools,
    /// True if the agent may start jobs of other agents.
    may_start_jobs: bool,
}

impl FleetTools {
    pub(super) fn new(
        notes: mpsc::Sender<ToolNote>,
        questions: mpsc::Sender<ToolQuestion>,
        client: AsyncFleetClient,
        may_start_jobs: bool,
    ) -> FleetTools {
        let tasks = TaskTools::new(client.clone(), notes.clone());
        FleetTools { notes, questions, workers: WorkerTools::new(client), tasks, may_start_jobs }
    }

    pub(super) fn tools(&self) -> Vec<Tool> {
        tools(self.may_start_jobs)
    }

    /// Returns the reason why a tool is not offered to this agent, if it exists at all.
    pub(super) fn withheld_reason(&self, tool: &str) -> Option<&'static str> {
        let is_worker_tool = worker_tools::tools().iter().any(|known| known.name == tool);
        (is_worker_tool && !self.may_start_jobs).then_some(
            "this agent may start no jobs: set `spawn.agents` in its config to the agents that it \
             may start",
        )
    }

    /// Calls a tool. `key` identifies the call, for tools that must not act twice.
    pub(super) async fn call(
        &self,
        tool: &str,
        key: String,
        arguments: JsonObject,
    ) -> ToolCallOutcome {
        match tool {
            REPORT_PROGRESS => self.report_progress(parse_input(arguments)?).await,
            ASK_HUMAN => self.ask_human(parse_input(arguments)?).await,
            task_tools::ADD_TASKS | task_tools::LIST_TASKS | task_tools::FINISH_TASK => {
                self.tasks.call(tool, arguments).await
            }
            _ => self.workers.call(tool, key, arguments).await,
        }
    }

    async fn report_progress(
        &self,
        ReportProgressInput { message, percent }: ReportProgressInput,
    ) -> ToolCallOutcome {
        check_message(&message)?;
        let percent = match percent {
            None => None,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100")]
            Some(percent) if (0.0..=100.0).contains(&percent) => Some(percent.round() as u8),
            Some(percent) => {
                return Err(format!("`percent` is {percent}; it must be from 0 to 100"));
            }
        };
        send_note(&self.notes, ToolNote::Progress { message, percent }).await?;
        Ok("recorded".to_owned())
    }

    async fn ask_human(
        &self,
        AskHumanInput { question, options }: AskHumanInput,
    ) -> ToolCallOutcome {
        check_message(&question)?;
        if question.trim().is_empty() {
            return Err("the question is empty".to_owned());
        }
        let option = |label: &String| json!({ "label": label, "description": "" });
        // The form is that of Claude's own question tool, so people see no difference.
        let options: Vec<Json> = options.iter().map(option).collect();
        let question_input = json!({
            "question": question, "header": "Question", "multiSelect": false, "options": options,
        });
        let (reply, answered) = oneshot::channel();
        let tool_question = ToolQuestion {
            tool: ASK_HUMAN,
            input: json!({ "questions": [question_input] }),
            network_host: None,
            reply,
        };
        let ending =
            || format!("the run is ending, so the question is not asked; {NO_ANSWER_ADVICE}");
        self.questions.send(tool_question).await.map_err(|_| ending())?;
        // The event loop drops the sender when the run ends before an answer.
        match answered.await.map_err(|_| ending())? {
            QuestionAnswer::Allow { input } => {
                let answers = input.as_ref().and_then(question::format_answers);
                Ok(answers.unwrap_or_else(|| "the person left it to you".to_owned()))
            }
            QuestionAnswer::AllowSession | QuestionAnswer::AllowAlways => {
                Ok("the person left it to you".to_owned())
            }
            QuestionAnswer::Deny { message, .. } => {
                Err(format!("there is no answer: {message}; {NO_ANSWER_ADVICE}"))
            }
        }
    }
}
