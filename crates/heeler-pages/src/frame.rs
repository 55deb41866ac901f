//! What every page has around it: the head, the navigation, dialogs, and who looks at it.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, html};

use crate::assets;
use crate::parts::said;

/// A part of the dashboard, as the navigation has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// What runs, what is next, what failed.
    Overview,
    /// Agents.
    Agents,
    /// Jobs.
    Jobs,
    /// Sessions.
    Sessions,
    /// Workflows and their runs.
    Workflows,
    /// What people are asked.
    Approvals,
    /// The calendar.
    Schedules,
    /// Search in transcripts.
    Search,
    /// Config, health, tokens.
    Settings,
    /// None of them.
    Elsewhere,
}

/// Where a section is, its name, its icon, and the letter that leads to it after `g`.
const SECTIONS: [(Section, &str, &str, &str, &str); 9] = [
    (Section::Overview, "/", "Overview", "i-overview", "o"),
    (Section::Agents, "/agents", "Agents", "i-agents", "a"),
    (Section::Jobs, "/jobs", "Jobs", "i-jobs", "j"),
    (Section::Sessions, "/sessions", "Sessions", "i-sessions", "s"),
    (Section::Workflows, "/workflows", "Workflows", "i-workflows", "w"),
    (Section::Approvals, "/approvals", "Approvals", "i-approvals", "p"),
    (Section::Schedules, "/schedules", "Schedules", "i-schedules", "c"),
    (Section::Search, "/search", "Search", "i-search", "f"),
    (Section::Settings, "/settings", "Settings", "i-settings", "e"),
];

/// What whoever looks at a page may do; each includes what comes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowed {
    /// Look.
    Read,
    /// Also start, steer and answer.
    Operate,
    /// Also change who may do what, and end the daemon.
    Admin,
}

/// What the navigation counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that run.
    pub running: i64,
    /// Jobs that wait.
    pub waiting: i64,
    /// Jobs that failed within a day.
    pub failed: i64,
    /// Questions that nobody has answered.
    pub approvals: i64,
}

/// What every page has around it.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The fleet's name.
    pub fleet: String,
    /// Who looks at it.
    pub who: String,
    /// What they may do.
    pub allowed: Allowed,
    /// What requests that change something must carry.
    pub csrf: Option<String>,
    /// What the navigation counts.
    pub counts: Counts,
    /// The time.
    pub now: Timestamp,
    /// The fleet's time zone.
    pub zone: TimeZone,
    /// The daemon's version.
    pub version: String,
}

impl Frame {
    /// Says whether whoever looks may start, steer and answer.
    pub fn may_operate(&self) -> bool {
        self.allowed >= Allowed::Operate
    }

    /// Says whether whoever looks may change who may do what.
    pub fn may_admin(&self) -> bool {
        self.allowed >= Allowed::Admin
    }

    /// Returns a whole page. `content` is what is in `main`; its first heading is an `h1`.
    pub fn page(&self, section: Section, title: &str, content: Markup) -> Markup {
        self.polled_page(section, title, None, content)
    }

    /// Returns a whole page whose live regions are also fetched every so many milliseconds.
    pub fn polled_page(
        &self,
        section: Section,
        title: &str,
        poll_ms: Option<u32>,
        content: Markup,
    ) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    (head(title, &self.fleet))
                    @if let Some(csrf) = &self.csrf { meta name="csrf" content=(csrf); }
                    meta name="now" content=(self.now);
                    script type="module" src=(assets::href("app.js")) {}
                }
                body data-stream="/api/v1/fleet/stream" {
                    a.skip href="#main" { "Skip to the content" }
                    div.app {
                        (self.side(section))
                        main #main tabindex="-1" data-poll=[poll_ms] { (content) }
                    }
                    (dialogs())
                    div #toasts { div role="status" {} div role="alert" {} }
                }
            }
        }
    }

    fn side(&self, here: Section) -> Markup {
        html! {
            header.side {
                a.brand href="/" { span.cut { (said(&self.fleet)) } }
                form.find role="search" action="/search" {
                    label.visually-hidden for="q" { "Search transcripts" }
                    input #q type="search" name="q" placeholder="Search" autocomplete="off"
                        aria-keyshortcuts="/";
                    kbd aria-hidden="true" { "/" }
                }
                nav aria-label="Main" {
                    ul role="list" {
                        @for (section, href, name, icon, key) in SECTIONS {
                            li {
                                a.icon.(icon) href=(href) data-key=(key)
                                    aria-current=[(section == here).then_some("page")] {
                                    (name) (self.count(section))
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
                        span.cut { (said(&self.who)) }
                    }
                }
            }
        }
    }

    fn count(&self, section: Section) -> Markup {
        let Counts { running, failed, approvals, .. } = self.counts;
        let (key, value, class, of) = match section {
            Section::Jobs => ("running", running, "count", "running"),
            Section::Approvals => ("approvals", approvals, "count hot", "waiting for an answer"),
            Section::Overview => ("failed24h", failed, "count bad", "failed within a day"),
            _ => return Markup::default(),
        };
        html! {
            span class=(class) hidden[value == 0] title=(of) {
                span data-count=(key) { (value) }
                span.visually-hidden { " " (of) }
            }
        }
    }
}

/// Returns what every page's head has.
pub(crate) fn head(title: &str, fleet: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        title { (title) " · " (fleet) }
        link rel="icon" type="image/svg+xml" href=(assets::href("icon.svg"));
        link rel="stylesheet" href=(assets::href("style.css"));
        script src=(assets::href("theme.js")) {}
    }
}

fn dialogs() -> Markup {
    html! {
        dialog #confirm aria-labelledby="confirm-question" {
            form method="dialog" {
                p #confirm-question data-question {}
                div.actions {
                    button.button value="no" { "Keep it as it is" }
                    button.button.primary value="yes" { "Yes" }
                }
            }
        }
        dialog #keys aria-labelledby="keys-title" {
            form method="dialog" {
                h2 #keys-title { "Keyboard" }
                dl.facts {
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
