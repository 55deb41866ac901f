//! Check of the access to GitHub: the account, the rate limit and the settings that must agree.
//!
//! Start at [`check`].

use heeler_engine::{GithubAccessReport, check_github_access};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;
use crate::process_env;
use crate::text_file::read_text;
use crate::trust::{self, UnlistedFleet};

/// Runs `doctor github`. It sends a token to an address of the config, so a person must have agreed to
/// the config.
pub(super) fn run(context: &CommandContext, is_json: bool) -> CommandResult {
    trust::require(context, UnlistedFleet::Ask)?;
    let loaded = fleet_config::load_without_workflows(context)?;
    let env = fleet_config::environment(context, context.config_file()?)?;
    let Some(report) = check_github_access(&loaded, &env, process_env::now) else {
        let message = "the config has no access to GitHub";
        return Err(CommandFailure::message(FailureCode::Usage, message)
            .hint("set `github` in the fleet file, with `token_env` or `app`: docs/github.md"));
    };
    match is_json {
        true => output::print_json(&to_json(&report))?,
        false => print_report(&report)?,
    }
    match report.problems.is_empty() {
        true => Ok(()),
        false => Err(CommandFailure::silent(FailureCode::Failed)),
    }
}

/// Checks the access, if the config names one. An unreadable config is not a problem of it.
pub(super) fn check(context: &CommandContext) -> Option<GithubAccessReport> {
    let file = context.config.as_deref()?;
    let loaded = fleet_config::try_load(context, file, &read_text).ok()?.ok()?;
    let env = fleet_config::environment(context, file).ok()?;
    let is_used = loaded.fleets.first().is_some_and(|fleet| fleet.github.is_some());
    if is_used && trust::check(context, &loaded).is_err() {
        let summary = "not checked, because you have not agreed to this config: heeler trust";
        return Some(GithubAccessReport { summary: summary.to_owned(), problems: Vec::new() });
    }
    check_github_access(&loaded, &env, process_env::now)
}

pub(super) fn print_report(report: &GithubAccessReport) -> CommandResult {
    let GithubAccessReport { summary, problems } = report;
    if problems.is_empty() {
        output::print_line(format!("GitHub: {summary}"))?;
    }
    for problem in problems {
        output::print_line(format!("GitHub: {problem}"))?;
    }
    Ok(())
}

pub(super) fn to_json(report: &GithubAccessReport) -> Value {
    json!({ "summary": report.summary, "problems": report.problems })
}
