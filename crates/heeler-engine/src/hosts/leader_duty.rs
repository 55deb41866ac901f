//! Work of the leader for the other hosts: it renews its lead, executes their commands, and records the
//! results that they report.
//!
//! A thread of its own renews the lead, so that no slow transaction loses it. A command is executed
//! under an idempotency key and answered after its commit. If the leader dies in between, the next one
//! executes it again under the same key. Start at [`LeaderDuty::start`].

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heeler_model::{RunId, error_chain};
use heeler_store::{
    DatabaseError, DatabaseOpenError, HOST_COMMANDS_AT_ONCE, HostCommandRow, HostFacts, HostLink,
    HostReportRow, HostState, StoreOpenError,
};

use super::file_archiver::{FileArchiver, RecordedPolicy};
use super::file_copier::FileCopier;
use super::file_shipper::FileShipper;
use super::hint_flag::HintFlag;
use super::host_message::{
    BEAT_PAUSE, EXIT_REPORT, ForwardedCommand, ForwardedReply, LEAD_BEAT_INTERVAL,
    QUESTIONS_REPORT, QuestionsReport,
};
use super::lease_renewal::{read_lease_key, renew_lease};
use super::object_archive::ObjectArchive;
use super::session_mover::SessionMover;
use super::silent_hosts::SilentHosts;
use crate::command::{
    DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError, IdempotencyKey,
};
use crate::daemon_handle::DaemonHandle;
use crate::daemon_open::DaemonOpenError;
use crate::dispatch_input::{DispatchInput, RunExit};
use crate::fault::{self, FaultPoint};
use crate::fleet::{EngineContext, StateOpenError};
use crate::fleet_monitor::FleetMonitor;
use crate::run_questions::RunQuestionFiles;

/// Time after which a report is given to the dispatcher again if its commit failed.
const REPORT_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Most commands of other hosts that are executed at once. Further ones wait in the database.
const COMMANDS_MAX: usize = 512;

/// Capacity of the thread's channel: an answer to each command, a hint, and the end.
const DUTY_EVENTS_MAX: usize = COMMANDS_MAX + HOST_COMMANDS_AT_ONCE + 2;

/// Event for the thread.
enum DutyEvent {
    /// A command was executed or refused.
    Answered {
        id: String,
        reply: Box<ForwardedReply>,
    },
    /// A host may have sent something.
    Hint,
    Stop,
}

/// Handle to the thread.
#[derive(Debug)]
pub(crate) struct LeaderDuty {
    events: SyncSender<DutyEvent>,
    thread: Option<JoinHandle<()>>,
}

impl LeaderDuty {
    /// Records this host as the leader, and starts the thread for the writer with this instance.
    pub(crate) fn start(
        fleet: EngineContext,
        instance: String,
        facts: HostFacts,
        (dispatcher, monitor): (DaemonHandle, FleetMonitor),
    ) -> Result<LeaderDuty, DaemonOpenError> {
        let (events, received) = sync_channel(DUTY_EVENTS_MAX);
        let answers = events.clone();
        let dir = fleet.dir.clone();
        let (lead, objects) = (instance.clone(), ObjectArchive::new(monitor.clone(), fleet.now));
        let policy = RecordedPolicy::default();
        let mover = SessionMover::start(fleet.clone(), monitor).map_err(DaemonOpenError::Thread)?;
        let mut duty = DutyThread {
            fleet,
            instance,
            facts,
            dispatcher,
            answers,
            hint: HintFlag::default(),
            link: None,
            shipper: FileShipper::start(dir.clone()).map_err(DaemonOpenError::Thread)?,
            mover,
            _copier: FileCopier::start(dir.clone(), objects.clone(), policy.clone())
                .map_err(DaemonOpenError::Thread)?,
            _archiver: FileArchiver::start(dir, Some(lead), objects, policy)
                .map_err(DaemonOpenError::Thread)?,
            commits: None,
            silent_hosts: SilentHosts::default(),
            executing: HashSet::new(),
            sent_reports: HashMap::new(),
        };
        // Before anything starts: from here on the length of the lead is known.
        if !duty.beat().map_err(DaemonOpenError::Read)? {
            let error = DatabaseOpenError::Led { holder: "another host".to_owned() };
            let error = Box::new(StoreOpenError::Open(error));
            return Err(DaemonOpenError::Open(StateOpenError::Store(error)));
        }
        let thread = std::thread::Builder::new()
            .name("heeler-lead".to_owned())
            .spawn(move || duty.run(&received))
            .map_err(DaemonOpenError::Thread)?;
        Ok(LeaderDuty { events, thread: Some(thread) })
    }
}

impl Drop for LeaderDuty {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        let _ended = self.events.send(DutyEvent::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the leader's thread had panicked");
        }
    }
}

struct DutyThread {
    fleet: EngineContext,
    instance: String,
    facts: HostFacts,
    dispatcher: DaemonHandle,
    answers: SyncSender<DutyEvent>,
    hint: HintFlag,
    /// `None` while the server cannot be reached.
    link: Option<HostLink>,
    shipper: FileShipper,
    mover: SessionMover,
    _copier: FileCopier,
    _archiver: FileArchiver,
    /// Number of commits when the runs of this host were looked at.
    commits: Option<i64>,
    silent_hosts: SilentHosts,
    /// Commands that have no answer yet.
    executing: HashSet<String>,
    /// Reports that the dispatcher has, with their number and the time.
    sent_reports: HashMap<(RunId, String), (i64, Instant)>,
}

impl DutyThread {
    fn run(&mut self, events: &Receiver<DutyEvent>) {
        let mut next_beat = Instant::now();
        let mut unsent = Vec::new();
        let mut beaten_at = next_beat;
        loop {
            // Before the events: many answers must not delay the renewal.
            if Instant::now() >= next_beat {
                beaten_at = Instant::now();
                match self.beat() {
                    Ok(true) => self.send_answers(&mut unsent),
                    Ok(false) => {
                        // The dispatcher may have ended meanwhile.
                        let _ended = self.dispatcher.send_input(DispatchInput::LeadLost);
                        return;
                    }
                    Err(why) => {
                        tracing::warn!(why, "cannot renew the lead");
                        self.link = None;
                    }
                }
                next_beat = beaten_at + LEAD_BEAT_INTERVAL;
            }
            match events.recv_timeout(next_beat.saturating_duration_since(Instant::now())) {
                Ok(DutyEvent::Answered { id, reply }) => {
                    self.executing.remove(&id);
                    unsent.push((id, reply));
                    self.send_answers(&mut unsent);
                }
                Ok(DutyEvent::Hint) => {
                    self.hint.lower();
                    next_beat = next_beat.min(beaten_at + BEAT_PAUSE);
                }
                Ok(DutyEvent::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.send_answers(&mut unsent);
                    return self.note_end();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn note_end(&self) {
        if let Some(link) = &self.link
            && let Err(error) = link.beat(HostState::Stopped, None, (self.fleet.now)())
        {
            tracing::debug!(reason = error_chain(&error), "the end is not on record");
        }
    }

    /// Renews the lead and does what waits. Returns false if the lead is lost.
    fn beat(&mut self) -> Result<bool, String> {
        // The writer has found that the database lacks commits. The row still names this process, so its
        // lease must not be renewed.
        if self.fleet.lead.is_lost() {
            return Ok(false);
        }
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => {
                let link = HostLink::connect(&self.fleet.dir).map_err(|it| error_chain(&it))?;
                let registered = link.register(&self.facts, HostState::Leader);
                registered.map_err(|error| error_chain(&error))?;
                read_lease_key(&self.fleet, &link).map_err(|error| error_chain(&error))?;
                // A database that took over may lack the last signs of life.
                self.silent_hosts.restart();
                let (hint, events) = (self.hint.clone(), self.answers.clone());
                link.listen_as_leader(move || {
                    hint.raise(|| events.try_send(DutyEvent::Hint).is_ok());
                })
                .map_err(|error| error_chain(&error))?;
                link
            }
        };
        let link = self.link.insert(link);
        let lead = (self.instance.as_str(), &self.fleet.lead);
        let failed = |error: DatabaseError| error_chain(&error);
        let pulse = link.beat(HostState::Leader, Some(lead), (self.fleet.now)()).map_err(failed)?;
        renew_lease(&self.fleet, &pulse);
        if !pulse.is_own {
            return Ok(false);
        }
        if self.commits != Some(pulse.commits) {
            self.shipper.set_runs(link.unshipped_runs().map_err(failed)?);
            self.commits = Some(pulse.commits);
        }
        if let Some(runs) = self.silent_hosts.find(link).map_err(failed)? {
            // If the dispatcher has ended, the next leader finds them.
            let _ended = self.dispatcher.send_input(DispatchInput::LeasesOver(runs));
        }
        if pulse.moves > 0 {
            self.mover.wake();
        }
        if pulse.due_moves > 0 {
            fault::reach(FaultPoint::MoveReported);
            // If the dispatcher has ended, the next leader does it.
            let _ended = self.dispatcher.send_input(DispatchInput::MovesDue);
        }
        if pulse.open_commands > 0 && self.executing.len() < COMMANDS_MAX {
            let taken = link.take_commands(&self.instance).map_err(failed)?;
            self.executing.extend(taken.iter().map(|command| command.id.clone()));
            taken.into_iter().for_each(|command| self.execute(command));
        }
        if pulse.reports > 0 {
            let reports = self.link.as_ref().map(HostLink::reports);
            for report in reports.transpose().map_err(failed)?.unwrap_or_default() {
                self.record(&report).map_err(failed)?;
            }
        }
        Ok(true)
    }

    /// Gives a command to the dispatcher.
    fn execute(&self, row: HostCommandRow) {
        let (id, answers) = (row.id.clone(), self.answers.clone());
        let reply = move |answer| {
            // Not executed: the next leader does it.
            if answer == Err(DaemonCommandError::from(DispatcherStoppedError)) {
                return;
            }
            let reply = Box::new(ForwardedReply::new(answer));
            // It has room for all commands. Without the thread, the next leader answers.
            let _ended = answers.try_send(DutyEvent::Answered { id, reply });
        };
        let forwarded: ForwardedCommand = match serde_json::from_str(&row.body) {
            Ok(forwarded) => forwarded,
            Err(error) => {
                let text = format!("the leader does not know this command: {error}");
                let refused = DaemonCommandError::new(DaemonCommandErrorKind::Usage, text);
                return reply(
                    Err(refused.with_hint("use the same release of heeler on all hosts")),
                );
            }
        };
        let own_key = || IdempotencyKey {
            caller: format!("host {}", row.host),
            key: row.id.clone(),
            fingerprint: row.id.clone(),
        };
        let key = Some(forwarded.key.unwrap_or_else(own_key));
        let handle = self.dispatcher.with_caller(forwarded.caller);
        // If the dispatcher has ended, the reply says so.
        let _ended = handle.send_once(forwarded.command, key, Box::new(reply));
    }

    fn send_answers(&mut self, unsent: &mut Vec<(String, Box<ForwardedReply>)>) {
        let Some(link) = &self.link else { return };
        while let Some((id, reply)) = unsent.last() {
            let text = serde_json::to_string(reply).expect("a reply is JSON");
            if let Err(error) = link.answer_command(&self.instance, id, &text) {
                tracing::warn!(reason = error_chain(&error), "a host gets its answer later");
                return;
            }
            unsent.pop();
        }
    }

    /// Gives a report to the dispatcher. It is removed when its commit is on record.
    fn record(&mut self, report: &HostReportRow) -> Result<(), DatabaseError> {
        let key = (report.run, report.kind.clone());
        let is_sent = self.sent_reports.get(&key).is_some_and(|(number, at)| {
            *number == report.number && at.elapsed() < REPORT_RETRY_DELAY
        });
        if is_sent {
            return Ok(());
        }
        self.sent_reports.retain(|_, (_, at)| at.elapsed() < REPORT_RETRY_DELAY);
        self.sent_reports.insert(key, (report.number, Instant::now()));
        let input = match report.kind.as_str() {
            EXIT_REPORT => serde_json::from_str::<RunExit>(&report.body)
                .map(|exit| DispatchInput::RunEnded(Box::new(exit))),
            kind if kind.starts_with(QUESTIONS_REPORT) => {
                serde_json::from_str::<QuestionsReport>(&report.body).map(|report_body| {
                    DispatchInput::QuestionsChanged {
                        run: report.run,
                        questions: Box::new(RunQuestionFiles::from_raw(&report_body.files)),
                        delivered: report_body.delivered,
                    }
                })
            }
            kind => Err(serde::de::Error::custom(format!("`{kind}` is an unknown kind"))),
        };
        let (run, host) = (report.run, &report.host);
        match input {
            Ok(DispatchInput::RunEnded(exit)) if exit.result.run != run => {
                tracing::error!(%run, host, "a report names another run and is not recorded");
            }
            Ok(input) => {
                // If the dispatcher has ended, the next leader reads the report.
                let is_sent = self.dispatcher.send_input(input).is_ok();
                // The host repeats its questions when the leader changes.
                if is_sent
                    && report.kind != EXIT_REPORT
                    && let Some(link) = &self.link
                {
                    link.forget_report(report)?;
                }
            }
            Err(error) => {
                tracing::error!(%run, host, %error, "a report of another release cannot be read");
            }
        }
        Ok(())
    }
}
