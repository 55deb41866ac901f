//! `heeler approvals`: what people are asked, and their answers.
//!
//! Lists are read from the database; answers are given to the daemon.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::num::NonZeroU32;

use clap::{Args, Subcommand};
use heeler_engine::Command;
use heeler_model::{
    APPROVAL_TEXT_BYTES_MAX, Approval, ApprovalAnswer, ApprovalKind, ApprovalStatus, question,
};
use heeler_query::approvals::{ApprovalDetails, ApprovalItem, ApprovalsWanted};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// How much of what is asked is shown in one go.
const DETAIL_CHARS_MAX: usize = 8_000;

/// What the help of `approvals list` shows at its end.
const LIST: &str = "Examples:
  heeler approvals list
  heeler approvals list --all --limit 50
  heeler approvals list --json | jq -r '.approvals[].id'

Without --all or --status, what waits for an answer is listed.
Exit codes: 0 listed, also if there is nothing, 4 no such run, job or approval.";

/// What the help of what answers shows at its end.
const ANSWER: &str = "Examples:
  heeler approvals approve ask-1a2b3c4d
  heeler approvals reject ask-1a2b3c4d --reason 'use the staging database'
  heeler approvals reply ask-1a2b3c4d 'the second one'

The first answer counts, wherever it is given. Starts a daemon if none runs. An agent's own
processes are refused.
Exit codes: 0 answered, 2 it asks for something else, 4 not found, 5 answered already, or refused.";

#[derive(Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List what waits for an answer, newest first
    #[command(after_help = LIST)]
    List(ListArgs),
    /// Show what is asked, in full
    #[command(
        after_help = "Example:\n  heeler approvals show ask-1a2b3c4d\n\nExit codes: 0 shown, 4 not found."
    )]
    Show(ShowArgs),
    /// Say yes: to a gate of a workflow, or to what an agent wants to do
    #[command(after_help = ANSWER)]
    Approve(ApproveArgs),
    /// Say no, and why
    #[command(after_help = ANSWER)]
    Reject(RejectArgs),
    /// Answer with words
    #[command(after_help = ANSWER)]
    Reply(ReplyArgs),
}

impl ApprovalsCommand {
    /// Says whether stdout is promised to be JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            ApprovalsCommand::List(args) => args.json,
            ApprovalsCommand::Show(args) => args.json,
            ApprovalsCommand::Approve(args) => args.json,
            ApprovalsCommand::Reject(args) => args.json,
            ApprovalsCommand::Reply(args) => args.json,
        }
    }
}

/// Arguments of `approvals list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Also what was answered, has expired or was withdrawn
    #[arg(short, long, conflicts_with = "status")]
    all: bool,
    /// Only those in this state
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = cli::approval_status())]
    status: Option<ApprovalStatus>,
    /// Only those of this workflow run, or of this job
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Only what comes after this one in the list; for the next page
    #[arg(long, value_name = "ID")]
    before: Option<String>,
    /// How many to show
    #[arg(short = 'l', long, value_name = "N", default_value = "20")]
    limit: NonZeroU32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// Its id; a beginning will do while it is unique
    #[arg(add = cli::approvals())]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals approve`.
#[derive(Args)]
pub(crate) struct ApproveArgs {
    /// Their ids; a beginning will do while it is unique
    #[arg(required = true, value_name = "ID", add = cli::approvals())]
    ids: Vec<String>,
    /// Why, for the record
    #[arg(short, long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals reject`.
#[derive(Args)]
pub(crate) struct RejectArgs {
    /// Their ids; a beginning will do while it is unique
    #[arg(required = true, value_name = "ID", add = cli::approvals())]
    ids: Vec<String>,
    /// Why, for the record and for the agent; asked for at a terminal if left out
    #[arg(short, long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals reply`.
#[derive(Args)]
pub(crate) struct ReplyArgs {
    /// Its id; a beginning will do while it is unique
    #[arg(add = cli::approvals())]
    id: String,
    /// The answer, or the number of a choice; a line each for several questions; `-` reads standard
    /// input
    text: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `approvals` and its verbs.
pub(crate) fn run(global: &Global, command: &ApprovalsCommand) -> Outcome {
    let place = Place::find(global)?;
    match command {
        ApprovalsCommand::List(args) => list(&place, args),
        ApprovalsCommand::Show(args) => show(&place, args),
        ApprovalsCommand::Approve(ApproveArgs { ids, reason, json }) => {
            let answer =
                ApprovalAnswer { approve: true, text: reason.clone(), updated_input: None };
            answer_all(&place, ids, Verb::Approve, &answer, *json)
        }
        ApprovalsCommand::Reject(RejectArgs { ids, reason, json }) => {
            // Nobody is asked for a reason where there is nothing to reject.
            find_all(&place, ids, Verb::Reject)?;
            let text = match reason {
                None if !*json && std::io::stdin().is_terminal() => why()?,
                reason => reason.clone(),
            };
            let answer = ApprovalAnswer { approve: false, text, updated_input: None };
            answer_all(&place, ids, Verb::Reject, &answer, *json)
        }
        ApprovalsCommand::Reply(ReplyArgs { id, text, json }) => {
            let text = Some(words(text)?);
            let answer = ApprovalAnswer { approve: true, text, updated_input: None };
            answer_all(&place, std::slice::from_ref(id), Verb::Reply, &answer, *json)
        }
    }
}

/// Asks on the terminal why something is rejected; nothing is an answer too.
fn why() -> Outcome<Option<String>> {
    write!(anstream::stderr().lock(), "why not? [Enter for no reason] ")?;
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Err(Failure::message(Code::Interrupted, "not rejected: no answer was given"));
    }
    Ok(Some(line.trim().to_owned()).filter(|line| !line.is_empty()))
}

/// Returns what is replied, from standard input if so asked.
fn words(text: &str) -> Outcome<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut read = String::new();
    // One byte for the line's end, and one to know that there is too much.
    std::io::stdin().take(APPROVAL_TEXT_BYTES_MAX as u64 + 2).read_to_string(&mut read)?;
    // The end of the line that was piped is no part of the answer.
    let text = read.strip_suffix('\n').unwrap_or(&read);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn list(place: &Place, args: &ListArgs) -> Outcome {
    let status = if args.all { None } else { Some(args.status.unwrap_or(ApprovalStatus::Pending)) };
    let (run, before) = (args.run.clone(), args.before.clone());
    let wanted = ApprovalsWanted { status, run, before, limit: args.limit.get() as usize };
    let page = place.records()?.approvals(&wanted)?;
    if args.json {
        return Ok(output::json(&page)?);
    }
    if page.approvals.is_empty() {
        return Ok(output::line(match status {
            Some(ApprovalStatus::Pending) => "nothing waits for an answer",
            _ => "no approvals match",
        })?);
    }
    print_list(&page.approvals)?;
    if let Some(next) = &page.next {
        let (shown, total) = (page.approvals.len(), output::grouped(page.total.unsigned_abs()));
        let next = format!("heeler approvals list --before {next}");
        output::note(&format!("showing {shown} of {total}; older: {next}"))?;
    }
    Ok(())
}

fn print_list(found: &[ApprovalItem]) -> Outcome {
    let now = place::now();
    let headings = ["ID", "KIND", "STATUS", "FROM", "ASKED", "WHAT"];
    let mut lines = Lines::new(&headings, &["FROM", "WHAT"]).keeping("WHAT");
    for approval in found {
        let from = approval.requested_by.as_deref().unwrap_or(&approval.workflow_run_id);
        lines.push(vec![
            approval.id.as_str().into(),
            approval.kind.as_str().into(),
            status_word(approval.kind, approval.status).into(),
            output::one_line(from).into(),
            output::relative(approval.created_at, now).into(),
            output::one_line(&approval.summary).into(),
        ]);
    }
    Ok(lines.print()?)
}

/// Returns a status in words: what was asked for words is answered rather than approved.
pub(crate) fn status_word(kind: ApprovalKind, status: ApprovalStatus) -> &'static str {
    match status {
        ApprovalStatus::Approved if kind.wants_words() => "answered",
        status => status.as_str(),
    }
}

fn show(place: &Place, args: &ShowArgs) -> Outcome {
    let approval = place.reader_for("approval", &args.id)?.find_approval(&args.id)?;
    if args.json {
        let approval = ApprovalDetails::of(&approval);
        return Ok(output::json(&json!({ "approval": approval }))?);
    }
    print(&approval, place::now())
}

fn print(approval: &Approval, now: Timestamp) -> Outcome {
    let text = |text: Option<&str>| text.map(|text| Text::from(output::one_line(text)));
    let time = |at: Option<Timestamp>| at.map(|at| Text::from(output::relative(at, now)));
    output::field("Approval", Some(approval.id.as_str().into()))?;
    output::field("Kind", Some(approval.kind.as_str().into()))?;
    output::field("Status", Some(status_word(approval.kind, approval.status).into()))?;
    output::field("From", text(approval.requested_by.as_deref()))?;
    output::field("Gate", text(Some(&approval.gate)))?;
    output::field("Job", approval.job_id.as_ref().map(|job| job.as_str().into()))?;
    output::field("Run", text(Some(&approval.workflow_run_id)))?;
    output::field("Phase", text(approval.phase.as_deref()))?;
    output::field("Artifact", text(approval.artifact.as_deref()))?;
    output::field("Asked", time(Some(approval.created_at)))?;
    let until = approval.expires_at.filter(|_| approval.status == ApprovalStatus::Pending);
    output::field("Waits until", until.map(|at| output::upcoming(at, now).into()))?;
    output::field("Answered by", text(approval.responded_by.as_deref()))?;
    output::field("Answered", time(approval.responded_at))?;
    output::line("")?;
    output::line(output::harmless(&whole(approval)))?;
    if let Some(response) = &approval.response {
        output::line("")?;
        output::line(format!("Answer: {}", output::harmless(response)))?;
    }
    if approval.status == ApprovalStatus::Pending {
        output::note(&how_to_answer(approval))?;
    }
    Ok(())
}

/// Returns what is asked, as far as it is shown beside something else.
pub(crate) fn asked(approval: &Approval) -> String {
    let whole = whole(approval);
    match output::shortened(&whole, DETAIL_CHARS_MAX) {
        short if short.len() < whole.len() => {
            format!("{short}\n(not all of it: heeler approvals show {})", approval.id)
        }
        all => all,
    }
}

/// Returns all that is asked.
fn whole(approval: &Approval) -> String {
    let detail = approval.detail.as_ref().unwrap_or(&Value::Null);
    let questions = question::questions(&detail["input"]);
    if !questions.is_empty() {
        let each = |question: &Value| {
            let mut text = question["question"].as_str().unwrap_or_default().to_owned();
            for (number, option) in question::options(question).iter().enumerate() {
                let label = option["label"].as_str().unwrap_or_default();
                text += &format!("\n  {}. {label}", number + 1);
            }
            text
        };
        return questions.iter().map(each).collect::<Vec<_>>().join("\n\n");
    }
    match (&detail["input"], detail["inputText"].as_str(), detail.as_str()) {
        (Value::Object(input), _, _) => {
            let field = |(name, value): (&String, &Value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{name}: {value}")
            };
            let fields: Vec<String> = input.iter().map(field).collect();
            format!("{}\n{}", approval.gate, fields.join("\n"))
        }
        (_, Some(text), _) => format!("{}\n{text}", approval.gate),
        (_, _, Some(text)) => text.to_owned(),
        _ => approval.summary.clone(),
    }
}

fn how_to_answer(approval: &Approval) -> String {
    let id = &approval.id;
    match approval.kind.wants_words() {
        true => format!("answer: heeler approvals reply {id} 'your answer'"),
        false => {
            format!("answer: heeler approvals approve {id}, or reject {id} --reason 'why not'")
        }
    }
}

/// How an answer is given.
#[derive(Clone, Copy, PartialEq)]
enum Verb {
    Approve,
    Reject,
    Reply,
}

/// Refuses a verb that does not fit, with the one that does.
fn check(approval: &Approval, verb: Verb) -> Outcome {
    let Approval { id, kind, .. } = approval;
    let fits = match verb {
        Verb::Approve => !kind.wants_words(),
        Verb::Reply => kind.wants_words(),
        // A gate that asks for words cannot go on without; a question of an agent can be refused.
        Verb::Reject => true,
    };
    if fits || approval.status != ApprovalStatus::Pending {
        return Ok(());
    }
    let (wants, instead) = match kind {
        ApprovalKind::Reply | ApprovalKind::Question => {
            ("words", format!("heeler approvals reply {id} 'your answer'"))
        }
        ApprovalKind::Approve | ApprovalKind::Permission => {
            ("yes or no", format!("heeler approvals approve {id}"))
        }
    };
    let message = format!("{id} asks for {wants} ({kind})");
    Err(Failure::message(Code::Usage, message).hint(instead))
}

/// Finds what is to be answered, each once; nothing is answered where one cannot be.
fn find_all(place: &Place, ids: &[String], verb: Verb) -> Outcome<Vec<Approval>> {
    let reader = place.reader_for("approval", &ids[0])?;
    let find = |id: &String| -> Outcome<Approval> {
        let approval = reader.find_approval(id)?;
        check(&approval, verb)?;
        Ok(approval)
    };
    let mut found: Vec<Approval> = Vec::new();
    for id in ids {
        let approval = find(id).map_err(|failure| match ids.len() {
            1 => failure,
            _ => {
                let error = failure.error;
                Failure { error: anyhow::anyhow!("nothing was answered: {error:#}"), ..failure }
            }
        })?;
        if found.iter().all(|it| it.id != approval.id) {
            found.push(approval);
        }
    }
    Ok(found)
}

/// Answers each; ends with the first failure, after all were tried.
fn answer_all(
    place: &Place,
    ids: &[String],
    verb: Verb,
    answer: &ApprovalAnswer,
    json: bool,
) -> Outcome {
    place.bring_up_to_date()?;
    let found = find_all(place, ids, verb)?;
    let mut told = Vec::new();
    let mut failure = None;
    for approval in found {
        let id = approval.id;
        let command =
            Command::Approval { approval: id.clone(), answer: answer.clone(), by: place.who() };
        match daemon::ask(place, &command) {
            Ok(answered) if json => {
                let message = daemon::to_json(&answered)["message"].clone();
                told.push(json!({ "id": id, "answered": true, "message": message, "error": null }));
            }
            Ok(answered) => daemon::tell(&answered, false)?,
            Err(failed) => {
                let error = format!("{:#}", failed.error);
                told.push(json!({ "id": id, "answered": false, "message": null, "error": error }));
                if !json {
                    output::complain(failed.text())?;
                }
                failure.get_or_insert(failed.code);
            }
        }
    }
    if json {
        output::json(&json!({ "approvals": told }))?;
    }
    failure.map_or(Ok(()), |code| Err(Failure::silent(code)))
}
