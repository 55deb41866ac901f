//! `heeler session list`.

use std::collections::HashMap;

use camino::Utf8PathBuf;
use clap::Args;
use heeler_model::{Session, SessionId, SessionStatus};
use heeler_store::native::NativeFilter;
use heeler_store::{Reader, SessionCursor, SessionFilter};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::truth::Truth;
use super::{native, to_json};
use crate::cli::{self, Global, Page};
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Lines};
use crate::place::{self, Place};
use crate::since;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session list --agent coder --status paused
  heeler session list --channel slack/C0123 --since 7d
  heeler session list --tree
  heeler session list --native       # those made with claude in a terminal

Exit codes: 0 listed, also if there is none; 4 there is no such agent.";

/// How many sessions that are not in the page a tree shows for those that are: what they came from.
const ANCESTORS_MAX: usize = 200;
/// How deep a tree is indented; what is deeper stands below it.
const DEPTH_MAX: usize = 8;

/// Arguments of `session list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only those in this state
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = cli::session_status())]
    status: Option<SessionStatus>,
    /// Only those of this chat channel and its threads: PLATFORM/CHANNEL[/THREAD]
    #[arg(short = 'C', long, value_name = "ID")]
    channel: Option<String>,
    /// Show forks, and sessions that go on from a full one, below what they came from
    #[arg(long)]
    tree: bool,
    /// Those that people made with claude in a terminal, instead of ours
    #[arg(long, conflicts_with_all = ["status", "channel", "tree", "agent"])]
    native: bool,
    /// Only those made in this directory
    #[arg(short = 'd', long, value_name = "DIR", requires = "native")]
    directory: Option<Utf8PathBuf>,
    #[command(flatten)]
    pub(crate) page: Page,
}

/// A session in the list.
struct Listed {
    session: Session,
    /// How far below what it came from, in a tree.
    depth: usize,
    /// What leads to it from there.
    branch: String,
    json: Value,
}

/// Lists sessions.
pub(crate) fn run(global: &Global, args: &ListArgs) -> Outcome {
    let place = Place::find(global)?;
    let since =
        args.page.since.as_deref().map(|text| since::moment(text, place::now())).transpose()?;
    if args.native {
        return native::list(&place, args, native_filter(&place, args, since)?);
    }
    let limit = args.page.limit.get() as usize;
    let Some(reader) = place.reader()? else { return print(&place, &[], None, 0, args) };
    let agent =
        args.page.agent.as_deref().map(|name| place.known_agent(&reader, name)).transpose()?;
    let filter = SessionFilter { agent, status: args.status, channel: args.channel.clone(), since };
    let before = match &args.page.before {
        None => None,
        Some(id) => Some(SessionCursor::after(&reader.find_session(id)?)),
    };
    let truth = Truth::of(&place)?;
    let (page, total) = truth.page(&reader, &filter, before.as_ref(), limit)?;
    let next = page.last().filter(|_| total > page.len() as i64).map(|last| last.id.clone());
    let arranged = match args.tree {
        true => as_tree(with_ancestors(&reader, page)?),
        false => page.into_iter().map(|session| (0, session)).collect(),
    };
    let depths: Vec<usize> = arranged.iter().map(|(depth, _)| *depth).collect();
    let mut listed = Vec::with_capacity(arranged.len());
    for ((depth, mut session), branch) in arranged.into_iter().zip(branches(&depths)) {
        session.status = truth.status(&session);
        let json = if args.page.json { to_json(&reader, &session)? } else { Value::Null };
        listed.push(Listed { session, depth, branch, json });
    }
    drop(reader);
    print(&place, &listed, next.as_ref(), total, args)
}

fn native_filter(
    place: &Place,
    args: &ListArgs,
    since: Option<Timestamp>,
) -> Outcome<NativeFilter> {
    let usage = |error| Failure::new(Code::Usage, error);
    let before = args.page.before.as_deref().map(str::parse).transpose().map_err(usage)?;
    // Claude names folders by their real paths.
    let real = |path: &Utf8PathBuf| {
        let path = place.here.join(path);
        path.canonicalize_utf8().unwrap_or(path)
    };
    Ok(NativeFilter { cwd: args.directory.as_ref().map(real), since, before })
}

/// Returns what a session came from: the one it was forked from, or goes on from.
fn origin(session: &Session) -> Option<&SessionId> {
    session.parent.as_ref().or(session.continues.as_ref())
}

/// Adds the sessions that those of a page came from.
fn with_ancestors(reader: &Reader, mut sessions: Vec<Session>) -> Outcome<Vec<Session>> {
    let most = sessions.len() + ANCESTORS_MAX;
    let mut at = 0;
    while at < sessions.len() && sessions.len() < most {
        if let Some(from) = origin(&sessions[at])
            && !sessions.iter().any(|known| known.id == *from)
        {
            sessions.extend(reader.session(&from.clone())?);
        }
        at += 1;
    }
    Ok(sessions)
}

/// Puts each session below what it came from. Who was used last comes first.
fn as_tree(sessions: Vec<Session>) -> Vec<(usize, Session)> {
    let known: HashMap<SessionId, usize> =
        sessions.iter().enumerate().map(|(at, session)| (session.id.clone(), at)).collect();
    let above = |session: &Session| origin(session).and_then(|id| known.get(id)).copied();
    let mut below: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (at, session) in sessions.iter().enumerate() {
        below.entry(above(session).filter(|&from| from != at)).or_default().push(at);
    }
    let mut order = Vec::with_capacity(sessions.len());
    let mut ahead: Vec<(usize, usize)> = Vec::new();
    let push = |from: Option<usize>, depth: usize, ahead: &mut Vec<(usize, usize)>| {
        let children = below.get(&from).map_or(&[][..], Vec::as_slice);
        ahead.extend(children.iter().rev().map(|&at| (depth, at)));
    };
    push(None, 0, &mut ahead);
    while let Some((depth, at)) = ahead.pop() {
        order.push((depth, at));
        push(Some(at), depth + 1, &mut ahead);
    }
    // Two that are said to have come from each other: somebody else's state.
    let is_shown: Vec<usize> = order.iter().map(|(_, at)| *at).collect();
    order.extend((0..sessions.len()).filter(|at| !is_shown.contains(at)).map(|at| (0, at)));
    order.into_iter().map(|(depth, at)| (depth, sessions[at].clone())).collect()
}

/// Draws what leads to each entry of a tree, which are given by their depths.
fn branches(depths: &[usize]) -> Vec<String> {
    let mut drawn = Vec::with_capacity(depths.len());
    // Whether, below this entry, another stands at each depth before the line ends.
    let mut goes_on = [false; DEPTH_MAX + 1];
    for depth in depths.iter().rev().map(|depth| (*depth).min(DEPTH_MAX)) {
        let mut branch: String =
            (1..depth).map(|above| if goes_on[above] { "│ " } else { "  " }).collect();
        if depth > 0 {
            branch += if goes_on[depth] { "├ " } else { "└ " };
        }
        drawn.push(branch);
        goes_on[depth] = true;
        goes_on[depth + 1..].fill(false);
    }
    drawn.reverse();
    drawn
}

fn print(
    place: &Place,
    listed: &[Listed],
    next: Option<&SessionId>,
    total: i64,
    args: &ListArgs,
) -> Outcome {
    if args.page.json {
        let sessions: Vec<Value> = listed
            .iter()
            .map(|Listed { json, depth, .. }| {
                let mut json = json.clone();
                if args.tree {
                    json["depth"] = (*depth).into();
                }
                json
            })
            .collect();
        let limit = args.page.limit;
        return Ok(output::json(&json!({ "sessions": sessions, "total": total, "limit": limit }))?);
    }
    let status = args.status.map(SessionStatus::as_str);
    if listed.is_empty() {
        let nothing = match &args.channel {
            Some(_) => "no sessions match".to_owned(),
            None => args.page.nothing("sessions", status, place),
        };
        return Ok(output::line(nothing)?);
    }
    table(listed)?;
    if let Some(next) = next {
        let (shown, total) = (listed.len(), output::grouped(total.unsigned_abs()));
        let channel = args.channel.as_ref().map(|id| format!(" --channel {id}"));
        let tree = if args.tree { " --tree" } else { "" };
        let command = format!("session list{tree}{}", channel.unwrap_or_default());
        let next = args.page.next(&command, status, next.as_str());
        output::note(&format!("showing {shown} of {total}; older: {next}"))?;
    }
    Ok(())
}

fn table(listed: &[Listed]) -> Outcome {
    let now = place::now();
    let mut lines = Lines::new(
        &["ID", "AGENT", "STATUS", "MODE", "LAST USED", "MESSAGES", "JOBS", "FROM"],
        &["AGENT", "MODE", "FROM"],
    );
    for Listed { session, depth, branch, .. } in listed {
        let from = match (&session.parent, &session.continues) {
            (Some(parent), _) if *depth > 0 => session
                .forked_at_message
                .map_or(format!("fork of {parent}"), |at| format!("fork at {at}")),
            (Some(parent), _) => format!("fork of {parent}"),
            (None, Some(full)) => format!("continues {full}"),
            (None, None) => String::new(),
        };
        lines.push(vec![
            format!("{branch}{}", session.id).into(),
            output::one_line(&session.agent).into(),
            session.status.as_str().into(),
            session.mode.as_str().into(),
            output::relative(session.last_active_at, now).into(),
            session.message_count.to_string().into(),
            session.job_count.to_string().into(),
            from.into(),
        ]);
    }
    Ok(lines.print()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(sessions: &[(&str, Option<&str>, Option<&str>)]) -> String {
        let id = |id: &str| format!("sess-{id:0>8}").parse::<SessionId>().unwrap();
        let sessions = sessions.iter().map(|(own, from, continues)| {
            let mut made = Session::new(id(own), "coder", jiff::Timestamp::UNIX_EPOCH);
            (made.parent, made.continues) = (from.map(id), continues.map(id));
            made
        });
        let shown = as_tree(sessions.collect());
        let depths: Vec<usize> = shown.iter().map(|(depth, _)| *depth).collect();
        let line = |((_, session), branch): (&(usize, Session), &String)| {
            let id = session.id.as_str().trim_start_matches("sess-").trim_start_matches('0');
            format!("{branch}{id}")
        };
        shown.iter().zip(&branches(&depths)).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_session_stands_below_what_it_came_from() {
        let shown = tree(&[
            ("d", Some("c"), None),
            ("e", None, None),
            ("c", Some("a"), None),
            ("b", None, Some("a")),
            ("a", None, None),
        ]);
        assert_eq!(shown, "e\na\n├ c\n│ └ d\n└ b");
    }

    #[test]
    fn all_but_the_last_of_several_have_a_line_that_goes_on() {
        let drawn = |depths: &[usize]| branches(depths).join("|");
        assert_eq!(drawn(&[0, 1, 1, 0, 1]), "|├ |└ ||└ ");
        assert_eq!(drawn(&[0, 1, 2, 3, 2, 1, 2]), "|├ |│ ├ |│ │ └ |│ └ |└ |  └ ");
        assert_eq!(drawn(&[]), "");
        // What is deeper stands below the deepest.
        let deep: Vec<usize> = (0..12).collect();
        let drawn = branches(&deep);
        assert_eq!(drawn[DEPTH_MAX], format!("{}├ ", "  ".repeat(DEPTH_MAX - 1)));
        assert_eq!(drawn[11], format!("{}└ ", "  ".repeat(DEPTH_MAX - 1)));
    }

    #[test]
    fn sessions_that_come_from_each_other_are_shown_once() {
        assert_eq!(tree(&[("a", Some("b"), None), ("b", Some("a"), None)]), "a\nb");
        assert_eq!(tree(&[("a", Some("a"), None), ("b", Some("f"), None)]), "a\nb");
    }
}
