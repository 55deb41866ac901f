//! Command hooks: each is a run of its own, executed by a runner like an agent's run.
//!
//! It has its own state directory, `hooks/<event id>/`, with run directory, logs and locks, so that
//! it touches no job, session or lock of the fleet. The directory stays until the effect is
//! recorded as finished. A worker that finds it relies on it: it waits for a live run, does not
//! repeat one that has ended, and repeats an interrupted one only after all its processes are gone.

use std::io;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{ConfigDuration, HookPermissions, RuntimeType, command_words};
use heeler_model::config_change::ConfigFileKind;
use heeler_model::hook::HookContext;
use heeler_model::run::{
    AgentLaunchSpec, ErrorClass, PROTOCOL, QuestionPolicy, RunAuthority, RunEnd, RunLimits,
    RunResult, RunSpec, RunnerInput, RuntimeLaunchSpec, SessionPlan, SessionStart, SettleInput,
    file,
};
use heeler_model::{ExitReason, RunId, TriggerType, error_chain};
use heeler_store::StoreReader;
use heeler_transcript::{
    LockFile, OsDisk, create_folder, replace_file, untrusted_file, validate_id,
};
use indexmap::IndexMap;

use super::HookExecutionContext;
use super::hook_error::{HookExecutionError, transient_error};
use super::program_paths::{CONFIG_FOLDER_VARIABLE, resolve_programs};
use super::result_keys::ResultProof;
use crate::access::AccessSecret;
use crate::cancel::kill_runner;
use crate::capability::{self, ActiveHookGrant, HookGrant};
use crate::config_files::{normalize, program_content};
use crate::config_guard::ConfigGuard;
use crate::fleet::EngineContext;
use crate::launch;
use crate::prepare::{environment, period_millis, real_folder};

/// Time after each signal to a command that exceeds its limit: it is interrupted, then asked to
/// end, then killed with all its processes.
const GRACE: Duration = Duration::from_secs(1);

/// Additional time, beyond limit and graces, after which a runner of another daemon is killed.
const OVERDUE: Duration = Duration::from_secs(30);

/// Variable that names the user's Heeler directory to Heeler's own processes.
const HOME_VARIABLE: &str = "HEELER_HOME";

/// Poll interval while waiting for a run.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Maximum length of the last error line in a failed command's error.
const STDERR_CHARS_MAX: usize = 300;

/// Maximum number of bytes read from `stderr.log`; the runner writes less.
const STDERR_BYTES_MAX: u64 = 1 << 20;

/// Settings of a command hook.
pub(super) struct CommandHook<'h> {
    pub(super) command: &'h str,
    /// Directory of the file that defines the hook.
    pub(super) folder: &'h Utf8Path,
    pub(super) timeout: ConfigDuration,
    pub(super) permissions: &'h HookPermissions,
    pub(super) allow_new_privileges: bool,
}

/// Runs the command, unless it already ran for this event.
pub(super) fn run_command_hook(
    hook: &CommandHook<'_>,
    context: &HookContext,
    around: &HookExecutionContext<'_>,
) -> Result<(), HookExecutionError> {
    let timeout = hook.timeout;
    // The id becomes a path, so it is checked like any foreign name.
    let event = validate_id(&context.event_id).map_err(|error| {
        HookExecutionError::Permanent(format!("its event has no usable id: {error}"))
    })?;
    let place = around.fleet.dir.hook(event);
    let fleet = with_event_home(around.fleet, &place);
    let proof = ResultProof::load(event, around.key, around.fleet)?;
    let shell =
        ShellHookRun { fleet: &fleet, event_folder: &place, timeout, execution: around, proof };
    // A hook that finished is not repeated, even if its outcome was not recorded.
    if let Some((folder, result)) = shell.find_earlier_result()? {
        return check_result(&folder, &result, timeout);
    }
    refuse_changed_programs(hook, around.fleet)?;
    // What is left belongs to an interrupted run, and its processes have ended.
    remove_folder(&place)?;
    let mut brief = shell.brief(hook, context)?;
    let run = RunId::mint((fleet.now)(), std::array::from_fn(|_| fastrand::u8(..)));
    // It ends with this function: a hook that outlives its daemon has no permissions.
    let _granted = shell.grant(run, hook.permissions, context, &mut brief)?;
    let (folder, spec) = shell.prepare(run, context)?;
    let result_key = Some(shell.proof.key().clone());
    let input = RunnerInput { brief, spec: Some(spec), result_key };
    let (child, _) = launch::start_runner(&fleet, &folder, &input).map_err(transient_error)?;
    shell.wait(child)?;
    match shell.settled_result(&folder)? {
        Some(result) => check_result(&folder, &result, timeout),
        None => Err(interrupted_error()),
    }
}

/// Refuses a hook if a file that its command names was changed while a run was alive: an agent would
/// gain the hook's rights. Scripts that a program starts in turn are not known.
fn refuse_changed_programs(
    hook: &CommandHook<'_>,
    fleet: &EngineContext,
) -> Result<(), HookExecutionError> {
    let reader = StoreReader::open(&fleet.dir).map_err(transient_error)?;
    let guard = ConfigGuard::load(&reader).map_err(transient_error)?;
    if !guard.is_exposed() {
        return Ok(());
    }
    let words = command_words(hook.command).map(|word| normalize(Utf8Path::new(word)));
    // A mere `.` names no file.
    let words: Vec<Utf8PathBuf> = words.filter(|word| !word.as_str().is_empty()).collect();
    // The command may change its folder, so the end of a path must match. Programs of the system are
    // not on record.
    let is_named = |path: &Utf8Path| {
        words.iter().any(|word| path.ends_with(word) || *path == normalize(&hook.folder.join(word)))
    };
    for (path, known) in guard.baseline().files.iter().filter(|(path, _)| is_named(path)) {
        let is_program = known.kind == ConfigFileKind::Text;
        if is_program && known.digest != program_content(path).digest {
            return Err(HookExecutionError::Permanent(format!(
                "{path} was changed while a job ran, and no person has confirmed it: heeler reload \
                 --accept"
            )));
        }
    }
    Ok(())
}

/// Removes the directory of a finished event, unless a run of it is still alive.
pub(super) fn remove_event_folder(
    fleet: &EngineContext,
    place: &Utf8Path,
) -> Result<bool, HookExecutionError> {
    let fleet = with_event_home(fleet, place);
    for folder in run_folders(place) {
        // A killed runner holds its lock until the kernel has ended it.
        if is_locked(&folder) {
            return Ok(false);
        }
        if !folder.join(file::RESULT).exists() {
            // Processes of an interrupted run must end before the folder that identifies them is
            // removed.
            settle(&fleet, &folder, None)?;
        }
    }
    remove_folder(place)?;
    Ok(true)
}

/// Sets the event's directory as the user's Heeler directory for all processes of the event:
/// session locks are there, and this variable tells a settling process.
fn with_event_home(fleet: &EngineContext, place: &Utf8Path) -> EngineContext {
    let mut fleet = fleet.clone();
    // A second variable of the same name would make its value depend on the order.
    fleet.env.retain(|(name, _)| name != HOME_VARIABLE);
    fleet.env.push((HOME_VARIABLE.to_owned(), place.to_string()));
    fleet
}

struct ShellHookRun<'s> {
    /// Context with the event's directory as the user's Heeler directory.
    fleet: &'s EngineContext,
    event_folder: &'s Utf8Path,
    timeout: ConfigDuration,
    execution: &'s HookExecutionContext<'s>,
    proof: ResultProof<'s>,
}

impl ShellHookRun<'_> {
    /// Returns the result of an earlier run for this event, if it finished.
    fn find_earlier_result(&self) -> Result<Option<(Utf8PathBuf, RunResult)>, HookExecutionError> {
        for folder in run_folders(self.event_folder) {
            self.wait_for_other_daemon(&folder)?;
            if let Some(result) = self.settled_result(&folder)?
                // An interrupted run does not count, because the command may not have done its
                // work. Neither does one that was killed.
                && result.end == RunEnd::Finished
                && !is_killed(&result)
            {
                return Ok(Some((folder, result)));
            }
        }
        Ok(None)
    }

    /// Waits for a live run that another daemon started.
    fn wait_for_other_daemon(&self, folder: &Utf8Path) -> Result<(), HookExecutionError> {
        let patience = Duration::from_millis(period_millis(self.timeout)) + GRACE * 3 + OVERDUE;
        let deadline = Instant::now() + patience;
        while is_locked(folder) {
            // A stop leaves the run alone, and the next worker waits for it.
            self.sleep_or_stop()?;
            if Instant::now() >= deadline {
                // The runner may have ended just now, which also makes this fail.
                if let Err(error) = kill_runner(folder) {
                    tracing::warn!(%folder, "a hook that is overdue: {}", error_chain(&error));
                    return Err(HookExecutionError::transient("an earlier run of it does not end"));
                }
            }
        }
        Ok(())
    }

    /// Gives the hook an identity of its own, with the permissions of its config.
    fn grant(
        &self,
        run: RunId,
        permissions: &HookPermissions,
        context: &HookContext,
        brief: &mut AgentLaunchSpec,
    ) -> Result<ActiveHookGrant, HookExecutionError> {
        let secret = AccessSecret::new().map_err(transient_error)?;
        capability::add_capability(brief, run, &secret);
        let grant = HookGrant {
            hash: capability::capability_hash(run, &secret),
            agent: self.execution.agent.name.clone(),
            job: context.job.id.clone(),
            permissions: permissions.clone(),
        };
        Ok(self.fleet.hook_grants.grant(run, grant))
    }

    fn brief(
        &self,
        hook: &CommandHook<'_>,
        context: &HookContext,
    ) -> Result<AgentLaunchSpec, HookExecutionError> {
        let text =
            resolve_programs(hook.command, hook.folder, &self.execution.agent.working_directory);
        let text = text.map_err(HookExecutionError::Permanent)?;
        let given =
            environment::select_environment(self.execution.agent, &self.execution.config.env);
        let mut given =
            given.map_err(|error| HookExecutionError::Permanent(error_chain(&error)))?;
        // A command that is executed twice can recognize the event by this id.
        given.env.insert("HEELER_EVENT".to_owned(), context.event_id.clone());
        given.env.insert(CONFIG_FOLDER_VARIABLE.to_owned(), hook.folder.to_string());
        Ok(AgentLaunchSpec {
            protocol: PROTOCOL,
            prompt: serde_json::to_string(context).expect("a context has only text keys"),
            env: given.env,
            secrets: given.secrets,
            shared_secrets: given.shared_secrets,
            work: RuntimeLaunchSpec::Command { command: text },
            send_files_to: None,
            authority: RunAuthority {
                daemon_lock: Some(self.fleet.dir.lock()),
                allow_new_privileges: hook.allow_new_privileges,
                file_limits: None,
                lease: None,
            },
            may_start_jobs: false,
            sandbox: None,
        })
    }

    /// Creates the run directory with its spec.
    fn prepare(
        &self,
        run: RunId,
        context: &HookContext,
    ) -> Result<(Utf8PathBuf, RunSpec), HookExecutionError> {
        let folder = self.event_folder.join("runs").join(run.to_string());
        let spec = self.spec(run, context)?;
        let text = serde_json::to_vec_pretty(&spec).expect("a spec is JSON");
        for needed in [self.event_folder.join("jobs"), self.projects_folder(), folder.clone()] {
            create_folder(&OsDisk, &needed).map_err(transient_error)?;
        }
        // The spec is written last: without it a run counts as not started.
        replace_file(&OsDisk, &folder.join(file::SPEC), &text).map_err(transient_error)?;
        Ok((folder, spec))
    }

    fn spec(&self, run: RunId, context: &HookContext) -> Result<RunSpec, HookExecutionError> {
        let agent = self.execution.agent;
        let directory = &agent.working_directory;
        let working_directory = real_folder(directory).map_err(|error| {
            HookExecutionError::Permanent(format!("cannot work in {directory}: {error}"))
        })?;
        let session = uuid::Builder::from_random_bytes(std::array::from_fn(|_| fastrand::u8(..)));
        let id = session.into_uuid().to_string().parse().expect("a UUID is a session id");
        let reason = "a hook has no history".to_owned();
        Ok(RunSpec {
            protocol: PROTOCOL,
            run,
            job: context.job.id.clone(),
            attempt: 1,
            agent: agent.name.clone(),
            trigger: TriggerType::from_word("hook"),
            runtime: RuntimeType::Command,
            working_directory,
            // The log is in the event's folder, so the job's own transcript is not touched.
            job_log: self.event_folder.join(format!("jobs/{}.jsonl", context.job.id)),
            projects: self.projects_folder(),
            output_file: None,
            home: self.event_folder.to_owned(),
            sockets: self.execution.config.sockets.clone(),
            session: SessionPlan::new(SessionStart::Fresh { id }, reason),
            limits: RunLimits {
                timeout_ms: Some(period_millis(self.timeout)),
                grace_ms: Some(u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX)),
                ..RunLimits::default()
            },
            attendance: QuestionPolicy::Nobody,
            sync_each_row: false,
            workspaces: None,
            keep_output: false,
            keep_agent: None,
        })
    }

    fn projects_folder(&self) -> Utf8PathBuf {
        self.event_folder.join("agent-sessions/projects")
    }

    /// Waits for the runner, which ends on its own because its run has a time limit.
    fn wait(&self, mut child: Child) -> Result<(), HookExecutionError> {
        while let Ok(None) = child.try_wait() {
            self.sleep_or_stop()?;
        }
        Ok(())
    }

    fn sleep_or_stop(&self) -> Result<(), HookExecutionError> {
        if self.execution.stop.load(Ordering::Relaxed) {
            return Err(HookExecutionError::Stopped);
        }
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// Returns the result of a run that no process works on; an interrupted run is settled first.
    /// Returns `None` if its directory cannot be used: its processes have ended, and nothing else
    /// is known.
    fn settled_result(&self, folder: &Utf8Path) -> Result<Option<RunResult>, HookExecutionError> {
        if let Some(result) = self.proof.read_result(folder)? {
            // The runner may have died before it wrote a result, and its processes may be alive.
            return Ok(Some(result));
        }
        let input = SettleInput {
            protocol: PROTOCOL,
            result_key: self.proof.key().clone(),
            runner_keys: IndexMap::new(),
        };
        settle(self.fleet, folder, Some(&input))?;
        self.proof.read_result(folder)
    }
}

/// Lists the run directories of an event.
fn run_folders(place: &Utf8Path) -> Vec<Utf8PathBuf> {
    let Ok(entries) = place.join("runs").read_dir_utf8() else { return Vec::new() };
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.into_path()).collect();
    // Names begin with the time, so this is the order of the runs.
    found.sort();
    found
}

fn is_locked(folder: &Utf8Path) -> bool {
    matches!(LockFile::probe(&folder.join(file::LOCK)), Ok(Some(_)))
}

/// Ends the processes of a dead run and writes its result, if its directory can be used.
fn settle(
    fleet: &EngineContext,
    folder: &Utf8Path,
    input: Option<&SettleInput>,
) -> Result<(), HookExecutionError> {
    // Without a spec a daemon died before it started the runner.
    if !folder.join(file::SPEC).exists() {
        return Ok(());
    }
    match launch::settle_run(fleet, folder, input) {
        Err(error) if error.is_permanent() => {
            // Without a usable folder nothing is known, but no process may be left.
            launch::end_leftover_processes(fleet, folder).map_err(transient_error)
        }
        done => done.map_err(transient_error),
    }
}

fn remove_folder(place: &Utf8Path) -> Result<(), HookExecutionError> {
    match std::fs::remove_dir_all(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(HookExecutionError::transient(format!("cannot remove {place}: {error}")))
        }
        _ => Ok(()),
    }
}

fn check_result(
    folder: &Utf8Path,
    result: &RunResult,
    timeout: ConfigDuration,
) -> Result<(), HookExecutionError> {
    match (result.end, result.exit_reason) {
        (RunEnd::Finished, ExitReason::Success) => Ok(()),
        (RunEnd::Finished, ExitReason::Timeout) => Err(HookExecutionError::Permanent(format!(
            "the command was ended after {timeout}; `timeout` sets how long it may take"
        ))),
        (RunEnd::Finished, _) => {
            let why = result.error.as_ref().map_or("the command failed", |it| it.message.as_str());
            let said = last_stderr_line(folder).map(|said| format!(": {said}")).unwrap_or_default();
            let message = format!("{why}{said}");
            Err(match is_killed(result) {
                // A signal is no verdict of the command: it may have done any part of its work.
                true => HookExecutionError::transient(message),
                false => HookExecutionError::Permanent(message),
            })
        }
        // It may have done all, some or none of its work. Hooks run at least once, so it is
        // repeated.
        (RunEnd::NeverStarted | RunEnd::Interrupted | RunEnd::SessionBusy, _) => {
            Err(interrupted_error())
        }
    }
}

/// Returns true if a signal that Heeler did not send ended the command.
fn is_killed(result: &RunResult) -> bool {
    result.error.as_ref().is_some_and(|error| error.class == ErrorClass::AgentDied)
}

fn interrupted_error() -> HookExecutionError {
    HookExecutionError::transient("the command was interrupted")
}

/// Returns the last line that the command wrote to standard error; its runner has redacted it.
fn last_stderr_line(folder: &Utf8Path) -> Option<String> {
    let bytes = untrusted_file::read(&folder.join("stderr.log"), STDERR_BYTES_MAX).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(STDERR_CHARS_MAX).collect())
}
