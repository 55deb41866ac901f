//! Hands a session with too large a context over to a new session.
//!
//! The agent is asked for a summary outside the conversation, without leaving a trace in it. The
//! native session of the new one is then written directly, whole or not at all: the summary and the
//! last messages. The old session is only read. If a step fails or is interrupted, the next run
//! begins again from the old session: the new one counts from the agent's first message in it.
//! Start at [`RunExecutor::hand_over`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::RuntimeType;
use heeler_model::outcome::{AgentProcessExit, RunOutcomeBuilder};
use heeler_model::recorder::{CARRIED_OVER_KEY, RecordedRows, SPENT_KEY};
use heeler_model::run::{AgentLaunchSpec, ErrorClass, RunSpec, RuntimeLaunchSpec, SessionStart};
use heeler_model::{AgentSessionId, error_chain, iso_millis};
use heeler_transcript::{LockFile, OsDisk, create_folder, replace_file};
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::executor::RunExecutor;
use super::result::RunAttemptOutcomes;
use crate::claude::text_args;
use crate::event_loop::{ActiveRun, SideReply};
use crate::fault::{self, RunnerFaultPoint};
use crate::mcp::InjectedMcpServers;
use crate::native_session::{self, NativeRecentMessages};
use crate::process::ProcessTree;
use crate::runtime::AgentRuntime;
use crate::runtime_context::RuntimeContext;
use crate::session;

/// Prompt for the summary.
const SUMMARY_PROMPT: &str = "\
The context of this conversation has grown too large. It goes on in a new conversation that begins \
with your summary of this one and its last messages; everything else is forgotten there. Write that \
summary now, complete enough to go on from without asking: what was asked for and why, what was \
decided and found out, which files, names, commands, numbers and quotes matter, what is done, what is \
left to do, and what must not be forgotten. Do not use tools, do not go on with the work, and answer \
with nothing but the summary.";

/// Heading of the summary in the new conversation.
const SUMMARY_HEADING: &str = "\
[Summary] This conversation goes on from an earlier one whose context had grown too large. This is \
the summary of it that you wrote yourself; its last messages follow as they were said.";

/// Reply of the agent to the summary in the new conversation.
const SUMMARY_REPLY: &str =
    "I have read the summary of the earlier conversation, and go on from it.";

/// Keys of a native entry that are carried over. The others refer to data that only the old session
/// has.
const ENTRY_KEYS: [&str; 13] = [
    "type",
    "message",
    "uuid",
    "timestamp",
    "isSidechain",
    "userType",
    "entrypoint",
    "cwd",
    "version",
    "gitBranch",
    "isMeta",
    "isCompactSummary",
    "toolUseResult",
];

impl RunExecutor<'_> {
    /// Creates the new session from the end of the old one; `None` if that failed, which `outcomes`
    /// then records.
    pub(super) async fn hand_over(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        lock: &LockFile,
        (source, keep): (&AgentSessionId, u32),
        outcomes: &mut RunAttemptOutcomes,
    ) -> Option<()> {
        let carried = self.last_messages(source, keep).map_err(|reason| {
            outcomes.record_failure(ErrorClass::NotStarted, &reason);
        });
        let carried = carried.ok()?;
        // The summary ends at the same entry as the carried messages, even if the file grows
        // meanwhile.
        let fork = SessionStart::Fork {
            source: source.clone(),
            id: Uuid::new_v4().to_string().parse().expect("a UUID can be a session's id"),
            at: Some(carried.last),
        };
        let summary = self.request_summary(run, tree, lock, &fork, outcomes).await?;
        fault::point(RunnerFaultPoint::SummaryWritten);
        // The summary is paid from the same budget.
        let remaining_spec = self.spec_with_remaining_budget(outcomes)?;
        let rows = self.build_carried_rows(&run.session, &summary, carried.rows, (run.now)());
        // The transcript is written first: if the run is interrupted here, settling uses it to
        // recognize the entries of the native session that stem from Heeler.
        let rows = self.record_carried_rows(run, rows);
        let made = self.write_native_session(run, &rows).and_then(|()| {
            fault::point(RunnerFaultPoint::NativeSessionWritten);
            self.build_runtime(&remaining_spec, &self.host.brief, &run.injected, run)
        });
        match made {
            Ok(runtime) => run.runtime = runtime,
            Err(reason) => {
                outcomes.record_failure(ErrorClass::NotStarted, &reason);
                return None;
            }
        }
        // The agent's totals start at zero in the new session.
        run.tally = RunOutcomeBuilder::for_runtime(self.spec.runtime);
        Some(())
    }

    fn last_messages(
        &self,
        source: &AgentSessionId,
        keep: u32,
    ) -> Result<NativeRecentMessages, String> {
        let native_file = self
            .native_sessions_folder()
            .and_then(|folder| self.find_native_session(&folder, source));
        let nothing = || {
            format!(
                "the agent has no record of session {source}, so it cannot be continued; start a new \
                 one with `--fresh`"
            )
        };
        let native_file = native_file.ok_or_else(nothing)?;
        native_session::last_messages(&native_file, keep)
            .map_err(|error| error_chain(&error))?
            .ok_or_else(nothing)
    }

    /// Asks the agent for a summary in a fork of the session that is not kept.
    async fn request_summary(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        lock: &LockFile,
        fork: &SessionStart,
        outcomes: &mut RunAttemptOutcomes,
    ) -> Option<String> {
        let (spec, brief) = (limit_to_one_turn(self.spec), summary_brief(&self.host.brief));
        let runtime = match self.build_runtime(&spec, &brief, &InjectedMcpServers::none(), run) {
            Ok(runtime) => runtime,
            Err(reason) => {
                outcomes.record_failure(ErrorClass::NotStarted, &reason);
                return None;
            }
        };
        // The runtime of the job is built again, with the remaining budget.
        run.runtime = runtime;
        run.side_reply = Some(SideReply::default());
        let ending = self.run_summary_agent(run, tree, lock, fork).await;
        outcomes.record_attempt(run, ending);
        let SideReply { text: summary } = run.side_reply.take().unwrap_or_default();
        if outcomes.error_class().is_some() || run.ending.is_some() || !run.journal.is_flushed() {
            return None;
        }
        if summary.trim().is_empty() {
            let message = "the agent was asked for a summary of the session and gave none";
            outcomes.record_failure(ErrorClass::AgentFailed, message);
            return None;
        }
        let mut rows = run.recorder.record_note("summary", &summary, (run.now)());
        for row in &mut rows.session {
            // If this process dies before the result, settling takes the cost from this row.
            row[SPENT_KEY] = json!(outcomes.cost());
        }
        run.journal.push(rows);
        Some(summary)
    }

    async fn run_summary_agent(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        lock: &LockFile,
        fork: &SessionStart,
    ) -> AgentProcessExit {
        let SessionStart::Fork { source, .. } = fork else {
            return AgentProcessExit::Internal {
                reason: "a summary is asked of a fork".to_owned(),
            };
        };
        // The agent's totals in the fork begin with those of its source.
        run.tally = match session::last_result(self.spec, source) {
            Some(result) => {
                RunOutcomeBuilder::for_runtime(self.spec.runtime).with_previous_result(&result)
            }
            None => RunOutcomeBuilder::for_runtime(self.spec.runtime),
        };
        let mut launch = run.runtime.launch_spec(fork);
        // The fork must not leave a native session behind.
        launch.args.extend(text_args(&["--no-session-persistence"]));
        if self.spec.runtime != RuntimeType::Scripted {
            // Servers of the user and the project are excluded too.
            launch.args.extend(text_args(&["--strict-mcp-config"]));
        } else {
            launch.args.extend(text_args(&["--tools", ""]));
        }
        self.run_agent(run, tree, lock, &launch, Uuid::new_v4()).await
    }

    /// Builds the runtime for the summary or for the prompt.
    fn build_runtime(
        &self,
        spec: &RunSpec,
        brief: &AgentLaunchSpec,
        injected: &InjectedMcpServers,
        run: &ActiveRun,
    ) -> Result<Box<dyn AgentRuntime>, String> {
        let host = self.host.with_brief(brief.clone());
        let endpoint = run.endpoint.as_ref();
        let api_base = run.api_base;
        let context = RuntimeContext { spec, host: &host, injected, endpoint, api_base };
        (self.dependencies.runtime)(&context)
    }

    /// Returns the run's spec with the budget that the summary left; `None` if nothing is left.
    fn spec_with_remaining_budget(&self, outcomes: &mut RunAttemptOutcomes) -> Option<RunSpec> {
        let mut spec = self.spec.clone();
        if let Some(budget) = &mut spec.limits.budget_usd {
            // An agent that reports no cost cannot be charged for the summary.
            *budget -= outcomes.cost().and_then(|cost| cost.usd).unwrap_or(0.0);
            if *budget <= 0.0 {
                let message = "the summary of the session used the whole budget";
                outcomes.record_failure(ErrorClass::Budget, message);
                return None;
            }
        }
        Some(spec)
    }

    /// Returns the entries of the new session: the summary, a reply to it, and the last messages.
    fn build_carried_rows(
        &self,
        id: &AgentSessionId,
        summary: &str,
        carried: Vec<Json>,
        now: jiff::Timestamp,
    ) -> Vec<Json> {
        // The summary comes before the carried messages, so it must not be younger than they are.
        let at = carried.first().map(|row| row["timestamp"].clone());
        let at = at.filter(Json::is_string).unwrap_or_else(|| iso_millis(now).into());
        let version = carried.last().map(|row| row["version"].clone()).unwrap_or_default();
        let made = |kind: &str, message: Json| {
            json!({"type": kind, "message": message, "uuid": Uuid::new_v4(), "timestamp": at,
                "isSidechain": false, "userType": "external", "cwd": self.spec.working_directory,
                "version": version})
        };
        let content = format!("{SUMMARY_HEADING}\n\n{summary}");
        let answer = json!([{"type": "text", "text": SUMMARY_REPLY}]);
        let mut rows = vec![
            made("user", json!({"role": "user", "content": content})),
            // Claude uses this model name for messages that no model wrote.
            made(
                "assistant",
                json!({"role": "assistant", "type": "message", "model": "<synthetic>",
                    "id": Uuid::new_v4(), "stop_reason": "end_turn", "content": answer}),
            ),
        ];
        rows.extend(carried.into_iter().map(carried_row));
        // The old parents are not in this file, so the entries form a new chain.
        let mut parent = Json::Null;
        for row in &mut rows {
            row["parentUuid"] = std::mem::replace(&mut parent, row["uuid"].clone());
            row["sessionId"] = json!(id);
        }
        rows
    }

    /// Writes the native session of the new session: complete when this returns.
    fn write_native_session(&self, run: &ActiveRun, rows: &[Json]) -> Result<(), String> {
        let folder = self.native_sessions_folder().ok_or("the agent keeps no sessions")?;
        let path: Utf8PathBuf =
            native_session::session_path(&folder, &self.spec.working_directory, &run.session);
        let mut lines = Vec::new();
        for row in rows {
            serde_json::to_writer(&mut lines, row).map_err(|error| error.to_string())?;
            lines.push(b'\n');
        }
        let project: &Utf8Path = path.parent().expect("a session's path has its project's folder");
        create_folder(&OsDisk, project).map_err(|error| error_chain(&error))?;
        replace_file(&OsDisk, &path, &lines).map_err(|error| error_chain(&error))
    }

    /// Records the initial content of the new session in its transcript, and returns it without
    /// secrets. It is not part of the job.
    fn record_carried_rows(&self, run: &mut ActiveRun, mut rows: Vec<Json>) -> Vec<Json> {
        rows.iter_mut().for_each(|row| run.redactor.redact_json(row));
        let mut session = rows.clone();
        for row in &mut session {
            row[CARRIED_OVER_KEY] = true.into();
            run.recorder.replay_row(row);
        }
        run.journal.push(RecordedRows { session, ..RecordedRows::default() });
        let ActiveRun { journal, control, .. } = run;
        // The rows stay queued, and the end of the run tries to write them again.
        if let Err(reason) = journal.flush(&mut |at, row| control.publish_row(at, row)) {
            tracing::debug!(reason, "rows wait for the disk");
        }
        fault::point(RunnerFaultPoint::MessagesCarriedOver);
        rows
    }
}

/// Returns an entry in its form for the new session. Token counts of the original request do not
/// describe the new context.
fn carried_row(row: Json) -> Json {
    let Json::Object(row) = row else { return row };
    let is_kept = |key: &String| ENTRY_KEYS.contains(&key.as_str());
    let mut row: Map<String, Json> = row.into_iter().filter(|(key, _)| is_kept(key)).collect();
    if let Some(Json::Object(message)) = row.get_mut("message") {
        message.shift_remove("usage");
    }
    Json::Object(row)
}

/// Limits the spec to one turn: one reply is enough for a summary.
fn limit_to_one_turn(spec: &RunSpec) -> RunSpec {
    let mut spec = spec.clone();
    spec.limits.max_turns = Some(1);
    spec
}

/// Returns the brief for summarizing a session: no tools.
fn summary_brief(brief: &AgentLaunchSpec) -> AgentLaunchSpec {
    let mut brief =
        AgentLaunchSpec { prompt: SUMMARY_PROMPT.to_owned(), send_files_to: None, ..brief.clone() };
    if let RuntimeLaunchSpec::Claude(claude) = &mut brief.work {
        claude.tools = Some(Vec::new());
        claude.allowed_tools = None;
        claude.denied_tools.clear();
        claude.mcp_servers.clear();
        claude.plugins.clear();
    }
    brief
}
