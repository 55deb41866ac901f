//! `heeler config`: check, show, describe and edit the configuration.

use std::io::IsTerminal as _;
use std::process::Command;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand};
use heeler_model::config::{self, Faults, Loaded, Severity};
use heeler_query::config::ConfigShown;
use heeler_query::workflows::FaultItem;
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output;
use crate::place::Place;
use crate::schema;

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check every file of the fleet; list every fault with its place
    Validate(JsonArg),
    /// Show the configuration as it is used: merged, with defaults, without secrets
    Show(ShowArgs),
    /// Print the JSON Schema of the config files, for editors
    Schema(SchemaArgs),
    /// Edit a config file; it is saved only when the whole fleet is valid
    Edit(EditArgs),
}

/// Arguments of `config validate`.
#[derive(Args)]
pub(crate) struct JsonArg {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `config show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// With secrets that stand in the files themselves; variables stay `${NAME}`
    #[arg(long)]
    secrets: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `config schema`.
#[derive(Args)]
pub(crate) struct SchemaArgs {
    /// The schema of an agent file instead of a fleet file
    #[arg(long, conflicts_with = "workflow")]
    agent: bool,
    /// The schema of a workflow file instead of a fleet file
    #[arg(long)]
    workflow: bool,
}

/// Arguments of `config edit`.
#[derive(Args)]
pub(crate) struct EditArgs {
    /// The agent whose file to edit [default: the fleet's own file]
    #[arg(add = cli::agents())]
    agent: Option<String>,
}

/// Runs `config` and its verbs.
pub(crate) fn run(global: &Global, command: &ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Validate(args) => validate(&Place::find(global)?, args.json),
        ConfigCommand::Show(args) => show(&Place::find(global)?, args),
        ConfigCommand::Schema(args) => schema(args),
        ConfigCommand::Edit(args) => edit(&Place::find(global)?, args),
    }
}

fn validate(place: &Place, as_json: bool) -> Outcome {
    let file = place.config_file()?;
    let result = fleet::try_load(place, file, &fleet::read_text)?.and_then(Loaded::whole);
    if as_json {
        output::json(&validation_json(file, &result))?;
        return match result {
            Ok(_) => Ok(()),
            Err(_) => Err(Failure::silent(Code::Usage)),
        };
    }
    match result {
        Ok(loaded) => {
            fleet::print_faults(place, &loaded.warnings)?;
            if place.state_dir.is_dir() {
                schema::place(&place.state_dir)?;
            }
            Ok(output::line(format!("{file} is valid ({})", found(&loaded)))?)
        }
        Err(faults) => {
            fleet::print_faults(place, &faults)?;
            Err(Failure::message(Code::Usage, faults.summary()))
        }
    }
}

/// Tells what a config holds: `2 files, 1 agent: coder, 1 workflow: build`.
fn found(loaded: &Loaded) -> String {
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

fn workflow_names(loaded: &Loaded) -> Vec<&str> {
    loaded.workflows.iter().map(|loaded| loaded.workflow.name.as_str()).collect()
}

fn validation_json(file: &Utf8Path, result: &Result<Loaded, Faults>) -> Value {
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
        "errors": faults_json(faults, Severity::Error),
        "warnings": faults_json(faults, Severity::Warning),
    })
}

/// Returns those faults that are so bad, for programs.
pub(crate) fn faults_json(faults: &Faults, severity: Severity) -> Vec<FaultItem> {
    heeler_query::workflows::faults(faults, severity)
}

fn show(place: &Place, args: &ShowArgs) -> Outcome {
    let loaded = fleet::load(place)?;
    let known = fleet::known(place, Some(Arc::new(loaded)));
    let shown = match args.secrets {
        true => ConfigShown::as_written(&known)?,
        false => ConfigShown::of(&known)?,
    };
    if args.json {
        return Ok(output::json(&shown)?);
    }
    let ConfigShown { fleet, agents, .. } = shown;
    let value = json!({ "fleet": fleet, "agents": agents });
    let yaml = serde_saphyr::to_string(&value).map_err(anyhow::Error::from)?;
    output::line(format!("# {}", place.config_file()?))?;
    Ok(output::line(yaml.trim_end())?)
}

fn schema(args: &SchemaArgs) -> Outcome {
    let schema = match (args.agent, args.workflow) {
        (true, _) => config::agent_schema(),
        (false, true) => config::workflow_schema(),
        (false, false) => config::fleet_schema(),
    };
    Ok(output::json(&schema)?)
}

fn edit(place: &Place, args: &EditArgs) -> Outcome {
    let file = file_to_edit(place, args)?;
    // A link stays a link: what it points to is edited.
    let file = file.canonicalize_utf8()?;
    let before = fleet::read_text(&file)?;
    let name = file.file_name().unwrap_or("config.yaml");
    let draft =
        tempfile::Builder::new().prefix("heeler-edit-").suffix(&format!("-{name}")).tempfile()?;
    std::fs::write(draft.path(), &before)?;
    loop {
        open_editor(place, draft.path())?;
        let text = std::fs::read_to_string(draft.path())?;
        if text == before {
            return Ok(output::note("nothing changed")?);
        }
        match check_edit(place, &file, &text)? {
            Ok(loaded) => {
                fleet::print_faults(place, &loaded.warnings)?;
                fleet::save(&file, &before, &text)?;
                return Ok(output::line(format!("saved {file}"))?);
            }
            Err(faults) => {
                fleet::print_faults(place, &faults)?;
                if !ask_again()? {
                    let (_, kept) = draft.keep().map_err(|error| error.error)?;
                    let message = format!("{file} was not changed: {}", faults.summary());
                    return Err(Failure::message(Code::Usage, message)
                        .hint(format!("your edit is kept in {}", kept.display())));
                }
            }
        }
    }
}

fn file_to_edit(place: &Place, args: &EditArgs) -> Outcome<Utf8PathBuf> {
    let Some(name) = &args.agent else { return Ok(place.config_file()?.to_owned()) };
    let loaded = fleet::load(place)?;
    let agent = loaded.agents.iter().find(|agent| agent.name.as_str() == name);
    let agent = agent.ok_or_else(|| {
        Failure::message(Code::NotFound, format!("there is no agent `{name}`"))
            .hint("heeler config validate lists them")
    })?;
    Ok(agent.file.clone())
}

/// Checks the whole fleet with the edited text in place of the file's.
fn check_edit(place: &Place, file: &Utf8Path, text: &str) -> Outcome<Result<Loaded, Faults>> {
    let is_edited = |path: &Utf8Path| path.canonicalize_utf8().is_ok_and(|path| path == file);
    let loaded = fleet::try_load(place, place.config_file()?, &|path| match is_edited(path) {
        true => Ok(text.to_owned()),
        false => fleet::read_text(path),
    })?;
    Ok(loaded.and_then(Loaded::whole))
}

#[expect(clippy::disallowed_methods, reason = "the user's editor")]
fn open_editor(place: &Place, draft: &std::path::Path) -> Outcome {
    let editor = ["VISUAL", "EDITOR"].iter().find_map(|name| place.env.get(*name));
    let editor = editor.map_or("vi", String::as_str);
    // As git does: the value may hold arguments.
    let script = format!("{editor} \"$@\"");
    let status = Command::new("sh").args(["-c", &script, editor]).arg(draft).status()?;
    if !status.success() {
        let message = format!("the editor `{editor}` ended with {status}; nothing was changed");
        return Err(Failure::message(Code::Failed, message).hint("set EDITOR to your editor"));
    }
    Ok(())
}

fn ask_again() -> Outcome<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    output::ask("Edit again?", true)
}
