//! Frame of every page: head, navigation, dialogs, and the identity of the viewer.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, html};

use crate::assets;
use crate::components::isolated_text;

/// Section of the dashboard in the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DashboardSection {
    Overview,
    Agents,
    Jobs,
    Sessions,
    /// Workflows and workflow runs.
    Workflows,
    Approvals,
    Schedules,
    Costs,
    Search,
    /// Config, health, tokens.
    Settings,
    /// Page outside of the navigation.
    Other,
}

/// Sections with path, name, icon, and the key that opens them after `g`.
const SECTIONS: [(DashboardSection, &str, &str, &str, &str); 10] = [
    (DashboardSection::Overview, "/", "Overview", "i-overview", "o"),
    (DashboardSection::Agents, "/agents", "Agents", "i-agents", "a"),
    (DashboardSection::Jobs, "/jobs", "Jobs", "i-jobs", "j"),
    (DashboardSection::Sessions, "/sessions", "Sessions", "i-sessions", "s"),
    (DashboardSection::Workflows, "/workflows", "Workflows", "i-workflows", "w"),
    (DashboardSection::Approvals, "/approvals", "Approvals", "i-approvals", "p"),
    (DashboardSection::Schedules, "/schedules", "Schedules", "i-schedules", "c"),
    (DashboardSection::Costs, "/costs", "Costs", "i-costs", "m"),
    (DashboardSection::Search, "/search", "Search", "i-search", "f"),
    (DashboardSection::Settings, "/settings", "Settings", "i-settings", "e"),
];

/// Scope of the viewer; each includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViewerScope {
    /// View everything.
    Read,
    /// Also start, control and answer.
    Operate,
    /// Also manage access and stop the daemon.
    Admin,
}

/// Counts in the navigation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NavigationCounts {
    /// Running jobs.
    pub running: i64,
    /// Waiting jobs.
    pub waiting: i64,
    /// Jobs that failed in the last 24 hours.
    pub failed: i64,
    /// Unanswered questions.
    pub approvals: i64,
}

/// Data that every page shows around its content.
#[derive(Debug, Clone)]
pub struct PageFrame {
    /// Name of the fleet.
    pub fleet: String,
    /// Name of the viewer.
    pub user_name: String,
    pub viewer_scope: ViewerScope,
    /// CSRF token that requests that change state must carry.
    pub csrf_token: Option<String>,
    pub counts: NavigationCounts,
    /// Current time.
    pub now: Timestamp,
    /// Time zone of the fleet.
    pub zone: TimeZone,
    /// Version of the daemon.
    pub version: String,
}

impl PageFrame {
    /// Returns true if the viewer may start, control and answer.
    pub fn can_operate(&self) -> bool {
        self.viewer_scope >= ViewerScope::Operate
    }

    /// Returns true if the viewer may manage access.
    pub fn can_administer(&self) -> bool {
        self.viewer_scope >= ViewerScope::Admin
    }

    /// Returns a complete page. `content` goes into `main`; its first heading is an `h1`.
    pub fn page(&self, section: DashboardSection, title: &str, content: Markup) -> Markup {
        self.polled_page(section, title, None, content)
    }

    /// Like [`PageFrame::page`]; live regions are also fetched every `poll_ms` milliseconds.
    pub fn polled_page(
        &self,
        section: DashboardSection,
        title: &str,
        poll_ms: Option<u32>,
        content: Markup,
    ) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    (page_head(title, &self.fleet))
                    @if let Some(csrf) = &self.csrf_token { meta name="csrf" content=(csrf); }
                    // The scripts compute ages from this time, because the clock of the viewer may
                    // be wrong.
                    meta name="now" content=(self.now);
                    script type="module" src=(assets::href("app.js")) {}
                }
                // Counts are updated without a new page, so the stream is on every page.
                body data-stream="/api/v1/fleet/stream" data-scope=[(!self.can_operate()).then_some("read")] {
                    a.skip href="#main" { "Skip to the content" }
                    div.app {
                        (self.sidebar(section))
                        main #main tabindex="-1" data-poll=[poll_ms] { (content) }
                    }
                    (dialogs())
                    div #toasts { div role="status" {} div role="alert" {} }
                }
            }
        }
    }

    fn sidebar(&self, here: DashboardSection) -> Markup {
        html! {
            header.side {
                a.brand href="/" { span.cut { (isolated_text(&self.fleet)) } }
                form.find role="search" action="/search" {
                    label.visually-hidden for="q" { "Search transcripts" }
                    input #q type="search" name="q" placeholder="Search" autocomplete="off"
                        aria-keyshortcuts="/";
                    kbd aria-hidden="true" { "/" }
                }
                button.icon.i-search.jump type="button" data-palette aria-keyshortcuts="Control+K" {
                    "Go to" kbd.only-wide aria-hidden="true" { "Ctrl K" }
                }
                nav aria-label="Main" {
                    ul role="list" {
                        @for (section, href, name, icon, key) in SECTIONS {
                            li {
                                a.icon.(icon) href=(href) data-key=(key)
                                    aria-current=[(section == here).then_some("page")] {
                                    (name) (self.section_count(section))
                                }
                            }
                        }
                    }
                }
                div.foot {
                    span #live role="status" data-state="wait" { span { "Connecting…" } }
                    button.icon.i-theme #theme type="button" {
                        span.only-wide { "Colours: " } span data-word { "System" }
                    }
                    button.icon.i-keys.only-wide type="button" data-open="keys" { "Keyboard" }
                    a.icon.i-settings.only-wide href="/settings#you" {
                        span.cut { (isolated_text(&self.user_name)) }
                    }
                }
            }
        }
    }

    fn section_count(&self, section: DashboardSection) -> Markup {
        let NavigationCounts { running, failed, approvals, .. } = self.counts;
        let (key, value, class, of) = match section {
            DashboardSection::Jobs => ("running", running, "count", "running"),
            DashboardSection::Approvals => {
                ("approvals", approvals, "count hot", "waiting for an answer")
            }
            DashboardSection::Overview => ("failed24h", failed, "count bad", "failed within a day"),
            _ => return Markup::default(),
        };
        html! {
            // A count of zero stays in the page, because the script updates and shows it later.
            span class=(class) hidden[value == 0] title=(of) {
                span data-count=(key) { (value) }
                span.visually-hidden { " " (of) }
            }
        }
    }
}

/// Returns the content of `head` that all pages share.
pub(crate) fn page_head(title: &str, fleet: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        title { (title) " · " (fleet) }
        link rel="icon" type="image/svg+xml" href=(assets::href("icon.svg"));
        link rel="manifest" href=(assets::href("manifest.webmanifest"));
        meta name="theme-color" content="#16181d";
        link rel="stylesheet" href=(assets::href("style.css"));
        // Blocking, so that the page is never painted in the wrong colours.
        script src=(assets::href("theme.js")) {}
    }
}

fn dialogs() -> Markup {
    html! {
        dialog #confirm aria-labelledby="confirm-question" {
            form method="dialog" {
                p #confirm-question data-question {}
                div.actions {
                    button.button value="no" { "No" }
                    button.button.primary value="yes" { "Yes" }
                }
            }
        }
        dialog #palette aria-label="Go to" {
            label.visually-hidden for="palette-text" { "Page, agent, schedule, job or command" }
            input #palette-text type="text" autocomplete="off" spellcheck="false" role="combobox"
                aria-expanded="true" aria-controls="palette-list" aria-autocomplete="list"
                placeholder="Page, agent, schedule, job or command";
            ul #palette-list role="listbox" aria-label="Matches" {}
        }
        dialog #keys aria-labelledby="keys-title" {
            form method="dialog" {
                h2 #keys-title { "Keyboard" }
                dl.facts {
                    dt { kbd { "Ctrl" } " " kbd { "K" } } dd { "Go to a page, an agent, a job; run a command" }
                    dt { kbd { "/" } } dd { "Search" }
                    @for (_, _, name, _, key) in SECTIONS {
                        dt { kbd { "g" } " " kbd { (key) } } dd { (name) }
                    }
                    dt { kbd { "j" } " " kbd { "k" } } dd { "Next and previous row" }
                    dt { kbd { "t" } } dd { "Colours: system, light, dark" }
                    dt { kbd { "?" } } dd { "This list" }
                }
                label { input #keys-on type="checkbox" checked; "Use these keys in this browser" }
                div.actions { button.button.primary value="close" { "Close" } }
            }
        }
    }
}
