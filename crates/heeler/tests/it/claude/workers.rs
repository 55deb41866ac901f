//! The real claude as a coordinator: its tools of the fleet, in process and over HTTP.

use heeler_model::JobStatus;
use heeler_testkit::{MessagesApi, ModelScript, claude};
use serde_json::{Value as Json, json};

use crate::fleet::Ran;
use crate::rig::rows;
use crate::trigger::{fleet, scripted};

/// Does what it is told; an endless task for ever.
const CODER: &str = "{when: {prompt: endless}, do: [{run: 'exec tail -f /dev/null'}], \
     else: [{say: 'Did {prompt} in turn {turn}.'}]}";

/// What the tools said, without the ids of jobs.
fn tool_results(rows: &[Json]) -> Vec<String> {
    let of_tool = |row: &&Json| row["type"] == "tool_result" && row["subtype"].is_null();
    let without_ids = |text: &str| {
        let words = text.split(' ').map(|word| match word.strip_prefix("(job-") {
            Some(rest) => format!(
                "(JOB{}",
                rest.trim_start_matches(|it: char| it.is_ascii_alphanumeric() || it == '-')
            ),
            None => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let said = |row: &Json| without_ids(row["result"].as_str().or(row["error"].as_str()).unwrap());
    rows.iter().filter(of_tool).map(said).collect()
}

#[test]
fn claude_sets_workers_to_work_waits_for_them_talks_to_one_and_stops_one() {
    let api = MessagesApi::start();
    let lead = |runtime: &str| {
        let claude = claude();
        format!(
            "runtime: {runtime}\nclaude_path: {claude}\nallowed_tools: [Read]\nsetting_sources: []\n\
             spawn: {{agents: [coder], elevate: [coder]}}"
        )
    };
    let coder = format!("{}\ninstances: {{max_concurrent: 9}}", scripted(CODER));
    let fleet = fleet(&[("sdk", &lead("sdk")), ("cli", &lead("cli")), ("coder", &coder)]);
    let script = ModelScript::new()
        .tool("mcp__heeler__spawn_worker", json!({"agent": "coder", "task": "one"}))
        .tool(
            "mcp__heeler__spawn_worker",
            json!({"agent": "coder", "task": "endless", "name": "bob"}),
        )
        .tool("mcp__heeler__wait_for_worker", json!({"names": ["coder-1"]}))
        .tool("mcp__heeler__message_worker", json!({"name": "coder-1", "message": "more"}))
        .tool("mcp__heeler__wait_for_worker", json!({"names": ["coder-1"]}))
        .tool("mcp__heeler__wait_for_worker", json!({"names": ["bob"], "timeout_seconds": 0}))
        .tool("mcp__heeler__stop_worker", json!({"name": "bob"}))
        .tool("mcp__heeler__wait_for_worker", json!({"names": ["bob"]}))
        .text("All is done.");
    for runtime in ["sdk", "cli"] {
        let prompt = format!("Please. {script}");
        let mut command = fleet.command(&["trigger", runtime, "--prompt", &prompt]);
        command.env("ANTHROPIC_BASE_URL", api.url()).env("ANTHROPIC_API_KEY", "mock-api-key");
        command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        command.env("CLAUDE_CODE_MAX_RETRIES", "1");
        let said = Ran::from(command.output().unwrap()).ok();
        assert!(said.contains("All is done."), "{said}");
        let jobs = fleet.jobs();
        let lead = jobs.iter().find(|job| job.head.agent == runtime).unwrap();
        assert_eq!(lead.head.status, JobStatus::Completed, "{lead:#?}");
        let log = fleet.state_dir().join(format!("jobs/{}.jsonl", lead.head.id));
        let mut said = tool_results(&rows(&log));
        let stopped = said.pop().unwrap();
        assert!(stopped.starts_with("bob failed: "), "{stopped}");
        // It may not have started yet, but it is not done.
        let waited = said.remove(5);
        assert!(waited.starts_with("bob ") && waited.ends_with(" after 0 s (JOB)"), "{waited}");
        let expected = [
            "worker coder-1 is working (JOB)",
            "worker bob is working (JOB)",
            "coder-1 is done (JOB), and said:\nDid one in turn 1.",
            "coder-1 continues in its session (JOB)",
            "coder-1 is done (JOB), and said:\nDid more in turn 2.",
            "bob is being stopped; call wait_for_worker to wait for its end",
        ];
        assert_eq!(said, expected, "{runtime}");
        let spawned = jobs.iter().filter(|job| job.trigger_id == lead.head.id.to_string());
        let workers: Vec<_> = spawned.rev().filter_map(|job| job.worker()).collect();
        assert_eq!(workers, ["coder-1", "bob", "coder-1"]);
    }
}
