//! `heeler token`: creates, lists and revokes API tokens.
//!
//! A secret is created here and shown once; the daemon receives only its hash. Start at [`run`].

use clap::{Args, Subcommand};
use heeler_config::ConfigDuration;
use heeler_engine::{AccessOperation, AccessSecret, CommandReply, DaemonCommand};
use heeler_model::{AccessName, AccessScope, TokenId};
use heeler_query::access::{TokenList, TokenStatus, TokenSummary};
use jiff::SignedDuration;
use serde_json::json;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable};
use crate::process_env;
use crate::shared_args;

/// Help footer of `token create`.
const CREATE: &str = "Examples:
  heeler token create ci --scope operate --expires 30d
  curl -H \"authorization: Bearer $TOKEN\" http://127.0.0.1:7878/api/v1/jobs

The token is printed once; only its hash is stored. A program with the token may do everything that its
scope allows: `read` views, `operate` also starts and controls jobs and answers questions, `admin` also manages
access and ends the daemon. Agents can read what your user can read: do not leave a token in a file.
Exit codes: 0 created, 2 invalid name or scope, 5 the name is taken, or refused.";

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print it once
    #[command(after_help = CREATE)]
    Create(TokenCreateArgs),
    /// List tokens, newest first, including expired and revoked ones
    #[command(
        after_help = "The time of a token's last use is exact to ten minutes.\nExit codes: 0 listed."
    )]
    List(TokenListArgs),
    /// Revoke tokens at once
    #[command(
        after_help = "Examples:\n  heeler token revoke ci\n  heeler token revoke --logins\n\nExit codes: 0 revoked, 4 no such token."
    )]
    Revoke(TokenRevokeArgs),
}

/// Arguments of `token create`.
#[derive(Args)]
pub(crate) struct TokenCreateArgs {
    /// Token name
    name: String,
    /// Actions the token allows
    #[arg(long, value_parser = shared_args::scope())]
    scope: AccessScope,
    /// Lifetime of the token [default: until revoked]
    #[arg(long, value_name = "PERIOD")]
    expires: Option<ConfigDuration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `token list`.
#[derive(Args)]
pub(crate) struct TokenListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `token revoke`.
#[derive(Args)]
pub(crate) struct TokenRevokeArgs {
    /// Token names or IDs
    #[arg(value_name = "TOKEN", required_unless_present = "logins")]
    tokens: Vec<String>,
    /// Also log out every browser and end its notices
    #[arg(long)]
    logins: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `token` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &TokenCommand) -> CommandResult {
    let context = CommandContext::find(global)?;
    match command {
        TokenCommand::Create(args) => create(&context, args),
        TokenCommand::List(args) => list(&context, args),
        TokenCommand::Revoke(args) => revoke(&context, args),
    }
}

fn create(context: &CommandContext, args: &TokenCreateArgs) -> CommandResult {
    let name: AccessName = args.name.parse()?;
    let expires_at = match args.expires {
        None => None,
        Some(period) => {
            // A period that is too long for the type is too far in the future as well.
            let length = SignedDuration::try_from(period.get()).unwrap_or(SignedDuration::MAX);
            let far = |_| {
                CommandFailure::message(
                    FailureCode::Usage,
                    "the expiry time is too far in the future",
                )
            };
            Some(process_env::now().checked_add(length).map_err(far)?)
        }
    };
    // Made in this process: the daemon and its records only see the hash.
    let secret = AccessSecret::token().map_err(anyhow::Error::from)?;
    let (hash, scope) = (secret.hash(), args.scope);
    let id = TokenId::from_hash(&hash);
    let order = AccessOperation::CreateToken { name: name.clone(), scope, hash, expires_at };
    // Printed only after it is recorded: a token that was shown must work.
    daemon::request(context, &DaemonCommand::Access { order, by: context.caller_name() })?;
    if args.json {
        return Ok(output::print_json(&json!({
            "id": id, "name": name, "scope": scope, "expiresAt": expires_at,
            "token": secret.reveal(),
        }))?);
    }
    output::print_line(secret.reveal())?;
    output::print_note(&format!("{name} ({id}): save it now, it is not shown again"))?;
    Ok(())
}

fn list(context: &CommandContext, args: &TokenListArgs) -> CommandResult {
    let now = process_env::now();
    let found = match context.open_reader()? {
        Some(reader) => TokenList::read(&reader, now).map_err(anyhow::Error::from)?,
        None => TokenList::default(),
    };
    if args.json {
        return Ok(output::print_json(&found)?);
    }
    if found.tokens.is_empty() {
        return Ok(output::print_line(
            "no tokens; create one: heeler token create NAME --scope read",
        )?);
    }
    let headings = ["ID", "NAME", "SCOPE", "STATUS", "USED", "EXPIRES", "CREATED", "BY"];
    let mut lines = OutputTable::new(&headings, &["NAME", "BY"]).keep_column("NAME");
    for TokenSummary {
        id, name, scope, status, used_at, expires_at, created_at, created_by, ..
    } in found.tokens
    {
        let used = used_at.map_or("never".to_owned(), |at| output::relative_time(at, now));
        let expires = match (status, expires_at) {
            (TokenStatus::Active, Some(at)) => output::due_text(at, now),
            _ => "-".to_owned(),
        };
        lines.push(vec![
            id.into(),
            name.into(),
            scope.as_str().into(),
            status.as_str().into(),
            used.into(),
            expires.into(),
            output::relative_time(created_at, now).into(),
            output::one_line(&created_by).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn revoke(context: &CommandContext, args: &TokenRevokeArgs) -> CommandResult {
    // One by one: tokens before a misspelled name are revoked, which is the safe side.
    let tokens = args.tokens.iter().map(|it| AccessOperation::RevokeToken { token: it.clone() });
    let logins = args.logins.then_some(AccessOperation::LogoutAll);
    let mut messages = Vec::new();
    for order in tokens.chain(logins) {
        match daemon::request(context, &DaemonCommand::Access { order, by: context.caller_name() })?
        {
            CommandReply::Done { message } if args.json => messages.push(message),
            CommandReply::Done { message } => output::print_line(message)?,
            answer => return Err(daemon::unexpected(&answer)),
        }
    }
    if args.json { Ok(output::print_json(&json!({ "messages": messages }))?) } else { Ok(()) }
}
