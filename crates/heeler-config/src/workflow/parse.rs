//! Workflow files: from text to [`LoadedWorkflow`], or to a list of all faults.
//!
//! A run stores a frozen copy of the workflow with all its files, so that later changes do not
//! affect it. Start at [`load_workflow`].

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::definition::{SkillFile, Workflow, WorkflowInput};
use super::inputs;
use super::keys::{InputKeys, PhaseKeys, WorkflowKeys};
use super::references::{TemplateReferences, WorkflowNames};
use super::settings::WorkflowSettings;
use super::template::WorkflowTemplate;
use super::template_scope::NAMESPACES;
use super::translate::is_path;
use crate::AgentName;
use crate::policy::AgentRef;
use crate::reader::{ConfigReader, SourceSpan, normalize_path};
use crate::text::did_you_mean;
use crate::value::{ConfigValue as _, NonBlankText, SpannedValue};
use crate::yaml::{self, YamlKey, YamlKind, YamlNode, YamlScalar};
use crate::{AgentConfig, ConfigDialect, ConfigFaults, FILE_BYTES_MAX, FileReader};

/// Most phases of a workflow.
pub const PHASES_MAX: usize = 10_000;
/// Most agents listed in a fault about an unknown agent.
const AGENTS_LISTED_MAX: usize = 10;
/// Most files of one skill, besides its `SKILL.md`.
pub const SKILL_FILES_MAX: usize = 100;
/// Function that returns the files in a directory and its subdirectories.
pub type FolderLister<'a> = dyn Fn(&Utf8Path) -> Vec<Utf8PathBuf> + 'a;
/// Largest total text of a workflow's files, in bytes.
const WORKFLOW_BYTES_MAX: usize = 8 * FILE_BYTES_MAX;

/// Workflow with the files that it was loaded from.
#[derive(Debug, Clone)]
pub struct LoadedWorkflow {
    pub workflow: Workflow,
    /// Path of the workflow file.
    pub root: Utf8PathBuf,
    /// Directory of the fleet's workflow files.
    pub folder: Utf8PathBuf,
    /// All files that were read, including the workflow file, with their text.
    pub files: BTreeMap<Utf8PathBuf, String>,
    /// Warnings: legal content with a probably unintended effect.
    pub warnings: ConfigFaults,
}

/// Loads a workflow and all files that it names. `agents` are the fleet's.
pub fn load_workflow(
    root: &Utf8Path,
    (read, list): (&FileReader<'_>, &FolderLister<'_>),
    agents: &[AgentConfig],
    settings: &WorkflowSettings,
) -> Result<LoadedWorkflow, ConfigFaults> {
    // A workflow that is loaded now must pass all checks.
    let fleet = WorkflowLoadContext { agents, settings, is_frozen: false };
    WorkflowLoader::new(root, (read, list), fleet).load()
}

/// Frozen form of a workflow.
#[derive(Serialize, Deserialize)]
struct FrozenWorkflow {
    root: Utf8PathBuf,
    /// Directory of the fleet's workflow files. Earlier releases did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    folder: Option<Utf8PathBuf>,
    files: BTreeMap<Utf8PathBuf, String>,
    /// Agent of phases that name none.
    agent: Option<AgentName>,
}

/// Returns the SHA-256 of the frozen form, and the frozen form as JSON: everything a run needs.
pub fn freeze_workflow(loaded: &LoadedWorkflow) -> (String, String) {
    let frozen = FrozenWorkflow {
        root: loaded.root.clone(),
        folder: Some(loaded.folder.clone()),
        // All files, so that later changes of a prompt do not affect the run.
        files: loaded.files.clone(),
        agent: loaded.workflow.agent.clone(),
    };
    let json = serde_json::to_string(&frozen).expect("text and lists of text are JSON");
    let digest = Sha256::digest(json.as_bytes());
    (digest.iter().map(|byte| format!("{byte:02x}")).collect(), json)
}

/// Loads a frozen workflow. Names of agents that the fleet no longer has are kept: starting them
/// fails later.
pub fn load_frozen_workflow(json: &str, agents: &[AgentConfig]) -> Result<Workflow, ConfigFaults> {
    let frozen: FrozenWorkflow = serde_json::from_str(json).map_err(|error| {
        // The definition comes from the database and may be damaged.
        let mut reader = ConfigReader::new(ConfigDialect::Heeler, None);
        let file = reader.add_source("<definition>".into(), String::new());
        let message = format!("the definition of the run cannot be read: {error}");
        reader.error(SourceSpan { file, start: 0, end: 0 }, message);
        reader.finish().0
    })?;
    let read = |path: &Utf8Path| {
        // Only frozen files may be read: the real ones may have changed since.
        let text = frozen.files.get(path).cloned();
        text.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    };
    let list = |folder: &Utf8Path| {
        let inside = frozen.files.keys().filter(|path| path.starts_with(folder));
        inside.cloned().collect()
    };
    let settings = WorkflowSettings {
        // Prompts and skills are searched there too, from any subdirectory.
        folder: frozen
            .folder
            .clone()
            .unwrap_or_else(|| frozen.root.parent().unwrap_or(Utf8Path::new("")).to_owned()),
        // The default agent at the start of the run, not the one of the current config.
        agent: frozen.agent.clone(),
        ..WorkflowSettings::default()
    };
    let fleet = WorkflowLoadContext { agents, settings: &settings, is_frozen: true };
    WorkflowLoader::new(&frozen.root, (&read, &list), fleet).load().map(|loaded| loaded.workflow)
}

/// Context in which a workflow is loaded.
#[derive(Clone, Copy)]
pub(super) struct WorkflowLoadContext<'a> {
    pub(super) agents: &'a [AgentConfig],
    pub(super) settings: &'a WorkflowSettings,
    /// True for a frozen workflow. It was valid once, perhaps in an earlier release: unknown agents
    /// are accepted, and checks that were added since do not apply.
    pub(super) is_frozen: bool,
}

/// Loader of one workflow or cron file.
pub(super) struct WorkflowLoader<'a> {
    pub(super) reader: ConfigReader,
    pub(super) context: WorkflowLoadContext<'a>,
    read: &'a FileReader<'a>,
    list: &'a FolderLister<'a>,
    root: Utf8PathBuf,
    files: BTreeMap<Utf8PathBuf, String>,
    /// Source numbers of the files that were read.
    sources: BTreeMap<Utf8PathBuf, usize>,
    /// References of all templates and expressions, which are checked at the end.
    pub(super) references: Vec<TemplateReferences>,
}

impl<'a> WorkflowLoader<'a> {
    pub(super) fn new(
        root: &Utf8Path,
        (read, list): (&'a FileReader<'a>, &'a FolderLister<'a>),
        fleet: WorkflowLoadContext<'a>,
    ) -> WorkflowLoader<'a> {
        WorkflowLoader {
            reader: ConfigReader::new(ConfigDialect::Heeler, None),
            context: fleet,
            read,
            list,
            root: root.to_owned(),
            files: BTreeMap::new(),
            sources: BTreeMap::new(),
            references: Vec::new(),
        }
    }

    /// Returns the path of the loaded file.
    pub(super) fn root_path(&self) -> &Utf8Path {
        &self.root
    }

    /// Reads and parses the file itself.
    pub(super) fn load_root(&mut self) -> Option<YamlNode> {
        let root = self.root.clone();
        let text = (self.read)(&root);
        // The file gets a source even if it cannot be read, so that the fault has a place.
        let failure = text.as_ref().err().map(|error| format!("cannot read {root}: {error}"));
        let text = text.unwrap_or_default();
        let file = self.reader.add_source(&root, text.clone());
        if let Some(message) = failure {
            self.reader.error(SourceSpan { file, start: 0, end: 0 }, message);
            return None;
        }
        self.files.insert(root, text);
        let mut tree = yaml::parse(file, &mut self.reader)?;
        // An empty file lacks its keys, which the reader reports one by one.
        if tree.is_null() {
            tree.kind = YamlKind::Map(Vec::new());
        }
        Some(tree)
    }

    /// Completes the loading of a workflow without errors.
    pub(super) fn finish(self, workflow: Workflow) -> LoadedWorkflow {
        // A workflow with a fault may contain placeholders of its missing parts.
        debug_assert_eq!(
            self.reader.error_count(),
            0,
            "a workflow with an error is not handed out"
        );
        let (warnings, _) = self.reader.finish();
        let folder = self.context.settings.folder.clone();
        LoadedWorkflow { workflow, root: self.root, folder, files: self.files, warnings }
    }

    /// Completes the loading of a file with errors. Returns its path, the files read, and the
    /// faults.
    pub(super) fn into_faults(self) -> (Utf8PathBuf, Vec<Utf8PathBuf>, ConfigFaults) {
        let read = self.files.into_keys().collect();
        (self.root, read, self.reader.finish().0)
    }

    /// Loads the file and all files that it names.
    fn load(mut self) -> Result<LoadedWorkflow, ConfigFaults> {
        let tree = self.load_root();
        let workflow = tree.and_then(|tree| self.build_workflow(&tree));
        debug_assert!(workflow.is_some() || self.reader.error_count() > 0, "it is told why");
        // Faults in templates and references leave a workflow, which must not be used either.
        match workflow.filter(|_| self.reader.error_count() == 0) {
            Some(workflow) => Ok(self.finish(workflow)),
            None => Err(self.into_faults().2),
        }
    }

    /// Builds a workflow from a parsed file.
    pub(super) fn build_workflow(&mut self, tree: &YamlNode) -> Option<Workflow> {
        let keys = WorkflowKeys::read(tree, &mut self.reader);
        // If the keys cannot be read, try again with a placeholder name, to report all other faults
        // too. The reader reports duplicate faults once.
        let keys =
            keys.or_else(|| WorkflowKeys::read(&with_placeholder_name(tree), &mut self.reader))?;
        if keys.phases.0.len() > PHASES_MAX {
            let at = tree.get("phases").map_or(tree.at, |list| list.at);
            let message = format!("the workflow has more than {PHASES_MAX} phases");
            self.reader.error(at, message).expected("over the limit");
            return None;
        }
        // A reference may point to a phase that cannot be read.
        let lost = self.unreadable_phase_names(tree, &keys.phases);
        let inputs = self.inputs(&keys.inputs, tree.get("inputs"));
        let agent = self.default_agent(keys.agent.as_ref());
        let phases: Vec<PhaseKeys> =
            keys.phases.0.iter().map(|phase| phase.value.clone()).collect();
        // An agent that is named but unknown was reported; the phases need not repeat it.
        let has_agent = agent.is_some() || keys.agent.is_some();
        // Before the phases, because faults in templates depend on who waits for whom.
        let waits = self.resolve_dependencies(&phases, &lost);
        let made = self.phases(&phases, (has_agent, agent.as_ref()), &waits);
        let own = made.iter().flatten().filter_map(|phase| phase.agent.as_ref());
        let used: Vec<&AgentName> = own.chain(agent.as_ref()).collect();
        let github = self.github_rules(&keys, &used);
        let run_clone = self.run_clone(keys.workspace.as_ref(), &used);
        let intent = self.intent(&keys);
        if let Some(message) = &keys.final_message {
            self.references.push(TemplateReferences::new(
                message.at,
                message.value.references(),
                None,
            ));
        }
        self.check_references(&WorkflowNames {
            phases: &phases,
            dependencies: &waits,
            inputs: &inputs,
            unreadable: &lost,
        });
        Some(Workflow {
            name: keys.name.value,
            description: keys.description,
            agent,
            inputs,
            max_parallel: NonZeroU32::new(keys.max_parallel.get().unsigned_abs())?,
            budget: keys.budget,
            // Only now, so that the checks above have reported all other faults.
            phases: made?,
            final_message: keys.final_message.map(|message| message.value),
            github,
            run_clone,
            intent,
        })
    }

    fn inputs(
        &mut self,
        written: &IndexMap<String, InputKeys>,
        tree: Option<&YamlNode>,
    ) -> IndexMap<String, WorkflowInput> {
        for (key, _) in tree.map(YamlNode::entries).unwrap_or_default() {
            // Templates write the name without quotes.
            let is_name = is_path(&key.text) && !key.text.contains('.');
            if !is_name || NAMESPACES.contains(&key.text.as_str()) {
                let message = format!("invalid input name `{}`", key.text);
                self.reader.error(key.at, message).expected("expected a word such as `title`");
            }
        }
        let mut inputs = IndexMap::new();
        for (name, keys) in written {
            let mut fit = |value: &serde_json::Value, at: SourceSpan| {
                let fitting = inputs::coerce_value(keys.kind, value);
                if fitting.is_none() {
                    let message = format!("{value} is not a {}", keys.kind);
                    self.reader.error(at, message).expected(format!("expected a {}", keys.kind));
                }
                fitting
            };
            let options = keys
                .options
                .iter()
                .flat_map(|list| list.value.iter().map(move |option| (option, list.at)));
            let options: Vec<_> = options.filter_map(|(option, at)| fit(option, at)).collect();
            // The default is checked like an option, and like a value that a person gives.
            let default =
                keys.default.as_ref().and_then(|it| Some((fit(&it.value, it.at)?, it.at)));
            if let Some((value, at)) = &default
                && !options.is_empty()
                && !options.contains(value)
            {
                let message = format!("the default {value} is not one of the `options`");
                self.reader.error(*at, message).expected("expected one of them");
            }
            let (default, description) = (default.map(|it| it.0), keys.description.clone());
            inputs.insert(
                name.clone(),
                WorkflowInput { kind: keys.kind, description, default, options },
            );
        }
        inputs
    }

    fn default_agent(&mut self, written: Option<&SpannedValue<AgentRef>>) -> Option<AgentName> {
        match (written, &self.context.settings.agent, self.context.agents) {
            (Some(written), _, _) => self.resolve_agent(written),
            (None, Some(agent), _) => Some(agent.clone()),
            // A fleet with one agent leaves no choice.
            (None, None, [only]) => Some(only.name.clone()),
            _ => None,
        }
    }

    /// Finds an agent by its qualified name, or by its local name if that is unique.
    pub(super) fn resolve_agent(&mut self, written: &SpannedValue<AgentRef>) -> Option<AgentName> {
        let SpannedValue { value: AgentRef(name), at, .. } = written;
        let agents = self.context.agents;
        if agents.iter().any(|agent| agent.name == *name) {
            return Some(name.clone());
        }
        let local: Vec<&AgentConfig> =
            agents.iter().filter(|agent| agent.name.local() == name.as_str()).collect();
        let message = match local[..] {
            [one] => return Some(one.name.clone()),
            // The agent was valid when the run began; a later start may find it again.
            _ if self.context.is_frozen => return Some(name.clone()),
            [] => format!("there is no agent `{name}`"),
            _ => {
                let names: Vec<&str> = local.iter().map(|agent| agent.name.as_str()).collect();
                format!("`{name}` may be any of: {}", names.join(", "))
            }
        };
        let names: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
        let near = did_you_mean(name.as_str(), names.iter().copied());
        let help = match (near, names.len()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, 0) => "the fleet has no agents yet".to_owned(),
            // A long list would hide the fault itself.
            (None, count) if count > AGENTS_LISTED_MAX => {
                format!("the fleet has {} and more", names[..AGENTS_LISTED_MAX].join(", "))
            }
            (None, _) => format!("the fleet has {}", names.join(", ")),
        };
        let fault = self.reader.error(*at, message).expected("expected the name of an agent");
        if local.is_empty() {
            fault.help(help);
        }
        None
    }

    /// Loads a prompt: a template, or the path of a template file. `before` becomes its prefix.
    pub(super) fn load_prompt(
        &mut self,
        written: &SpannedValue<NonBlankText>,
        before: &str,
    ) -> Option<(WorkflowTemplate, SourceSpan)> {
        let text = written.value.0.trim();
        // A prompt of one word that ends like a file is certainly a path.
        let is_file = !text.contains(char::is_whitespace)
            && [".md", ".txt"].iter().any(|end| text.ends_with(end));
        let (text, at) = match is_file {
            false => (written.value.0.clone(), written.at),
            true => {
                // Beside the workflow first, so that a workflow can bring its own prompts.
                let tries = [self.sibling_path(text), self.sibling_path("prompts").join(text)];
                let in_folder = normalize_path(&self.context.settings.folder.join(text));
                let source =
                    self.load_file(written.at, text, &[&tries[..], &[in_folder]].concat())?;
                let text = self.reader.source(source).text.clone();
                let end = text.len();
                (text, SourceSpan { file: source, start: 0, end })
            }
        };
        match WorkflowTemplate::parse(&text) {
            Ok(template) => Some((template.with_prefix(before.to_owned()), at)),
            Err(error) => {
                let at = match is_file {
                    true => self.line_position(at, error.line.unwrap_or(1)),
                    false => at,
                };
                let message = format!("not a template: {error}");
                let help = "put text that is not a template between `{% raw %}` and `{% endraw %}`";
                self.reader.error(at, message).expected("expected a template").help(help);
                None
            }
        }
    }

    /// Returns the text of a skill without its front matter, and the files beside it.
    pub(super) fn load_skill(
        &mut self,
        name: &str,
        at: SourceSpan,
    ) -> Option<(String, Vec<SkillFile>)> {
        let path = format!("skills/{name}/SKILL.md");
        let folder = &self.context.settings.folder;
        let tries = [
            self.sibling_path(&path),
            normalize_path(&folder.join(&path)),
            normalize_path(&folder.parent().unwrap_or(folder).join(&path)),
        ];
        let source = self.load_file(at, &path, &tries)?;
        let text = self.reader.source(source).text.clone();
        let found = tries.iter().find(|path| self.sources.get(*path) == Some(&source));
        let folder = found.and_then(|path| path.parent()).map(Utf8Path::to_owned)?;
        let files = self.load_skill_files(name, &folder, at)?;
        // Front matter is for Claude's own skill loader.
        let body = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n"));
        Some((body.map_or(text.as_str(), |(_, body)| body).trim().to_owned(), files))
    }

    /// Loads the files beside the text of a skill: references, scripts and others.
    fn load_skill_files(
        &mut self,
        name: &str,
        folder: &Utf8Path,
        at: SourceSpan,
    ) -> Option<Vec<SkillFile>> {
        let mut paths = (self.list)(folder);
        paths.retain(|path| path.strip_prefix(folder).is_ok_and(|path| path != "SKILL.md"));
        paths.sort();
        if paths.len() > SKILL_FILES_MAX {
            let message = format!("the skill `{name}` has more than {SKILL_FILES_MAX} files");
            let fault = self.reader.error(at, message).expected("named here");
            fault.help(format!("remove files from {folder} that the agent does not need"));
            return None;
        }
        let mut files = Vec::new();
        for path in paths {
            let inside = path.strip_prefix(folder).expect("others were dropped above").to_string();
            // Named by its own path, because a skill's files have no place in the workflow file.
            let source = self.load_file(at, path.as_str(), std::slice::from_ref(&path))?;
            let text = self.reader.source(source).text.clone();
            files.push(SkillFile { skill: name.to_owned(), path: inside, text });
        }
        Some(files)
    }

    fn sibling_path(&self, path: &str) -> Utf8PathBuf {
        normalize_path(&self.root.parent().unwrap_or(Utf8Path::new("")).join(path))
    }

    /// Loads the first of several files that exists.
    fn load_file(&mut self, at: SourceSpan, name: &str, tries: &[Utf8PathBuf]) -> Option<usize> {
        for path in tries {
            // A prompt that several phases use is read and counted once.
            if let Some(source) = self.sources.get(path) {
                return Some(*source);
            }
            match (self.read)(path) {
                Ok(text) => return self.add_file(at, path, text),
                // Only a missing file lets the search go on; any other error would hide the right
                // file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let message = format!("cannot read {path}: {error}");
                    self.reader.error(at, message).expected("named here");
                    return None;
                }
            }
        }
        let fault = self.reader.error(at, format!("there is no file {name}"));
        fault.expected("named here").help(format!("searched: {}", join_paths(tries)));
        None
    }

    fn add_file(&mut self, at: SourceSpan, path: &Utf8Path, text: String) -> Option<usize> {
        // The frozen copy is stored with each version of the workflow, so its size is limited.
        let bytes: usize = self.files.values().map(String::len).sum();
        if bytes + text.len() > WORKFLOW_BYTES_MAX {
            let message =
                format!("the files of the workflow have more than {WORKFLOW_BYTES_MAX} bytes");
            self.reader.error(at, message).expected("over the limit");
            return None;
        }
        let source = self.reader.add_source(path, text.clone());
        self.files.insert(path.to_owned(), text);
        self.sources.insert(path.to_owned(), source);
        Some(source)
    }

    /// Returns the position of a line in a file.
    fn line_position(&self, at: SourceSpan, line: usize) -> SourceSpan {
        let text = &self.reader.source(at.file).text;
        // Lines count from one.
        let before: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        let length = text[before..].lines().next().unwrap_or_default().len();
        SourceSpan { file: at.file, start: before, end: before + length }
    }
}

/// Returns the tree with a placeholder name, so that the rest can be checked.
fn with_placeholder_name(tree: &YamlNode) -> YamlNode {
    let mut tree = tree.clone();
    if let YamlKind::Map(entries) = &mut tree.kind {
        let scalar = YamlScalar { text: "unnamed".to_owned(), plain: true, template: None };
        // The position is never shown: a placeholder has no faults.
        let name = YamlNode { at: tree.at, kind: YamlKind::Scalar(scalar) };
        entries.retain(|(key, _)| key.text != "name");
        entries.push((YamlKey { text: "name".to_owned(), at: tree.at }, name));
    }
    tree
}

fn join_paths(paths: &[Utf8PathBuf]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for path in paths {
        // The folders may be the same, and a path listed twice looks like an error.
        if !names.contains(&path.as_str()) {
            names.push(path.as_str());
        }
    }
    names.join(", ")
}
