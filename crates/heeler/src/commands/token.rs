//! `heeler token`: tokens by which programs use the API.
//!
//! A secret is made here and shown once; the daemon hears its hash alone.

use clap::{Args, Subcommand};
use heeler_engine::{AccessOrder, Answer, Command, Secret};
use heeler_model::config::Period;
use heeler_model::{AccessName, Scope, TokenId};
use heeler_query::access::{TokenItem, TokenList, TokenStatus};
use jiff::SignedDuration;
use serde_json::json;

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Lines};
use crate::place::{self, Place};

/// What the help of `token create` shows at its end.
const CREATE: &str = "Examples:
  heeler token create ci --scope operate --expires 30d
  curl -H \"authorization: Bearer $TOKEN\" http://127.0.0.1:7878/api/v1/jobs

The token is printed once and kept nowhere: only its hash is on record. Whoever has it may do what its
scope says: read looks, operate also starts, steers and answers, admin also changes who may do what
and ends the daemon. Programs of the same user may use the file api-token in the state directory.
Exit codes: 0 made, 2 no name or scope, 5 the name is taken, or refused.";

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it, once
    #[command(after_help = CREATE)]
    Create(CreateArgs),
    /// List tokens, newest first, also those that no longer count
    #[command(
        after_help = "Exit codes: 0 listed. When a token was last used is known to ten minutes."
    )]
    List(ListArgs),
    /// Let a token count no more, at once
    #[command(
        after_help = "Examples:\n  heeler token revoke ci\n  heeler token revoke --logins\n\nExit codes: 0 revoked, 4 there is no such token."
    )]
    Revoke(RevokeArgs),
}

impl TokenCommand {
    /// Says whether stdout is promised to be JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            TokenCommand::Create(args) => args.json,
            TokenCommand::List(args) => args.json,
            TokenCommand::Revoke(args) => args.json,
        }
    }
}

/// Arguments of `token create`.
#[derive(Args)]
pub(crate) struct CreateArgs {
    /// What it is called
    name: String,
    /// What its bearer may
    #[arg(long, value_parser = cli::scope())]
    scope: Scope,
    /// How long it counts [default: until it is revoked]
    #[arg(long, value_name = "PERIOD")]
    expires: Option<Period>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `token list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `token revoke`.
#[derive(Args)]
pub(crate) struct RevokeArgs {
    /// Their names or ids
    #[arg(value_name = "TOKEN", required_unless_present = "logins")]
    tokens: Vec<String>,
    /// Log every browser out as well
    #[arg(long)]
    logins: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `token` and its verbs.
pub(crate) fn run(global: &Global, command: &TokenCommand) -> Outcome {
    let place = Place::find(global)?;
    match command {
        TokenCommand::Create(args) => create(&place, args),
        TokenCommand::List(args) => list(&place, args),
        TokenCommand::Revoke(args) => revoke(&place, args),
    }
}

fn create(place: &Place, args: &CreateArgs) -> Outcome {
    let name: AccessName = args.name.parse()?;
    let expires_at = match args.expires {
        None => None,
        Some(period) => {
            let length = SignedDuration::try_from(period.get()).unwrap_or(SignedDuration::MAX);
            let far = |_| Failure::message(Code::Usage, "that is too far in the future");
            Some(place::now().checked_add(length).map_err(far)?)
        }
    };
    let secret = Secret::token().map_err(anyhow::Error::from)?;
    let (hash, scope) = (secret.hash(), args.scope);
    let id = TokenId::of_hash(&hash);
    let order = AccessOrder::CreateToken { name: name.clone(), scope, hash, expires_at };
    daemon::ask(place, &Command::Access { order, by: place.who() })?;
    if args.json {
        return Ok(output::json(&json!({
            "id": id, "name": name, "scope": scope, "expiresAt": expires_at,
            "token": secret.reveal(),
        }))?);
    }
    output::line(secret.reveal())?;
    output::note(&format!("{name} ({id}): keep it, it is not shown again"))?;
    Ok(())
}

fn list(place: &Place, args: &ListArgs) -> Outcome {
    let now = place::now();
    let found = match place.reader()? {
        Some(reader) => TokenList::read(&reader, now).map_err(anyhow::Error::from)?,
        None => TokenList::default(),
    };
    if args.json {
        return Ok(output::json(&found)?);
    }
    if found.tokens.is_empty() {
        return Ok(output::line(
            "no tokens yet: the first start makes one, heeler token create more",
        )?);
    }
    let headings = ["ID", "NAME", "SCOPE", "STATUS", "USED", "EXPIRES", "MADE", "BY"];
    let mut lines = Lines::new(&headings, &["NAME", "BY"]).keeping("NAME");
    for TokenItem {
        id, name, scope, status, used_at, expires_at, created_at, created_by, ..
    } in found.tokens
    {
        let used = used_at.map_or("never".to_owned(), |at| output::relative(at, now));
        let expires = match (status, expires_at) {
            (TokenStatus::Active, Some(at)) => output::upcoming(at, now),
            _ => "-".to_owned(),
        };
        lines.push(vec![
            id.into(),
            name.into(),
            scope.as_str().into(),
            status.as_str().into(),
            used.into(),
            expires.into(),
            output::relative(created_at, now).into(),
            output::one_line(&created_by).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn revoke(place: &Place, args: &RevokeArgs) -> Outcome {
    let tokens = args.tokens.iter().map(|it| AccessOrder::RevokeToken { token: it.clone() });
    let logins = args.logins.then_some(AccessOrder::LogoutAll);
    let mut messages = Vec::new();
    for order in tokens.chain(logins) {
        match daemon::ask(place, &Command::Access { order, by: place.who() })? {
            Answer::Done { message } if args.json => messages.push(message),
            Answer::Done { message } => output::line(message)?,
            answer => return Err(daemon::unexpected(&answer)),
        }
    }
    if args.json { Ok(output::json(&json!({ "messages": messages }))?) } else { Ok(()) }
}
