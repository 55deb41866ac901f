//! Workflows: all of them, and one with its graph, what it asks for and its last runs.

use heeler_model::workflow::{InputType, TriggerRule};
use heeler_query::workflows::{
    CronItem, FaultItem, FaultyWorkflow, InputItem, PhaseDescription, WorkflowDetails,
    WorkflowItem, WorkflowPage,
};
use maud::{Markup, html};
use serde_json::Value;

use crate::graph::{self, Node, anchor};
use crate::markdown::{markdown, markdown_line};
use crate::parts::{
    agent_link, ago, coded, dollars, empty, one_line, path, query, said, status, work_styles,
};
use crate::{Frame, Section, runs};

/// How many faults of a file are shown.
const FAULTS_SHOWN: usize = 5;

/// Returns the page of all.
pub fn page(frame: &Frame, found: &WorkflowPage) -> Markup {
    let content = html! {
        div.head {
            h1 { "Workflows" }
            div.tools { a.button href="/runs" { "All runs" } }
        }
        div.stack #faulty data-live { @for one in &found.faulty { (faulty(one)) } }
        section.card #list data-live aria-label="Workflows" {
            @if found.workflows.is_empty() {
                (empty("No workflows", html! { "A workflow is a YAML file of phases in " code { "workflows/" } " beside the config." }))
            } @else { (table(frame, &found.workflows)) }
        }
    };
    frame.page(Section::Workflows, "Workflows", content)
}

/// Shows a file that cannot be used, and why.
fn faulty(one: &FaultyWorkflow) -> Markup {
    let what = if one.kind == "cron" { "This cron" } else { "This workflow" };
    html! {
        div.banner.bad role="note" {
            div.hang {
                p { strong { (said(&one.name)) } " · " (what) " cannot run until its file is corrected: " code { (one_line(&one.file)) } }
                ul role="list" {
                    @for error in one.errors.iter().take(FAULTS_SHOWN) {
                        li.small {
                            span.mono.muted { "line " (error.line) ": " } (coded(&error.message))
                            @if let Some(help) = &error.help { span.muted { " · " (coded(help)) } }
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

fn table(frame: &Frame, workflows: &[WorkflowItem]) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr {
                    th scope="col" { "Workflow" } th.fit scope="col" { "State" }
                    th.num.opt2 scope="col" { "Phases" } th.opt scope="col" { "Started by the clock" }
                    th scope="col" { "Last run" }
                } }
                tbody { @for one in workflows { (row(frame, one)) } }
            }
        }
    }
}

fn row(frame: &Frame, one: &WorkflowItem) -> Markup {
    html! {
        tr data-row {
            td {
                a href=(path("/workflows", &[&one.name])) { strong { (said(&one.name)) } }
                @if let Some(text) = &one.description { div.clamp.muted { (markdown_line(text)) } }
                @if one.warnings > 0 {
                    div.small { (one.warnings) @if one.warnings == 1 { " warning" } @else { " warnings" } " about its file" }
                }
            }
            td.fit { (switch_state(one.enabled)) }
            td.opt2.num { (one.phases.len()) }
            td.opt { @for cron in &one.crons { div.small { (said(&cron.name)) " " code { (one_line(&cron.schedule)) } @if !cron.enabled { " " span.badge { "off" } } } } }
            td {
                @match &one.last_run {
                    Some(run) => {
                        a href=(path("/runs", &[&run.id])) { span.visually-hidden { "Last run of " (one_line(&one.name)) ": " } (status(run.status.as_str())) }
                        " " span.muted { (ago(frame, run.started_at)) }
                    }
                    None => span.muted { "never" },
                }
            }
        }
    }
}

fn switch_state(enabled: bool) -> Markup {
    status(if enabled { "enabled" } else { "disabled" })
}

/// Returns the page of one.
pub fn one(frame: &Frame, it: &WorkflowDetails) -> Markup {
    let content = html! {
        (work_styles())
        div.stack #head data-live { (head(frame, it)) }
        div.run {
            section.card aria-labelledby="h-graph" {
                header { h2 #h-graph { "Graph" } }
                (graph::svg(&it.phases.iter().map(|phase| node(phase, "")).collect::<Vec<_>>(), "Phases and what they wait for"))
            }
            div.stack {
                @if frame.may_operate() { (form(it)) }
                section.card #runs data-live aria-labelledby="h-runs" {
                    header { h2 #h-runs { "Last runs" } a.more href=(query("/runs", &[("workflow", &it.name)])) { "all" } }
                    @if it.runs.is_empty() { p.empty.small { "It has never run." } }
                    @else { (runs::table(frame, &it.runs, runs::Column::NoWorkflow)) }
                }
            }
        }
        (phases(&it.phases))
    };
    frame.page(Section::Workflows, &it.name, content)
}

fn head(frame: &Frame, it: &WorkflowDetails) -> Markup {
    let api = path("/api/v1/workflows", &[&it.name]);
    let (verb, word) = if it.enabled { ("disable", "Disable") } else { ("enable", "Enable") };
    html! {
        p.crumbs { a href="/workflows" { "Workflows" } " › " (said(&it.name)) }
        div.head {
            h1 { (said(&it.name)) }
            (switch_state(it.enabled))
            @if frame.may_operate() {
                div.tools { button.button type="button" data-action={ "POST " (api) "/" (verb) } { (word) } }
            }
        }
        @if let Some(text) = &it.description { (markdown(text)) }
        @for warning in &it.warnings { (fault(warning)) }
        section.card aria-label="About the workflow" {
            dl.facts.pairs.pad {
                dt { "File" } dd.mono { (one_line(&it.file)) }
                @if let Some(agent) = &it.agent { dt { "Agent" } dd { (agent_link(agent)) } }
                dt { "At once" } dd { "at most " (it.max_parallel) @if it.max_parallel == 1 { " part" } @else { " parts" } }
                @if let Some(budget) = it.budget_usd { dt { "Budget" } dd { (dollars(budget)) " a run" } }
                @if let Some(changed) = &it.changed {
                    dt { "Switched" } dd { (if changed.enabled { "on" } else { "off" }) " by " (said(&changed.by)) " " (ago(frame, changed.at)) }
                }
                @for cron in &it.crons { dt { "By the clock" } dd { (cron_of(cron)) } }
            }
        }
    }
}

fn cron_of(cron: &CronItem) -> Markup {
    html! {
        (said(&cron.name)) " " code { (one_line(&cron.schedule)) }
        @if let Some(zone) = &cron.timezone { " " (one_line(zone)) }
        @if !cron.enabled { " " span.badge { "off" } }
    }
}

fn fault(fault: &FaultItem) -> Markup {
    html! {
        p.banner.warn role="note" {
            span {
                (coded(&fault.message))
                @if let Some(help) = &fault.help { span.muted { " · " (coded(help)) } }
                span.mono.muted.small { " " (one_line(&fault.file)) ":" (fault.line) }
            }
        }
    }
}

/// Returns a phase as a part of the graph.
pub(crate) fn node(phase: &PhaseDescription, state: &str) -> Node {
    let who = match phase.kind.as_str() {
        "agent" => phase.agent.clone().unwrap_or_default(),
        "context" => String::new(),
        other => other.to_owned(),
    };
    let sub = [Some(who).filter(|it| !it.is_empty()), phase.repeat.clone()];
    Node {
        name: phase.name.clone(),
        title: phase.label.clone().unwrap_or_else(|| phase.name.clone()),
        sub: sub.into_iter().flatten().collect::<Vec<_>>().join(", "),
        state: state.to_owned(),
        after: phase.depends_on.clone(),
        is_lenient: phase.trigger_rule != TriggerRule::AllSuccess,
        has_gate: phase.gate.is_some(),
    }
}

fn form(it: &WorkflowDetails) -> Markup {
    let api = path("/api/v1/workflows", &[&it.name]);
    html! {
        section.card aria-labelledby="h-run" {
            header { h2 #h-run { "Run it" } }
            form.pad.stack-s data-action={ "POST " (api) "/runs" } data-under="inputs" data-go="/runs/{id}" {
                @for (number, input) in it.inputs.iter().enumerate() { (field(number, input)) }
                div.row {
                    button.button.primary disabled[!it.enabled] { "Run" }
                    button.button data-body="{\"dryRun\":true}" disabled[!it.enabled] title="Asks no agent: shows which phases would run" { "Try without agents" }
                    @if !it.enabled { span.note { "It is disabled." } }
                }
            }
        }
    }
}

fn field(number: usize, input: &InputItem) -> Markup {
    let id = format!("input-{number}");
    let about = format!("about-{number}");
    let described = input.description.as_ref().map(|_| about.as_str());
    html! {
        div.field {
            label for=(id) { (one_line(&input.name)) @if input.required { span.muted { "(needed)" } } }
            @if let Some(text) = &input.description { span.note id=(about) { (one_line(text)) } }
            @if !input.options.is_empty() || input.kind == InputType::Boolean {
                (choices(&id, input, described))
            } @else if input.kind == InputType::Number {
                input id=(id) name=(input.name) type="number" step="any" required[input.required]
                    aria-describedby=[described] placeholder=[default(input)];
            } @else {
                textarea id=(id) name=(input.name) rows="1" required[input.required]
                    aria-describedby=[described] placeholder=[default(input)] {}
                @if input.kind == InputType::List { span.note { "A list, as JSON or with commas" } }
            }
        }
    }
}

fn choices(id: &str, input: &InputItem, described: Option<&str>) -> Markup {
    let given: Vec<String> = match input.kind {
        InputType::Boolean if input.options.is_empty() => {
            vec!["true".to_owned(), "false".to_owned()]
        }
        _ => input.options.iter().map(text_of).collect(),
    };
    html! {
        select id=(id) name=(input.name) required[input.required] aria-describedby=[described] {
            option value="" { @match default(input) { Some(it) => { "As usual: " (it) } None => "Choose", } }
            @for one in &given { option value=(one) { (one_line(one)) } }
        }
    }
}

fn default(input: &InputItem) -> Option<String> {
    input.default.as_ref().map(|value| one_line(&text_of(value)))
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn phases(phases: &[PhaseDescription]) -> Markup {
    html! {
        section.card aria-labelledby="h-phases" {
            header { h2 #h-phases { "Phases" } }
            ol.list role="list" {
                @for phase in phases { li data-row id={ "phase-" (anchor(&phase.name)) } { (phase_of(phase)) } }
            }
        }
    }
}

fn phase_of(phase: &PhaseDescription) -> Markup {
    html! {
        div.line {
            strong { (said(phase.label.as_deref().unwrap_or(&phase.name))) }
            span.badge { (one_line(&phase.kind)) }
            @if let Some(agent) = &phase.agent { @if phase.kind == "agent" { (agent_link(agent)) } }
            @if let Some(gate) = &phase.gate { span.badge { "asks: " (one_line(&gate.name)) } }
        }
        p.small.muted {
            (waits(&phase.depends_on, phase.trigger_rule.as_str(), phase.trigger_rule != TriggerRule::AllSuccess))
            @if let Some(repeat) = &phase.repeat { " · " (one_line(repeat)) }
            @if phase.retries > 0 { " · tried again at most " (phase.retries) "×" }
            @if !phase.skip_if.is_empty() { " · left out if " (one_line(&phase.skip_if.join(", "))) }
        }
    }
}

/// Says in words what a phase waits for.
pub(crate) fn waits(before: &[String], rule: &str, is_lenient: bool) -> Markup {
    html! {
        @if before.is_empty() { "waits for nothing" } @else { "after " (one_line(&before.join(", "))) }
        @if is_lenient { " (" (rule) ")" }
    }
}
