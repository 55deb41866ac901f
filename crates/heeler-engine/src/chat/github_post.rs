//! Posts of conversations on GitHub: comments on the issue or pull request.
//!
//! Start at [`attempt_github_post`].

use heeler_connect::{ChatPlace, render_github};
use heeler_model::{Approval, ApprovalStatus};
use heeler_store::EffectRecord;

use super::post::{ChatPost, ChatPostAction, PostContext, PostFailure, unposted_file, unreadable};
use crate::github::{IssueAddress, TaskFailure, edit_chat_message, post_chat_message};

/// Makes a post once; returns the ID of the comment.
pub(super) fn attempt_github_post(
    context: &PostContext<'_>,
    effect: &EffectRecord,
    post: &ChatPost,
) -> Result<Option<String>, PostFailure> {
    let issue = issue_of_place(&post.place);
    let issue = issue.ok_or_else(|| {
        PostFailure::permanent(format!("{} is no issue or pull request", post.channel()))
    })?;
    context.setup.check_own_repo(&issue).map_err(PostFailure::permanent)?;
    let connection = context.connections.get(context.setup, context.now);
    // A credential may be missing for a while only.
    let connection = connection.map_err(|message| PostFailure {
        message,
        is_transient: true,
        retry_after: None,
    })?;
    let say = |text: &str, reply_to: Option<&str>| {
        post_chat_message(&connection, effect, &issue, (&render_github(text), reply_to)).map(Some)
    };
    Ok(match &post.action {
        ChatPostAction::Say { text, reply_to } | ChatPostAction::Notice { text, reply_to } => {
            say(text, reply_to.as_deref())?
        }
        ChatPostAction::File { content, .. } => say(content, None)?,
        ChatPostAction::SentFile { job, name, .. } => {
            say(&unposted_file(job, name, "comments have no files"), None)?
        }
        ChatPostAction::Ask { approval, text, is_complete } => {
            let approval = context.db.approval(approval).map_err(|error| unreadable(&error))?;
            // It may have been answered before it was posted.
            let pending = approval.filter(|it| it.status == ApprovalStatus::Pending);
            match pending {
                None => None,
                Some(approval) => {
                    let how = answer_words(&approval, &post.account, *is_complete);
                    say(&format!("{text}\n\n{how}"), None)?
                }
            }
        }
        ChatPostAction::Close { approval, text } => {
            let posted = context.db.chat_question(approval, &post.channel());
            let posted = posted.map_err(|error| unreadable(&error))?;
            if let Some(message) = posted.and_then(|posted| posted.message_id) {
                let text = render_github(text);
                edit_chat_message(&connection, effect, &issue, (&text, &message))?;
            }
            None
        }
    })
}

/// Returns the words that tell approvers how to answer, because comments have no buttons.
fn answer_words(approval: &Approval, account: &str, is_complete: bool) -> String {
    let (id, account) = (&approval.id, account.strip_suffix("[bot]").unwrap_or(account));
    match (approval.kind.expects_text(), is_complete) {
        (true, _) => format!("Begin the answer with `@{account}`."),
        (false, true) => {
            format!("An approver answers with a comment: `/approve {id}` or `/deny {id}`.")
        }
        (false, false) => format!("An approver can deny it with a comment: `/deny {id}`."),
    }
}

/// Returns the issue or pull request of a conversation.
pub(crate) fn issue_of_place(place: &ChatPlace) -> Option<IssueAddress> {
    let (owner, repo) = place.chat.split_once(':')?;
    let number = place.thread.as_deref()?.parse().ok()?;
    Some(IssueAddress { owner: owner.to_owned(), repo: repo.to_owned(), number })
}

impl From<TaskFailure> for PostFailure {
    fn from(failure: TaskFailure) -> PostFailure {
        let TaskFailure { message, is_transient } = failure;
        PostFailure { message, is_transient, retry_after: None }
    }
}
