//! `heeler trust`: shows what a fleet would run, and records that the user agrees. Start at
//! [`run`].

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use serde_json::json;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env::{environment, working_directory};
use crate::text_file::parent_dir;
use crate::trust::{self, visible};
use crate::trust_file::{TrustFile, TrustScope};

/// Help footer of `trust`.
pub(crate) const ABOUT: &str = "A fleet's config can run any command as you. So the first command that would run something of a fleet
shows what it would run, and asks. A fleet that you made with `heeler init` is trusted. If a trusted
fleet changes what it would run, you are asked again and shown the difference, unless you trust its
folder.
Scripts and CI: `heeler trust --yes PATH` records it without a question, and the variable
HEELER_TRUST (`all`, or folders separated by `:`) trusts for one command. Agents cannot use this
command. The list is `heeler/trust.json` in XDG_CONFIG_HOME or ~/.config.
Exit codes: 0 trusted, 2 invalid config, 4 no such entry, 5 used by an agent, 6 not trusted.";

/// Arguments of `trust`.
#[derive(Args)]
pub(crate) struct TrustArgs {
    /// Fleet's folder or config file [default: working directory]
    #[arg(value_hint = ValueHint::AnyPath)]
    path: Option<Utf8PathBuf>,
    /// Agree without being asked
    #[arg(short, long)]
    yes: bool,
    /// Trust every fleet in the folder and below it, also after changes
    #[arg(long, requires = "path")]
    folder: bool,
    /// List what is trusted
    #[arg(long, conflicts_with_all = ["path", "yes", "folder", "remove"])]
    list: bool,
    /// Stop trusting a folder or fleet
    #[arg(long, value_name = "PATH", conflicts_with_all = ["path", "yes", "folder"], value_hint = ValueHint::AnyPath)]
    remove: Option<Utf8PathBuf>,
    /// With --list, print JSON
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
}

/// Runs `trust`.
pub(crate) fn run(global: &GlobalArgs, args: &TrustArgs) -> CommandResult {
    if args.list {
        return list(args.json);
    }
    trust::refuse_run()?;
    match (&args.remove, &args.path) {
        (Some(path), _) => remove(path),
        (None, Some(folder)) if args.folder => add_folder(folder, args.yes),
        (None, path) => {
            let mut global = global.clone();
            global.config = path.clone().or(global.config);
            trust::trust_fleet(&CommandContext::find(&global)?, args.yes)
        }
    }
}

fn list(as_json: bool) -> CommandResult {
    let file = TrustFile::read(&trust::trust_path(&environment())?)?;
    if as_json {
        let fleets = file.fleets.iter().map(|fleet| {
            json!({ "config": fleet.config, "changes": fleet.scope == TrustScope::Everything })
        });
        let fleets: Vec<_> = fleets.collect();
        return Ok(output::print_json(&json!({ "folders": file.folders, "fleets": fleets }))?);
    }
    for folder in &file.folders {
        let folder = visible(folder.as_str());
        output::print_line(format!("{folder}  all fleets in it, also after changes"))?;
    }
    for fleet in &file.fleets {
        let scope = match fleet.scope {
            TrustScope::Everything => "also after changes",
            TrustScope::Content { .. } => "as it was shown",
        };
        output::print_line(format!("{}  {scope}", visible(fleet.config.as_str())))?;
    }
    if file.folders.is_empty() && file.fleets.is_empty() {
        output::print_note("nothing is trusted yet: heeler trust PATH")?;
    }
    Ok(())
}

fn add_folder(folder: &Utf8Path, is_agreed: bool) -> CommandResult {
    let path = working_directory()?.join(folder);
    let folder =
        path.canonicalize_utf8().ok().filter(|folder| folder.is_dir()).ok_or_else(|| {
            CommandFailure::message(FailureCode::NotFound, format!("there is no folder {path}"))
        })?;
    let shown = visible(folder.as_str());
    let question = format!(
        "Trust every fleet in {shown} and below it to run any command as you, also after changes?"
    );
    if !is_agreed && !output::confirm(&question, false)? {
        let message = format!("{shown} is not trusted");
        return Err(CommandFailure::message(FailureCode::Untrusted, message));
    }
    TrustFile::change(&trust::trust_path(&environment())?, |file| {
        file.folders.retain(|known| *known != folder);
        file.folders.push(folder.clone());
    })?;
    Ok(output::print_line(format!("{shown} is trusted"))?)
}

fn remove(path: &Utf8Path) -> CommandResult {
    let path = working_directory()?.join(path);
    // The folder may be gone; then it is known by the path as given.
    let path = path.canonicalize_utf8().unwrap_or(path);
    let removed = TrustFile::change(&trust::trust_path(&environment())?, |file| {
        let before = file.folders.len() + file.fleets.len();
        file.folders.retain(|folder| *folder != path);
        file.fleets.retain(|it| it.config != path && parent_dir(&it.config) != path);
        before - file.folders.len() - file.fleets.len()
    })?;
    let shown = visible(path.as_str());
    match removed {
        0 => {
            let message = format!("{shown} is not in the list of trusted fleets");
            Err(CommandFailure::message(FailureCode::NotFound, message).hint("heeler trust --list"))
        }
        _ => Ok(output::print_line(format!("{shown} is not trusted any more"))?),
    }
}
