//! The real claude under daemons that die, are replaced, and wait for a limit's reset.

use heeler_model::run::{ErrorClass, RunEnd};
use heeler_model::{JobId, JobRequest, JobStatus};
use heeler_testkit::{MessagesApi, ModelScript, ModelScriptStep, claude};
use serde_json::{Value as Json, json};

use crate::daemon_kills::Herd;
use crate::daemon_lives::{ask, in_seconds, wanted};
use crate::fleet::Ran;
use crate::rig::rows;
use crate::trigger::wait_for;

/// How many pieces a message has that is said slowly, and how long one takes.
const PIECES: usize = 40;
const PIECE_MS: u64 = 50;

/// A fleet with one agent per claude runtime.
fn herd(api: &MessagesApi) -> Herd {
    let agent = |runtime: &str| {
        json!({
            "name": runtime, "runtime": runtime, "claude_path": claude(),
            "allowed_tools": ["Bash"], "setting_sources": [],
        })
    };
    let mut herd = Herd::of(&json!({"agents": [agent("sdk"), agent("cli")]}).to_string());
    let variables = [
        ("ANTHROPIC_BASE_URL", api.url()),
        ("ANTHROPIC_API_KEY", "mock-api-key"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("CLAUDE_CODE_MAX_RETRIES", "1"),
    ];
    herd.env = variables.map(|(name, value)| (name, value.to_owned())).into();
    herd
}

/// A turn that waits in a tool, then says something slowly.
fn turn() -> ModelScript {
    let command = "echo there >> waits; read line < gate; echo through";
    let slowly = ModelScriptStep {
        piece: Some(5),
        delay_ms: Some(PIECE_MS),
        ..ModelScriptStep::text(&"word ".repeat(PIECES))
    };
    ModelScript::new().tool("Bash", json!({"command": command})).step(slowly)
}

impl Herd {
    fn prompt(&self, agent: &str, script: &ModelScript) -> JobRequest {
        JobRequest { prompt: Some(format!("Please. {script}")), ..wanted(agent) }
    }

    /// Waits until so many turns have come to their tool.
    #[track_caller]
    fn wait_at_gate(&self, turns: usize) {
        wait_for("the tools", || {
            let waits = std::fs::read_to_string(self.fleet.file("waits")).unwrap_or_default();
            (waits.lines().count() >= turns).then_some(())
        });
    }

    /// What a job's rows say, without what each run has another of.
    fn shape(&self, job: &JobId) -> Vec<Json> {
        const TOLD: [&str; 8] =
            ["type", "subtype", "tool_name", "content", "text", "input", "result", "success"];
        let shape = |row: &Json| {
            let told = TOLD.iter().map(|key| ((*key).to_owned(), row[*key].clone()));
            Json::Object(told.filter(|(_, value)| !value.is_null()).collect())
        };
        rows(&self.dir().job_transcript(job)).iter().map(shape).collect()
    }
}

#[test]
fn a_turn_outlives_its_daemon_and_the_next_one_and_its_transcript_is_whole() {
    let api = MessagesApi::start();
    let mut herd = herd(&api);
    let (mut life, mut client) = herd.begin(&[]);
    let runtimes = ["sdk", "cli"];
    let undisturbed = runtimes.map(|it| ask(&mut client, herd.prompt(it, &turn())));
    herd.let_through(2);
    for job in &undisturbed {
        let job = herd.ends(job);
        assert_eq!(job.head.status, JobStatus::Completed, "{job:#?}");
    }
    let asked = api.messages().len();

    let disturbed = runtimes.map(|it| ask(&mut client, herd.prompt(it, &turn())));
    herd.wait_at_gate(4);
    life.kill();
    let (mut life, client) = herd.begin(&[]);
    drop(client);
    herd.let_through(2);
    // Both are about to say something, or do so.
    api.wait_for_messages(2 * asked);
    let said = Ran::from(herd.command("restart").output().unwrap()).ok();
    assert!(said.contains("2 running jobs kept"), "{said}");
    assert!(life.child.wait().unwrap().success(), "another daemon has taken its place");
    for (job, like) in disturbed.iter().zip(&undisturbed) {
        let ended = herd.ends(job);
        assert_eq!(ended.head.status, JobStatus::Completed, "{ended:#?}");
        assert_eq!(herd.run_ids(job).len(), 1, "it ran once");
        assert_eq!(herd.results(job)[0].end, RunEnd::Finished);
        assert_eq!(herd.shape(job), herd.shape(like), "its transcript is whole");
        assert_eq!(ended.head.summary, herd.job(like).head.summary);
    }
    assert_eq!(api.messages().len(), 2 * asked, "the model was asked nothing twice");
    herd.fleet.run(&["stop"]).ok();
}

#[test]
fn a_usage_limit_that_claude_runs_into_is_waited_for_and_its_job_goes_on_once() {
    let api = MessagesApi::start();
    let herd = herd(&api);
    let (mut life, mut client) = herd.begin(&[]);
    let reset = in_seconds(10);
    let limit = ModelScriptStep {
        message: Some(format!("This would exceed your rate limit, which resets at {reset}")),
        ..ModelScriptStep::error(429)
    };
    // Claude asks once more by itself.
    let script = ModelScript::new().step(limit.times(2)).text("Went on.");
    let job = ask(&mut client, herd.prompt("sdk", &script));
    let ended = herd.ends(&job);
    assert_eq!(ended.head.status, JobStatus::Completed, "{ended:#?}");
    let results = herd.results(&job);
    let [first, second] = &results[..] else { panic!("{results:#?}") };
    let error = first.error.as_ref().unwrap();
    assert_eq!((error.class, error.resets_at), (ErrorClass::RateLimited, Some(reset)));
    assert!(second.started_at >= reset);
    assert_eq!(ended.head.summary.as_deref(), Some("Went on."));
    let told = api.messages().last().unwrap().history().join("\n");
    assert!(told.contains("You were stopped by a usage limit"), "{told}");
    life.kill();
}
