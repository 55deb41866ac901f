//! Page that replaces one that does not exist or cannot be shown.

use maud::{Markup, html};

use crate::{DashboardSection, PageFrame};

/// Returns the error page for a status code.
pub fn page(frame: &PageFrame, status: u16, detail: &str, hint: Option<&str>) -> Markup {
    let title = match status {
        404 => "Not found",
        403 => "Not allowed",
        400 => "Invalid request",
        _ => "Something went wrong",
    };
    let content = html! {
        div.head { h1 { (title) } span.badge { (status) } }
        div.card {
            div.pad.stack-s {
                p { (detail) }
                @if let Some(hint) = hint { p.note { (hint) } }
                p { a href="/" { "Back to the overview" } }
            }
        }
    };
    frame.page(DashboardSection::Other, title, content)
}
