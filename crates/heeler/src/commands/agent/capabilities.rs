//! `heeler agent capabilities`: what each runtime offers, and the known agent programs.

use heeler_config::{
    CODEX_PROGRAM, CODEX_TESTED_VERSION, COMPARED_RUNTIMES, CapabilityOffer, KNOWN_AGENTS,
    RuntimeCapability, describe_usage,
};
use serde_json::{Map, Value as Json, json};

use crate::failure::CommandResult;
use crate::output::{self, OutputTable};

/// Prints the tables.
pub(super) fn print(as_json: bool) -> CommandResult {
    if as_json {
        return Ok(output::print_json(&tables())?);
    }
    let mut runtimes = OutputTable::new(&["CAPABILITY", "SDK", "CLI", "CODEX", "ACP", "QWEN"], &[]);
    for capability in RuntimeCapability::ALL {
        let offers = COMPARED_RUNTIMES.map(|runtime| match capability.offer(runtime) {
            CapabilityOffer::Offered => "yes",
            CapabilityOffer::Limited(_) => "limited",
            CapabilityOffer::Missing(_) => "no",
        });
        let cells = [capability.as_str()].into_iter().chain(offers);
        runtimes.push(cells.map(Into::into).collect());
    }
    runtimes.print()?;
    output::print_line("")?;
    let mut agents =
        OutputTable::new(&["PROGRAM", "AGENT", "TESTED", "ASKS", "PACKAGE"], &["AGENT", "PACKAGE"]);
    for known in KNOWN_AGENTS.iter() {
        agents.push(vec![
            known.name.into(),
            known.title.into(),
            known.tested_version.into(),
            if known.asks_before_commands { "yes" } else { "no" }.into(),
            known.package.into(),
        ]);
    }
    agents.print()?;
    Ok(output::print_line("\ndocs/agents.md has the reasons; --json prints them")?)
}

fn tables() -> Json {
    let capability = |capability: &RuntimeCapability| {
        let offers = COMPARED_RUNTIMES.iter().map(|runtime| {
            let (offer, reason) = match capability.offer(*runtime) {
                CapabilityOffer::Offered => ("yes", None),
                CapabilityOffer::Limited(how) => ("limited", Some(how)),
                CapabilityOffer::Missing(why) => ("no", Some(why)),
            };
            (runtime.to_string(), json!({ "offer": offer, "reason": reason }))
        });
        (capability.to_string(), Json::Object(offers.collect()))
    };
    let agents = KNOWN_AGENTS.iter().map(|known| {
        json!({
            "program": known.name, "title": known.title, "package": known.package,
            "tested_version": known.tested_version, "runtime": "acp",
            "asks_before_commands": known.asks_before_commands,
            "tokens": describe_usage(known.usage),
        })
    });
    let codex = json!({
        "program": CODEX_PROGRAM, "title": "Codex", "package": "npm @openai/codex",
        "tested_version": CODEX_TESTED_VERSION, "runtime": "codex", "asks_before_commands": true,
        "tokens": "per turn",
    });
    let capabilities: Map<String, Json> = RuntimeCapability::ALL.iter().map(capability).collect();
    let agents: Vec<Json> = [codex].into_iter().chain(agents).collect();
    json!({ "capabilities": capabilities, "agents": agents })
}
