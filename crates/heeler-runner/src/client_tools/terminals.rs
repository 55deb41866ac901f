//! Commands that the runner executes for its agent.
//!
//! Each is a process of the run, with a session and a process group of its own, and ends with the run.
//! The end of its output is kept, up to a limit. Start at [`ClientTerminals`].

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heeler_model::error_chain;
use heeler_model::redact::SecretRedactor;
use indexmap::IndexMap;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{ClientToolReply, TerminalCommand};
use crate::process::{AgentProcess, LaunchArg, LaunchSpec, ProcessTree, SpawnContext};

/// Limit on open terminals; an agent with more must release one.
pub(crate) const OPEN_TERMINALS_MAX: usize = 64;

/// Limit on the kept output of one terminal; the beginning is left out. Some agents read the whole again
/// and again while the command runs.
pub(crate) const TERMINAL_OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Time after which a command is killed.
const TERMINAL_TIME_MAX: Duration = Duration::from_hours(12);

/// Shell for a command that is one line.
const SHELL: &str = "/bin/sh";

/// Text in place of the rest of a line whose beginning is not kept.
const CUT_MARK: &str = "[the beginning of the output is left out]\n";

/// Length in which a cut secret may be, if the text has no line break there.
const CUT_SECRET_BYTES_MAX: usize = 4 << 10;

const READ_BYTES: usize = 16 << 10;

/// Environment of the commands of a run.
#[derive(Debug, Clone)]
pub(crate) struct TerminalContext {
    /// Environment of the agent.
    pub(crate) env: IndexMap<String, String>,
    /// Secrets that must not appear in arguments.
    pub(crate) secrets: SecretRedactor,
}

/// Terminals of an agent, by their IDs.
#[derive(Debug)]
pub(crate) struct ClientTerminals {
    open: HashMap<String, ClientTerminal>,
    /// Tasks that read the outputs. They end with this value.
    watchers: JoinSet<()>,
    time_max: Duration,
}

#[derive(Debug)]
struct ClientTerminal {
    output: Arc<Mutex<TerminalOutput>>,
    exit: watch::Receiver<Option<ExitStatus>>,
    kill: Arc<Notify>,
}

impl Default for ClientTerminals {
    fn default() -> ClientTerminals {
        ClientTerminals {
            open: HashMap::new(),
            watchers: JoinSet::new(),
            time_max: TERMINAL_TIME_MAX,
        }
    }
}

impl ClientTerminals {
    /// Starts a command.
    pub(crate) fn create(
        &mut self,
        id: &str,
        command: &TerminalCommand,
        tree: &ProcessTree,
        context: &TerminalContext,
    ) -> ClientToolReply {
        while self.watchers.try_join_next().is_some() {}
        if self.watchers.len() >= OPEN_TERMINALS_MAX {
            let reason = format!("{OPEN_TERMINALS_MAX} commands are running: end one");
            return ClientToolReply { terminal: None, output: None, result: Err(reason) };
        }
        let text = |text: &str| LaunchArg::Text(text.to_owned());
        let (program, args) = match command.args.as_slice() {
            [] => (SHELL, vec![text("-c"), text(&command.program)]),
            args => (command.program.as_str(), args.iter().map(|arg| text(arg)).collect()),
        };
        let launch = LaunchSpec { program: program.into(), args, env: command.env.clone() };
        let spawn_context = SpawnContext {
            cwd: &command.directory,
            env: &context.env,
            inherit: &[],
            secrets: &context.secrets,
        };
        let result = match tree.spawn_terminal(&launch, &spawn_context) {
            Ok(process) => {
                self.watch(id, process, command.output_bytes_max);
                Ok(json!({ "terminalId": id }))
            }
            Err(error) => Err(error_chain(&error)),
        };
        ClientToolReply { terminal: Some(id.to_owned()), output: None, result }
    }

    fn watch(&mut self, id: &str, process: AgentProcess, output_bytes_max: usize) {
        let limit = output_bytes_max.min(TERMINAL_OUTPUT_BYTES_MAX);
        let output = Arc::new(Mutex::new(TerminalOutput::new(limit)));
        let (exited, exit) = watch::channel(None);
        let kill = Arc::new(Notify::new());
        let watcher = TerminalWatcher {
            process,
            output: Arc::clone(&output),
            exited,
            kill: Arc::clone(&kill),
            time_max: self.time_max,
        };
        self.watchers.spawn(watcher.run());
        self.open.insert(id.to_owned(), ClientTerminal { output, exit, kill });
    }

    /// Returns the output so far.
    pub(crate) fn read_output(&self, id: &str) -> ClientToolReply {
        let Some(terminal) = self.open.get(id) else { return unknown(id) };
        let (text, truncated) = lock(&terminal.output).text();
        let output = recorded_text(&text, truncated);
        let mut result = json!({ "output": text, "truncated": truncated });
        if let Some(status) = *terminal.exit.borrow() {
            result["exitStatus"] = describe_exit(status);
        }
        ClientToolReply { terminal: Some(id.to_owned()), output: Some(output), result: Ok(result) }
    }

    /// Waits for the end of a command.
    pub(crate) fn wait_for_exit(
        &self,
        id: &str,
    ) -> impl Future<Output = ClientToolReply> + Send + use<> {
        let id = id.to_owned();
        let terminal = self.open.get(&id);
        let terminal = terminal.map(|it| (it.exit.clone(), Arc::clone(&it.output)));
        async move {
            let Some((mut exit, output)) = terminal else { return unknown(&id) };
            // The watcher ends without a status only together with the run.
            let status = exit.wait_for(Option::is_some).await.ok().and_then(|status| *status);
            let result = status
                .map(describe_exit)
                .ok_or_else(|| format!("terminal {id} ended with the run"));
            let (text, is_truncated) = lock(&output).text();
            let output = Some(recorded_text(&text, is_truncated));
            ClientToolReply { terminal: Some(id), output, result }
        }
    }

    /// Kills a command. Its terminal stays.
    pub(crate) fn kill(&self, id: &str) -> ClientToolReply {
        let Some(terminal) = self.open.get(id) else { return unknown(id) };
        terminal.kill.notify_one();
        ClientToolReply { terminal: Some(id.to_owned()), output: None, result: Ok(json!({})) }
    }

    /// Kills a command and forgets its terminal.
    pub(crate) fn release(&mut self, id: &str) -> ClientToolReply {
        let reply = self.read_output(id);
        if let Some(terminal) = self.open.remove(id) {
            terminal.kill.notify_one();
        }
        ClientToolReply { result: reply.result.map(|_| json!({})), ..reply }
    }

    /// Kills all commands: some agents forget theirs when they are cancelled.
    pub(crate) fn kill_all(&self) {
        self.open.values().for_each(|terminal| terminal.kill.notify_one());
    }
}

fn unknown(id: &str) -> ClientToolReply {
    let result = Err(format!("there is no terminal {id}"));
    ClientToolReply { terminal: Some(id.to_owned()), output: None, result }
}

/// Returns the text of an output for the rows of the run. A secret that was cut would not be
/// recognized, so the rest of a cut line is not recorded, or the beginning of a very long one. The agent
/// itself gets it.
fn recorded_text(text: &str, is_truncated: bool) -> String {
    if !is_truncated {
        return text.to_owned();
    }
    let most = text.floor_char_boundary(CUT_SECRET_BYTES_MAX);
    let skipped = text[..most].find('\n').map_or(most, |at| at + 1);
    format!("{CUT_MARK}{}", &text[skipped..])
}

fn lock(output: &Mutex<TerminalOutput>) -> MutexGuard<'_, TerminalOutput> {
    // It is whole after every step.
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Describes the end of a command in the form of the protocol.
fn describe_exit(status: ExitStatus) -> Json {
    let signal = status.signal().map(|number| match Signal::from_named_raw(number) {
        Some(Signal::KILL) => "SIGKILL".to_owned(),
        Some(Signal::TERM) => "SIGTERM".to_owned(),
        Some(Signal::INT) => "SIGINT".to_owned(),
        _ => format!("signal {number}"),
    });
    json!({ "exitCode": status.code(), "signal": signal })
}

/// End of the output of a command.
#[derive(Debug)]
struct TerminalOutput {
    bytes: Vec<u8>,
    limit: usize,
    is_truncated: bool,
}

impl TerminalOutput {
    fn new(limit: usize) -> TerminalOutput {
        TerminalOutput { bytes: Vec::new(), limit, is_truncated: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Not with each read, because the rest is moved.
        if self.bytes.len() > self.limit.saturating_mul(2).saturating_add(READ_BYTES) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let surplus = self.bytes.len().saturating_sub(self.limit);
        if surplus > 0 {
            self.bytes.drain(..surplus);
            self.is_truncated = true;
        }
    }

    /// Returns the kept text, and whether its beginning is missing.
    fn text(&mut self) -> (String, bool) {
        self.cut();
        // The cut may have been within a character.
        let is_continuation = |byte: &&u8| **byte & 0xc0 == 0x80;
        let skipped = match self.is_truncated {
            true => self.bytes.iter().take(3).take_while(is_continuation).count(),
            false => 0,
        };
        (String::from_utf8_lossy(&self.bytes[skipped..]).into_owned(), self.is_truncated)
    }
}

/// Reads the output of one command and notices its end.
struct TerminalWatcher {
    process: AgentProcess,
    output: Arc<Mutex<TerminalOutput>>,
    exited: watch::Sender<Option<ExitStatus>>,
    kill: Arc<Notify>,
    time_max: Duration,
}

impl TerminalWatcher {
    async fn run(mut self) {
        // Nothing is typed.
        self.process.stdin = None;
        let (mut stdout, mut stderr) = (self.process.stdout.take(), self.process.stderr.take());
        let (mut read_out, mut read_err) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
        let mut time_is_up = std::pin::pin!(sleep(self.time_max));
        let mut has_ended = false;
        // A process that the command left behind may go on to write.
        while !has_ended || stdout.is_some() || stderr.is_some() {
            tokio::select! {
                count = read(&mut stdout, &mut read_out), if stdout.is_some() => {
                    lock(&self.output).push(&read_out[..count]);
                }
                count = read(&mut stderr, &mut read_err), if stderr.is_some() => {
                    lock(&self.output).push(&read_err[..count]);
                }
                status = self.process.wait(), if !has_ended => {
                    has_ended = true;
                    // What the command wrote counts, even if it was not read in time.
                    for pipe in [stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)] {
                        pipe.into_iter().for_each(|pipe| self.read_rest(pipe));
                    }
                    self.exited.send_replace(Some(status));
                }
                () = self.kill.notified() => self.kill_group(),
                () = &mut time_is_up, if !has_ended => {
                    lock(&self.output).push(b"\n[killed: the time of the command is up]\n");
                    self.kill_group();
                    time_is_up.set(sleep(self.time_max));
                }
            }
        }
    }

    /// Kills the command with its process group. The processes of other groups end with the run.
    fn kill_group(&mut self) {
        // Until its status is taken, its number belongs to no other process.
        if self.process.exit_status().is_none() {
            let pid: Pid = self.process.pid;
            if let Err(error) = kill_process_group(pid, Signal::KILL) {
                tracing::debug!(%error, %pid, "a command could not be killed");
            }
        }
    }

    /// Reads what a pipe holds now.
    fn read_rest(&self, pipe: impl AsFd) {
        let mut remaining = rustix::io::ioctl_fionread(&pipe).unwrap_or(0);
        let mut buffer = vec![0; READ_BYTES];
        while remaining > 0 {
            match rustix::io::read(&pipe, &mut buffer[..]) {
                Ok(count @ 1..) => {
                    lock(&self.output).push(&buffer[..count]);
                    remaining = remaining.saturating_sub(count as u64);
                }
                _ => return,
            }
        }
    }
}

/// Reads from a pipe, which is closed at its end. Cancel-safe.
async fn read(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut [u8]) -> usize {
    let read: io::Result<usize> = match pipe {
        Some(open) => open.read(buffer).await,
        None => std::future::pending().await,
    };
    match read {
        Ok(count @ 1..) => count,
        _ => {
            *pipe = None;
            0
        }
    }
}

#[cfg(test)]
mod tests {
    //! Real processes. Each test is a process of its own (nextest): claiming a tree claims the process.

    use heeler_model::RunId;
    use heeler_testkit::WAIT_MAX;
    use jiff::Timestamp;
    use tokio::time::timeout;

    use super::*;

    fn tree() -> ProcessTree {
        ProcessTree::claim(RunId::mint(
            Timestamp::UNIX_EPOCH,
            std::array::from_fn(|_| fastrand::u8(..)),
        ))
    }

    fn context() -> TerminalContext {
        let env = [("PATH", "/usr/bin:/bin"), ("INHERITED", "agent")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter();
        TerminalContext {
            env: env.collect(),
            secrets: SecretRedactor::new(&["topsecretvalue".to_owned()]),
        }
    }

    fn line(text: &str) -> TerminalCommand {
        TerminalCommand {
            program: text.to_owned(),
            args: Vec::new(),
            env: vec![("OWN".to_owned(), "terminal".to_owned())],
            directory: "/".into(),
            output_bytes_max: 4096,
        }
    }

    async fn wait(terminals: &ClientTerminals, id: &str) -> ClientToolReply {
        timeout(WAIT_MAX, terminals.wait_for_exit(id)).await.unwrap()
    }

    fn pid_in(output: &str) -> Pid {
        Pid::from_raw(output.trim().parse().unwrap()).unwrap()
    }

    async fn until_printed(terminals: &ClientTerminals, id: &str) -> String {
        let printed = async {
            loop {
                let text = terminals.read_output(id).output.unwrap();
                if text.ends_with('\n') {
                    return text;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(WAIT_MAX, printed).await.unwrap()
    }

    async fn until_dead(pid: Pid) {
        let dead = async {
            while is_alive(pid) {
                tokio::task::yield_now().await;
            }
        };
        timeout(WAIT_MAX, dead).await.unwrap();
    }

    fn is_alive(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn a_command_has_the_environment_of_the_agent_and_an_output_of_both_pipes() {
        let (tree, mut terminals) = (tree(), ClientTerminals::default());
        let command = line("echo $INHERITED $OWN; pwd; echo bad >&2; read x; exit 3");
        let reply = terminals.create("t1", &command, &tree, &context());
        assert_eq!(reply.result, Ok(json!({ "terminalId": "t1" })));
        let end = wait(&terminals, "t1").await;
        assert_eq!(end.result, Ok(json!({ "exitCode": 3, "signal": null })));
        let output = end.output.unwrap();
        assert!(output.contains("agent terminal\n/\n") && output.contains("bad\n"), "{output}");
        let read = terminals.read_output("t1").result.unwrap();
        assert_eq!(
            (&read["truncated"], &read["exitStatus"]["exitCode"]),
            (&json!(false), &json!(3))
        );

        let direct = TerminalCommand {
            program: "printf".to_owned(),
            args: vec!["%s".to_owned(), "$OWN; x".to_owned()],
            ..line("")
        };
        terminals.create("t2", &direct, &tree, &context()).result.unwrap();
        assert_eq!(wait(&terminals, "t2").await.output.unwrap(), "$OWN; x");
        tree.terminate().await;
    }

    #[tokio::test]
    async fn only_the_end_of_a_long_output_is_kept() {
        let (tree, mut terminals) = (tree(), ClientTerminals::default());
        let script = "head -c 3000000 /dev/zero | tr '\\0' x; printf 'ä\\377\\000end'";
        for limit in [5, 4096, usize::MAX] {
            let command = TerminalCommand { output_bytes_max: limit, ..line(script) };
            terminals.create("t1", &command, &tree, &context()).result.unwrap();
            let recorded = wait(&terminals, "t1").await.output.unwrap();
            let recorded = recorded.strip_prefix(CUT_MARK).unwrap();
            let read = terminals.read_output("t1").result.unwrap();
            let output = read["output"].as_str().unwrap();
            let most = limit.min(TERMINAL_OUTPUT_BYTES_MAX);
            assert!(
                output.len() <= most + 4 && output.ends_with("end"),
                "{limit} {}",
                output.len()
            );
            assert_eq!(read["truncated"], true);
            // It is one line, whose beginning is not recorded. A character may be wider than a byte.
            let skipped = output.len().min(CUT_SECRET_BYTES_MAX);
            assert!(recorded.len() + skipped <= output.len() + 3, "{limit} {}", recorded.len());
        }
        let command = TerminalCommand { output_bytes_max: 0, ..line("echo x") };
        terminals.create("t1", &command, &tree, &context()).result.unwrap();
        wait(&terminals, "t1").await;
        assert_eq!(terminals.read_output("t1").result.unwrap()["output"], "");
        tree.terminate().await;
    }

    #[test]
    fn no_part_of_a_cut_line_is_recorded() {
        let mut output = TerminalOutput::new(11);
        output.push(b"topsecret\nnext\n");
        let (text, is_truncated) = output.text();
        assert_eq!((text.as_str(), is_truncated), ("ecret\nnext\n", true));
        assert_eq!(recorded_text(&text, is_truncated), format!("{CUT_MARK}next\n"));
        assert_eq!(recorded_text("ecret", true), CUT_MARK);
        assert_eq!(recorded_text("whole", false), "whole");
    }

    #[tokio::test]
    async fn a_command_that_never_ends_is_killed_with_its_children() {
        let (tree, mut terminals) = (tree(), ClientTerminals::default());
        let endless = line("sh -c 'echo $$; exec tail -f /dev/null' & wait");
        for id in ["kill", "release", "all"] {
            terminals.create(id, &endless, &tree, &context()).result.unwrap();
            let child = pid_in(&until_printed(&terminals, id).await);
            let end = terminals.wait_for_exit(id);
            match id {
                "kill" => drop(terminals.kill(id).result.unwrap()),
                "release" => {
                    terminals.release(id).result.unwrap();
                    assert!(terminals.read_output(id).result.is_err());
                    assert!(terminals.kill(id).result.is_err());
                }
                _ => terminals.kill_all(),
            }
            let end = timeout(WAIT_MAX, end).await.unwrap();
            assert_eq!(end.result, Ok(json!({ "exitCode": null, "signal": "SIGKILL" })), "{id}");
            until_dead(child).await;
        }
        terminals.time_max = Duration::from_millis(1);
        terminals.create("time", &endless, &tree, &context()).result.unwrap();
        let end = wait(&terminals, "time").await;
        assert!(end.output.unwrap().contains("the time of the command is up"));
        tree.terminate().await;
    }

    #[tokio::test]
    async fn a_process_that_a_command_leaves_ends_with_the_run() {
        let (tree, mut terminals) = (tree(), ClientTerminals::default());
        let command = line("setsid sh -c 'echo $$; exec tail -f /dev/null' &");
        terminals.create("t1", &command, &tree, &context()).result.unwrap();
        let left = pid_in(&until_printed(&terminals, "t1").await);
        // The end of the command is told, although a pipe is still open.
        assert_eq!(wait(&terminals, "t1").await.result.unwrap()["exitCode"], 0);
        terminals.release("t1").result.unwrap();
        assert!(is_alive(left));
        assert!(tree.terminate().await.survivors.is_empty());
        assert!(!is_alive(left));
    }

    #[tokio::test]
    async fn a_command_that_cannot_start_is_an_error() {
        let (tree, mut terminals) = (tree(), ClientTerminals::default());
        let missing = TerminalCommand {
            program: "no-such-program".to_owned(),
            args: vec!["x".to_owned()],
            ..line("")
        };
        let nowhere = TerminalCommand { directory: "/no/such/folder".into(), ..line("true") };
        let secret = line("echo topsecretvalue");
        for (command, reason) in [
            (missing, "no such program"),
            (nowhere, "working directory"),
            (secret, "visible to every user"),
        ] {
            let reply = terminals.create("t1", &command, &tree, &context());
            let refusal = reply.result.unwrap_err();
            assert!(refusal.contains(reason), "{refusal}");
            assert!(terminals.read_output("t1").result.is_err());
        }
        assert!(wait(&terminals, "t1").await.result.is_err());
        tree.terminate().await;
    }
}
