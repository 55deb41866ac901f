//! Builds the launch spec of a scripted agent. Start at [`launch`].

use camino::Utf8Path;
use heeler_model::run::{RunSpec, SessionStart};
use serde_json::Value as Json;

use super::ScriptedFileContent;
use crate::claude::{limit_args, session_args, text_args};
use crate::process::{LaunchArg, LaunchSpec};

/// Returns the launch spec. Flags match Claude's where Claude has such a flag. The steps are passed
/// in memory, together with the secrets that the session file must not hold: both may be secret.
pub(crate) fn launch(
    program: &Utf8Path,
    spec: &RunSpec,
    steps: &[Json],
    secrets: &[String],
    session: &SessionStart,
) -> LaunchSpec {
    let part = ScriptedFileContent { steps: steps.to_vec(), secrets: secrets.to_vec() };
    let part = serde_json::to_vec(&part).expect("JSON is written to memory");
    let mut args = text_args(&["play", "--script"]);
    args.push(LaunchArg::File(part));
    args.extend(text_args(&["--home", spec.home.as_str()]));
    args.extend(session_args(session));
    args.extend(limit_args(&spec.limits));
    args.extend(text_args(&["--permission-prompt-tool", "stdio", "--include-partial-messages"]));
    LaunchSpec { program: program.to_owned(), args, env: Vec::new() }
}
