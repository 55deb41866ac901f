//! `heeler config`: checks, shows, describes and edits the configuration. Start at [`run`].

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::process::Command;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand};
use heeler_config::{
    AgentConfig, ApprovalMode, ConfigFaults, FaultSeverity, LoadedConfig, PermissionMode,
    RuntimeConfig, RuntimeType,
};
use heeler_engine::SANDBOX_VARIABLE;
use heeler_query::config::EffectiveConfig;
use heeler_query::workflows::ConfigFaultSummary;
use heeler_runner::check_allowed_tools;
use serde_json::{Value, json};

use crate::config_changes::OwnConfigEdit;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::schema;
use crate::shared_args;
use crate::text_file;

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
    /// No effect: each error is printed with its cure (herdctl's flag)
    #[arg(long, hide = true)]
    fix: bool,
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
    #[arg(add = shared_args::agents())]
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

fn validate(context: &CommandContext, as_json: bool) -> CommandResult {
    let file = context.config_file()?;
    // Invalid workflows only disable themselves elsewhere; here they are errors.
    let result = fleet_config::try_load(context, file, &text_file::read_text)?
        .and_then(LoadedConfig::require_no_faults);
    let unenforceable = result.as_ref().map(unenforceable_lists).unwrap_or_default();
    if as_json {
        output::print_json(&validation_json(file, &result, &unenforceable))?;
        return match result {
            Ok(_) if unenforceable.is_empty() => Ok(()),
            _ => Err(CommandFailure::silent(FailureCode::Usage)),
        };
    }
    match result {
        Ok(_) if !unenforceable.is_empty() => {
            let faults: Vec<&str> = unenforceable.iter().map(|(_, why)| why.as_str()).collect();
            Err(CommandFailure::message(FailureCode::Usage, faults.join("\n")))
        }
        Ok(loaded) => {
            fleet_config::print_faults(context, &loaded.warnings)?;
            print_root_warnings(&loaded)?;
            for (_, why) in schedules_without_prompt(&loaded) {
                output::print_note(&why)?;
            }
            // A good moment to refresh the schemas, but no reason to create the directory.
            if context.state_dir.is_dir() {
                schema::write_schemas(&context.state_dir)?;
            }
            Ok(output::print_line(format!("{file} is valid ({})", config_summary(&loaded)))?)
        }
        Err(faults) => {
            fleet_config::print_faults(context, &faults)?;
            Err(CommandFailure::message(FailureCode::Usage, faults.summary()))
        }
    }
}

/// Returns each agent whose list of tools cannot be enforced, with the reason. All its runs are
/// refused, rather than run with more rights.
fn unenforceable_lists(loaded: &LoadedConfig) -> Vec<(&AgentConfig, String)> {
    let check = |agent: &'_ AgentConfig| {
        let runtime = match agent.runtime {
            RuntimeConfig::Sdk => RuntimeType::Sdk,
            RuntimeConfig::Cli => RuntimeType::Cli,
            // Their lists of tools are refused when the config is loaded.
            RuntimeConfig::Acp(_) | RuntimeConfig::Codex(_) | RuntimeConfig::Qwen(_) => {
                return None;
            }
            RuntimeConfig::Scripted(_) | RuntimeConfig::Command(_) => return None,
        };
        let why = check_allowed_tools(agent.allowed_tools.as_ref()?, runtime).err()?;
        Some(format!("{} ({}): {why}", agent.name, agent.file))
    };
    loaded.agents.iter().filter_map(|agent| Some((agent, check(agent)?))).collect()
}

/// Returns each agent with a schedule that has no prompt, with the consequence.
fn schedules_without_prompt(loaded: &LoadedConfig) -> Vec<(&AgentConfig, String)> {
    let reads_prompts = |agent: &&AgentConfig| {
        !matches!(agent.runtime, RuntimeConfig::Scripted(_) | RuntimeConfig::Command(_))
    };
    let notes = |agent: &'_ AgentConfig| -> Vec<String> {
        let schedules = agent.schedules.iter();
        let without = schedules.filter(|it| it.prompt.is_none() && it.workflow.is_none());
        without
            .map(|it| {
                let name = &it.name;
                format!(
                    "{}: schedule `{name}` has no prompt, so its jobs cannot start: add `prompt`, or \
                     `default_prompt` to the agent",
                    agent.name
                )
            })
            .collect()
    };
    let agents = loaded.agents.iter().filter(reads_prompts);
    agents.flat_map(|agent| notes(agent).into_iter().map(move |note| (agent, note))).collect()
}

/// Warns about agents that root may not run without permissions, or only because their config
/// claims a sandbox.
fn print_root_warnings(loaded: &LoadedConfig) -> CommandResult {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let skips = |agent: &&AgentConfig| {
        !matches!(agent.runtime, RuntimeConfig::Scripted(_) | RuntimeConfig::Command(_))
            && agent.permission_mode == PermissionMode::BypassPermissions
            && agent.approvals != ApprovalMode::Review
            && agent.sandbox.as_ref().is_none_or(|sandbox| sandbox.settings().is_none())
    };
    for agent in loaded.agents.iter().filter(skips) {
        let claims = agent.env.get().contains_key(SANDBOX_VARIABLE);
        let consequence = match claims {
            true => {
                format!("runs every command as root, because its `env` sets {SANDBOX_VARIABLE}")
            }
            false => "is refused as root: run the fleet as another user, or choose another mode"
                .to_owned(),
        };
        let name = &agent.name;
        output::print_note(&format!(
            "{name} (`permission_mode: bypassPermissions`) {consequence}"
        ))?;
    }
    Ok(())
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

fn validation_json(
    file: &Utf8Path,
    result: &Result<LoadedConfig, ConfigFaults>,
    unenforceable: &[(&AgentConfig, String)],
) -> Value {
    let faults = match result {
        Ok(loaded) => &loaded.warnings,
        Err(faults) => faults,
    };
    let agents: Vec<&str> = match result {
        Ok(loaded) => loaded.agents.iter().map(|agent| agent.name.as_str()).collect(),
        Err(_) => Vec::new(),
    };
    let workflows = result.as_ref().map(workflow_names).unwrap_or_default();
    let mut errors = faults_json(faults, FaultSeverity::Error);
    errors.extend(unenforceable.iter().map(|(agent, why)| ConfigFaultSummary {
        file: agent.file.to_string(),
        line: 1,
        column: 1,
        message: why.clone(),
        expected: None,
        help: None,
    }));
    json!({
        "valid": result.is_ok() && unenforceable.is_empty(), "configPath": file,
        "agents": agents, "workflows": workflows, "errors": errors,
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

fn show(context: &CommandContext, args: &ConfigShowArgs) -> CommandResult {
    let loaded = fleet_config::load(context)?;
    let known = fleet_config::query_context(context, Some(Arc::new(loaded)));
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
    output::print_line(format!("# {}", context.config_file()?))?;
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

fn edit(context: &CommandContext, args: &ConfigEditArgs) -> CommandResult {
    let file = file_to_edit(context, args)?;
    // Edit the target of a link, so that the link stays a link.
    let file = file.canonicalize_utf8()?;
    let before = text_file::read_text(&file)?;
    let name = file.file_name().unwrap_or("config.yaml");
    let draft =
        // The file keeps its name as a suffix, so that editors recognize its format.
        tempfile::Builder::new().prefix("heeler-edit-").suffix(&format!("-{name}")).tempfile()?;
    // The file itself stays valid while its draft is edited: a daemon may reload it at any time.
    std::fs::write(draft.path(), &before)?;
    loop {
        open_editor(context, draft.path())?;
        // Read by path: many editors replace the file instead of writing to it.
        let text = std::fs::read_to_string(draft.path())?;
        if text == before {
            return Ok(output::print_note("nothing changed")?);
        }
        match check_edit(context, &file, &text)? {
            Ok(loaded) => {
                fleet_config::print_faults(context, &loaded.warnings)?;
                let own = BTreeMap::from([(file.clone(), Some(text.clone()))]);
                let own = OwnConfigEdit::prepare(context, own)?;
                // Fails if someone else has changed the file meanwhile.
                text_file::replace_text(&file, &before, &text)?;
                own.confirm(context);
                return Ok(output::print_line(format!("saved {file}"))?);
            }
            Err(faults) => {
                fleet_config::print_faults(context, &faults)?;
                if !ask_again()? {
                    // The work of a person is never deleted with the temporary file.
                    let (_, path) = draft.keep().map_err(|error| error.error)?;
                    let message = format!("{file} was not changed: {}", faults.summary());
                    return Err(CommandFailure::message(FailureCode::Usage, message)
                        .hint(format!("your edit is kept in {}", path.display())));
                }
            }
        }
    }
}

fn file_to_edit(context: &CommandContext, args: &ConfigEditArgs) -> CommandResult<Utf8PathBuf> {
    let Some(name) = &args.agent else { return Ok(context.config_file()?.to_owned()) };
    let loaded = fleet_config::load(context)?;
    let agent = loaded.agents.iter().find(|agent| agent.name.as_str() == name);
    let agent = agent.ok_or_else(|| {
        CommandFailure::message(FailureCode::NotFound, format!("there is no agent `{name}`"))
            .hint("heeler config validate lists all agents")
    })?;
    Ok(agent.file.clone())
}

/// Checks the whole fleet with the edited text in place of the file's content.
fn check_edit(
    context: &CommandContext,
    file: &Utf8Path,
    text: &str,
) -> CommandResult<Result<LoadedConfig, ConfigFaults>> {
    // The config may refer to the file by a link or another relative path.
    let is_edited = |path: &Utf8Path| path.canonicalize_utf8().is_ok_and(|path| path == file);
    let loaded =
        fleet_config::try_load(context, context.config_file()?, &|path| match is_edited(path) {
            true => Ok(text.to_owned()),
            false => text_file::read_text(path),
        })?;
    Ok(loaded.and_then(LoadedConfig::require_no_faults))
}

#[expect(clippy::disallowed_methods, reason = "the user's editor")]
fn open_editor(context: &CommandContext, draft: &std::path::Path) -> CommandResult {
    let editor = ["VISUAL", "EDITOR"].iter().find_map(|name| context.env.get(*name));
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
    // A script as the editor would give the same text again, forever.
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    output::confirm("Edit again?", true)
}
