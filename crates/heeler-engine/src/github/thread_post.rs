//! Posts in the thread of an issue or pull request, each made once.
//!
//! A post contains a mark that people do not see. Before it is made, the posts of the fleet's account
//! are searched for the mark: an earlier attempt may have been executed although its response was
//! lost, or although the daemon died. Start at [`post_comment`].

use heeler_github::{GithubComment, GithubError};
use heeler_store::EffectRecord;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use super::connection::GithubConnection;
use super::issue_address::{IssueAddress, TaskFailure};

/// Longest text of a post, in bytes. GitHub's limit is 65536 characters.
const POST_BYTES_MAX: usize = 60_000;

/// Most posts that are searched for a mark.
pub(super) const SEARCHED_MAX: usize = 1_000;

/// Difference between the clocks of this machine and of GitHub that does not matter.
pub(super) const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// Beginning of a mark. No text of an agent may contain it.
const MARK_BEGIN: &str = "<!-- heeler:";

/// Returns the mark of a post.
pub(super) fn post_mark(effect: &EffectRecord) -> String {
    mark_of(&effect.id)
}

fn mark_of(object: &str) -> String {
    let digest = Sha256::digest(object.as_bytes());
    let digest: String = digest[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{MARK_BEGIN}{digest} -->")
}

/// Returns a text with its mark. Marks in the text itself are made ineffective: it may come from an
/// agent that wants a later post to be left out.
pub(super) fn mark_text(text: &str, mark: &str) -> String {
    let end = text.floor_char_boundary(POST_BYTES_MAX);
    let cut = if end < text.len() { "\n\n(The text was too long for GitHub.)" } else { "" };
    let text = text[..end].replace(MARK_BEGIN, "<!-- heeler :");
    format!("{text}{cut}\n\n{mark}")
}

/// Posts a comment, unless an earlier attempt has; returns its ID.
pub(super) fn post_comment(
    connection: &GithubConnection,
    effect: &EffectRecord,
    issue: &IssueAddress,
    text: &str,
) -> Result<u64, TaskFailure> {
    let mark = post_mark(effect);
    match find_comment(connection, issue, &mark, effect.created_at)? {
        Some(comment) => Ok(comment),
        None => create_comment(connection, issue, &mark_text(text, &mark)),
    }
}

/// Posts the comment of a workflow run, or replaces its text. The comment is found by its mark, so
/// there is one for each run.
pub(super) fn edit_checklist(
    connection: &GithubConnection,
    (run, started_at): (&str, Timestamp),
    issue: &IssueAddress,
    text: &str,
) -> Result<(), TaskFailure> {
    let mark = mark_of(&format!("checklist of {run}"));
    let text = mark_text(text, &mark);
    match find_comment(connection, issue, &mark, started_at)? {
        Some(comment) => {
            let repo = issue.github_repo()?;
            connection.client.update_comment(&repo, comment, &text)?;
            Ok(())
        }
        None => create_comment(connection, issue, &text).map(drop),
    }
}

/// Returns the ID of the fleet's own comment with a mark.
fn find_comment(
    connection: &GithubConnection,
    issue: &IssueAddress,
    mark: &str,
    created_at: Timestamp,
) -> Result<Option<u64>, TaskFailure> {
    let repo = issue.github_repo()?;
    let own = connection.login()?;
    let since = created_at.checked_sub(CLOCK_SKEW).unwrap_or(Timestamp::MIN);
    let comments = connection.client.comments(&repo, issue.number, since, SEARCHED_MAX)?;
    let is_it = |comment: &&GithubComment| {
        comment.author.eq_ignore_ascii_case(own) && comment.body.contains(mark)
    };
    Ok(comments.iter().find(is_it).map(|comment| comment.id))
}

fn create_comment(
    connection: &GithubConnection,
    issue: &IssueAddress,
    text: &str,
) -> Result<u64, TaskFailure> {
    let repo = issue.github_repo()?;
    match connection.client.create_comment(&repo, issue.number, text) {
        Ok(comment) => Ok(comment.id),
        // Whether it was executed is unknown. The next attempt looks for the mark.
        Err(error @ GithubError::BadAnswer { .. }) => {
            Err(TaskFailure { message: error.to_string(), is_transient: true })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_contain_a_mark_and_keeps_its_own() {
        let mark = "<!-- heeler:00 -->";
        let text = mark_text("Done. <!-- heeler:00 -->", mark);
        assert_eq!(text.matches(mark).count(), 1);
        assert!(text.ends_with(mark));
        let long = mark_text(&"é".repeat(POST_BYTES_MAX), mark);
        assert!(long.len() < 65_536 && long.ends_with(mark));
        assert!(long.contains("too long"));
    }
}
