//! Config loader: reads the fleet file, agent files and nested fleets, and applies defaults and
//! overrides.
//!
//! Trees are merged as written, before built-in defaults are added, so that a partial block changes
//! only the keys it contains. Every node keeps its source position, so a fault in a default or an
//! override is shown there. Start at [`load`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::LazyLock;

use camino::{Utf8Path, Utf8PathBuf};

use crate::agent::{AgentConfig, AgentKeys, AgentSource};
use crate::docker::FLEET_ONLY_KEYS;
use crate::fault::ConfigFaults;
use crate::file_archive::check_file_archive;
use crate::fleet::{AgentEntry, AgentFileEntry, FleetConfig, FleetEntry, FleetKeys};
use crate::github::AgentTokenGrant;
use crate::hooks::HooksKeys;
use crate::host_choice::{self, HostChoice};
use crate::interpolate::interpolate;
use crate::loaded_config::{LoadedConfig, WorkflowReference};
use crate::names::LocalName;
use crate::notify_person::resolve_chat_people;
use crate::policy::{self, AgentRef};
use crate::reader::{ConfigDialect, ConfigReader, FileReader, SourceSpan, normalize_path};
use crate::runtime::RuntimeConfig;
use crate::schedule::ScheduleTrigger;
use crate::script_source::{self, ScriptSource};
use crate::shape::{ValueShape, canonicalize_keys};
use crate::spawn_check::{self, WrittenSpawn};
use crate::unused_keys;
use crate::value::{ConfigValue as _, SpannedValue};
use crate::yaml::{self, YamlKey, YamlKind, YamlNode, merge_trees};
use crate::{hide_secrets, notify, schedule, session, webhook_schedule};

/// Maximum nesting depth of fleets.
pub const FLEET_DEPTH_MAX: usize = 16;
/// Maximum number of fleets and agents in one load; a file used twice counts twice.
pub const MEMBERS_MAX: usize = 10_000;
/// Memory limit for the files of one load and for its members with their defaults, in bytes.
pub const LOAD_BYTES_MAX: usize = 256 << 20;

/// Supported version of the config format.
const FORMAT_VERSION: u32 = 1;

static FLEET_SHAPE: LazyLock<ValueShape> = LazyLock::new(FleetKeys::shape);
static AGENT_SHAPE: LazyLock<ValueShape> = LazyLock::new(AgentKeys::shape);

/// Loads a fleet file and everything it references.
///
/// `root` should be absolute: paths in the result are derived from it. Files are read only through
/// `read`. `env` holds the variables for `${NAME}`, including those of `.env`. The file name
/// determines the dialect. Returns either a valid config or every fault.
pub fn load(
    root: &Utf8Path,
    read: &FileReader<'_>,
    env: &BTreeMap<String, String>,
) -> Result<LoadedConfig, ConfigFaults> {
    // The dialect depends on the root file alone: a fleet is written in one of them.
    let reader =
        ConfigReader::new(ConfigDialect::from_file_name(root), env.get("HOME").map(String::as_str));
    let mut loader = ConfigLoader {
        read,
        env,
        reader,
        trees: HashMap::new(),
        fleets: Vec::new(),
        agents: Vec::new(),
        names: HashSet::new(),
        spawns: Vec::new(),
        hooks: Vec::new(),
        channel_names: Vec::new(),
        host_choices: Vec::new(),
        workflow_agent: None,
        workflow_references: Vec::new(),
        agent_tokens: Vec::new(),
        members_left: MEMBERS_MAX,
        bytes_left: LOAD_BYTES_MAX,
    };
    loader.load_root(root);
    // After all files, because an agent may name one that is defined later.
    loader.resolve_spawns();
    loader.set_own_login();
    loader.assign_agent_tokens();
    loader.resolve_chat_people();
    let ConfigLoader { reader, mut fleets, mut agents, workflow_references, .. } = loader;
    // Warnings do not refuse a config.
    let refused = reader.error_count() > 0;
    let (faults, files) = reader.finish();
    if refused {
        return Err(faults);
    }
    // Only the rendered form is redacted; the values themselves stay usable.
    hide_secrets::hide_secrets(&mut fleets, &mut agents, env);
    let secrets = hide_secrets::declared_secrets(&fleets, &agents, env);
    agents.iter_mut().for_each(|agent| agent.fleet_secrets = secrets.clone());
    let (workflows, crons, faulty) = (Vec::new(), Vec::new(), Vec::new());
    Ok(LoadedConfig {
        fleets,
        agents,
        files,
        warnings: faults,
        workflows,
        crons,
        faulty_files: faulty,
        workflow_references,
    })
}

struct ConfigLoader<'a> {
    read: &'a FileReader<'a>,
    env: &'a BTreeMap<String, String>,
    reader: ConfigReader,
    /// Parsed files; `None` for a file with faults that left no tree.
    trees: HashMap<Utf8PathBuf, Option<YamlNode>>,
    fleets: Vec<FleetConfig>,
    agents: Vec<AgentConfig>,
    /// Permissions of agents' tokens for GitHub.
    agent_tokens: Vec<AgentTokenGrant>,
    /// Names in use. Fleet names end with a dot.
    names: HashSet<String>,
    /// Agents that may start others.
    spawns: Vec<WrittenSpawn>,
    /// Hooks as written, by index of the agent, with its fleet.
    hooks: Vec<(usize, String, HooksKeys)>,
    /// Channels that agents name in `notify`.
    channel_names: Vec<SpannedValue<String>>,
    /// Hosts that agents name.
    host_choices: Vec<SpannedValue<HostChoice>>,
    /// Default agent of workflows, as named by the root fleet.
    workflow_agent: Option<SpannedValue<AgentRef>>,
    /// Workflows that schedules name. They are checked when the workflows are loaded.
    workflow_references: Vec<WorkflowReference>,
    members_left: usize,
    bytes_left: usize,
}

/// Fleet being loaded, with its path and inherited defaults.
struct FleetContext<'c> {
    path: String,
    defaults: Option<YamlNode>,
    /// Fleet files from the root to this one.
    file_chain: &'c [Utf8PathBuf],
}

impl ConfigLoader<'_> {
    fn load_root(&mut self, file: &Utf8Path) {
        // A failure is reported as a fault, so that the caller gets all problems in one form.
        let text = (self.read)(file);
        let failure = text.as_ref().err().map(|error| format!("cannot read {file}: {error}"));
        let source = self.reader.add_source(file, text.unwrap_or_default());
        if let Some(message) = failure {
            self.reader.error(SourceSpan { file: source, start: 0, end: 0 }, message);
            return;
        }
        let tree = self.parse_tree(source, &FLEET_SHAPE);
        if let Some(tree) = tree {
            let place = FleetContext {
                path: String::new(),
                defaults: None,
                // Normalized, because the check for cycles compares paths.
                file_chain: &[normalize_path(file)],
            };
            self.load_fleet(tree, file, &place);
        }
    }

    /// Reads and parses a file referenced by another file.
    fn load_file(
        &mut self,
        named: &SpannedValue<Utf8PathBuf>,
        shape: &ValueShape,
    ) -> Option<YamlNode> {
        let path = &named.value;
        // A file used twice is parsed once, and its faults are reported once.
        if let Some(tree) = self.trees.get(path) {
            return tree.clone();
        }
        let tree = self.read_source(named).and_then(|source| self.parse_tree(source, shape));
        self.trees.insert(path.to_owned(), tree.clone());
        tree
    }

    /// Reads the text of a file referenced by another file.
    fn read_source(&mut self, named: &SpannedValue<Utf8PathBuf>) -> Option<usize> {
        let SpannedValue { value: path, at, template } = named;
        match (self.read)(path) {
            Ok(text) => {
                // Counted before it is kept: many references to large files must not fill the
                // memory.
                self.count_bytes(*at, text.len())?;
                Some(self.reader.add_source(path, text))
            }
            Err(error) => {
                // The path may come from a variable with a secret, so only its name is shown.
                let name = match template {
                    Some(template) => format!("`{template}`"),
                    None => path.to_string(),
                };
                let message = format!("cannot read {name}: {error}");
                self.reader.error(*at, message).expected("named here");
                None
            }
        }
    }

    /// Reads the script of an agent if it is in a separate file.
    fn load_script(
        &mut self,
        agent: &mut AgentConfig,
        key: Option<SpannedValue<ScriptSource>>,
    ) -> Option<()> {
        // Steps that stand in the config itself are read already.
        let Some(SpannedValue { value: ScriptSource::File(path), at, template }) = key else {
            return Some(());
        };
        if let RuntimeConfig::Scripted(steps) = &mut agent.runtime {
            let source = self.read_source(&SpannedValue { value: path, at, template })?;
            *steps = script_source::parse_script_source(source, &mut self.reader)?;
        }
        Some(())
    }

    fn parse_tree(&mut self, source: usize, shape: &ValueShape) -> Option<YamlNode> {
        let mut tree = yaml::parse(source, &mut self.reader)?;
        // An empty file is a config without keys, not a fault.
        if tree.is_null() {
            tree.kind = YamlKind::Map(Vec::new());
        }
        // Before the aliases, because only texts contain variables.
        interpolate(&mut tree, self.env, &mut self.reader);
        // Before any merge: an override may use another spelling of the same key.
        canonicalize_keys(&mut tree, shape, &mut self.reader);
        Some(tree)
    }

    fn count_member(&mut self, at: SourceSpan) -> Option<()> {
        if let Some(left) = self.members_left.checked_sub(1) {
            self.members_left = left;
            return Some(());
        }
        let message = format!("there are more than {MEMBERS_MAX} agents and fleets");
        self.reader.error(at, message).expected("this one is too many");
        None
    }

    fn count_bytes(&mut self, at: SourceSpan, bytes: usize) -> Option<()> {
        if let Some(left) = self.bytes_left.checked_sub(bytes) {
            self.bytes_left = left;
            return Some(());
        }
        // The rest is not loaded either, so one fault is enough.
        self.bytes_left = 0;
        let message = format!("the config has more than {LOAD_BYTES_MAX} bytes with its defaults");
        self.reader.error(at, message).expected("this is too much");
        None
    }

    fn load_fleet(&mut self, tree: YamlNode, file: &Utf8Path, place: &FleetContext<'_>) {
        unused_keys::warn_fleet(&tree, &mut self.reader);
        let Some(keys) = FleetKeys::read(&tree, &mut self.reader) else { return };
        self.check_version(&keys.version);
        if let Some(github) = &keys.github {
            github.check(&mut self.reader);
            if self.fleets.is_empty() {
                self.reader.work_access = github.work_access();
                self.agent_tokens = github.agent_permissions();
            }
        }
        if let Some(notify) = &keys.notify {
            notify.check(&mut self.reader);
            let has_dashboard = keys.web.as_ref().is_none_or(|web| web.enabled);
            notify.check_dashboard(has_dashboard, &mut self.reader);
        }
        // The defaults of this fleet are merged last and win over inherited ones.
        let own = keys.defaults.as_ref().map(|defaults| defaults.0.clone());
        let inherited = merge_optional(place.defaults.clone(), fleet_wide_defaults(&tree));
        let defaults = merge_optional(inherited, own);
        // Only the root fleet has workflows.
        if self.fleets.is_empty() {
            self.workflow_agent = keys.workflows.as_ref().and_then(|it| it.agent.clone());
            let (archive, store) = (keys.archive.as_ref(), keys.store.as_ref());
            check_file_archive(archive, store, &mut self.reader);
        }
        self.fleets.push(FleetConfig::new(
            place.path.clone(),
            file.to_owned(),
            keys.clone(),
            &tree,
        ));
        for entry in &keys.agents {
            if self.bytes_left == 0 {
                // The config is already rejected for its size. Continuing would copy the defaults
                // for every remaining agent.
                return;
            }
            self.load_agent(entry, file, place, defaults.clone());
        }
        for entry in &keys.fleets {
            if self.bytes_left == 0 {
                return;
            }
            self.load_sub_fleet(entry, place, defaults.clone());
        }
    }

    fn check_version(&mut self, version: &SpannedValue<std::num::NonZeroU32>) {
        // herdctl's versions have their own meaning, and its files are accepted as they are.
        if version.value.get() != FORMAT_VERSION && self.reader.dialect == ConfigDialect::Heeler {
            let message = format!("version {} of the config format is not known", version.value);
            self.reader.error(version.at, message).expected(format!("expected {FORMAT_VERSION}"));
        }
    }

    fn load_agent(
        &mut self,
        entry: &AgentEntry,
        fleet_file: &Utf8Path,
        place: &FleetContext<'_>,
        defaults: Option<YamlNode>,
    ) -> Option<()> {
        let (tree, file) = match entry {
            AgentEntry::Inline(tree) => (tree.clone(), fleet_file.to_owned()),
            AgentEntry::File(entry) => (self.load_agent_file(entry)?, entry.path.value.clone()),
        };
        // Counted before the merge, which is what costs memory.
        self.count_member(tree.at)?;
        // The list form must become a map first, or an override would replace all schedules.
        let mut tree = self.normalize_schedules(tree);
        if let AgentEntry::File(AgentFileEntry { overrides: Some(overrides), .. }) = entry {
            let mut overrides = overrides.0.clone();
            canonicalize_keys(&mut overrides, &AGENT_SHAPE, &mut self.reader);
            tree = merge_trees(tree, self.normalize_schedules(overrides));
        }
        let tree = match defaults {
            Some(defaults) => merge_trees(defaults, tree),
            None => tree,
        };
        let tree = inherit_sessions(tree);
        // The defaults are part of each agent now, so their size counts again.
        self.count_bytes(tree.at, yaml::estimate_bytes(&tree))?;
        let keys = AgentKeys::read(&tree, &mut self.reader)?;
        let origin = AgentSource { fleet: &place.path, file: &file, tree: &tree };
        // A duplicate name is shown where the agent is named, as its file may be used twice.
        let named_at = match entry {
            AgentEntry::File(entry) => entry.path.at,
            AgentEntry::Inline(tree) => keys.name.as_ref().map_or(tree.at, |name| name.at),
        };
        let (script, hooks) = (keys.script.clone(), keys.hooks.clone());
        let spawn = WrittenSpawn {
            agent: self.agents.len(),
            fleet: place.path.clone(),
            agents: keys.spawn.agents.clone(),
            elevate: keys.spawn.elevate.clone(),
        };
        self.channel_names.extend(keys.notify.clone().into_iter().flatten());
        self.host_choices.extend(keys.host.clone());
        let references = webhook_schedule::workflow_references(&keys.schedules, &self.reader);
        let mut agent = AgentConfig::check(keys, &origin, &mut self.reader)?;
        // After the check, which tells whether the agent is scripted at all.
        self.load_script(&mut agent, script)?;
        if !self.names.insert(agent.name.to_string()) {
            let message = format!("there are two agents `{}`", agent.name);
            self.reader.error(named_at, message).expected("expected another name");
        }
        // The names can be resolved only when all agents are known.
        if !(spawn.agents.is_empty() && spawn.elevate.is_empty()) {
            self.spawns.push(spawn);
        }
        let named =
            |(schedule, fault)| WorkflowReference { agent: agent.name.clone(), schedule, fault };
        self.workflow_references.extend(references.into_iter().map(named));
        self.hooks.push((self.agents.len(), place.path.clone(), hooks));
        self.agents.push(agent);
        Some(())
    }

    /// Tells all webhooks the account under which the fleet acts: its own events start nothing.
    fn set_own_login(&mut self) {
        let github = self.fleets.first().and_then(|fleet| fleet.github.as_ref());
        let Some(login) = github.map(|github| github.bot.clone()) else { return };
        for schedule in self.agents.iter_mut().flat_map(|agent| &mut agent.schedules) {
            if let ScheduleTrigger::Webhook(rules) = &mut schedule.trigger {
                rules.own_login = Some(login.clone());
            }
        }
    }

    /// Replaces names of people in the chats of agents and in the chats of `notify` by their IDs.
    fn resolve_chat_people(&mut self) {
        let notify = self.fleets.first_mut().and_then(|fleet| fleet.notify.as_mut());
        let Some(notify) = notify.filter(|notify| !notify.people.is_empty()) else { return };
        notify.resolve_approvers();
        for chat in self.agents.iter_mut().filter_map(|agent| agent.chat.as_mut()) {
            resolve_chat_people(chat, &notify.people);
        }
    }

    /// Gives agents their permissions on GitHub, once all agents are known.
    fn assign_agent_tokens(&mut self) {
        // An agent with faults is missing.
        let is_complete = self.reader.error_count() == 0;
        for grant in std::mem::take(&mut self.agent_tokens) {
            let AgentTokenGrant { agent: name, permissions, at } = grant;
            match self.agents.iter_mut().find(|agent| agent.name.as_str() == name) {
                Some(agent) => agent.github_token = permissions,
                None if is_complete => {
                    let message = format!("there is no agent `{name}`");
                    self.reader.error(at, message).expected("the name of an agent");
                }
                None => {}
            }
        }
    }

    /// Resolves references between agents, once all agents are known.
    fn resolve_spawns(&mut self) {
        if self.reader.error_count() > 0 {
            // Agents with faults are missing from `names`, so lookups would report false faults.
            return;
        }
        for (agent, fleet, written) in std::mem::take(&mut self.hooks) {
            let (names, reader) = (&self.names, &mut self.reader);
            let hooks = &mut self.agents[agent].hooks;
            hooks.resolve_permissions(&written, |agents| {
                policy::resolve_agents(agents, &fleet, names, reader)
            });
        }
        let notify = self.fleets.first().and_then(|fleet| fleet.notify.as_ref());
        notify::check_channel_names(&self.channel_names, notify, &mut self.reader);
        let store = self.fleets.first().and_then(|fleet| fleet.store.as_ref());
        host_choice::check_host_choices(&self.host_choices, store, &mut self.reader);
        spawn_check::resolve_spawns(
            &std::mem::take(&mut self.spawns),
            &mut self.agents,
            &self.names,
            &mut self.reader,
        );
        if let (Some(written), Some(root)) = (self.workflow_agent.take(), self.fleets.first_mut()) {
            let found = policy::resolve_agents(&[written], "", &self.names, &mut self.reader);
            root.workflows.agent = found.into_iter().next();
        }
    }

    fn load_agent_file(&mut self, entry: &AgentFileEntry) -> Option<YamlNode> {
        let tree = self.load_file(&entry.path, &AGENT_SHAPE)?;
        unused_keys::warn_agent(&tree, &mut self.reader);
        // Reported here, where the message can say that an agent was expected.
        if !matches!(tree.kind, YamlKind::Map(_)) {
            return crate::value::report_expected(&mut self.reader, &tree, "an agent");
        }
        let docker = tree.get("docker").map(YamlNode::entries).unwrap_or_default();
        // These keys would let an agent leave its container.
        for (key, _) in docker.iter().filter(|(key, _)| FLEET_ONLY_KEYS.contains(&&*key.text)) {
            self.reader
                .error(key.at, format!("only the fleet file may set `docker.{}`", key.text))
                .expected("an agent's file may not")
                .help("move it to `defaults` or to the `overrides` of this agent");
        }
        Some(tree)
    }

    /// Converts all accepted forms of schedules into one, so that merging applies to all of them.
    fn normalize_schedules(&mut self, mut tree: YamlNode) -> YamlNode {
        if let YamlKind::Map(entries) = &mut tree.kind {
            for (_, schedules) in entries.iter_mut().filter(|(key, _)| key.text == "schedules") {
                schedule::normalize_schedules(schedules, &mut self.reader);
            }
        }
        tree
    }

    fn load_sub_fleet(
        &mut self,
        entry: &SpannedValue<FleetEntry>,
        place: &FleetContext<'_>,
        defaults: Option<YamlNode>,
    ) -> Option<()> {
        let SpannedValue { value: file, at, .. } = &entry.value.path;
        // Before the file is loaded: a cycle would never end.
        self.check_cycle(file, *at, place.file_chain)?;
        self.count_member(*at)?;
        let mut tree = self.load_file(&entry.value.path, &FLEET_SHAPE)?;
        if let Some(overrides) = &entry.value.overrides {
            let mut overrides = overrides.0.clone();
            canonicalize_keys(&mut overrides, &FLEET_SHAPE, &mut self.reader);
            tree = merge_trees(tree, overrides);
        }
        self.count_bytes(*at, yaml::estimate_bytes(&tree))?;
        let name = self.resolve_fleet_name(&entry.value, &tree)?;
        let path = match place.path.as_str() {
            "" => name,
            parent => format!("{parent}.{name}"),
        };
        // The dot keeps fleets apart from agents of the same name.
        if !self.names.insert(format!("{path}.")) {
            let message = format!("there are two fleets `{path}`");
            let help = "give one of them another `name` here";
            self.reader.error(*at, message).expected("expected another name").help(help);
            return None;
        }
        let mut chain = place.file_chain.to_vec();
        chain.push(file.clone());
        let file = file.clone();
        self.load_fleet(tree, &file, &FleetContext { path, defaults, file_chain: &chain });
        Some(())
    }

    fn check_cycle(
        &mut self,
        file: &Utf8Path,
        at: SourceSpan,
        chain: &[Utf8PathBuf],
    ) -> Option<()> {
        let message = if let Some(start) = chain.iter().position(|known| known == file) {
            // Only the part of the chain that forms the cycle.
            let mut names: Vec<&str> = chain[start..].iter().map(|path| path.as_str()).collect();
            names.push(file.as_str());
            format!("the fleet contains itself: {}", names.join(" -> "))
        } else if chain.len() >= FLEET_DEPTH_MAX {
            format!("fleets are nested deeper than {FLEET_DEPTH_MAX}")
        } else {
            return Some(());
        };
        self.reader.error(at, message).expected("remove this entry");
        None
    }

    /// Returns the fleet's name: from the reference, else from its file, else from its directory.
    fn resolve_fleet_name(&mut self, entry: &FleetEntry, tree: &YamlNode) -> Option<String> {
        if let Some(name) = &entry.name {
            return Some(name.value.to_string());
        }
        // The tree includes the overrides, so they may rename the fleet.
        if let Some(name) = tree.get("fleet").and_then(|fleet| fleet.get("name")) {
            return LocalName::read(name, &mut self.reader).map(|name| name.to_string());
        }
        let folder = entry.path.value.parent().and_then(Utf8Path::file_name).unwrap_or_default();
        if folder.parse::<LocalName>().is_err() {
            // The folder may come from a variable, whose value is not shown.
            let folder = match &entry.path.template {
                Some(template) => format!("folder of `{template}`"),
                None => format!("folder `{folder}`"),
            };
            let message = format!("the {folder} is not a valid fleet name");
            self.reader.error(entry.path.at, message).expected("add a `name` beside the path");
            return None;
        }
        Some(folder.to_owned())
    }
}

/// Returns the fleet keys that apply to agents, as defaults with lower precedence than `defaults`.
fn fleet_wide_defaults(tree: &YamlNode) -> Option<YamlNode> {
    // These two are keys of the fleet itself, but mean the same as in `defaults`.
    let wide = |key: &YamlKey| matches!(key.text.as_str(), "docker" | "timezone");
    let entries: Vec<(YamlKey, YamlNode)> =
        tree.entries().iter().filter(|(key, _)| wide(key)).cloned().collect();
    (!entries.is_empty()).then_some(YamlNode { at: tree.at, kind: YamlKind::Map(entries) })
}

/// Completes the `session` of each schedule with the settings of the agent's session.
fn inherit_sessions(mut tree: YamlNode) -> YamlNode {
    let agent = tree.get("session").cloned();
    let YamlKind::Map(entries) = &mut tree.kind else { return tree };
    let schedules = entries.iter_mut().find(|(key, _)| key.text == "schedules");
    let Some(YamlKind::Map(schedules)) = schedules.map(|(_, node)| &mut node.kind) else {
        return tree;
    };
    for (_, schedule) in schedules {
        let YamlKind::Map(keys) = &mut schedule.kind else { continue };
        for (_, own) in keys.iter_mut().filter(|(key, _)| key.text == "session") {
            // Moved out, because the merge takes the node and the map is borrowed.
            let written = std::mem::replace(&mut own.kind, YamlKind::Null);
            *own = session::inherit_session(agent.as_ref(), YamlNode { at: own.at, kind: written });
        }
    }
    tree
}

fn merge_optional(base: Option<YamlNode>, top: Option<YamlNode>) -> Option<YamlNode> {
    match (base, top) {
        (Some(base), Some(top)) => Some(merge_trees(base, top)),
        (base, top) => top.or(base),
    }
}
