//! A host that does not lead: it passes commands on, cares for its own runs, and takes over.
//!
//! It decides nothing, and changes no record but the claim of a run that the leader gave it. It starts
//! such runs, ships their transcripts, reports their ends and questions to the leader, and delivers
//! answers and cancellations that are on record. Runs that it started while it led continue.
//! Start at [`StandbyDaemon::open`].

mod pending_commands;

use std::collections::{BTreeSet, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::daemon_status::{DaemonMode, DaemonStatus};
use heeler_model::redact::SecretRedactor;
use heeler_model::{JobId, RunId, error_chain};
use heeler_store::{
    FleetPulse, HOST_MESSAGE_BYTES_MAX, HostFacts, HostLink, HostState, RunMessage, StoreOpenError,
    StoreReader, acquire_writer_lock, is_run_alive,
};
use heeler_transcript::{LockFile, LockHolder};
use jiff::Timestamp;
use uuid::Uuid;

use self::pending_commands::PendingCommands;
use super::file_archiver::{FileArchiver, RecordedPolicy};
use super::file_copier::FileCopier;
use super::file_shipper::FileShipper;
use super::hint_flag::HintFlag;
use super::host_message::{
    BEAT_PAUSE, ForwardedCommand, QUESTIONS_REPORT, QuestionsReport, STANDBY_BEAT_INTERVAL,
};
use super::lease_renewal::{read_lease_key, renew_lease};
use super::object_archive::ObjectArchive;
use super::session_mover::SessionMover;
use crate::caller::Caller;
use crate::cancel;
use crate::chat::SaidMessageResult;
use crate::command::{
    CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind, PendingReply,
};
use crate::config_guard::ConfigGuard;
use crate::daemon_handle::DaemonHandle;
use crate::daemon_open::{DaemonOpenError, refuse_held_change};
use crate::dispatch::SetupLoader;
use crate::dispatch_input::DispatchInput;
use crate::executor::{EffectExecutor, SaidMessageDelivery, SaidText};
use crate::fault::{self, FaultPoint};
use crate::fleet::{EngineContext, StateOpenError};
use crate::fleet_monitor::{CommitNotice, FleetMonitor};
use crate::run_questions;
use crate::setup::DaemonSetup;
use crate::watchdog::RunnerWatchdog;

/// Interval at which answers and cancellations for own runs are looked for.
const RUN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The same for a host without runs. A new run is noticed by the number of commits.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Time after the end of the leader's lease at which this host looks if it was renewed.
const LEASE_MARGIN: Duration = Duration::from_millis(20);

/// Interval at which the end of the connection to the server is logged.
const LINK_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Options of a standby.
pub struct StandbyOptions {
    pub fleet: EngineContext,
    /// Function that reads the config.
    pub load: SetupLoader,
    pub facts: HostFacts,
    /// Time to wait for another process that writes the state directory.
    pub lock_timeout: Duration,
    /// Time after which a runner that does not reply counts as hung.
    pub silence_max: Duration,
}

/// Reason for the end of a standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyExit {
    /// A `stop` command.
    Stopped,
    /// This host has taken the lead.
    Promoted,
    /// Its state directory was removed, moved or replaced.
    StateLost,
}

/// A host that stands by and is ready to run.
pub struct StandbyDaemon {
    fleet: EngineContext,
    load: SetupLoader,
    facts: HostFacts,
    since: Timestamp,
    lock: LockFile,
    handle: DaemonHandle,
    inputs: Receiver<DispatchInput>,
    monitor: FleetMonitor,
    executor: EffectExecutor,
    watchdog: Option<RunnerWatchdog>,
    shipper: FileShipper,
    mover: SessionMover,
    _copier: FileCopier,
    _archiver: FileArchiver,
    link: Option<HostLink>,
    pulse: FleetPulse,
    commands: PendingCommands,
    /// Own runs that were taken over and have not ended.
    runs: Arc<Mutex<BTreeSet<RunId>>>,
    /// Cancellations that were sent.
    cancelled: HashSet<(RunId, bool)>,
    /// Messages for own runs that are on their way to the agents.
    delivering: HashSet<Uuid>,
    /// Inputs that the leader does not have yet.
    unsent: Vec<DispatchInput>,
    /// Runs to look at again.
    unsettled: Vec<(Instant, RunId)>,
    link_failed_at: Option<Instant>,
    /// True if runs that were given up have been looked for.
    has_swept_runs: bool,
    /// True if the leader has committed something since runs were looked at.
    is_check_due: bool,
    hint: HintFlag,
    /// True if the server gave a hint since the last sign of life.
    is_hinted: bool,
}

impl StandbyDaemon {
    /// Takes the lock of the state directory, and records this host.
    pub fn open(options: StandbyOptions) -> Result<StandbyDaemon, DaemonOpenError> {
        let StandbyOptions { fleet, mut load, facts, lock_timeout, silence_max } = options;
        let setup = Arc::new(load().map_err(DaemonOpenError::Config)?);
        let since = (fleet.now)();
        let holder = LockHolder::this_process("start", since);
        let lock = acquire_writer_lock(&fleet.dir, &fleet.dir.lock(), &holder, lock_timeout);
        let lock = lock.map_err(|source| {
            let (dir, waited) = (fleet.dir.root().to_owned(), lock_timeout);
            let source = Box::new(StoreOpenError::Lock { dir: dir.clone(), source });
            DaemonOpenError::Open(StateOpenError::Busy { dir, waited, source })
        })?;
        let link = HostLink::connect(&fleet.dir)
            .map_err(|error| DaemonOpenError::Read(error_chain(&error)))?;
        link.register(&facts, HostState::Standby)
            .map_err(|error| DaemonOpenError::Write(error_chain(&error)))?;
        read_lease_key(&fleet, &link)
            .map_err(|error| DaemonOpenError::Read(error_chain(&error)))?;
        // The leader may not have created the tables yet.
        if StoreReader::open(&fleet.dir).is_ok() {
            refuse_held_change(&fleet, &setup)?;
        }
        let (handle, inputs) = DaemonHandle::channel(fleet.hook_grants.clone());
        let monitor = FleetMonitor::new(Arc::clone(&setup));
        let executor = EffectExecutor::new(fleet.clone(), handle.clone(), setup)
            .map_err(DaemonOpenError::Thread)?;
        let runs = Arc::<Mutex<BTreeSet<RunId>>>::default();
        let known = Arc::clone(&runs);
        let live =
            move || known.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let watchdog = RunnerWatchdog::start(fleet.clone(), silence_max, live)
            .map_err(DaemonOpenError::Thread)?;
        let shipper = FileShipper::start(fleet.dir.clone()).map_err(DaemonOpenError::Thread)?;
        let mover =
            SessionMover::start(fleet.clone(), monitor.clone()).map_err(DaemonOpenError::Thread)?;
        let policy = RecordedPolicy::default();
        let objects = ObjectArchive::new(monitor.clone(), fleet.now);
        let copier = FileCopier::start(fleet.dir.clone(), objects.clone(), policy.clone())
            .map_err(DaemonOpenError::Thread)?;
        let archiver = FileArchiver::start(fleet.dir.clone(), None, objects, policy)
            .map_err(DaemonOpenError::Thread)?;
        Ok(StandbyDaemon {
            fleet,
            load,
            facts,
            since,
            lock,
            handle,
            inputs,
            monitor,
            executor,
            watchdog: Some(watchdog),
            shipper,
            mover,
            _copier: copier,
            _archiver: archiver,
            link: Some(link),
            pulse: FleetPulse::default(),
            commands: PendingCommands::default(),
            runs,
            cancelled: HashSet::new(),
            delivering: HashSet::new(),
            unsent: Vec::new(),
            unsettled: Vec::new(),
            link_failed_at: None,
            has_swept_runs: false,
            is_check_due: false,
            hint: HintFlag::default(),
            is_hinted: false,
        })
    }

    /// Returns a handle for sending commands.
    pub fn handle(&self) -> DaemonHandle {
        self.handle.clone()
    }

    /// Returns the view of the host's config, and of commits of the leader.
    pub fn snapshot(&self) -> FleetMonitor {
        self.monitor.clone()
    }

    /// Runs until it is stopped, takes the lead, or loses its state directory. `at_end` is called
    /// before the lock is released, and not at all if another process owns the state directory.
    pub fn run(mut self, at_end: impl FnOnce()) -> StandbyExit {
        let ended = self.run_loop();
        self.commands.abandon(self.link.as_ref());
        drop(self.watchdog.take());
        if ended != StandbyExit::StateLost {
            at_end();
        }
        if ended == StandbyExit::Stopped
            && let Some(link) = &self.link
            && let Err(error) = link.beat(HostState::Stopped, None, (self.fleet.now)())
        {
            tracing::debug!(reason = error_chain(&error), "the end is not on record");
        }
        ended
    }

    fn run_loop(&mut self) -> StandbyExit {
        let (mut next_beat, mut next_check) = (Instant::now(), Instant::now());
        let mut beaten_at = next_beat;
        loop {
            if !self.lock.is_intact() {
                return StandbyExit::StateLost;
            }
            if std::mem::take(&mut self.is_hinted) {
                next_beat = next_beat.min(beaten_at + BEAT_PAUSE);
            }
            if Instant::now() >= next_beat {
                beaten_at = Instant::now();
                match self.beat() {
                    Ok(true) => return StandbyExit::Promoted,
                    Ok(false) => self.link_failed_at = None,
                    Err(why) => self.note_lost_link(&why),
                }
                next_beat = Instant::now() + self.beat_interval();
            }
            if Instant::now() >= next_check || self.is_check_due {
                self.is_check_due = false;
                let is_done = self.check_runs();
                next_check = Instant::now() + self.check_interval(is_done);
            }
            self.commands.poll(self.link.as_ref());
            let wake_at = self.commands.wake_at().map_or(next_beat, |at| at.min(next_beat));
            match self.inputs.recv_timeout(wake_at.saturating_duration_since(Instant::now())) {
                Ok(input) => {
                    if self.handle_input(input) {
                        return StandbyExit::Stopped;
                    }
                }
                // The executor holds a sender.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Returns the time until the next sign of life. A host that may take the lead looks just after the end
    /// of the lease.
    fn beat_interval(&self) -> Duration {
        match self.pulse.lease_left {
            Duration::ZERO => STANDBY_BEAT_INTERVAL,
            left => STANDBY_BEAT_INTERVAL.min(left + LEASE_MARGIN),
        }
    }

    /// Returns the time until runs are looked at again without a commit of the leader.
    fn check_interval(&self, is_done: bool) -> Duration {
        let is_idle = is_done && self.unsettled.is_empty() && self.own_runs().is_empty();
        if is_idle { IDLE_CHECK_INTERVAL } else { RUN_CHECK_INTERVAL }
    }

    fn note_lost_link(&mut self, why: &str) {
        self.link = None;
        self.pulse.lease_left = Duration::ZERO;
        if self.link_failed_at.is_none_or(|at| at.elapsed() >= LINK_LOG_INTERVAL) {
            tracing::warn!(why, "cannot use the database");
            self.link_failed_at = Some(Instant::now());
        }
    }

    /// Gives a sign of life. Returns true if this host has taken the lead.
    fn beat(&mut self) -> Result<bool, String> {
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => {
                let link = HostLink::connect(&self.fleet.dir).map_err(|it| error_chain(&it))?;
                link.register(&self.facts, HostState::Standby).map_err(|it| error_chain(&it))?;
                read_lease_key(&self.fleet, &link).map_err(|it| error_chain(&it))?;
                self.forget_ended_runs();
                link
            }
        };
        let link = self.link.insert(link);
        // Later calls have no effect.
        let (hint, handle) = (self.hint.clone(), self.handle.clone());
        link.listen_as_standby(move || {
            hint.raise(|| handle.try_send_input(DispatchInput::HostHint));
        })
        .map_err(|it| error_chain(&it))?;
        let pulse = link
            .beat(HostState::Standby, None, (self.fleet.now)())
            .map_err(|it| error_chain(&it))?;
        renew_lease(&self.fleet, &pulse);
        if let Some(to) = &pulse.moved_to {
            return Err(format!("the records were moved to {to}"));
        }
        if pulse.is_free && link.take_lead().map_err(|it| error_chain(&it))? {
            tracing::info!("no host leads the fleet; this one takes the lead");
            return Ok(true);
        }
        let before = std::mem::replace(&mut self.pulse, pulse);
        if before.commits != self.pulse.commits {
            self.is_check_due = true;
            let notice = CommitNotice { duration: Duration::ZERO, ended_runs: Vec::new() };
            self.monitor.notify_listeners(&notice);
        }
        if before.leader != self.pulse.leader {
            let leader = self.pulse.leader.as_deref().unwrap_or("no host");
            tracing::info!(leader, "stands by");
        }
        if before.term != self.pulse.term {
            // The leader before may have ended before it recorded the questions.
            for run in self.own_runs() {
                self.executor.resume_questions(run);
            }
        }
        for input in std::mem::take(&mut self.unsent) {
            self.report(input);
        }
        if self.pulse.moves > 0 {
            self.mover.wake();
        }
        if self.pulse.messages > 0 {
            self.deliver_messages();
        }
        Ok(false)
    }

    /// Delivers the messages that the leader has for runs of this host.
    fn deliver_messages(&mut self) {
        let Some(link) = &self.link else { return };
        let messages = match link.run_messages() {
            Ok(messages) => messages,
            Err(error) => {
                return tracing::warn!(reason = error_chain(&error), "cannot read messages");
            }
        };
        for RunMessage { id, run, job, text } in messages {
            if !self.delivering.insert(id) {
                continue;
            }
            fault::reach(FaultPoint::MessageFetched);
            self.executor.send_said_message(SaidMessageDelivery {
                effect: id.to_string(),
                job,
                run: Some(run),
                message_id: Some(id),
                text,
            });
        }
    }

    /// Records that a message was delivered, or cannot be. If that fails it is delivered again, and the
    /// runner recognizes its ID.
    fn answer_message(&mut self, result: &SaidMessageResult) {
        let Ok(id) = result.effect.parse::<Uuid>() else { return };
        self.delivering.remove(&id);
        let answered = self.link.as_ref().map(|link| link.answer_run_message(id, result.is_taken));
        if let Some(Err(error)) = answered {
            tracing::warn!(reason = error_chain(&error), "a message is delivered again");
        }
    }

    /// Lets runs that have ended, and have no result on record, be reported again: a server that took over
    /// may lack the report.
    fn forget_ended_runs(&mut self) {
        let dir = &self.fleet.dir;
        let mut known = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|run| is_run_alive(&dir.run(*run)));
        drop(known);
        // A run may be unknown to the server.
        self.has_swept_runs = false;
        self.is_check_due = true;
    }

    fn own_runs(&self) -> Vec<RunId> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Takes over own runs that have no result on record, and delivers what is on record for them. Returns
    /// false if the records could not be read.
    fn check_runs(&mut self) -> bool {
        let Some(link) = &self.link else { return false };
        // Without tables there are no runs yet; other problems are those of the link too.
        let Ok(reader) = StoreReader::open(&self.fleet.dir) else { return false };
        let Ok(open) = reader.uncommitted_runs() else { return false };
        let Ok(unshipped) = link.unshipped_runs() else { return false };
        let own = open.iter().filter(|run| !run.is_elsewhere(&self.fleet.dir));
        let own: BTreeSet<RunId> = own.map(|run| run.id).collect();
        // A run with a result, or without a row, is not looked at any more.
        self.unsettled.retain(|(_, run)| own.contains(run));
        let due = |(at, _): &(Instant, RunId)| *at <= Instant::now();
        let retried: Vec<RunId> =
            self.unsettled.extract_if(.., |it| due(it)).map(|(_, run)| run).collect();
        for run in retried {
            self.executor.adopt_run(run);
        }
        let known = {
            let mut known = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, own.clone())
        };
        // Their results are on record, or their rows are gone. Some may still run.
        if !std::mem::replace(&mut self.has_swept_runs, true) || !known.is_subset(&own) {
            self.executor.end_given_up_runs();
        }
        self.shipper.set_runs(unshipped);
        for run in own.difference(&known) {
            tracing::info!(%run, "a run of this host has no result yet");
            self.executor.adopt_run(*run);
        }
        self.cancelled.retain(|(run, _)| own.contains(run));
        if own.is_empty() {
            return true;
        }
        for (run, wish) in cancel::pending_requests(&reader).unwrap_or_default() {
            if own.contains(&run) && self.cancelled.insert((run, wish.now)) {
                self.executor.cancel_run(run, wish.now, wish.by);
            }
        }
        for run in own {
            let is_asked = reader
                .undelivered_approvals(run)
                .is_ok_and(|left| left.iter().any(|approval| approval.status.is_answered()));
            if is_asked {
                self.executor.resume_questions(run);
            }
        }
        true
    }

    /// Handles an input. Returns true if this host is to stop.
    fn handle_input(&mut self, input: DispatchInput) -> bool {
        match input {
            DispatchInput::Command { command, caller, pending } => {
                return self.handle_command(command, caller, pending);
            }
            DispatchInput::RunUnsettled { run, why, retry_after } => {
                if let Some(why) = why {
                    tracing::warn!(%run, why, "a run cannot be settled yet");
                }
                self.unsettled.push((Instant::now() + retry_after, run));
            }
            input @ (DispatchInput::RunEnded(_) | DispatchInput::QuestionsChanged { .. }) => {
                self.report(input);
            }
            DispatchInput::SaidMessageAttempted(result) => self.answer_message(&result),
            DispatchInput::HostHint => {
                self.hint.lower();
                self.is_hinted = true;
            }
            // Only a leader has these.
            _ => {}
        }
        false
    }

    /// Reports a run to the leader; keeps the report if the server cannot be reached.
    fn report(&mut self, input: DispatchInput) {
        let (run, kind, body) = match &input {
            DispatchInput::RunEnded(exit) => {
                let body = serde_json::to_string(exit).expect("a report is JSON");
                return self.shipper.report_exit(exit.result.run, body);
            }
            DispatchInput::QuestionsChanged { run, delivered, .. } => {
                // The leader checks the signatures, so it gets the files as they are.
                let files = run_questions::read_raw_files(&self.fleet.dir.run(*run));
                let kind = match delivered {
                    Some(approval) => format!("{QUESTIONS_REPORT} {approval}"),
                    None => QUESTIONS_REPORT.to_owned(),
                };
                let report = QuestionsReport { files, delivered: delivered.clone() };
                (*run, kind, serde_json::to_string(&report))
            }
            _ => return,
        };
        let body = body.expect("a report is JSON");
        let sent = self.link.as_ref().map(|link| link.send_report((run, 0), &kind, &body));
        match sent {
            Some(Ok(())) => tracing::info!(%run, kind, "reported to the leader"),
            Some(Err(error)) => {
                tracing::warn!(%run, reason = error_chain(&error), "the leader gets a report later");
                self.unsent.push(input);
            }
            None => self.unsent.push(input),
        }
    }

    fn handle_command(
        &mut self,
        command: DaemonCommand,
        caller: Caller,
        pending: PendingReply,
    ) -> bool {
        match (command, caller) {
            (DaemonCommand::Stop(_), Caller::Person) => {
                let left = self.own_runs().len();
                let message = match left {
                    0 => "stopped".to_owned(),
                    left => format!("stopped; jobs that continue: {left}"),
                };
                pending.send(Ok(CommandReply::Done { message }));
                return true;
            }
            (DaemonCommand::Reload, Caller::Person) => pending.send(self.reload()),
            (DaemonCommand::Say { job, text, by }, Caller::Person)
                if self.own_run_of(&job).is_some() =>
            {
                let run = self.own_run_of(&job).expect("it was found");
                self.executor.send_message(run, SaidText { job, text, by }, pending);
            }
            (command, caller) => self.forward(command, caller, pending),
        }
        false
    }

    /// Returns the run of a job that this host executes.
    fn own_run_of(&self, job: &JobId) -> Option<RunId> {
        let own = self.own_runs();
        let runs = StoreReader::open(&self.fleet.dir).ok()?.runs_of_job(job).ok()?;
        runs.iter().rev().map(|run| run.id).find(|run| own.contains(run))
    }

    /// Reads the config again. The leader has its own.
    fn reload(&mut self) -> Result<CommandReply, DaemonCommandError> {
        let refuse = |kind, text: String| Err(DaemonCommandError::new(kind, text));
        let setup = match (self.load)() {
            Ok(setup) => Arc::new(setup),
            Err(faults) => return refuse(DaemonCommandErrorKind::Usage, faults),
        };
        if let Some(change) = self.held_change(&setup)? {
            return refuse(DaemonCommandErrorKind::Unconfirmed, change);
        }
        self.executor.replace_setup(Arc::clone(&setup));
        self.monitor.replace_setup(setup);
        Ok(CommandReply::Reloaded { changes: Vec::new() })
    }

    fn held_change(&self, setup: &DaemonSetup) -> Result<Option<String>, DaemonCommandError> {
        let trouble = |error: &dyn std::error::Error| {
            DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(error))
        };
        let reader = StoreReader::open(&self.fleet.dir).map_err(|error| trouble(&error))?;
        let guard = ConfigGuard::load(&reader).map_err(|error| trouble(&error))?;
        let change = guard.held_change(&setup.content, &SecretRedactor::new(&setup.secrets()));
        Ok(change.map(|change| change.summary()))
    }

    /// Passes a command on to the leader.
    fn forward(&mut self, command: DaemonCommand, caller: Caller, pending: PendingReply) {
        let is_status = command == DaemonCommand::Status;
        let PendingReply { reply, key, .. } = pending;
        let body = serde_json::to_string(&ForwardedCommand { caller, command, key });
        let body = body.expect("a command is JSON");
        if body.len() > HOST_MESSAGE_BYTES_MAX {
            let text = format!(
                "the command has {} bytes; a host passes on at most {HOST_MESSAGE_BYTES_MAX}",
                body.len()
            );
            return reply(Err(DaemonCommandError::new(DaemonCommandErrorKind::Usage, text)));
        }
        let instead = is_status.then(|| Box::new(self.status()));
        self.commands.send(self.link.as_ref(), body, reply, instead);
    }

    /// Returns the status of this host alone, for the case that no leader answers.
    fn status(&self) -> DaemonStatus {
        let fault = match &self.pulse.leader {
            Some(leader) => {
                format!("this host stands by, and the leader ({leader}) does not answer")
            }
            None => "this host stands by, and no host leads the fleet".to_owned(),
        };
        DaemonStatus {
            pid: std::process::id(),
            version: self.facts.version.clone(),
            since: self.since,
            mode: DaemonMode::Permanent,
            stopping: false,
            config: self.monitor.setup().config.clone(),
            schedules: Vec::new(),
            queue: Vec::new(),
            running: Vec::new(),
            parked: Vec::new(),
            budgets: Vec::new(),
            faults: vec![fault],
            held_change: None,
            chats: Vec::new(),
        }
    }
}
