//! Approval pages: pending questions, answered in place, and the history.

use heeler_model::file_edit::FileEdit;
use heeler_model::{ApprovalKind, ApprovalStatus, question};
use heeler_query::approvals::{ApprovalDetails, ApprovalPage, ApprovalSummary};
use jiff::SignedDuration;
use maud::{Markup, html};
use serde_json::Value;

use crate::components::{
    activity_styles, agent_link, empty_notice, encode_path, format_grouped, isolated_text,
    job_link, optional_relative_time, relative_time, run_link, status_badge, truncate_text,
    url_with_params, visible_line,
};
use crate::diff::{edit_table, shows_everything};
use crate::markdown::markdown;
use crate::{DashboardSection, PageFrame};

/// Bytes of a question that the page shows; only an input that fits can be edited.
const DETAIL_BYTES_MAX: usize = 64 * 1024;

/// Remaining time from which an expiry is emphasized.
const DEADLINE_WARNING: SignedDuration = SignedDuration::from_mins(10);

/// Filter of the history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalsView {
    /// Only approvals with this status; `None` for all.
    pub status: Option<ApprovalStatus>,
    /// Only approvals older than this one.
    pub before: String,
}

/// Returns the page: pending questions, then the history.
pub fn page(
    frame: &PageFrame,
    view: &ApprovalsView,
    waiting: &[ApprovalDetails],
    waiting_total: i64,
    past: &ApprovalPage,
) -> Markup {
    let content = html! {
        (activity_styles())
        div.head { h1 { "Approvals" } div.tools { a.button href="/notices" { "Notices" } } }
        // Older pages show history only, or the same questions would be on every page.
        @if view.before.is_empty() {
            section.card aria-labelledby="h-waiting" data-answers {
                header { h2 #h-waiting { "Waiting for an answer" } }
                div #waiting data-live {
                    @if waiting.is_empty() {
                        (empty_notice("Nothing to answer", html! { "Questions of agents and workflows appear here." }))
                    }
                    @for one in waiting { (approval_form(frame, one, 3)) }
                    // The page shows the first questions only, so that a flood of them stays
                    // usable.
                    @if waiting_total > waiting.len() as i64 {
                        p.empty.small { "and " (format_grouped(waiting_total - waiting.len() as i64)) " more" }
                    }
                }
            }
        }
        (history(frame, view, past))
    };
    frame.page(DashboardSection::Approvals, "Approvals", content)
}

/// Returns the page of one approval, in full.
pub fn approval_page(frame: &PageFrame, approval: &ApprovalDetails) -> Markup {
    let content = html! {
        (activity_styles())
        p.crumbs { a href="/approvals" { "Approvals" } " › " span.mono { (approval.item.id) } }
        div.head { h1 { (isolated_text(&approval.item.gate)) } (approval_status(&approval.item)) }
        // The scripts keep typed text when a live region is fetched again, because the fields have
        // ids.
        section.card #asked data-live data-answers aria-label="Question" { (approval_form(frame, approval, 2)) }
    };
    frame.page(DashboardSection::Approvals, &approval.item.gate, content)
}

/// Renders the pending questions on the page of the job or run that asks; empty if there are none.
pub(crate) fn pending_approvals_card(frame: &PageFrame, asks: &[ApprovalDetails]) -> Markup {
    html! {
        @if !asks.is_empty() {
            section.card.warn aria-labelledby="h-asks" {
                header { h2 #h-asks { "Waiting for an answer" } }
                @for one in asks { (approval_form(frame, one, 3)) }
            }
        }
    }
}

/// Renders the status of an approval: a question that expects text is answered rather than
/// approved.
fn approval_status(item: &ApprovalSummary) -> Markup {
    match item.status {
        // The stored status is the same for both kinds.
        ApprovalStatus::Approved if item.kind.expects_text() => {
            html! { span.status data-s="approved" { "answered" } }
        }
        other => status_badge(other.as_str()),
    }
}

/// Renders the question as one line.
pub(crate) fn approval_title(kind: ApprovalKind, gate: &str) -> Markup {
    html! {
        @match kind {
            ApprovalKind::Permission => { "Allow " (isolated_text(gate)) "?" }
            ApprovalKind::Question => { "The agent asks" }
            ApprovalKind::Approve | ApprovalKind::Reply => { (isolated_text(gate)) }
        }
    }
}

fn approval_form(frame: &PageFrame, approval: &ApprovalDetails, level: u8) -> Markup {
    let item = &approval.item;
    let is_open = item.status == ApprovalStatus::Pending;
    let title = approval_title(item.kind, &item.gate);
    html! {
        article.ask data-row id=(item.id) aria-labelledby={ "t-" (item.id) } {
            // The level depends on the page, because headings must not skip one.
            @if level == 2 { h2 id={ "t-" (item.id) } { (title) } } @else { h3 id={ "t-" (item.id) } { (title) } }
            (approval_facts(frame, approval))
            // Without the permission no form is shown, but the question itself may be read.
            @if is_open && frame.can_operate() {
                form data-answer=(item.id) data-shown=[&approval.input_hash] { (question_body(approval, true)) (answer_buttons(approval)) }
            } @else {
                (question_body(approval, false))
                (answer_summary(frame, approval))
                @if is_open { p.note { "To answer, you need the scope operate." } }
            }
        }
    }
}

fn approval_facts(frame: &PageFrame, approval: &ApprovalDetails) -> Markup {
    let item = &approval.item;
    // Gates are requested by a workflow, which has no page of an agent.
    let is_gate = matches!(item.kind, ApprovalKind::Approve | ApprovalKind::Reply);
    let job = item.job_id.as_ref();
    html! {
        p.about {
            @if let Some(by) = &item.requested_by {
                @if is_gate { span { (isolated_text(by)) } } @else { span { "agent " (agent_link(by)) } }
            }
            @if let Some(job) = job { span { "job " (job_link(job)) } }
            // For a plain job the id of the run is the id of the job.
            @if job != Some(&item.workflow_run_id) { span { "run " (run_link(&item.workflow_run_id)) } }
            @if let Some(phase) = &item.phase { span { "phase " (isolated_text(phase)) } }
            span { "asked " (relative_time(frame, item.created_at)) }
            @if let Some(at) = item.expires_at.filter(|_| item.status == ApprovalStatus::Pending) {
                span.soon[at.duration_since(frame.now) < DEADLINE_WARNING] { "expires " (relative_time(frame, at)) }
                // The default counts only if nobody answers in time.
                @if let Some(default) = &approval.default_answer {
                    span { "then: " (visible_line(default)) }
                }
            }
        }
    }
}

/// Renders the question, with input fields if it is pending.
fn question_body(approval: &ApprovalDetails, is_open: bool) -> Markup {
    let nothing = Value::Null;
    let detail = approval.detail.as_ref().unwrap_or(&nothing);
    // A question with choices takes precedence over its raw input.
    let questions = question::questions(&detail["input"]);
    if !questions.is_empty() {
        return html! {
            @for (number, one) in questions.iter().enumerate() {
                (question_field(&approval.item.id, number, one, is_open))
            }
        };
    }
    match (&detail["input"], detail["inputText"].as_str(), detail.as_str()) {
        // The input of a tool is an object. Other shapes come from gates.
        (input @ Value::Object(_), ..) => tool_input(approval, input, is_open),
        (_, Some(text), _) => {
            html! {
                pre.code.input tabindex="0" { (truncate_text(text, DETAIL_BYTES_MAX)) }
                (full_text_link(approval, text.len()))
            }
        }
        (_, _, Some(text)) => {
            html! {
                (markdown(&truncate_text(text, DETAIL_BYTES_MAX)))
                (full_text_link(approval, text.len()))
                (artifact(approval))
            }
        }
        _ => html! { (markdown(&approval.item.summary)) (artifact(approval)) },
    }
}

/// Links the full text if the page shows only its beginning.
fn full_text_link(approval: &ApprovalDetails, bytes: usize) -> Markup {
    html! {
        @if bytes > DETAIL_BYTES_MAX {
            p.small {
                a href=(encode_path("/api/v1/approvals", &[&approval.item.id])) { "Read the full text" }
                " before you answer: only its beginning is shown."
            }
        }
    }
}

fn artifact(approval: &ApprovalDetails) -> Markup {
    html! {
        @if let Some(file) = &approval.artifact { p.small { "File: " code { (visible_line(file)) } } }
    }
}

/// Renders a tool's input. It can be edited only if it is shown in full.
fn tool_input(approval: &ApprovalDetails, input: &Value, is_open: bool) -> Markup {
    // Formatted in the same way as the API returns it, so that an edit changes only one place.
    let whole = serde_json::to_string_pretty(input).unwrap_or_default();
    // An edit that is shown completely as a difference is not repeated as two texts.
    let edit = FileEdit::of(&approval.item.gate, input).filter(shows_everything);
    let repeated = |name: &str| match edit {
        Some(_) => ["old_string", "new_string", "content", "edits"].contains(&name),
        None => false,
    };
    let fields = input.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !repeated(name));
    let id = format!("input-{}", approval.item.id);
    let changed = approval.detail.as_ref().map(|it| &it["updatedInput"]).filter(|it| !it.is_null());
    html! {
        @if let Some(edit) = &edit { (edit_table(edit)) }
        div.input tabindex="0" aria-label="Input of the tool" role="group" {
            dl.facts {
                @for (name, value) in fields {
                    dt.mono { (visible_line(name)) }
                    // Hidden characters are made visible: a person must see exactly what they
                    // approve.
                    dd { pre { (truncate_text(&as_text(value), DETAIL_BYTES_MAX)) } }
                }
            }
        }
        @if let Some(bytes) = approval.input_bytes { p.small.muted { (bytes) " bytes" } }
        (full_text_link(approval, whole.len()))
        // An input that was cut would be sent back incomplete.
        @if is_open && whole.len() <= DETAIL_BYTES_MAX {
            details id={ "edit-" (approval.item.id) } {
                summary { "Change the input" }
                div.field {
                    label for=(id) { "New input, as JSON" }
                    textarea.code id=(id) name="input" rows="6" spellcheck="false" { (whole) }
                }
            }
        }
        @if let Some(changed) = changed {
            p.small { "Changed to:" }
            pre.code.input tabindex="0" { (truncate_text(&serde_json::to_string_pretty(changed).unwrap_or_default(), DETAIL_BYTES_MAX)) }
        }
    }
}

fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn question_field(id: &str, number: usize, question: &Value, is_open: bool) -> Markup {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let options = question::options(question);
    let kind = if question::allows_multiple(question) { "checkbox" } else { "radio" };
    // Names are numbers, because the text of a question is untrusted and may repeat.
    let name = format!("q{number}");
    let text_id = format!("own-{id}-{number}");
    html! {
        fieldset data-question {
            legend { (visible_line(&text(&question["question"]))) }
            @for (at, option) in options.iter().enumerate() {
                label {
                    // A choice is sent by its number, so that two equal labels remain distinct.
                    @if is_open { input type=(kind) name=(name) value=(at + 1); }
                    span {
                        (visible_line(&text(&option["label"])))
                        @if let Some(more) = option["description"].as_str().filter(|it| !it.is_empty()) { span.muted { " – " (visible_line(more)) } }
                    }
                }
            }
            @if is_open {
                div.field {
                    label for=(text_id) { @if options.is_empty() { "Your answer" } @else { "Or your own answer" } }
                    input id=(text_id) type="text" autocomplete="off";
                }
            }
        }
    }
}

fn answer_buttons(approval: &ApprovalDetails) -> Markup {
    let item = &approval.item;
    let id = format!("text-{}", item.id);
    let has_questions =
        approval.detail.as_ref().is_some_and(|it| !question::questions(&it["input"]).is_empty());
    let label = match item.kind {
        ApprovalKind::Reply => "Your answer",
        // A question without choices is answered in the text field itself.
        ApprovalKind::Question if !has_questions => "Your answer",
        ApprovalKind::Question => "Reason, if you refuse to answer",
        ApprovalKind::Permission => "Reason for a rejection, for the agent",
        ApprovalKind::Approve => "Comment (optional)",
    };
    let rules = approval.detail.as_ref().map(heeler_model::offered_rules).unwrap_or_default();
    html! {
        div.field {
            label for=(id) { (label) }
            textarea id=(id) name="text" rows="2" {}
        }
        @if !rules.is_empty() {
            p.small {
                "“Approve always” also allows, in all later runs of the agent: "
                @for (at, rule) in rules.iter().enumerate() {
                    @if at > 0 { ", " }
                    code { (visible_line(rule)) }
                }
            }
        }
        div.actions {
            @if item.kind.expects_text() {
                button.button.primary value="reply" { "Answer" }
                button.button.danger value="reject" { "Refuse to answer" }
            } @else {
                button.button.primary value="approve" { "Approve" }
                @if !rules.is_empty() { button.button value="always" { "Approve always" } }
                button.button.danger value="reject" { "Reject" }
            }
        }
    }
}

fn answer_summary(frame: &PageFrame, approval: &ApprovalDetails) -> Markup {
    let item = &approval.item;
    html! {
        @if item.status != ApprovalStatus::Pending {
            p.small {
                (approval_status(item))
                @if let Some(by) = &item.responded_by { " by " (isolated_text(by)) }
                @if let Some(at) = item.responded_at { " " (relative_time(frame, at)) }
            }
            @if let Some(text) = &approval.response { pre.code { (truncate_text(text, DETAIL_BYTES_MAX)) } }
        }
    }
}

fn history(frame: &PageFrame, view: &ApprovalsView, past: &ApprovalPage) -> Markup {
    let chosen = view.status.map_or("", ApprovalStatus::as_str);
    // Pending questions are above, in full.
    let choices = ApprovalStatus::ALL.iter().filter(|it| **it != ApprovalStatus::Pending);
    html! {
        section.card aria-labelledby="h-past" {
            header {
                h2 #h-past { "History" }
                form.filters.end data-auto aria-label="Filter the history" {
                    label.visually-hidden for="f-status" { "State" }
                    select #f-status name="status" {
                        option value="" { "All" }
                        @for one in choices {
                            option value=(one.as_str()) selected[one.as_str() == chosen] { (one.as_str()) }
                        }
                    }
                    button.button.small { "Show" }
                }
            }
            div #past data-live {
                @if past.approvals.is_empty() { p.empty.small { "No questions yet." } }
                @else { (table(frame, &past.approvals)) }
            }
        }
        @if !view.before.is_empty() || past.next.is_some() {
            nav.pager aria-label="Pages" {
                @if view.before.is_empty() { span {} }
                @else { a.button href=(url_with_params("/approvals", &[("status", chosen)])) { "Newest" } }
                @if let Some(next) = &past.next {
                    a.button rel="next" href=(url_with_params("/approvals", &[("status", chosen), ("before", next)])) { "Older" }
                }
            }
        }
    }
}

fn table(frame: &PageFrame, approvals: &[ApprovalSummary]) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr {
                    th.fit scope="col" { "State" } th scope="col" { "Question" }
                    th.opt scope="col" { "From" } th.opt2 scope="col" { "Answered by" }
                    th.num scope="col" { "Asked" }
                } }
                tbody {
                    @for one in approvals {
                        tr data-row {
                            td.fit { (approval_status(one)) }
                            td.wide {
                                a href=(encode_path("/approvals", &[&one.id])) { (isolated_text(&one.gate)) }
                                div.clamp.muted { (visible_line(&one.summary)) }
                            }
                            // Gates have no requester; the run is the best description then.
                            td.opt { (isolated_text(one.requested_by.as_deref().unwrap_or(&one.workflow_run_id))) }
                            td.opt2 { @if let Some(by) = &one.responded_by { (isolated_text(by)) } " " span.muted { (optional_relative_time(frame, one.responded_at)) } }
                            td.num { (relative_time(frame, one.created_at)) }
                        }
                    }
                }
            }
        }
    }
}
