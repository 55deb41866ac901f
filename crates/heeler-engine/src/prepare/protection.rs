//! The files that one run's tools must not write or read, whatever its permission mode and its tool
//! lists say.
//!
//! The fleet's own files come from the setup. This module adds what depends on the agent: the
//! instruction files that other agents load, and the parts of the state directory if the agent works
//! in a worktree inside it. Start at [`protect_run`].

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentConfig, RuntimeConfig, SettingSource};
use heeler_store::WRITER_LOCK_FILE;

use crate::claude_settings::setting_sources;

/// Files in a directory from which Claude takes instructions, settings and servers.
const INSTRUCTION_NAMES: [&str; 5] =
    ["CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", ".claude", ".mcp.json"];

/// Instruction files that Claude also loads from the directories above its own.
const INHERITED_NAMES: [&str; 2] = ["CLAUDE.md", "CLAUDE.local.md"];

/// Directory of the state directory in which agents work.
const WORKTREES: &str = "worktrees";

/// Names in the state directory that are protected even before they exist.
const STATE_NAMES: [&str; 24] = [
    "agent-sessions",
    "api-token",
    "backups",
    "daemon.json",
    "heeler.db",
    // SQLite and a rebuild would take the records from the next two.
    "heeler.db-journal",
    "heeler.db.rebuilt",
    "heeler.db-shm",
    "heeler.db-wal",
    WRITER_LOCK_FILE,
    "hooks",
    // A run depends on it.
    "host-lease.json",
    "jobs",
    "logs",
    "rebuild.json",
    "restore.lock",
    "runs",
    "schema",
    "sessions",
    "state.yaml",
    "store.json",
    "trash",
    "workspaces",
    ".gitignore",
];

/// Names in the state directory that hold secrets of the fleet.
const SECRET_STATE_NAMES: [&str; 5] =
    ["api-token", "backups", "heeler.db", "heeler.db-shm", "heeler.db-wal"];

/// Returns the state directories of other fleets of this user, by the daemon's environment.
pub type StateDirFinder = fn(&BTreeMap<String, String>) -> Vec<Utf8PathBuf>;

/// The fleet's own files that no agent may change or read. Paths are absolute and need not exist.
#[derive(Debug, Clone, Default)]
pub struct ProtectedFiles {
    /// Config, workflows, hook scripts and other files that decide what runs.
    pub unwritable: Vec<Utf8PathBuf>,
    /// Files with secrets: the `.env` that the config reads, and private keys that it names.
    pub unreadable: Vec<Utf8PathBuf>,
    /// State directory, under each of its names.
    pub state_dirs: Vec<Utf8PathBuf>,
    /// Finds what no sandboxed agent may see of other fleets. It is asked for each run, because
    /// fleets come and go.
    pub other_states: Option<StateDirFinder>,
    /// Directories of the fleet files, in which instruction files are protected.
    pub fleet_folders: Vec<Utf8PathBuf>,
    /// Files of the user from which every Claude that loads the user's settings takes instructions.
    pub user_files: Vec<Utf8PathBuf>,
}

/// Files that the tools of one run must not write or read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RunProtection {
    pub(super) protected: Vec<Utf8PathBuf>,
    /// Directories in which instruction files are protected at any depth.
    pub(super) instructed: Vec<Utf8PathBuf>,
    pub(super) unreadable: Vec<Utf8PathBuf>,
}

/// Returns the protected files of a run.
pub(super) fn protect_run(
    files: &ProtectedFiles,
    agent: &AgentConfig,
    agents: &[AgentConfig],
    working_directory: &Utf8Path,
) -> RunProtection {
    let mut protected: BTreeSet<Utf8PathBuf> = files.unwritable.iter().cloned().collect();
    let mut unreadable: BTreeSet<Utf8PathBuf> = files.unreadable.iter().cloned().collect();
    for state in &files.state_dirs {
        protected.extend(protect_state(state, working_directory));
        unreadable.extend(SECRET_STATE_NAMES.map(|name| state.join(name)));
    }
    let mut instructed = BTreeSet::new();
    if !agent.edit_instructions {
        protected.extend(instruction_files(files, agent, agents));
        protected.extend(files.user_files.iter().cloned());
        instructed = instructed_folders(agent, agents);
    }
    RunProtection {
        protected: protected.into_iter().collect(),
        instructed: instructed.into_iter().collect(),
        unreadable: unreadable.into_iter().collect(),
    }
}

/// Returns the state directory, or all of its parts but the worktree in which the agent works.
fn protect_state(state: &Utf8Path, working_directory: &Utf8Path) -> Vec<Utf8PathBuf> {
    let worktrees = state.join(WORKTREES);
    let Ok(own) = working_directory.strip_prefix(&worktrees) else { return vec![state.to_owned()] };
    let own = own.components().next().map(|part| worktrees.join(part.as_str()));
    let entries = |folder: &Utf8Path| {
        let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
        entries.map(|entry| entry.into_path()).collect::<Vec<_>>()
    };
    let parts = entries(state).into_iter().filter(|path| *path != worktrees);
    let others = entries(&worktrees).into_iter().filter(|path| Some(path) != own.as_ref());
    parts.chain(others).chain(STATE_NAMES.map(|name| state.join(name))).collect()
}

/// Returns the instruction files that someone else loads: people in the fleet's directories, and
/// other agents in theirs. An agent may edit those that only it loads itself.
fn instruction_files(
    files: &ProtectedFiles,
    agent: &AgentConfig,
    agents: &[AgentConfig],
) -> BTreeSet<Utf8PathBuf> {
    let others = other_claudes(agent, agents);
    let folders: BTreeSet<&Utf8Path> = files
        .fleet_folders
        .iter()
        .map(Utf8PathBuf::as_path)
        .chain(others.map(|other| other.working_directory.as_path()))
        .collect();
    let mut found = BTreeSet::new();
    for folder in folders.into_iter().flat_map(both_names) {
        found.extend(INSTRUCTION_NAMES.map(|name| folder.join(name)));
        let above = folder.ancestors().skip(1).filter(|it| !it.as_str().is_empty());
        found.extend(above.flat_map(|it| INHERITED_NAMES.map(|name| it.join(name))));
    }
    found
}

/// Returns the working directories of other agents whose Claude also loads the instructions of a
/// directory below, when it reads a file there.
fn instructed_folders(agent: &AgentConfig, agents: &[AgentConfig]) -> BTreeSet<Utf8PathBuf> {
    let loads = |it: &&AgentConfig| setting_sources(it).contains(&SettingSource::Project);
    let others = other_claudes(agent, agents).filter(loads);
    others.flat_map(|other| both_names(&other.working_directory)).collect()
}

fn other_claudes<'a>(
    agent: &'a AgentConfig,
    agents: &'a [AgentConfig],
) -> impl Iterator<Item = &'a AgentConfig> {
    let is_claude =
        |it: &&AgentConfig| matches!(it.runtime, RuntimeConfig::Sdk | RuntimeConfig::Cli);
    agents.iter().filter(|it| it.name != agent.name).filter(is_claude)
}

/// Returns a directory also without links: a link could be used as a second name.
fn both_names(folder: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> {
    folder.canonicalize_utf8().ok().into_iter().chain([folder.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(text: &str) -> Vec<AgentConfig> {
        let read = |_: &Utf8Path| Ok(text.to_owned());
        let loaded = heeler_config::load("/fleet/heeler.yaml".into(), &read, &Default::default());
        loaded.unwrap_or_else(|faults| panic!("{}", faults.summary())).agents
    }

    fn files() -> ProtectedFiles {
        ProtectedFiles {
            state_dirs: vec!["/fleet/.heeler".into()],
            fleet_folders: vec!["/fleet".into()],
            ..ProtectedFiles::default()
        }
    }

    #[test]
    fn instruction_files_of_others_are_protected_and_own_ones_are_not() {
        let agents = agents(
            "agents:\n  - {name: a, working_directory: /a/x}\n  - {name: b, working_directory: /b}\n  \
             - {name: c, working_directory: /c, runtime: command, command: date}\n  \
             - {name: d, working_directory: /a/x}\n  \
             - {name: e, working_directory: /e, edit_instructions: true}\n",
        );
        let protects = |index: usize, path: &str| {
            let run =
                protect_run(&files(), &agents[index], &agents, &agents[index].working_directory);
            run.protected.iter().any(|it| it == path)
        };
        assert!(protects(1, "/a/x/CLAUDE.md") && protects(1, "/a/CLAUDE.md"));
        assert!(protects(1, "/a/x/.claude") && protects(1, "/fleet/AGENTS.md"));
        assert!(!protects(1, "/b/CLAUDE.md"), "only this agent loads it");
        assert!(!protects(1, "/c/CLAUDE.md"), "a command loads nothing");
        assert!(protects(0, "/a/x/CLAUDE.md"), "another agent loads it too");
        assert!(!protects(4, "/a/x/CLAUDE.md"), "the config allows it");
        assert!(protects(4, "/fleet/.heeler"));
    }

    #[test]
    fn instructions_below_the_directories_of_others_are_protected() {
        let agents = agents(
            "agents:\n  - {name: a, working_directory: /a}\n  - {name: b, working_directory: /b}\n  \
             - {name: c, working_directory: /c, setting_sources: []}\n  \
             - {name: d, working_directory: /d, edit_instructions: true}\n",
        );
        let files = ProtectedFiles { user_files: vec!["/home/x".into()], ..files() };
        let run = |index: usize| protect_run(&files, &agents[index], &agents, "/".into());
        assert_eq!(run(0).instructed, ["/b", "/d"]);
        assert!(run(0).protected.contains(&"/home/x".into()));
        assert_eq!(run(3).instructed, Vec::<Utf8PathBuf>::new());
        assert!(!run(3).protected.contains(&"/home/x".into()), "the config allows it");
    }

    #[test]
    fn an_agent_in_a_worktree_writes_there_and_nowhere_else_in_the_state() {
        let temp = tempfile::tempdir().unwrap();
        let state = Utf8Path::from_path(temp.path()).unwrap().to_owned();
        for folder in ["worktrees/own/src", "worktrees/other", "jobs", "surprise"] {
            std::fs::create_dir_all(state.join(folder)).unwrap();
        }
        let files = ProtectedFiles { state_dirs: vec![state.clone()], ..ProtectedFiles::default() };
        let agents = agents("agents: [{name: a}]");
        let run = protect_run(&files, &agents[0], &agents, &state.join("worktrees/own/src"));
        let is_denied =
            |path: &str| run.protected.iter().any(|it| state.join(path).starts_with(it));
        for path in ["worktrees/other/x", "jobs/x", "surprise", "heeler.db", "api-token"] {
            assert!(is_denied(path), "{path}");
        }
        // Files from which records would be taken, were they there.
        for path in [
            "store.json",
            "heeler.db-journal",
            "heeler.db.rebuilt",
            "rebuild.json",
            "host-lease.json",
        ] {
            assert!(is_denied(path), "{path}");
        }
        assert!(!is_denied("worktrees/own/src/main.rs"));
        let run = protect_run(&files, &agents[0], &agents, "/elsewhere".into());
        assert!(run.protected.contains(&state));
        assert!(run.unreadable.contains(&state.join("api-token")));
    }
}
