//! `heeler workflow example`: writes a fleet with a workflow and scripted agents. Start at [`run`].

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, OutputTable};
use crate::process_env;
use crate::text_file;

/// Help footer of `workflow example`.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow example              # list the examples
  heeler workflow example build        # write the fleet to ./build
  cd build && heeler workflow run build -i task='Greet the world'

The agents follow scripts: no model, key or network is needed. Replace an agent's script with
`runtime: sdk`, and Claude does the work.
Exit codes: 0 written, 2 no such example, 5 the folder is in use.";

/// Example fleet with a workflow.
struct WorkflowExample {
    /// Name of the example and of its workflow.
    name: &'static str,
    about: &'static str,
    /// Command that runs it.
    command: &'static str,
    files: &'static [(&'static str, &'static str)],
}

macro_rules! file {
    ($example:literal, $path:literal) => {
        ($path, include_str!(concat!("examples/", $example, "/", $path)))
    };
}

const EXAMPLES: [WorkflowExample; 3] = [
    WorkflowExample {
        name: "build",
        about: "Plan, ask you, build, test, then review and fix until the review approves",
        command: "heeler workflow run build -i task='Greet the world'",
        files: &[file!("build", "heeler.yaml"), file!("build", "workflows/build.yaml")],
    },
    WorkflowExample {
        name: "interview",
        about: "Ask you until an idea is clear, then write it down",
        command: "heeler workflow run interview -i idea='A garden planner'",
        files: &[file!("interview", "heeler.yaml"), file!("interview", "workflows/interview.yaml")],
    },
    WorkflowExample {
        name: "nightly",
        about: "Maintain many repositories in parallel each night, and report",
        command: "heeler workflow run nightly",
        files: &[
            file!("nightly", "heeler.yaml"),
            file!("nightly", "workflows/nightly.yaml"),
            file!("nightly", "workflows/every-night.yaml"),
            file!("nightly", "repos/alpha/README.md"),
            file!("nightly", "repos/beta/README.md"),
            file!("nightly", "repos/gamma/README.md"),
        ],
    },
];

/// Arguments of `workflow example`.
#[derive(Args)]
pub(crate) struct WorkflowExampleArgs {
    /// Example name [default: list all examples]
    #[arg(value_parser = EXAMPLES.map(|it| it.name))]
    name: Option<String>,
    /// New or empty folder [default: a folder with the example's name]
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<Utf8PathBuf>,
}

pub(crate) fn files_of(name: &str) -> &'static [(&'static str, &'static str)] {
    let found = EXAMPLES.iter().find(|it| it.name == name);
    found.map_or(&[], |example| example.files)
}

/// Runs `workflow example`.
pub(super) fn run(args: &WorkflowExampleArgs) -> CommandResult {
    let Some(name) = &args.name else { return list() };
    let unknown =
        || CommandFailure::message(FailureCode::Usage, format!("there is no example `{name}`"));
    let example = EXAMPLES.iter().find(|it| it.name == name).ok_or_else(unknown)?;
    let dir = args.dir.clone().unwrap_or_else(|| example.name.into());
    let folder = process_env::working_directory()?.join(&dir);
    // A folder that cannot be read counts as used.
    let is_used =
        folder.exists() && folder.read_dir_utf8().map_or(true, |mut it| it.next().is_some());
    if is_used {
        let message = format!("{dir} is in use; an example is written to a new or empty folder");
        let hint = format!("heeler workflow example {name} {dir}-2");
        return Err(CommandFailure::message(FailureCode::Refused, message).hint(hint));
    }
    for (path, text) in example.files {
        write(&folder.join(path), text)?;
        output::print_line(format!("wrote {}", dir.join(path)))?;
    }
    Ok(output::print_line(format!("\nNext: cd {dir} && {}", example.command))?)
}

fn write(path: &Utf8Path, text: &str) -> CommandResult {
    let written = std::fs::create_dir_all(text_file::parent_dir(path))
        .and_then(|()| std::fs::write(path, text));
    written.map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot write {path}"));
        CommandFailure::new(FailureCode::Failed, error)
    })
}

fn list() -> CommandResult {
    let mut lines = OutputTable::new(&["NAME", "ABOUT"], &["ABOUT"]);
    for example in &EXAMPLES {
        lines.push(vec![example.name.into(), example.about.into()]);
    }
    lines.print()?;
    Ok(output::print_note("heeler workflow example NAME writes one to a new folder")?)
}
