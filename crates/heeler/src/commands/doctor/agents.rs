//! `heeler doctor agents`: the agent programs of this machine, their versions and logins. Start at
//! [`run`].

use std::collections::BTreeMap;

use heeler_config::{AgentConfig, CLAUDE_PROGRAM, LoginState, RuntimeConfig};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::fleet_config::OptionalFleetConfig;
use crate::installed_agents::{VersionedAgent, ask_versions, find_installed_agents};
use crate::output::{self, OutputTable};
use crate::process_env;

/// Runs `doctor agents`.
pub(super) fn run(is_json: bool) -> CommandResult {
    let env = process_env::environment();
    let found = ask_versions(find_installed_agents(&env), &env);
    if is_json {
        let agents: Vec<Value> = found.iter().map(to_json).collect();
        return Ok(output::print_json(&json!({ "agents": agents }))?);
    }
    if found.is_empty() {
        let text = "no agent program is on PATH; `heeler agent capabilities` lists those that Heeler knows";
        return Ok(output::print_line(text)?);
    }
    let headings = ["PROGRAM", "VERSION", "TESTED", "LOGIN", "CONFIG"];
    let mut table = OutputTable::new(&headings, &["CONFIG"]);
    for VersionedAgent { installed, version } in &found {
        let agent = installed.agent;
        table.push(vec![
            agent.program.into(),
            version.as_deref().unwrap_or("unknown").into(),
            agent.tested_version.into(),
            login_word(installed.login).into(),
            agent.config_keys().into(),
        ]);
    }
    table.print()?;
    print_warnings(&found)?;
    for VersionedAgent { installed, .. } in &found {
        if installed.login == LoginState::Absent {
            let agent = installed.agent;
            output::print_line(format!("no login of {}: {}", agent.name, agent.login.cure))?;
        }
    }
    Ok(())
}

/// Returns the programs of the fleet's agents that are found by their names on `PATH` and have a
/// version outside the tested range.
pub(super) fn untested_agents(context: &CommandContext) -> Vec<VersionedAgent> {
    // A config with faults is no problem of the state, and other commands report it.
    let loaded = OptionalFleetConfig::load(context).ok().and_then(OptionalFleetConfig::into_loaded);
    let agents = loaded.map(|loaded| loaded.agents).unwrap_or_default();
    let used: Vec<&str> = agents.iter().filter_map(program_name).collect();
    let env: &BTreeMap<String, String> = &context.env;
    let installed = find_installed_agents(env).into_iter();
    let installed = installed.filter(|it| used.contains(&it.agent.program)).collect();
    let mut versioned = ask_versions(installed, env);
    versioned.retain(|agent| agent.range_warning().is_some());
    versioned
}

/// Returns the name under which an agent's program is looked up on `PATH`. A program at a path of its
/// own, or in an image, is not asked.
fn program_name(agent: &AgentConfig) -> Option<&str> {
    let name = match &agent.runtime {
        RuntimeConfig::Sdk | RuntimeConfig::Cli => {
            agent.claude_path.as_ref().map_or(CLAUDE_PROGRAM, |path| path.as_path().as_str())
        }
        RuntimeConfig::Acp(program)
        | RuntimeConfig::Codex(program)
        | RuntimeConfig::Qwen(program) => program.path.as_path().as_str(),
        RuntimeConfig::Scripted(_) | RuntimeConfig::Command(_) => return None,
    };
    Some(name).filter(|name| !name.contains('/') && agent.container().is_none())
}

pub(super) fn print_warnings(agents: &[VersionedAgent]) -> CommandResult {
    for warning in agents.iter().filter_map(VersionedAgent::range_warning) {
        output::print_line(warning)?;
    }
    Ok(())
}

pub(super) fn to_json(agent: &VersionedAgent) -> Value {
    let installed = &agent.installed;
    let sign = match installed.login {
        LoginState::File(file) => json!({ "file": format!("~/{file}") }),
        LoginState::Variable(name) => json!({ "variable": name }),
        LoginState::Absent | LoginState::Unknown => Value::Null,
    };
    json!({
        "program": installed.agent.program,
        "path": installed.path,
        "version": agent.version,
        "testedVersion": installed.agent.tested_version,
        "range": agent.range().as_str(),
        "login": login_word(installed.login),
        "loginSign": sign,
        "runtime": installed.agent.runtime.to_string(),
        "config": installed.agent.config_keys(),
    })
}

fn login_word(login: LoginState) -> &'static str {
    match login {
        LoginState::File(_) | LoginState::Variable(_) => "yes",
        LoginState::Absent => "none",
        LoginState::Unknown => "unknown",
    }
}
