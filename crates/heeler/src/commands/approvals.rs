//! `heeler approvals`: lists questions to people, and answers them.
//!
//! Lists are read from the database; answers are requests to the daemon.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::num::NonZeroU32;

use clap::{Args, Subcommand};
use heeler_engine::DaemonCommand;
use heeler_model::{
    APPROVAL_SUMMARY_BYTES_MAX, APPROVAL_TEXT_BYTES_MAX, Approval, ApprovalAnswer, ApprovalKind,
    ApprovalStatus, question,
};
use heeler_query::approvals::{ApprovalDetails, ApprovalListQuery, ApprovalSummary, input_bytes};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args;

/// Characters of a question that are shown next to other output.
const DETAIL_CHARS_MAX: usize = 8_000;

/// Help footer of `approvals list`.
const LIST: &str = "Examples:
  heeler approvals list
  heeler approvals list --all -n 50
  heeler approvals list --json | jq -r '.approvals[].id'

Without --all or --status, only open questions are listed.
Exit codes: 0 listed (even if the list is empty), 4 no such run, job or approval.";

/// Help footer of `approvals approve`, `reject` and `reply`.
const ANSWER: &str = "Examples:
  heeler approvals approve ask-1a2b3c4d
  heeler approvals reject ask-1a2b3c4d --reason 'use the staging database'
  heeler approvals reply ask-1a2b3c4d 'the second one'

The first answer counts, from any client. Starts a daemon if none runs. Processes of an agent
cannot answer.
Exit codes: 0 answered, 2 wrong kind of answer, 4 not found, 5 already answered, or refused.";

#[derive(Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List open questions, newest first
    #[command(after_help = LIST)]
    List(ApprovalListArgs),
    /// Show one question in full
    #[command(
        after_help = "Example:\n  heeler approvals show ask-1a2b3c4d\n\nExit codes: 0 shown, 4 not found."
    )]
    Show(ApprovalShowArgs),
    /// Answer yes to a workflow gate or an agent's permission request
    #[command(after_help = ANSWER)]
    Approve(ApproveArgs),
    /// Answer no, with an optional reason
    #[command(after_help = ANSWER)]
    Reject(RejectArgs),
    /// Answer a question with text
    #[command(after_help = ANSWER)]
    Reply(ReplyArgs),
}

/// Arguments of `approvals list`.
#[derive(Args)]
pub(crate) struct ApprovalListArgs {
    /// Include answered, expired and withdrawn questions
    #[arg(short, long, conflicts_with = "status")]
    all: bool,
    /// Show only approvals with this status
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = shared_args::approval_status())]
    status: Option<ApprovalStatus>,
    /// Show only approvals of this workflow run or job
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Show entries older than this ID (for the next page)
    #[arg(long, value_name = "ID")]
    before: Option<String>,
    /// Number of entries to show
    #[arg(
        short = 'n',
        short_alias = 'l',
        long = "number",
        alias = "limit",
        value_name = "N",
        default_value = "20"
    )]
    limit: NonZeroU32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals show`.
#[derive(Args)]
pub(crate) struct ApprovalShowArgs {
    /// Approval ID or unique prefix
    #[arg(add = shared_args::approvals())]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals approve`.
#[derive(Args)]
pub(crate) struct ApproveArgs {
    /// Approval IDs or unique prefixes
    #[arg(required = true, value_name = "ID", add = shared_args::approvals())]
    ids: Vec<String>,
    /// Reason, for the record
    #[arg(short, long, value_name = "TEXT")]
    reason: Option<String>,
    /// Also allow the rules that `approvals show` lists, in all later runs of the agent
    #[arg(long)]
    always: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals reject`.
#[derive(Args)]
pub(crate) struct RejectArgs {
    /// Approval IDs or unique prefixes
    #[arg(required = true, value_name = "ID", add = shared_args::approvals())]
    ids: Vec<String>,
    /// Reason, for the record and the agent [default: asked at a terminal]
    #[arg(short, long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `approvals reply`.
#[derive(Args)]
pub(crate) struct ReplyArgs {
    /// Approval ID or unique prefix
    #[arg(add = shared_args::approvals())]
    id: String,
    /// Answer or number of a choice; `-` reads standard input
    ///
    /// If several questions are asked at once, give one line for each.
    text: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `approvals` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &ApprovalsCommand) -> CommandResult {
    let context = CommandContext::find(global)?;
    match command {
        ApprovalsCommand::List(args) => list(&context, args),
        ApprovalsCommand::Show(args) => show(&context, args),
        ApprovalsCommand::Approve(ApproveArgs { ids, reason, always, json }) => {
            let text = reason.clone();
            let always = *always;
            let answer =
                ApprovalAnswer { approve: true, text, always, ..ApprovalAnswer::default() };
            answer_all(&context, ids, ApprovalVerb::Approve, &answer, *json)
        }
        ApprovalsCommand::Reject(RejectArgs { ids, reason, json }) => {
            // Check first: do not ask for a reason if there is nothing to reject.
            find_all(&context, ids, ApprovalVerb::Reject)?;
            let text = match reason {
                // A script must not hang at a prompt, so only a person is asked.
                None if !*json && std::io::stdin().is_terminal() => ask_reason()?,
                reason => reason.clone(),
            };
            let answer = ApprovalAnswer { approve: false, text, ..ApprovalAnswer::default() };
            answer_all(&context, ids, ApprovalVerb::Reject, &answer, *json)
        }
        ApprovalsCommand::Reply(ReplyArgs { id, text, json }) => {
            let text = Some(read_reply(text)?);
            let answer = ApprovalAnswer { approve: true, text, ..ApprovalAnswer::default() };
            answer_all(&context, std::slice::from_ref(id), ApprovalVerb::Reply, &answer, *json)
        }
    }
}

/// Asks at the terminal for a reason; an empty line means none.
fn ask_reason() -> CommandResult<Option<String>> {
    write!(anstream::stderr().lock(), "reason for rejecting [Enter for none]: ")?;
    let mut line = String::new();
    // Ctrl-D is not Enter: the person wants to leave without an answer.
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Err(CommandFailure::message(
            FailureCode::Interrupted,
            "not rejected: no answer was given",
        ));
    }
    Ok(Some(line.trim().to_owned()).filter(|line| !line.is_empty()))
}

/// Returns the reply; `-` reads it from standard input.
fn read_reply(text: &str) -> CommandResult<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut read = String::new();
    // One byte for the newline, and one to detect a reply that is too long.
    std::io::stdin().take(APPROVAL_TEXT_BYTES_MAX as u64 + 2).read_to_string(&mut read)?;
    // The final newline of piped input is not part of the answer.
    let text = read.strip_suffix('\n').unwrap_or(&read);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn list(context: &CommandContext, args: &ApprovalListArgs) -> CommandResult {
    // Answered questions would bury the ones that wait.
    let status = if args.all { None } else { Some(args.status.unwrap_or(ApprovalStatus::Pending)) };
    let (run, before) = (args.run.clone(), args.before.clone());
    let wanted = ApprovalListQuery { status, run, before, limit: args.limit.get() as usize };
    let page = context.open_records()?.approvals(&wanted)?;
    if args.json {
        return Ok(output::print_json(&page)?);
    }
    if page.approvals.is_empty() {
        return Ok(output::print_line(match status {
            Some(ApprovalStatus::Pending) => "no open questions",
            _ => "no approvals match",
        })?);
    }
    print_list(&page.approvals)?;
    if let Some(next) = &page.next {
        let (shown, total) =
            (page.approvals.len(), output::group_thousands(page.total.unsigned_abs()));
        let limit = args.limit.to_string();
        let options = [
            ("--status", args.status.map(ApprovalStatus::as_str)),
            ("--run", args.run.as_deref()),
            ("--number", (limit != "20").then_some(limit.as_str())),
            ("--before", Some(next.as_str())),
        ];
        let all = if args.all { " --all" } else { "" };
        let next = format!("heeler approvals list{all}{}", shared_args::write_options(&options));
        output::print_note(&format!("showing {shown} of {total}; older: {next}"))?;
    }
    Ok(())
}

fn print_list(found: &[ApprovalSummary]) -> CommandResult {
    let now = process_env::now();
    let headings = ["ID", "KIND", "STATUS", "FROM", "ASKED", "BYTES", "QUESTION"];
    let mut lines = OutputTable::new(&headings, &["FROM", "QUESTION"]).keep_column("QUESTION");
    for approval in found {
        let from = approval.requested_by.as_deref().unwrap_or(&approval.workflow_run_id);
        lines.push(vec![
            output::id_cell(approval.id.as_str()),
            approval.kind.as_str().into(),
            status_word(approval.kind, approval.status).into(),
            output::one_line(from).into(),
            output::relative_time(approval.created_at, now).into(),
            question_length(&approval.summary).into(),
            output::reveal_line(&approval.summary).into(),
        ]);
    }
    Ok(lines.print()?)
}

/// Returns the length of a question in a list, because a terminal shows only its beginning. The record
/// of a longer question is cut for lists.
fn question_length(summary: &str) -> String {
    // The cut may fall some bytes earlier, at the end of a character.
    const CHARACTER_BYTES_MAX: usize = 4;
    let is_cut = summary.len() + CHARACTER_BYTES_MAX > APPROVAL_SUMMARY_BYTES_MAX;
    format!("{}{}", summary.len(), if is_cut { "+" } else { "" })
}

/// Returns the word for a status: an approval that expects text is "answered" rather than
/// "approved".
pub(crate) fn status_word(kind: ApprovalKind, status: ApprovalStatus) -> &'static str {
    match status {
        ApprovalStatus::Approved if kind.expects_text() => "answered",
        status => status.as_str(),
    }
}

fn show(context: &CommandContext, args: &ApprovalShowArgs) -> CommandResult {
    let approval = context.reader_for("approval", &args.id)?.find_approval(&args.id)?;
    if args.json {
        let approval = ApprovalDetails::of(&approval);
        return Ok(output::print_json(&json!({ "approval": approval }))?);
    }
    print(&approval, process_env::now())
}

fn print(approval: &Approval, now: Timestamp) -> CommandResult {
    let text = |text: Option<&str>| text.map(|text| SafeText::from(output::one_line(text)));
    let time = |at: Option<Timestamp>| at.map(|at| SafeText::from(output::relative_time(at, now)));
    output::print_field("Approval", Some(approval.id.as_str().into()))?;
    output::print_field("Kind", Some(approval.kind.as_str().into()))?;
    output::print_field("Status", Some(status_word(approval.kind, approval.status).into()))?;
    output::print_field("From", text(approval.requested_by.as_deref()))?;
    output::print_field("Gate", text(Some(&approval.gate)))?;
    output::print_field("Job", approval.job_id.as_ref().map(|job| job.as_str().into()))?;
    output::print_field("Run", text(Some(&approval.workflow_run_id)))?;
    output::print_field("Phase", text(approval.phase.as_deref()))?;
    output::print_field("Artifact", text(approval.artifact.as_deref()))?;
    output::print_field("Asked", time(Some(approval.created_at)))?;
    // The deadline of an answered question has no meaning any more.
    let until = approval.expires_at.filter(|_| approval.status == ApprovalStatus::Pending);
    output::print_field("Waits until", until.map(|at| output::due_text(at, now).into()))?;
    output::print_field("Answered by", text(approval.responded_by.as_deref()))?;
    output::print_field("Answered", time(approval.responded_at))?;
    output::print_line("")?;
    // The question is text of an agent. A person must see all of what they approve.
    output::print_line(output::reveal_hidden(&question_text(approval)))?;
    if let Some(bytes) = input_bytes(approval) {
        let bytes = output::pluralize(bytes as u64, "byte");
        output::print_line(format!("({bytes} of input)"))?;
    }
    if let Some(input) = changed_input(approval) {
        output::print_line("")?;
        output::print_line(format!("Changed by the answer to: {}", output::reveal_hidden(&input)))?;
    }
    if let Some(response) = &approval.response {
        output::print_line("")?;
        output::print_line(format!("Answer: {}", output::reveal_hidden(response)))?;
    }
    let rules = approval.offered_rules();
    if approval.status == ApprovalStatus::Pending && !rules.is_empty() {
        output::print_line("")?;
        let rules = output::reveal_hidden(&rules.join(", "));
        output::print_line(format!("With --always, later runs are not asked about: {rules}"))?;
    }
    if approval.status == ApprovalStatus::Pending {
        output::print_note(&how_to_answer(approval))?;
    }
    Ok(())
}

/// Returns the input with which the answer replaced the agent's.
fn changed_input(approval: &Approval) -> Option<String> {
    let changed = &approval.detail.as_ref()?["updatedInput"];
    (!changed.is_null()).then(|| changed.to_string())
}

/// Returns the question, shortened to `DETAIL_CHARS_MAX` characters.
pub(crate) fn question_excerpt(approval: &Approval) -> String {
    let whole = question_text(approval);
    let Some((end, _)) = whole.char_indices().nth(DETAIL_CHARS_MAX) else {
        return output::reveal_hidden(&whole);
    };
    let (short, rest) = whole.split_at(end);
    format!(
        "{}…\n({} not shown; in full: heeler approvals show {})",
        output::reveal_hidden(short),
        output::pluralize(rest.len() as u64, "byte"),
        approval.id
    )
}

/// Returns the full question.
fn question_text(approval: &Approval) -> String {
    let detail = approval.detail.as_ref().unwrap_or(&Value::Null);
    let questions = question::questions(&detail["input"]);
    if !questions.is_empty() {
        let each = |question: &Value| {
            let mut text = question["question"].as_str().unwrap_or_default().to_owned();
            for (number, option) in question::options(question).iter().enumerate() {
                let label = option["label"].as_str().unwrap_or_default();
                // An option must not look like two.
                text += &format!("\n  {}. {}", number + 1, output::reveal_line(label));
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
    match approval.kind.expects_text() {
        true => format!("answer: heeler approvals reply {id} 'your answer'"),
        false => {
            format!("answer: heeler approvals approve {id}, or reject {id} --reason 'why'")
        }
    }
}

/// Subcommand that gives the answer.
#[derive(Clone, Copy, PartialEq)]
enum ApprovalVerb {
    Approve,
    Reject,
    Reply,
}

/// Refuses a subcommand that does not fit the question, and hints at the one that does.
fn check(approval: &Approval, verb: ApprovalVerb) -> CommandResult {
    let Approval { id, kind, .. } = approval;
    let fits = match verb {
        ApprovalVerb::Approve => !kind.expects_text(),
        ApprovalVerb::Reply => kind.expects_text(),
        // An agent's question can be refused; rejecting a gate that expects text ends it.
        ApprovalVerb::Reject => true,
    };
    // The daemon's refusal of an answered question is better: it names who answered.
    if fits || approval.status != ApprovalStatus::Pending {
        return Ok(());
    }
    let (wants, instead) = match kind {
        ApprovalKind::Reply | ApprovalKind::Question => {
            ("text", format!("heeler approvals reply {id} 'your answer'"))
        }
        ApprovalKind::Approve | ApprovalKind::Permission => {
            ("yes or no", format!("heeler approvals approve {id}"))
        }
    };
    let message = format!("{id} asks for {wants} ({kind})");
    Err(CommandFailure::message(FailureCode::Usage, message).hint(instead))
}

/// Finds the approvals to answer, without duplicates. Fails before any is answered if one cannot
/// be.
fn find_all(
    context: &CommandContext,
    ids: &[String],
    verb: ApprovalVerb,
) -> CommandResult<Vec<Approval>> {
    // clap requires at least one ID.
    let reader = context.reader_for("approval", &ids[0])?;
    let find = |id: &String| -> CommandResult<Approval> {
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
                CommandFailure {
                    error: anyhow::anyhow!("nothing was answered: {error:#}"),
                    ..failure
                }
            }
        })?;
        // Two prefixes may name the same approval, and the second answer would be refused.
        if found.iter().all(|it| it.id != approval.id) {
            found.push(approval);
        }
    }
    Ok(found)
}

/// Answers each approval. Tries all, then fails with the first failure's exit code.
fn answer_all(
    context: &CommandContext,
    ids: &[String],
    verb: ApprovalVerb,
    answer: &ApprovalAnswer,
    json: bool,
) -> CommandResult {
    // The lookup below reads the database, and a reader refuses an older one.
    context.migrate_database()?;
    let found = find_all(context, ids, verb)?;
    let mut answers = Vec::new();
    let mut failure = None;
    for approval in found {
        let answer = ApprovalAnswer { input_hash: approval.shown_hash(), ..answer.clone() };
        let id = approval.id;
        // One request each: an approval that is refused must not prevent the others.
        let command =
            DaemonCommand::Approval { approval: id.clone(), answer, by: context.caller_name() };
        match daemon::request(context, &command) {
            Ok(answered) if json => {
                let message = daemon::to_json(&answered)["message"].clone();
                answers
                    .push(json!({ "id": id, "answered": true, "message": message, "error": null }));
            }
            Ok(answered) => daemon::print_answer(&answered, false)?,
            Err(failed) => {
                let error = format!("{:#}", failed.error);
                answers
                    .push(json!({ "id": id, "answered": false, "message": null, "error": error }));
                if !json {
                    output::print_error(failed.text())?;
                }
                failure.get_or_insert(failed.code);
            }
        }
    }
    if json {
        output::print_json(&json!({ "approvals": answers }))?;
    }
    failure.map_or(Ok(()), |code| Err(CommandFailure::silent(code)))
}
