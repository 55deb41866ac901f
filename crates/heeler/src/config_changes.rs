//! A change of the config that happened while a run was alive: shown to a person, who confirms it.
//!
//! The daemon refuses to load or to start with such a change, whatever is done here. Commands look
//! first, so that a person is asked at a terminal. Start at [`require`].

use std::io::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{CommandReply, ConfigDrafts, ConfigFileRecorder, ConfigGuard, DaemonCommand};
use heeler_model::config_change::{ChangedConfigFile, ConfigContent, HeldConfigChange};
use heeler_model::redact::SecretRedactor;
use heeler_server::DaemonClientError;
use heeler_store::{DatabaseError, FleetEnvironment, StateDir, StoreReader, StoreWriteError};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::{self, RecordedLoad};
use crate::nearby_states::{NearbyState, nearby_states};
use crate::output;
use crate::process_env;
use crate::text_file::parent_dir;
use crate::trust::{self, visible};
use crate::trust_file::TrustScope;

/// Makes sure that a daemon can start with the config as it is: asks at a terminal whether a change
/// that is held is right, and fails otherwise.
pub(crate) fn require(context: &CommandContext) -> CommandResult {
    refuse_nearby(context)?;
    let held = find_with_daemon(context)?;
    let Some(change) = held else { return Ok(()) };
    if !trust::is_person_at_terminal() {
        return Err(refusal(&change));
    }
    print_change(&change)?;
    confirm_at_terminal(&change)?;
    accept(context, &change).map(drop)
}

/// Fails if a content must not be loaded before a person has confirmed it. Never asks.
pub(crate) fn check(
    context: &CommandContext,
    content: &ConfigContent,
    redactor: &SecretRedactor,
) -> CommandResult {
    check_nearby(context, &nearby_guards(context), content)?;
    let held = read_guard(context).and_then(|guard| guard.held_change(content, redactor));
    held.map_or(Ok(()), |change| Err(refusal(&change)))
}

/// Fails if a change is held, before anything is stopped for it. Never asks.
pub(crate) fn refuse_held(context: &CommandContext) -> CommandResult {
    refuse_nearby(context)?;
    find(context)?.map_or(Ok(()), |held| Err(refusal(&held.change)))
}

/// Fails if runs of another fleet may have made or changed the config, and no person has confirmed
/// it. A new config file may have another state directory, which has no record of it.
pub(crate) fn refuse_nearby(context: &CommandContext) -> CommandResult {
    let guards = nearby_guards(context);
    let Some(file) = context.config.as_ref().filter(|_| !guards.is_empty()) else { return Ok(()) };
    let recorded = fleet_config::load_recorded(context, file)?;
    check_nearby(context, &guards, &recorded.content)
}

/// Returns the guards of other fleets whose runs may have written into the config's folder.
fn nearby_guards(context: &CommandContext) -> Vec<(NearbyState, ConfigGuard)> {
    let Some(file) = &context.config else { return Vec::new() };
    let real = |path: &Utf8Path| path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
    let own = real(&context.state_dir);
    let others = nearby_states(parent_dir(file)).filter(|state| real(&state.path) != own);
    others
        .filter_map(|state| {
            let reader = StoreReader::open(&StateDir::open(&state.path).ok()?).ok()?;
            let guard = ConfigGuard::load(&reader).ok().filter(ConfigGuard::is_exposed)?;
            Some((state, guard))
        })
        .collect()
}

fn check_nearby(
    context: &CommandContext,
    guards: &[(NearbyState, ConfigGuard)],
    content: &ConfigContent,
) -> CommandResult {
    let changed = |(state, guard): &(NearbyState, ConfigGuard)| {
        Some((guard.changed_files(content).into_iter().next()?, state.config()))
    };
    let Some((path, other)) = guards.iter().find_map(changed) else { return Ok(()) };
    let (path, own) = (visible(path.as_str()), context.config.as_ref());
    let message = format!("not loaded, because {path} changed while a job of another fleet ran");
    let cure = match other.filter(|other| Some(other) != own) {
        Some(other) => {
            let other = visible(other.as_str());
            format!("heeler --config {other} reload --accept shows the change and asks; or undo it")
        }
        None => format!("undo the change of {path}, or put the config of the other fleet back"),
    };
    Err(CommandFailure::message(FailureCode::Untrusted, message).hint(cure))
}

/// Finds the change that is held: asks the daemon if one runs, because it alone loads the config.
fn find_with_daemon(context: &CommandContext) -> CommandResult<Option<HeldConfigChange>> {
    // A daemon that does not answer is ending, and loads nothing any more.
    if let Some(mut client) = daemon::connect(context)?
        && let Ok(CommandReply::Status(status)) =
            client.send_command(&DaemonCommand::Status, Some(daemon::ANSWER_WAIT))
        && context.config.as_ref() == Some(&status.config)
    {
        return Ok(status.held_change);
    }
    Ok(find(context)?.map(|held| held.change))
}

/// A change that is held, found without a daemon.
pub(crate) struct HeldChangeOnDisk {
    pub(crate) change: HeldConfigChange,
    content: ConfigContent,
    redactor: SecretRedactor,
}

/// Finds the change on disk that is held.
pub(crate) fn find(context: &CommandContext) -> CommandResult<Option<HeldChangeOnDisk>> {
    let Some(guard) = read_guard(context).filter(ConfigGuard::is_exposed) else { return Ok(None) };
    let Some(file) = &context.config else { return Ok(None) };
    let recorded = fleet_config::load_recorded(context, file)?;
    let redactor = recorded.redactor();
    // A config with faults cannot be loaded, and only its known files are shown.
    let content = match recorded.loaded {
        Ok(_) => recorded.content,
        Err(_) => guard.read_baseline_again(),
    };
    let change = guard.held_change(&content, &redactor);
    Ok(change.map(|change| HeldChangeOnDisk { change, content, redactor }))
}

/// Reads the guard. A state that cannot be read holds nothing here; the daemon reads it again.
fn read_guard(context: &CommandContext) -> Option<ConfigGuard> {
    if !context.state_dir.is_dir() {
        return None;
    }
    let reader = StoreReader::open(&context.dir().ok()?).ok()?;
    ConfigGuard::load(&reader).ok()
}

impl RecordedLoad {
    /// Returns a redactor of the secrets that the config has.
    pub(crate) fn redactor(&self) -> SecretRedactor {
        let loaded = self.loaded.as_ref().ok();
        // Secrets do not depend on the home folder.
        let known = FleetEnvironment { loaded, env: &self.env, home: Utf8Path::new("") };
        SecretRedactor::new(&known.secrets())
    }
}

/// Returns the failure of a command that would load a change that is held.
pub(crate) fn refusal(change: &HeldConfigChange) -> CommandFailure {
    CommandFailure::message(FailureCode::Untrusted, visible(&change.summary())).hint(
        "heeler reload --accept shows the change and asks; or undo the change, and nothing is asked",
    )
}

/// Prints the whole change to stderr.
pub(crate) fn print_change(change: &HeldConfigChange) -> CommandResult {
    output::print_error(visible(&change.summary()))?;
    change.files.iter().flat_map(file_lines).try_for_each(|line| Ok(output::print_error(line)?))
}

/// Returns a title and the changed lines of a file.
pub(crate) fn file_lines(file: &ChangedConfigFile) -> Vec<String> {
    let note = match file.lines.is_empty() {
        true => " (the content is not shown)",
        false => "",
    };
    let mut lines = vec![format!("{} {}{note}", file.change.as_str(), visible(file.path.as_str()))];
    lines.extend(file.lines.iter().map(|line| format!("  {}", visible(line))));
    lines
}

/// Asks whether the change that was printed is right.
pub(crate) fn confirm_at_terminal(change: &HeldConfigChange) -> CommandResult {
    write!(anstream::stderr().lock(), "An agent may have made this change. Load it? [y/N] ")?;
    let mut answer = String::new();
    // The end of input counts as no.
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(refusal(change)),
    }
}

/// Confirms a change that a person was shown. With a daemon, it is loaded.
pub(crate) fn accept(
    context: &CommandContext,
    change: &HeldConfigChange,
) -> CommandResult<Option<CommandReply>> {
    if let Some(mut client) = daemon::connect(context)? {
        let fingerprint = change.fingerprint.clone();
        let command = DaemonCommand::AcceptConfig { fingerprint, load: true, by: String::new() };
        match client.send_command(&command, Some(daemon::ANSWER_WAIT)) {
            // It did nothing, so the change is confirmed without it.
            Err(DaemonClientError::Ending) => {}
            answer => return Ok(Some(answer?)),
        }
    }
    trust::refuse_run()?;
    let Some(HeldChangeOnDisk { change: now, content, redactor }) = find(context)? else {
        return Ok(None);
    };
    if now.fingerprint != change.fingerprint {
        return Err(changed_again());
    }
    record_confirmed(context, content, redactor)?;
    Ok(None)
}

/// Records that a person has confirmed a content, while no daemon runs.
fn record_confirmed(
    context: &CommandContext,
    content: ConfigContent,
    redactor: SecretRedactor,
) -> CommandResult {
    let store = context.store("reload", process_env::now())?;
    let written: Result<(), StoreWriteError<DatabaseError>> = store.write(move |tx| {
        let mut guard = ConfigGuard::load(tx)?;
        guard.accept(tx, &content, &redactor)
    });
    written.map_err(|error| CommandFailure::new(FailureCode::Failed, error))
}

/// An edit of a person by a command of Heeler. The person knows what was written, and is not asked
/// again: neither because a run is alive, nor because the trusted content has changed.
#[derive(Default)]
pub(crate) struct OwnConfigEdit {
    /// Content to confirm, if the config files are exposed to a run.
    held: Option<(ConfigContent, SecretRedactor)>,
    /// Content to trust, if the content before was trusted.
    trusted: Option<TrustScope>,
}

impl OwnConfigEdit {
    /// Looks at the config as it will be with these texts, by the real paths of their files. Nothing is
    /// confirmed or trusted if something else has changed too.
    pub(crate) fn prepare(
        context: &CommandContext,
        texts: ConfigDrafts,
    ) -> CommandResult<OwnConfigEdit> {
        let Some(file) = &context.config else { return Ok(OwnConfigEdit::default()) };
        if trust::refuse_run().is_err() {
            return Ok(OwnConfigEdit::default());
        }
        let paths: Vec<Utf8PathBuf> = texts.keys().cloned().collect();
        let recorder = ConfigFileRecorder::with_drafts(texts);
        let recorded = fleet_config::load_with_recorder(context, file, recorder)?;
        let redactor = recorded.redactor();
        let Ok(loaded) = &recorded.loaded else { return Ok(OwnConfigEdit::default()) };
        let trusted = trust::scope_after_edit(context, loaded);
        let is_own = |file: &ChangedConfigFile| {
            let real = file.path.canonicalize_utf8().unwrap_or_else(|_| file.path.clone());
            paths.contains(&real) || lists_only(file, &real, &paths)
        };
        let content = recorded.content;
        let guard = read_guard(context).filter(ConfigGuard::is_exposed);
        // A change that is held already may be in a file of the edit, whose difference does not show it.
        let is_clean = |guard: &ConfigGuard| {
            let before = fleet_config::load_recorded(context, file)?.content;
            Ok::<_, CommandFailure>(guard.held_change(&before, &redactor).is_none())
        };
        let guard = match guard {
            Some(guard) => is_clean(&guard)?.then_some(guard),
            None => None,
        };
        let held = guard.and_then(|guard| guard.held_change(&content, &redactor));
        let is_own = held.is_some_and(|held| held.files.iter().all(is_own));
        Ok(OwnConfigEdit { held: is_own.then_some((content, redactor)), trusted })
    }

    /// Trusts the edit, which is written now, if the content before was trusted. Returns the
    /// fingerprint of the content if the daemon must confirm it.
    pub(crate) fn confirm_trust(self, context: &CommandContext) -> Option<String> {
        let trusted = self.trusted.map_or(Ok(()), |scope| trust::record_scope(context, scope));
        if let Err(failure) = trusted {
            tracing::warn!("the edit is not trusted: {}", failure.error);
        }
        self.held.map(|(content, _)| content.fingerprint())
    }

    /// Confirms the edit, which is written now. If that fails, the next command asks.
    pub(crate) fn confirm(self, context: &CommandContext) {
        let held = self.held.map_or(Ok(()), |held| confirm_held(context, held));
        let trusted = self.trusted.map_or(Ok(()), |scope| trust::record_scope(context, scope));
        for failure in [held, trusted].into_iter().filter_map(Result::err) {
            tracing::debug!("the edit is not confirmed: {}", failure.error);
        }
    }
}

/// Returns true if these paths alone were added to or removed from a folder, whose change is listed
/// by the names of its files.
fn lists_only(folder: &ChangedConfigFile, real: &Utf8Path, paths: &[Utf8PathBuf]) -> bool {
    let is_own = |line: &String| {
        let name = line.strip_prefix("+ ").or(line.strip_prefix("- ")).unwrap_or(line);
        let below = Utf8Path::new(name).strip_prefix(&folder.path);
        name.is_empty() || below.is_ok_and(|below| paths.contains(&real.join(below)))
    };
    !folder.lines.is_empty()
        && paths.iter().any(|path| path.parent() == Some(real))
        && folder.lines.iter().all(is_own)
}

fn confirm_held(
    context: &CommandContext,
    (content, redactor): (ConfigContent, SecretRedactor),
) -> CommandResult {
    let Some(mut client) = daemon::connect(context)? else {
        return record_confirmed(context, content, redactor);
    };
    let (fingerprint, by) = (content.fingerprint(), String::new());
    let command = DaemonCommand::AcceptConfig { fingerprint, load: false, by };
    client.send_command(&command, Some(daemon::ANSWER_WAIT))?;
    Ok(())
}

/// Returns the failure for a change that is not the one that was shown.
pub(crate) fn changed_again() -> CommandFailure {
    CommandFailure::message(
        FailureCode::Untrusted,
        "not loaded: the files have changed again since the change was shown",
    )
    .hint("heeler reload --accept")
}
