//! Content of each view, with the names and order of the documentation.

use camino::Utf8PathBuf;
use heeler_model::{
    AgentSessionId, AgentState, ExitReason, Job, JobId, ScheduleState, Session, SessionId,
    SessionMode, iso_millis,
};
use serde_json::{Value, json};

use super::PublishedView;
use super::view_node::{ViewFormat, ViewNode};
use crate::db::{DatabaseError, StateDatabase, agents, meta};

/// The up-to-date content of a view.
#[derive(Debug)]
pub(crate) struct RenderedView {
    pub(crate) node: ViewNode,
    /// Subject of the file, if deleting the file is meaningful.
    pub(crate) subject: Option<String>,
    /// The transcript to which a session's `.context` links.
    pub(crate) context: Option<Utf8PathBuf>,
}

/// Returns the text of a view as it would be published into an empty directory; `None` if there
/// is no file.
pub fn render_view(
    db: &StateDatabase,
    view: &PublishedView,
) -> Result<Option<String>, DatabaseError> {
    let Some(rendered) = render(db, view)? else { return Ok(None) };
    let path = view.path();
    let Some(value) = rendered.node.merge_over(None) else { return Ok(None) };
    let bad = |reason| DatabaseError::BadRow { table: "views", row: path.clone(), reason };
    ViewFormat::from_path(&path).write(&value).map(Some).map_err(bad)
}

pub(crate) fn render(
    db: &StateDatabase,
    view: &PublishedView,
) -> Result<Option<RenderedView>, DatabaseError> {
    let plain = |node| RenderedView { node, subject: None, context: None };
    match view {
        PublishedView::State => Ok(Some(plain(state(db)?))),
        PublishedView::Job(id) => Ok(db.job(id)?.map(|job| plain(job_node(&job)))),
        PublishedView::AgentSession(agent) => {
            let session = db.agent_session(agent.as_str())?;
            // A session without a native id has nothing that herdctl's file could name.
            Ok(session.and_then(|session| agent_session(&session)))
        }
        PublishedView::Session(id) => {
            let Some(session) = db.session(id)? else { return Ok(None) };
            let jobs = match &session.agent_session_id {
                Some(id) => db.job_ids_of_session(id)?,
                None => Vec::new(),
            };
            let context = session.log_path.clone();
            Ok(Some(RenderedView { node: session_node(&session, &jobs), subject: None, context }))
        }
    }
}

fn map<const N: usize>(entries: [(&str, ViewNode); N]) -> Vec<(String, ViewNode)> {
    entries.into_iter().map(|(key, node)| (key.to_owned(), node)).collect()
}

fn leaf(value: impl Into<Value>) -> ViewNode {
    ViewNode::Leaf(value.into())
}

fn state(db: &StateDatabase) -> Result<ViewNode, DatabaseError> {
    let removed_schedules = agents::removed_schedules(&db.conn)?;
    let mut nodes: Vec<(String, ViewNode)> = Vec::new();
    for (name, agent) in db.agents()? {
        let removed = removed_schedules.iter().filter(|(owner, _)| *owner == name);
        let node = agent_node(&agent, removed.map(|(_, schedule)| schedule.as_str()));
        nodes.push((name, node));
    }
    // Listed as absent, so that their keys are removed from the file and not kept as unknown.
    for name in agents::removed_agents(&db.conn)? {
        nodes.push((name, ViewNode::Absent));
    }
    let started_at = ViewNode::optional(db.meta(meta::STARTED_AT)?);
    Ok(ViewNode::Map(map([
        ("fleet", ViewNode::Map(map([("started_at", started_at)]))),
        ("agents", ViewNode::Map(nodes)),
    ])))
}

fn agent_node<'s>(agent: &AgentState, removed: impl Iterator<Item = &'s str>) -> ViewNode {
    let mut schedules: Vec<(String, ViewNode)> = agent
        .schedules
        .iter()
        .map(|(name, schedule)| (name.clone(), schedule_node(schedule)))
        .collect();
    schedules.extend(removed.map(|name| (name.to_owned(), ViewNode::Absent)));
    ViewNode::Map(map([
        ("status", leaf(agent.status.as_str())),
        ("current_job", ViewNode::nullable(agent.current_job.as_ref().map(JobId::as_str))),
        ("last_job", ViewNode::nullable(agent.last_job.as_ref().map(JobId::as_str))),
        ("next_schedule", ViewNode::nullable(agent.next_schedule.as_deref())),
        ("next_trigger_at", ViewNode::nullable(agent.next_trigger_at.map(iso_millis))),
        ("container_id", ViewNode::nullable(agent.container_id.as_deref())),
        ("error_message", ViewNode::nullable(agent.error_message.as_deref())),
        ("schedules", ViewNode::MapUnlessEmpty(schedules)),
    ]))
}

fn schedule_node(schedule: &ScheduleState) -> ViewNode {
    ViewNode::Map(map([
        ("status", leaf(schedule.status.as_str())),
        ("last_run_at", ViewNode::nullable(schedule.last_run_at.map(iso_millis))),
        ("next_run_at", ViewNode::nullable(schedule.next_run_at.map(iso_millis))),
        ("last_error", ViewNode::nullable(schedule.last_error.as_deref())),
    ]))
}

fn job_node(job: &Job) -> ViewNode {
    let head = &job.head;
    // herdctl writes whole seconds.
    let seconds = head.duration_ms.map(|ms| ms.saturating_add(500).div_euclid(1000));
    // An execution of Last Light has no transcript of its own: its rows are in its session's
    // transcript.
    let has_log = !job.origin.as_deref().is_some_and(|origin| origin.starts_with("lastlight:"));
    let output_file = has_log.then(|| format!("{}.jsonl", head.id));
    ViewNode::Map(map([
        ("id", leaf(head.id.as_str())),
        ("agent", leaf(head.agent.as_str())),
        ("schedule", ViewNode::nullable(head.schedule.as_deref())),
        ("trigger_type", leaf(head.trigger_type.as_str())),
        ("status", leaf(head.status.as_str())),
        ("exit_reason", ViewNode::nullable(head.exit_reason.map(ExitReason::as_str))),
        ("stop_reason", ViewNode::optional(job.stop_reason.as_deref())),
        ("session_id", ViewNode::nullable(head.session_id.as_ref().map(AgentSessionId::as_str))),
        ("forked_from", ViewNode::nullable(job.forked_from.as_ref().map(JobId::as_str))),
        ("started_at", leaf(iso_millis(head.started_at))),
        ("finished_at", ViewNode::nullable(head.finished_at.map(iso_millis))),
        ("duration_seconds", ViewNode::nullable(seconds)),
        ("prompt", ViewNode::nullable(job.prompt.as_deref())),
        ("summary", ViewNode::nullable(head.summary.as_deref())),
        ("output_file", ViewNode::nullable(output_file)),
        ("usage", usage(job)),
        ("error", ViewNode::optional(job.error.as_deref())),
        ("interrupted", ViewNode::optional(job.interrupted.then_some(true))),
        ("restart_count", ViewNode::optional(Some(job.restart_count).filter(|count| *count > 0))),
    ]))
}

/// Renders herdctl's `usage`: by model, then the totals it supports.
fn usage(job: &Job) -> ViewNode {
    let per_model = &job.usage.per_model;
    ViewNode::MapUnlessEmpty(map([
        ("per_model", ViewNode::optional((!per_model.is_empty()).then(|| json!(per_model)))),
        ("num_turns", ViewNode::optional(job.usage.num_turns)),
        ("total_cost_usd", ViewNode::optional(job.head.cost_usd)),
    ]))
}

fn agent_session(session: &Session) -> Option<RenderedView> {
    let agent_session_id = session.agent_session_id.as_ref()?;
    let directory = session.working_directory.as_ref().map(|path| path.as_str());
    let node = ViewNode::Map(map([
        ("agent_name", leaf(session.agent.as_str())),
        ("session_id", leaf(agent_session_id.as_str())),
        ("created_at", leaf(iso_millis(session.created_at))),
        ("last_used_at", leaf(iso_millis(session.last_active_at))),
        ("job_count", leaf(session.job_count)),
        ("mode", leaf(session.approvals.as_str())),
        ("working_directory", ViewNode::optional(directory)),
        ("runtime_type", leaf(session.runtime.as_str())),
        ("docker_enabled", leaf(session.docker_enabled)),
    ]));
    Some(RenderedView { node, subject: Some(session.id.to_string()), context: None })
}

fn session_node(session: &Session, jobs: &[JobId]) -> ViewNode {
    // Only sessions of a channel have this key in herdctl's format.
    let channel = session.channel_id.as_deref().filter(|_| session.mode == SessionMode::PerChannel);
    let agent_session_id = session.agent_session_id.as_ref().map(AgentSessionId::as_str);
    ViewNode::Map(map([
        ("id", leaf(session.id.as_str())),
        ("agentId", leaf(session.agent.as_str())),
        ("mode", leaf(session.mode.as_str())),
        ("channelId", ViewNode::optional(channel)),
        ("status", leaf(session.status.as_str())),
        ("createdAt", leaf(iso_millis(session.created_at))),
        ("lastActiveAt", leaf(iso_millis(session.last_active_at))),
        ("messageCount", leaf(session.message_count)),
        ("tokenEstimate", leaf(session.token_estimate)),
        ("jobs", leaf(json!(jobs))),
        ("agentSessionId", ViewNode::optional(agent_session_id)),
        ("parent", ViewNode::optional(session.parent.as_ref().map(SessionId::as_str))),
        ("forkedAtMessage", ViewNode::optional(session.forked_at_message)),
    ]))
}
