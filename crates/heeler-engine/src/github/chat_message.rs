//! Comments of a conversation, each made once.
//!
//! Start at [`post_chat_message`].

use heeler_store::EffectRecord;

use super::connection::GithubConnection;
use super::issue_address::{IssueAddress, TaskFailure};
use super::thread_post::{CLOCK_SKEW, SEARCHED_MAX, mark_text, post_comment, post_mark};

/// Beginning of the ID of a comment on a line.
const LINE_COMMENT: char = 'r';

/// Posts a comment, unless an earlier attempt has; returns its ID. The answer to a comment on a line is a
/// reply to it.
pub(crate) fn post_chat_message(
    connection: &GithubConnection,
    effect: &EffectRecord,
    issue: &IssueAddress,
    (text, reply_to): (&str, Option<&str>),
) -> Result<String, TaskFailure> {
    let line_comment = reply_to.and_then(|id| id.strip_prefix(LINE_COMMENT)?.parse::<u64>().ok());
    match line_comment {
        Some(comment) => reply_to_line(connection, effect, issue, (text, comment)),
        None => post_comment(connection, effect, issue, text).map(|id| id.to_string()),
    }
}

fn reply_to_line(
    connection: &GithubConnection,
    effect: &EffectRecord,
    issue: &IssueAddress,
    (text, comment): (&str, u64),
) -> Result<String, TaskFailure> {
    let (repo, mark) = (issue.github_repo()?, post_mark(effect));
    let own = connection.login()?;
    let since = effect.created_at.checked_sub(CLOCK_SKEW).unwrap_or(effect.created_at);
    let posted = connection.client.line_comments(&repo, issue.number, since, SEARCHED_MAX)?;
    let made = posted
        .iter()
        .find(|it| it.author.login.eq_ignore_ascii_case(own) && it.body.contains(&mark));
    let id = match made {
        Some(made) => made.id,
        None => {
            let text = mark_text(text, &mark);
            connection.client.reply_to_line_comment(&repo, issue.number, comment, &text)?
        }
    };
    Ok(format!("{LINE_COMMENT}{id}"))
}

/// Replaces the text of a comment.
pub(crate) fn edit_chat_message(
    connection: &GithubConnection,
    effect: &EffectRecord,
    issue: &IssueAddress,
    (text, message): (&str, &str),
) -> Result<(), TaskFailure> {
    let Ok(comment) = message.parse::<u64>() else { return Ok(()) };
    let text = mark_text(text, &post_mark(effect));
    connection.client.update_comment(&issue.github_repo()?, comment, &text)?;
    Ok(())
}
