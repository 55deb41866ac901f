//! Workflow run pages: the list, and one run with its graph and live updates.

use std::collections::HashMap;

use heeler_model::ApprovalStatus;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_query::workflow_runs::{
    PartSummary, PhaseSummary, WorkflowEventSummary, WorkflowRunDetails, WorkflowRunPage,
    WorkflowRunSummary,
};
use heeler_query::workflows::PhaseDescription;
use maud::{Markup, html};

use crate::components::{
    activity_styles, agent_link, elapsed_time, empty_notice, encode_path, format_clock_duration,
    format_grouped, format_usd, inline_code, isolated_text, job_link, relative_time, run_link,
    state_field, status_badge, truncate_text, url_with_params, visible_line,
};
use crate::graph::{self, GraphNode, anchor};
use crate::markdown::markdown;
use crate::{DashboardSection, PageFrame, approvals, workflows};

/// Bytes of a phase's output that the page shows; the job's transcript has the rest.
const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// Newest events that the page shows.
const EVENTS_SHOWN: usize = 100;
/// Newest parts of a phase that the page shows.
const PARTS_SHOWN: usize = 50;

/// Filters of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkflowRunsView {
    /// Only runs of this workflow.
    pub workflow: String,
    /// Only runs with this status.
    pub status: Option<WorkflowRunStatus>,
    /// Only runs about this repository.
    pub repo: String,
    /// Only runs with this trigger ID.
    pub trigger: String,
    /// Only runs older than this one.
    pub before: String,
    /// All workflows, for the selection.
    pub workflows: Vec<String>,
}

impl WorkflowRunsView {
    fn address(&self, before: &str) -> String {
        let status = self.status.map_or("", WorkflowRunStatus::as_str);
        url_with_params(
            "/runs",
            &[
                ("workflow", &self.workflow),
                ("status", status),
                ("repo", &self.repo),
                ("trigger", &self.trigger),
                ("before", before),
            ],
        )
    }
}

/// Presence of a workflow column in a table of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkflowColumn {
    /// With a column.
    Workflow,
    /// Without a column: all runs belong to one workflow.
    NoWorkflow,
}

/// Returns the page of workflow runs.
pub fn page(frame: &PageFrame, view: &WorkflowRunsView, found: &WorkflowRunPage) -> Markup {
    let content = html! {
        p.crumbs { a href="/workflows" { "Workflows" } " › runs" }
        div.head { h1 { "Runs" } span.muted { (format_grouped(found.total)) } }
        (filters(view))
        section.card #list data-live aria-label="Runs" {
            @if found.runs.is_empty() { (empty_notice("No matching runs", html! { a href="/workflows" { "Run a workflow" } })) }
            @else { (table(frame, &found.runs, WorkflowColumn::Workflow)) }
        }
        @if !view.before.is_empty() || found.next.is_some() {
            nav.pager aria-label="Pages" {
                @if view.before.is_empty() { span {} } @else { a.button href=(view.address("")) { "Newest" } }
                @if let Some(next) = &found.next { a.button rel="next" href=(view.address(next)) { "Older" } }
            }
        }
    };
    frame.page(DashboardSection::Workflows, "Runs", content)
}

fn filters(view: &WorkflowRunsView) -> Markup {
    let chosen = view.status.map_or("", WorkflowRunStatus::as_str);
    let texts = [&view.workflow, &view.repo, &view.trigger];
    let is_filtered = texts.iter().any(|text| !text.is_empty()) || view.status.is_some();
    html! {
        form.filters data-auto role="search" aria-label="Filter runs" {
            div.field {
                label for="f-workflow" { "Workflow" }
                select #f-workflow name="workflow" {
                    option value="" { "All workflows" }
                    // The workflow may have been removed since; the filter stays usable.
                    @if !view.workflow.is_empty() && !view.workflows.contains(&view.workflow) {
                        option value=(view.workflow) selected { (visible_line(&view.workflow)) }
                    }
                    @for one in &view.workflows { option value=(one) selected[*one == view.workflow] { (visible_line(one)) } }
                }
            }
            (state_field(WorkflowRunStatus::ALL.iter().map(|one| one.as_str()), chosen))
            div.field {
                label for="f-repo" { "Repository" }
                input #f-repo name="repo" value=(view.repo) placeholder="owner/name";
            }
            div.field {
                label for="f-trigger" { "Trigger ID" }
                input #f-trigger name="trigger" value=(view.trigger) placeholder="owner/name#7";
            }
            button.button { "Show" }
            @if is_filtered { a.button.quiet href="/runs" { "Show all" } }
        }
    }
}

/// Returns workflow runs as a table.
pub(crate) fn table(
    frame: &PageFrame,
    runs: &[WorkflowRunSummary],
    column: WorkflowColumn,
) -> Markup {
    html! {
        div.scroll {
            table.lines {
                thead { tr {
                    th.fit scope="col" { "State" }
                    @if column == WorkflowColumn::Workflow { th scope="col" { "Workflow" } }
                    th.opt scope="col" { "About" } th.opt2 scope="col" { "Phase" } th.num scope="col" { "Started" }
                    th.num.opt2 scope="col" { "Took" } th.num.opt scope="col" { "Cost" } th.fit scope="col" { "Run" }
                } }
                tbody {
                    @for run in runs {
                        tr data-row {
                            td.fit { (status_badge(run.status.as_str())) }
                            @if column == WorkflowColumn::Workflow { td { a href=(encode_path("/workflows", &[&run.workflow])) { (isolated_text(&run.workflow)) } } }
                            td.opt { (run_subject(run)) }
                            td.opt2 { (isolated_text(&run.current_phase)) @if let Some(error) = &run.error { div.clamp.muted { (visible_line(error)) } } }
                            td.num { (relative_time(frame, run.started_at)) }
                            td.num.opt2 { (run_duration(frame, run)) }
                            td.num.opt { (format_usd(run.cost_usd)) }
                            td.fit.id { (run_link(&run.id)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the subject of a run as a link to all runs about it.
fn run_subject(run: &WorkflowRunSummary) -> Markup {
    html! {
        // A run without a trigger ID is its own trigger.
        @if run.trigger_id != run.id {
            a href=(url_with_params("/runs", &[("trigger", &run.trigger_id)])) { (isolated_text(&run.trigger_id)) }
        }
    }
}

fn run_duration(frame: &PageFrame, run: &WorkflowRunSummary) -> Markup {
    match run.duration_seconds {
        Some(seconds) => html! { (format_clock_duration(seconds)) },
        None => elapsed_time(frame, run.started_at),
    }
}

/// Returns the page of a workflow run; `plan` are its phases according to the definition it
/// executes.
pub fn workflow_run_page(
    frame: &PageFrame,
    run: &WorkflowRunDetails,
    plan: &[PhaseDescription],
) -> Markup {
    let item = &run.item;
    let title = format!("{} {}", item.workflow, item.id);
    let asks: Vec<_> = run
        .approvals
        .iter()
        .filter(|it| it.item.status == ApprovalStatus::Pending)
        .cloned()
        .collect();
    let content = html! {
        (activity_styles())
        div.stack #head data-live { (head(frame, run)) }
        div #asks data-live data-answers { (approvals::pending_approvals_card(frame, &asks)) }
        div.run {
            section.card #graph data-live aria-labelledby="h-graph" {
                header { h2 #h-graph { "Graph" } }
                (graph::svg(&nodes(run, plan), "Phases and their status"))
            }
            section.card #phases data-live aria-labelledby="h-phases" {
                header { h2 #h-phases { "Phases" } }
                ol.list role="list" {
                    @for phase in &run.phases {
                        li data-row id={ "phase-" (anchor(&phase.name)) } { (phase_section(frame, phase, plan)) }
                    }
                }
            }
        }
        section.card #events data-live aria-labelledby="h-events" { (events(frame, &run.events)) }
    };
    frame.page(DashboardSection::Workflows, &title, content)
}

fn nodes(run: &WorkflowRunDetails, plan: &[PhaseDescription]) -> Vec<GraphNode> {
    let states: HashMap<&str, &str> =
        run.phases.iter().map(|phase| (phase.name.as_str(), phase.status.as_str())).collect();
    // Without the definition the dependencies are unknown, so the phases are drawn side by side.
    if plan.is_empty() {
        let alone = |phase: &PhaseSummary| GraphNode {
            name: phase.name.clone(),
            title: phase.label.clone().unwrap_or_else(|| phase.name.clone()),
            state: phase.status.clone(),
            ..GraphNode::default()
        };
        return run.phases.iter().map(alone).collect();
    }
    // A phase that has not started has no row yet.
    let state =
        |phase: &PhaseDescription| states.get(phase.name.as_str()).copied().unwrap_or("waiting");
    plan.iter().map(|phase| workflows::graph_node(phase, state(phase))).collect()
}

fn head(frame: &PageFrame, run: &WorkflowRunDetails) -> Markup {
    let item = &run.item;
    let api = encode_path("/api/v1/runs", &[&item.id]);
    html! {
        p.crumbs { a href="/workflows" { "Workflows" } " › " a href=(encode_path("/workflows", &[&item.workflow])) { (isolated_text(&item.workflow)) } " › " span.mono { (item.id) } }
        div.head {
            h1 { (isolated_text(&item.workflow)) }
            (status_badge(item.status.as_str()))
            @if item.mode.is_some() { span.badge { "simulated" } }
            @if frame.can_operate() {
                div.tools {
                    @if item.status.is_final() {
                        button.button type="button" data-action={ "POST " (api) "/retry" } data-body="{}" data-done="The run was resumed." { "Retry failed phases" }
                    } @else {
                        button.button.danger type="button" data-action={ "POST " (api) "/cancel" } data-body="{}" data-danger
                            data-confirm="Cancel this run? Its jobs are cancelled too." data-answer="Cancel the run" data-done="The run is being cancelled." { "Cancel" }
                    }
                }
            }
        }
        @if let Some(error) = item.error.as_deref().filter(|it| !it.is_empty()) {
            div.banner.bad role="note" { p.why { (truncate_text(error, OUTPUT_BYTES_MAX)) } }
        }
        section.card aria-label="About the run" {
            dl.facts.pairs.pad {
                dt { "Started by" }
                dd {
                    (isolated_text(item.trigger_type.as_deref().unwrap_or("unknown")))
                    @if let Some(by) = &run.triggered_by { " · " (isolated_text(by)) }
                    // The run's own id as trigger says nothing.
                    @if !item.trigger_id.is_empty() && item.trigger_id != item.id { span.muted { " · " (isolated_text(&item.trigger_id)) } }
                }
                @if let Some(repo) = &item.repo {
                    dt { "Repository" }
                    dd {
                        a href=(url_with_params("/runs", &[("repo", repo)])) { (isolated_text(repo)) }
                        @if let Some(number) = item.issue_number { " #" (number) }
                    }
                }
                dt { "Started" } dd { (relative_time(frame, item.started_at)) }
                dt { "Took" } dd.num { (run_duration(frame, item)) }
                dt { "Cost" } dd.num { (format_usd(item.cost_usd)) }
                @if item.restart_count > 0 { dt { "Restarts" } dd { (item.restart_count) "×" } }
                (inputs(run))
            }
        }
    }
}

fn inputs(run: &WorkflowRunDetails) -> Markup {
    let given = run.inputs.as_object().into_iter().flatten();
    html! {
        @for (name, value) in given {
            dt.mono { (visible_line(name)) }
            dd { div.clamp { (visible_line(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))) } }
        }
    }
}

fn phase_section(frame: &PageFrame, phase: &PhaseSummary, plan: &[PhaseDescription]) -> Markup {
    let planned = plan.iter().find(|it| it.name == phase.name);
    let took = phase
        .started_at
        .zip(phase.finished_at)
        .map(|(began, ended)| ended.duration_since(began).as_secs_f64());
    html! {
        div.line {
            (status_badge(&phase.status))
            strong { (isolated_text(phase.label.as_deref().unwrap_or(&phase.name))) }
            @if let Some(count) = phase.items { span.badge { (count) " items" } }
            span.end.muted.num {
                @if let Some(took) = took { (format_clock_duration(took)) }
                @else if phase.status == "running" { @if let Some(at) = phase.started_at { (elapsed_time(frame, at)) } }
                @if phase.cost_usd > 0.0 { " · " (format_usd(phase.cost_usd)) }
            }
        }
        // A phase that has not started shows what it waits for.
        @if let Some(planned) = planned.filter(|_| phase.parts.is_empty()) {
            p.small.muted { (workflows::describe_dependencies(&planned.depends_on, "", false)) }
        }
        @if let Some(error) = &phase.error { p.small.failed.why { (truncate_text(error, OUTPUT_BYTES_MAX)) } }
        (parts(frame, phase))
        @if let Some(output) = phase.output.as_deref().filter(|it| !it.is_empty()) {
            details id={ "output-" (anchor(&phase.name)) } {
                summary.small { "Output" }
                (markdown(&truncate_text(output, OUTPUT_BYTES_MAX)))
            }
        }
    }
}

fn parts(frame: &PageFrame, phase: &PhaseSummary) -> Markup {
    let shown_parts: Vec<&PartSummary> =
        // Parts without job and error are decisions, which the status already shows.
        phase.parts.iter().filter(|part| part.job.is_some() || part.error.is_some()).collect();
    let left_out = shown_parts.len().saturating_sub(PARTS_SHOWN);
    html! {
        @if left_out > 0 { p.small.muted { (left_out) " earlier parts are left out." } }
        @if !shown_parts.is_empty() {
            ul.small role="list" { @for part in &shown_parts[left_out..] { (part_item(frame, part, &phase.name)) } }
        }
    }
}

fn part_item(frame: &PageFrame, part: &PartSummary, phase: &str) -> Markup {
    html! {
        li.row {
            (status_badge(part.status.as_str()))
            @if part.part != phase { span { (visible_line(&part.part)) } }
            @if let Some(agent) = &part.agent { (agent_link(agent)) }
            @if let Some(job) = &part.job { (job_link(job)) }
            @if let Some(decision) = part.decision { span.badge { (decision.as_str()) } }
            span.end.muted.num {
                @match (part.duration_seconds, part.started_at) {
                    (Some(took), _) => (format_clock_duration(took)),
                    (None, Some(at)) => (elapsed_time(frame, at)),
                    (None, None) => "waiting",
                }
                @if part.cost_usd > 0.0 { " · " (format_usd(part.cost_usd)) }
            }
        }
    }
}

fn events(frame: &PageFrame, events: &[WorkflowEventSummary]) -> Markup {
    let left_out = events.len().saturating_sub(EVENTS_SHOWN);
    html! {
        header { h2 #h-events { "Events" } @if left_out > 0 { span.muted { "the last " (EVENTS_SHOWN) " of " (format_grouped(events.len() as i64)) } } }
        @if events.is_empty() { p.empty.small { "Nothing yet." } }
        @else {
            ol.list role="list" {
                // Newest first, unlike the record.
                @for event in events[left_out..].iter().rev() {
                    li.small { div.line {
                        span.badge { (visible_line(&event.kind)) }
                        @if let Some(phase) = &event.phase { strong { (isolated_text(phase)) } }
                        span { (inline_code(&event.text)) }
                        span.end.muted { (relative_time(frame, event.at)) }
                    } }
                }
            }
        }
    }
}
