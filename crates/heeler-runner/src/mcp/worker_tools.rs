//! Tools for workers: agents that this run's agent starts, each in a session of its own.
//!
//! No state is kept here: the fleet records the workers, so a run that continues after a crash
//! finds its workers again. Start at [`WorkerTools`].

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
use super::tool_definition::{ToolCallOutcome, define_tool, mark_read_only, parse_input};

pub(super) const SPAWN_WORKER: &str = "spawn_worker";
pub(super) const LIST_WORKERS: &str = "list_workers";
pub(super) const MESSAGE_WORKER: &str = "message_worker";
pub(super) const WAIT_FOR_WORKER: &str = "wait_for_worker";
pub(super) const STOP_WORKER: &str = "stop_worker";
pub(super) const START_JOB: &str = "start_job";

/// Default wait time of `wait_for_worker`.
const WAIT_SECONDS: u64 = 600;
/// Limit on the wait time; an agent that needs more calls the tool again.
const WAIT_SECONDS_MAX: u64 = 3_600;
/// Interval of checks on the workers.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time that a message waits for a worker that accepts none at the moment because it is starting or
/// ending.
const MESSAGE_RETRY_TIME: Duration = Duration::from_secs(10);
/// Limit on the reported part of a worker's last message; the end is kept.
const REPLY_BYTES_MAX: usize = 32 << 10;
/// Limit on the listed part of a worker's task.
const TASK_CHARS_MAX: usize = 120;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SpawnWorkerInput {
    /// Agent of this fleet that does the task
    agent: String,
    /// The task, with everything the worker needs to know: it does not see this conversation
    task: String,
    /// Name for the worker; default: the agent's name with a number
    name: Option<String>,
    /// Model to use instead of the agent's own
    model: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListWorkersInput {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MessageWorkerInput {
    /// Name of the worker
    name: String,
    /// Message for the worker
    message: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WaitForWorkerInput {
    /// Names of the workers to wait for; default: all
    #[serde(default)]
    names: Vec<String>,
    /// Maximum wait in seconds; default 600, at most 3600
    timeout_seconds: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopWorkerInput {
    /// Name of the worker
    name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartJobInput {
    /// Agent of this fleet that does the job
    agent: String,
    /// Prompt of the job
    prompt: String,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        define_tool::<SpawnWorkerInput>(
            SPAWN_WORKER,
            "Start another agent of this fleet on a task, in a session of its own. Returns the \
             worker's name and its job at once, without waiting for the result.",
        ),
        mark_read_only(define_tool::<ListWorkersInput>(
            LIST_WORKERS,
            "List the workers of this conversation, with the task, state and cost of each.",
        )),
        define_tool::<MessageWorkerInput>(
            MESSAGE_WORKER,
            "Send a message to a worker. A working one gets it at once; an idle one continues in its \
             session.",
        ),
        mark_read_only(define_tool::<WaitForWorkerInput>(
            WAIT_FOR_WORKER,
            "Wait until workers are done, and return the last message of each. After the timeout it \
             lists those still working; wait again, or continue.",
        )),
        define_tool::<StopWorkerInput>(
            STOP_WORKER,
            "Stop a worker's current job. It can be messaged again later.",
        ),
        define_tool::<StartJobInput>(
            START_JOB,
            "Start a job of another agent of this fleet, in that agent's usual session. Returns its id.",
        ),
    ]
}

#[derive(Debug, Clone)]
pub(super) struct WorkerTools {
    client: AsyncFleetClient,
    /// [`MESSAGE_RETRY_TIME`], except in tests.
    message_retry_time: Duration,
}

impl WorkerTools {
    pub(super) fn new(client: AsyncFleetClient) -> WorkerTools {
        WorkerTools { client, message_retry_time: MESSAGE_RETRY_TIME }
    }

    /// Calls one of the tools. `key` identifies the call: a repeated call starts nothing twice.
    pub(super) async fn call(
        &self,
        tool: &str,
        key: String,
        arguments: JsonObject,
    ) -> ToolCallOutcome {
        match tool {
            SPAWN_WORKER => self.spawn(key, parse_input(arguments)?).await,
            LIST_WORKERS => {
                // Unknown arguments are refused even where none are needed, so that mistakes are
                // noticed.
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
            None => format!("worker {worker} is working ({job})"),
            Some(why) => format!("worker {worker} is queued ({job}): {why}"),
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
            Some(why) => format!("{job} of worker {worker} is queued: {why}"),
        })
    }

    async fn start(&self, key: String, wanted: JobRequest) -> Result<StartedJob, String> {
        self.client.call(move |client| client.start_job(&key, &wanted)).await
    }

    async fn list(&self) -> ToolCallOutcome {
        let workers = self.client.call(|client| client.list_workers()).await?;
        if workers.is_empty() {
            return Ok("there are no workers in this conversation".to_owned());
        }
        let line = |worker: &WorkerSnapshot| {
            let cost = worker.cost_usd.map(heeler_model::format_usd);
            let cost = cost.map(|cost| format!(", {cost}")).unwrap_or_default();
            let task = first_line(&worker.task);
            let WorkerSnapshot { name, agent, job, state, .. } = worker;
            format!("{name} (agent {agent}, {job}{cost}) {}; task: {task}", describe_state(state))
        };
        Ok(workers.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    async fn find(&self, name: &str) -> Result<WorkerSnapshot, String> {
        let workers = self.client.call(|client| client.list_workers()).await?;
        let known = workers.iter().map(|worker| worker.name.clone()).collect::<Vec<_>>();
        workers
            .into_iter()
            .find(|worker| worker.name == name)
            .ok_or_else(|| unknown_worker(name, &known))
    }

    /// Sends a message to a worker. The worker may be ending or starting, so this is retried for a
    /// while.
    async fn message(
        &self,
        key: String,
        MessageWorkerInput { name, message }: MessageWorkerInput,
    ) -> ToolCallOutcome {
        let until = Instant::now() + self.message_retry_time;
        loop {
            // The worker is looked up each time, because its job may change while this waits.
            let worker = self.find(&name).await?;
            if worker.state.is_over() {
                return self.resume_worker(key, worker, message).await;
            }
            // An agent must not redirect work that a person asked for.
            if worker.is_started_by_person() {
                return Err(format!(
                    "{name} did not get the message: it works on a person's request and accepts \
                     messages only from people until that is done; call {WAIT_FOR_WORKER}, then \
                     send it again"
                ));
            }
            let (job, text) = (worker.job.clone(), message.clone());
            let why = match self.client.call(move |client| client.send_message(&job, &text)).await?
            {
                WorkerMessageDelivery::Delivered => {
                    return Ok(format!("{name} is working and received the message"));
                }
                WorkerMessageDelivery::Unavailable(why) => why,
            };
            // The worker may end or start at any moment, so one refusal means little.
            if Instant::now() >= until {
                let state = describe_state(&worker.state);
                return Err(format!(
                    "{name} did not get the message: it {state}, and {why}; try again later"
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Continues the session of an idle worker.
    async fn resume_worker(
        &self,
        key: String,
        worker: WorkerSnapshot,
        message: String,
    ) -> ToolCallOutcome {
        let WorkerSnapshot { name, agent, session, .. } = worker;
        let Some(id) = session else {
            return Err(format!(
                "{name} has no session to continue; spawn another worker with everything it needs to know"
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
            None => format!("{name} continues in its session ({job})"),
            Some(why) => format!("{name} continues in its session ({job}) when it can: {why}"),
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
            // The time is checked before the look, so that a last look follows the deadline.
            let is_late = Instant::now() >= until;
            let chosen =
                select_workers(self.client.call(|client| client.list_workers()).await?, &names)?;
            if is_late || chosen.iter().all(|worker| worker.state.is_over()) {
                return self.report(chosen, seconds).await;
            }
            // The last pause ends with the deadline.
            sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now()))).await;
        }
    }

    /// Reports the state of workers, with the last message of each.
    async fn report(&self, workers: Vec<WorkerSnapshot>, seconds: u64) -> ToolCallOutcome {
        let mut text = String::new();
        for worker in workers {
            let WorkerSnapshot { name, job, state, .. } = worker;
            if !state.is_over() {
                _ = writeln!(text, "{name} {} after {seconds} s ({job})", describe_state(&state));
                continue;
            }
            let of = job.clone();
            let reply = self.client.call(move |client| client.last_message(&of)).await?;
            let reply = reply.as_deref().map(str::trim).filter(|reply| !reply.is_empty());
            let last_reply = match reply {
                None => ", without a message".to_owned(),
                Some(reply) => format!(", and said:\n{}", truncate_start(reply)),
            };
            _ = writeln!(text, "{name} {} ({job}){last_reply}", describe_state(&state));
        }
        Ok(text.trim_end().to_owned())
    }

    async fn stop(&self, StopWorkerInput { name }: StopWorkerInput) -> ToolCallOutcome {
        let worker = self.find(&name).await?;
        if worker.open_jobs.is_empty() && worker.state.is_over() {
            return Ok(format!("{name} has no running job: it {}", describe_state(&worker.state)));
        }
        if worker.open_jobs.is_empty() {
            return Err(format!(
                "{name} is working on a person's request, which only a person may stop"
            ));
        }
        // A worker may have queued jobs besides the running one, which would start afterwards.
        for job in worker.open_jobs {
            self.client.call(move |client| client.stop_job(&job)).await?;
        }
        Ok(format!("{name} is being stopped; call {WAIT_FOR_WORKER} to wait for its end"))
    }
}

fn parse_agent_name(agent: &str) -> Result<AgentName, String> {
    agent.parse().map_err(|error| format!("`{agent}` is not a valid agent name: {error}"))
}

/// Returns the workers with these names, or all.
fn select_workers(
    all: Vec<WorkerSnapshot>,
    names: &[String],
) -> Result<Vec<WorkerSnapshot>, String> {
    // Waiting for no worker at all would return at once and look like success.
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
        WorkerState::Working => "is still working".to_owned(),
        WorkerState::Done => "is done".to_owned(),
        WorkerState::Failed(why) => format!("failed: {why}"),
    }
}

fn first_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(TASK_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Returns the end of a text that is too long to report.
fn truncate_start(reply: &str) -> String {
    let Some(cut) = reply.len().checked_sub(REPLY_BYTES_MAX).filter(|cut| *cut > 0) else {
        return reply.to_owned();
    };
    let cut = reply.ceil_char_boundary(cut);
    format!("… ({cut} bytes before this are in its transcript)\n{}", &reply[cut..])
}
