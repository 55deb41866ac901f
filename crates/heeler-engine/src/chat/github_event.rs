//! Messages on GitHub as events of a chat.
//!
//! Start at [`github_event`].

use heeler_config::{AuthorAssociation, TRUSTED_ASSOCIATIONS, take_github_mention};
use heeler_connect::{
    ChatContent, ChatEvent, ChatPlace, ChatPlatform, ChatSender, EarlierMessage, person_name,
};
use heeler_github::{GithubMessage, GithubMessageKind};

/// Text of a message that has nothing but a mention.
const MENTION_ONLY: &str = "Look at this.";

/// Returns the event of a message in a repository, as the account of a fleet receives it.
pub(super) fn github_event(message: &GithubMessage, chat: &str, account: &str) -> ChatEvent {
    let GithubMessage { id, number, author, .. } = message;
    let (event_id, id, written) = match &message.kind {
        GithubMessageKind::Description { title, .. } => {
            (format!("{chat}#{id}"), format!("i{id}"), format!("{title}\n\n{}", message.body))
        }
        GithubMessageKind::Comment => {
            (format!("comment:{id}"), id.to_string(), message.body.clone())
        }
        GithubMessageKind::LineComment { .. } => {
            (format!("line:{id}"), format!("r{id}"), message.body.clone())
        }
    };
    let mentioned = take_github_mention(&written, account);
    let addresses_bot = mentioned.is_some();
    let text = mentioned.unwrap_or(written);
    let text = match text.trim() {
        "" => MENTION_ONLY,
        text => text,
    };
    let text = match &message.kind {
        // A command is the whole text.
        GithubMessageKind::LineComment { path, line } if !text.starts_with(['/', '!']) => {
            let line = line.map(|line| format!(" line {line}")).unwrap_or_default();
            format!("(about `{path}`{line}) {text}")
        }
        _ => text.to_owned(),
    };
    let own = author.login.eq_ignore_ascii_case(account);
    ChatEvent {
        platform: ChatPlatform::Github,
        account: account.to_owned(),
        event_id,
        place: ChatPlace {
            chat: chat.to_owned(),
            thread: Some(number.to_string()),
            is_direct: false,
            person: None,
            server: None,
        },
        sender: ChatSender {
            id: author.id.to_string(),
            name: person_name(&author.login, &author.id.to_string()),
            // A deleted account has no ID.
            is_bot: author.is_bot || own || author.id == 0,
            is_outsider: !is_trusted(&message.author_association),
        },
        content: ChatContent::Message {
            id,
            text,
            addresses_bot,
            replies_to: None,
            files: Vec::new(),
        },
        earlier: Vec::new(),
    }
}

/// Returns the description of an issue or pull request as the subject of a conversation.
pub(super) fn subject(message: &GithubMessage, chat: &str) -> EarlierMessage {
    let what = match &message.kind {
        GithubMessageKind::Description { title, is_pull_request: true } => {
            format!("pull request {}: {title}", issue_name(chat, message.number))
        }
        GithubMessageKind::Description { title, .. } => {
            format!("issue {}: {title}", issue_name(chat, message.number))
        }
        GithubMessageKind::Comment | GithubMessageKind::LineComment { .. } => String::new(),
    };
    EarlierMessage {
        sender: person_name(&message.author.login, "an unknown person"),
        text: format!("{what}\n{}", message.body),
        is_subject: true,
    }
}

/// Returns the name of an issue as GitHub shows it.
fn issue_name(chat: &str, number: u64) -> String {
    format!("{}#{number}", chat.replacen(':', "/", 1))
}

fn is_trusted(association: &str) -> bool {
    association.parse::<AuthorAssociation>().is_ok_and(|it| TRUSTED_ASSOCIATIONS.contains(&it))
}

#[cfg(test)]
mod tests {
    use heeler_github::GithubAuthor;
    use jiff::Timestamp;

    use super::*;

    fn message(kind: GithubMessageKind, body: &str, association: &str) -> GithubMessage {
        GithubMessage {
            kind,
            id: 9,
            number: 7,
            body: body.to_owned(),
            author: GithubAuthor { id: 42, login: "ann".to_owned(), is_bot: false },
            author_association: association.to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn event(kind: GithubMessageKind, body: &str, association: &str) -> (String, bool, ChatEvent) {
        let event = github_event(&message(kind, body, association), "acme:app", "heeler-bot[bot]");
        let ChatContent::Message { text, addresses_bot, .. } = event.content.clone() else {
            panic!("{event:?}")
        };
        (text, addresses_bot, event)
    }

    #[test]
    fn the_three_kinds_of_messages_have_ids_of_their_own() {
        let (text, is_meant, comment) =
            event(GithubMessageKind::Comment, "@heeler-bot fix it", "MEMBER");
        assert_eq!((text.as_str(), is_meant), ("fix it", true));
        assert_eq!(comment.place.channel(comment.platform), "github/acme:app/7");
        assert_eq!((comment.event_id.as_str(), comment.sender.is_outsider), ("comment:9", false));
        let title = "It fails".to_owned();
        let kind = GithubMessageKind::Description { title, is_pull_request: false };
        let (text, is_meant, description) = event(kind, "@heeler-bot please", "NONE");
        assert_eq!((text.as_str(), is_meant), ("It fails\n\nplease", true));
        assert_eq!(description.event_id, "acme:app#9");
        assert!(description.sender.is_outsider);
        let kind = GithubMessageKind::LineComment { path: "src/a.rs".to_owned(), line: Some(3) };
        let (text, is_meant, line) = event(kind.clone(), "why?", "OWNER");
        assert_eq!((text.as_str(), is_meant), ("(about `src/a.rs` line 3) why?", false));
        assert_eq!(line.event_id, "line:9");
        assert_eq!(event(kind, "@heeler-bot /stop", "OWNER").0, "/stop");
        assert_eq!(event(GithubMessageKind::Comment, "@heeler-bot", "OWNER").0, MENTION_ONLY);
    }

    #[test]
    fn the_account_of_the_fleet_and_bots_count_as_bots() {
        let mut own = message(GithubMessageKind::Comment, "hi", "MEMBER");
        own.author.login = "Heeler-Bot[bot]".to_owned();
        assert!(github_event(&own, "acme:app", "heeler-bot[bot]").sender.is_bot);
        own.author = GithubAuthor::default();
        assert!(github_event(&own, "acme:app", "heeler-bot[bot]").sender.is_bot);
    }
}
