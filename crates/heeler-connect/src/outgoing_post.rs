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

/// A text file to be posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedFile {
    /// Name of the file: letters, digits, dots and dashes. On Slack it identifies the post.
    pub name: String,
    pub content: String,
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
