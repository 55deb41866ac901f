//! `heeler init`: creates a fleet that works at once, or adds an agent to one. Never overwrites a
//! file. Start at [`run`].

mod installed;

use std::collections::BTreeMap;
use std::io::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand, ValueHint};
use heeler_config::templates::{self, AgentTemplateOptions, TemplateSandbox};
use heeler_config::{KNOWN_AGENTS, PermissionMode, find_known_agent};
use heeler_model::LocalName;

use self::installed::InstalledAgentFiles;
use crate::commands::doctor;
use crate::config_changes::OwnConfigEdit;
use crate::context::{CONFIG_NAMES, CommandContext};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env::working_directory;
use crate::schema;
use crate::text_file;
use crate::trust;

/// Arguments of `init`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct InitArgs {
    #[command(subcommand)]
    command: Option<InitCommand>,
    /// Folder for the fleet [default: working directory]
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<Utf8PathBuf>,
    #[command(flatten)]
    sandbox: SandboxInitArgs,
    #[command(flatten)]
    herdctl: HerdctlInitArgs,
}

/// Choice of the sandbox of a new fleet.
#[derive(Args)]
struct SandboxInitArgs {
    /// Let the agents run without a sandbox, even if this machine can make one
    #[arg(long)]
    no_sandbox: bool,
}

/// Flags of herdctl's `init`, which asks questions and overwrites files.
#[derive(Args)]
struct HerdctlInitArgs {
    /// No effect: nothing is asked (herdctl's flag)
    #[arg(short, long, hide = true)]
    yes: bool,
    /// Refused if a file exists: nothing is overwritten (herdctl's flag)
    #[arg(short, long, hide = true)]
    force: bool,
}

#[derive(Subcommand)]
enum InitCommand {
    /// Create a fleet (same as `init` alone)
    #[command(hide = true)]
    Fleet {
        /// Folder for the fleet
        dir: Option<Utf8PathBuf>,
        /// Name of the fleet [default: the folder's]
        #[arg(short, long)]
        name: Option<LocalName>,
        #[command(flatten)]
        sandbox: SandboxInitArgs,
        #[command(flatten)]
        herdctl: HerdctlInitArgs,
    },
    /// Add an agent to the fleet in the working directory
    Agent(InitAgentArgs),
}

/// Arguments of `init agent`.
#[derive(Args)]
struct InitAgentArgs {
    /// Agent name: letters, digits, `-` and `_`
    name: LocalName,
    /// Purpose of the agent
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// Actions that the agent may take without asking
    #[arg(long, value_name = "MODE")]
    permission_mode: Option<PermissionMode>,
    /// Runtime: `sdk` or `cli` (Claude Code), `codex`, `qwen`, or `acp` (with --program)
    #[arg(long, value_parser = ["sdk", "cli", "codex", "qwen", "acp"])]
    runtime: Option<String>,
    /// Agent program with `--runtime acp`: a name that `heeler agent capabilities` lists
    #[arg(long, value_name = "NAME", value_parser = known_program, required_if_eq("runtime", "acp"))]
    program: Option<&'static str>,
    /// Refused: containers are set in the config (herdctl's flag)
    #[arg(long, hide = true)]
    docker: bool,
    /// No effect: agents have no container by default (herdctl's flag)
    #[arg(long, hide = true, conflicts_with = "docker")]
    no_docker: bool,
    /// Refused: a bot is set up by `heeler connect discord` (herdctl's flag)
    #[arg(long, hide = true)]
    discord: bool,
    /// Refused: an app is set up by `heeler connect slack` (herdctl's flag)
    #[arg(long, hide = true)]
    slack: bool,
    #[command(flatten)]
    herdctl: HerdctlInitArgs,
}

/// Runs `init`.
pub(crate) fn run(global: &GlobalArgs, args: &InitArgs) -> CommandResult {
    let here = working_directory()?;
    match &args.command {
        Some(InitCommand::Agent(args)) => add_agent(global, &here, args),
        Some(InitCommand::Fleet { dir, name, sandbox, herdctl }) => {
            let name = name.clone();
            make_fleet(&here, dir.as_deref(), NewFleetOptions { name, sandbox, herdctl })
        }
        None => {
            let InitArgs { dir, sandbox, herdctl, .. } = args;
            make_fleet(&here, dir.as_deref(), NewFleetOptions { name: None, sandbox, herdctl })
        }
    }
}

/// Options of a new fleet.
struct NewFleetOptions<'a> {
    name: Option<LocalName>,
    sandbox: &'a SandboxInitArgs,
    herdctl: &'a HerdctlInitArgs,
}

fn make_fleet(
    here: &Utf8Path,
    dir: Option<&Utf8Path>,
    options: NewFleetOptions<'_>,
) -> CommandResult {
    let folder = dir.map_or(here.to_owned(), |dir| here.join(dir));
    // Also herdctl's names: a second config would hide the existing one.
    for (name, _) in CONFIG_NAMES {
        if folder.join(name).exists() {
            let message = format!("{} exists; nothing was changed", folder.join(name));
            // A config is a person's work, so `--force` does not overwrite it.
            let hint = match options.herdctl.force {
                true => format!("mv {name} {name}.old && heeler init"),
                false => "heeler init agent NAME".to_owned(),
            };
            return Err(CommandFailure::message(FailureCode::Refused, message).hint(hint));
        }
    }
    std::fs::create_dir_all(&folder).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot create the folder {folder}"));
        CommandFailure::new(FailureCode::Failed, error)
    })?;
    // A folder may have a name that no fleet can have.
    let own_name = folder.file_name().and_then(|name| name.parse::<LocalName>().ok());
    let name =
        options.name.or(own_name).unwrap_or_else(|| "fleet".parse().expect("`fleet` is a name"));
    let agent_schema = format!("../.heeler/{}", schema::AGENT);
    let first_text = templates::first_agent_file(&agent_schema);
    let probed = options.sandbox.probe();
    let sandbox = template_sandbox(probed.as_ref());
    let installed = InstalledAgentFiles::find(sandbox, &agent_schema);
    let first = (templates::FIRST_AGENT_PATH, first_text.as_str());
    let own: Vec<(&str, &str)> = [first].into_iter().chain(installed.files()).collect();
    let found = find_foreign_content(&folder, &own);
    schema::write_schemas(&folder.join(".heeler"))?;
    // An interrupted `init` may have written it already.
    let first_agent = folder.join(templates::FIRST_AGENT_PATH);
    if !first_agent.exists() {
        write_new(&first_agent, &first_text)?;
    }
    installed.write(&folder)?;
    let fleet_schema = format!(".heeler/{}", schema::FLEET);
    let mut fleet_file = templates::fleet_file(&name, &fleet_schema, sandbox);
    for (path, _) in installed.files() {
        fleet_file = templates::add_agent(&fleet_file, path)
            .map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
    }
    // Written last, so that an interrupted `init` can be repeated.
    write_new(&folder.join("heeler.yaml"), &fleet_file)?;
    ignore_state(&folder)?;
    record_trust(&folder, found.as_deref())?;
    if let Some(Err(reason)) = &probed {
        output::print_note(&format!(
            "agents of this fleet run without a sandbox, because this machine cannot make one yet: \
             {reason}; once `heeler doctor sandbox` succeeds, write `sandbox: true` in heeler.yaml"
        ))?;
    }
    installed.print()?;
    let enter = dir.map(|dir| format!("cd {dir} && ")).unwrap_or_default();
    output::print_line(format!("\nNext: {enter}heeler trigger greeter"))?;
    Ok(output::print_line("Then: heeler start     # start the daemon: schedules, queue, recovery")?)
}

impl SandboxInitArgs {
    /// Tests whether this machine can make a sandbox, unless the person wants none.
    fn probe(&self) -> Option<Result<String, String>> {
        (!self.no_sandbox).then(doctor::probe_sandbox)
    }
}

fn template_sandbox(probed: Option<&Result<String, String>>) -> TemplateSandbox<'_> {
    match probed {
        None => TemplateSandbox::Off,
        Some(Ok(_)) => TemplateSandbox::On,
        Some(Err(reason)) => TemplateSandbox::Unavailable(reason),
    }
}

/// Names of files that decide what a fleet runs, in a folder that has no config yet.
const FOREIGN_CONTENT: [&str; 6] =
    [".env", ".claude", ".mcp.json", "workflows", ".heeler/heeler.db", ".heeler/daemon.json"];

/// Returns something that was in the folder before `init` and would take part in what the fleet
/// runs. It may be a stranger's.
fn find_foreign_content(folder: &Utf8Path, own: &[(&str, &str)]) -> Option<Utf8PathBuf> {
    let first_path = folder.join(templates::FIRST_AGENT_PATH);
    let agents = text_file::parent_dir(&first_path).read_dir_utf8().into_iter().flatten().flatten();
    // An interrupted `init` may have written its agents.
    let is_ours = |path: &Utf8Path| {
        let text = own.iter().find(|(own, _)| folder.join(own) == path).map(|(_, text)| *text);
        text.is_some_and(|own| text_file::read_text(path).is_ok_and(|text| text == own))
    };
    let agents = agents.map(|entry| entry.into_path()).filter(|path| !is_ours(path));
    let others = FOREIGN_CONTENT.map(|name| folder.join(name));
    // A link counts even if it leads nowhere yet.
    let others = others.into_iter().filter(|path| path.symlink_metadata().is_ok());
    agents.chain(others).next()
}

/// Records that the user trusts the fleet that was just made, unless something was there before.
fn record_trust(folder: &Utf8Path, found: Option<&Utf8Path>) -> CommandResult {
    let config = folder.join("heeler.yaml");
    let why = match found {
        Some(path) => format!("{path} was there before"),
        None => match trust::record_own_fleet(&config) {
            Ok(()) => return Ok(()),
            // The fleet is made; only a question is left to be answered.
            Err(failure) => format!("{:#}", failure.error),
        },
    };
    Ok(output::print_note(&format!("{why}, so heeler asks before it runs the fleet"))?)
}

/// Returns the name of a known agent.
fn known_program(text: &str) -> Result<&'static str, String> {
    find_known_agent(text).map(|known| known.name).ok_or_else(|| {
        let names: Vec<&str> = KNOWN_AGENTS.iter().map(|known| known.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Refuses options of herdctl that need something that Heeler does not have.
fn refuse_missing_features(args: &InitAgentArgs) -> CommandResult {
    let refuse = |message: &str, hint: &str| {
        Err(CommandFailure::message(FailureCode::Refused, message).hint(hint))
    };
    match () {
        () if args.docker => refuse(
            "an agent gets its container from the config, not from a flag",
            "leave out --docker, and set `docker: {enabled: true, image: …}` in the fleet file's `defaults`",
        ),
        () if args.discord => refuse(
            "an agent gets its Discord bot from the config, not from a flag",
            "leave out --discord, then: heeler connect discord",
        ),
        () if args.slack => refuse(
            "an agent gets its Slack app from the config, not from a flag",
            "leave out --slack, then: heeler connect slack",
        ),
        () => Ok(()),
    }
}

fn add_agent(global: &GlobalArgs, here: &Utf8Path, args: &InitAgentArgs) -> CommandResult {
    refuse_missing_features(args)?;
    if args.program.is_some() && args.runtime.as_deref() != Some("acp") {
        let message = "`--program` needs `--runtime acp`";
        return Err(CommandFailure::message(FailureCode::Usage, message));
    }
    let name = &args.name;
    let (file, state_name) = CONFIG_NAMES
        .map(|(file, state_name)| (here.join(file), state_name))
        .into_iter()
        .find(|(file, _)| file.is_file())
        .ok_or_else(|| {
            CommandFailure::message(
                FailureCode::Usage,
                format!("there is no heeler.yaml in {here}"),
            )
            .hint("heeler init")
        })?;
    let relative = format!("agents/{name}.yaml");
    let before = text_file::read_text(&file)?;
    // Computed first: a config that cannot be edited must not leave an agent file behind.
    let after = templates::add_agent(&before, &relative)
        .map_err(|error| CommandFailure::new(FailureCode::Refused, error))?;
    schema::write_schemas(&here.join(state_name))?;
    let options = AgentTemplateOptions {
        description: args.description.as_deref(),
        permission_mode: args.permission_mode.map(PermissionMode::as_str),
        runtime: args.runtime.as_deref(),
        program: args.program,
        ..AgentTemplateOptions::default()
    };
    let schema = format!("../{state_name}/{}", schema::AGENT);
    let text = templates::agent_file_with(name, &schema, &options);
    let agent_file = here.join(&relative);
    if args.herdctl.force && agent_file.exists() {
        let message = format!("{agent_file} exists; it was not changed");
        return Err(CommandFailure::message(FailureCode::Refused, message)
            .hint(format!("mv {relative} {relative}.old, and remove it from {file}")));
    }
    let texts = BTreeMap::from([
        (agent_file.clone(), Some(text.clone())),
        (file.clone(), Some(after.clone())),
    ]);
    let context = CommandContext::find(&GlobalArgs { quiet: true, ..global.clone() }).ok();
    let own = match &context {
        Some(context) => OwnConfigEdit::prepare(context, texts)?,
        None => OwnConfigEdit::default(),
    };
    write_new(&agent_file, &text)?;
    // Last, so that the config never names a file that does not exist.
    text_file::replace_text(&file, &before, &after)?;
    if let Some(context) = &context {
        own.confirm(context);
    }
    output::print_line(format!("added {name} to {file}"))?;
    Ok(output::print_line("\nNext: heeler config validate")?)
}

/// Writes a file that must not exist yet.
fn write_new(path: &Utf8Path, text: &str) -> CommandResult {
    std::fs::create_dir_all(crate::text_file::parent_dir(path))?;
    // `create_new` refuses an existing file without a gap between check and creation.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = file.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => CommandFailure::message(
            FailureCode::Refused,
            format!("{path} exists; it was not changed"),
        ),
        _ => CommandFailure::new(
            FailureCode::Failed,
            anyhow::Error::new(error).context(format!("cannot write {path}")),
        ),
    })?;
    file.write_all(text.as_bytes())?;
    Ok(output::print_line(format!("wrote {path}"))?)
}

/// Adds the state directory to .gitignore, unless it is listed already.
fn ignore_state(folder: &Utf8Path) -> CommandResult {
    let path = folder.join(".gitignore");
    // The link may lead out of the project, to a file that others share.
    if path.is_symlink() {
        let text = format!("{path} is a link and was not changed; add .heeler/ to it yourself");
        return Ok(output::print_note(&text)?);
    }
    let text = match text_file::read_text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("cannot read {path}"));
            return Err(error.into());
        }
    };
    if text.lines().any(|line| matches!(line.trim(), ".heeler" | ".heeler/" | "/.heeler/")) {
        return Ok(());
    }
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&path)?;
    // `.env` is the place for secrets, so it must not be committed either.
    file.write_all(format!("{newline}.heeler/\n.env\n").as_bytes())?;
    Ok(output::print_line(format!("added .heeler/ to {path}"))?)
}
