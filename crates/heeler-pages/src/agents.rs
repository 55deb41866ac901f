//! Agents: all of them, and one with its schedules, jobs, sessions and money.

use heeler_query::agents::{AgentItem, AgentPage};
use heeler_query::charts::DayOfMoney;
use heeler_query::jobs::JobPage;
use heeler_query::schedules::ScheduleItem;
use heeler_query::sessions::SessionPage;
use maud::{Markup, html};

use crate::parts::{
    agent_link, ago, dollars, empty, grouped, job_link, maybe_ago, meter, one_line, path, query,
    said, session_link, status,
};
use crate::schedules::{run_now, switch};
use crate::{Frame, Section, charts, jobs};

/// Returns the page of all agents.
///
/// `past` are those that had jobs and are not in the config any more.
pub fn page(frame: &Frame, agents: &AgentPage, past: &[String]) -> Markup {
    let content = html! {
        div.head {
            h1 { "Agents" }
            span.muted { (agents.total) @if agents.total == 1 { " agent" } @else { " agents" } }
        }
        section.card #agents data-live aria-label="Agents" {
            @if agents.agents.is_empty() {
                (empty("No agents yet", html! { code { "heeler init" } " writes a first one; " code { "heeler reload" } " loads the config again." }))
            } @else { (table(frame, &agents.agents)) }
        }
        @if !past.is_empty() {
            section.card #past data-live aria-labelledby="h-past" {
                header { h2 #h-past { "Not in the config any more" } }
                ul.pad.row role="list" { @for name in past { li { (agent_link(name)) } } }
            }
        }
    };
    frame.page(Section::Agents, "Agents", content)
}

/// Returns the page of an agent that is not in the config any more: what it did stays.
pub fn past_page(frame: &Frame, name: &str, jobs: &JobPage, found: &SessionPage) -> Markup {
    let content = html! {
        nav.crumbs aria-label="Where this is" { a href="/agents" { "Agents" } }
        div.head { h1 { (said(name)) } }
        p.banner role="note" {
            span { "This agent is not in the config any more. What it did stays; it gets no new jobs." }
        }
        (done(frame, name, jobs, found))
    };
    frame.page(Section::Agents, &one_line(name), content)
}

/// Shows what an agent did.
fn done(frame: &Frame, name: &str, found: &JobPage, in_sessions: &SessionPage) -> Markup {
    html! {
        section.card #jobs data-live aria-labelledby="h-jobs" {
            header {
                h2 #h-jobs { "Jobs" }
                a.more href=(query("/jobs", &[("agent", name)])) { "all " (grouped(found.total)) }
            }
            @if found.jobs.is_empty() { p.empty.small { "It has had no job yet." } }
            @else { (jobs::table(frame, &found.jobs)) }
        }
        section.card #sessions data-live aria-labelledby="h-sessions" {
            header {
                h2 #h-sessions { "Sessions" }
                a.more href=(query("/sessions", &[("agent", name)])) { "all " (grouped(in_sessions.total)) }
            }
            (sessions(frame, in_sessions))
        }
    }
}

fn table(frame: &Frame, agents: &[AgentItem]) -> Markup {
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th.fit scope="col" { "State" }
                        th scope="col" { "Agent" }
                        th.opt2 scope="col" { "What it is for" }
                        th.opt scope="col" { "Runs on" }
                        th.num scope="col" { "Next" }
                        th.num.opt2 scope="col" { "Today" }
                        th.fit scope="col" { span.visually-hidden { "Actions" } }
                    }
                }
                tbody { @for agent in agents { (row(frame, agent)) } }
            }
        }
    }
}

fn row(frame: &Frame, agent: &AgentItem) -> Markup {
    let why = agent.error_message.as_deref();
    html! {
        tr data-row {
            td.fit { (state(agent)) }
            td { (agent_link(&agent.name)) }
            td.wide.opt2 {
                div.clamp { (one_line(agent.description.as_deref().unwrap_or_default())) }
                @if let Some(why) = why { div.clamp.small.failed { (one_line(why)) } }
            }
            td.opt.muted { (said(agent.model.as_deref().unwrap_or(&agent.runtime))) }
            td.num { (maybe_ago(frame, agent.next_trigger_at)) }
            td.num.opt2 { (dollars(agent.spent_today_usd)) }
            td.fit { @if frame.may_operate() { (run_button(agent)) } }
        }
    }
}

fn state(agent: &AgentItem) -> Markup {
    status(if agent.enabled { agent.status.as_str() } else { "disabled" })
}

fn body(agent: &AgentItem) -> String {
    serde_json::json!({ "agent": agent.name }).to_string()
}

fn run_button(agent: &AgentItem) -> Markup {
    html! {
        button.button.small.icon.i-play type="button" data-action="POST /api/v1/jobs"
            data-body=(body(agent)) data-go="/jobs/{id}"
            aria-label={ "Run " (one_line(&agent.name)) } { "Run" }
    }
}

/// All that the page of one agent shows.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentView {
    /// The agent.
    pub agent: AgentItem,
    /// Its schedules.
    pub schedules: Vec<ScheduleItem>,
    /// Its newest jobs.
    pub jobs: JobPage,
    /// Its newest sessions.
    pub sessions: SessionPage,
    /// What it cost by the day.
    pub days: Vec<DayOfMoney>,
}

/// Returns the page of one agent.
pub fn agent_page(frame: &Frame, view: &AgentView) -> Markup {
    let agent = &view.agent;
    let content = html! {
        nav.crumbs aria-label="Where this is" { a href="/agents" { "Agents" } }
        div.head #head data-live {
            h1 { (said(&agent.name)) }
            (state(agent))
            @if frame.may_operate() { (tools(agent)) }
        }
        @if let Some(about) = &agent.description { p { (one_line(about)) } }
        @if let Some(why) = &agent.error_message {
            p.banner.bad { strong { "Its last job failed: " } (one_line(why)) }
        }
        div.split {
            div.stack {
                @if frame.may_operate() { (ask(agent)) }
                section.card #schedules data-live aria-labelledby="h-schedules" {
                    header { h2 #h-schedules { "Schedules" } a.more href="/schedules" { "calendar" } }
                    (schedules(frame, &view.schedules))
                }
            }
            div.stack {
                section.card #facts data-live aria-labelledby="h-facts" {
                    header { h2 #h-facts { "About" } }
                    div.pad { (facts(frame, agent)) }
                }
                section.card #money data-live aria-labelledby="h-money" {
                    header { h2 #h-money { "Money" } }
                    div.pad.stack-s { (budget(agent)) (charts::money(&view.days)) }
                }
            }
        }
        (done(frame, &agent.name, &view.jobs, &view.sessions))
    };
    frame.page(Section::Agents, &one_line(&agent.name), content)
}

fn tools(agent: &AgentItem) -> Markup {
    let api = path("/api/v1/agents", &[&agent.name]);
    html! {
        div.tools {
            @if agent.enabled {
                button.button.danger type="button" data-action={ "POST " (api) "/disable" } data-danger
                    data-confirm={ "Switch " (one_line(&agent.name)) " off? None of its jobs starts until it is switched on again. What runs goes on." }
                    data-answer="Switch it off" { "Switch off" }
            } @else {
                button.button type="button" data-action={ "POST " (api) "/enable" } { "Switch on" }
            }
        }
    }
}

/// Returns what asks an agent for something.
fn ask(agent: &AgentItem) -> Markup {
    html! {
        section.card aria-labelledby="h-ask" {
            header { h2 #h-ask { "Ask for something" } }
            form.pad.stack-s data-action="POST /api/v1/jobs" data-body=(body(agent)) data-go="/jobs/{id}" {
                label.visually-hidden for="prompt" { "What to do" }
                textarea #prompt name="prompt" rows="3" placeholder="What to do. Empty: what it does by default." {}
                div.row { button.button.primary.icon.i-play { "Run" } }
            }
        }
    }
}

fn schedules(frame: &Frame, schedules: &[ScheduleItem]) -> Markup {
    html! {
        @if schedules.is_empty() { p.empty.small { "It starts only when somebody asks." } }
        @else {
            ul.list role="list" { @for one in schedules { (schedule(frame, one)) } }
        }
    }
}

fn schedule(frame: &Frame, one: &ScheduleItem) -> Markup {
    let api = path("/api/v1/schedules", &[&one.agent, &one.name]);
    html! {
        li data-row {
            div.line {
                strong { (said(&one.name)) }
                span.muted { (one_line(&one.when)) }
                @if let Some(workflow) = &one.workflow { span.badge { "workflow " (said(workflow)) } }
                span.end.row {
                    @if frame.may_operate() { (switch(&api, one.enabled, &one.name)) (run_now(&api, &one.name)) }
                    @else { (status(if one.enabled { "enabled" } else { "disabled" })) }
                }
            }
            p.small.muted {
                "next " (maybe_ago(frame, one.next_run_at)) " · last " (maybe_ago(frame, one.last_run_at))
                @if let Some(changed) = &one.changed {
                    " · changed by " (said(&changed.by)) " " (ago(frame, changed.at))
                    @if frame.may_operate() {
                        " " button.button.quiet.small type="button" data-action={ "POST " (api) "/reset" } { "Back to the config" }
                    }
                }
            }
            @if let Some(error) = &one.last_error { p.clamp.small.failed { (one_line(error)) } }
        }
    }
}

fn facts(frame: &Frame, agent: &AgentItem) -> Markup {
    html! {
        dl.facts {
            dt { "Runs on" } dd { (one_line(&agent.runtime)) @if let Some(model) = &agent.model { ", " (one_line(model)) } }
            dt { "Works in" } dd { code { (one_line(&agent.working_directory)) } }
            dt { "At once" } dd { (agent.max_concurrent) @if agent.max_concurrent == 1 { " job" } @else { " jobs" } }
            @if let Some(job) = &agent.current_job { dt { "Works at" } dd { (job_link(job)) } }
            @if let Some(job) = &agent.last_job { dt { "Last job" } dd { (job_link(job)) } }
            @if let (Some(name), at) = (&agent.next_schedule, agent.next_trigger_at) {
                dt { "Next" } dd { (said(name)) " " (maybe_ago(frame, at)) }
            }
            dt { "Config" } dd { code { (one_line(&agent.file)) } }
        }
    }
}

fn budget(agent: &AgentItem) -> Markup {
    let line = |name: &str, spent: f64, limit: Option<f64>| {
        html! {
            div.row.small {
                span { (name) }
                span.end.num { (dollars(spent)) @if let Some(limit) = limit { " of " (dollars(limit)) } }
            }
            @if let Some(limit) = limit {
                (meter(spent, limit, &format!("{name}: {} of {}", dollars(spent), dollars(limit))))
            }
        }
    };
    html! {
        (line("Today", agent.spent_today_usd, agent.budget.day_usd))
        (line("In all", agent.spent_usd, agent.budget.total_usd))
        @if let Some(limit) = agent.budget.job_usd { p.small.muted { "A job may cost " (dollars(limit)) "." } }
    }
}

fn sessions(frame: &Frame, sessions: &SessionPage) -> Markup {
    html! {
        @if sessions.sessions.is_empty() { p.empty.small { "It has no session yet." } }
        @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th.fit scope="col" { "State" }
                            th scope="col" { "Session" }
                            th.num scope="col" { "Messages" }
                            th.num.opt2 scope="col" { "Jobs" }
                            th.num scope="col" { "Last used" }
                        }
                    }
                    tbody {
                        @for one in &sessions.sessions {
                            tr data-row {
                                td.fit { (status(one.status.as_str())) }
                                td { (session_link(&one.id)) }
                                td.num { (grouped(one.message_count)) }
                                td.num.opt2 { (grouped(one.job_count)) }
                                td.num { (ago(frame, one.last_active_at)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
