//! Set-up of GitHub: the token, its account and the lines for the config.
//!
//! Start at [`run`].

use heeler_engine::{GithubAccessReport, check_github_access};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;
use crate::process_env;

/// Steps for a fleet without access.
const STEPS: &str = "\
1. Create an account for the fleet on GitHub, or use a GitHub App (docs/github.md). Events of this account start
   nothing, so do not use your own.
2. Create a fine-grained token of that account for your repositories:
   https://github.com/settings/personal-access-tokens/new
   Repository permissions: Contents (read and write), Issues (read and write), Pull requests (read and write),
   Metadata (read).
3. Put the token into the file `.env` beside the config:
   FLEET_GITHUB_TOKEN=github_pat_…
4. Add these lines to the fleet file:

    github:
      bot: ACCOUNT                      # login of the account
      token_env: FLEET_GITHUB_TOKEN
      repos: [OWNER/NAME]

5. Run `heeler connect github` again.";

/// Runs `connect github`.
pub(super) fn run(context: &CommandContext) -> CommandResult {
    let loaded = fleet_config::load_without_workflows(context)?;
    let env = fleet_config::environment(context, context.config_file()?)?;
    let Some(report) = check_github_access(&loaded, &env, process_env::now) else {
        output::print_line(STEPS)?;
        let message = "the config has no access to GitHub";
        return Err(CommandFailure::message(FailureCode::Usage, message));
    };
    let GithubAccessReport { summary, problems } = &report;
    if !summary.is_empty() {
        output::print_line(format!("The fleet {summary}."))?;
    }
    for problem in problems {
        output::print_line(problem.as_str())?;
    }
    if !problems.is_empty() {
        return Err(CommandFailure::silent(FailureCode::Failed));
    }
    output::print_line(
        "All is set up. To let people talk to an agent in comments, add these lines to it:\n\n    chat:\n      \
         github:\n        repos: [{repo: OWNER/NAME}]\n        approvers: ['ID']   # may answer questions\n",
    )?;
    Ok(output::print_line(
        "Next: heeler reload && heeler doctor chat; see docs/github.md for webhooks",
    )?)
}
