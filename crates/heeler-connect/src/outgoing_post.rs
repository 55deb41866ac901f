//! Posts in one form for all platforms.
//!
//! Start at [`OutgoingPost`].

/// Text to be posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingPost {
    /// Markdown.
    pub text: String,
    /// Buttons, in one row.
    pub buttons: Vec<ChatButton>,
    /// ID of the message that is answered.
    pub reply_to: Option<String>,
}

/// A file to be posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedFile {
    /// Name of the file, see [`posted_file_name`].
    pub name: String,
    pub media_type: &'static str,
    pub content: Vec<u8>,
    /// Text above the file. On Slack it identifies the post, together with the name.
    pub heading: String,
}

/// Returns the name under which a file is posted: letters, digits, spaces, dots, dashes and underscores of
/// its own name.
pub fn posted_file_name(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || " .-_".contains(c);
    let name: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let name = name.trim_matches([' ', '.']);
    if name.is_empty() { "file".to_owned() } else { name.to_owned() }
}

/// A button below a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatButton {
    pub label: String,
    pub value: String,
}

/// Identity of a post, by which a platform or the fleet recognizes a repeated one.
#[derive(Debug, Clone, Copy)]
pub struct PostMark<'a> {
    pub id: &'a str,
    /// Set if an earlier attempt may have made the post: the earliest time of that, in seconds since
    /// 1970.
    pub maybe_made_since: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_of_an_agent_changes_a_form() {
        assert_eq!(posted_file_name("my report.md"), "my report.md");
        assert_eq!(posted_file_name("Übersicht.pdf"), "Übersicht.pdf");
        assert_eq!(posted_file_name("a\"; filename=\"b\r\n\u{202e}"), "a__ filename__b___");
        assert_eq!(posted_file_name("../.env"), "_.env");
        assert_eq!(posted_file_name("..."), "file");
    }
}
