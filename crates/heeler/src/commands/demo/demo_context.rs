//! Folder and commands of a demo: prints each command and runs it as a process of its own. Start at
//! [`DemoContext`].

use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use camino::Utf8PathBuf;

use crate::commands::doctor;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, SafeText};
use crate::text_file;

/// Folder of the demo, and the program that it runs there.
pub(super) struct DemoContext {
    pub(super) program: Utf8PathBuf,
    pub(super) folder: Utf8PathBuf,
    pub(super) interrupted: Arc<AtomicBool>,
}

impl DemoContext {
    /// Prints a command and runs it.
    pub(super) fn run_command(&self, folder: &str, args: &[&str]) -> CommandResult {
        self.check_interrupted()?;
        show_command(folder, args)?;
        let status = self.command(folder, args).status()?;
        check_status(args, status)
    }

    /// Prints a command, runs it, and returns its output, which is printed too.
    pub(super) fn capture_command(&self, folder: &str, args: &[&str]) -> CommandResult<String> {
        self.check_interrupted()?;
        show_command(folder, args)?;
        // Progress and errors appear at once; only the answer is captured.
        let output = self.command(folder, args).stderr(Stdio::inherit()).output()?;
        check_status(args, output.status)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        print_text(text.trim_end())?;
        Ok(text)
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Fails if Ctrl-C was pressed.
    pub(super) fn check_interrupted(&self) -> CommandResult {
        match self.is_interrupted() {
            true => Err(CommandFailure::silent(FailureCode::Interrupted)),
            false => Ok(()),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the demo runs the program itself")]
    pub(super) fn command(&self, folder: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.folder.join(folder));
        // Use the demo's own fleet and home, not the user's settings.
        command.env_remove("HEELER_STATE_DIR").env("HEELER_HOME", self.folder.join("home"));
        // The demo wrote everything in it.
        command.env("HEELER_TRUST", &self.folder);
        command
    }

    pub(super) fn write(&self, folder: &str, files: &[(&str, &str)]) -> CommandResult {
        for (name, text) in files {
            let path = self.folder.join(folder).join(name);
            std::fs::create_dir_all(text_file::parent_dir(&path))?;
            std::fs::write(path, text)?;
        }
        Ok(())
    }

    /// Confines the agents of a fleet of the demo to sandboxes, if this machine can make them.
    pub(super) fn add_sandbox(&self, folder: &str) -> CommandResult {
        if doctor::probe_sandbox().is_err() {
            return Ok(());
        }
        let path = self.folder.join(folder).join("heeler.yaml");
        let text = text_file::read_text(&path)?;
        Ok(std::fs::write(&path, format!("{text}\ndefaults:\n  sandbox: true\n"))?)
    }

    /// Returns the command that a user types to run this program: its name if `PATH` leads to it.
    #[expect(clippy::disallowed_methods, reason = "what a shell finds depends on it")]
    pub(super) fn program_name(&self) -> &str {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join("heeler"));
        // Another `heeler` may come first in PATH, and a copied command must run this one.
        let first = found.filter_map(|file| file.canonicalize().ok()).next();
        match first == self.program.as_std_path().canonicalize().ok() {
            true => "heeler",
            false => self.program.as_str(),
        }
    }

    /// Runs a command and parses the JSON that it prints.
    pub(super) fn json(&self, folder: &str, args: &[&str]) -> CommandResult<serde_json::Value> {
        let output = self.command(folder, args).stderr(Stdio::inherit()).output()?;
        Ok(serde_json::from_slice(&output.stdout).map_err(anyhow::Error::from)?)
    }
}

pub(super) fn check_status(args: &[&str], status: ExitStatus) -> CommandResult {
    if status.success() {
        return Ok(());
    }
    let message = format!("`heeler {}` ended with {status}", args.join(" "));
    Err(CommandFailure::message(FailureCode::Failed, message))
}

pub(super) fn print_heading(text: &str) -> CommandResult {
    print_text("")?;
    print_text(SafeText::styled(anstyle::Style::new().bold(), text))
}

pub(super) fn show_command(folder: &str, args: &[&str]) -> CommandResult {
    let quoted = |arg: &&str| match arg.contains(' ') {
        true => format!("'{arg}'"),
        false => (*arg).to_owned(),
    };
    let args: Vec<String> = args.iter().map(quoted).collect();
    let line = format!("{folder} $ heeler {}", args.join(" "));
    print_text(SafeText::styled(anstyle::Style::new().dimmed(), &line))
}

pub(super) fn print_text(text: impl Into<SafeText>) -> CommandResult {
    Ok(output::print_line(text)?)
}
