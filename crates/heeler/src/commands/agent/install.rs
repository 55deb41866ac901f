//! `heeler agent add` and `heeler agent remove`: agents from packages. Start at [`add`] and
//! [`remove`].
//!
//! The files are complete in a folder beside their place before the config names them, so that an
//! interrupted command leaves at most a folder that nothing uses.

use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal as _;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use heeler_config::{LoadedConfig, templates};
use heeler_model::redact::SecretRedactor;
use heeler_model::{LocalName, iso_millis};
use serde_json::json;

use super::agent_package::{AGENT_FILE, AgentPackage, CopiedPackage, PackageSource};
use crate::config_changes::OwnConfigEdit;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::shared_args;
use crate::text_file;
use crate::trust;

/// Help footer of `agent add`.
pub(crate) const ADD: &str = "Examples:
  heeler agent add ./my-agents/reviewer
  heeler agent add https://example.org/agents/reviewer.git
  heeler agent add ann/reviewer@v2 --dry-run      # from GitHub

Fetches a package (a folder with an `agent.yaml`), shows what the agent would run, asks, and installs it to
agents/NAME beside the config. Links and special files are not copied.
Exit codes: 0 added, 2 invalid package, 4 no agent.yaml, 5 refused, 6 not agreed to.";

/// Help footer of `agent remove`.
pub(crate) const REMOVE: &str = "Examples:
  heeler agent remove reviewer
  heeler agent remove reviewer --keep-workspace --yes

Removes an agent that `agent add` installed: takes it out of the config and moves its folder to the trash of
the state directory. Jobs and sessions stay.
Exit codes: 0 removed, 4 not found, 5 refused.";

/// Record of the origin of an installed agent, in its folder.
const ORIGIN_FILE: &str = "heeler-agent.json";

/// Arguments of `agent add`.
#[derive(Args)]
pub(crate) struct AgentAddArgs {
    /// Folder, git URL, or owner/repo or owner/repo@tag on GitHub
    #[arg(value_hint = ValueHint::AnyPath)]
    source: String,
    /// Folder to install to, beside the config [default: agents/NAME]
    #[arg(long, value_name = "DIR")]
    path: Option<Utf8PathBuf>,
    /// Show the package and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Agree to what is shown
    #[arg(short, long)]
    yes: bool,
    /// Refused if the agent is installed: remove it first (herdctl's flag)
    #[arg(short, long, hide = true)]
    force: bool,
}

/// Arguments of `agent remove`.
#[derive(Args)]
pub(crate) struct AgentRemoveArgs {
    /// Agent name
    #[arg(add = shared_args::agents())]
    agent: LocalName,
    /// Leave the folder `workspace` in place
    #[arg(long)]
    keep_workspace: bool,
    /// Do not ask
    #[arg(short, long, short_alias = 'f', alias = "force")]
    yes: bool,
}

/// Runs `agent add`.
pub(crate) fn add(global: &GlobalArgs, args: &AgentAddArgs) -> CommandResult {
    // Only a person decides what runs.
    trust::refuse_run()?;
    let context = CommandContext::find(global)?;
    let config = context.config_file()?.canonicalize_utf8()?;
    let source = PackageSource::parse(&args.source, &context.working_dir)?;
    let package = AgentPackage::fetch(&source)?;
    let place = InstallPlace::new(&config, args.path.as_deref(), &package.name)?;
    place.refuse_existing(&package.name)?;
    let copied = package.copy_to(&place.staging)?;
    let installed = install(&context, args, &config, &source, &package, &place, &copied);
    if installed.is_err() || args.dry_run {
        // Nothing refers to it.
        drop(fs::remove_dir_all(&place.staging));
    }
    installed
}

/// Folders of an installation.
struct InstallPlace {
    /// Path of the agent's file, as the config names it.
    relative: String,
    target: Utf8PathBuf,
    /// Folder beside the target, for files that are not agreed to yet.
    staging: Utf8PathBuf,
}

impl InstallPlace {
    fn new(
        config: &Utf8Path,
        folder: Option<&Utf8Path>,
        name: &LocalName,
    ) -> CommandResult<InstallPlace> {
        let folder = folder.map_or_else(|| format!("agents/{name}").into(), Utf8Path::to_owned);
        let is_inside = folder.components().all(|part| {
            matches!(part, camino::Utf8Component::Normal(_) | camino::Utf8Component::CurDir)
        });
        if !is_inside {
            let message = format!("{folder} is not a folder beside the config");
            return Err(CommandFailure::message(FailureCode::Usage, message));
        }
        let target = text_file::parent_dir(config).join(&folder);
        let parent = text_file::parent_dir(&target).to_owned();
        fs::create_dir_all(&parent)?;
        let staging = parent.join(format!(".{name}.new-{}", std::process::id()));
        let relative = format!("{folder}/{AGENT_FILE}");
        Ok(InstallPlace { relative, target, staging })
    }

    fn refuse_existing(&self, name: &LocalName) -> CommandResult {
        // A link counts even if it leads nowhere.
        if self.target.symlink_metadata().is_err() {
            return Ok(());
        }
        let message = format!("{} exists; nothing was changed", self.target);
        Err(CommandFailure::message(FailureCode::Refused, message)
            .hint(format!("heeler agent remove {name}")))
    }
}

fn install(
    context: &CommandContext,
    args: &AgentAddArgs,
    config: &Utf8Path,
    source: &PackageSource,
    package: &AgentPackage,
    place: &InstallPlace,
    copied: &CopiedPackage,
) -> CommandResult {
    let name = &package.name;
    let before = text_file::read_text(config)?;
    let after = templates::add_agent(&before, &place.relative)
        .map_err(|error| CommandFailure::new(FailureCode::Refused, error))?;
    check_fleet(context, config, &after, place)?;
    show(context, package, place, copied)?;
    if args.dry_run {
        return Ok(output::print_note("nothing was changed")?);
    }
    agree(args.yes, name)?;
    write_origin(args, source, package, &place.staging)?;
    // The config names the folder only when it is complete.
    fs::rename(&place.staging, &place.target)?;
    let agent_file = place.target.join(AGENT_FILE).canonicalize_utf8()?;
    let texts = BTreeMap::from([
        (agent_file, Some(package.text.clone())),
        (config.to_owned(), Some(after.clone())),
    ]);
    let own = OwnConfigEdit::prepare(context, texts)?;
    text_file::replace_text(config, &before, &after)?;
    own.confirm(context);
    output::print_line(format!("added {name} in {}", place.target))?;
    let missing: Vec<String> = package.needed_variables();
    if !missing.is_empty() {
        output::print_note(&format!("it needs these variables: {}", missing.join(", ")))?;
    }
    Ok(output::print_line(format!("\nNext: heeler trigger {name}"))?)
}

/// Loads the fleet as it will be; refuses a package that would make it invalid.
fn check_fleet(
    context: &CommandContext,
    config: &Utf8Path,
    after: &str,
    place: &InstallPlace,
) -> CommandResult {
    let read = |path: &Utf8Path| match path.strip_prefix(&place.target) {
        Ok(inside) => text_file::read_text(&place.staging.join(inside)),
        Err(_) if path == config => Ok(after.to_owned()),
        Err(_) => text_file::read_text(path),
    };
    let loaded = fleet_config::try_load(context, config, &read)?;
    match loaded.and_then(LoadedConfig::require_no_faults) {
        Ok(_) => Ok(()),
        Err(faults) => {
            fleet_config::print_faults(context, &faults)?;
            Err(CommandFailure::message(FailureCode::Usage, faults.summary()))
        }
    }
}

/// Prints what the package contains and what its agent would run.
fn show(
    context: &CommandContext,
    package: &AgentPackage,
    place: &InstallPlace,
    copied: &CopiedPackage,
) -> CommandResult {
    let files = output::pluralize(copied.files as u64, "file");
    output::print_error(format!("{} has {files}, for {}", package.name, place.target))?;
    for path in &copied.left_out {
        output::print_error(format!("  not copied: {}", trust::visible(path)))?;
    }
    // A fleet of this agent alone, so that only its own commands are shown.
    let alone = place.staging.join("heeler.yaml");
    let text = format!("agents: [{{path: {AGENT_FILE}}}]\n");
    let read = |path: &Utf8Path| match path == alone {
        true => Ok(text.clone()),
        false => text_file::read_text(path),
    };
    match fleet_config::try_load(context, &alone, &read)? {
        Ok(loaded) => trust::print_commands(context, package.name.as_str(), &loaded),
        Err(faults) => Err(CommandFailure::message(FailureCode::Usage, faults.summary())),
    }
}

fn agree(is_agreed: bool, name: &LocalName) -> CommandResult {
    if is_agreed {
        return Ok(());
    }
    let refused = |message: String| CommandFailure::message(FailureCode::Untrusted, message);
    if !trust::is_person_at_terminal() {
        return Err(refused(format!("{name} was not added: there is no terminal to ask at"))
            .hint("--yes, if you have read what it would run"));
    }
    match output::confirm(&format!("Add {name}?"), false)? {
        true => Ok(()),
        false => Err(refused(format!("{name} was not added"))),
    }
}

fn write_origin(
    args: &AgentAddArgs,
    source: &PackageSource,
    package: &AgentPackage,
    folder: &Utf8Path,
) -> CommandResult {
    let (url, reference) = match source {
        PackageSource::Folder(path) => (path.to_string(), None),
        PackageSource::Git { url, reference } => (url.clone(), reference.clone()),
    };
    let mut origin = json!({
        "version": 1, "source": args.source, "url": url, "reference": reference,
        "commit": package.commit, "installedAt": iso_millis(process_env::now()),
    });
    // An address may contain a password.
    SecretRedactor::new(&[]).redact_json(&mut origin);
    Ok(fs::write(folder.join(ORIGIN_FILE), format!("{origin:#}\n"))?)
}

/// Runs `agent remove`.
pub(crate) fn remove(global: &GlobalArgs, args: &AgentRemoveArgs) -> CommandResult {
    trust::refuse_run()?;
    let context = CommandContext::find(global)?;
    let config = context.config_file()?.canonicalize_utf8()?;
    let name = args.agent.as_str();
    let before = text_file::read_text(&config)?;
    let base = text_file::parent_dir(&config);
    let written = find_written(&before, base, name);
    let folder = match &written {
        Some((_, folder)) => folder.clone(),
        // An interrupted `agent add` leaves a folder that the config does not name.
        None => base.join("agents").join(name),
    };
    if !folder.join(ORIGIN_FILE).is_file() {
        let message = format!("`{name}` is no agent that `heeler agent add` installed");
        return Err(CommandFailure::message(FailureCode::NotFound, message)
            .hint(format!("remove its `path` from {config}, then its file")));
    }
    refuse_running(&context, name)?;
    confirm_removal(args, &folder)?;
    if let Some((path, _)) = &written {
        let after = templates::remove_agent(&before, path)
            .map_err(|error| CommandFailure::new(FailureCode::Refused, error))?;
        let texts = BTreeMap::from([(config.clone(), Some(after.clone()))]);
        let own = OwnConfigEdit::prepare(&context, texts)?;
        // First, so that the config never names a file that does not exist.
        text_file::replace_text(&config, &before, &after)?;
        own.confirm(&context);
    }
    let trash = move_to_trash(&context, &folder, args)?;
    output::print_line(format!("removed {name}; its files are in {trash}"))?;
    Ok(())
}

/// Finds the agent's entry in the config: its path as written, and its folder.
fn find_written(text: &str, base: &Utf8Path, name: &str) -> Option<(String, Utf8PathBuf)> {
    let value: serde_json::Value = serde_saphyr::from_str(text).ok()?;
    let paths = value["agents"].as_array()?.iter().filter_map(|agent| agent["path"].as_str());
    for path in paths {
        let file = base.join(path);
        let Ok(text) = text_file::read_text(&file) else { continue };
        let agent: Option<serde_json::Value> = serde_saphyr::from_str(&text).ok();
        if agent.is_some_and(|agent| agent["name"] == name) {
            let folder = text_file::parent_dir(&file).canonicalize_utf8().ok()?;
            return Some((path.to_owned(), folder));
        }
    }
    None
}

fn refuse_running(context: &CommandContext, name: &str) -> CommandResult {
    let Some(reader) = context.open_reader()? else { return Ok(()) };
    let running = reader.running_jobs()?;
    match running.into_iter().find(|head| head.agent == name) {
        None => Ok(()),
        Some(head) => {
            let message = format!("{name} runs job {}", head.id);
            Err(CommandFailure::message(FailureCode::Refused, message)
                .hint(format!("heeler jobs cancel {}", head.id)))
        }
    }
}

fn confirm_removal(args: &AgentRemoveArgs, folder: &Utf8Path) -> CommandResult {
    if args.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        let message = format!("{} was not removed: there is no terminal to ask at", args.agent);
        return Err(CommandFailure::message(FailureCode::Refused, message).hint("--yes removes it"));
    }
    match output::confirm(&format!("Remove {} and {folder}?", args.agent), false)? {
        true => Ok(()),
        false => Err(CommandFailure::message(FailureCode::Refused, "nothing was changed")),
    }
}

/// Moves the agent's folder to the trash; returns the new path.
fn move_to_trash(
    context: &CommandContext,
    folder: &Utf8Path,
    args: &AgentRemoveArgs,
) -> CommandResult<Utf8PathBuf> {
    let stamp = process_env::now().strftime("%Y-%m-%dT%H-%M-%SZ");
    let trash = context.state_dir.join("trash/agents");
    fs::create_dir_all(&trash)?;
    let trash = trash.join(format!("{}-{stamp}", args.agent));
    if !(args.keep_workspace && folder.join("workspace").is_dir()) {
        fs::rename(folder, &trash)?;
        return Ok(trash);
    }
    fs::create_dir(&trash)?;
    for entry in folder.read_dir_utf8()? {
        let entry = entry?;
        if entry.file_name() != "workspace" {
            fs::rename(entry.path(), trash.join(entry.file_name()))?;
        }
    }
    Ok(trash)
}
