//! The processes of a scripted agent: commands that it runs, and those that it leaves behind.
//!
//! A command runs in a process group of its own and writes to an unnamed file, so a grandchild that
//! keeps the output open delays nothing. [`ScriptedCommandRegistry`] knows every running command
//! and kills them all when the agent must end. Start at [`ScriptedCommandRegistry::start`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::script::OrphanProcess;
use heeler_model::redact::SecretRedactor;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use uuid::Uuid;

use super::event::ScriptedEvent;
use crate::process::memory_file;
use crate::text_decoder::RedactingTextDecoder;

/// Limit on the output kept of a command, in bytes.
pub(super) const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Working directory and environment of commands.
pub(super) struct ScriptedCommandContext {
    pub(super) cwd: Utf8PathBuf,
    pub(super) variables: Vec<(String, String)>,
}

/// Running commands; shared with the signal handler that must end them.
#[derive(Clone, Default)]
pub(super) struct ScriptedCommandRegistry(Arc<Mutex<Vec<Pid>>>);

/// Started command; its end is a [`ScriptedEvent::Ended`] with its number.
pub(super) struct ScriptedCommandHandle {
    pub(super) number: u32,
    output: File,
}

/// Result of a command.
pub(super) struct ScriptedCommandOutput {
    pub(super) output: String,
    /// Exit code, or 128 plus the signal number.
    pub(super) code: i32,
}

impl ScriptedCommandRegistry {
    pub(super) fn start(
        &self,
        command: &str,
        context: &ScriptedCommandContext,
        events: &SyncSender<ScriptedEvent>,
    ) -> io::Result<ScriptedCommandHandle> {
        let output = unnamed_temp_file()?;
        let (stdout, stderr) = (output.try_clone()?, output.try_clone()?);
        let line = stdin_with_command(command)?;
        let mut command = shell_command(context);
        command.stdin(line).stdout(stdout).stderr(stderr).process_group(0);
        // Locked before the start, so that `kill_all` cannot miss this command.
        let mut children = self.lock();
        let child = command.spawn()?;
        children.push(Pid::from_child(&child));
        drop(children);
        let number = child.id();
        self.watch_exit(child, events.clone());
        Ok(ScriptedCommandHandle { number, output })
    }

    fn watch_exit(&self, mut child: Child, events: SyncSender<ScriptedEvent>) {
        let pid = Pid::from_child(&child);
        let children = self.clone();
        std::thread::spawn(move || {
            // The child is reaped only after its removal from the list, so that its PID cannot be
            // reused while it may be killed.
            let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(pid), exited), Err(rustix::io::Errno::INTR)) {}
            children.lock().retain(|other| *other != pid);
            if let Ok(status) = child.wait() {
                // The agent thread may have ended.
                drop(
                    events
                        .send(ScriptedEvent::Ended { number: child.id(), code: exit_code(status) }),
                );
            }
        });
    }

    /// Kills a command with its process group.
    pub(super) fn kill(&self, running: &ScriptedCommandHandle) {
        // While the lock is held the command is not reaped, so its PID is still its own.
        let children = self.lock();
        let same = |pid: &&Pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(running.number);
        if let Some(pid) = children.iter().find(same) {
            let _ended = kill_process_group(*pid, Signal::KILL);
        }
    }

    /// Kills every running command. No command is started while the returned guard is held.
    pub(super) fn kill_all(&self) -> MutexGuard<'_, Vec<Pid>> {
        let children = self.lock();
        for pid in children.iter() {
            let _ended = kill_process_group(*pid, Signal::KILL);
        }
        children
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScriptedCommandHandle {
    /// Reads the output of a command that has ended. If the output must be truncated, it is
    /// redacted first.
    pub(super) fn read_output(
        mut self,
        code: i32,
        redactor: &SecretRedactor,
    ) -> io::Result<ScriptedCommandOutput> {
        // The file has one position, which the command has moved to the end.
        self.output.rewind()?;
        let mut bytes = Vec::new();
        let limit = OUTPUT_BYTES_MAX as u64;
        let all = self.output.metadata()?.len();
        self.output.take(limit).read_to_end(&mut bytes)?;
        // Half a secret at the cut would not be recognized later.
        let mut output = match all > limit {
            true => RedactingTextDecoder::new(redactor).push(&bytes),
            false => String::from_utf8_lossy(&bytes).into_owned(),
        };
        output.truncate(output.trim_end().len());
        if all > limit {
            output.push_str(&format!("\n[{} more bytes]", all - limit));
        }
        Ok(ScriptedCommandOutput { output, code })
    }
}

/// Starts a process that is never waited for.
pub(super) fn spawn_detached(
    spawn: &OrphanProcess,
    context: &ScriptedCommandContext,
    program: &Utf8Path,
) -> io::Result<()> {
    let mut line = spawn.command.clone();
    if spawn.ignore_term {
        // Ignored signals stay ignored in all processes that the shell starts.
        line = format!("trap '' TERM INT HUP; {line}");
    }
    let mut command = match spawn.setsid {
        // Only a process itself can leave its session: a copy of this program does so, then becomes
        // the shell.
        true => {
            let mut command = new_command(program.as_str(), context);
            command.args(["play", "--in-new-session"]);
            command
        }
        false => shell_command(context),
    };
    if spawn.clear_env {
        command.env_clear();
    }
    command.stdin(stdin_with_command(&line)?);
    if !spawn.hold_output {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    // The child is a zombie of this process until it ends, and is then reaped by another one.
    command.spawn().map(drop)
}

/// Leaves the session of this process and becomes a shell that runs the line passed on standard
/// input.
pub fn exec_in_new_session() -> io::Error {
    match rustix::process::setsid() {
        Ok(_) => {
            let here =
                ScriptedCommandContext { cwd: Utf8PathBuf::from("."), variables: Vec::new() };
            shell_command(&here).exec()
        }
        Err(error) => error.into(),
    }
}

/// Shell script that runs the line passed on standard input, with empty standard input. As an
/// argument every user of the machine could read the line, and it may hold a secret.
const RUN_STDIN_SCRIPT: &str = "exec 3<&0 </dev/null; . /dev/fd/3";

fn shell_command(context: &ScriptedCommandContext) -> Command {
    let mut command = new_command("/bin/sh", context);
    command.args(["-c", RUN_STDIN_SCRIPT]);
    command
}

/// Returns the standard input for [`shell_command`]: the line, in memory.
fn stdin_with_command(line: &str) -> io::Result<Stdio> {
    // The descriptor is closed, so that processes started by the line do not inherit it.
    Ok(memory_file(format!("exec 3<&-; {line}").as_bytes())?.into())
}

#[expect(clippy::disallowed_methods, reason = "the runner's agents start processes")]
fn new_command(program: &str, context: &ScriptedCommandContext) -> Command {
    let mut command = Command::new(program);
    command.current_dir(&context.cwd).envs(context.variables.iter().cloned());
    command
}

fn unnamed_temp_file() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!(".heeler-play-{}", Uuid::new_v4()));
    let mut options = OpenOptions::new();
    let file = options.read(true).append(true).create_new(true).mode(0o600).open(&path)?;
    // Without a name the file disappears with its last user.
    fs::remove_file(&path)?;
    Ok(file)
}

fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
