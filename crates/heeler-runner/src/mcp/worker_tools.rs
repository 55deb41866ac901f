//! The tools for workers: agents that this run's agent sets to work, each in a session of its own.
//!
//! Nothing is kept here: who works is on record in the fleet, so a run that goes on after a crash finds
//! its workers again. Start at [`WorkerTools`].

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentName, JobRequest};
use rmcp::model::{JsonObject, Tool};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::fleet_client::{
    AsyncFleetClient, StartedJob, WorkerMessageDelivery, WorkerSnapshot, WorkerState,
};
use super::server::{ToolCallOutcome, define_tool, mark_read_only, parse_input};

pub(super) const SPAWN_WORKER: &str = "spawn_worker";
pub(super) const LIST_WORKERS: &str = "list_workers";
pub(super) const MESSAGE_WORKER: &str = "message_worker";
pub(super) const WAIT_FOR_WORKER: &str = "wait_for_worker";
pub(super) const STOP_WORKER: &str = "stop_worker";
pub(super) const START_JOB: &str = "start_job";

/// How long `wait_for_worker` waits if the agent does not say.
const WAIT_SECONDS: u64 = 600;
/// The longest that it waits; an agent that wants more calls it again.
const WAIT_SECONDS_MAX: u64 = 3_600;
/// How often it is looked what workers do.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a message waits for a worker that takes none at the moment: it is just starting or ending.
const MESSAGE_RETRY_TIME: Duration = Duration::from_secs(10);
/// How much of what a worker said last is told; the end of it counts.
const REPLY_BYTES_MAX: usize = 32 << 10;
/// How much of what a worker was asked is listed.
const TASK_CHARS_MAX: usize = 120;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SpawnWorkerInput {
    /// The agent of this fleet that is to do it.
    agent: String,
    /// What it is to do, with all that it needs to know: it does not see this conversation.
    task: String,
    /// What to call it here; the agent's name with a number if left out.
    name: Option<String>,
    /// The model that answers, if not the agent's own.
    model: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListWorkersInput {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MessageWorkerInput {
    /// The worker.
    name: String,
    /// What to tell it.
    message: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WaitForWorkerInput {
    /// The workers to wait for; all of them if left out.
    #[serde(default)]
    names: Vec<String>,
    /// How long to wait at most, in seconds: 600 if left out, 3600 at most.
    timeout_seconds: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopWorkerInput {
    /// The worker.
    name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartJobInput {
    /// The agent of this fleet that is to do the job.
    agent: String,
    /// What it is to do.
    prompt: String,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        define_tool::<SpawnWorkerInput>(
            SPAWN_WORKER,
            "Set another agent of this fleet to work on a task, in a session of its own beside yours. \
             Returns the worker's name and its job at once; it does not wait for the work.",
        ),
        mark_read_only(define_tool::<ListWorkersInput>(
            LIST_WORKERS,
            "List the workers of this conversation: what each was asked, what it does and costs.",
        )),
        define_tool::<MessageWorkerInput>(
            MESSAGE_WORKER,
            "Tell a worker something. One that is at work hears it at once; one that is done goes on in \
             its session.",
        ),
        mark_read_only(define_tool::<WaitForWorkerInput>(
            WAIT_FOR_WORKER,
            "Wait until workers are done, and return what each said last. After the timeout it says \
             who is still at work; wait again, or go on.",
        )),
        define_tool::<StopWorkerInput>(
            STOP_WORKER,
            "Stop what a worker is at. It can be messaged again later.",
        ),
        define_tool::<StartJobInput>(
            START_JOB,
            "Start a job of another agent of this fleet, in that agent's usual session. Returns its id.",
        ),
    ]
}

/// The tools for workers.
#[derive(Debug, Clone)]
pub(super) struct WorkerTools {
    client: AsyncFleetClient,
    /// [`MESSAGE_RETRY_TIME`], but for tests.
    message_retry_time: Duration,
}

impl WorkerTools {
    pub(super) fn new(way: AsyncFleetClient) -> WorkerTools {
        WorkerTools { client: way, message_retry_time: MESSAGE_RETRY_TIME }
    }

    /// Calls one of the tools. `key` names the call: the same again starts nothing twice.
    pub(super) async fn call(
        &self,
        tool: &str,
        key: String,
        arguments: JsonObject,
    ) -> ToolCallOutcome {
        match tool {
            SPAWN_WORKER => self.spawn(key, parse_input(arguments)?).await,
            LIST_WORKERS => {
                let ListWorkersInput {} = parse_input(arguments)?;
                self.list().await
            }
            MESSAGE_WORKER => self.message(key, parse_input(arguments)?).await,
            WAIT_FOR_WORKER => self.wait(parse_input(arguments)?).await,
            STOP_WORKER => self.stop(parse_input(arguments)?).await,
            _ => self.start_job(key, parse_input(arguments)?).await,
        }
    }

    async fn spawn(
        &self,
        key: String,
        SpawnWorkerInput { agent, task, name, model }: SpawnWorkerInput,
    ) -> ToolCallOutcome {
        let (prompt, session) = (Some(task), SessionChoice::Fresh);
        let wanted = JobRequest {
            prompt,
            session,
            model,
            worker: name,
            ..JobRequest::new(parse_agent_name(&agent)?)
        };
        let StartedJob { job, worker, queue_reason: waits } = self.start(key, wanted).await?;
        Ok(match waits {
            None => format!("worker {worker} is at work ({job})"),
            Some(why) => format!("worker {worker} has to wait before it starts ({job}): {why}"),
        })
    }

    async fn start_job(
        &self,
        key: String,
        StartJobInput { agent, prompt }: StartJobInput,
    ) -> ToolCallOutcome {
        let wanted =
            JobRequest { prompt: Some(prompt), ..JobRequest::new(parse_agent_name(&agent)?) };
        let StartedJob { job, worker, queue_reason: waits } = self.start(key, wanted).await?;
        Ok(match waits {
            None => format!("{job} has started, as worker {worker}"),
            Some(why) => format!("{job}, of worker {worker}, has to wait: {why}"),
        })
    }

    async fn start(&self, key: String, wanted: JobRequest) -> Result<StartedJob, String> {
        self.client.call(move |door| door.start_job(&key, &wanted)).await
    }

    async fn list(&self) -> ToolCallOutcome {
        let workers = self.client.call(|door| door.list_workers()).await?;
        if workers.is_empty() {
            return Ok("there are no workers in this conversation".to_owned());
        }
        let line = |worker: &WorkerSnapshot| {
            let cost = worker.cost_usd.map(|usd| format!(", ${usd:.4}")).unwrap_or_default();
            let task = first_line(&worker.task);
            let WorkerSnapshot { name, agent, job, state, .. } = worker;
            format!("{name} (agent {agent}, {job}{cost}) {}; asked: {task}", describe_state(state))
        };
        Ok(workers.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    async fn find(&self, name: &str) -> Result<WorkerSnapshot, String> {
        let workers = self.client.call(|door| door.list_workers()).await?;
        let known = workers.iter().map(|worker| worker.name.clone()).collect::<Vec<_>>();
        workers
            .into_iter()
            .find(|worker| worker.name == name)
            .ok_or_else(|| unknown_worker(name, &known))
    }

    /// Says something to a worker. It may end or start just now, so this is tried for a while.
    async fn message(
        &self,
        key: String,
        MessageWorkerInput { name, message }: MessageWorkerInput,
    ) -> ToolCallOutcome {
        let until = Instant::now() + self.message_retry_time;
        loop {
            let worker = self.find(&name).await?;
            if worker.state.is_over() {
                return self.resume_worker(key, worker, message).await;
            }
            if worker.is_started_by_person() {
                return Err(format!(
                    "{name} was not told: it does what a person asked, and hears only people until \
                     that is done; {WAIT_FOR_WORKER} tells when, then message it"
                ));
            }
            let (job, text) = (worker.job.clone(), message.clone());
            let why = match self.client.call(move |door| door.send_message(&job, &text)).await? {
                WorkerMessageDelivery::Delivered => {
                    return Ok(format!("{name} is at work and was told"));
                }
                WorkerMessageDelivery::Unavailable(why) => why,
            };
            if Instant::now() >= until {
                let state = describe_state(&worker.state);
                return Err(format!("{name} was not told: it {state}, and {why}; try again later"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Has a worker that is idle go on in its session.
    async fn resume_worker(
        &self,
        key: String,
        worker: WorkerSnapshot,
        message: String,
    ) -> ToolCallOutcome {
        let WorkerSnapshot { name, agent, session, .. } = worker;
        let Some(id) = session else {
            return Err(format!(
                "{name} has no session to go on in; spawn another worker with all that it needs to know"
            ));
        };
        let (prompt, session) = (Some(message), SessionChoice::Given { id });
        let wanted = JobRequest {
            prompt,
            session,
            worker: Some(name.clone()),
            ..JobRequest::new(parse_agent_name(&agent)?)
        };
        let StartedJob { job, queue_reason: waits, .. } = self.start(key, wanted).await?;
        Ok(match waits {
            None => format!("{name} goes on in its session ({job})"),
            Some(why) => format!("{name} goes on in its session ({job}) when it can: {why}"),
        })
    }

    async fn wait(
        &self,
        WaitForWorkerInput { names, timeout_seconds }: WaitForWorkerInput,
    ) -> ToolCallOutcome {
        let seconds = timeout_seconds.unwrap_or(WAIT_SECONDS);
        if seconds > WAIT_SECONDS_MAX {
            return Err(format!(
                "`timeout_seconds` is {seconds}; at most {WAIT_SECONDS_MAX}, and call it again"
            ));
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        loop {
            let is_late = Instant::now() >= until;
            let chosen =
                select_workers(self.client.call(|door| door.list_workers()).await?, &names)?;
            if is_late || chosen.iter().all(|worker| worker.state.is_over()) {
                return self.report(chosen, seconds).await;
            }
            sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now()))).await;
        }
    }

    /// Tells what became of workers, with what each said last.
    async fn report(&self, workers: Vec<WorkerSnapshot>, seconds: u64) -> ToolCallOutcome {
        let mut text = String::new();
        for worker in workers {
            let WorkerSnapshot { name, job, state, .. } = worker;
            if !state.is_over() {
                _ = writeln!(text, "{name} {} after {seconds} s ({job})", describe_state(&state));
                continue;
            }
            let of = job.clone();
            let words = self.client.call(move |door| door.last_message(&of)).await?;
            let words = words.as_deref().map(str::trim).filter(|words| !words.is_empty());
            let said = match words {
                None => ", and said nothing".to_owned(),
                Some(words) => format!(", and said:\n{}", truncate_start(words)),
            };
            _ = writeln!(text, "{name} {} ({job}){said}", describe_state(&state));
        }
        Ok(text.trim_end().to_owned())
    }

    async fn stop(&self, StopWorkerInput { name }: StopWorkerInput) -> ToolCallOutcome {
        let worker = self.find(&name).await?;
        if worker.open_jobs.is_empty() && worker.state.is_over() {
            return Ok(format!("{name} is at nothing: it {}", describe_state(&worker.state)));
        }
        if worker.open_jobs.is_empty() {
            return Err(format!("{name} does what a person asked, who alone may stop that"));
        }
        for job in worker.open_jobs {
            self.client.call(move |door| door.stop_job(&job)).await?;
        }
        Ok(format!("{name} is being stopped; {WAIT_FOR_WORKER} tells when it has ended"))
    }
}

fn parse_agent_name(agent: &str) -> Result<AgentName, String> {
    agent.parse().map_err(|error| format!("`{agent}` is no agent: {error}"))
}

/// Returns the workers of these names, or all.
fn select_workers(
    all: Vec<WorkerSnapshot>,
    names: &[String],
) -> Result<Vec<WorkerSnapshot>, String> {
    if all.is_empty() && names.is_empty() {
        return Err(format!("there are no workers to wait for; {SPAWN_WORKER} starts one"));
    }
    let known: Vec<String> = all.iter().map(|worker| worker.name.clone()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        return Err(unknown_worker(name, &known));
    }
    let wanted: HashSet<&String> = names.iter().collect();
    let is_wanted = |worker: &WorkerSnapshot| wanted.is_empty() || wanted.contains(&worker.name);
    Ok(all.into_iter().filter(is_wanted).collect())
}

fn unknown_worker(name: &str, known: &[String]) -> String {
    match known {
        [] => format!("there is no worker `{name}`; {SPAWN_WORKER} starts one"),
        known => format!("there is no worker `{name}`; there are {}", known.join(", ")),
    }
}

fn describe_state(state: &WorkerState) -> String {
    match state {
        WorkerState::Waiting(why) if why.is_empty() => "waits to start".to_owned(),
        WorkerState::Waiting(why) => format!("waits to start: {why}"),
        WorkerState::Working => "is still at work".to_owned(),
        WorkerState::Done => "is done".to_owned(),
        WorkerState::Failed(why) => format!("did not end well: {why}"),
    }
}

fn first_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(TASK_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Returns the last part of a text that is too long to be told.
fn truncate_start(words: &str) -> String {
    let Some(cut) = words.len().checked_sub(REPLY_BYTES_MAX).filter(|cut| *cut > 0) else {
        return words.to_owned();
    };
    let cut = words.ceil_char_boundary(cut);
    format!("… ({cut} bytes before this are in its transcript)\n{}", &words[cut..])
}
