//! `heeler demo`: shows Heeler at work in a real folder with real commands.
//!
//! Every output is that of the command printed above it, run as a process of its own.

mod demo_context;
mod serve;
mod side_by_side;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use heeler_transcript::{TranscriptWriter, TranscriptWriterOptions};

use self::demo_context::{DemoContext, print_heading, print_text, show_command};
use crate::commands::workflow;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::job_watch;
use crate::output;
use crate::process_env;
use crate::trust;

/// Prefix of the names of temporary folders.
const FOLDER_PREFIX: &str = "heeler-demo-";
/// Number of times that the demo kills a writer.
const KILLS: u32 = 20;
/// Acknowledged rows after which a writer is killed.
const ROWS_BEFORE_KILL: usize = 500;
/// Hidden argument that turns the demo into a writer.
const WRITER: &str = "--as-writer-of";

/// A fleet of scripted agents.
const FLEET: [(&str, &str); 4] = [
    ("heeler.yaml", include_str!("demo/fleet/heeler.yaml")),
    ("agents/scout.yaml", include_str!("demo/fleet/scout.yaml")),
    ("agents/builder.yaml", include_str!("demo/fleet/builder.yaml")),
    ("agents/tester.yaml", include_str!("demo/fleet/tester.yaml")),
];
const AGENTS: [&str; 3] = ["scout", "builder", "tester"];

/// A fleet of agents of three kinds. The programs are shell scripts that speak the real protocols.
const MIXED: [(&str, &str); 4] = [
    ("heeler.yaml", include_str!("demo/mixed/heeler.yaml")),
    ("workflows/mixed.yaml", include_str!("demo/mixed/workflow.yaml")),
    ("codex.sh", include_str!("demo/mixed/codex.sh")),
    ("acp-agent.sh", include_str!("demo/mixed/acp-agent.sh")),
];

/// herdctl project after a crash: one job done, one cut off in the middle of a row.
const PROJECT: [(&str, &str); 9] = [
    ("herdctl.yaml", include_str!("demo/project/herdctl.yaml")),
    ("coder.yaml", include_str!("demo/project/coder.yaml")),
    ("marketer.yaml", include_str!("demo/project/marketer.yaml")),
    (".herdctl/state.yaml", include_str!("demo/project/state.yaml")),
    (".herdctl/jobs/job-2026-11-14-k3v9q1.yaml", include_str!("demo/project/report.yaml")),
    (".herdctl/jobs/job-2026-11-14-k3v9q1.jsonl", include_str!("demo/project/report.jsonl")),
    (".herdctl/jobs/job-2026-11-14-w8d2mz.yaml", include_str!("demo/project/stuck.yaml")),
    (".herdctl/jobs/job-2026-11-14-w8d2mz.jsonl", include_str!("demo/project/stuck.jsonl")),
    (".herdctl/sessions/marketer.json", include_str!("demo/project/session.json")),
];

/// Help footer of `demo`.
pub(crate) const ABOUT: &str = "The demo takes some seconds, needs no model, key or network, and leaves a fleet for you to explore.
Ctrl-C ends it; its files stay. With --serve, a small fleet runs on the dashboard until Ctrl-C, SIGTERM
or the end of the terminal; its files are deleted afterwards, unless you named a folder. The next
`heeler demo --serve` ends and deletes a fleet whose demo was killed.

Exit codes: 0 everything worked, 1 something failed, 5 the folder is in use, 130 interrupted by Ctrl-C.";

/// Arguments of `demo`.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// New or empty folder for the demo [default: a temporary folder]
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<Utf8PathBuf>,
    /// Run a small fleet with a dashboard until Ctrl-C, and print its link
    #[arg(long)]
    serve: bool,
    #[arg(long = "as-writer-of", hide = true, value_name = "FILE")]
    as_writer_of: Option<Utf8PathBuf>,
}

/// Runs `demo`.
pub(crate) fn run(args: &DemoArgs) -> CommandResult {
    // The writer is this program itself, so that it can be killed as a process of its own.
    if let Some(file) = &args.as_writer_of {
        return write_until_killed(file);
    }
    let program = process_env::program()?;
    if args.serve {
        // Before the folder exists: a signal must not leave it behind.
        let interrupted = handle_signals(job_watch::on_end_request)?;
        serve::remove_leftovers(&program)?;
        let demo = DemoContext { program, folder: new_folder(args.dir.as_deref())?, interrupted };
        return serve::run(&demo, args.dir.is_none());
    }
    let folder = new_folder(args.dir.as_deref())?;
    let demo =
        DemoContext { program, folder, interrupted: handle_signals(job_watch::on_interrupt)? };
    match demo.run() {
        // Child processes were interrupted too, so their failures say nothing.
        Err(_) if demo.is_interrupted() => Err(demo.interrupted_failure()),
        done => done,
    }
}

/// Sets a flag on a signal instead of ending this process. Child processes receive Ctrl-C too.
fn handle_signals(
    register: impl FnOnce(Box<dyn FnMut() + Send>) -> std::io::Result<()>,
) -> CommandResult<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    register(Box::new(move || raised.store(true, Ordering::Relaxed)))?;
    Ok(flag)
}

impl DemoContext {
    fn run(&self) -> CommandResult {
        print_heading(
            "Three agents work in parallel. They follow scripts: no model, key or network is needed.",
        )?;
        self.write("fleet", &FLEET)?;
        self.add_sandbox("fleet")?;
        self.run_agents()?;
        self.run_command("fleet", &["jobs"])?;
        self.fork()?;
        self.workflow()?;
        self.mixed_fleet()?;

        print_heading(
            "A herdctl project after a crash: one job stuck in `running`, its transcript torn.\nAny command adopts it in place.",
        )?;
        self.write("project", &PROJECT)?;
        self.run_command("project", &["jobs"])?;
        self.run_command("project", &["doctor", "--fix"])?;

        print_heading(&format!(
            "A writer killed with kill -9, {KILLS} times, in the middle of its work.\nEvery acknowledged row must be in the file, complete."
        ))?;
        self.kill_writers()?;

        // The user explores a fleet of this program's own, and need not agree to it.
        trust::record_own_fleet(&self.folder.join("fleet/heeler.yaml"))?;
        print_heading("Yours to explore:")?;
        print_text(self.next_steps())
    }

    fn next_steps(&self) -> String {
        let (heeler, folder) = (self.program_name(), &self.folder);
        let commands = ["status", "trigger builder", "session list", "logs", "search tulip"];
        let mut lines =
            vec![format!("  export HEELER_HOME={folder}/home"), format!("  cd {folder}/fleet")];
        lines.extend(commands.iter().map(|command| format!("  {heeler} {command}")));
        lines.join("\n")
    }

    /// Shows that a session and its fork share the messages before the fork, and only those.
    fn fork(&self) -> CommandResult {
        print_heading("A session continues where it stopped. A fork of it continues separately.")?;
        let session = self.session_of("scout")?;
        self.run_command("fleet", &scout_args(&[&session, "-p", "The password is tulip."]))?;
        self.run_command("fleet", &scout_args(&[&session, "--fork", "-p", "The goal is Rome."]))?;
        // The fork was used last, so it is the newest session of the agent.
        let fork = self.session_of("scout")?;
        self.run_command("fleet", &scout_args(&[&session, "-p", "The goal is Paris."]))?;

        print_heading("The same question to both:")?;
        let question = ["-p", "What did I tell you?", "-q"];
        let original = self.capture_command(
            "fleet",
            &scout_args(&[&[session.as_str()], &question[..]].concat()),
        )?;
        let forked = self
            .capture_command("fleet", &scout_args(&[&[fork.as_str()], &question[..]].concat()))?;
        // The demo checks what it claims, instead of printing a prepared text.
        let knows = |answer: &str, known: &str, unknown: &str| {
            answer.contains("tulip") && answer.contains(known) && !answer.contains(unknown)
        };
        if !knows(&original, "Paris", "Rome") || !knows(&forked, "Rome", "Paris") {
            return Err(CommandFailure::message(
                FailureCode::Bug,
                "a session knows a message that it never received",
            ));
        }
        print_text(
            "Both know the password, which came before the fork; each knows only its own goal.",
        )
    }

    /// Shows a workflow that waits for an approval.
    fn workflow(&self) -> CommandResult {
        print_heading(
            "A workflow: plan, ask, build, test, review and fix. It waits for your approval, even\nwhile no Heeler process runs.",
        )?;
        self.write("build", workflow::files_of("build"))?;
        self.run_command("build", &["workflow", "run", "build", "--until-asked"])?;
        let approvals = self.json("build", &["approvals", "list", "--json"])?;
        let found = |key: &str| approvals["approvals"][0][key].as_str().map(str::to_owned);
        let missing = || {
            CommandFailure::message(FailureCode::Bug, "the workflow did not ask for an approval")
        };
        // IDs are random, so they are read from the output of a command, as a script would do.
        let (ask, run) = found("id").zip(found("workflowRunId")).ok_or_else(missing)?;
        self.run_command("build", &["approvals", "approve", &ask])?;
        self.run_command("build", &["workflow", "watch", &run])?;
        self.run_command("build", &["workflow", "show", &run])
    }

    /// Shows a workflow of agents of different kinds.
    fn mixed_fleet(&self) -> CommandResult {
        print_heading(
            "A mixed fleet: a scripted agent plans, one that speaks Codex's protocol builds, and one that\nspeaks ACP reviews. Scripts stand for the programs.",
        )?;
        self.write("mixed", &MIXED)?;
        for program in ["codex.sh", "acp-agent.sh"] {
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(self.folder.join("mixed").join(program), mode)?;
        }
        self.run_command("mixed", &["workflow", "run", "mixed"])?;
        self.run_command("mixed", &["jobs"])
    }

    /// Returns a failure that names the cancelled jobs and the remaining files.
    fn interrupted_failure(&self) -> CommandFailure {
        let list = ["jobs", "--status", "cancelled", "--json"];
        // This is already a failure; a second one must not hide it.
        let jobs = self.json("fleet", &list).unwrap_or_default();
        let jobs = jobs["jobs"].as_array().cloned().unwrap_or_default();
        let names = jobs.iter().filter_map(|job| job["agent"].as_str());
        let cancelled = match names.collect::<Vec<_>>()[..] {
            [] => "no job was running".to_owned(),
            [one] => format!("cancelled the job of {one}"),
            ref names => format!("cancelled the jobs of {}", names.join(", ")),
        };
        let message = format!("interrupted: {cancelled}; the demo's files are kept");
        let (heeler, folder) = (self.program_name(), &self.folder);
        CommandFailure::message(FailureCode::Interrupted, message).hint(format!(
            "cd {folder}/fleet && HEELER_HOME={folder}/home {heeler} jobs, or rm -r {folder}"
        ))
    }

    fn run_agents(&self) -> CommandResult {
        self.check_interrupted()?;
        let mut started = Vec::new();
        for agent in AGENTS {
            let args = ["trigger", agent];
            show_command("fleet", &[&args[..], &["&"]].concat())?;
            started.push((agent, self.command("fleet", &args)));
        }
        side_by_side::run_side_by_side(started)
    }

    /// Returns the session that an agent used last.
    fn session_of(&self, agent: &str) -> CommandResult<String> {
        let list = ["session", "list", "--agent", agent, "--limit", "1", "--json"];
        let listed = self.json("fleet", &list)?;
        let id = listed["sessions"][0]["id"].as_str();
        let missing =
            || CommandFailure::message(FailureCode::Bug, format!("{agent} has no session"));
        id.map(str::to_owned).ok_or_else(missing)
    }

    fn kill_writers(&self) -> CommandResult {
        let file = self.folder.join("killed.jsonl");
        let mut acknowledged = 0;
        for _ in 0..KILLS {
            self.check_interrupted()?;
            let args = ["demo", WRITER, file.as_str()];
            let mut child = self.command("", &args).stdout(Stdio::piped()).spawn()?;
            let pipe = child.stdout.take().expect("stdout was asked to be a pipe");
            let mut lines = BufReader::new(pipe).lines();
            acknowledged += lines.by_ref().take(ROWS_BEFORE_KILL).filter_map(Result::ok).count();
            child.kill()?;
            // Rows acknowledged before the kill took effect count too.
            acknowledged += lines.map_while(Result::ok).count();
            child.wait()?;
        }
        self.check_interrupted()?;
        // Opening repairs a torn last line, as the next writer of a real transcript would.
        let opened = TranscriptWriter::open(&file, TranscriptWriterOptions::default())
            .map_err(anyhow::Error::from)?;
        drop(opened);
        let page = heeler_transcript::read_tail(&file, usize::MAX).map_err(anyhow::Error::from)?;
        let rows = page.records.len();
        // More rows are right too: the last one may be written but not acknowledged.
        if rows < acknowledged || !page.faults.is_empty() {
            let message = format!("{acknowledged} rows were acknowledged, {rows} were found");
            return Err(CommandFailure::message(FailureCode::Bug, message));
        }
        let (acknowledged, rows) =
            (output::group_thousands(acknowledged as u64), output::group_thousands(rows as u64));
        print_text(format!("{acknowledged} rows acknowledged, {rows} rows found, none torn."))
    }
}

fn scout_args<'a>(session: &[&'a str]) -> Vec<&'a str> {
    [&["trigger", "scout", "--session"], session].concat()
}

/// Appends rows forever, and prints the number of each row that is written.
fn write_until_killed(file: &Utf8Path) -> CommandResult {
    let mut log = TranscriptWriter::open(file, TranscriptWriterOptions::default())
        .map_err(anyhow::Error::from)?
        .writer;
    let mut out = std::io::stdout().lock();
    for number in 0_u64.. {
        let row = format!(r#"{{"type":"assistant","content":"row {number}"}}"#);
        log.append(row.as_bytes()).map_err(anyhow::Error::from)?;
        // The number is printed only after the row was appended: it is the acknowledgement.
        writeln!(out, "{number}")?;
    }
    Ok(())
}

fn new_folder(given: Option<&Utf8Path>) -> CommandResult<Utf8PathBuf> {
    let Some(dir) = given else {
        let mode = std::fs::Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().prefix(FOLDER_PREFIX).permissions(mode).tempdir()?;
        let made = made.keep();
        return Utf8PathBuf::from_path_buf(made).map_err(|path| {
            CommandFailure::message(
                FailureCode::Failed,
                format!("the path {} is not valid UTF-8", path.display()),
            )
        });
    };
    // A folder that cannot be read counts as used.
    let is_used =
        dir.exists() && dir.read_dir_utf8().map_or(true, |mut found| found.next().is_some());
    if is_used {
        let message = format!("{dir} is in use, and the demo only writes to a new or empty folder");
        let hint = format!("heeler demo {dir}-2, or rm -r {dir} if it is an old demo");
        return Err(CommandFailure::message(FailureCode::Refused, message).hint(hint));
    }
    std::fs::create_dir_all(dir)?;
    // Commands of the demo run in subfolders, so the path must be absolute.
    Ok(process_env::working_directory()?.join(dir))
}
