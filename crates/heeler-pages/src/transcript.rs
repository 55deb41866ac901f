//! Rows of transcripts.

use maud::html;

/// Renders a row of a transcript as one element.
pub fn row_html(number: u64, row_json: &str) -> String {
    html! { div.row id={ "row-" (number) } { pre { (row_json) } } }.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_says_is_text() {
        let shown = row_html(7, "{\"a\":\"<script>\"}");
        assert!(!shown.contains("<script>"), "{shown}");
    }
}
