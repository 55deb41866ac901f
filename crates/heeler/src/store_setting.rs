//! The config's `store:` and the state directory's own record of where its records are. Start at
//! [`settle_store_location`].

use heeler_config::StoreUrl;
use heeler_model::LocalName;
use heeler_store::{
    HostFacts, HostIdentity, HostLink, HostState, PostgresLocation, StateDir, StoreCredentials,
    fleet_at, holds_fleet, is_adoptable,
};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// Variable with the URL of the store and its password.
const STORE_URL: &str = "HEELER_STORE_URL";

/// Returns the passwords of servers, as the environment names them.
pub(crate) fn credentials(context: &CommandContext) -> StoreCredentials {
    let file = context.env.get("PGPASSFILE").map(|path| context.working_dir.join(path));
    let home = context.env.get("HOME").map(|home| camino::Utf8Path::new(home).join(".pgpass"));
    StoreCredentials { url: context.env.get(STORE_URL).cloned(), password_file: file.or(home) }
}

/// Makes sure that the state directory uses the store that the config names. A new directory takes it
/// from the config; existing records are only moved by a person.
pub(crate) fn settle_store_location(
    context: &CommandContext,
    wanted: Option<&StoreUrl>,
    host: Option<&LocalName>,
) -> CommandResult {
    if let (None, Some(host)) = (wanted, host) {
        let message = format!(
            "`--host {host}` needs records on PostgreSQL, which all hosts of a fleet share; the config \
             has no `store:`"
        );
        return Err(CommandFailure::message(FailureCode::Refused, message)
            .hint("heeler migrate store --to postgres://USER@SERVER/DATABASE; see docs/hosts.md"));
    }
    settle_location(context, wanted, host)?;
    match host {
        Some(host) => settle_host(&context.dir()?, host),
        None => Ok(()),
    }
}

/// Makes sure that the state directory is this host.
fn settle_host(dir: &StateDir, name: &LocalName) -> CommandResult {
    let Some(location) = dir.postgres() else { return Ok(()) };
    match &location.host {
        Some(known) if known.name == *name => Ok(()),
        Some(known) => {
            let message = format!("this state directory is host `{}` of its fleet", known.name);
            let hint = "leave `--host` out, or use another state directory for another host";
            Err(CommandFailure::message(FailureCode::Refused, message).hint(hint))
        }
        None => {
            let host = Some(HostIdentity::new(name.clone()));
            let named = PostgresLocation { host, ..location.clone() }.write(dir)?;
            let facts = HostFacts { pid: std::process::id(), ..HostFacts::default() };
            let registered = HostLink::connect(&named)?.register(&facts, HostState::Standby);
            registered.map_err(|error| {
                // Another name can be chosen then.
                match location.write(dir) {
                    Ok(_) => CommandFailure::new(FailureCode::Refused, error),
                    Err(error) => error.into(),
                }
            })
        }
    }
}

fn settle_location(
    context: &CommandContext,
    wanted: Option<&StoreUrl>,
    host: Option<&LocalName>,
) -> CommandResult {
    // A fleet without the setting needs no state directory yet.
    if wanted.is_none() && !context.state_dir.is_dir() {
        return Ok(());
    }
    let refuse = |message: String, hint: String| {
        Err(CommandFailure::message(FailureCode::Refused, message).hint(hint))
    };
    let dir = match wanted {
        None => context.dir()?,
        Some(_) => StateDir::create(&context.state_dir)?,
    };
    match (dir.postgres(), wanted) {
        (None, None) => Ok(()),
        (Some(present), Some(wanted)) if present.url == *wanted => Ok(()),
        (Some(present), Some(wanted)) => {
            // The server may have another address. The database knows which fleet it belongs to.
            let there = PostgresLocation { url: wanted.clone(), ..present.clone() };
            if holds_fleet(&there)? {
                there.write(&dir)?;
                return Ok(());
            }
            let message = format!(
                "the records of this fleet are on {}, and the config says `store: {wanted}`",
                present.url
            );
            refuse(
                message,
                "move them by `heeler migrate store --to sqlite`, and then again".to_owned(),
            )
        }
        (Some(present), None) => {
            let message = format!(
                "the records of this fleet are on {}, and the config has no `store:`",
                present.url
            );
            let hint = format!(
                "set `store: {}`, or move them back: heeler migrate store --to sqlite",
                present.url
            );
            refuse(message, hint)
        }
        (None, Some(wanted)) if dir.database().exists() || is_adoptable(dir.root()) => {
            let message = format!(
                "the records of this fleet are in {}, and the config says `store: {wanted}`",
                dir.root()
            );
            refuse(message, format!("heeler migrate store --to '{wanted}'"))
        }
        (None, Some(wanted)) => {
            let mut location = PostgresLocation::for_new_fleet(wanted.clone());
            // A host joins the fleet that is there.
            if host.is_some()
                && let Some(fleet) = fleet_at(wanted)?
            {
                location.fleet = fleet;
            }
            location.write(&dir)?;
            Ok(())
        }
    }
}
