//! What the dispatcher has watched: the files of schedules, and its config where that is wanted.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::Globs;
use heeler_model::{AgentName, TriggerType, Wanted};

use super::board::Board;
use crate::command::{Command, Handle, Input};
use crate::setup::Setup;
use crate::watching::{WatchSpec, Watched, Watching};

/// What begins the name under which config files are watched: no schedule has such a name.
const CONFIG: &str = "\u{1}config";

/// How the names of files end that workflows are made of.
const WORKFLOW_ENDINGS: [&str; 4] = ["yaml", "yml", "md", "txt"];

/// What started a job of a schedule that watches files.
const TRIGGER: &str = "watch";

/// What is watched, and for whom not just now.
#[derive(Default)]
pub(crate) struct Watches {
    watching: Option<Watching>,
    /// The config that this was made by.
    setup: Option<Arc<Setup>>,
    schedules: HashSet<(String, String)>,
    /// Schedules of which a job runs.
    paused: HashSet<(String, String)>,
}

impl Watches {
    /// Brings what is watched up to date with the config and with the jobs that run.
    pub(crate) fn update(&mut self, board: &Board, state_dir: &Utf8Path, inbox: &Handle) {
        if self.setup.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &board.setup)) {
            self.take_setup(&board.setup, state_dir, inbox);
        }
        let Some(watching) = &self.watching else { return };
        let of_run = |live: &super::board::Live| Some((live.agent.clone(), live.schedule.clone()?));
        let running: HashSet<(String, String)> = board
            .live
            .values()
            .filter_map(of_run)
            .filter(|schedule| self.schedules.contains(schedule))
            .collect();
        for (agent, schedule) in running.symmetric_difference(&self.paused) {
            let Ok(name) = agent.parse::<AgentName>() else { continue };
            match self.paused.contains(&(agent.clone(), schedule.clone())) {
                true => watching.resume(&name, schedule),
                false => watching.pause(&name, schedule),
            }
        }
        self.paused = running;
    }

    fn take_setup(&mut self, setup: &Arc<Setup>, state_dir: &Utf8Path, inbox: &Handle) {
        self.setup = Some(Arc::clone(setup));
        let agents = setup.loaded.agents.iter();
        let specs = agents.flat_map(|agent| {
            agent.schedules.iter().filter_map(move |schedule| WatchSpec::of(agent, schedule))
        });
        let mut specs: Vec<WatchSpec> = specs.collect();
        self.schedules =
            specs.iter().map(|spec| (spec.agent.to_string(), spec.schedule.clone())).collect();
        if setup.root().is_some_and(|fleet| fleet.watch_config) {
            let folder = setup.root().map(|fleet| fleet.workflows.folder.clone());
            specs.extend(config_specs(&setup.loaded.files, folder.as_deref()));
        }
        if specs.is_empty() && self.watching.is_none() {
            return;
        }
        let start = || {
            let inbox = inbox.clone();
            Watching::start(state_dir, Box::new(move |watched| tell(&inbox, watched)))
        };
        self.watching.get_or_insert_with(start).set(&specs);
    }
}

/// Returns what finds changes of config files: one for each folder that has any, and one for all
/// that may come into the workflow folder.
fn config_specs(files: &[Utf8PathBuf], workflows: Option<&Utf8Path>) -> Vec<WatchSpec> {
    let mut folders: BTreeMap<&Utf8Path, BTreeSet<&str>> = BTreeMap::new();
    let is_within = |file: &Utf8Path| workflows.is_some_and(|folder| file.starts_with(folder));
    for file in files.iter().filter(|file| !is_within(file)) {
        if let (Some(folder), Some(name)) = (file.parent(), file.file_name()) {
            folders.entry(folder).or_default().insert(name);
        }
    }
    let of_files = folders.into_iter().map(|(folder, names)| (folder, Globs::of_names(names)));
    let of_workflows = workflows.filter(|folder| folder.is_dir());
    let of_workflows = of_workflows.map(|folder| (folder, Globs::of_endings(&WORKFLOW_ENDINGS)));
    let spec = |(number, (folder, paths)): (usize, (&Utf8Path, Globs))| WatchSpec {
        agent: "heeler".parse().expect("a word is the name of an agent"),
        schedule: format!("{CONFIG}{number}"),
        root: folder.to_owned(),
        paths,
        ignore: Globs::default(),
        debounce: super::CONFIG_AT_REST,
    };
    of_files.chain(of_workflows).enumerate().map(spec).collect()
}

/// Passes on what was seen. If the dispatcher has ended, nobody wants to know.
fn tell(inbox: &Handle, watched: Watched) {
    match watched {
        Watched::Changed { schedule, .. } if schedule.starts_with(CONFIG) => {
            tracing::info!("the config has changed");
            let _heard = inbox.send(Command::Reload, Box::new(|_| {}));
        }
        Watched::Changed { agent, schedule, changed } => {
            tracing::debug!(%agent, schedule, ?changed, "files have changed");
            let trigger = TriggerType::from_word(TRIGGER);
            let wanted = Wanted { schedule: Some(schedule), trigger, ..Wanted::of(agent) };
            let _heard = inbox.input(Input::Fired { wanted: Box::new(wanted), changed });
        }
        Watched::Trouble { schedule, message, .. } if schedule.starts_with(CONFIG) => {
            tracing::warn!("cannot watch the config: {message}");
        }
        Watched::Trouble { agent, schedule, message } => {
            tracing::warn!(%agent, schedule, "cannot watch all files: {message}");
        }
    }
}
