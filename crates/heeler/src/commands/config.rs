//! `heeler config`: checks, shows, describes and edits the configuration. Start at [`run`].

use std::io::IsTerminal as _;
use std::process::Command;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand};
use heeler_config::{ConfigFaults, FaultSeverity, LoadedConfig};
use heeler_query::config::EffectiveConfig;
use heeler_query::workflows::ConfigFaultSummary;
use serde_json::{Value, json};

use crate::cli::{self, GlobalArgs};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;
use crate::schema;

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check all config files; list every error with its position
    Validate(ConfigValidateArgs),
    /// Show the effective configuration: merged, with defaults, without secrets
    Show(ConfigShowArgs),
    /// Print the JSON Schema of the config files, for editors
    Schema(ConfigSchemaArgs),
    /// Edit a config file; it is saved only if the whole fleet is valid
    Edit(ConfigEditArgs),
}

/// Arguments of `config validate`.
#[derive(Args)]
pub(crate) struct ConfigValidateArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `config show`.
#[derive(Args)]
pub(crate) struct ConfigShowArgs {
    /// Include secrets written in the files themselves; variables stay `${NAME}`
    #[arg(long)]
    secrets: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `config schema`.
#[derive(Args)]
pub(crate) struct ConfigSchemaArgs {
    /// Print the schema of an agent file instead of a fleet file
    #[arg(long, conflicts_with = "workflow")]
    agent: bool,
    /// Print the schema of a workflow file instead of a fleet file
    #[arg(long)]
    workflow: bool,
}

/// Arguments of `config edit`.
#[derive(Args)]
pub(crate) struct ConfigEditArgs {
    /// Edit this agent's file [default: the fleet's own file]
    #[arg(add = cli::agents())]
    agent: Option<String>,
}

/// Runs `config` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &ConfigCommand) -> CommandResult {
    match command {
        ConfigCommand::Validate(args) => validate(&CommandContext::find(global)?, args.json),
        ConfigCommand::Show(args) => show(&CommandContext::find(global)?, args),
        ConfigCommand::Schema(args) => schema(args),
        ConfigCommand::Edit(args) => edit(&CommandContext::find(global)?, args),
    }
}

fn validate(place: &CommandContext, as_json: bool) -> CommandResult {
    let file = place.config_file()?;
    let result = fleet_config::try_load(place, file, &fleet_config::read_text)?
        .and_then(LoadedConfig::require_no_faults);
    if as_json {
        output::print_json(&validation_json(file, &result))?;
        return match result {
            Ok(_) => Ok(()),
            Err(_) => Err(CommandFailure::silent(FailureCode::Usage)),
        };
    }
    match result {
        Ok(loaded) => {
            fleet_config::print_faults(place, &loaded.warnings)?;
            if place.state_dir.is_dir() {
                schema::write_schemas(&place.state_dir)?;
            }
            Ok(output::print_line(format!("{file} is valid ({})", config_summary(&loaded)))?)
        }
        Err(faults) => {
            fleet_config::print_faults(place, &faults)?;
            Err(CommandFailure::message(FailureCode::Usage, faults.summary()))
        }
    }
}

/// Summarizes a config: `2 files, 1 agent: coder, 1 workflow: build`.
fn config_summary(loaded: &LoadedConfig) -> String {
    let counted = |what: &str, names: &[&str]| match names {
        [] => format!("no {what}s yet"),
        [one] => format!("1 {what}: {one}"),
        names => format!("{} {what}s: {}", names.len(), names.join(", ")),
    };
    let files = match loaded.files.len() {
        1 => "1 file".to_owned(),
        files => format!("{files} files"),
    };
    let agents: Vec<&str> = loaded.agents.iter().map(|agent| agent.name.as_str()).collect();
    let mut found = format!("{files}, {}", counted("agent", &agents));
    let workflows = workflow_names(loaded);
    if !workflows.is_empty() {
        found.push_str(&format!(", {}", counted("workflow", &workflows)));
    }
    found
}

fn workflow_names(loaded: &LoadedConfig) -> Vec<&str> {
    loaded.workflows.iter().map(|loaded| loaded.workflow.name.as_str()).collect()
}

fn validation_json(file: &Utf8Path, result: &Result<LoadedConfig, ConfigFaults>) -> Value {
    let faults = match result {
        Ok(loaded) => &loaded.warnings,
        Err(faults) => faults,
    };
    let agents: Vec<&str> = match result {
        Ok(loaded) => loaded.agents.iter().map(|agent| agent.name.as_str()).collect(),
        Err(_) => Vec::new(),
    };
    let workflows = result.as_ref().map(workflow_names).unwrap_or_default();
    json!({
        "valid": result.is_ok(), "configPath": file, "agents": agents, "workflows": workflows,
        "errors": faults_json(faults, FaultSeverity::Error),
        "warnings": faults_json(faults, FaultSeverity::Warning),
    })
}

/// Returns the faults of one severity, for JSON output.
pub(crate) fn faults_json(
    faults: &ConfigFaults,
    severity: FaultSeverity,
) -> Vec<ConfigFaultSummary> {
    heeler_query::workflows::faults_with_severity(faults, severity)
}

fn show(place: &CommandContext, args: &ConfigShowArgs) -> CommandResult {
    let loaded = fleet_config::load(place)?;
    let known = fleet_config::query_context(place, Some(Arc::new(loaded)));
    let shown = match args.secrets {
        true => EffectiveConfig::unredacted(&known)?,
        false => EffectiveConfig::of(&known)?,
    };
    if args.json {
        return Ok(output::print_json(&shown)?);
    }
    let EffectiveConfig { fleet, agents, .. } = shown;
    let value = json!({ "fleet": fleet, "agents": agents });
    let yaml = serde_saphyr::to_string(&value).map_err(anyhow::Error::from)?;
    output::print_line(format!("# {}", place.config_file()?))?;
    Ok(output::print_line(yaml.trim_end())?)
}

fn schema(args: &ConfigSchemaArgs) -> CommandResult {
    let schema = match (args.agent, args.workflow) {
        (true, _) => heeler_config::agent_schema(),
        (false, true) => heeler_config::workflow_schema(),
        (false, false) => heeler_config::fleet_schema(),
    };
    Ok(output::print_json(&schema)?)
}

fn edit(place: &CommandContext, args: &ConfigEditArgs) -> CommandResult {
    let file = file_to_edit(place, args)?;
    // Edit the target of a link, so that the link stays a link.
    let file = file.canonicalize_utf8()?;
    let before = fleet_config::read_text(&file)?;
    let name = file.file_name().unwrap_or("config.yaml");
    let draft =
        tempfile::Builder::new().prefix("heeler-edit-").suffix(&format!("-{name}")).tempfile()?;
    std::fs::write(draft.path(), &before)?;
    loop {
        open_editor(place, draft.path())?;
        let text = std::fs::read_to_string(draft.path())?;
        if text == before {
            return Ok(output::print_note("nothing changed")?);
        }
        match check_edit(place, &file, &text)? {
            Ok(loaded) => {
                fleet_config::print_faults(place, &loaded.warnings)?;
                fleet_config::replace_config(&file, &before, &text)?;
                return Ok(output::print_line(format!("saved {file}"))?);
            }
            Err(faults) => {
                fleet_config::print_faults(place, &faults)?;
                if !ask_again()? {
                    let (_, kept) = draft.keep().map_err(|error| error.error)?;
                    let message = format!("{file} was not changed: {}", faults.summary());
                    return Err(CommandFailure::message(FailureCode::Usage, message)
                        .hint(format!("your edit is kept in {}", kept.display())));
                }
            }
        }
    }
}

fn file_to_edit(place: &CommandContext, args: &ConfigEditArgs) -> CommandResult<Utf8PathBuf> {
    let Some(name) = &args.agent else { return Ok(place.config_file()?.to_owned()) };
    let loaded = fleet_config::load(place)?;
    let agent = loaded.agents.iter().find(|agent| agent.name.as_str() == name);
    let agent = agent.ok_or_else(|| {
        CommandFailure::message(FailureCode::NotFound, format!("there is no agent `{name}`"))
            .hint("heeler config validate lists all agents")
    })?;
    Ok(agent.file.clone())
}

/// Checks the whole fleet with the edited text in place of the file's content.
fn check_edit(
    place: &CommandContext,
    file: &Utf8Path,
    text: &str,
) -> CommandResult<Result<LoadedConfig, ConfigFaults>> {
    let is_edited = |path: &Utf8Path| path.canonicalize_utf8().is_ok_and(|path| path == file);
    let loaded =
        fleet_config::try_load(place, place.config_file()?, &|path| match is_edited(path) {
            true => Ok(text.to_owned()),
            false => fleet_config::read_text(path),
        })?;
    Ok(loaded.and_then(LoadedConfig::require_no_faults))
}

#[expect(clippy::disallowed_methods, reason = "the user's editor")]
fn open_editor(place: &CommandContext, draft: &std::path::Path) -> CommandResult {
    let editor = ["VISUAL", "EDITOR"].iter().find_map(|name| place.env.get(*name));
    let editor = editor.map_or("vi", String::as_str);
    // As git does: the value may hold arguments.
    let script = format!("{editor} \"$@\"");
    let status = Command::new("sh").args(["-c", &script, editor]).arg(draft).status()?;
    if !status.success() {
        let message = format!("the editor `{editor}` ended with {status}; nothing was changed");
        return Err(
            CommandFailure::message(FailureCode::Failed, message).hint("set EDITOR to your editor")
        );
    }
    Ok(())
}

fn ask_again() -> CommandResult<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    output::confirm("Edit again?", true)
}
