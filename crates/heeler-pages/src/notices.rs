//! Page of notices: what people were told, by which channels, and what is left to do.

use heeler_query::notices::{NoticeDelivery, NoticeSummary};
use maud::{Markup, html};

use crate::components::{
    activity_styles, agent_link, empty_notice, isolated_text, relative_time, truncate_text,
    visible_line,
};
use crate::{DashboardSection, PageFrame};

/// Bytes of a notice's text that the page shows.
const TEXT_BYTES_MAX: usize = 4 * 1024;

pub fn page(frame: &PageFrame, notices: &[NoticeSummary]) -> Markup {
    let (open, past): (Vec<_>, Vec<_>) = notices.iter().partition(|notice| notice.is_open);
    let content = html! {
        (activity_styles())
        div.head {
            h1 { "Notices" }
            p.muted { "What people were told" }
        }
        section.card aria-labelledby="h-open" {
            header { h2 #h-open { "Something is left to do" } }
            div #open data-live {
                @if open.is_empty() { (empty_notice("Nothing is left to do", html! { "Notices of open questions appear here." })) }
                @else { ul.list role="list" { @for notice in &open { (notice_item(frame, notice)) } } }
            }
        }
        section.card aria-labelledby="h-past" {
            header { h2 #h-past { "Earlier" } }
            div #past data-live {
                @if past.is_empty() {
                    (empty_notice("No notices yet", html! {
                        code { "notify:" } " in the config sends notices to phones, mail, chats and browsers. "
                        code { "heeler notify test" } " sends one."
                    }))
                } @else { ul.list role="list" { @for notice in &past { (notice_item(frame, notice)) } } }
            }
        }
    };
    frame.page(DashboardSection::Approvals, "Notices", content)
}

fn notice_item(frame: &PageFrame, notice: &NoticeSummary) -> Markup {
    html! {
        li data-row {
            div.line {
                strong {
                    @match &notice.page {
                        Some(page) => { a href=(page) { (visible_line(&notice.title)) } }
                        None => (visible_line(&notice.title)),
                    }
                }
                @if let Some(agent) = &notice.agent { span.muted { (agent_link(agent)) } }
                span.end.muted.num { (relative_time(frame, notice.created_at)) }
            }
            @if !notice.text.is_empty() { p.why { (truncate_text(&notice.text, TEXT_BYTES_MAX)) } }
            @if let Some(quote) = notice.quote.as_deref().filter(|quote| !quote.is_empty()) {
                blockquote.why { (truncate_text(quote, TEXT_BYTES_MAX)) }
            }
            p.note {
                @for (number, delivery) in notice.deliveries.iter().enumerate() {
                    @if number > 0 { " · " }
                    (delivery_text(frame, delivery))
                }
            }
        }
    }
}

fn delivery_text(frame: &PageFrame, delivery: &NoticeDelivery) -> Markup {
    html! {
        (isolated_text(&delivery.channel)) ": " (delivery.state) " " (relative_time(frame, delivery.at))
        @if let Some(reason) = &delivery.reason { ": " (visible_line(reason)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{EVIL, at, frame, is_inert};

    fn notice(text: &str, is_open: bool) -> NoticeSummary {
        let delivery = |state: &str, reason: Option<&str>| NoticeDelivery {
            channel: text.to_owned(),
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            at: at(-1),
        };
        NoticeSummary {
            event: "question".to_owned(),
            agent: Some(text.to_owned()),
            title: text.to_owned(),
            text: text.to_owned(),
            quote: Some(text.to_owned()),
            page: Some("/approvals/ask-1".to_owned()),
            created_at: at(-2),
            is_open,
            deliveries: vec![delivery("sent", None), delivery("failed", Some(text))],
        }
    }

    #[test]
    fn texts_of_agents_and_channels_are_inert() {
        for text in EVIL {
            let html = page(&frame(), &[notice(text, true), notice(text, false)]).into_string();
            is_inert(&html);
        }
    }

    #[test]
    fn open_notices_come_first_and_name_every_channel() {
        let html =
            page(&frame(), &[notice("earlier", false), notice("waiting", true)]).into_string();
        let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text} in {html}"));
        assert!(place("waiting") < place("earlier"), "{html}");
        assert!(html.contains("href=\"/approvals/ask-1\""), "{html}");
        assert!(html.contains(": sent ") && html.contains(": failed "), "{html}");
    }
}
