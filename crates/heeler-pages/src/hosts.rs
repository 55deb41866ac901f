//! Hosts page: the machines of a fleet, with their load, labels and clocks.

use heeler_query::hosts::{HostList, HostSummary};
use maud::{Markup, html};

use crate::components::{
    empty_notice, encode_path, isolated_text, meter, url_with_params, visible_line,
};
use crate::{DashboardSection, PageFrame};

/// Interval at which the page is fetched again. Signs of life are no commits.
const POLL_MS: u32 = 5_000;

pub fn page(frame: &PageFrame, list: &HostList) -> Markup {
    let content = html! {
        div.head {
            h1 { "Hosts" }
            p.muted { "The machines of this fleet" }
        }
        section.card #hosts data-live aria-label="Hosts" {
            @if list.hosts.is_empty() {
                (empty_notice("One machine", html! {
                    "This fleet has one machine. With records on PostgreSQL, "
                    code { "heeler start --host NAME" } " adds others."
                }))
            } @else {
                ul.list role="list" { @for host in &list.hosts { (host_item(frame, host)) } }
            }
        }
        p.note {
            "A drained host gets no new runs; its runs continue. "
            code { "heeler jobs why ID" } " shows why a job is on its host."
        }
    };
    frame.polled_page(DashboardSection::Settings, "Hosts", Some(POLL_MS), content)
}

fn host_item(frame: &PageFrame, host: &HostSummary) -> Markup {
    let load = match host.max_concurrent {
        Some(limit) => format!("{} of {limit} runs", host.runs),
        None => format!("{} runs", host.runs),
    };
    html! {
        li data-row {
            div.line {
                strong { (isolated_text(&host.name)) }
                span.muted { (host.role) }
                span.end.num { a href=(url_with_params("/jobs", &[("host", &host.name)])) { (load) } }
                @if frame.can_operate() { (drain_button(host)) }
            }
            @if let Some(limit) = host.max_concurrent {
                (meter(host.runs as f64, f64::from(limit), &load))
            }
            dl.facts {
                dt { "Labels" }
                dd {
                    @if host.labels.is_empty() { span.muted { "none" } }
                    @else { @for label in &host.labels { code { (label) } " " } }
                }
                @if let Some(by) = &host.drained_by { dt { "Drained by" } dd { (isolated_text(by)) } }
                dt { "Seen" } dd.num { (host.seen_seconds_ago) " s ago" }
                @if let Some(ms) = host.lease_left_ms {
                    dt { "Lease" } dd.num { "ends in " (format!("{:.1}", ms as f64 / 1000.0)) " s unless renewed" }
                }
                dt { "Clock" } dd { (host.clock) }
                dt { "Machine" } dd { (isolated_text(&host.machine)) }
                dt { "Version" } dd.num { (isolated_text(&host.version)) }
                dt { "Started" } dd.num { (host.started_at) }
                @if let Some(url) = &host.url { dt { "Dashboard" } dd { (isolated_text(url)) } }
            }
        }
    }
}

/// Renders the button that drains a host, or undoes that.
fn drain_button(host: &HostSummary) -> Markup {
    let api = |verb: &str| format!("POST {}/{verb}", encode_path("/api/v1/hosts", &[&host.name]));
    html! {
        @if host.drained_by.is_some() {
            button.button type="button" data-action=(api("undo-drain"))
                data-done="The host gets new runs again." { "Undo drain" }
        } @else {
            button.button type="button" data-action=(api("drain"))
                data-confirm={ "Drain host " (visible_line(&host.name)) "? It gets no new runs, and its runs continue." }
                data-answer="Drain it" data-done="The host gets no new runs." { "Drain" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostSummary {
        HostSummary {
            name: "beta".to_owned(),
            role: "standby, drained".to_owned(),
            is_alive: true,
            is_leader: false,
            seen_seconds_ago: 2,
            runs: 3,
            max_concurrent: Some(4),
            labels: vec!["gpu".to_owned()],
            drained_by: Some("<script>alert(1)</script>".to_owned()),
            clock_ahead_ms: Some(0),
            lease_left_ms: None,
            clock: "as the database".to_owned(),
            machine: "<img src=x onerror=alert(1)>".to_owned(),
            version: "1".to_owned(),
            started_at: String::new(),
            url: None,
        }
    }

    #[test]
    fn a_host_is_shown_with_its_load_and_untrusted_text_is_inert() {
        let shown = host_item(&crate::tests::frame(), &host()).into_string();
        for text in
            ["beta", "standby, drained", "3 of 4 runs", "<code>gpu</code>", "as the database"]
        {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        assert!(!shown.contains("<script") && !shown.contains("<img"), "{shown}");
        assert!(!shown.contains("unless renewed"), "it does not lead: {shown}");
        let leader = HostSummary { lease_left_ms: Some(2_250), ..host() };
        let shown = host_item(&crate::tests::frame(), &leader).into_string();
        assert!(shown.contains("ends in 2.2 s unless renewed"), "{shown}");
    }

    #[test]
    fn a_host_is_drained_by_those_who_operate() {
        let frame = crate::tests::frame();
        let drained = host_item(&frame, &host()).into_string();
        assert!(drained.contains("POST /api/v1/hosts/beta/undo-drain"), "{drained}");
        let free = HostSummary { drained_by: None, ..host() };
        let shown = host_item(&frame, &free).into_string();
        assert!(shown.contains("POST /api/v1/hosts/beta/drain"), "{shown}");
        assert!(shown.contains("data-confirm"), "{shown}");
        let reader = PageFrame { viewer_scope: crate::ViewerScope::Read, ..frame };
        let shown = host_item(&reader, &free).into_string();
        assert!(!shown.contains("data-action"), "{shown}");
    }
}
