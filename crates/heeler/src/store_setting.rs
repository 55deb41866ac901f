//! The config's `store:` and the state directory's own record of where its records are. Start at
//! [`settle_store_location`].

use heeler_config::StoreUrl;
use heeler_store::{PostgresLocation, StateDir, StoreCredentials, holds_fleet, is_adoptable};

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
            let there = PostgresLocation { url: wanted.clone(), fleet: present.fleet.clone() };
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
            PostgresLocation::for_new_fleet(wanted.clone()).write(&dir)?;
            Ok(())
        }
    }
}
