//! `heeler notify`: the channels that tell people when they are needed. Start at [`run`].

use clap::{Args, Subcommand};
use heeler_config::LoadedConfig;
use heeler_engine::{
    BrowserOperation, ChannelReport, CommandReply, DaemonCommand, check_channels, send_test_notice,
};
use heeler_query::browsers::{BrowserList, BrowserSummary};
use heeler_store::{NoticeRecord, PushBrowser, StoreReader};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable};
use crate::process_env;

/// Help footer of `notify list`.
const LIST: &str = "Examples:
  heeler notify list
  heeler notify list --json

WAITING counts notices that are not sent yet: because of quiet hours, because they are collected, or because the
channel fails. Exit codes: 0 listed.";

/// Help footer of `notify test`.
const TEST: &str = "Examples:
  heeler notify test
  heeler notify test phone
  heeler notify test ann

A name of a person sends to all channels of the person.
The message is sent by this command, with the environment of this command and the `.env` beside the config.
Exit codes: 0 all were sent, 1 one was not sent, 4 no such channel or person.";

/// Help footer of `notify browsers`.
const BROWSERS: &str = "Examples:
  heeler notify browsers
  heeler notify browsers --json

A browser is added on the settings page of the dashboard, with the button `Notify this browser`. The config needs a
channel with `web_push: true`. Exit codes: 0 listed.";

/// Help footer of `notify remove`.
const REMOVE: &str = "Examples:
  heeler notify remove browser-3fa9c1d20b77
  heeler notify remove 3fa9

Exit codes: 0 removed, 2 several browsers match, 4 no such browser.";

/// Most waiting notices that are counted.
const WAITING_MAX: usize = 2_000;

#[derive(Subcommand)]
pub(crate) enum NotifyCommand {
    /// List the channels, with their last notice and their problems
    #[command(after_help = LIST)]
    List(NotifyListArgs),
    /// Send a test message to one channel, to one person or to all channels
    #[command(after_help = TEST)]
    Test(NotifyTestArgs),
    /// List the browsers that receive notices by Web Push
    #[command(after_help = BROWSERS)]
    Browsers(NotifyBrowsersArgs),
    /// Remove a browser, so that it receives no notices any more
    #[command(after_help = REMOVE)]
    Remove(NotifyRemoveArgs),
}

/// Arguments of `notify list`.
#[derive(Args)]
pub(crate) struct NotifyListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `notify test`.
#[derive(Args)]
pub(crate) struct NotifyTestArgs {
    /// Name of a channel or person [default: all channels]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `notify browsers`.
#[derive(Args)]
pub(crate) struct NotifyBrowsersArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `notify remove`.
#[derive(Args)]
pub(crate) struct NotifyRemoveArgs {
    /// ID of the browser, or the beginning of its digits
    browser: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `notify` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &NotifyCommand) -> CommandResult {
    let context = CommandContext::find(global)?;
    let loaded = fleet_config::load_without_workflows(&context)?;
    match command {
        NotifyCommand::List(args) => list(&context, &loaded, args),
        NotifyCommand::Test(args) => test(&context, &loaded, args),
        NotifyCommand::Browsers(args) => browsers(&context, &loaded, args),
        NotifyCommand::Remove(args) => remove(&context, args),
    }
}

/// A channel with what is on record of it.
struct ChannelSummary {
    report: ChannelReport,
    waiting: usize,
    last_sent: Option<NoticeRecord>,
    last_failed: Option<NoticeRecord>,
    /// Error of a notice that is tried again.
    retried: Option<String>,
}

impl ChannelSummary {
    fn read(report: ChannelReport, reader: Option<&StoreReader>) -> CommandResult<ChannelSummary> {
        let waiting = reader.map(|reader| reader.waiting_notices(WAITING_MAX)).transpose();
        let waiting = waiting.map_err(anyhow::Error::from)?.unwrap_or_default();
        let own: Vec<_> = waiting.iter().filter(|it| it.channel_name() == report.name).collect();
        let browsers = reader.map(|reader| reader.push_browsers_of(&report.name)).transpose();
        let browsers = browsers.map_err(anyhow::Error::from)?.unwrap_or_default();
        let mut queues: Vec<String> = browsers.iter().map(PushBrowser::notice_channel).collect();
        queues.push(report.name.clone());
        let last = |outcome: &str| -> CommandResult<Option<NoticeRecord>> {
            let mut newest: Option<NoticeRecord> = None;
            for queue in &queues {
                let found = reader.map(|reader| reader.last_notice(queue, outcome)).transpose();
                let found = found.map_err(anyhow::Error::from)?.flatten();
                let ended_at = |it: &Option<NoticeRecord>| it.as_ref().and_then(|it| it.ended_at);
                if ended_at(&found) > ended_at(&newest) {
                    newest = found;
                }
            }
            Ok(newest)
        };
        let retried = own.iter().find(|it| it.attempts > 0).and_then(|it| it.last_error.clone());
        let (last_sent, last_failed) = (last("sent")?, last("failed")?);
        Ok(ChannelSummary { waiting: own.len(), last_sent, last_failed, retried, report })
    }

    /// Returns the problem that matters most now.
    fn problem(&self) -> Option<String> {
        let failed_at = self.last_failed.as_ref().and_then(|notice| notice.ended_at);
        let sent_at = self.last_sent.as_ref().and_then(|notice| notice.ended_at);
        let failed = self.last_failed.as_ref().filter(|_| failed_at > sent_at);
        let failed = failed.and_then(|notice| notice.last_error.clone());
        self.report.problem.clone().or(self.retried.clone()).or(failed)
    }

    fn to_json(&self) -> Value {
        let sent_at = self.last_sent.as_ref().and_then(|notice| notice.ended_at);
        let failed = self.last_failed.as_ref();
        json!({
            "name": self.report.name,
            "kind": self.report.kind,
            "person": self.report.person,
            "waiting": self.waiting,
            "lastSentAt": sent_at,
            "lastFailedAt": failed.and_then(|notice| notice.ended_at),
            "lastError": failed.and_then(|notice| notice.last_error.as_deref()),
            "problem": self.problem(),
        })
    }
}

fn list(context: &CommandContext, loaded: &LoadedConfig, args: &NotifyListArgs) -> CommandResult {
    let env = fleet_config::environment(context, context.config_file()?)?;
    let reader = context.open_reader()?;
    let mut channels = Vec::new();
    for report in check_channels(loaded, &env, reader.as_deref()) {
        channels.push(ChannelSummary::read(report, reader.as_ref())?);
    }
    if args.json {
        let channels: Vec<Value> = channels.iter().map(ChannelSummary::to_json).collect();
        return Ok(output::print_json(&json!({ "channels": channels }))?);
    }
    if channels.is_empty() {
        return Ok(output::print_line("no channels; see docs/notifications.md")?);
    }
    let now = process_env::now();
    let headings = ["CHANNEL", "KIND", "PERSON", "WAITING", "LAST SENT", "PROBLEM"];
    let mut lines = OutputTable::new(&headings, &["PROBLEM"]).keep_column("CHANNEL");
    for channel in &channels {
        let sent_at = channel.last_sent.as_ref().and_then(|notice| notice.ended_at);
        let sent = sent_at.map_or("never".to_owned(), |at| output::relative_time(at, now));
        let problem = channel.problem().unwrap_or_else(|| "-".to_owned());
        lines.push(vec![
            output::one_line(&channel.report.name).into(),
            channel.report.kind.into(),
            output::one_line(channel.report.person.as_deref().unwrap_or("-")).into(),
            channel.waiting.to_string().into(),
            sent.into(),
            output::one_line(&problem).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn test(context: &CommandContext, loaded: &LoadedConfig, args: &NotifyTestArgs) -> CommandResult {
    let env = fleet_config::environment(context, context.config_file()?)?;
    let reader = context.open_reader()?;
    let mut reports = check_channels(loaded, &env, reader.as_deref());
    if let Some(wanted) = &args.name {
        reports.retain(|it| it.name == *wanted || it.person.as_ref() == Some(wanted));
    }
    if reports.is_empty() {
        let message = match &args.name {
            Some(wanted) => format!("there is no channel or person `{wanted}`"),
            None => "the config has no channels".to_owned(),
        };
        return Err(CommandFailure::message(FailureCode::NotFound, message)
            .hint("set `notify.channels` in the fleet file: docs/notifications.md"));
    }
    let mut results = Vec::new();
    for ChannelReport { name, .. } in reports {
        let sent = send_test_notice(loaded, &env, reader.as_deref(), &name, process_env::now());
        if !args.json {
            let text = match &sent {
                Ok(()) => format!("{name}: sent"),
                Err(reason) => format!("{name}: not sent: {reason}"),
            };
            output::print_line(output::one_line(&text))?;
        }
        results.push((name, sent.err()));
    }
    if args.json {
        let one = |(name, error): &(String, Option<String>)| json!({"name": name, "error": error});
        let channels: Vec<Value> = results.iter().map(one).collect();
        output::print_json(&json!({ "channels": channels }))?;
    }
    match results.iter().all(|(_, error)| error.is_none()) {
        true => Ok(()),
        false => Err(CommandFailure::silent(FailureCode::Failed)),
    }
}

fn browsers(
    context: &CommandContext,
    loaded: &LoadedConfig,
    args: &NotifyBrowsersArgs,
) -> CommandResult {
    let found = match context.open_reader()? {
        Some(reader) => {
            BrowserList::read(&reader, Some(loaded), None).map_err(anyhow::Error::from)?
        }
        None => BrowserList::default(),
    };
    if args.json {
        return Ok(output::print_json(&found)?);
    }
    if found.browsers.is_empty() {
        return Ok(output::print_line(
            "no browsers; add one on the settings page of the dashboard: heeler open",
        )?);
    }
    let now = process_env::now();
    let headings = ["ID", "BROWSER", "CHANNEL", "OWNER", "SERVICE", "ADDED", "LAST SENT"];
    let mut lines = OutputTable::new(&headings, &["BROWSER", "SERVICE"]).keep_column("ID");
    for BrowserSummary { id, label, channel, owner, service, added_at, sent_at } in &found.browsers
    {
        let sent = sent_at.map_or("never".to_owned(), |at| output::relative_time(at, now));
        lines.push(vec![
            output::one_line(id).into(),
            output::one_line(label).into(),
            output::one_line(channel).into(),
            output::one_line(owner).into(),
            output::one_line(service).into(),
            output::relative_time(*added_at, now).into(),
            sent.into(),
        ]);
    }
    Ok(lines.print()?)
}

fn remove(context: &CommandContext, args: &NotifyRemoveArgs) -> CommandResult {
    let order = BrowserOperation::Remove { browser: args.browser.clone(), owner: None };
    let command = DaemonCommand::Browser { order, by: context.caller_name() };
    match daemon::request(context, &command)? {
        CommandReply::Done { message } if args.json => {
            Ok(output::print_json(&json!({ "message": message }))?)
        }
        CommandReply::Done { message } => Ok(output::print_line(output::one_line(&message))?),
        answer => Err(daemon::unexpected(&answer)),
    }
}
