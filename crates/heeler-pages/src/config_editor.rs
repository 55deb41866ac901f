//! Page that edits config files: forms for agents, schedules and workflows, and the YAML beside them,
//! with the faults, the graph and the difference before anything is saved. The script loads and saves
//! the files.

use maud::{Markup, html};

use crate::components::activity_styles;
use crate::{DashboardSection, PageFrame};

pub fn page(frame: &PageFrame) -> Markup {
    let content = html! {
        (activity_styles())
        nav.crumbs aria-label="Breadcrumb" { a href="/settings#config" { "Settings" } }
        div.head { h1 { "Edit the config" } }
        p.banner.warn.no-script role="note" { "This page needs scripts. " code { "heeler config edit" } " edits the files in a terminal." }
        div.split.even data-config-editor {
            div.stack { (file_card()) (agent_form()) (workflow_form()) (fields_card()) (removal_card()) }
            div.stack { (text_card()) (graph_card()) (result_card()) }
        }
    };
    frame.page(DashboardSection::Settings, "Edit the config", content)
}

fn file_card() -> Markup {
    html! {
        section.card aria-labelledby="h-file" {
            header { h2 #h-file { "File" } }
            div.pad.stack-s {
                div.field {
                    label for="config-file" { "Edit this file, or add an agent or a workflow" }
                    select #config-file {
                        option value="" { "New agent" }
                        option value="+workflow" { "New workflow" }
                    }
                }
                p.note #config-agents {}
            }
        }
    }
}

/// Renders the form that writes the text of a new agent.
fn agent_form() -> Markup {
    html! {
        section.card #config-form aria-labelledby="h-form" {
            header { h2 #h-form { "New agent" } span.note.end { "fills the text beside" } }
            form.pad.stack-s #agent-form autocomplete="off" {
                div.field { label for="a-name" { "Name" } input #a-name name="name" required maxlength="64" pattern="[a-zA-Z0-9][a-zA-Z0-9_\\-]*"; }
                div.field { label for="a-about" { "Purpose" } input #a-about name="description"; }
                div.field { label for="a-folder" { "Working directory, relative to the file" } input #a-folder name="folder" value=".."; }
                div.field { label for="a-prompt" { "Prompt" } textarea #a-prompt name="prompt" rows="3" {} }
                div.field {
                    label for="a-cron" { "Schedule, as a cron expression; empty for none" }
                    input #a-cron name="cron" placeholder="0 3 * * *";
                }
                div.field {
                    label for="a-approvals" { "Questions of the agent" }
                    select #a-approvals name="approvals" {
                        option value="" { "denied (autonomous)" }
                        option value="interactive" { "asked (interactive)" }
                        option value="review" { "asked before each action (review)" }
                    }
                }
                div.field { label for="a-budget" { "Budget per job, in US dollars; empty for none" } input #a-budget name="budget" type="number" min="0" step="0.01"; }
            }
        }
    }
}

/// Renders the form that writes the text of a new workflow.
fn workflow_form() -> Markup {
    html! {
        section.card #config-workflow-form hidden aria-labelledby="h-workflow" {
            header { h2 #h-workflow { "New workflow" } span.note.end { "fills the text beside" } }
            form.pad.stack-s #workflow-form autocomplete="off" {
                div.field { label for="w-name" { "Name" } input #w-name name="name" required maxlength="64" pattern="[a-zA-Z0-9][a-zA-Z0-9_\\-]*"; }
                div.field { label for="w-about" { "Purpose" } input #w-about name="description"; }
                div.field { label for="w-agent" { "Agent" } input #w-agent name="agent"; }
                div.field { label for="w-phase" { "First phase" } input #w-phase name="phase" placeholder="work"; }
                div.field { label for="w-prompt" { "Its prompt" } textarea #w-prompt name="prompt" rows="3" {} }
                div.field { label { input #w-gate name="gate" type="checkbox"; " Wait for an approval after it" } }
            }
        }
    }
}

/// Renders the card for the fields of an existing file, which the script fills.
fn fields_card() -> Markup {
    html! {
        section.card #config-fields hidden aria-labelledby="h-fields" {
            header { h2 #h-fields { "Values" } span.note.end { "change the text beside" } }
            div.pad.stack-s #config-field-list {}
        }
    }
}

fn graph_card() -> Markup {
    html! {
        section.card #config-drawing hidden aria-labelledby="h-graph" {
            header { h2 #h-graph { "Graph" } }
            div #config-graph {}
        }
    }
}

fn removal_card() -> Markup {
    html! {
        section.card #config-removal hidden aria-labelledby="h-remove" {
            header { h2 #h-remove { "Remove" } }
            div.pad.stack-s {
                p.small { "It is taken out of the config, and its file is moved to the trash of the state directory. Jobs, sessions and runs stay." }
                button.button.danger #config-remove type="button" { "Remove the agent" }
            }
        }
    }
}

fn text_card() -> Markup {
    html! {
        section.card aria-labelledby="h-text" {
            header { h2 #h-text { "YAML" } span.note.end #config-path {} }
            div.pad.stack-s {
                label.visually-hidden for="config-text" { "Text of the file" }
                textarea.code #config-text rows="24" spellcheck="false" wrap="off" {}
                div.row {
                    span.note #config-state role="status" {}
                    button.button.primary.end #config-save type="button" disabled { "Save…" }
                }
            }
        }
    }
}

fn result_card() -> Markup {
    html! {
        section.card aria-labelledby="h-result" {
            header { h2 #h-result { "Check" } }
            div.pad.stack-s {
                ul #config-faults role="list" {}
                div #config-diff {}
            }
        }
    }
}
