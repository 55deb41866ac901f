//! Trust on first use: nothing of a fleet runs before a person has agreed to it.
//!
//! A config can name any program, so starting a daemon in a clone runs a stranger's commands. A
//! fleet is trusted if its folder is (`HEELER_TRUST`, `heeler trust --folder`), if the user made it
//! (`heeler init`), or if a person has agreed to its executable content as it is now. [`require`]
//! asks; [`check`] only checks, where the config is loaded to be executed.

mod executable_content;
mod trust_summary;
mod visible_text;

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::LoadedConfig;
use heeler_model::redact::SecretRedactor;
use heeler_store::FleetEnvironment;

use self::executable_content::ExecutableContent;
pub(crate) use self::executable_content::has_script_ending;
pub(crate) use self::visible_text::visible;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::nearby_states::states_in;
use crate::output;
use crate::process_env;
use crate::text_file::parent_dir;
use crate::trust_file::{self, TrustFile, TrustScope, TrustedFleet};

/// Variable of a command that names trusted folders, or is `all`.
const TRUST_VARIABLE: &str = "HEELER_TRUST";

/// Trust in a fleet.
enum TrustState {
    Trusted,
    /// No person has agreed to it.
    Unknown,
    /// The content is not what a person agreed to.
    Changed {
        before: Vec<String>,
    },
}

/// Reaction of a command to a fleet that is not in the list of trusted fleets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnlistedFleet {
    Ask,
    /// Its daemon runs, so it was trusted in another way: by the environment of the daemon.
    Allow,
}

/// Makes sure that a person has agreed to what the fleet would run: asks at a terminal, and fails
/// otherwise.
pub(crate) fn require(context: &CommandContext, unlisted: UnlistedFleet) -> CommandResult {
    let fleet = FleetKey::of(context)?;
    // Most fleets are trusted as a whole, and need not be loaded for this.
    if fleet.is_trusted_whole(context)? {
        return Ok(());
    }
    let loaded = fleet_config::load(context)?;
    let shown = ShownFleet::new(context, &loaded)?;
    let state = fleet.state(context, &shown.content)?;
    match state {
        TrustState::Trusted => return Ok(()),
        TrustState::Unknown if unlisted == UnlistedFleet::Allow => return Ok(()),
        TrustState::Unknown | TrustState::Changed { .. } => {}
    }
    if !is_person_at_terminal() {
        return Err(fleet.refusal(&state));
    }
    shown.print(&fleet, &state)?;
    let scope = match ask()? {
        TrustAnswer::No => return Err(fleet.refusal(&state)),
        TrustAnswer::Content => shown.scope(),
        TrustAnswer::Everything => TrustScope::Everything,
    };
    fleet.record(context, scope)
}

/// Fails unless a person has agreed to this config. Never asks. Called wherever a config is loaded
/// to be executed, so that no way to a daemon leads around it, and nothing can change between the
/// question and the start.
pub(crate) fn check(context: &CommandContext, loaded: &LoadedConfig) -> CommandResult {
    let fleet = FleetKey::of(context)?;
    if fleet.is_trusted_whole(context)? {
        return Ok(());
    }
    let shown = ShownFleet::new(context, loaded)?;
    match fleet.state(context, &shown.content)? {
        TrustState::Trusted => Ok(()),
        state => Err(fleet.refusal(&state)),
    }
}

/// Returns why a daemon does not load the config as it is now: its content is not what the user has
/// agreed to.
pub(crate) fn describe_change(context: &CommandContext, loaded: &LoadedConfig) -> Option<String> {
    let fleet = FleetKey::of(context).ok()?;
    if fleet.is_trusted_whole(context).ok()? {
        return None;
    }
    let shown = ShownFleet::new(context, loaded).ok()?;
    let state = fleet.state(context, &shown.content).ok()?;
    // A daemon that was trusted by its environment has no entry, and no change.
    matches!(state, TrustState::Changed { .. }).then(|| {
        let failure = fleet.refusal(&state);
        format!("not loaded: {}; {}", failure.error, failure.hint.unwrap_or_default())
    })
}

/// Returns what to trust after a person has edited the config: the content with the edit, if the
/// content before the edit is trusted as it is.
pub(crate) fn scope_after_edit(
    context: &CommandContext,
    edited: &LoadedConfig,
) -> Option<TrustScope> {
    let fleet = FleetKey::of(context).ok()?;
    if fleet.is_trusted_whole(context).ok()? {
        return None;
    }
    // A config that has faults, or was changed by somebody else, is not what a person agreed to.
    let recorded = fleet_config::load_recorded(context, context.config_file().ok()?).ok()?;
    let before = ShownFleet::new(context, &recorded.loaded.ok()?).ok()?;
    match fleet.state(context, &before.content).ok()? {
        TrustState::Trusted => Some(ShownFleet::new(context, edited).ok()?.scope()),
        TrustState::Unknown | TrustState::Changed { .. } => None,
    }
}

/// Records that the user trusts this much of the fleet.
pub(crate) fn record_scope(context: &CommandContext, scope: TrustScope) -> CommandResult {
    FleetKey::of(context)?.record(context, scope)
}

/// Prints what an agent would run that is not part of the fleet yet.
pub(crate) fn print_commands(
    context: &CommandContext,
    name: &str,
    loaded: &LoadedConfig,
) -> CommandResult {
    let shown = ShownFleet::new(context, loaded)?;
    output::print_error(format!("{} would run, as you:", visible(name)))?;
    shown.lines.into_iter().try_for_each(output::print_error)?;
    Ok(())
}

/// Shows a fleet and records that the user trusts it; asks unless `is_agreed`.
pub(crate) fn trust_fleet(context: &CommandContext, is_agreed: bool) -> CommandResult {
    refuse_run()?;
    let fleet = FleetKey::of(context)?;
    let loaded = fleet_config::load(context)?;
    let shown = ShownFleet::new(context, &loaded)?;
    let state = fleet.state(context, &shown.content)?;
    if fleet.is_trusted_whole(context)? || matches!(state, TrustState::Trusted) {
        return Ok(output::print_line(format!("{} is trusted already", fleet.config))?);
    }
    shown.print(&fleet, &state)?;
    let scope = match is_agreed {
        true => shown.scope(),
        false if !std::io::stdin().is_terminal() => {
            let message = "there is no terminal to ask at";
            return Err(CommandFailure::message(FailureCode::Untrusted, message)
                .hint("heeler trust --yes, if you have read it"));
        }
        false => match ask()? {
            TrustAnswer::No => return Err(fleet.refusal(&state)),
            TrustAnswer::Content => shown.scope(),
            TrustAnswer::Everything => TrustScope::Everything,
        },
    };
    fleet.record(context, scope)?;
    Ok(output::print_line(format!("{} is trusted", fleet.config))?)
}

/// Records a fleet that the user has just made with `heeler init` or `heeler demo`. Does nothing in
/// a run: an agent makes fleets, but does not decide for its user.
pub(crate) fn record_own_fleet(config: &Utf8Path) -> CommandResult {
    let env = process_env::environment();
    let Some(path) = TrustFile::path(&env) else { return Ok(()) };
    if is_run() {
        return Ok(());
    }
    let fleet = FleetKey { config: real_config_path(config)? };
    let entry = fleet.entry(TrustScope::Everything)?;
    TrustFile::change(&path, |file| file.put(entry))
}

/// Fails in a process of a run: only people decide what is trusted.
pub(crate) fn refuse_run() -> CommandResult {
    match is_run() {
        false => Ok(()),
        true => Err(CommandFailure::message(
            FailureCode::Refused,
            "a process of a run cannot change what its user trusts, and this process may be one: it \
             has the mark of agents (no_new_privs), which editors, containers and services with \
             `NoNewPrivileges` set too",
        )
        .hint(
            "run the command in a terminal of your own (a login shell or ssh), or set \
             HEELER_TRUST=/folder/of/the/fleet for the daemon",
        )),
    }
}

/// Returns true unless a person started this process, as far as the system can tell.
fn is_run() -> bool {
    heeler_process::is_own_process_of_agent()
}

/// Returns true if a person can read a question and answer it.
pub(crate) fn is_person_at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal() && !is_run()
}

/// Returns the path of the list of trusted fleets, or fails if there can be none.
pub(crate) fn trust_path(env: &BTreeMap<String, String>) -> CommandResult<Utf8PathBuf> {
    TrustFile::path(env).ok_or_else(|| {
        CommandFailure::message(
            FailureCode::Untrusted,
            "neither XDG_CONFIG_HOME nor HOME is set, so there is no list of trusted fleets",
        )
        .hint("HEELER_TRUST=/folder/of/the/fleet heeler …")
    })
}

/// A fleet, by its config file.
struct FleetKey {
    /// Path without links, except that of the file itself: a link to a trusted config would use the
    /// files beside the link.
    config: Utf8PathBuf,
}

impl FleetKey {
    fn of(context: &CommandContext) -> CommandResult<FleetKey> {
        let config = context.working_dir.join(context.config_file()?);
        Ok(FleetKey { config: real_config_path(&config)? })
    }

    /// Returns true if every content of the fleet is trusted, also after changes.
    fn is_trusted_whole(&self, context: &CommandContext) -> CommandResult<bool> {
        let variable = context.env.get(TRUST_VARIABLE).map_or("", String::as_str);
        let mut folders = variable.split(':').filter(|folder| !folder.is_empty());
        let is_named = |folder: &str| self.is_in(&context.working_dir.join(folder));
        if variable == "all" || folders.any(is_named) {
            return Ok(true);
        }
        let Some(path) = TrustFile::path(&context.env) else { return Ok(false) };
        let file = TrustFile::read(&path)?;
        let is_own =
            file.fleet(&self.config).is_some_and(|fleet| fleet.scope == TrustScope::Everything);
        Ok(is_own || file.folders.iter().any(|folder| self.is_in(folder)))
    }

    /// Returns true if the config lies in a folder or below it, and no other fleet is in between: an
    /// agent of that fleet may have made the config.
    fn is_in(&self, folder: &Utf8Path) -> bool {
        let Ok(folder) = folder.canonicalize_utf8() else { return false };
        let above = parent_dir(&self.config).ancestors().skip(1);
        let mut between = above.take_while(|it| it.starts_with(&folder));
        self.config.starts_with(&folder) && !between.any(|it| !states_in(it).is_empty())
    }

    fn state(
        &self,
        context: &CommandContext,
        content: &ExecutableContent,
    ) -> CommandResult<TrustState> {
        let Some(path) = TrustFile::path(&context.env) else { return Ok(TrustState::Unknown) };
        let file = TrustFile::read(&path)?;
        Ok(match file.fleet(&self.config).map(|fleet| &fleet.scope) {
            None => TrustState::Unknown,
            Some(TrustScope::Everything) => TrustState::Trusted,
            Some(TrustScope::Content { digest, .. }) if *digest == content.digest => {
                TrustState::Trusted
            }
            Some(TrustScope::Content { lines, .. }) => {
                TrustState::Changed { before: lines.clone() }
            }
        })
    }

    fn entry(&self, scope: TrustScope) -> CommandResult<TrustedFleet> {
        let folder = trust_file::folder_identity(&self.config)?;
        Ok(TrustedFleet::new(self.config.clone(), folder, scope))
    }

    fn record(&self, context: &CommandContext, scope: TrustScope) -> CommandResult {
        let entry = self.entry(scope)?;
        TrustFile::change(&trust_path(&context.env)?, |file| file.put(entry))
    }

    fn refusal(&self, state: &TrustState) -> CommandFailure {
        let config = visible(self.config.as_str());
        let message = match state {
            TrustState::Changed { .. } => {
                format!("{config} would run something else than what you have trusted")
            }
            _ => format!("{config} is not trusted: it can run any command as you"),
        };
        let folder = visible(parent_dir(&self.config).as_str());
        CommandFailure::message(FailureCode::Untrusted, message)
            .hint(format!("heeler trust {folder} shows what it would run, and asks"))
    }
}

/// Resolves the links in the path of a config's folder.
fn real_config_path(config: &Utf8Path) -> CommandResult<Utf8PathBuf> {
    let folder = parent_dir(config).canonicalize_utf8()?;
    Ok(folder.join(config.file_name().unwrap_or_default()))
}

/// The commands of a fleet. They are collected once, so that the record equals the display.
struct ShownFleet {
    content: ExecutableContent,
    lines: Vec<String>,
}

impl ShownFleet {
    fn new(context: &CommandContext, loaded: &LoadedConfig) -> CommandResult<ShownFleet> {
        let config = context.config_file()?;
        let env = fleet_config::environment(context, config)?;
        // Secrets do not depend on the home folder.
        let known = FleetEnvironment { loaded: Some(loaded), env: &env, home: Utf8Path::new("") };
        let secrets = SecretRedactor::new(&known.secrets());
        let content = ExecutableContent::of(config, loaded, &secrets).map_err(|error| {
            let message = format!("{config} cannot be shown completely: {error}");
            CommandFailure::message(FailureCode::Untrusted, message)
                .hint("name fewer files, or trust the whole folder: heeler trust --folder FOLDER")
        })?;
        let mut lines = trust_summary::summary_lines(config, loaded, &content, &secrets);
        lines.extend(recorded_work(context));
        Ok(ShownFleet { content, lines })
    }

    fn scope(&self) -> TrustScope {
        let ExecutableContent { digest, lines, .. } = &self.content;
        TrustScope::Content { digest: digest.clone(), lines: lines.clone() }
    }

    /// Prints what the fleet would run, or what has changed.
    fn print(&self, fleet: &FleetKey, state: &TrustState) -> CommandResult {
        let config = visible(fleet.config.as_str());
        let (title, lines) = match state {
            TrustState::Changed { before } => {
                let title = format!("{config} has changed since you trusted it:");
                (title, trust_summary::difference_lines(before, &self.content.lines))
            }
            _ => {
                (format!("{config} is not trusted yet. It would run, as you:"), self.lines.clone())
            }
        };
        output::print_error(title)?;
        lines.into_iter().try_for_each(output::print_error)?;
        Ok(())
    }
}

/// Returns a line for unfinished work in the state directory, which may come with a clone. A daemon
/// would continue it.
fn recorded_work(context: &CommandContext) -> Option<String> {
    let database = context.state_dir.join("heeler.db");
    database.is_file().then(|| {
        format!("  {:14} {}: its unfinished jobs continue", "state", visible(database.as_str()))
    })
}

/// Answer of a person.
enum TrustAnswer {
    No,
    /// Trust what was shown.
    Content,
    /// Trust the fleet also after changes.
    Everything,
}

fn ask() -> CommandResult<TrustAnswer> {
    write!(
        anstream::stderr().lock(),
        "Trust it? y: yes, as shown; a: always, also after changes; N: no [y/a/N] "
    )?;
    let mut answer = String::new();
    // The end of input counts as no.
    std::io::stdin().read_line(&mut answer)?;
    Ok(match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => TrustAnswer::Content,
        "a" | "always" => TrustAnswer::Everything,
        _ => TrustAnswer::No,
    })
}
