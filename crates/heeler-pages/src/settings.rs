//! Settings: who you are, who may come in, the state's health, money, and the config as it counts.

use heeler_query::access::{PeopleList, TokenItem, TokenList, TokenStatus};
use heeler_query::config::ConfigShown;
use heeler_query::costs::Costs;
use heeler_query::health::Examined;
use maud::{Markup, html};

use crate::parts::{ago, coded, dollars, maybe_ago, one_line, path, said, status};
use crate::{Allowed, Frame, Section};

/// All that the page shows.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingsView {
    /// The config as it counts; why it cannot be shown otherwise.
    pub config: Result<ConfigShown, String>,
    /// What is wrong with the state.
    pub health: Examined,
    /// What was spent in the last month, by agent.
    pub costs: Costs,
    /// Who may come in; only for those who decide about it.
    pub access: Option<(TokenList, PeopleList)>,
    /// The state directory.
    pub state_dir: String,
}

/// Returns the page.
pub fn page(frame: &Frame, view: &SettingsView) -> Markup {
    let content = html! {
        div.head { h1 { "Settings" } }
        div.split {
            div.stack {
                (health(&view.health))
                @if let Some((tokens, people)) = &view.access { (tokens_card(frame, tokens)) (people_card(frame, people)) }
                (config(view))
            }
            div.stack { (you(frame)) (costs(&view.costs)) (about(frame, view)) }
        }
    };
    frame.page(Section::Settings, "Settings", content)
}

fn you(frame: &Frame) -> Markup {
    let may = match frame.allowed {
        Allowed::Read => "look at everything",
        Allowed::Operate => "look, start, steer and answer",
        Allowed::Admin => "do everything",
    };
    html! {
        section.card #you aria-labelledby="h-you" {
            header { h2 #h-you { "You" } }
            div.pad.stack-s {
                p { "Logged in as " strong { (said(&frame.who)) } ". You may " (may) "." }
                form method="post" action="/logout" {
                    @if let Some(csrf) = &frame.csrf { input type="hidden" name="csrf" value=(csrf); }
                    button.button { "Log out" }
                }
            }
        }
    }
}

fn health(found: &Examined) -> Markup {
    html! {
        section.card #health data-live aria-labelledby="h-health" {
            header {
                h2 #h-health { "Health" }
                span.end { (status(if found.sound { "ok" } else { "error" })) }
            }
            @if found.findings.is_empty() {
                p.empty.small { "Everything in the state directory is as it should be." }
            } @else {
                ul.list role="list" {
                    @for one in &found.findings {
                        li {
                            div.line {
                                span.badge { (one.severity) }
                                code.cut.grow title=(one.subject) { (one_line(&one.subject)) }
                            }
                            p.small { (coded(&one.problem)) span.muted { " · " (coded(&one.cure)) } }
                        }
                    }
                }
            }
        }
    }
}

fn tokens_card(frame: &Frame, tokens: &TokenList) -> Markup {
    html! {
        section.card #tokens aria-labelledby="h-tokens" {
            header { h2 #h-tokens { "Tokens" } span.note.end { "for programs that use the API" } }
            div #token-list data-live { (token_table(frame, tokens)) }
            form.pad.filters data-action="POST /api/v1/tokens" data-show="new-token" data-field="token" data-done="The token is made." {
                div.field { label for="t-name" { "Name" } input #t-name name="name" required autocomplete="off" maxlength="64"; }
                div.field {
                    label for="t-scope" { "May" }
                    select #t-scope name="scope" {
                        option value="read" { "read" }
                        option value="operate" { "operate" }
                        option value="admin" { "admin" }
                    }
                }
                button.button { "Make a token" }
            }
            div.pad #new-token hidden tabindex="-1" {
                p { strong { "Copy it now: it is shown only once." } }
                div.row { code.mono #new-token-value data-value {} button.button.small type="button" data-copy="new-token-value" { "Copy" } }
            }
        }
    }
}

fn token_table(frame: &Frame, tokens: &TokenList) -> Markup {
    html! {
        @if tokens.tokens.is_empty() { p.empty.small { "There is no token." } }
        @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Name" } th scope="col" { "May" }
                            th.opt2 scope="col" { "State" } th.num.opt scope="col" { "Made" }
                            th.num.opt2 scope="col" { "Last used" } th.fit scope="col" { span.visually-hidden { "Actions" } }
                        }
                    }
                    tbody { @for token in &tokens.tokens { (token_row(frame, token)) } }
                }
            }
        }
    }
}

fn token_row(frame: &Frame, token: &TokenItem) -> Markup {
    let word = match token.status {
        TokenStatus::Active => "active",
        TokenStatus::Expired => "expired",
        TokenStatus::Revoked => "revoked",
    };
    html! {
        tr data-row {
            td { (said(&token.name)) }
            td { (token.scope.as_str()) }
            td.opt2 { (status(word)) }
            td.num.opt { (ago(frame, token.created_at)) }
            td.num.opt2 { (maybe_ago(frame, token.used_at)) }
            td.fit {
                @if token.status == TokenStatus::Active {
                    button.button.small.danger type="button" data-danger
                        data-action={ "DELETE " (path("/api/v1/tokens", &[&token.id])) }
                        data-confirm={ "Revoke the token " (one_line(&token.name)) "? Whoever uses it is locked out at once." }
                        data-answer="Revoke it" data-done="The token is revoked."
                        aria-label={ "Revoke " (one_line(&token.name)) } { "Revoke" }
                }
            }
        }
    }
}

fn people_card(frame: &Frame, people: &PeopleList) -> Markup {
    html! {
        section.card #people aria-labelledby="h-people" {
            header { h2 #h-people { "People with a password" } }
            @if people.people.is_empty() {
                p.empty.small { "Nobody has one. " code { "heeler password set NAME" } " gives one." }
            } @else {
                ul.list role="list" {
                    @for one in &people.people {
                        li { div.line { strong { (said(&one.name)) } span.badge { (one.scope.as_str()) } span.end.muted { "set " (ago(frame, one.changed_at)) } } }
                    }
                }
            }
        }
    }
}

fn costs(costs: &Costs) -> Markup {
    html! {
        section.card #costs data-live aria-labelledby="h-costs" {
            header { h2 #h-costs { "Cost of the last 30 days" } strong.end.num { (dollars(costs.total_usd)) } }
            @if costs.costs.is_empty() { p.empty.small { "Nothing was spent." } }
            @else {
                ul.list role="list" {
                    @for one in &costs.costs {
                        li { div.line { (said(one.name())) span.end.num { (dollars(one.cost_usd)) } } }
                    }
                }
            }
        }
    }
}

fn about(frame: &Frame, view: &SettingsView) -> Markup {
    html! {
        section.card aria-labelledby="h-about" {
            header { h2 #h-about { "About" } }
            div.pad {
                dl.facts {
                    dt { "Version" } dd { (frame.version) }
                    dt { "State" } dd { code { (one_line(&view.state_dir)) } }
                    dt { "Zone" } dd { (frame.zone.iana_name().unwrap_or("UTC offset")) }
                    dt { "API" } dd { a href="/api/v1/docs" { "try it" } " · " a href="/api/v1/openapi.json" { "OpenAPI" } }
                }
            }
        }
    }
}

fn config(view: &SettingsView) -> Markup {
    html! {
        section.card #config aria-labelledby="h-config" {
            header { h2 #h-config { "Config" } span.note.end { "secrets are shown by name only" } }
            div.pad.stack-s {
                @match &view.config {
                    Err(problem) => { p.banner.bad { (problem) } }
                    Ok(shown) => {
                        @if let Some(file) = &shown.config_path { p.small { code { (one_line(file)) } } }
                        (tree("fleet", &shown.fleet))
                        @if let Some(agents) = shown.agents.as_array() {
                            @for agent in agents { (tree(agent["qualified_name"].as_str().unwrap_or("agent"), agent)) }
                        }
                    }
                }
            }
        }
    }
}

fn tree(name: &str, value: &serde_json::Value) -> Markup {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    html! {
        details.tool { summary { strong { (one_line(name)) } } pre.code tabindex="0" { (text) } }
    }
}
