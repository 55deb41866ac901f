//! `heeler completions`, `man` and `version`: the program's description of itself.

use std::io::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use clap_complete::env::Shells;
use serde::Serialize;

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;

/// Arguments of `completions`.
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Shell: bash, zsh, fish, elvish or powershell
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(Shells::builtins().names()))]
    shell: String,
}

/// Arguments of `man`.
#[derive(Args)]
pub(crate) struct ManArgs {
    /// Folder to write to, such as ~/.local/share/man/man1
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Utf8PathBuf,
}

/// Arguments of `version`.
#[derive(Args)]
pub(crate) struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints the registration script; the shell then calls the program itself for completions.
pub(crate) fn run(args: &CompletionsArgs) -> CommandResult {
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell).ok_or_else(|| {
        CommandFailure::message(FailureCode::Usage, format!("unknown shell {}", args.shell))
    })?;
    let mut script = Vec::new();
    shell.write_registration("COMPLETE", "heeler", "heeler", "heeler", &mut script)?;
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// Writes one page per command.
pub(crate) fn man(args: &ManArgs) -> CommandResult {
    std::fs::create_dir_all(&args.dir)?;
    let mut command = crate::command();
    // Without this the global options are missing from the pages of subcommands.
    command.build();
    let count = write_pages(&command, "heeler", &args.dir)?;
    Ok(output::print_line(format!("wrote {count} manual pages to {}", args.dir))?)
}

fn write_pages(command: &clap::Command, name: &str, dir: &Utf8Path) -> CommandResult<usize> {
    let mut count = 1;
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().name(name.to_owned())).render(&mut page)?;
    std::fs::write(dir.join(format!("{name}.1")), page)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        // clap adds this subcommand to every command, which would double the number of pages.
        if sub.get_name() != "help" {
            count += write_pages(sub, &format!("{name}-{}", sub.get_name()), dir)?;
        }
    }
    Ok(count)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProgramVersions {
    heeler: &'static str,
    sqlite: String,
    database: i64,
    target: String,
}

/// Prints the versions that a bug report needs.
pub(crate) fn version(args: &VersionArgs) -> CommandResult {
    let versions = ProgramVersions {
        heeler: env!("CARGO_PKG_VERSION"),
        sqlite: heeler_store::sqlite_version().to_owned(),
        database: heeler_store::SCHEMA_VERSION,
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    };
    if args.json {
        return Ok(output::print_json(&versions)?);
    }
    let ProgramVersions { heeler, sqlite, database, target } = versions;
    Ok(output::print_line(format!(
        "heeler {heeler} (database version {database}, SQLite {sqlite}, {target})"
    ))?)
}
