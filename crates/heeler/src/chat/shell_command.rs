//! A command that the person runs beside a conversation (`!command`). Start at
//! [`ShellCommandRunner`].

use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_chat::{ChatFleetEvent, ShellCommandOutput};
use rustix::process::{Pid, Signal, kill_process_group};

/// Longest run of a command.
const SHELL_TIME_MAX: Duration = Duration::from_secs(600);
/// Bytes of output that are kept: the end, which usually tells most.
const SHELL_OUTPUT_BYTES_MAX: usize = 32 << 10;
/// Time between a request to end and a kill.
const SHELL_GRACE: Duration = Duration::from_secs(2);
/// Time in which the pipe of a killed command must close.
const PIPE_CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Interval of checks for the end of the command.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs commands of the person, one at a time.
pub(super) struct ShellCommandRunner {
    folder: Utf8PathBuf,
    events: SyncSender<ChatFleetEvent>,
    stop: Arc<AtomicBool>,
    /// Process group of the running command. It is cleared before its ID can be used again.
    group: Arc<Mutex<Option<Pid>>>,
}

impl ShellCommandRunner {
    pub(super) fn new(
        folder: Utf8PathBuf,
        events: SyncSender<ChatFleetEvent>,
    ) -> ShellCommandRunner {
        ShellCommandRunner { folder, events, stop: Arc::default(), group: Arc::default() }
    }

    /// Starts a command; its end is an event.
    pub(super) fn start(&self, command: &str) -> Result<(), String> {
        let (child, output) = spawn(command, &self.folder).map_err(|error| error.to_string())?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = pid;
        self.stop.store(false, Ordering::Relaxed);
        let watch = ShellCommandWatch {
            child,
            pid,
            stop: Arc::clone(&self.stop),
            group: Arc::clone(&self.group),
        };
        let (events, command) = (self.events.clone(), command.to_owned());
        thread::spawn(move || {
            let tail = read_tail(output);
            let outcome = watch.wait();
            let output = tail.recv_timeout(PIPE_CLOSE_WAIT).unwrap_or_else(|_| {
                "(a process that the command left behind keeps its output open)".to_owned()
            });
            // The conversation has ended if this fails.
            drop(events.send(ChatFleetEvent::ShellEnded(ShellCommandOutput {
                command,
                output,
                outcome,
            })));
        });
        Ok(())
    }

    /// Asks the command to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for ShellCommandRunner {
    fn drop(&mut self) {
        // The thread that watches the command ends with the program, so it could not do this.
        if let Some(group) = *self.group.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ended = kill_process_group(group, Signal::KILL);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the person typed this command on their terminal")]
fn spawn(command: &str, folder: &Utf8Path) -> std::io::Result<(Child, impl Read + Send + 'static)> {
    let (output, writer) = std::io::pipe()?;
    let child = Command::new("sh")
        .args(["-c", command])
        .current_dir(folder)
        // The terminal belongs to the screen.
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        // A group of its own, so that everything it starts can be ended.
        .process_group(0)
        .spawn()?;
    Ok((child, output))
}

/// Command in progress.
struct ShellCommandWatch {
    child: Child,
    pid: Option<Pid>,
    stop: Arc<AtomicBool>,
    group: Arc<Mutex<Option<Pid>>>,
}

impl ShellCommandWatch {
    /// Waits for the end, and ends what the command has left behind. Returns how it ended.
    fn wait(mut self) -> String {
        let until = Instant::now() + SHELL_TIME_MAX;
        let mut kill_at = None;
        let mut reason = None;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            let now = Instant::now();
            let is_stopped = self.stop.load(Ordering::Relaxed);
            if kill_at.is_none() && (is_stopped || now >= until) {
                let limit = SHELL_TIME_MAX.as_secs() / 60;
                reason = Some(match is_stopped {
                    true => "stopped".to_owned(),
                    false => format!("stopped after {limit} minutes"),
                });
                self.signal(Signal::TERM);
                kill_at = Some(now + SHELL_GRACE);
            }
            if kill_at.is_some_and(|at| now >= at) {
                self.signal(Signal::KILL);
            }
            thread::sleep(POLL_INTERVAL);
        };
        // The shell is reaped, but the ID of its group stays taken while a process is in it.
        self.signal(Signal::KILL);
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = None;
        reason.unwrap_or_else(|| match status {
            Ok(status) => describe_exit(status),
            Err(error) => format!("its end is unknown: {error}"),
        })
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            // The group may be empty already.
            let _ended = kill_process_group(pid, signal);
        }
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Reads output to its end in a thread of its own; keeps the last part.
fn read_tail(mut output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, tail) = sync_channel(1);
    thread::spawn(move || {
        let (mut kept, mut dropped) = (Vec::new(), 0);
        let mut part = [0; 8192];
        // An error ends the output, too.
        while let Ok(count @ 1..) = output.read(&mut part) {
            kept.extend_from_slice(&part[..count]);
            // Cut at twice the size, so that the bytes are not moved for every part.
            if kept.len() > 2 * SHELL_OUTPUT_BYTES_MAX {
                let cut = kept.len() - SHELL_OUTPUT_BYTES_MAX;
                kept.drain(..cut);
                dropped += cut;
            }
        }
        let cut = kept.len().saturating_sub(SHELL_OUTPUT_BYTES_MAX);
        kept.drain(..cut);
        let text = heeler_model::sanitize(&String::from_utf8_lossy(&kept));
        // No one waits any more if this fails.
        drop(sender.send(match dropped + cut {
            0 => text,
            bytes => format!("(the first {bytes} bytes are left out)\n{text}"),
        }));
    });
    tail
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, act: impl FnOnce(&ShellCommandRunner)) -> ShellCommandOutput {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        let (sender, events) = sync_channel(1);
        let runner = ShellCommandRunner::new(folder, sender);
        runner.start(command).unwrap();
        act(&runner);
        match events.recv_timeout(Duration::from_secs(60)) {
            Ok(ChatFleetEvent::ShellEnded(ended)) => ended,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn output_and_exit_are_told_and_nothing_stays_behind() {
        let ended = run("echo out; echo err >&2; exit 3", |_| {});
        assert_eq!(
            (ended.output.as_str(), ended.outcome.as_str()),
            ("out\nerr\n", "exit status 3")
        );
        let ended = run("sleep 1000 & echo $!", |_| {});
        let pid = Pid::from_raw(ended.output.trim().parse().unwrap()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        // An orphan is a zombie until it is reaped.
        let is_running = || {
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                .is_ok_and(|stat| !stat.contains(") Z "))
        };
        while is_running() {
            assert!(Instant::now() < until, "the process was not ended");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_command_is_stopped_even_if_it_does_not_want_to() {
        let ended = run("trap '' TERM; echo begun; while :; do sleep 0.1; done", |runner| {
            thread::sleep(Duration::from_millis(200));
            runner.stop();
        });
        assert_eq!(ended.outcome, "stopped");
    }

    #[test]
    fn long_output_keeps_its_end_and_no_control_characters() {
        let ended = run("yes 0123456789 | head -c 1000000; printf '\\033[2Jend'", |_| {});
        assert!(ended.output.len() < SHELL_OUTPUT_BYTES_MAX + 100, "{}", ended.output.len());
        assert!(ended.output.starts_with("(the first "), "{}", &ended.output[..60]);
        assert!(ended.output.ends_with("end") && !ended.output.contains('\u{1b}'));
    }
}
