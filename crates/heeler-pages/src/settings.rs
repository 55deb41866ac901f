//! Settings page: the viewer, access, health, costs, and the effective config.

use heeler_query::access::{TokenList, TokenStatus, TokenSummary, UserList};
use heeler_query::browsers::{BrowserList, BrowserSummary};
use heeler_query::config::EffectiveConfig;
use heeler_query::costs::CostReport;
use heeler_query::health::HealthReport;
use maud::{Markup, html};

use crate::components::{
    encode_path, format_usd, inline_code, isolated_text, optional_relative_time, relative_time,
    status_badge, visible_line,
};
use crate::{DashboardSection, PageFrame, ViewerScope};

/// Data of the page.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingsView {
    /// Effective config, or the reason for which it cannot be shown.
    pub config: Result<EffectiveConfig, String>,
    /// Problems of the state directory.
    pub health: HealthReport,
    /// Costs of the last 30 days, by agent.
    pub costs: CostReport,
    /// Tokens and users; only for viewers with the scope `admin`.
    pub access: Option<(TokenList, UserList)>,
    /// Browsers that receive notices: of the viewer, or all for a viewer with the scope `admin`.
    pub browsers: BrowserList,
    /// Path of the state directory.
    pub state_dir: String,
}

pub fn page(frame: &PageFrame, view: &SettingsView) -> Markup {
    let content = html! {
        div.head { h1 { "Settings" } }
        div.split {
            div.stack {
                (health(&view.health))
                // Only administrators get this data at all.
                @if let Some((tokens, people)) = &view.access { (tokens_card(frame, tokens)) (people_card(frame, people)) }
                (config(frame, view))
            }
            div.stack { (account_card(frame)) (browsers_card(frame, &view.browsers)) (costs(&view.costs)) (about_card(frame, view)) }
        }
    };
    frame.page(DashboardSection::Settings, "Settings", content)
}

fn account_card(frame: &PageFrame) -> Markup {
    let may = match frame.viewer_scope {
        ViewerScope::Read => "view everything",
        ViewerScope::Operate => "view, start, control and answer",
        ViewerScope::Admin => "do everything",
    };
    html! {
        section.card #you aria-labelledby="h-you" {
            header { h2 #h-you { "You" } }
            div.pad.stack-s {
                p { "Logged in as " strong { (isolated_text(&frame.user_name)) } ". You may " (may) "." }
                form method="post" action="/logout" {
                    @if let Some(csrf) = &frame.csrf_token { input type="hidden" name="csrf" value=(csrf); }
                    button.button { "Log out" }
                }
            }
        }
    }
}

fn browsers_card(frame: &PageFrame, list: &BrowserList) -> Markup {
    html! {
        section.card #browsers aria-labelledby="h-browsers" {
            header { h2 #h-browsers { "Notices" } span.note.end { "in browsers and on phones" } }
            @if list.channels.is_empty() {
                p.empty.small {
                    "The config has no channel for browsers. Add "
                    code { "notify: {channels: {browsers: {web_push: true}}}" } "."
                }
            } @else if frame.can_operate() {
                form.pad.stack-s data-push="off" {
                    p.small role="status" data-push-state { "Notices need JavaScript." }
                    @if list.channels.len() > 1 {
                        div.field {
                            label for="push-channel" { "Channel" }
                            select #push-channel name="channel" {
                                @for name in &list.channels { option value=(name) { (name) } }
                            }
                        }
                    }
                    // The script turns it on where the browser can be added.
                    button.button disabled { "Notify this browser" }
                }
            }
            div #browser-list data-live { (browser_items(frame, list)) }
        }
    }
}

fn browser_items(frame: &PageFrame, list: &BrowserList) -> Markup {
    html! {
        @if !list.browsers.is_empty() {
            ul.list role="list" {
                @for one in &list.browsers { (browser_item(frame, one)) }
            }
        }
    }
}

fn browser_item(frame: &PageFrame, browser: &BrowserSummary) -> Markup {
    let label = visible_line(&browser.label);
    html! {
        li {
            div.line {
                strong.cut { (isolated_text(&browser.label)) }
                @if frame.can_operate() {
                    button.button.small.danger.end type="button" data-danger
                        data-action={ "DELETE " (encode_path("/api/v1/browsers", &[&browser.id])) }
                        data-confirm={ "Remove " (label) "? It receives no notices any more." }
                        data-answer="Remove it" aria-label={ "Remove " (label) } { "Remove" }
                }
            }
            p.small.muted {
                (isolated_text(&browser.channel)) " · " (isolated_text(&browser.owner)) " · last notice "
                (optional_relative_time(frame, browser.sent_at))
            }
        }
    }
}

fn health(found: &HealthReport) -> Markup {
    html! {
        section.card #health data-live aria-labelledby="h-health" {
            header {
                h2 #h-health { "Health" }
                span.end { (status_badge(if found.sound { "ok" } else { "error" })) }
            }
            @if found.findings.is_empty() {
                p.empty.small { "No problems found in the state directory." }
            } @else {
                ul.list role="list" {
                    @for one in &found.findings {
                        li {
                            div.line {
                                span.badge { (one.severity) }
                                code.cut.grow title=(one.subject) { (visible_line(&one.subject)) }
                            }
                            p.small { (inline_code(&one.problem)) span.muted { " · " (inline_code(&one.cure)) } }
                        }
                    }
                }
            }
        }
    }
}

fn tokens_card(frame: &PageFrame, tokens: &TokenList) -> Markup {
    html! {
        section.card #tokens aria-labelledby="h-tokens" {
            header { h2 #h-tokens { "Tokens" } span.note.end { "for programs that use the API" } }
            div #token-list data-live { (token_table(frame, tokens)) }
            form.pad.filters data-action="POST /api/v1/tokens" data-show="new-token" data-field="token" data-done="The token was created." {
                div.field { label for="t-name" { "Name" } input #t-name name="name" required autocomplete="off" maxlength="64"; }
                div.field {
                    label for="t-scope" { "Scope" }
                    select #t-scope name="scope" {
                        // The least scope is the default.
                        option value="read" { "read" }
                        option value="operate" { "operate" }
                        option value="admin" { "admin" }
                    }
                }
                button.button { "Create a token" }
            }
            // Filled by the script from the reply; the server stores only a hash.
            div.pad #new-token hidden tabindex="-1" {
                p { strong { "Copy it now: it is shown only once." } }
                div.row { code.mono #new-token-value data-value {} button.button.small type="button" data-copy="new-token-value" { "Copy" } }
            }
        }
    }
}

fn token_table(frame: &PageFrame, tokens: &TokenList) -> Markup {
    html! {
        @if tokens.tokens.is_empty() { p.empty.small { "There are no tokens." } }
        @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Name" } th scope="col" { "Scope" }
                            th.opt2 scope="col" { "State" } th.num.opt scope="col" { "Created" }
                            th.num.opt2 scope="col" { "Last used" } th.fit scope="col" { span.visually-hidden { "Actions" } }
                        }
                    }
                    tbody { @for token in &tokens.tokens { (token_row(frame, token)) } }
                }
            }
        }
    }
}

fn token_row(frame: &PageFrame, token: &TokenSummary) -> Markup {
    let word = match token.status {
        TokenStatus::Active => "active",
        TokenStatus::Expired => "expired",
        TokenStatus::Revoked => "revoked",
    };
    html! {
        tr data-row {
            td { (isolated_text(&token.name)) }
            td { (token.scope.as_str()) }
            td.opt2 { (status_badge(word)) }
            td.num.opt { (relative_time(frame, token.created_at)) }
            td.num.opt2 { (optional_relative_time(frame, token.used_at)) }
            td.fit {
                // Revoking twice has no effect.
                @if token.status == TokenStatus::Active {
                    button.button.small.danger type="button" data-danger
                        data-action={ "DELETE " (encode_path("/api/v1/tokens", &[&token.id])) }
                        data-confirm={ "Revoke the token " (visible_line(&token.name)) "? Programs that use it lose access at once." }
                        data-answer="Revoke it" data-done="The token was revoked."
                        aria-label={ "Revoke " (visible_line(&token.name)) } { "Revoke" }
                }
            }
        }
    }
}

fn people_card(frame: &PageFrame, people: &UserList) -> Markup {
    html! {
        section.card #people aria-labelledby="h-people" {
            header { h2 #h-people { "Users" } }
            @if people.people.is_empty() {
                p.empty.small { "There are no users. " code { "heeler password set NAME" } " adds one." }
            } @else {
                ul.list role="list" {
                    @for one in &people.people {
                        li { div.line { strong { (isolated_text(&one.name)) } span.badge { (one.scope.as_str()) } span.end.muted { "set " (relative_time(frame, one.changed_at)) } } }
                    }
                }
            }
        }
    }
}

fn costs(costs: &CostReport) -> Markup {
    html! {
        section.card #costs data-live aria-labelledby="h-costs" {
            header { h2 #h-costs { "Cost of the last 30 days" } strong.end.num { (format_usd(costs.total_usd)) } }
            @if costs.costs.is_empty() { p.empty.small { "No costs." } }
            @else {
                ul.list role="list" {
                    @for one in &costs.costs {
                        li { div.line { (isolated_text(one.name())) span.end.num { (format_usd(one.cost_usd)) } } }
                    }
                }
            }
        }
    }
}

fn about_card(frame: &PageFrame, view: &SettingsView) -> Markup {
    html! {
        section.card aria-labelledby="h-about" {
            header { h2 #h-about { "About" } }
            div.pad {
                dl.facts {
                    dt { "Version" } dd { (frame.version) }
                    dt { "State directory" } dd { code { (visible_line(&view.state_dir)) } }
                    dt { "Time zone" } dd { (frame.zone.iana_name().unwrap_or("UTC offset")) }
                    dt { "Hosts" } dd { a href="/hosts" { "machines of the fleet" } }
                    dt { "API" } dd { a href="/api/v1/docs" { "try it" } " · " a href="/api/v1/openapi.json" { "OpenAPI" } }
                }
            }
        }
    }
}

fn config(frame: &PageFrame, view: &SettingsView) -> Markup {
    html! {
        section.card #config aria-labelledby="h-config" {
            header { h2 #h-config { "Config" } span.note.end { "secrets are shown by name only" } }
            div.pad.stack-s {
                @if frame.can_administer() { p { a.button href="/config" { "Edit the config" } } }
                @match &view.config {
                    Err(problem) => { p.banner.bad { (problem) } }
                    Ok(shown) => {
                        @if let Some(file) = &shown.config_path { p.small { code { (visible_line(file)) } } }
                        (config_tree("fleet", &shown.fleet))
                        @if let Some(agents) = shown.agents.as_array() {
                            @for agent in agents { (config_tree(agent["qualified_name"].as_str().unwrap_or("agent"), agent)) }
                        }
                    }
                }
            }
        }
    }
}

fn config_tree(name: &str, value: &serde_json::Value) -> Markup {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    html! {
        details.tool { summary { strong { (visible_line(name)) } } pre.code tabindex="0" { (text) } }
    }
}
