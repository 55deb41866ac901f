//! Approvals of running agents: stores their questions and the outcomes.
//!
//! The outcome that a run reports overrides a stored answer, because the agent acted on it. Start
//! at [`record_question`] and [`record_closed_question`].

use heeler_model::permission_grant::{KEPT_RULES_MAX, PermissionGrant};
use heeler_model::run::{AgentQuestion, ClosedQuestion, QuestionOutcome};
use heeler_model::{
    Approval, ApprovalKind, ApprovalStatus, Job, NetworkGrantChoice, OFFERED_RULES, RunId, question,
};
use heeler_store::{DatabaseError, KeptPermissionRule, NetworkGrant, StoreTransaction};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

/// Stores an agent's question as a pending approval. A question that is already stored stays
/// unchanged.
pub(crate) fn record_question(
    tx: &mut StoreTransaction<'_>,
    job: &Job,
    run: RunId,
    ask: &AgentQuestion,
) -> Result<Approval, DatabaseError> {
    // The files are read again and again, so most questions are known.
    if let Some(known) = tx.approval_for_question(run, &ask.id)? {
        return Ok(known);
    }
    let id = tx.new_approval_id()?;
    let kind = match ask.kind.as_str() {
        "question" => ApprovalKind::Question,
        _ => ApprovalKind::Permission,
    };
    // A question of a workflow's part is listed under its workflow run.
    let whole = job.workflow_run_id.as_deref().unwrap_or(job.head.id.as_str());
    let approval = Approval {
        requested_by: Some(job.head.agent.clone()),
        expires_at: ask.until,
        job_id: Some(job.head.id.clone()),
        run_id: Some(run),
        ask_id: Some(ask.id.clone()),
        summary: summary(ask),
        detail: Some(detail(ask)),
        ..Approval::new_pending(id, whole, &ask.tool, kind, ask.at)
    };
    tx.insert_approval(&approval)?;
    tracing::info!(approval = %approval.id, job = %job.head.id, tool = ask.tool, "asked");
    Ok(approval)
}

/// Stores a question's outcome as reported by its run.
pub(crate) fn record_closed_question(
    tx: &mut StoreTransaction<'_>,
    job: &Job,
    run: RunId,
    closed: &ClosedQuestion,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let approval = record_question(tx, job, run, &closed.ask)?;
    // An outcome is recorded once. Reading the same file again must not overrule it.
    if approval.delivered_at.is_some() {
        return Ok(());
    }
    let (status, nobody) = match closed.how {
        QuestionOutcome::Allowed => (ApprovalStatus::Approved, "somebody"),
        QuestionOutcome::Denied => (ApprovalStatus::Rejected, "somebody"),
        QuestionOutcome::Expired => (ApprovalStatus::Expired, "heeler"),
        QuestionOutcome::Withdrawn => (ApprovalStatus::Withdrawn, job.head.agent.as_str()),
    };
    let by = closed.by.as_deref().unwrap_or(nobody);
    let text = closed.text.as_deref();
    let id = &approval.id;
    // A person may have changed the input at the run itself, without the daemon.
    if let Some(input) = &closed.updated_input {
        let mut detail = approval.detail.clone().unwrap_or(Json::Null);
        detail["updatedInput"] = input.clone();
        tx.set_approval_detail(id, &detail)?;
    }
    // No answer is recorded: the question expired, was withdrawn or was answered elsewhere.
    if approval.status == ApprovalStatus::Pending {
        tx.answer_approval(id, status, text, by, closed.at)?;
    } else if approval.status != status || approval.responded_by.as_deref() != Some(by) {
        let known = approval.responded_by.as_deref();
        tracing::warn!(approval = %id, by, known, "the agent acted on another answer");
        tx.overrule_approval(id, status, text, by, closed.at)?;
    }
    if closed.how == QuestionOutcome::Allowed {
        record_network_grant(tx, job, closed, by)?;
        record_permission_rules(tx, job, run, closed, by)?;
    }
    tx.set_approval_delivered(id, now)?;
    Ok(())
}

/// Stores a host that a person allowed for later runs. Only the runner says which host it is, and only
/// people answer questions.
fn record_network_grant(
    tx: &mut StoreTransaction<'_>,
    job: &Job,
    closed: &ClosedQuestion,
    by: &str,
) -> Result<(), DatabaseError> {
    let choice = closed.text.as_deref().and_then(NetworkGrantChoice::from_label);
    let session = match choice {
        Some(NetworkGrantChoice::Always) => None,
        Some(NetworkGrantChoice::Session) if job.head.session_id.is_some() => {
            job.head.session_id.clone()
        }
        _ => return Ok(()),
    };
    let Some(host) = closed.ask.network_host.as_deref().map(str::to_owned) else { return Ok(()) };
    tracing::info!(agent = job.head.agent, host, by, "a host is allowed for later runs");
    let agent = job.head.agent.clone();
    tx.put_network_grant(&NetworkGrant { agent, session, host, at: closed.at, by: by.to_owned() })
}

/// Stores the rules that a person gave for later runs. Only people answer questions, and they were
/// shown the rules. A rule beyond the limit is asked about again.
fn record_permission_rules(
    tx: &mut StoreTransaction<'_>,
    job: &Job,
    run: RunId,
    closed: &ClosedQuestion,
    by: &str,
) -> Result<(), DatabaseError> {
    if closed.kept_rules.is_empty() {
        return Ok(());
    }
    // Without a key, nothing proves that the runner wrote the outcome, and the agent gains by it.
    if tx.run(run)?.and_then(|run| run.result_key).is_none() {
        tracing::warn!(%run, "rules of a run without a key are not kept");
        return Ok(());
    }
    let agent = &job.head.agent;
    let known = tx.permission_rules(agent)?;
    let mut count = known.len();
    for rule in &closed.kept_rules {
        let is_known = known.iter().any(|known| known.rule == *rule);
        if !is_known && count >= KEPT_RULES_MAX {
            tracing::warn!(agent, rule, limit = KEPT_RULES_MAX, "the agent has too many rules");
            continue;
        }
        count += usize::from(!is_known);
        tracing::info!(agent, rule, by, "a rule is kept for later runs");
        let (agent, rule, by) = (agent.clone(), rule.clone(), by.to_owned());
        tx.put_permission_rule(&KeptPermissionRule { agent, rule, at: closed.at, by })?;
    }
    Ok(())
}

/// Stores the outcomes of all questions of a run that has ended. Questions without an outcome are
/// withdrawn.
pub(crate) fn record_closed_questions(
    tx: &mut StoreTransaction<'_>,
    job: &Job,
    run: RunId,
    closed: &[ClosedQuestion],
    now: Timestamp,
) -> Result<(), DatabaseError> {
    closed.iter().try_for_each(|closed| record_closed_question(tx, job, run, closed, now))?;
    // No run is left that could receive an answer.
    for left in tx.undelivered_approvals(run)? {
        let why = Some("its run ended before an answer");
        tx.answer_approval(&left.id, ApprovalStatus::Withdrawn, why, &job.head.agent, now)?;
        tx.set_approval_delivered(&left.id, now)?;
    }
    Ok(())
}

/// Fields of a tool's input that summarize it best, in order of preference.
const SUMMARY_FIELDS: [&str; 7] =
    ["command", "file_path", "notebook_path", "url", "pattern", "query", "description"];

/// Returns a short text of the question.
fn summary(ask: &AgentQuestion) -> String {
    let asked: Vec<&str> =
        question::questions(&ask.input).iter().filter_map(|it| it["question"].as_str()).collect();
    if !asked.is_empty() {
        return asked.join("\n");
    }
    let telling = SUMMARY_FIELDS.iter().find_map(|name| ask.input[name].as_str());
    match telling {
        Some(text) => format!("{}: {text}", ask.tool),
        None => format!("{}: {}", ask.tool, ask.input),
    }
}

/// Returns the complete question. Nothing is truncated: a person who approves must be able to see
/// everything that is approved. The runner denies questions that are too long to store.
fn detail(ask: &AgentQuestion) -> Json {
    let mut detail = json!({"tool": ask.tool, "input": ask.input});
    if let Some(rules) = ask.grant.as_ref().and_then(PermissionGrant::lasting_rules) {
        detail[OFFERED_RULES] = json!(rules);
    }
    detail
}

#[cfg(test)]
mod tests {
    use heeler_model::run::PROTOCOL;

    use super::*;

    #[test]
    fn all_of_what_a_person_is_asked_to_allow_is_on_record() {
        let input = json!({"command": format!("true {}; rm -r ~", "x".repeat(500 << 10))});
        let ask = AgentQuestion {
            protocol: PROTOCOL,
            id: "a".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            kind: "permission".to_owned(),
            tool: "Bash".to_owned(),
            input: input.clone(),
            until: None,
            network_host: None,
            grant: None,
        };
        assert_eq!(detail(&ask), json!({"tool": "Bash", "input": input}));
        let grant = json!({"allow": [{"tool": "Bash", "content": "true:*"}]});
        let ask = AgentQuestion { grant: serde_json::from_value(grant).unwrap(), ..ask };
        assert_eq!(detail(&ask)[OFFERED_RULES], json!(["Bash(true:*)"]));
    }
}
