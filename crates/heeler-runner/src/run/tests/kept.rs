//! Agents that stay between the turns of a conversation.

use std::io::Read as _;

use heeler_model::run::{AGENT_KEPT_REPLY, KeptAgentLimits, RUN_TAKEN_REPLY, RunnerInput};
use heeler_transcript::LockFile;

use super::external_messages::{ExternalMessagesFixture, talk};
use super::*;

/// An agent of many turns. `$AFTER` is what it does after each.
const AGENT: &str = r#"
echo $$ > pid
state() { printf '{"type":"system","subtype":"session_state_changed","state":"%s","session_id":"%s"}\n' "$1" "$SESSION"; }
n=0
while read -r line; do case "$line" in *'"type":"user"'*)
    n=$((n+1)); state running; took; say "reply $n"; result "reply $n"; state idle
    AFTER
esac; done
"#;

/// A conversation whose runner is a thread of the test.
struct KeptAgentFixture {
    scene: ExternalMessagesFixture,
    link: UnixStream,
    runner: JoinHandle<()>,
}

impl KeptAgentFixture {
    fn start(after: &str, idle_ms: u64) -> KeptAgentFixture {
        let trial = stream_fixture(&AGENT.replace("AFTER", after));
        let mut scene = ExternalMessagesFixture::of(trial, &talk(2));
        scene.leave();
        let conversation_pid = std::process::id();
        scene.trial.spec.keep_agent = Some(KeptAgentLimits { idle_ms, conversation_pid });
        let (link, theirs) = UnixStream::pair().unwrap();
        link.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let trial = &scene.trial;
        let gate = trial.spec.working_directory.join("gate");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, gate.as_std_path(), kind, mode, 0).unwrap();
        trial.folder.write_spec(&trial.spec);
        let first = RunnerTask { dir: trial.dir(), spec: trial.spec.clone(), host: trial.host() };
        let runs = trial.dir().parent().unwrap().to_owned();
        let program = trial.folder.state.join("heeler");
        let means =
            RunnerDependencies { runtime: trial.means.runtime, ..RunnerDependencies::default() };
        let runner = std::thread::spawn(move || {
            let prepare = |input: RunnerInput| {
                let spec = input.spec.ok_or("no spec")?;
                let dir = runs.join(spec.run.to_string());
                let host = RunnerHost::new(program.clone(), now, input.brief);
                Ok(RunnerTask { dir, spec, host })
            };
            run_conversation_with(first, theirs, prepare, &means).unwrap();
        });
        KeptAgentFixture { scene, link, runner }
    }

    #[track_caller]
    fn hear(&mut self, words: &str) {
        let mut heard = vec![0; words.len()];
        self.link.read_exact(&mut heard).unwrap();
        assert_eq!(String::from_utf8(heard).unwrap(), words);
    }

    /// Sends the next run.
    fn send_run(&mut self) {
        let trial = &mut self.scene.trial;
        trial.next_run();
        trial.folder.write_spec(&trial.spec);
        let (brief, spec) = (trial.brief.clone(), Some(trial.spec.clone()));
        let mut line = serde_json::to_vec(&RunnerInput { brief, spec, result_key: None }).unwrap();
        line.push(b'\n');
        self.link.write_all(&line).unwrap();
        self.hear(RUN_TAKEN_REPLY);
    }

    fn pid(&self) -> String {
        let file = self.scene.trial.spec.working_directory.join("pid");
        std::fs::read_to_string(file).unwrap()
    }

    fn is_session_free(&self) -> bool {
        let spec = &self.scene.trial.spec;
        let lock = spec.home.join("locks").join(spec.session.start.id().as_str());
        LockFile::probe(&lock).unwrap().is_none()
    }

    /// Waits until the runner has closed the connection and ended the agent.
    #[track_caller]
    fn has_ended(mut self, pid: &str) {
        let mut rest = Vec::new();
        self.link.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
        self.runner.join().unwrap();
        assert!(is_gone(pid));
    }
}

#[test]
fn the_next_turns_are_executed_by_the_same_process_and_each_is_a_run() {
    let mut kept = KeptAgentFixture::start("", 600_000);
    kept.hear(AGENT_KEPT_REPLY);
    let (first, pid) = (kept.scene.trial.spec.run, kept.pid());
    assert!(kept.is_session_free() && !is_gone(&pid));
    for _ in 0..2 {
        kept.send_run();
        kept.hear(AGENT_KEPT_REPLY);
        let started = kept.scene.trial.started();
        assert_eq!((started.agent_run, kept.pid()), (Some(first), pid.clone()));
        let result = files::read_result(&kept.scene.trial.dir()).unwrap().unwrap();
        assert_eq!((result.run, result.error), (kept.scene.trial.spec.run, None));
        assert!(kept.is_session_free());
    }
    assert_eq!(kept.scene.trial.said(), ["reply 1", "reply 2", "reply 3"]);
    kept.link.shutdown(std::net::Shutdown::Write).unwrap();
    kept.has_ended(&pid);
}

#[test]
fn another_setup_or_another_writer_gets_another_process() {
    let mut kept = KeptAgentFixture::start("", 600_000);
    kept.hear(AGENT_KEPT_REPLY);
    let first = kept.pid();
    kept.scene.trial.brief.env.insert("NEW".to_owned(), "value".to_owned());
    kept.send_run();
    kept.hear(AGENT_KEPT_REPLY);
    let second = kept.pid();
    assert!(is_gone(&first) && second != first);
    assert_eq!(kept.scene.trial.started().agent_run, None);
    // Another run has continued the session since.
    kept.scene.write(&talk(4));
    kept.scene.leave();
    kept.send_run();
    kept.hear(AGENT_KEPT_REPLY);
    let third = kept.pid();
    assert!(is_gone(&second) && third != second);
    kept.link.shutdown(std::net::Shutdown::Write).unwrap();
    kept.has_ended(&third);
}

#[test]
fn a_kept_agent_ends_after_its_idle_time() {
    let mut kept = KeptAgentFixture::start("", 50);
    kept.hear(AGENT_KEPT_REPLY);
    let pid = kept.pid();
    kept.has_ended(&pid);
}

#[test]
fn an_agent_that_acts_between_two_turns_is_ended() {
    // Opening the pipe blocks the shell itself, without another process.
    let act = ": > ready; read -r go < gate; say 'by itself'";
    let mut kept = KeptAgentFixture::start(act, 600_000);
    // The file is made after the turn, so the end may come before or after the turn is over.
    kept.hear(AGENT_KEPT_REPLY);
    let pid = kept.pid();
    kept.scene.trial.wait_file("ready");
    let gate = kept.scene.trial.spec.working_directory.join("gate");
    std::fs::write(gate, "go\n").unwrap();
    kept.has_ended(&pid);
}
