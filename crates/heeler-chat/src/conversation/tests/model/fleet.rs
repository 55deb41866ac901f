//! Fleet of the model: its jobs, with their rows, questions and state.

use super::*;

/// Number of the worker's job.
pub(super) const WORKER_JOB: usize = 50;

#[derive(Debug, Clone, Copy)]
pub(super) enum ModelRow {
    Reply,
    GoalReached,
    TaskDone,
    ToolCall,
    TasksAdded,
    RunFailed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ModelJobKind {
    Agent,
    Worker,
    Insights,
}

/// Job as the fleet knows it.
#[derive(Debug)]
pub(super) struct ModelJob {
    pub(super) kind: ModelJobKind,
    pub(super) rows: Vec<Json>,
    pub(super) state: ChatJobState,
    pub(super) questions: Vec<String>,
    /// Next row to send; `None` if the conversation does not follow the job.
    pub(super) cursor: Option<usize>,
    /// State and questions that were sent.
    pub(super) sent_state: Option<ChatJobState>,
    pub(super) sent_questions: HashSet<String>,
}

impl ModelJob {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, ChatJobState::Done | ChatJobState::Failed)
    }
}

pub(super) fn new_job(kind: ModelJobKind) -> ModelJob {
    ModelJob {
        kind,
        rows: Vec::new(),
        state: ChatJobState::Waiting,
        questions: Vec::new(),
        cursor: None,
        sent_state: None,
        sent_questions: HashSet::new(),
    }
}

pub(super) fn end_job(job: &mut ModelJob, state: ChatJobState) {
    if !job.has_ended() {
        job.state = state;
        job.questions.clear();
    }
}

pub(super) fn job_number(id: &str) -> usize {
    id[id.len() - 2..].parse().unwrap()
}

pub(super) fn prompt_row(text: &str) -> Json {
    json!({"type": "system", "subtype": "user_input", "content": text})
}

pub(super) fn row_json(row: ModelRow, number: usize) -> Json {
    let reply = |text: &str| {
        let uuid = Uuid::from_u128(number as u128 + 1);
        json!({"type": "assistant", "content": text, "uuid": uuid})
    };
    match row {
        ModelRow::Reply => reply("Hi."),
        ModelRow::GoalReached => reply("GOAL REACHED"),
        ModelRow::TaskDone => reply("TASK DONE"),
        ModelRow::ToolCall => {
            json!({"type": "tool_use", "tool_name": "view", "input": {}, "tool_use_id": "t"})
        }
        ModelRow::TasksAdded => {
            json!({"type": "system", "subtype": "tasks_added", "content": "added: a", "tasks": ["a"]})
        }
        ModelRow::RunFailed => json!({"type": "error", "message": "broken"}),
    }
}

/// Returns the next event of a job that the conversation has to receive: rows, then questions, then
/// the state.
pub(super) fn next_event(number: usize, model: &mut ModelJob) -> Option<ChatFleetEvent> {
    let cursor = model.cursor.as_mut()?;
    let job = job(number);
    if let Some(row) = model.rows.get(*cursor) {
        let (at, row) = (*cursor as u64, JobRow::new(row.clone()));
        *cursor += 1;
        return Some(ChatFleetEvent::Row { job, at, row });
    }
    if let Some(ask) = model.sent_questions.iter().find(|id| !model.questions.contains(id)).cloned()
    {
        model.sent_questions.remove(&ask);
        return Some(ChatFleetEvent::QuestionClosed { job, ask });
    }
    if let Some(id) = model.questions.iter().find(|id| !model.sent_questions.contains(*id)).cloned()
    {
        model.sent_questions.insert(id.clone());
        let at = Timestamp::UNIX_EPOCH;
        let ask = json!({"protocol": 1, "id": id, "at": at, "kind": "permission", "tool": "Bash", "input": {}});
        let ask = serde_json::from_value(ask).unwrap();
        return Some(ChatFleetEvent::QuestionAsked { job, ask });
    }
    if model.sent_state == Some(model.state) {
        return None;
    }
    model.sent_state = Some(model.state);
    let reason = (model.state == ChatJobState::Failed).then(|| "no login".to_owned());
    Some(ChatFleetEvent::Job(ChatJobInfo {
        job,
        agent: "coder".to_owned(),
        state: model.state,
        reason,
        session: None,
        cost_usd: None,
        context_tokens: None,
        context_window: None,
        model: None,
    }))
}
