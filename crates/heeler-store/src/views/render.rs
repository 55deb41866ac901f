//! What each view shows, in the order and with the names that the documents give.

use camino::Utf8PathBuf;
use heeler_model::{
    AgentSessionId, AgentState, ExitReason, Job, JobId, ScheduleState, Session, SessionId,
    SessionMode, iso_millis,
};
use serde_json::{Value, json};

use super::View;
use super::node::{Format, Node};
use crate::db::{Db, DbError, agents, meta};

/// A view as it should be.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) node: Node,
    /// What the file is about, where a deleted file means something.
    pub(crate) subject: Option<String>,
    /// The event log that a session's `.context` links to.
    pub(crate) context: Option<Utf8PathBuf>,
}

/// Returns a view's text as it would be published into an empty directory; `None`: no file.
pub fn render_view(db: &Db, view: &View) -> Result<Option<String>, DbError> {
    let Some(rendered) = render(db, view)? else { return Ok(None) };
    let path = view.path();
    let Some(value) = rendered.node.over(None) else { return Ok(None) };
    let bad = |reason| DbError::BadRow { table: "views", row: path.clone(), reason };
    Format::of(&path).write(&value).map(Some).map_err(bad)
}

pub(crate) fn render(db: &Db, view: &View) -> Result<Option<Rendered>, DbError> {
    let plain = |node| Rendered { node, subject: None, context: None };
    match view {
        View::State => Ok(Some(plain(state(db)?))),
        View::Job(id) => Ok(db.job(id)?.map(|job| plain(job_node(&job)))),
        View::AgentSession(agent) => {
            let session = db.agent_session(agent.as_str())?;
            Ok(session.and_then(|session| agent_session(&session)))
        }
        View::Session(id) => {
            let Some(session) = db.session(id)? else { return Ok(None) };
            let jobs = match &session.agent_session_id {
                Some(id) => db.job_ids_of_session(id)?,
                None => Vec::new(),
            };
            let context = session.log_path.clone();
            Ok(Some(Rendered { node: session_node(&session, &jobs), subject: None, context }))
        }
    }
}

fn map<const N: usize>(entries: [(&str, Node); N]) -> Vec<(String, Node)> {
    entries.into_iter().map(|(key, node)| (key.to_owned(), node)).collect()
}

fn leaf(value: impl Into<Value>) -> Node {
    Node::Leaf(value.into())
}

fn state(db: &Db) -> Result<Node, DbError> {
    let removed_schedules = agents::removed_schedules(&db.conn)?;
    let mut nodes: Vec<(String, Node)> = Vec::new();
    for (name, agent) in db.agents()? {
        let removed = removed_schedules.iter().filter(|(owner, _)| *owner == name);
        let node = agent_node(&agent, removed.map(|(_, schedule)| schedule.as_str()));
        nodes.push((name, node));
    }
    for name in agents::removed_agents(&db.conn)? {
        nodes.push((name, Node::Absent));
    }
    let started_at = Node::optional(db.meta(meta::STARTED_AT)?);
    Ok(Node::Map(map([
        ("fleet", Node::Map(map([("started_at", started_at)]))),
        ("agents", Node::Map(nodes)),
    ])))
}

fn agent_node<'s>(agent: &AgentState, removed: impl Iterator<Item = &'s str>) -> Node {
    let mut schedules: Vec<(String, Node)> = agent
        .schedules
        .iter()
        .map(|(name, schedule)| (name.clone(), schedule_node(schedule)))
        .collect();
    schedules.extend(removed.map(|name| (name.to_owned(), Node::Absent)));
    Node::Map(map([
        ("status", leaf(agent.status.as_str())),
        ("current_job", Node::nullable(agent.current_job.as_ref().map(JobId::as_str))),
        ("last_job", Node::nullable(agent.last_job.as_ref().map(JobId::as_str))),
        ("next_schedule", Node::nullable(agent.next_schedule.as_deref())),
        ("next_trigger_at", Node::nullable(agent.next_trigger_at.map(iso_millis))),
        ("container_id", Node::nullable(agent.container_id.as_deref())),
        ("error_message", Node::nullable(agent.error_message.as_deref())),
        ("schedules", Node::MapUnlessEmpty(schedules)),
    ]))
}

fn schedule_node(schedule: &ScheduleState) -> Node {
    Node::Map(map([
        ("status", leaf(schedule.status.as_str())),
        ("last_run_at", Node::nullable(schedule.last_run_at.map(iso_millis))),
        ("next_run_at", Node::nullable(schedule.next_run_at.map(iso_millis))),
        ("last_error", Node::nullable(schedule.last_error.as_deref())),
    ]))
}

fn job_node(job: &Job) -> Node {
    let head = &job.head;
    let seconds = head.duration_ms.map(|ms| ms.saturating_add(500).div_euclid(1000));
    // What Last Light ran has no transcript of its own: it is in its session's log.
    let has_log = !job.origin.as_deref().is_some_and(|origin| origin.starts_with("lastlight:"));
    let output_file = has_log.then(|| format!("{}.jsonl", head.id));
    Node::Map(map([
        ("id", leaf(head.id.as_str())),
        ("agent", leaf(head.agent.as_str())),
        ("schedule", Node::nullable(head.schedule.as_deref())),
        ("trigger_type", leaf(head.trigger_type.as_str())),
        ("status", leaf(head.status.as_str())),
        ("exit_reason", Node::nullable(head.exit_reason.map(ExitReason::as_str))),
        ("session_id", Node::nullable(head.session_id.as_ref().map(AgentSessionId::as_str))),
        ("forked_from", Node::nullable(job.forked_from.as_ref().map(JobId::as_str))),
        ("started_at", leaf(iso_millis(head.started_at))),
        ("finished_at", Node::nullable(head.finished_at.map(iso_millis))),
        ("duration_seconds", Node::nullable(seconds)),
        ("prompt", Node::nullable(job.prompt.as_deref())),
        ("summary", Node::nullable(head.summary.as_deref())),
        ("output_file", Node::nullable(output_file)),
        ("usage", usage(job)),
        ("error", Node::optional(job.error.as_deref())),
        ("interrupted", Node::optional(job.interrupted.then_some(true))),
        ("restart_count", Node::optional(Some(job.restart_count).filter(|count| *count > 0))),
    ]))
}

/// herdctl's `usage`: by model, then the totals it knows.
fn usage(job: &Job) -> Node {
    let per_model = &job.usage.per_model;
    Node::MapUnlessEmpty(map([
        ("per_model", Node::optional((!per_model.is_empty()).then(|| json!(per_model)))),
        ("num_turns", Node::optional(job.usage.num_turns)),
        ("total_cost_usd", Node::optional(job.head.cost_usd)),
    ]))
}

fn agent_session(session: &Session) -> Option<Rendered> {
    let agent_session_id = session.agent_session_id.as_ref()?;
    let directory = session.working_directory.as_ref().map(|path| path.as_str());
    let node = Node::Map(map([
        ("agent_name", leaf(session.agent.as_str())),
        ("session_id", leaf(agent_session_id.as_str())),
        ("created_at", leaf(iso_millis(session.created_at))),
        ("last_used_at", leaf(iso_millis(session.last_active_at))),
        ("job_count", leaf(session.job_count)),
        ("mode", leaf(session.approvals.as_str())),
        ("working_directory", Node::optional(directory)),
        ("runtime_type", leaf(session.runtime.as_str())),
        ("docker_enabled", leaf(session.docker_enabled)),
    ]));
    Some(Rendered { node, subject: Some(session.id.to_string()), context: None })
}

fn session_node(session: &Session, jobs: &[JobId]) -> Node {
    let channel = session.channel_id.as_deref().filter(|_| session.mode == SessionMode::PerChannel);
    let agent_session_id = session.agent_session_id.as_ref().map(AgentSessionId::as_str);
    Node::Map(map([
        ("id", leaf(session.id.as_str())),
        ("agentId", leaf(session.agent.as_str())),
        ("mode", leaf(session.mode.as_str())),
        ("channelId", Node::optional(channel)),
        ("status", leaf(session.status.as_str())),
        ("createdAt", leaf(iso_millis(session.created_at))),
        ("lastActiveAt", leaf(iso_millis(session.last_active_at))),
        ("messageCount", leaf(session.message_count)),
        ("tokenEstimate", leaf(session.token_estimate)),
        ("jobs", leaf(json!(jobs))),
        ("agentSessionId", Node::optional(agent_session_id)),
        ("parent", Node::optional(session.parent.as_ref().map(SessionId::as_str))),
        ("forkedAtMessage", Node::optional(session.forked_at_message)),
    ]))
}
