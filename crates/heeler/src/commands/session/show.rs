//! `heeler session show`: one session, and with `--history` what was said in it.

use std::num::NonZeroUsize;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::config::RuntimeType;
use heeler_model::{AgentSessionId, JobId, Session, SessionId, iso_millis};
use heeler_store::Reader;
use heeler_store::history::{Cut, History, history};
use serde_json::{Value, json};

use super::native::{self, Natives};
use super::past::{self, Extent};
use super::truth::Truth;
use super::{jobs_of, outside, to_json};
use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet::Fleets;
use crate::output::{self, Text};
use crate::place::{self, Place};

/// What the help of `session show` shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session show sess-1a2b
  heeler session show sess-1a2b --history
  heeler session show sess-1a2b --history -n 100 --before 41
  heeler session show sess-1a2b --history -n 1 --full      # all of the last message

Messages are numbered as `session fork --at-message` takes them. A `*` says that a fork can be cut
behind a message, `*+` that the files of that moment were kept as well (`fork --workspace`). What
the agent does not remember is marked: it was killed before it kept it, or went on from elsewhere.";

/// How many of a session's jobs, forks and successors are shown.
const SHOWN_MAX: usize = 10;

/// Arguments of `session show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The session's id or the agent's own id of it; a beginning will do while it is unique. One
    /// that was made with claude in a terminal is found by claude's id
    #[arg(add = cli::sessions())]
    id: String,
    /// Show what was said in it, with the numbers of messages
    #[arg(short = 'H', long)]
    history: bool,
    /// How many messages to show, of the last ones
    #[arg(short = 'n', long, value_name = "N", default_value = "20", requires = "history")]
    number: NonZeroUsize,
    /// Only messages before this one; for the page before
    #[arg(long, value_name = "M", requires = "history")]
    before: Option<u64>,
    /// Show all of each message, however long it is
    #[arg(long, requires = "history")]
    full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which messages are asked for.
pub(super) struct Page {
    pub(super) before: Option<u64>,
    pub(super) count: usize,
}

impl ShowArgs {
    /// Returns which messages are asked for, if any are.
    pub(super) fn page(&self) -> Option<Page> {
        let page = Page { before: self.before, count: self.number.get() };
        self.history.then_some(page)
    }

    /// Prints messages of a session.
    pub(super) fn print_page(&self, session: &str, past: &History) -> Outcome {
        if self.json {
            return Ok(output::json(&page_json(session, past))?);
        }
        past::print(session, past, if self.full { Extent::Full } else { Extent::Brief })
    }
}

/// Shows a session.
pub(crate) fn run(global: &Global, args: &ShowArgs) -> Outcome {
    let place = Place::find(global)?;
    let (reader, mut session) = match find(&place, &args.id) {
        Err(unknown) if unknown.code == Code::NotFound => {
            let natives = Natives::of(&place)?;
            let found = natives.find(&args.id)?.ok_or(unknown)?;
            return native::show(&place, &natives, &found, args);
        }
        found => found?,
    };
    if let Some(page) = args.page() {
        drop(reader);
        let past = read(&place, &session, &page)?;
        return args.print_page(session.id.as_str(), &past);
    }
    session.status = Truth::of(&place)?.status(&session);
    let mut related = Related::of(&reader, &session)?;
    let log = place.dir()?.session_log_path(place.home.as_deref(), &session);
    related.log = log.filter(|log| log.is_file());
    related.resume = resume_line(&place, &session)?;
    if args.json {
        let mut value = to_json(&reader, &session)?;
        value["log"] = json!(related.log);
        value["forks"] = json!(related.forks);
        value["continuedBy"] = json!(related.continuations);
        value["resumeCommand"] = json!(related.resume);
        return Ok(output::json(&json!({ "session": value }))?);
    }
    related.jobs = jobs_of(&reader, &session)?;
    drop(reader);
    print(&session, &related)
}

/// Finds a session of ours.
fn find(place: &Place, id: &str) -> Outcome<(Reader, Session)> {
    let reader = place.reader_for("session", id)?;
    let session = reader.find_session(id)?;
    Ok((reader, session))
}

/// Reads messages of a session.
fn read(place: &Place, session: &Session, page: &Page) -> Outcome<History> {
    let log = place.dir()?.session_log_path(place.home.as_deref(), session);
    let log = log.filter(|log| log.is_file()).ok_or_else(|| {
        let message = format!("session {} has no log: nothing was said in it", session.id);
        Failure::message(Code::NotFound, message)
    })?;
    // A fork that has not begun will remember what its source does.
    let source = session.fork.as_ref().map(|fork| &fork.source);
    let id = source.or(session.agent_session_id.as_ref());
    let fleets = Fleets::of(place)?;
    let own = id.and_then(|id| fleets.own_file(session, id));
    let past = history(&log, own.as_deref(), page.before, page.count);
    let mut past = past.map_err(|error| Failure::new(Code::Failed, error))?;
    outside::add(session, own.as_deref(), page, &fleets.secrets(), &mut past)?;
    if session.runtime == RuntimeType::Command.as_str() {
        let remembers_nothing = Cut::Unsafe("a command has no sessions");
        past.messages.iter_mut().for_each(|message| message.cut = remembers_nothing);
    }
    Ok(past)
}

/// What is told of a session beside its record.
#[derive(Default)]
struct Related {
    forks: Vec<SessionId>,
    continuations: Vec<SessionId>,
    jobs: Vec<JobId>,
    log: Option<Utf8PathBuf>,
    resume: Option<String>,
}

impl Related {
    fn of(reader: &Reader, session: &Session) -> Outcome<Related> {
        let forks = reader.forks_of(&session.id)?.into_iter().map(|fork| fork.id).collect();
        let continuations = reader.continuations_of(&session.id, SHOWN_MAX)?;
        Ok(Related { forks, continuations, ..Related::default() })
    }
}

/// Returns what continues a session in a terminal, without us.
fn resume_line(place: &Place, session: &Session) -> Outcome<Option<String>> {
    let is_claudes = matches!(session.runtime.parse(), Ok(RuntimeType::Sdk | RuntimeType::Cli));
    let (Some(id), Some(directory)) = (&session.agent_session_id, &session.working_directory)
    else {
        return Ok(None);
    };
    if !is_claudes {
        return Ok(None);
    }
    let fleets = Fleets::of(place)?;
    let Some(own) = fleets.own_file(session, id).filter(|own| own.is_file()) else {
        return Ok(None);
    };
    Ok(Some(command_line(place, directory, id, &own)))
}

/// Spells the command that continues a session of claude's. It finds a session by the folder it is
/// begun in, and its own folder by a variable.
pub(super) fn command_line(
    place: &Place,
    directory: &Utf8Path,
    id: &AgentSessionId,
    own: &Utf8Path,
) -> String {
    let config = own.ancestors().nth(3);
    let usual = match (place.env.get("CLAUDE_CONFIG_DIR"), place.env.get("HOME")) {
        (Some(config), _) if !config.is_empty() => Some(Utf8PathBuf::from(config)),
        (_, Some(home)) => Some(Utf8Path::new(home).join(".claude")),
        _ => None,
    };
    let config = config.filter(|config| usual.as_deref() != Some(config));
    let config = config.map(|path| format!("CLAUDE_CONFIG_DIR={} ", quoted(path.as_str())));
    let (directory, config) = (quoted(directory.as_str()), config.unwrap_or_default());
    format!("cd {directory} && {config}claude --resume {}", quoted(id.as_str()))
}

/// Quotes a word for a shell where it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn print(session: &Session, related: &Related) -> Outcome {
    let now = place::now();
    let when = |at| format!("{} ({})", iso_millis(at), output::relative(at, now));
    let from = session.parent.as_ref().map(|parent| match session.forked_at_message {
        Some(at) => format!("{parent}, at message {at}"),
        None => parent.to_string(),
    });
    let unbegun = session.fork.as_ref().map(|_| "it takes its history over when it begins");
    let path = |path: &Option<Utf8PathBuf>| path.as_ref().map(|path| path.as_str().into());
    let fields: [(&str, Option<Text>); 21] = [
        ("session", Some(session.id.as_str().into())),
        ("own id", session.agent_session_id.as_ref().map(|id| id.as_str().into())),
        ("agent", Some(session.agent.as_str().into())),
        ("status", Some(session.status.as_str().into())),
        ("forked from", from.map(Text::from)),
        ("not begun", unbegun.map(Text::from)),
        ("continues", session.continues.as_ref().map(|id| id.as_str().into())),
        ("continued by", newest(&related.continuations).map(Text::from)),
        ("forks", newest(&related.forks).map(Text::from)),
        ("mode", Some(session.mode.as_str().into())),
        ("channel", session.channel_id.as_deref().map(Text::from)),
        ("created", Some(when(session.created_at).into())),
        ("last used", Some(when(session.last_active_at).into())),
        ("messages", Some(session.message_count.to_string().into())),
        ("tokens", tokens(session.token_estimate)),
        ("directory", path(&session.working_directory)),
        ("workspace", path(&session.workspace)),
        ("runtime", Some(session.runtime.as_str().into()).filter(|_| !session.runtime.is_empty())),
        ("origin", session.origin.as_deref().map(Text::from)),
        ("log", path(&related.log)),
        ("jobs", newest(&related.jobs).map(Text::from)),
    ];
    for (name, value) in fields {
        output::field(name, value)?;
    }
    output::command("by hand", related.resume.as_deref())?;
    if related.log.is_some() {
        output::note(&format!("what was said: heeler session show {} --history", session.id))?;
    }
    Ok(())
}

/// Returns how large the context is, if that is known.
pub(super) fn tokens(estimate: i64) -> Option<Text> {
    let estimate = u64::try_from(estimate).ok().filter(|tokens| *tokens > 0)?;
    Some(format!("about {}", output::grouped(estimate)).into())
}

/// Returns the newest, one a line, and how many are older.
fn newest<T: ToString>(ids: &[T]) -> Option<String> {
    let mut lines: Vec<String> = ids.iter().rev().take(SHOWN_MAX).map(T::to_string).collect();
    if ids.len() > SHOWN_MAX {
        lines.push(format!("and {} older", ids.len() - SHOWN_MAX));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Returns a page of messages as JSON.
fn page_json(session: &str, past: &History) -> Value {
    let messages: Vec<Value> = past.messages.iter().map(past::to_json).collect();
    json!({ "session": session, "messages": messages, "total": past.total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell_where_they_need_it() {
        assert_eq!(quoted("/home/me/a-b_c"), "/home/me/a-b_c");
        assert_eq!(quoted("/my files/it's"), r"'/my files/it'\''s'");
        assert_eq!(quoted("$(reboot)"), "'$(reboot)'");
        assert_eq!(quoted(""), "''");
    }
}
