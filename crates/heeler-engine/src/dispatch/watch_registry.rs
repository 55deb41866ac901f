//! File watches of the dispatcher: `watch` schedules, and the config if it asks for it.
//!
//! Start at [`WatchRegistry::update`].

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::GlobList;
use heeler_model::{AgentName, JobRequest, TriggerType};

use super::dispatcher_state::DispatcherState;
use crate::command::DaemonCommand;
use crate::daemon_handle::DaemonHandle;
use crate::dispatch_input::DispatchInput;
use crate::file_watcher::{FileWatcher, WatchEvent, WatchSpec};
use crate::setup::DaemonSetup;

/// Time that config files must stay unchanged before they are reloaded.
const CONFIG_DEBOUNCE: Duration = Duration::from_millis(500);

/// Prefix of the watch IDs for config files. No schedule has such a name.
const CONFIG_WATCH_PREFIX: &str = "\u{1}config";

/// Extensions of files that belong to workflows.
const WORKFLOW_ENDINGS: [&str; 4] = ["yaml", "yml", "md", "txt"];

/// Trigger of jobs created by `watch` schedules.
const WATCH_TRIGGER: &str = "watch";

/// Active file watches, with those that are paused.
#[derive(Default)]
pub(crate) struct WatchRegistry {
    watcher: Option<FileWatcher>,
    /// Config from which the watches were made.
    setup: Option<Arc<DaemonSetup>>,
    schedules: HashSet<(String, String)>,
    /// Schedules with a running job.
    paused: HashSet<(String, String)>,
}

impl WatchRegistry {
    /// Updates the watches for the current config and running jobs.
    pub(crate) fn update(
        &mut self,
        board: &DispatcherState,
        state_dir: &Utf8Path,
        inbox: &DaemonHandle,
    ) {
        // A reload always creates a new `Arc`, so comparing pointers is exact.
        if self.setup.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &board.setup)) {
            self.replace_setup(&board.setup, state_dir, inbox);
        }
        let Some(watching) = &self.watcher else { return };
        let of_run = |live: &heeler_model::fleet::UnfinishedRun| {
            Some((live.agent.clone(), live.schedule.clone()?))
        };
        let running: HashSet<(String, String)> = board
            .fleet
            .runs()
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

    fn replace_setup(
        &mut self,
        setup: &Arc<DaemonSetup>,
        state_dir: &Utf8Path,
        inbox: &DaemonHandle,
    ) {
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
        if specs.is_empty() && self.watcher.is_none() {
            return;
        }
        let start = || {
            let inbox = inbox.clone();
            FileWatcher::start(state_dir, Box::new(move |watched| forward_event(&inbox, watched)))
        };
        // The watcher stays even if nothing is left to watch, so that it drops its old watches.
        self.watcher.get_or_insert_with(start).set_specs(&specs);
    }
}

/// Returns the watch specs for config files: one for each directory that has any, and one for the
/// workflow directory.
fn config_specs(files: &[Utf8PathBuf], workflows: Option<&Utf8Path>) -> Vec<WatchSpec> {
    let mut folders: BTreeMap<&Utf8Path, BTreeSet<&str>> = BTreeMap::new();
    // The workflow folder has a watch of its own, and a file in two watches would reload twice.
    let is_within = |file: &Utf8Path| workflows.is_some_and(|folder| file.starts_with(folder));
    for file in files.iter().filter(|file| !is_within(file)) {
        if let (Some(folder), Some(name)) = (file.parent(), file.file_name()) {
            folders.entry(folder).or_default().insert(name);
        }
    }
    let of_files = folders.into_iter().map(|(folder, names)| (folder, GlobList::from_names(names)));
    let of_workflows = workflows.filter(|folder| folder.is_dir());
    let of_workflows =
        of_workflows.map(|folder| (folder, GlobList::from_extensions(&WORKFLOW_ENDINGS)));
    let spec = |(number, (folder, paths)): (usize, (&Utf8Path, GlobList))| WatchSpec {
        agent: "heeler".parse().expect("a word is the name of an agent"),
        schedule: format!("{CONFIG_WATCH_PREFIX}{number}"),
        root: folder.to_owned(),
        paths,
        ignore: GlobList::default(),
        debounce: CONFIG_DEBOUNCE,
    };
    of_files.chain(of_workflows).enumerate().map(spec).collect()
}

/// Forwards a watch event to the dispatcher. Does nothing if the dispatcher has ended.
fn forward_event(inbox: &DaemonHandle, watched: WatchEvent) {
    match watched {
        WatchEvent::Changed { schedule, .. } if schedule.starts_with(CONFIG_WATCH_PREFIX) => {
            tracing::info!("the config has changed");
            // The dispatcher reports a faulty config in the log; there is no caller to tell.
            let _heard = inbox.send(DaemonCommand::Reload, Box::new(|_| {}));
        }
        WatchEvent::Changed { agent, schedule, changed } => {
            tracing::debug!(%agent, schedule, ?changed, "files have changed");
            let trigger = TriggerType::from_word(WATCH_TRIGGER);
            let wanted = JobRequest { schedule: Some(schedule), trigger, ..JobRequest::new(agent) };
            let _heard =
                inbox.send_input(DispatchInput::WatchFired { request: Box::new(wanted), changed });
        }
        WatchEvent::Trouble { schedule, message, .. }
            if schedule.starts_with(CONFIG_WATCH_PREFIX) =>
        {
            tracing::warn!("cannot watch the config: {message}");
        }
        WatchEvent::Trouble { agent, schedule, message } => {
            tracing::warn!(%agent, schedule, "cannot watch all files: {message}");
        }
    }
}
