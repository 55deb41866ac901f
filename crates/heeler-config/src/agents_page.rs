//! The page `docs/agents.md`: an introduction, and the tables of runtimes and of known agents.

use crate::agent_conformance::conformance_markdown;
use crate::agent_program::{CODEX_BASE_URL_VARIABLE, CODEX_TESTED_VERSION};
use crate::capabilities::{CapabilityOffer, RuntimeCapability};
use crate::egress::EgressPreset;
use crate::known_agents::{ClientTools, KNOWN_AGENTS, KnownAgent, UsageScope};
use crate::runtime::RuntimeType;
use crate::token_price::ESTIMATED_PRICES;

/// Runtimes in the order of the table's columns.
pub const COMPARED_RUNTIMES: [RuntimeType; 5] =
    [RuntimeType::Sdk, RuntimeType::Cli, RuntimeType::Codex, RuntimeType::Acp, RuntimeType::Qwen];

/// Renders the page.
pub fn agents_markdown() -> String {
    let mut page = include_str!("agents_intro.md").to_owned();
    page.push_str("## What each runtime offers\n\n");
    page.push_str(
        "`sdk` and `cli` are Claude Code, `qwen` is Qwen Code (`runtime: sdk` with `program: qwen`). A config that \
         needs something missing is refused.\n\n",
    );
    page.push_str("| |");
    COMPARED_RUNTIMES.iter().for_each(|runtime| page.push_str(&format!(" `{runtime}` |")));
    page.push_str("\n|---|---|---|---|---|---|\n");
    for capability in RuntimeCapability::ALL {
        page.push_str(&format!("| {capability} |"));
        for runtime in COMPARED_RUNTIMES {
            page.push_str(&format!(" {} |", describe_offer(capability.offer(runtime))));
        }
        page.push('\n');
    }
    page.push_str("\n## Known agents\n\n");
    page.push_str(
        "The version is the one with which Heeler was checked, by the tests of the last table. `heeler doctor` says \
         when the version of an agent of the fleet differs in its first two numbers.\n\n",
    );
    page.push_str(
        "| `program` | agent | package | version | asks before commands | plan mode | tokens | leaves to Heeler |\n",
    );
    page.push_str("|---|---|---|---|---|---|---|---|\n");
    page.push_str(&format!(
        "| (`runtime: codex`) | Codex | npm @openai/codex | {CODEX_TESTED_VERSION} | yes | yes | per turn | nothing |\n"
    ));
    KNOWN_AGENTS.iter().for_each(|agent| page.push_str(&describe_agent(agent)));
    page.push_str(&hosts_markdown());
    page.push_str("\n## Estimated prices\n\n");
    page.push_str(
        "Estimates in US dollars for a million tokens: list prices, without discounts, and what a subscription \
         includes is not free here. `prices` of an agent replaces them and adds others:\n\n\
         ```yaml\nmodel: my-model\nprices:\n  my-model: {input: 1.25, output: 10, cache_read: 0.125}\n```\n\n\
         | model | input | cached input | output |\n|---|---|---|---|\n",
    );
    for (model, input, output, cached) in ESTIMATED_PRICES {
        let usd = |micros: u64| micros as f64 / 1_000_000.0;
        let (input, cached, output) = (usd(input), usd(cached), usd(output));
        page.push_str(&format!("| `{model}` | {input} | {cached} | {output} |\n"));
    }
    page.push_str("\n## Conformance\n\n");
    page.push_str(
        "Each cell with `works` is a test that runs the real program of this version against a fake of its API. \
         `refused` means that a config or an answer that asks for it is refused with the reason. Every change of \
         Heeler is tested with claude, codex, gemini, goose, qwen and qwen-sdk. The column `qwen` is Qwen Code with `runtime: acp`, and `qwen-sdk` with `runtime: sdk`. `cargo xtask prove agents` runs all \
         cells.\n\n",
    );
    page.push_str(&conformance_markdown());
    page
}

fn describe_offer(offer: CapabilityOffer) -> String {
    match offer {
        CapabilityOffer::Offered => "yes".to_owned(),
        CapabilityOffer::Limited(how) => format!("yes: {how}"),
        CapabilityOffer::Missing(why) => format!("no: {why}"),
    }
}

fn describe_agent(agent: &KnownAgent) -> String {
    let yes = |is: bool| if is { "yes" } else { "no" };
    format!(
        "| `{}` | {} | {} | {} | {} | {} | {} | {} |\n",
        agent.name,
        agent.title,
        agent.package,
        agent.tested_version,
        match (agent.asks_before_commands, agent.client_tools.terminals) {
            (true, _) => "yes",
            (false, true) => "Heeler asks, unless it has a sandbox",
            (false, false) => "no",
        },
        yes(agent.modes.plan.is_some()),
        describe_usage(agent.usage),
        describe_client_tools(agent.client_tools),
    )
}

/// Renders the table of the hosts that agents reach from a sandbox.
fn hosts_markdown() -> String {
    let mut text = "\n## Hosts in a sandbox\n\n\
        A sandboxed agent reaches the hosts of its default API and login. If `env` gives one of the variables a URL \
        of another host, the agent reaches that host instead. `presets` replaces the groups of hosts, and `allow` \
        adds hosts.\n\n\
        | `program` | groups | other hosts | variables with a URL |\n|---|---|---|---|\n"
        .to_owned();
    let code = |words: &[&str]| {
        words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
    };
    let codex = (EgressPreset::Openai.as_str(), code(&[CODEX_BASE_URL_VARIABLE]));
    text.push_str(&format!("| (`runtime: codex`) | `{}` | | {} |\n", codex.0, codex.1));
    for agent in KNOWN_AGENTS.iter() {
        let preset = agent.preset.map(|preset| format!("`{preset}`"));
        let groups = agent.provider.map(|provider| {
            let values: Vec<&str> = provider.presets.iter().map(|(value, _)| *value).collect();
            format!("by `{}`: {}", provider.variable, code(&values))
        });
        text.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            agent.name,
            preset.or(groups).unwrap_or_default(),
            code(agent.hosts),
            code(agent.base_url_variables),
        ));
    }
    text
}

/// Describes what an agent without a sandbox leaves to its client.
fn describe_client_tools(tools: ClientTools) -> String {
    let ClientTools { terminals, reads, writes } = tools;
    let parts =
        [(terminals, "commands"), (reads, "reading of files"), (writes, "writing of files")];
    let parts: Vec<&str> =
        parts.into_iter().filter_map(|(is_used, part)| is_used.then_some(part)).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

/// Describes the requests that an agent's token counts cover.
pub fn describe_usage(usage: UsageScope) -> &'static str {
    match usage {
        UsageScope::Turn | UsageScope::Session => "per turn",
        UsageScope::LastRequest => "last request of a turn",
        UsageScope::None => "not reported",
    }
}
