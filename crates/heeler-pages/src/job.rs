//! Job page: status, actions, facts, and the transcript with live updates.

use heeler_model::JobStatus;
use heeler_query::approvals::ApprovalDetails;
use heeler_query::jobs::{JobDetails, JobFile, RunSummary};
use heeler_query::rows::RowPage;
use maud::{Markup, html};

use crate::components::{
    activity_styles, agent_link, elapsed_time, encode_path, format_bytes, format_clock_duration,
    format_grouped, format_usd, isolated_text, job_link, job_status_badge, optional_relative_time,
    relative_time, run_link, session_link, truncate_text, visible_line,
};
use crate::{DashboardSection, PageFrame, approvals, transcript};

/// Bytes of a prompt that the page shows.
const PROMPT_BYTES_MAX: usize = 64 * 1024;

/// Data of the page.
#[derive(Debug)]
pub struct JobView {
    pub job: JobDetails,
    /// Last rows of the transcript.
    pub rows: RowPage,
    /// Pending questions of the agent.
    pub pending_approvals: Vec<ApprovalDetails>,
}

pub fn page(frame: &PageFrame, view: &JobView) -> Markup {
    let job = &view.job;
    let title = format!("{} {}", job.item.agent, job.item.id);
    let content = html! {
        (activity_styles())
        div.stack #head data-live { (head(frame, job)) }
        div #asks data-live data-answers { (approvals::pending_approvals_card(frame, &view.pending_approvals)) }
        div.stack #facts data-live { (facts_card(frame, job)) (attempts(frame, &job.runs)) }
        (transcript_card(job, &view.rows))
        div #steer data-live { @if can_steer(frame, job) { (steer_card(job)) } }
    };
    frame.page(DashboardSection::Jobs, &title, content)
}

fn head(frame: &PageFrame, job: &JobDetails) -> Markup {
    let item = &job.item;
    // The script follows the job until this attribute is empty.
    let at_work = (!item.status.is_final()).then_some(item.id.as_str());
    html! {
        p.crumbs { a href="/jobs" { "Jobs" } " › " span.mono { (item.id) } }
        div.head data-at-work=(at_work.unwrap_or_default()) data-job=(item.id) data-attempts=(job.runs.len()) {
            h1 { (agent_link(&item.agent)) }
            (job_status_badge(item.status.as_str(), item.dead))
            @if job.is_pulling() { span.muted { "pulling the image of its container" } }
            @if item.status == JobStatus::Running {
                // A job that was just started has no start time yet.
                span.muted.num { (elapsed_time(frame, item.started_at.unwrap_or(item.asked_at))) }
            }
            @if frame.can_operate() { div.tools { (actions(job)) } }
        }
        @if let Some(title) = &item.title { p.title { (visible_line(title)) } }
        (status_reason(frame, job))
        @if let Some(tools) = &item.denied {
            div.banner.warn role="note" {
                span {
                    strong { "Denied" } ": " (visible_line(tools))
                    ". The agent was not allowed to use this, and may have left work undone."
                }
            }
        }
    }
}

fn actions(job: &JobDetails) -> Markup {
    let api = |verb: &str| format!("POST {}/{verb}", encode_path("/api/v1/jobs", &[&job.item.id]));
    let status = job.item.status;
    // A resume needs the session in which the job stopped.
    let can_resume =
        matches!(status, JobStatus::Failed | JobStatus::Cancelled) && job.item.session_id.is_some();
    html! {
        @if status == JobStatus::Running { a.button href="#steer" { "Message" } }
        @if !status.is_final() {
            button.button.danger type="button" data-action=(api("cancel")) data-danger
                data-confirm="Cancel this job? Its work so far is kept, and it can be resumed."
                data-answer="Cancel the job" data-done="The job is being cancelled." { "Cancel" }
        }
        @if can_resume {
            button.button.primary type="button" data-action=(api("resume"))
                data-done="The job was resumed." { "Resume" }
        }
        @if status.is_final() {
            button.button type="button" data-action=(api("retry")) data-go="/jobs/{id}" {
                "Run again"
            }
        }
        a.button href=(encode_path("/jobs", &[&job.item.id, "compare"])) { "Compare" }
        @if job.session.is_some() {
            button.button type="button" data-action=(api("fork")) data-go="/sessions/{id}"
                title="A new session with the history of this one" { "Fork" }
        }
    }
}

/// Returns true if the viewer may send messages to the agent now.
fn can_steer(frame: &PageFrame, job: &JobDetails) -> bool {
    frame.can_operate() && job.item.status == JobStatus::Running
}

/// Renders the form that sends a message to the running agent, or interrupts it.
fn steer_card(job: &JobDetails) -> Markup {
    let path = encode_path("/api/v1/jobs", &[&job.item.id]);
    html! {
        section.card aria-labelledby="h-steer" {
            header { h2 #h-steer { "Message to the agent" } }
            form.box data-action={ "POST " (path) "/messages" } data-send-key data-done="The agent has your message." {
                div.field {
                    label.visually-hidden for="steer-text" { "Message to " (visible_line(&job.item.agent)) }
                    textarea #steer-text name="text" rows="2" required aria-keyshortcuts="Control+Enter"
                        placeholder="The agent reads it within its current turn" {}
                }
                div.row {
                    span.note { kbd { "Ctrl" } " " kbd { "Enter" } " sends." }
                    button.button.end type="button" data-action={ "POST " (path) "/cancel" } data-body="{\"now\":false}"
                        data-confirm="Interrupt the agent? The job ends as cancelled, its work so far is kept, and Resume continues it."
                        data-answer="Interrupt it" data-done="The agent is being interrupted." { "Interrupt" }
                    button.button.primary { "Send" }
                }
            }
        }
    }
}

/// Renders the reason for which a job waits or failed.
fn status_reason(frame: &PageFrame, job: &JobDetails) -> Markup {
    let fault = job.error_details.as_ref().filter(|_| job.item.status == JobStatus::Failed);
    html! {
        @if let Some(waits) = &job.waits {
            div.banner.warn role="note" {
                span {
                    strong { "Waits" } @if !waits.is_empty() { ": " (visible_line(waits)) }
                    @if let Some(at) = job.not_before { " · starts at the earliest " (relative_time(frame, at)) }
                    @if let Some(at) = job.expires_at { " · expires " (relative_time(frame, at)) }
                }
                // Otherwise a person would wait for nothing.
                @if !job.has_daemon { span { "No daemon is running to start it." } }
            }
        }
        @if let Some(error) = job.error.as_deref().filter(|error| !error.is_empty()) {
            div.banner.bad role="note" {
                div.hang {
                    p.why { strong { (if job.interrupted { "Interrupted" } else { "Failed" }) } ": "
                        (truncate_text(error, PROMPT_BYTES_MAX)) }
                    @if let Some(cure) = fault.map(|it| &it.cure).filter(|it| !it.is_empty()) {
                        p.note.why { (cure) }
                    }
                }
            }
        }
        @for hook in &job.failed_hooks {
            div.banner.warn role="note" {
                span {
                    "Hook " strong { (isolated_text(&hook.name)) } " failed: " (visible_line(&hook.error))
                    @if hook.given_up { " (given up)" } @else { " (will be retried)" }
                }
            }
        }
    }
}

fn facts_card(frame: &PageFrame, job: &JobDetails) -> Markup {
    let item = &job.item;
    let usage = &job.usage;
    let tokens = [
        usage.input_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
        usage.output_tokens,
    ];
    let tokens: Option<i64> = tokens
        .iter()
        .any(Option::is_some)
        .then(|| tokens.iter().flatten().sum())
        // A sum of zero means that the agent reported no usage.
        .filter(|sum| *sum > 0);
    html! {
        section.card aria-label="About the job" {
            dl.facts.pairs.pad {
                dt { "Started by" } dd { (trigger(job)) }
                dt { "Created" } dd { (relative_time(frame, item.asked_at)) }
                dt { "Started" } dd { (optional_relative_time(frame, item.started_at)) }
                @if let Some(at) = item.finished_at { dt { "Ended" } dd { (relative_time(frame, at)) } }
                @if let Some(took) = item.duration_seconds { dt { "Took" } dd.num { (format_clock_duration(took)) } }
                dt { "Cost" }
                dd.num {
                    (item.cost_usd.map_or_else(|| "–".to_owned(), format_usd))
                    @if let Some(turns) = usage.num_turns { span.muted { " · " (turns) @if turns == 1 { " turn" } @else { " turns" } } }
                    @if let Some(tokens) = tokens { span.muted { " · " (format_grouped(tokens)) " tokens" } }
                }
                (session(job))
                @if let Some(reason) = item.exit_reason {
                    dt { "Ended by" }
                    dd {
                        (reason.as_str())
                        @if let Some(stop) = &job.stop_reason { span.muted { " · " (isolated_text(stop)) } }
                        @if job.restart_count > 0 {
                            span.muted { " · restarted " (job.restart_count) "× after a crash" }
                        }
                    }
                }
                (source_facts(job))
            }
            @if let Some(prompt) = job.prompt.as_deref().filter(|text| !text.is_empty()) {
                // A short prompt is open, a long one would push the transcript down.
                details.pad #prompt open[prompt.len() < 600] {
                    summary {
                        "Prompt"
                        @if let Some(author) = &job.prompt_by { " by " (isolated_text(author)) }
                    }
                    pre.code { (truncate_text(prompt, PROMPT_BYTES_MAX)) }
                }
            }
            @if !job.files.is_empty() { (files(&job.files)) }
        }
    }
}

fn trigger(job: &JobDetails) -> Markup {
    let item = &job.item;
    html! {
        @match &item.schedule {
            Some(schedule) => { "schedule " (isolated_text(schedule)) }
            None => (isolated_text(&item.trigger_type)),
        }
        @if let Some(parent) = &job.parent { " · requested by " (job_link(parent)) }
        @if let Some(from) = &job.forked_from { " · forked from " (job_link(from)) }
    }
}

fn session(job: &JobDetails) -> Markup {
    html! {
        @match (&job.session, &job.item.session_id) {
            (Some(id), _) => { dt { "Session" } dd { (session_link(id)) } }
            // The record of the session may be deleted; its native id remains.
            (None, Some(native_id)) => { dt { "Session" } dd.mono { (visible_line(native_id)) } }
            (None, None) => {}
        }
    }
}

fn source_facts(job: &JobDetails) -> Markup {
    html! {
        @if let Some(run) = &job.workflow_run_id {
            dt { "Workflow" }
            dd {
                (run_link(run))
                @if let Some(phase) = &job.phase { " · phase " (isolated_text(phase)) }
                @if let Some(decision) = job.decision { " · " (decision.as_str()) }
            }
        }
        @if let Some(repo) = &job.repo {
            dt { "Repository" }
            dd { (isolated_text(repo)) @if let Some(issue) = job.issue_number { " #" (issue) } }
        }
        @if let Some(folder) = &job.working_directory {
            dt { "Working directory" } dd.mono { (visible_line(folder)) }
        }
        @if let Some(origin) = &job.origin { dt { "Record of" } dd { (isolated_text(origin)) } }
    }
}

fn files(files: &[JobFile]) -> Markup {
    html! {
        details.pad #files open {
            summary { "Files from the agent (" (files.len()) ")" }
            ul role="list" {
                @for file in files {
                    li {
                        (isolated_text(&file.name)) " " span.muted { (format_bytes(file.bytes)) " · " }
                        span.mono.muted { (visible_line(&file.path)) }
                    }
                }
            }
        }
    }
}

/// Renders the runs of a job, if there was more than one.
fn attempts(frame: &PageFrame, runs: &[RunSummary]) -> Markup {
    html! {
        @if runs.len() > 1 {
            section.card aria-labelledby="h-attempts" {
                header { h2 #h-attempts { "Attempts" } }
                div.scroll {
                    table {
                        thead { tr {
                            th.fit scope="col" { "No." } th scope="col" { "State" }
                            th scope="col" { "Error" } th.num scope="col" { "Started" }
                            th.num scope="col" { "Cost" }
                        } }
                        tbody { @for run in runs { (attempt(frame, run)) } }
                    }
                }
            }
        }
    }
}

fn attempt(frame: &PageFrame, run: &RunSummary) -> Markup {
    let reason = run.exit_reason.map_or(run.status.as_str(), |reason| reason.as_str());
    html! {
        tr {
            td.fit.num { (run.attempt) }
            td { (visible_line(reason)) }
            td.wide {
                @if let Some(error) = &run.error { div.clamp { (visible_line(&error.message)) } }
            }
            td.num { (optional_relative_time(frame, run.started_at)) }
            td.num { (run.cost_usd.map_or_else(|| "–".to_owned(), format_usd)) }
        }
    }
}

fn transcript_card(job: &JobDetails, rows: &RowPage) -> Markup {
    let id = &job.item.id;
    let home = encode_path("/jobs", &[id]);
    let follows = !job.item.status.is_final();
    html! {
        section.card.talk-log aria-labelledby="h-log" data-transcript={ (home) "/rows.html" }
            // Rows after this line arrive by the stream, so none is shown twice.
            data-follow=[follows.then_some(id)] data-from=(rows.lines) {
            header {
                h2 #h-log { "Transcript" }
                span.muted data-row-count { (format_grouped(rows.lines as i64)) @if rows.lines == 1 { " row" } @else { " rows" } }
            }
            div.rows data-rows tabindex="0" role="group" aria-label="Transcript" {
                (older_link(&home, rows.previous))
                (rows_fragment(rows))
                (newest_link(&home, rows.next))
                // While the job runs, rows will appear.
                @if rows.lines == 0 && !follows {
                    p.empty.small { "The transcript is empty." }
                }
            }
            (end_button())
        }
    }
}

/// Returns the link to older rows; `home` is the URL of the page.
pub(crate) fn older_link(home: &str, previous: Option<u64>) -> Markup {
    let href = previous.map(|before| format!("{home}?before={before}#h-log"));
    // Hidden and not left out, because the script shows it when older rows exist.
    html! { div.older { a.button.small data-older href=[href] hidden[previous.is_none()] { "Older" } } }
}

/// Returns the link to the end, for browsers without scripts on a page that does not show the end.
pub(crate) fn newest_link(home: &str, next: Option<u64>) -> Markup {
    html! { @if next.is_some() { div.older.no-script { a.button.small href={ (home) "#h-log" } { "Newest" } } } }
}

/// Returns the button that scrolls to the end, and the element for screen reader messages.
pub(crate) fn end_button() -> Markup {
    html! {
        button.button.small.to-end type="button" data-end hidden {
            "Jump to the end" span data-missed {}
        }
        p.visually-hidden role="status" data-told {}
    }
}

/// Returns rows as a fragment of the page.
pub fn rows_fragment(rows: &RowPage) -> Markup {
    html! {
        div data-page data-previous=[rows.previous] data-next=[rows.next] data-lines=(rows.lines) {
            @for row in &rows.rows { (transcript::row(row.line, row.row.get())) }
        }
    }
}
