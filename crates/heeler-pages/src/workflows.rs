//! Workflow pages: the list, and one workflow with its graph, inputs and last runs.

use heeler_config::workflow::{TriggerRule, WorkflowInputType};
use heeler_query::workflows::{
    ConfigFaultSummary, CronSummary, FaultyWorkflow, PhaseDescription, WorkflowDetails,
    WorkflowInputSummary, WorkflowPage, WorkflowSummary,
};
use maud::{Markup, html};
use serde_json::Value;

use crate::components::{
    activity_styles, agent_link, empty_notice, encode_path, format_usd, inline_code, isolated_text,
    relative_time, status_badge, url_with_params, visible_line,
};
use crate::graph::{self, GraphNode, anchor};
use crate::markdown::{markdown, markdown_line};
use crate::{DashboardSection, PageFrame, workflow_runs};

/// Most errors of a file that are shown.
const FAULTS_SHOWN: usize = 5;

/// Returns the page of all workflows.
pub fn page(frame: &PageFrame, found: &WorkflowPage) -> Markup {
    let content = html! {
        div.head {
            h1 { "Workflows" }
            div.tools {
                @if frame.can_administer() { a.button href="/config?new=workflow" { "New workflow" } }
                a.button href="/runs" { "All runs" }
            }
        }
        div.stack #faulty data-live { @for one in &found.faulty { (faulty_file(one)) } }
        section.card #list data-live aria-label="Workflows" {
            @if found.workflows.is_empty() {
                (empty_notice("No workflows", html! { "A workflow is a YAML file of phases in " code { "workflows/" } " next to the config." }))
            } @else { (table(frame, &found.workflows)) }
        }
    };
    frame.page(DashboardSection::Workflows, "Workflows", content)
}

/// Renders a workflow file with errors.
fn faulty_file(one: &FaultyWorkflow) -> Markup {
    let subject = if one.kind == "cron" { "This cron" } else { "This workflow" };
    html! {
        div.banner.bad role="note" {
            div.hang {
                p { strong { (isolated_text(&one.name)) } " · " (subject) " cannot run until its file is corrected: " code { (visible_line(&one.file)) } }
                ul role="list" {
                    @for error in one.errors.iter().take(FAULTS_SHOWN) {
                        li.small {
                            span.mono.muted { "line " (error.line) ": " } (inline_code(&error.message))
                            @if let Some(help) = &error.help { span.muted { " · " (inline_code(help)) } }
                        }
                    }
                    @if one.errors.len() > FAULTS_SHOWN {
                        li.small.muted { "and " (one.errors.len() - FAULTS_SHOWN) " more: " code { "heeler workflow validate" } }
                    }
                }
            }
        }
    }
}

fn table(frame: &PageFrame, workflows: &[WorkflowSummary]) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr {
                    th scope="col" { "Workflow" } th.fit scope="col" { "State" }
                    th.num.opt2 scope="col" { "Phases" } th.opt scope="col" { "Cron schedules" }
                    th scope="col" { "Last run" }
                } }
                tbody { @for one in workflows { (row(frame, one)) } }
            }
        }
    }
}

fn row(frame: &PageFrame, one: &WorkflowSummary) -> Markup {
    html! {
        tr data-row {
            td {
                a href=(encode_path("/workflows", &[&one.name])) { strong { (isolated_text(&one.name)) } }
                @if let Some(text) = &one.description { div.clamp.muted { (markdown_line(text)) } }
                @if one.warnings > 0 {
                    div.small { (one.warnings) @if one.warnings == 1 { " warning" } @else { " warnings" } " about its file" }
                }
            }
            td.fit { (switch_state(one.enabled)) }
            td.opt2.num { (one.phases.len()) }
            td.opt { @for cron in &one.crons { div.small { (isolated_text(&cron.name)) " " code { (visible_line(&cron.schedule)) } @if !cron.enabled { " " span.badge { "off" } } } } }
            td {
                @match &one.last_run {
                    Some(run) => {
                        a href=(encode_path("/runs", &[&run.id])) { span.visually-hidden { "Last run of " (visible_line(&one.name)) ": " } (status_badge(run.status.as_str())) }
                        " " span.muted { (relative_time(frame, run.started_at)) }
                    }
                    None => span.muted { "never" },
                }
            }
        }
    }
}

fn switch_state(enabled: bool) -> Markup {
    status_badge(if enabled { "enabled" } else { "disabled" })
}

/// Returns the page of one workflow.
pub fn workflow_page(frame: &PageFrame, it: &WorkflowDetails) -> Markup {
    let content = html! {
        (activity_styles())
        div.stack #head data-live { (head(frame, it)) }
        div.run {
            section.card aria-labelledby="h-graph" {
                header { h2 #h-graph { "Graph" } }
                (phase_graph(&it.phases))
            }
            div.stack {
                @if frame.can_operate() { (form(it)) }
                section.card #runs data-live aria-labelledby="h-runs" {
                    header { h2 #h-runs { "Last runs" } a.more href=(url_with_params("/runs", &[("workflow", &it.name)])) { "all" } }
                    @if it.runs.is_empty() { p.empty.small { "No runs yet." } }
                    @else { (workflow_runs::table(frame, &it.runs, workflow_runs::WorkflowColumn::NoWorkflow)) }
                }
            }
        }
        (phases(&it.phases))
    };
    frame.page(DashboardSection::Workflows, &it.name, content)
}

/// Draws the phases of a workflow that is being edited.
pub fn draft_graph(phases: &[PhaseDescription]) -> String {
    phase_graph(phases).into_string()
}

fn phase_graph(phases: &[PhaseDescription]) -> Markup {
    let nodes: Vec<GraphNode> = phases.iter().map(|phase| graph_node(phase, "")).collect();
    graph::svg(&nodes, "Phases and their dependencies")
}

fn head(frame: &PageFrame, it: &WorkflowDetails) -> Markup {
    let api = encode_path("/api/v1/workflows", &[&it.name]);
    let (verb, word) = if it.enabled { ("disable", "Disable") } else { ("enable", "Enable") };
    html! {
        p.crumbs { a href="/workflows" { "Workflows" } " › " (isolated_text(&it.name)) }
        div.head {
            h1 { (isolated_text(&it.name)) }
            (switch_state(it.enabled))
            @if frame.can_operate() {
                div.tools {
                    @if frame.can_administer() { a.button href=(url_with_params("/config", &[("workflow", &it.name)])) { "Edit" } }
                    button.button type="button" data-action={ "POST " (api) "/" (verb) } { (word) }
                }
            }
        }
        @if let Some(text) = &it.description { (markdown(text)) }
        @for warning in &it.warnings { (fault(warning)) }
        section.card aria-label="About the workflow" {
            dl.facts.pairs.pad {
                dt { "File" } dd.mono { (visible_line(&it.file)) }
                @if let Some(agent) = &it.agent { dt { "Agent" } dd { (agent_link(agent)) } }
                dt { "Concurrency" } dd { "at most " (it.max_parallel) @if it.max_parallel == 1 { " part" } @else { " parts" } }
                @if let Some(budget) = it.budget_usd { dt { "Budget" } dd { (format_usd(budget)) " a run" } }
                @if let Some(changed) = &it.changed {
                    dt { "Changed" } dd { (if changed.enabled { "enabled" } else { "disabled" }) " by " (isolated_text(&changed.by)) " " (relative_time(frame, changed.at)) }
                }
                @for cron in &it.crons { dt { "Cron schedule" } dd { (cron_item(cron)) } }
            }
        }
    }
}

fn cron_item(cron: &CronSummary) -> Markup {
    html! {
        (isolated_text(&cron.name)) " " code { (visible_line(&cron.schedule)) }
        @if let Some(zone) = &cron.timezone { " " (visible_line(zone)) }
        @if !cron.enabled { " " span.badge { "off" } }
    }
}

fn fault(fault: &ConfigFaultSummary) -> Markup {
    html! {
        p.banner.warn role="note" {
            span {
                (inline_code(&fault.message))
                @if let Some(help) = &fault.help { span.muted { " · " (inline_code(help)) } }
                span.mono.muted.small { " " (visible_line(&fault.file)) ":" (fault.line) }
            }
        }
    }
}

/// Returns a phase as a node of the graph.
pub(crate) fn graph_node(phase: &PhaseDescription, state: &str) -> GraphNode {
    // Commands have no agent; their kind says who executes them.
    let executor = match phase.kind.as_str() {
        "agent" => phase.agent.clone().unwrap_or_default(),
        "context" => String::new(),
        other => other.to_owned(),
    };
    let sub = [Some(executor).filter(|it| !it.is_empty()), phase.repeat.clone()];
    GraphNode {
        name: phase.name.clone(),
        title: phase.label.clone().unwrap_or_else(|| phase.name.clone()),
        subtitle: sub.into_iter().flatten().collect::<Vec<_>>().join(", "),
        state: state.to_owned(),
        after: phase.depends_on.clone(),
        allows_failures: phase.trigger_rule != TriggerRule::AllSuccess,
        has_gate: phase.gate.is_some(),
    }
}

fn form(it: &WorkflowDetails) -> Markup {
    let api = encode_path("/api/v1/workflows", &[&it.name]);
    html! {
        section.card aria-labelledby="h-run" {
            header { h2 #h-run { "Run" } }
            form.pad.stack-s data-action={ "POST " (api) "/runs" } data-under="inputs" data-go="/runs/{id}" {
                @for (number, input) in it.inputs.iter().enumerate() { (field(number, input)) }
                div.row {
                    // A disabled workflow refuses runs, so the button does not pretend otherwise.
                    button.button.primary disabled[!it.enabled] { "Run" }
                    button.button data-body="{\"dryRun\":true}" disabled[!it.enabled] title="Calls no agents: shows which phases would run" { "Dry run" }
                    @if !it.enabled { span.note { "The workflow is disabled." } }
                }
            }
        }
    }
}

fn field(number: usize, input: &WorkflowInputSummary) -> Markup {
    // Names of inputs may contain any character, but an id may not.
    let id = format!("input-{number}");
    let about = format!("about-{number}");
    let described = input.description.as_ref().map(|_| about.as_str());
    html! {
        div.field {
            label for=(id) { (visible_line(&input.name)) @if input.required { span.muted { "(required)" } } }
            @if let Some(text) = &input.description { span.note id=(about) { (visible_line(text)) } }
            @if !input.options.is_empty() || input.kind == WorkflowInputType::Boolean {
                (choices(&id, input, described))
            } @else if input.kind == WorkflowInputType::Number {
                input id=(id) name=(input.name) type="number" step="any" required[input.required]
                    // The default is a placeholder, so that an empty field sends nothing and the
                    // default applies.
                    aria-describedby=[described] placeholder=[default_value(input)];
            } @else {
                textarea id=(id) name=(input.name) rows="1" required[input.required]
                    aria-describedby=[described] placeholder=[default_value(input)] {}
                @if input.kind == WorkflowInputType::List { span.note { "A list, as JSON or with commas" } }
            }
        }
    }
}

fn choices(id: &str, input: &WorkflowInputSummary, described: Option<&str>) -> Markup {
    let given: Vec<String> = match input.kind {
        // A checkbox could not express that no value was chosen.
        WorkflowInputType::Boolean if input.options.is_empty() => {
            vec!["true".to_owned(), "false".to_owned()]
        }
        _ => input.options.iter().map(text_of).collect(),
    };
    html! {
        select id=(id) name=(input.name) required[input.required] aria-describedby=[described] {
            // An empty choice sends nothing, so that the default applies.
            option value="" { @match default_value(input) { Some(it) => { "Default: " (it) } None => "Choose", } }
            @for one in &given { option value=(one) { (visible_line(one)) } }
        }
    }
}

fn default_value(input: &WorkflowInputSummary) -> Option<String> {
    input.default.as_ref().map(|value| visible_line(&text_of(value)))
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn phases(phases: &[PhaseDescription]) -> Markup {
    html! {
        section.card aria-labelledby="h-phases" {
            header { h2 #h-phases { "Phases" } }
            ol.list role="list" {
                @for phase in phases { li data-row id={ "phase-" (anchor(&phase.name)) } { (phase_section(phase)) } }
            }
        }
    }
}

fn phase_section(phase: &PhaseDescription) -> Markup {
    html! {
        div.line {
            strong { (isolated_text(phase.label.as_deref().unwrap_or(&phase.name))) }
            span.badge { (visible_line(&phase.kind)) }
            @if let Some(agent) = &phase.agent { @if phase.kind == "agent" { (agent_link(agent)) } }
            @if let Some(gate) = &phase.gate { span.badge { "gate: " (visible_line(&gate.name)) } }
        }
        p.small.muted {
            (describe_dependencies(&phase.depends_on, phase.trigger_rule.as_str(), phase.trigger_rule != TriggerRule::AllSuccess))
            @if let Some(repeat) = &phase.repeat { " · " (visible_line(repeat)) }
            @if phase.retries > 0 { " · at most " (phase.retries) " retries" }
            @if !phase.skip_if.is_empty() { " · skipped if " (visible_line(&phase.skip_if.join(", "))) }
        }
    }
}

/// Describes the dependencies of a phase.
pub(crate) fn describe_dependencies(before: &[String], rule: &str, is_lenient: bool) -> Markup {
    html! {
        @if before.is_empty() { "no dependencies" } @else { "after " (visible_line(&before.join(", "))) }
        @if is_lenient { " (" (rule) ")" }
    }
}
