//! `heeler demo`: what Heeler does today, shown on a real folder with real commands.
//!
//! Every output is that of the command printed above it, run as a process of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use heeler_transcript::{Log, LogOptions};

use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Text};

/// How often the demo kills a writer.
const KILLS: u32 = 20;
/// How many acknowledged rows a writer gets before it is killed.
const ROWS_BEFORE_KILL: usize = 500;
/// The hidden argument that makes the demo a writer.
const WRITER: &str = "--as-writer-of";

/// A herdctl project as a crash left it: one job done, one cut off in the middle of a row.
const PROJECT: [(&str, &str); 9] = [
    ("herdctl.yaml", include_str!("demo/herdctl.yaml")),
    ("coder.yaml", include_str!("demo/coder.yaml")),
    ("marketer.yaml", include_str!("demo/marketer.yaml")),
    (".herdctl/state.yaml", include_str!("demo/state.yaml")),
    (".herdctl/jobs/job-2026-11-14-k3v9q1.yaml", include_str!("demo/report.yaml")),
    (".herdctl/jobs/job-2026-11-14-k3v9q1.jsonl", include_str!("demo/report.jsonl")),
    (".herdctl/jobs/job-2026-11-14-w8d2mz.yaml", include_str!("demo/stuck.yaml")),
    (".herdctl/jobs/job-2026-11-14-w8d2mz.jsonl", include_str!("demo/stuck.jsonl")),
    (".herdctl/sessions/marketer.json", include_str!("demo/session.json")),
];

/// Arguments of `demo`.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// A new folder for the demo [default: one in the temporary folder]
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<Utf8PathBuf>,
    #[arg(long = "as-writer-of", hide = true, value_name = "FILE")]
    as_writer_of: Option<Utf8PathBuf>,
}

/// Shows Heeler at work.
pub(crate) fn run(args: &DemoArgs) -> Outcome {
    if let Some(file) = &args.as_writer_of {
        return write_until_killed(file);
    }
    let stage =
        Stage { program: crate::place::program()?, folder: new_folder(args.dir.as_deref())? };

    stage.tell("A fleet that works at once.")?;
    stage.heeler("fleet", &["init"])?;
    stage.heeler("fleet", &["config", "validate"])?;

    stage.tell("A herdctl project as a crash left it: one job done, one stuck in `running`, its transcript torn.\nAny command adopts it in place.")?;
    stage.write_project()?;
    stage.heeler("project", &["jobs"])?;
    stage.heeler("project", &["jobs", "logs", "job-2026-11-14-w8d2mz"])?;
    stage.heeler("project", &["search", "timeout"])?;
    stage.heeler("project", &["doctor", "--fix"])?;

    stage.tell(&format!(
        "A writer killed with kill -9, {KILLS} times, in the middle of its work.\nEvery row it was told is written must be there, whole."
    ))?;
    stage.kill_writers()?;

    stage.tell("Yours to explore:")?;
    say(format!(
        "  cd {folder}/project && {program} status\n  cd {folder}/fleet && {program} config show\n  {program} help\n\nAgents run with the next release; see CHANGELOG.md.",
        folder = stage.folder,
        program = stage.program,
    ))
}

struct Stage {
    program: Utf8PathBuf,
    folder: Utf8PathBuf,
}

impl Stage {
    fn tell(&self, text: &str) -> Outcome {
        say("")?;
        say(Text::styled(anstyle::Style::new().bold(), text))
    }

    /// Shows a command and runs it.
    fn heeler(&self, place: &str, args: &[&str]) -> Outcome {
        let dim = anstyle::Style::new().dimmed();
        say(Text::styled(dim, &format!("{place} $ heeler {}", args.join(" "))))?;
        let folder = self.folder.join(place);
        std::fs::create_dir_all(&folder)?;
        let status = self.command(args).current_dir(&folder).status()?;
        if status.success() {
            return Ok(());
        }
        let message = format!("`heeler {}` ended with {status}", args.join(" "));
        Err(Failure::message(Code::Failed, message))
    }

    #[expect(clippy::disallowed_methods, reason = "the demo runs the program itself")]
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // The demo's own fleet and home, whatever the user has set up.
        command.args(args).env_remove("HEELER_STATE_DIR");
        command.env("HEELER_HOME", self.folder.join("home"));
        command
    }

    fn write_project(&self) -> Outcome {
        for (name, text) in PROJECT {
            let path = self.folder.join("project").join(name);
            std::fs::create_dir_all(crate::place::beside(&path))?;
            std::fs::write(path, text)?;
        }
        Ok(())
    }

    fn kill_writers(&self) -> Outcome {
        let file = self.folder.join("killed.jsonl");
        let mut acknowledged = 0;
        for _ in 0..KILLS {
            let mut child =
                self.command(&["demo", WRITER, file.as_str()]).stdout(Stdio::piped()).spawn()?;
            let pipe = child.stdout.take().expect("stdout was asked to be a pipe");
            let mut told = BufReader::new(pipe).lines();
            acknowledged += told.by_ref().take(ROWS_BEFORE_KILL).filter_map(Result::ok).count();
            child.kill()?;
            // What it was told before the kill reached it counts too.
            acknowledged += told.map_while(Result::ok).count();
            child.wait()?;
        }
        let opened = Log::open(&file, LogOptions::default()).map_err(anyhow::Error::from)?;
        drop(opened);
        let page = heeler_transcript::tail(&file, usize::MAX).map_err(anyhow::Error::from)?;
        let rows = page.records.len();
        if rows < acknowledged || !page.faults.is_empty() {
            let message = format!("{acknowledged} rows were acknowledged, {rows} are there");
            return Err(Failure::message(Code::Bug, message));
        }
        let (acknowledged, rows) =
            (output::grouped(acknowledged as u64), output::grouped(rows as u64));
        say(format!("{acknowledged} rows acknowledged, {rows} rows found, none torn."))
    }
}

/// Appends rows for ever and tells each one that is written.
fn write_until_killed(file: &Utf8Path) -> Outcome {
    let mut log = Log::open(file, LogOptions::default()).map_err(anyhow::Error::from)?.log;
    let mut out = std::io::stdout().lock();
    for number in 0_u64.. {
        let row = format!(r#"{{"type":"assistant","content":"row {number}"}}"#);
        log.append(row.as_bytes()).map_err(anyhow::Error::from)?;
        writeln!(out, "{number}")?;
    }
    Ok(())
}

fn say(text: impl Into<Text>) -> Outcome {
    Ok(output::line(text)?)
}

fn new_folder(given: Option<&Utf8Path>) -> Outcome<Utf8PathBuf> {
    let Some(dir) = given else {
        let made = tempfile::Builder::new().prefix("heeler-demo-").tempdir()?.keep();
        return Utf8PathBuf::from_path_buf(made).map_err(|path| {
            Failure::message(Code::Failed, format!("odd path {}", path.display()))
        });
    };
    if dir.exists() {
        let message = format!("{dir} exists; the demo only writes to a new folder");
        return Err(Failure::message(Code::Refused, message));
    }
    std::fs::create_dir_all(dir)?;
    Ok(crate::place::working_directory()?.join(dir))
}
