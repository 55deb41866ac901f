//! Runs of workflows: pages of them, and one with its graph as it goes on.

use std::collections::HashMap;

use heeler_model::ApprovalStatus;
use heeler_model::workflow::CourseStatus;
use heeler_query::runs::{EventItem, PartItem, PhaseItem, RunDetails, RunPage, WorkflowRunItem};
use heeler_query::workflows::PhaseDescription;
use maud::{Markup, html};

use crate::graph::{self, Node, anchor};
use crate::markdown::markdown;
use crate::parts::{
    agent_link, ago, beginning, coded, dollars, duration, empty, grouped, job_link, one_line, path,
    query, run_link, said, since, state_field, status, work_styles,
};
use crate::{Frame, Section, approvals, workflows};

/// How much of a phase's output the page shows; the whole is in the job's transcript.
const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// How many events the page shows, the newest.
const EVENTS_SHOWN: usize = 100;
/// How many parts of a phase the page shows, the newest.
const PARTS_SHOWN: usize = 50;

/// Which runs a page shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunsView {
    /// Only those of this workflow.
    pub workflow: String,
    /// Only those in this state.
    pub status: Option<CourseStatus>,
    /// Those older than this one.
    pub before: String,
    /// The workflows there are.
    pub workflows: Vec<String>,
}

impl RunsView {
    fn address(&self, before: &str) -> String {
        let status = self.status.map_or("", CourseStatus::as_str);
        query("/runs", &[("workflow", &self.workflow), ("status", status), ("before", before)])
    }
}

/// Whether a table of runs says of which workflow each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// It does.
    Workflow,
    /// They are all of one.
    NoWorkflow,
}

/// Returns the page of runs.
pub fn page(frame: &Frame, view: &RunsView, found: &RunPage) -> Markup {
    let content = html! {
        p.crumbs { a href="/workflows" { "Workflows" } " › runs" }
        div.head { h1 { "Runs" } span.muted { (grouped(found.total)) } }
        (filters(view))
        section.card #list data-live aria-label="Runs" {
            @if found.runs.is_empty() { (empty("No such run", html! { a href="/workflows" { "Run a workflow" } })) }
            @else { (table(frame, &found.runs, Column::Workflow)) }
        }
        @if !view.before.is_empty() || found.next.is_some() {
            nav.pager aria-label="Pages" {
                @if view.before.is_empty() { span {} } @else { a.button href=(view.address("")) { "Newest" } }
                @if let Some(next) = &found.next { a.button rel="next" href=(view.address(next)) { "Older" } }
            }
        }
    };
    frame.page(Section::Workflows, "Runs", content)
}

fn filters(view: &RunsView) -> Markup {
    let chosen = view.status.map_or("", CourseStatus::as_str);
    let is_filtered = !view.workflow.is_empty() || view.status.is_some();
    html! {
        form.filters data-auto role="search" aria-label="Filter runs" {
            div.field {
                label for="f-workflow" { "Workflow" }
                select #f-workflow name="workflow" {
                    option value="" { "All workflows" }
                    @if !view.workflow.is_empty() && !view.workflows.contains(&view.workflow) {
                        option value=(view.workflow) selected { (one_line(&view.workflow)) }
                    }
                    @for one in &view.workflows { option value=(one) selected[*one == view.workflow] { (one_line(one)) } }
                }
            }
            (state_field(CourseStatus::ALL.iter().map(|one| one.as_str()), chosen))
            button.button { "Show" }
            @if is_filtered { a.button.quiet href="/runs" { "Show all" } }
        }
    }
}

/// Returns runs as a table.
pub(crate) fn table(frame: &Frame, runs: &[WorkflowRunItem], column: Column) -> Markup {
    html! {
        div.scroll {
            table.lines {
                thead { tr {
                    th.fit scope="col" { "State" }
                    @if column == Column::Workflow { th scope="col" { "Workflow" } }
                    th.opt2 scope="col" { "At" } th.num scope="col" { "Began" }
                    th.num.opt2 scope="col" { "Took" } th.num.opt scope="col" { "Cost" } th.fit scope="col" { "Run" }
                } }
                tbody {
                    @for run in runs {
                        tr data-row {
                            td.fit { (status(run.status.as_str())) }
                            @if column == Column::Workflow { td { a href=(path("/workflows", &[&run.workflow])) { (said(&run.workflow)) } } }
                            td.opt2 { (said(&run.current_phase)) @if let Some(error) = &run.error { div.clamp.muted { (one_line(error)) } } }
                            td.num { (ago(frame, run.started_at)) }
                            td.num.opt2 { (took(frame, run)) }
                            td.num.opt { (dollars(run.cost_usd)) }
                            td.fit.id { (run_link(&run.id)) }
                        }
                    }
                }
            }
        }
    }
}

fn took(frame: &Frame, run: &WorkflowRunItem) -> Markup {
    match run.duration_seconds {
        Some(seconds) => html! { (duration(seconds)) },
        None => since(frame, run.started_at),
    }
}

/// Returns the page of a run; `plan` is what its phases are by the file that it goes by.
pub fn one(frame: &Frame, run: &RunDetails, plan: &[PhaseDescription]) -> Markup {
    let item = &run.item;
    let title = format!("{} {}", item.workflow, item.id);
    let asks: Vec<_> = run
        .approvals
        .iter()
        .filter(|it| it.item.status == ApprovalStatus::Pending)
        .cloned()
        .collect();
    let content = html! {
        (work_styles())
        div.stack #head data-live { (head(frame, run)) }
        div #asks data-live data-answers { (approvals::inline(frame, &asks)) }
        div.run {
            section.card #graph data-live aria-labelledby="h-graph" {
                header { h2 #h-graph { "Graph" } }
                (graph::svg(&nodes(run, plan), "Phases and how they stand"))
            }
            section.card #phases data-live aria-labelledby="h-phases" {
                header { h2 #h-phases { "Phases" } }
                ol.list role="list" {
                    @for phase in &run.phases {
                        li data-row id={ "phase-" (anchor(&phase.name)) } { (phase_of(frame, phase, plan)) }
                    }
                }
            }
        }
        section.card #events data-live aria-labelledby="h-events" { (events(frame, &run.events)) }
    };
    frame.page(Section::Workflows, &title, content)
}

fn nodes(run: &RunDetails, plan: &[PhaseDescription]) -> Vec<Node> {
    let states: HashMap<&str, &str> =
        run.phases.iter().map(|phase| (phase.name.as_str(), phase.status.as_str())).collect();
    if plan.is_empty() {
        let alone = |phase: &PhaseItem| Node {
            name: phase.name.clone(),
            title: phase.label.clone().unwrap_or_else(|| phase.name.clone()),
            state: phase.status.clone(),
            ..Node::default()
        };
        return run.phases.iter().map(alone).collect();
    }
    let state =
        |phase: &PhaseDescription| states.get(phase.name.as_str()).copied().unwrap_or("waiting");
    plan.iter().map(|phase| workflows::node(phase, state(phase))).collect()
}

fn head(frame: &Frame, run: &RunDetails) -> Markup {
    let item = &run.item;
    let api = path("/api/v1/runs", &[&item.id]);
    html! {
        p.crumbs { a href="/workflows" { "Workflows" } " › " a href=(path("/workflows", &[&item.workflow])) { (said(&item.workflow)) } " › " span.mono { (item.id) } }
        div.head {
            h1 { (said(&item.workflow)) }
            (status(item.status.as_str()))
            @if item.mode.is_some() { span.badge { "played" } }
            @if frame.may_operate() {
                div.tools {
                    @if item.status.is_final() {
                        button.button type="button" data-action={ "POST " (api) "/retry" } data-body="{}" data-done="The run goes on." { "Retry what failed" }
                    } @else {
                        button.button.danger type="button" data-action={ "POST " (api) "/cancel" } data-body="{}" data-danger
                            data-confirm="End this run? Its jobs are ended too." data-answer="End the run" data-done="The run is being ended." { "Cancel" }
                    }
                }
            }
        }
        @if let Some(error) = item.error.as_deref().filter(|it| !it.is_empty()) {
            div.banner.bad role="note" { p.why { (beginning(error, OUTPUT_BYTES_MAX)) } }
        }
        section.card aria-label="About the run" {
            dl.facts.pairs.pad {
                dt { "Started by" }
                dd {
                    (said(item.trigger_type.as_deref().unwrap_or("somebody")))
                    @if let Some(by) = &run.triggered_by { " · " (said(by)) }
                    @if !item.trigger_id.is_empty() && item.trigger_id != item.id { span.muted { " · " (said(&item.trigger_id)) } }
                }
                dt { "Began" } dd { (ago(frame, item.started_at)) }
                dt { "Took" } dd.num { (took(frame, item)) }
                dt { "Cost" } dd.num { (dollars(item.cost_usd)) }
                @if item.restart_count > 0 { dt { "Gone on" } dd { (item.restart_count) "×" } }
                (inputs(run))
            }
        }
    }
}

fn inputs(run: &RunDetails) -> Markup {
    let given = run.inputs.as_object().into_iter().flatten();
    html! {
        @for (name, value) in given {
            dt.mono { (one_line(name)) }
            dd { div.clamp { (one_line(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))) } }
        }
    }
}

fn phase_of(frame: &Frame, phase: &PhaseItem, plan: &[PhaseDescription]) -> Markup {
    let planned = plan.iter().find(|it| it.name == phase.name);
    let took = phase
        .started_at
        .zip(phase.finished_at)
        .map(|(began, ended)| ended.duration_since(began).as_secs_f64());
    html! {
        div.line {
            (status(&phase.status))
            strong { (said(phase.label.as_deref().unwrap_or(&phase.name))) }
            @if let Some(count) = phase.items { span.badge { (count) " items" } }
            span.end.muted.num {
                @if let Some(took) = took { (duration(took)) }
                @else if phase.status == "running" { @if let Some(at) = phase.started_at { (since(frame, at)) } }
                @if phase.cost_usd > 0.0 { " · " (dollars(phase.cost_usd)) }
            }
        }
        @if let Some(planned) = planned.filter(|_| phase.parts.is_empty()) {
            p.small.muted { (workflows::waits(&planned.depends_on, "", false)) }
        }
        @if let Some(error) = &phase.error { p.small.failed.why { (beginning(error, OUTPUT_BYTES_MAX)) } }
        (parts(frame, phase))
        @if let Some(output) = phase.output.as_deref().filter(|it| !it.is_empty()) {
            details id={ "output-" (anchor(&phase.name)) } {
                summary.small { "Output" }
                (markdown(&beginning(output, OUTPUT_BYTES_MAX)))
            }
        }
    }
}

fn parts(frame: &Frame, phase: &PhaseItem) -> Markup {
    let told: Vec<&PartItem> =
        phase.parts.iter().filter(|part| part.job.is_some() || part.error.is_some()).collect();
    let left_out = told.len().saturating_sub(PARTS_SHOWN);
    html! {
        @if left_out > 0 { p.small.muted { (left_out) " earlier parts are left out." } }
        @if !told.is_empty() {
            ul.small role="list" { @for part in &told[left_out..] { (part_of(frame, part, &phase.name)) } }
        }
    }
}

fn part_of(frame: &Frame, part: &PartItem, phase: &str) -> Markup {
    html! {
        li.row {
            (status(part.status.as_str()))
            @if part.part != phase { span { (one_line(&part.part)) } }
            @if let Some(agent) = &part.agent { (agent_link(agent)) }
            @if let Some(job) = &part.job { (job_link(job)) }
            @if let Some(decision) = part.decision { span.badge { (decision.as_str()) } }
            span.end.muted.num {
                @match (part.duration_seconds, part.started_at) {
                    (Some(took), _) => (duration(took)),
                    (None, Some(at)) => (since(frame, at)),
                    (None, None) => "waits",
                }
                @if part.cost_usd > 0.0 { " · " (dollars(part.cost_usd)) }
            }
        }
    }
}

fn events(frame: &Frame, events: &[EventItem]) -> Markup {
    let left_out = events.len().saturating_sub(EVENTS_SHOWN);
    html! {
        header { h2 #h-events { "What happened" } @if left_out > 0 { span.muted { "the last " (EVENTS_SHOWN) " of " (grouped(events.len() as i64)) } } }
        @if events.is_empty() { p.empty.small { "Nothing yet." } }
        @else {
            ol.list role="list" {
                @for event in events[left_out..].iter().rev() {
                    li.small { div.line {
                        span.badge { (one_line(&event.kind)) }
                        @if let Some(phase) = &event.phase { strong { (said(phase)) } }
                        span { (coded(&event.text)) }
                        span.end.muted { (ago(frame, event.at)) }
                    } }
                }
            }
        }
    }
}
