//! The fleet's own files that no agent may change: everything that decides what runs, or records
//! it. Start at [`protected_files`].

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{
    CLAUDE_FOLDER_ENTRIES, CLAUDE_STATE_FILE, Hook, HookAction, LoadedConfig, McpTransport,
    RuntimeConfig, command_words, hook_programs,
};
use heeler_engine::ProtectedFiles;

use crate::context::{CONFIG_NAMES, CommandContext};
use crate::failure::CommandResult;
use crate::store_setting::credentials;
use crate::text_file::parent_dir;
use crate::trust::has_script_ending;
use crate::trust_file::TrustFile;

/// Returns the fleet's protected files, under every name they have: the config, config files that
/// would be found before it, the `.env` next to it, workflows, hook scripts, plugins, state and
/// locks.
pub(crate) fn protected_files(
    context: &CommandContext,
    loaded: &LoadedConfig,
    home: &Utf8Path,
) -> CommandResult<ProtectedFiles> {
    let root = parent_dir(context.config_file()?);
    let dotenv = root.join(".env");
    let fleets = loaded.fleets.iter().map(|fleet| parent_dir(&fleet.file).to_owned());
    let fleet_folders: Vec<Utf8PathBuf> = fleets.chain([root.to_owned()]).collect();
    // A new `heeler.yaml` next to a `herdctl.yaml` would be found first, so it must not be created.
    let mut paths: Vec<Utf8PathBuf> = fleet_folders
        .iter()
        .flat_map(|folder| CONFIG_NAMES.map(|(name, _)| folder.join(name)))
        .collect();
    paths.extend([dotenv.clone(), home.to_owned()]);
    paths.extend(loaded.files.iter().cloned());
    paths.extend(loaded.fleets.first().map(|fleet| fleet.workflows.folder.clone()));
    paths.extend(hook_files(loaded));
    // With its own entry there, any fleet could run commands.
    paths.extend(TrustFile::path(&context.env));
    paths.extend(launched_files(loaded));
    let github = loaded.fleets.iter().filter_map(|fleet| fleet.github.as_ref());
    let keys: Vec<Utf8PathBuf> = github.filter_map(|it| it.key_file().cloned()).collect();
    paths.extend(keys.iter().cloned());
    // The password of the records: with it an agent could write commands of a person.
    let passwords = loaded.fleets.first().and_then(|fleet| fleet.store.as_ref());
    let passwords = passwords.and_then(|_| credentials(context).password_file);
    paths.extend(passwords.iter().cloned());
    // With an authority of its own, an agent could receive the password of the mail server.
    let mail = loaded.fleets.iter().filter_map(|fleet| fleet.notify.as_ref()?.smtp.as_ref());
    paths.extend(mail.filter_map(|smtp| smtp.ca_file.clone()));
    let secrets = keys.into_iter().chain(passwords).chain([dotenv]);
    Ok(ProtectedFiles {
        unwritable: with_real_names(paths),
        unreadable: with_real_names(secrets.collect()),
        state_dirs: with_real_names(vec![context.state_dir.clone()]),
        other_states: Some(trusted_state_dirs),
        fleet_folders: with_real_names(fleet_folders),
        user_files: with_real_names(user_files(context, loaded)),
    })
}

/// Maximum number of subfolders of a trusted folder that are searched for fleets.
const SUBFOLDERS_MAX: usize = 1000;

/// Returns the state directories of all fleets that the user trusts, and of those beside which they
/// are: in a trusted folder and its direct subfolders.
fn trusted_state_dirs(env: &BTreeMap<String, String>) -> Vec<Utf8PathBuf> {
    // A file that cannot be used trusts nothing, and commands say so.
    let file = TrustFile::path(env).and_then(|path| TrustFile::read(&path).ok());
    let Some(TrustFile { folders, fleets, .. }) = file else { return Vec::new() };
    let subfolders = folders.iter().flat_map(|folder| {
        let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
        entries.map(|entry| entry.into_path()).take(SUBFOLDERS_MAX)
    });
    let places: Vec<Utf8PathBuf> = fleets
        .iter()
        .map(|fleet| parent_dir(&fleet.config).to_owned())
        .chain(folders.iter().cloned())
        .chain(subfolders)
        .collect();
    let states = places.iter().flat_map(|folder| CONFIG_NAMES.map(|(_, state)| folder.join(state)));
    let mut states: Vec<Utf8PathBuf> = states.filter(|state| state.is_dir()).collect();
    states.sort();
    states.dedup();
    states
}

/// Returns the files of the user's Claude folder from which Claude takes instructions and commands,
/// for the user and for every agent that has a folder of its own.
fn user_files(context: &CommandContext, loaded: &LoadedConfig) -> Vec<Utf8PathBuf> {
    let of_agent = |name: &'static str| {
        let values = loaded.agents.iter().filter_map(move |agent| agent.env.get().get(name));
        values.map(|value| value.expose().to_owned())
    };
    let folders = |name: &'static str| {
        let own = context.env.get(name).cloned();
        own.into_iter().chain(of_agent(name)).map(Utf8PathBuf::from).filter(|it| it.is_absolute())
    };
    let configs =
        folders("HOME").map(|home| home.join(".claude")).chain(folders("CLAUDE_CONFIG_DIR"));
    let names = || CLAUDE_FOLDER_ENTRIES.into_iter().chain([CLAUDE_STATE_FILE]);
    let files = configs.flat_map(|config| names().map(move |name| config.join(name)));
    files.chain(folders("HOME").map(|home| home.join(CLAUDE_STATE_FILE))).collect()
}

/// Returns the files that hooks execute: programs and scripts by their position in the command, and
/// other files that the command names if they can be executed or are scripts by their ending. Other
/// files may be data that the agent writes for its hook.
pub(crate) fn hook_files(loaded: &LoadedConfig) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    for agent in &loaded.agents {
        let hooks = agent.hooks.after_run.iter().chain(&agent.hooks.on_error);
        for (command, folder) in hooks.filter_map(shell_command) {
            found.extend(hook_programs(command).into_iter().map(|it| folder.join(it.path)));
            let places = [folder, agent.working_directory.as_path()];
            let named = command_words(command).flat_map(|word| places.map(|it| it.join(word)));
            found.extend(named.filter(|path| is_program_file(path)));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn shell_command(hook: &Hook) -> Option<(&str, &Utf8Path)> {
    match &hook.action {
        HookAction::Shell { command, folder, .. } => Some((command, folder)),
        _ => None,
    }
}

/// Returns true for a file that can be executed, or that an interpreter executes.
fn is_program_file(path: &Utf8Path) -> bool {
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|it| {
        it.is_file() && (has_script_ending(path) || it.permissions().mode() & 0o111 != 0)
    })
}

/// Returns what is started without the rules of an agent: Claude itself, its plugins and MCP servers,
/// and the programs and scripts of agents that are commands.
fn launched_files(loaded: &LoadedConfig) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    for agent in &loaded.agents {
        found.extend(agent.claude_path.iter().map(|path| path.as_path().to_owned()));
        found.extend(agent.plugins.iter().map(|plugin| plugin.path.clone()));
        match &agent.runtime {
            RuntimeConfig::Command(command) => {
                let programs = hook_programs(command).into_iter();
                found.extend(programs.map(|it| agent.working_directory.join(it.path)));
            }
            RuntimeConfig::Acp(program)
            | RuntimeConfig::Codex(program)
            | RuntimeConfig::Qwen(program) => {
                found.push(program.path.as_path().to_owned());
            }
            RuntimeConfig::Sdk | RuntimeConfig::Cli | RuntimeConfig::Scripted(_) => {}
        }
        for server in agent.mcp_servers.values() {
            if let McpTransport::Stdio { command, args, .. } = &server.transport {
                let words = [command].into_iter().chain(args);
                let paths = words.map(|word| agent.working_directory.join(word));
                found.extend(paths.filter(|path| path.is_file()));
            }
        }
    }
    found.retain(|path| path.is_absolute());
    found
}

/// Adds the paths without links: a link could be used as a second name of a protected file.
fn with_real_names(paths: Vec<Utf8PathBuf>) -> Vec<Utf8PathBuf> {
    // A rule compares texts, and `./notify.sh` in it would match nothing.
    let mut paths: Vec<Utf8PathBuf> =
        paths.iter().map(|path| path.components().collect()).collect();
    let real: Vec<Utf8PathBuf> = paths.iter().filter_map(|path| canonicalize(path)).collect();
    paths.extend(real);
    paths.sort();
    paths.dedup();
    paths
}

/// Resolves links in a path. The file itself need not exist.
fn canonicalize(path: &Utf8Path) -> Option<Utf8PathBuf> {
    // A protected file may not exist yet, but its folder does.
    let folder = || Some(path.parent()?.canonicalize_utf8().ok()?.join(path.file_name()?));
    path.canonicalize_utf8().ok().or_else(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_the_records_is_protected_wherever_it_is() {
        let protects = |yaml: &str, variable: Option<&str>| {
            let read = |_: &Utf8Path| Ok(yaml.to_owned());
            let loaded = heeler_config::load("/f/heeler.yaml".into(), &read, &BTreeMap::new());
            let mut env = BTreeMap::from([("HOME".to_owned(), "/home/ann".to_owned())]);
            env.extend(variable.map(|path| ("PGPASSFILE".to_owned(), path.to_owned())));
            let context = CommandContext {
                config: Some("/f/heeler.yaml".into()),
                state_dir: "/f/.heeler".into(),
                home: None,
                is_state_dir_named: false,
                env,
                working_dir: "/f".into(),
                quiet: true,
            };
            let files = protected_files(&context, &loaded.unwrap(), "/home/ann/.heeler".into());
            let files = files.ok().unwrap();
            move |path: &str| {
                let has = |paths: &[Utf8PathBuf]| paths.iter().any(|it| it == path);
                (has(&files.unreadable), has(&files.unwritable))
            }
        };
        let there = "store: postgres://heeler@db.test/heeler\nagents: [{name: a}]\n";
        assert_eq!(protects(there, None)("/home/ann/.pgpass"), (true, true));
        assert_eq!(protects(there, Some("keys/pg"))("/f/keys/pg"), (true, true));
        assert_eq!(protects(there, None)("/f/.env"), (true, true));
        // A fleet in a file has no use for it, and no say over it.
        assert_eq!(protects("agents: [{name: a}]\n", None)("/home/ann/.pgpass"), (false, false));
    }
}
