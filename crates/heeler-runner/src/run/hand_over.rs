//! A session whose context has grown too large is handed over to a new one.
//!
//! The agent is asked for a summary, beside the conversation and without leaving a trace in it. Its own
//! record of the new session is then written by hand, whole or not at all: the summary and the last
//! messages. The old session is only read. Whatever fails or is cut off here, the next run begins
//! again from the old session: the new one counts from the first word that the agent says in it.
//! Start at [`Order::hand_over`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::RuntimeType;
use heeler_model::outcome::{Ending, Tally};
use heeler_model::record::{CARRIED_KEY, Rows, SPENT_KEY};
use heeler_model::run::{Brief, ErrorClass, RunSpec, SessionStart, Work};
use heeler_model::{AgentSessionId, chain, iso_millis};
use heeler_transcript::{LockFile, OsDisk, create_folder, replace_file};
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::Order;
use super::result::Judged;
use crate::claude::texts;
use crate::fault::{self, Point};
use crate::mcp::Injected;
use crate::own::{self, Kept};
use crate::process::Tree;
use crate::pump::{Aside, Run};
use crate::runtime::{Runtime, Surroundings};
use crate::session;

/// What the agent is asked.
const PROMPT: &str = "\
The context of this conversation has grown too large. It goes on in a new conversation that begins \
with your summary of this one and its last messages; everything else is forgotten there. Write that \
summary now, complete enough to go on from without asking: what was asked for and why, what was \
decided and found out, which files, names, commands, numbers and quotes matter, what is done, what is \
left to do, and what must not be forgotten. Do not use tools, do not go on with the work, and answer \
with nothing but the summary.";

/// What stands before the summary in the new conversation.
const HEAD: &str = "\
[Summary] This conversation goes on from an earlier one whose context had grown too large. This is \
the summary of it that you wrote yourself; its last messages follow as they were said.";

/// What the agent answers to it there.
const ANSWER: &str = "I have read the summary of the earlier conversation, and go on from it.";

/// What an entry of the agent's own record keeps when it is carried over. The rest names what only the
/// old record has.
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

impl Order<'_> {
    /// Makes the new session out of the old one's end; `None` if that failed, as `judged` then says.
    pub(super) async fn hand_over(
        &self,
        run: &mut Run,
        tree: &Tree,
        lock: &LockFile,
        (source, keep): (&AgentSessionId, u32),
        judged: &mut Judged,
    ) -> Option<()> {
        let kept = self.last_of(source, keep).map_err(|reason| {
            judged.fail(ErrorClass::NotStarted, &reason);
        });
        let kept = kept.ok()?;
        let fork = SessionStart::Fork {
            source: source.clone(),
            id: Uuid::new_v4().to_string().parse().expect("a UUID can be a session's id"),
            at: Some(kept.last),
        };
        let summary = self.summary(run, tree, lock, &fork, judged).await?;
        fault::point(Point::SummedUp);
        let left = self.with_budget_left(judged)?;
        let rows = self.carry_over(&run.session, &summary, kept.rows, (run.now)());
        // Ours first: by it, whoever settles a run that is cut off here knows what is only ours in theirs.
        let rows = self.record(run, rows);
        let made = self.write_own(run, &rows).and_then(|()| {
            fault::point(Point::OwnWritten);
            self.runtime(&left, &self.host.brief, &run.injected, run)
        });
        match made {
            Ok(runtime) => run.runtime = runtime,
            Err(reason) => {
                judged.fail(ErrorClass::NotStarted, &reason);
                return None;
            }
        }
        // The agent counts anew in the new session.
        run.tally = Tally::of(self.spec.runtime);
        Some(())
    }

    fn last_of(&self, source: &AgentSessionId, keep: u32) -> Result<Kept, String> {
        let own = self.own_sessions().and_then(|folder| self.find_own(&folder, source));
        let nothing = || {
            format!(
                "the agent has no record of session {source}, so that nothing can go on from it; \
                 start anew with `--fresh`"
            )
        };
        let own = own.ok_or_else(nothing)?;
        own::last(&own, keep).map_err(|error| chain(&error))?.ok_or_else(nothing)
    }

    /// Asks the agent for a summary in a fork of the session that nobody keeps.
    async fn summary(
        &self,
        run: &mut Run,
        tree: &Tree,
        lock: &LockFile,
        fork: &SessionStart,
        judged: &mut Judged,
    ) -> Option<String> {
        let (spec, brief) = (limited(self.spec), asking(&self.host.brief));
        let runtime = match self.runtime(&spec, &brief, &Injected::none(), run) {
            Ok(runtime) => runtime,
            Err(reason) => {
                judged.fail(ErrorClass::NotStarted, &reason);
                return None;
            }
        };
        // The one for the job is made anew, with what is left of the budget.
        run.runtime = runtime;
        run.aside = Some(Aside::default());
        let ending = self.ask(run, tree, lock, fork).await;
        judged.add(run, ending);
        let Aside { said } = run.aside.take().unwrap_or_default();
        if judged.class().is_some() || run.ending.is_some() || !run.journal.is_clear() {
            return None;
        }
        if said.trim().is_empty() {
            let message = "the agent was asked for a summary of the session and gave none";
            judged.fail(ErrorClass::AgentFailed, message);
            return None;
        }
        let mut rows = run.recorder.note("summary", &said, (run.now)());
        for row in &mut rows.session {
            row[SPENT_KEY] = json!(judged.cost());
        }
        run.journal.push(rows);
        Some(said)
    }

    async fn ask(
        &self,
        run: &mut Run,
        tree: &Tree,
        lock: &LockFile,
        fork: &SessionStart,
    ) -> Ending {
        let SessionStart::Fork { source, .. } = fork else {
            return Ending::Internal { reason: "a summary is asked of a fork".to_owned() };
        };
        run.tally = match session::last_result(self.spec, source) {
            Some(result) => Tally::of(self.spec.runtime).after(&result),
            None => Tally::of(self.spec.runtime),
        };
        let mut launch = run.runtime.launch(fork);
        launch.args.extend(texts(&["--no-session-persistence"]));
        if self.spec.runtime != RuntimeType::Scripted {
            // Nor are there servers of the user's or the project's.
            launch.args.extend(texts(&["--strict-mcp-config"]));
        } else {
            launch.args.extend(texts(&["--tools", ""]));
        }
        self.perform(run, tree, lock, &launch, Uuid::new_v4()).await
    }

    /// Makes the runtime for one of the two things that the agent is asked.
    fn runtime(
        &self,
        spec: &RunSpec,
        brief: &Brief,
        injected: &Injected,
        run: &Run,
    ) -> Result<Box<dyn Runtime>, String> {
        let host = self.host.with_brief(brief.clone());
        let endpoint = run.endpoint.as_ref();
        let surroundings = Surroundings { spec, host: &host, injected, endpoint };
        (self.means.runtime)(&surroundings)
    }

    /// Returns the run's spec with what the summary left of its budget; `None` if that is nothing.
    fn with_budget_left(&self, judged: &mut Judged) -> Option<RunSpec> {
        let mut spec = self.spec.clone();
        if let Some(budget) = &mut spec.limits.budget_usd {
            *budget -= judged.cost().and_then(|cost| cost.usd).unwrap_or(0.0);
            if *budget <= 0.0 {
                let message = "the summary of the session took all of the budget";
                judged.fail(ErrorClass::Budget, message);
                return None;
            }
        }
        Some(spec)
    }

    /// Returns the entries of the new session: the summary, an answer to it, and the last messages.
    fn carry_over(
        &self,
        id: &AgentSessionId,
        summary: &str,
        kept: Vec<Json>,
        now: jiff::Timestamp,
    ) -> Vec<Json> {
        let at = kept.first().map(|row| row["timestamp"].clone());
        let at = at.filter(Json::is_string).unwrap_or_else(|| iso_millis(now).into());
        let version = kept.last().map(|row| row["version"].clone()).unwrap_or_default();
        let made = |kind: &str, message: Json| {
            json!({"type": kind, "message": message, "uuid": Uuid::new_v4(), "timestamp": at,
                "isSidechain": false, "userType": "external", "cwd": self.spec.working_directory,
                "version": version})
        };
        let content = format!("{HEAD}\n\n{summary}");
        let answer = json!([{"type": "text", "text": ANSWER}]);
        let mut rows = vec![
            made("user", json!({"role": "user", "content": content})),
            made(
                "assistant",
                json!({"role": "assistant", "type": "message", "model": "<synthetic>",
                    "id": Uuid::new_v4(), "stop_reason": "end_turn", "content": answer}),
            ),
        ];
        rows.extend(kept.into_iter().map(carried));
        let mut parent = Json::Null;
        for row in &mut rows {
            row["parentUuid"] = std::mem::replace(&mut parent, row["uuid"].clone());
            row["sessionId"] = json!(id);
        }
        rows
    }

    /// Writes the agent's own record of the new session: after this it is there and whole.
    fn write_own(&self, run: &Run, rows: &[Json]) -> Result<(), String> {
        let folder = self.own_sessions().ok_or("the agent keeps no sessions")?;
        let path: Utf8PathBuf = own::path(&folder, &self.spec.working_directory, &run.session);
        let mut lines = Vec::new();
        for row in rows {
            serde_json::to_writer(&mut lines, row).map_err(|error| error.to_string())?;
            lines.push(b'\n');
        }
        let project: &Utf8Path = path.parent().expect("a session's path has its project's folder");
        create_folder(&OsDisk, project).map_err(|error| chain(&error))?;
        replace_file(&OsDisk, &path, &lines).map_err(|error| chain(&error))
    }

    /// Records what the new session begins with in our log of it, and returns it without secrets. It is
    /// no part of the job.
    fn record(&self, run: &mut Run, mut rows: Vec<Json>) -> Vec<Json> {
        rows.iter_mut().for_each(|row| run.redactor.json(row));
        let mut session = rows.clone();
        for row in &mut session {
            row[CARRIED_KEY] = true.into();
            run.recorder.replay(row);
        }
        run.journal.push(Rows { session, ..Rows::default() });
        let Run { journal, control, .. } = run;
        if let Err(reason) = journal.flush(&mut |at, row| control.tell_row(at, row)) {
            tracing::debug!(reason, "rows wait for the disk");
        }
        fault::point(Point::CarriedOver);
        rows
    }
}

/// Returns an entry as the new session has it. What the API counted when it was said is not what the
/// new context holds.
fn carried(row: Json) -> Json {
    let Json::Object(row) = row else { return row };
    let is_kept = |key: &String| ENTRY_KEYS.contains(&key.as_str());
    let mut row: Map<String, Json> = row.into_iter().filter(|(key, _)| is_kept(key)).collect();
    if let Some(Json::Object(message)) = row.get_mut("message") {
        message.shift_remove("usage");
    }
    Json::Object(row)
}

/// One reply is enough for a summary.
fn limited(spec: &RunSpec) -> RunSpec {
    let mut spec = spec.clone();
    spec.limits.max_turns = Some(1);
    spec
}

/// Returns what the agent is given to sum a session up: no tools.
fn asking(brief: &Brief) -> Brief {
    let mut brief = Brief { prompt: PROMPT.to_owned(), send_files_to: None, ..brief.clone() };
    if let Work::Claude(claude) = &mut brief.work {
        claude.tools = Some(Vec::new());
        claude.allowed_tools = None;
        claude.denied_tools.clear();
        claude.mcp_servers.clear();
        claude.plugins.clear();
    }
    brief
}
