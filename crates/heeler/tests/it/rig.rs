//! One run of one agent by `heeler runner`, with the fake Messages API behind it.
//!
//! A [`FeedTestRig`] has its own folders and API. It plans a [`Plan`], which is run to its [`End`] or, to
//! speak with it meanwhile, as a [`Live`].

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::RuntimeType;
use heeler_model::run::{
    AgentLaunchSpec, AgentQuestion, ClaudeLaunchSpec, ControlEvent, ControlOperation,
    ControlRequest, PROTOCOL, QuestionAnswer, QuestionPolicy, RunAuthority, RunLimits, RunResult,
    RunSpec, RunStartRecord, RuntimeLaunchSpec, SessionPlan, SessionStart,
};
use heeler_model::{AgentSessionId, JobId, RunId, TriggerType};
use heeler_testkit::{ApiRequest, MessagesApi, WAIT_MAX, claude};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::trigger::rest_after_look;

/// How much of a text a snapshot shows.
const SHOWN_CHARS_MAX: usize = 120;

/// Folders and an API for some runs.
pub(crate) struct Rig {
    folder: tempfile::TempDir,
    pub(crate) api: MessagesApi,
}

/// A run that is to be: change what the test is about.
pub(crate) struct Plan {
    pub(crate) spec: RunSpec,
    pub(crate) brief: AgentLaunchSpec,
}

/// A run that is under way.
pub(crate) struct Live<'r> {
    rig: &'r Rig,
    spec: RunSpec,
    pub(crate) child: Child,
    happenings: BufReader<UnixStream>,
    sent: u64,
    asked_before: usize,
}

/// A run that has ended.
pub(crate) struct End {
    pub(crate) result: RunResult,
    /// The job's rows of this run.
    pub(crate) rows: Vec<Json>,
    /// The session's rows.
    pub(crate) session: Vec<Json>,
    /// What the model was sent by this run.
    pub(crate) sent: Vec<ApiRequest>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        let rig = Rig { folder: tempfile::tempdir().unwrap(), api: MessagesApi::start() };
        for folder in ["work", "state/jobs", "state/agent-sessions/projects", "home", "sockets"] {
            std::fs::create_dir_all(rig.path(folder)).unwrap();
        }
        rig
    }

    /// A path in the rig's folder, without links in it.
    pub(crate) fn path(&self, name: &str) -> Utf8PathBuf {
        let root = self.folder.path().canonicalize().unwrap();
        Utf8PathBuf::from_path_buf(root).unwrap().join(name)
    }

    /// A run of claude in a fresh session that nobody attends.
    pub(crate) fn plan(&self, runtime: RuntimeType, prompt: &str) -> Plan {
        let job = JobId::mint(Timestamp::now(), fastrand::u64(..));
        let spec = RunSpec {
            protocol: PROTOCOL,
            run: RunId::mint(Timestamp::now(), std::array::from_fn(|_| fastrand::u8(..))),
            attempt: 1,
            agent: "coder".parse().unwrap(),
            trigger: TriggerType::Manual,
            runtime,
            working_directory: self.path("work"),
            job_log: self.path(&format!("state/jobs/{job}.jsonl")),
            job,
            projects: self.path("state/agent-sessions/projects"),
            output_file: None,
            home: self.path("home"),
            sockets: self.path("sockets"),
            session: SessionPlan::new(
                SessionStart::Fresh { id: new_session() },
                "the test asks for a fresh session",
            ),
            limits: RunLimits::default(),
            attendance: QuestionPolicy::Nobody,
            sync_each_row: false,
            workspaces: None,
            keep_output: false,
            keep_agent: None,
        };
        let claude = ClaudeLaunchSpec {
            program: claude(),
            permission_mode: "acceptEdits".to_owned(),
            ..ClaudeLaunchSpec::default()
        };
        let brief = AgentLaunchSpec {
            protocol: PROTOCOL,
            prompt: prompt.to_owned(),
            env: self.env(),
            secrets: Vec::new(),
            shared_secrets: Vec::new(),
            work: RuntimeLaunchSpec::Claude(Box::new(claude)),
            send_files_to: None,
            authority: RunAuthority::default(),
            may_start_jobs: false,
            sandbox: None,
        };
        Plan { spec, brief }
    }

    /// What claude needs to run here without network.
    fn env(&self) -> indexmap::IndexMap<String, String> {
        let path = std::env::var("PATH").unwrap();
        let (home, config, temp) = (self.path("work"), self.path("claude"), self.path("tmp"));
        std::fs::create_dir_all(&temp).unwrap();
        [
            ("PATH", path.as_str()),
            ("HOME", home.as_str()),
            ("CLAUDE_CONFIG_DIR", config.as_str()),
            ("TMPDIR", temp.as_str()),
            ("TERM", "dumb"),
            ("LANG", "C.UTF-8"),
            ("ANTHROPIC_BASE_URL", self.api.url()),
            ("ANTHROPIC_API_KEY", "mock-api-key"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("CLAUDE_CODE_MAX_RETRIES", "1"),
            // Lets root bypass permissions.
            ("IS_SANDBOX", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Runs to the end.
    #[track_caller]
    pub(crate) fn run(&self, plan: Plan) -> End {
        let asked_before = self.api.messages().len();
        let child = self.spawn(&plan);
        self.end(&plan.spec, child, asked_before)
    }

    /// Starts, and listens to what happens.
    #[track_caller]
    pub(crate) fn start(&self, plan: Plan) -> Live<'_> {
        let asked_before = self.api.messages().len();
        let mut child = self.spawn(&plan);
        let file = self.run_dir(&plan.spec).join("started.json");
        let started: RunStartRecord = wait("started.json", || {
            if let Some(status) = child.try_wait().unwrap() {
                let log = self.runner_log(&plan.spec);
                panic!("the runner ended with {status} before it began: {log}");
            }
            serde_json::from_slice(&std::fs::read(&file).ok()?).ok()
        });
        let socket = wait("the control socket", || UnixStream::connect(&started.socket).ok());
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let happenings = BufReader::new(socket);
        let mut live =
            Live { rig: self, spec: plan.spec, child, happenings, sent: 0, asked_before };
        live.send(ControlOperation::Subscribe);
        live
    }

    pub(crate) fn run_dir(&self, spec: &RunSpec) -> Utf8PathBuf {
        self.path(&format!("state/runs/{}", spec.run))
    }

    fn runner_log(&self, spec: &RunSpec) -> String {
        std::fs::read_to_string(self.run_dir(spec).join("runner.log")).unwrap()
    }

    /// `heeler runner <dir>`, with its brief handed over.
    fn spawn(&self, plan: &Plan) -> Child {
        let dir = self.run_dir(&plan.spec);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("spec.json"), serde_json::to_vec(&plan.spec).unwrap()).unwrap();
        let log = std::fs::File::create(dir.join("runner.log")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_heeler"))
            .args(["runner", dir.as_str()])
            .current_dir(self.path("work"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HEELER_LOG", "trace")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let brief = serde_json::to_vec(&plan.brief).unwrap();
        child.stdin.take().unwrap().write_all(&brief).unwrap();
        child
    }

    /// Settles a run whose runner is dead.
    #[track_caller]
    pub(crate) fn settle(&self, spec: &RunSpec) {
        let settled = Command::new(env!("CARGO_BIN_EXE_heeler"))
            .args(["runner", "--settle", self.run_dir(spec).as_str()])
            .env_clear()
            .env("HEELER_HOME", &spec.home)
            .output()
            .unwrap();
        assert!(settled.status.success(), "{settled:#?}");
    }

    #[track_caller]
    fn end(&self, spec: &RunSpec, child: Child, asked_before: usize) -> End {
        let output = child.wait_with_output().unwrap();
        let file = self.run_dir(spec).join("result.json");
        let Ok(result) = std::fs::read(&file) else {
            let log = self.runner_log(spec);
            panic!("no result from a runner that ended so: {output:#?} {log}");
        };
        let result: RunResult = serde_json::from_slice(&result).unwrap();
        let log = result.session.as_ref().map(|session| session.log.clone());
        let rows_of_job = rows(&spec.job_log);
        let ids: HashSet<&str> =
            rows_of_job.iter().filter_map(|row| row["uuid"].as_str()).collect();
        assert_eq!(
            ids.len(),
            rows_of_job.len(),
            "every row has an id of its own: {rows_of_job:#?}"
        );
        End {
            session: log.map(|log| rows(&log)).unwrap_or_default(),
            sent: self.api.messages().split_off(asked_before),
            rows: rows_of_job,
            result,
        }
    }

    /// Rows, one a line, without what differs between runs.
    pub(crate) fn show(&self, rows: &[Json]) -> String {
        let (root, api) = (self.path(""), self.api.url().trim_start_matches("http://"));
        let root = root.as_str().trim_end_matches('/');
        let tasks = rows.iter().filter_map(|row| row["task_id"].as_str()).map(str::to_owned);
        let mut names = Names { tasks: tasks.collect(), seen: Vec::new() };
        let lines = rows.iter().map(|row| {
            let mut row = row.clone();
            steady(&mut row);
            names.plain(&row.to_string().replace(root, "<rig>").replace(api, "<api>"))
        });
        lines.map(|line| line + "\n").collect()
    }
}

impl Plan {
    pub(crate) fn claude(&mut self) -> &mut ClaudeLaunchSpec {
        match &mut self.brief.work {
            RuntimeLaunchSpec::Claude(claude) => claude,
            _ => panic!("the plan is not for claude"),
        }
    }

    /// Continues what a run left.
    pub(crate) fn resume(mut self, end: &End) -> Plan {
        self.spec.session.start = SessionStart::Resume { id: end.session_id() };
        self
    }

    /// Lets a person answer.
    pub(crate) fn attended(mut self) -> Plan {
        self.spec.attendance = QuestionPolicy::Person { timeout_ms: 20_000 };
        self
    }
}

impl End {
    pub(crate) fn session_id(&self) -> AgentSessionId {
        self.result.session.as_ref().expect("the run had a session").id.clone()
    }

    /// The one row of the job that is of this type and subtype, or tool name.
    #[track_caller]
    pub(crate) fn row(&self, kind: &str, name: &str) -> &Json {
        let is = |row: &&Json| {
            row["type"] == kind
                && (name.is_empty() || row["subtype"] == name || row["tool_name"] == name)
        };
        self.rows.iter().find(is).unwrap_or_else(|| panic!("no {kind} {name} in {:#?}", self.rows))
    }
}

impl Live<'_> {
    /// Asks something of the runner.
    pub(crate) fn send(&mut self, op: ControlOperation) {
        self.sent += 1;
        let request = ControlRequest { protocol: PROTOCOL, id: self.sent, op };
        let line = serde_json::to_string(&request).unwrap() + "\n";
        self.happenings.get_mut().write_all(line.as_bytes()).unwrap();
    }

    pub(crate) fn answer(&mut self, ask: &AgentQuestion, answer: QuestionAnswer) {
        self.send(ControlOperation::Answer {
            ask: ask.id.clone(),
            answer,
            by: "the test".to_owned(),
            shown: Some(ask.shown_hash()),
        });
    }

    pub(crate) fn cancel(&mut self) {
        self.send(ControlOperation::Cancel { now: false, by: "the test".to_owned() });
    }

    /// Waits for something to happen.
    #[track_caller]
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut of: impl FnMut(&ControlEvent) -> Option<T>,
    ) -> T {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.happenings.read_line(&mut line);
            if !matches!(read, Ok(1..)) {
                panic!("{what} did not happen: {read:?}; {:#?}", rows(&self.spec.job_log));
            }
            // Replies come on the same line; those that refuse are what a test wants to know.
            assert!(!line.contains("\"refused\""), "while {what} was awaited: {line}");
            let Ok(happening) = serde_json::from_str(&line) else { continue };
            if let Some(found) = of(&happening) {
                return found;
            }
        }
    }

    /// Waits until the runner refuses a request; returns the reason.
    #[track_caller]
    pub(crate) fn next_refusal(&mut self) -> String {
        let mut line = String::new();
        while !line.contains("\"refused\"") {
            line.clear();
            let read = self.happenings.read_line(&mut line);
            assert!(matches!(read, Ok(1..)), "nothing was refused: {read:?}");
        }
        line
    }

    #[track_caller]
    pub(crate) fn until_asked(&mut self) -> AgentQuestion {
        self.until("a question", |happening| match happening {
            ControlEvent::Asked { ask } => Some(ask.clone()),
            _ => None,
        })
    }

    /// Waits for a row of the job.
    #[track_caller]
    pub(crate) fn until_row(&mut self, kind: &str) -> Json {
        self.until(kind, |happening| match happening {
            ControlEvent::Row { row, .. } if row.text("type") == Some(kind) => {
                Some(row.as_json().clone())
            }
            _ => None,
        })
    }

    /// Waits until the agent has begun to say this.
    #[track_caller]
    pub(crate) fn until_said(&mut self, part: &str) {
        // What may begin a secret comes with the next piece: no single one need have it all.
        let mut said = String::new();
        self.until(part, |happening| {
            if let ControlEvent::Delta { text, .. } = happening {
                said.push_str(text);
            }
            said.contains(part).then_some(())
        });
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn finish(self) -> End {
        self.rig.end(&self.spec, self.child, self.asked_before)
    }
}

/// Waits until there is something.
#[track_caller]
pub(crate) fn wait<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + WAIT_MAX;
    loop {
        let begun = Instant::now();
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < until, "{what} did not come");
        rest_after_look(begun.elapsed());
    }
}

pub(crate) fn new_session() -> AgentSessionId {
    uuid::Uuid::new_v4().to_string().parse().unwrap()
}

/// All rows of a log.
pub(crate) fn rows(log: &Utf8Path) -> Vec<Json> {
    let mut text = std::fs::read_to_string(log).unwrap_or_default();
    // Runners record the user who connected, who differs between machines.
    let user = heeler_process::login_name(rustix::process::geteuid().as_raw());
    for (found, shown) in [
        (format!("cancelled by {user}"), "cancelled by the test"),
        (format!("\"{user} allowed"), "\"the test allowed"),
        (format!("\"{user} denied"), "\"the test denied"),
    ] {
        text = text.replace(&found, shown);
    }
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Takes out what each run has another of, and what would only make a page longer.
fn steady(json: &mut Json) {
    match json {
        Json::Object(map) => {
            for key in ["uuid", "timestamp", "usage", "messages_received"] {
                map.shift_remove(key);
            }
            map.retain(|key, value| !(value.is_number() && key.ends_with("_ms")));
            map.values_mut().for_each(steady);
        }
        Json::Array(items) => items.iter_mut().for_each(steady),
        // Sums of prices differ in their last digits.
        Json::Number(number) if number.is_f64() => {
            let number = number.as_f64().expect("it is one");
            *json = json!((number * 1e6).round() / 1e6);
        }
        Json::String(text) => {
            // How long a retry waits is random.
            if let Some(wait) = text.find(", retry ") {
                text.truncate(wait);
            }
            if let Some(script) = text.find("MOCK[") {
                text.replace_range(script.., "<script>");
            }
            if let Some((at, _)) = text.char_indices().nth(SHOWN_CHARS_MAX) {
                text.replace_range(at.., "…");
            }
        }
        _ => {}
    }
}

/// Short names for ids, in the order in which they come.
struct Names {
    /// What names a task.
    tasks: Vec<String>,
    seen: Vec<String>,
}

impl Names {
    fn plain(&mut self, text: &str) -> String {
        let is_of_id = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let mut plain = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(is_of_id) {
            let (before, word) = rest.split_at(start);
            let end = word.find(|c| !is_of_id(c)).unwrap_or(word.len());
            plain.push_str(before);
            let name = self.name(&word[..end]);
            plain.push_str(&name);
            rest = &word[end..];
        }
        plain + rest
    }

    fn name(&mut self, word: &str) -> String {
        // A copy of a file is named after an id.
        if let Some((id, rest)) = word.split_once('-').filter(|(id, _)| id.len() == 32) {
            return format!("{}-{rest}", self.name(id));
        }
        let kind = match word {
            word if word.starts_with("toolu_") => "tool",
            word if word.starts_with("msg_") => "msg",
            word if word.starts_with("req_") => "req",
            word if uuid::Uuid::try_parse(word).is_ok() => "id",
            word if self.tasks.iter().any(|task| task == word) => "task",
            _ => return word.to_owned(),
        };
        let known = self.seen.iter().position(|seen| seen == word);
        let number = known.unwrap_or_else(|| {
            self.seen.push(word.to_owned());
            self.seen.len() - 1
        });
        format!("<{kind}{number}>")
    }
}
