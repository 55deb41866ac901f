//! Whole runs: how soon the agent starts, what the runner costs, how fast rows reach the disk.
//!
//! The alternative is a minimal Node.js driver that starts the same agent.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{MountMode, RuntimeType};
use heeler_model::run::{
    AgentLaunchSpec, ClaudeLaunchSpec, ContainerSpec, ContainerVolume, PROTOCOL, ProgramLaunchSpec,
    QuestionPolicy, RunAuthority, RunLimits, RunSpec, RuntimeLaunchSpec, SandboxSpec, SessionPlan,
    SessionStart,
};
use heeler_model::{JobId, RunId, TriggerType};
use heeler_testkit::{TEST_IMAGE, TEST_VOLUME, TestEngine};
use heeler_transcript::{FollowStart, FollowUpdate, TranscriptFollower, TranscriptRecord};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::agent::{self, moment};
use crate::{Amount, Bench, Figure, Goal, memory};

const STARTS: usize = 40;
const CONTAINER_STARTS: usize = 20;
const SPOKEN: u32 = 3_000;
const PAUSE: Duration = Duration::from_millis(1);
/// Measurements of each protocol, of which the middle one counts.
const AGENT_ROUNDS: usize = 5;
const FLOOD: u64 = 200_000;
const FLOOD_TEXT_BYTES: u64 = 200;
const AT_ONCE: u64 = 200;
const AT_ONCE_MESSAGES: u64 = 500;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let place = Place::new(bench);
    let mut figures = vec![start(&place)];
    figures.extend(latency(&place));
    figures.extend(flood(&place));
    figures.extend(at_once(&place));
    figures
}

/// Where runs are: a state directory, and a folder short enough for sockets.
struct Place<'a> {
    bench: &'a Bench,
    root: Utf8PathBuf,
    sockets: tempfile::TempDir,
}

/// A run that can be started, by us or by the alternative.
struct Run {
    dir: Utf8PathBuf,
    brief: AgentLaunchSpec,
    log: Utf8PathBuf,
    /// The same for Node.js.
    job: Json,
}

impl<'a> Place<'a> {
    fn new(bench: &'a Bench) -> Place<'a> {
        let root = bench.folder.join("runs");
        drop(std::fs::remove_dir_all(&root));
        for folder in ["work", "jobs", "projects", "home", "runs"] {
            std::fs::create_dir_all(root.join(folder)).expect("disk has space");
        }
        Place { bench, root, sockets: tempfile::tempdir().expect("disk has space") }
    }

    /// Returns a run of this program in place of claude; `script` is what it does.
    fn clock(&self, script: &str) -> Run {
        let program =
            std::env::current_exe().ok().and_then(|path| Utf8PathBuf::try_from(path).ok());
        let program = program.expect("this program has a path");
        let brief = ClaudeLaunchSpec {
            program: program.clone(),
            permission_mode: "acceptEdits".to_owned(),
            ..ClaudeLaunchSpec::default()
        };
        let env = IndexMap::from([(agent::VARIABLE.to_owned(), script.to_owned())]);
        let launch = json!({ "program": program, "args": [], "input": "" });
        self.run(RuntimeType::Cli, RuntimeLaunchSpec::Claude(Box::new(brief)), env, launch)
    }

    /// Returns a run of this program in place of an agent that speaks one of the protocols.
    fn speaker(&self, protocol: AgentProtocol, script: &str) -> Run {
        let program = match protocol {
            AgentProtocol::Claude => return self.clock(script),
            _ => std::env::current_exe().ok().and_then(|path| Utf8PathBuf::try_from(path).ok()),
        };
        let spec = Box::new(ProgramLaunchSpec {
            program: program.expect("this program has a path"),
            agent: "bench".to_owned(),
            permission_mode: "bypassPermissions".to_owned(),
            is_isolated: true,
            ..ProgramLaunchSpec::default()
        });
        let (runtime, work, name) = match protocol {
            AgentProtocol::Codex => (RuntimeType::Codex, RuntimeLaunchSpec::Codex(spec), "codex"),
            _ => (RuntimeType::Acp, RuntimeLaunchSpec::Acp(spec), "acp"),
        };
        let env = IndexMap::from([(agent::VARIABLE.to_owned(), format!("{name} {script}"))]);
        self.run(runtime, work, env, json!({}))
    }

    /// Returns a run of the scripted agent.
    fn scripted(&self, steps: Json) -> Run {
        let Json::Array(steps) = steps else { unreachable!("a script is a list") };
        let env = IndexMap::new();
        let launch = self.scripted_launch(&steps);
        self.run(RuntimeType::Scripted, RuntimeLaunchSpec::Script { steps }, env, launch)
    }

    /// Says how the scripted agent is started without us, as we start it.
    fn scripted_launch(&self, steps: &[Json]) -> Json {
        let script = self.root.join("script.json");
        let text = json!({ "steps": steps, "secrets": [] }).to_string();
        std::fs::write(&script, text).expect("disk has space");
        let (home, session) = (self.root.join("home"), uuid::Uuid::new_v4().to_string());
        let args = [
            "play",
            "--script",
            "/dev/fd/3",
            "--home",
            home.as_str(),
            "--session-id",
            &session,
            "--permission-prompt-tool",
            "stdio",
            "--include-partial-messages",
        ];
        let message = json!({ "role": "user", "content": "go" });
        let prompt = json!({ "type": "user", "message": message, "session_id": "" });
        let program = env!("CARGO_BIN_EXE_heeler");
        json!({ "program": program, "args": args, "script": script, "input": format!("{prompt}\n") })
    }

    fn run(
        &self,
        runtime: RuntimeType,
        work: RuntimeLaunchSpec,
        mut env: IndexMap<String, String>,
        launch: Json,
    ) -> Run {
        let now = Timestamp::now();
        let run = RunId::mint(now, std::array::from_fn(|_| fastrand::u8(..)));
        let job = JobId::mint(now, fastrand::u64(..));
        let dir = self.root.join("runs").join(run.to_string());
        std::fs::create_dir(&dir).expect("disk has space");
        let (log, cwd) = (self.root.join(format!("jobs/{job}.jsonl")), self.root.join("work"));
        let session = uuid::Uuid::new_v4().to_string().parse().expect("a session is a UUID");
        let sockets = Utf8Path::from_path(self.sockets.path()).expect("the folder is UTF-8");
        let spec = RunSpec {
            protocol: PROTOCOL,
            run,
            job,
            attempt: 1,
            agent: "bench".parse().expect("a name"),
            trigger: TriggerType::Manual,
            runtime,
            working_directory: cwd.canonicalize_utf8().expect("the folder is there"),
            job_log: log.clone(),
            projects: self.root.join("projects"),
            output_file: None,
            home: self.root.join("home"),
            sockets: sockets.to_owned(),
            session: SessionPlan::new(SessionStart::Fresh { id: session }, "bench"),
            limits: RunLimits::default(),
            attendance: QuestionPolicy::Nobody,
            sync_each_row: false,
            workspaces: None,
            keep_output: false,
            keep_agent: None,
        };
        let text = serde_json::to_vec(&spec).expect("a spec is JSON");
        std::fs::write(dir.join("spec.json"), text).expect("disk has space");
        env.insert("PATH".to_owned(), std::env::var("PATH").unwrap_or_default());
        let mut job = launch;
        job["env"] = json!(env);
        job["cwd"] = json!(cwd);
        job["log"] = json!(self.root.join(format!("jobs/{run}.node.jsonl")));
        let brief = AgentLaunchSpec {
            protocol: PROTOCOL,
            prompt: "go".to_owned(),
            env,
            secrets: Vec::new(),
            shared_secrets: Vec::new(),
            work,
            send_files_to: None,
            authority: RunAuthority::default(),
            may_start_jobs: false,
            sandbox: None,
        };
        Run { dir, brief, log, job }
    }

    /// Starts the alternative.
    fn node(&self, runs: &[Run]) -> Child {
        let jobs: Vec<&Json> = runs.iter().map(|run| &run.job).collect();
        let file = self.root.join("node-jobs.json");
        std::fs::write(&file, json!(jobs).to_string()).expect("disk has space");
        let mut node = Command::new("node");
        node.arg(self.bench.node.join("driver.mjs")).arg(file);
        node.stdin(Stdio::null()).stdout(Stdio::null());
        node.spawn().expect("node is installed")
    }
}

impl Run {
    /// Starts the runner and hands it the brief.
    fn start(&self) -> Child {
        let mut runner = Command::new(env!("CARGO_BIN_EXE_heeler"));
        runner.arg("runner").arg(&self.dir).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut runner = runner.spawn().expect("the program was built");
        let mut stdin = runner.stdin.take().expect("it was asked for");
        serde_json::to_writer(&mut stdin, &self.brief).expect("the runner reads its brief");
        runner
    }

    /// Where the alternative writes.
    fn node_log(&self) -> Utf8PathBuf {
        Utf8PathBuf::from(self.job["log"].as_str().expect("it was put in"))
    }
}

fn start(place: &Place<'_>) -> Figure {
    let file = place.root.join("started");
    let script = agent::that_starts(&file);
    let sample = |begin: &dyn Fn(&Run) -> Child| {
        let mut times: Vec<Duration> = (0..STARTS)
            .map(|_| {
                let run = place.clock(&script);
                let before = moment();
                wait(begin(&run));
                let text = std::fs::read_to_string(&file).expect("the agent started");
                std::fs::remove_file(&file).expect("it was there");
                Duration::from_nanos(text.parse().expect("the agent wrote it")) - before
            })
            .collect();
        times.sort_unstable();
        times[STARTS / 2]
    };
    Figure {
        what: "runner start to agent start".to_owned(),
        ours: sample(&|run| run.start()).into(),
        goal: Goal::AtMost(Duration::from_millis(15).into()),
        alternative: Some((
            "node driver".to_owned(),
            sample(&|run| place.node(std::slice::from_ref(run))).into(),
        )),
    }
}

/// The cost of a sandbox: how much later its agent starts, and the memory of everything around it.
pub(crate) fn sandbox_figures(bench: &Bench) -> Vec<Figure> {
    let place = Place::new(bench);
    let file = place.root.join("work/started");
    let script = agent::that_starts(&file);
    let sample = |sandbox: Option<SandboxSpec>| {
        let mut run = place.clock(&script);
        run.brief.sandbox = sandbox;
        let before = moment();
        wait(run.start());
        let text = std::fs::read_to_string(&file).expect("the agent started");
        std::fs::remove_file(&file).expect("it was there");
        Duration::from_nanos(text.parse().expect("the agent wrote it")) - before
    };
    // In turn, so that a change of the machine's load affects both.
    let (mut open, mut confined) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        open.push(sample(None));
        confined.push(sample(Some(SandboxSpec::default())));
    }
    open.sort_unstable();
    confined.sort_unstable();
    let (open, confined) = (open[STARTS / 2], confined[STARTS / 2]);
    vec![
        Figure {
            what: "runner start to start of a sandboxed agent".to_owned(),
            ours: confined.into(),
            goal: Goal::None,
            alternative: Some(("without a sandbox".to_owned(), open.into())),
        },
        Figure {
            what: "memory of runner, proxy and first process (RssAnon)".to_owned(),
            ours: Amount::Bytes(sandbox_memory(&place)),
            goal: Goal::AtMost(Amount::Bytes(14_000_000)),
            alternative: None,
        },
    ]
}

/// The start of an agent in a container, beside the engine's own client with the same image, files
/// and program.
#[expect(clippy::too_many_lines, reason = "both sides of one comparison, step by step")]
pub(crate) fn container_figures(bench: &Bench) -> Vec<Figure> {
    let place = Place::new(bench);
    let engine = TestEngine::start();
    let work = place.root.join("work").canonicalize_utf8().expect("the folder is there");
    let file = work.join("started");
    let script = agent::that_starts(&file);
    let run = place.clock(&script);
    let RuntimeLaunchSpec::Claude(claude) = &run.brief.work else { unreachable!("it is a clock") };
    let program = claude.program.clone();
    let folder = program.parent().expect("the program is in a folder").to_owned();
    let started = |before: Duration| {
        let text = std::fs::read_to_string(&file).expect("the agent started");
        std::fs::remove_file(&file).expect("it was there");
        Duration::from_nanos(text.parse().expect("the agent wrote it")) - before
    };
    let volume = |path: &str| ContainerVolume {
        source: path.to_owned(),
        is_named: false,
        target: path.to_owned(),
        mode: MountMode::ReadOnly,
    };
    let mut container = ContainerSpec::new(engine.socket(), TEST_IMAGE.to_owned());
    container.volumes = vec![volume("/usr"), volume(folder.as_str())];
    let ours = || {
        let mut run = place.clock(&script);
        let container = Some(container.clone());
        run.brief.sandbox = Some(SandboxSpec { container, ..SandboxSpec::default() });
        let before = moment();
        wait(run.start());
        started(before)
    };
    let (programs, files) = (format!("{folder}:{folder}:ro"), format!("{work}:{work}"));
    let variable = format!("{}={script}", agent::VARIABLE);
    let theirs = || {
        let before = moment();
        engine.docker(&[
            "run",
            "--rm",
            "--network",
            "none",
            "--memory",
            "2g",
            "--cap-drop",
            "ALL",
            "--volume",
            TEST_VOLUME,
            "--volume",
            &programs,
            "--volume",
            &files,
            "--workdir",
            work.as_str(),
            "--env",
            &variable,
            TEST_IMAGE,
            program.as_str(),
        ]);
        started(before)
    };
    // In turn, so that a change of the machine's load affects both.
    let (mut own, mut client) = (Vec::new(), Vec::new());
    for _ in 0..CONTAINER_STARTS {
        own.push(ours());
        client.push(theirs());
    }
    own.sort_unstable();
    client.sort_unstable();
    let middle = CONTAINER_STARTS / 2;
    vec![Figure {
        what: "runner start to start of an agent in a container".to_owned(),
        ours: own[middle].into(),
        goal: Goal::TimesFaster(1.0 / 1.1),
        alternative: Some(("docker run".to_owned(), client[middle].into())),
    }]
}

/// Returns the most memory that the processes around a sandboxed agent have together.
fn sandbox_memory(place: &Place<'_>) -> u64 {
    let mut run = place.scripted(json!([{ "say": "Hello." }, { "sleep": "2s" }]));
    run.brief.sandbox = Some(SandboxSpec::default());
    let mut runner = run.start();
    let mut most = 0;
    while runner.try_wait().expect("it was started").is_none() {
        let around = std::iter::once(runner.id()).chain(sandbox_processes(runner.id()));
        most = most.max(around.map(memory).sum());
        std::thread::sleep(Duration::from_millis(20));
    }
    most
}

/// Returns bubblewrap and the first process of the sandbox below a runner.
fn sandbox_processes(runner: u32) -> Vec<u32> {
    let children = |parent: u32| {
        let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let list = list.unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    };
    let outer = children(runner);
    // The children of the first process are the agent's.
    let inner: Vec<u32> = outer.iter().flat_map(|pid| children(*pid)).collect();
    outer.into_iter().chain(inner).collect()
}

/// Protocol of an agent.
#[derive(Clone, Copy)]
enum AgentProtocol {
    Claude,
    Codex,
    Acp,
}

/// The cost of the runner for agents of each protocol, beside that for Claude.
pub(crate) fn agent_figures(bench: &Bench) -> Vec<Figure> {
    let place = Place::new(bench);
    let measure = |protocol: AgentProtocol| {
        let run = place.speaker(protocol, &agent::that_speaks(SPOKEN, PAUSE));
        let delays = delays(run.start(), &run.log);
        let run = place.speaker(protocol, &agent::that_floods(FLOOD, FLOOD_TEXT_BYTES));
        let (time, bytes) = watch(|| run.start());
        let rate = Amount::PerSecond(FLOOD as f64 / time.as_secs_f64());
        (Amount::from(delays[delays.len() * 99 / 100]), rate, Amount::Bytes(bytes))
    };
    let protocols = [AgentProtocol::Claude, AgentProtocol::Codex, AgentProtocol::Acp];
    let mut rounds = protocols.map(|_| Vec::new());
    // In turn, so that a change of the machine's load affects all.
    for _ in 0..AGENT_ROUNDS {
        for (protocol, measured) in protocols.iter().zip(&mut rounds) {
            measured.push(measure(*protocol));
        }
    }
    let [claude, codex, acp] = rounds.map(|measured| {
        let (delays, (rates, bytes)): (Vec<_>, (Vec<_>, Vec<_>)) =
            measured.into_iter().map(|(delay, rate, bytes)| (delay, (rate, bytes))).unzip();
        (middle(delays), middle(rates), middle(bytes))
    });
    let measured = [("Codex", codex), ("ACP", acp)];
    let mut figures = Vec::new();
    for (name, (delay, rate, bytes)) in measured {
        let beside = |amount: Amount| Some(("claude's runtime".to_owned(), amount));
        figures.push(Figure {
            what: format!("{name}: agent line to row read by a follower, p99"),
            ours: delay,
            goal: Goal::AtMost(Duration::from_millis(1).into()),
            alternative: beside(claude.0),
        });
        figures.push(Figure {
            what: format!("{name}: messages of {FLOOD_TEXT_BYTES} bytes through one run"),
            ours: rate,
            goal: Goal::AtLeast(Amount::PerSecond(20_000.0)),
            alternative: beside(claude.1),
        });
        figures.push(Figure {
            what: format!("{name}: memory of the runner meanwhile (RssAnon)"),
            ours: bytes,
            goal: Goal::AtMost(Amount::Bytes(10_000_000)),
            alternative: beside(claude.2),
        });
    }
    figures
}

fn middle(mut amounts: Vec<Amount>) -> Amount {
    amounts.sort_by(|one, other| one.partial_cmp(other).expect("all are numbers of one kind"));
    amounts[amounts.len() / 2]
}

fn latency(place: &Place<'_>) -> Vec<Figure> {
    let script = agent::that_speaks(SPOKEN, PAUSE);
    let run = place.clock(&script);
    let ours = delays(run.start(), &run.log);
    let run = place.clock(&script);
    let theirs = delays(place.node(std::slice::from_ref(&run)), &run.node_log());
    let at = |delays: &[Duration], percent: usize| delays[delays.len() * percent / 100];
    let limit = Goal::AtMost(Duration::from_millis(1).into());
    [(50, Goal::None), (99, limit)]
        .map(|(percent, goal)| Figure {
            what: format!("agent line to row read by a follower, p{percent}"),
            ours: at(&ours, percent).into(),
            goal,
            alternative: Some(("node driver".to_owned(), at(&theirs, percent).into())),
        })
        .into()
}

/// Follows a log as a reader does; returns how long after it was said each row was read, in order.
fn delays(mut runner: Child, log: &Utf8Path) -> Vec<Duration> {
    let mut follower = TranscriptFollower::new();
    follower.add(log, FollowStart::Beginning);
    let mut delays = Vec::new();
    while delays.len() < SPOKEN as usize {
        let news = follower.next(Duration::from_secs(30)).expect("the log is read");
        let seen = moment();
        let update = news.unwrap_or_else(|| panic!("{log}: {} of {SPOKEN} rows", delays.len()));
        let FollowUpdate::Record { record, .. } = update else { continue };
        delays.extend(said(&record).map(|said| seen - said));
    }
    runner.wait().expect("it was started");
    delays.sort_unstable();
    delays
}

fn said(record: &TranscriptRecord) -> Option<Duration> {
    let row: Json = serde_json::from_str(&record.text).ok()?;
    row["content"].as_str()?.parse().ok().map(Duration::from_nanos)
}

fn flood(place: &Place<'_>) -> Vec<Figure> {
    let steps = json!([{ "flood": FLOOD, "size": FLOOD_TEXT_BYTES }]);
    let run = place.scripted(steps.clone());
    let (time, bytes) = watch(|| run.start());
    let (node_time, node_bytes) = watch(|| place.node(&[place.scripted(steps)]));
    let rate = |time: Duration| Amount::PerSecond(FLOOD as f64 / time.as_secs_f64());
    vec![
        Figure {
            what: format!("messages of {FLOOD_TEXT_BYTES} bytes through one run"),
            ours: rate(time),
            goal: Goal::AtLeast(Amount::PerSecond(20_000.0)),
            alternative: Some(("node driver".to_owned(), rate(node_time))),
        },
        Figure {
            what: "memory of the runner meanwhile (RssAnon)".to_owned(),
            ours: Amount::Bytes(bytes),
            goal: Goal::AtMost(Amount::Bytes(10_000_000)),
            alternative: Some(("node driver".to_owned(), Amount::Bytes(node_bytes))),
        },
    ]
}

/// Returns how long a process lived, and the most memory that it had.
fn watch(begin: impl FnOnce() -> Child) -> (Duration, u64) {
    let before = moment();
    let mut process = begin();
    let mut most = 0;
    while process.try_wait().expect("it was started").is_none() {
        most = most.max(memory(process.id()));
        std::thread::sleep(Duration::from_millis(5));
    }
    (moment() - before, most)
}

fn at_once(place: &Place<'_>) -> Vec<Figure> {
    let steps = json!([{ "flood": AT_ONCE_MESSAGES, "size": FLOOD_TEXT_BYTES }]);
    let runs: Vec<Run> = (0..AT_ONCE).map(|_| place.scripted(steps.clone())).collect();
    let before = moment();
    let runners: Vec<Child> = runs.iter().map(Run::start).collect();
    runners.into_iter().for_each(wait);
    let ours = moment() - before;
    let lost = lost(runs.iter().map(|run| run.log.clone()));
    let before = moment();
    wait(place.node(&runs));
    let theirs = moment() - before;
    let node_lost = self::lost(runs.iter().map(Run::node_log));
    vec![
        Figure {
            what: format!("{AT_ONCE} runs of {AT_ONCE_MESSAGES} messages at once"),
            ours: ours.into(),
            goal: Goal::None,
            alternative: Some(("one node driver".to_owned(), theirs.into())),
        },
        Figure {
            what: "messages lost among them".to_owned(),
            ours: Amount::Count(lost),
            goal: Goal::AtMost(Amount::Count(0)),
            alternative: Some(("one node driver".to_owned(), Amount::Count(node_lost))),
        },
    ]
}

/// Returns how many rows of an agent's text are missing in all logs together.
fn lost(logs: impl Iterator<Item = Utf8PathBuf>) -> u64 {
    let said = |log: Utf8PathBuf| {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let rows = text.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
        rows.filter(|row| row["type"] == "assistant").count() as u64
    };
    logs.map(|log| AT_ONCE_MESSAGES.saturating_sub(said(log))).sum()
}

fn wait(mut process: Child) {
    process.wait().expect("it was started");
}
