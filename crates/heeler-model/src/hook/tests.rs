//! Selection of hooks, their data, and their chat messages.

use heeler_config::HookAction;
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::TriggerType;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_763_200_000 + second).unwrap()
}

fn job(status: JobStatus, exit: ExitReason) -> Job {
    let id = "job-2025-11-15-abc123".parse().unwrap();
    let mut job = Job::new_pending(id, "team.coder", TriggerType::Schedule, at(0));
    job.head.schedule = Some("nightly".to_owned());
    job.head.status = status;
    job.head.exit_reason = Some(exit);
    job.head.finished_at = Some(at(92));
    job.head.duration_ms = Some(90_000);
    job.head.summary = Some("all done".to_owned());
    job.run_started_at = Some(at(2));
    job.error = (status == JobStatus::Failed).then(|| "it broke".to_owned());
    job
}

fn context(status: JobStatus, exit: ExitReason) -> HookContext {
    HookContext::for_job(&job(status, exit), "Coder", None).unwrap()
}

fn good() -> HookContext {
    context(JobStatus::Completed, ExitReason::Success)
}

fn bad() -> HookContext {
    context(JobStatus::Failed, ExitReason::Error)
}

fn hook(name: &str) -> Hook {
    let action = HookAction::Shell {
        command: "true".to_owned(),
        timeout: "1s".parse().unwrap(),
        folder: "/fleet".into(),
    };
    let name = Some(name.to_owned());
    Hook {
        name,
        continue_on_error: true,
        on_events: None,
        when: None,
        action,
        permissions: heeler_config::HookPermissions::default(),
        allow_new_privileges: false,
    }
}

/// Returns the names of the selected hooks, in order.
fn fired(hooks: &AgentHooks, context: &HookContext) -> String {
    let name = |place: HookPosition| hooks.list(place.list)[place.index].name.clone().unwrap();
    select_hooks(hooks, context).into_iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_context_has_the_names_that_herdctls_users_know() {
    let mut context = bad();
    context.event_id = "e1".to_owned();
    context.metadata = Some(json!({"pr": 7}));
    let told = serde_json::to_value(&context).unwrap();
    assert_eq!(
        told,
        json!({
            "event": "failed",
            "eventId": "e1",
            "job": {
                "id": "job-2025-11-15-abc123",
                "agentId": "team.coder",
                "scheduleName": "nightly",
                "startedAt": "2025-11-15T09:46:42.000Z",
                "completedAt": "2025-11-15T09:48:12.000Z",
                "durationMs": 90_000,
            },
            "result": {"success": false, "output": "all done", "error": "it broke"},
            "agent": {"id": "team.coder", "name": "Coder"},
            "metadata": {"pr": 7},
        })
    );
    assert_eq!(serde_json::from_value::<HookContext>(told).unwrap(), context);
    let told = serde_json::to_value(good()).unwrap();
    assert_eq!((told.get("metadata"), told["result"].get("error")), (None, None));
}

#[test]
fn every_end_of_a_job_is_an_event_and_a_job_that_goes_on_is_none() {
    let of = |status, exit| job_hook_event(&job(status, exit));
    assert_eq!(of(JobStatus::Completed, ExitReason::Success), Some(HookEvent::Completed));
    assert_eq!(of(JobStatus::Failed, ExitReason::Error), Some(HookEvent::Failed));
    assert_eq!(of(JobStatus::Failed, ExitReason::MaxTurns), Some(HookEvent::Failed));
    assert_eq!(of(JobStatus::Failed, ExitReason::Timeout), Some(HookEvent::Timeout));
    assert_eq!(of(JobStatus::Cancelled, ExitReason::Cancelled), Some(HookEvent::Cancelled));
    assert_eq!(of(JobStatus::Running, ExitReason::Success), None);
    assert_eq!(of(JobStatus::Pending, ExitReason::Success), None);
}

#[test]
fn after_run_fires_for_every_end_and_on_error_after_it_for_bad_ones() {
    let hooks = AgentHooks { after_run: vec![hook("a"), hook("b")], on_error: vec![hook("e")] };
    assert_eq!(fired(&hooks, &good()), "a b");
    assert_eq!(fired(&hooks, &bad()), "a b e");
    assert_eq!(fired(&hooks, &context(JobStatus::Failed, ExitReason::Timeout)), "a b e");
    assert_eq!(fired(&hooks, &context(JobStatus::Cancelled, ExitReason::Cancelled)), "a b");
}

#[test]
fn a_hook_fires_only_for_its_events() {
    let only =
        |name: &str, events: &[HookEvent]| Hook { on_events: Some(events.to_vec()), ..hook(name) };
    let hooks = AgentHooks {
        after_run: vec![
            only("good", &[HookEvent::Completed]),
            only("cut", &[HookEvent::Cancelled, HookEvent::Timeout]),
            only("never", &[]),
        ],
        on_error: vec![only("late", &[HookEvent::Timeout])],
    };
    assert_eq!(fired(&hooks, &good()), "good");
    assert_eq!(fired(&hooks, &bad()), "");
    assert_eq!(fired(&hooks, &context(JobStatus::Failed, ExitReason::Timeout)), "cut late");
    assert_eq!(fired(&hooks, &context(JobStatus::Cancelled, ExitReason::Cancelled)), "cut");
}

#[test]
fn when_is_a_path_to_something_true() {
    let mut context = bad();
    context.metadata = Some(json!({
        "yes": true, "no": false, "one": 1, "zero": 0, "none": null, "text": "x", "empty": "",
        "list": [], "deep": {"items": [false, {"is": "so"}]}, "tiny": -0.0
    }));
    let is = |path: &str| {
        let hook = Hook { when: Some(path.to_owned()), ..hook("h") };
        !select_hooks(&AgentHooks { after_run: vec![hook], on_error: vec![] }, &context).is_empty()
    };
    for path in ["yes", "one", "text", "list", "deep", "deep.items.1.is"] {
        assert!(is(&format!("metadata.{path}")), "{path}");
    }
    for path in
        ["no", "zero", "tiny", "none", "empty", "gone", "deep.items.0", "deep.items.9", "text.x"]
    {
        assert!(!is(&format!("metadata.{path}")), "{path}");
    }
    assert!(is("result.error") && is("job.scheduleName") && is("event") && is(" "));
    assert!(!is("result.success"));
    let without = HookContext { metadata: None, ..context.clone() };
    let hooks = AgentHooks {
        after_run: vec![Hook { when: Some("metadata.yes".to_owned()), ..hook("h") }],
        on_error: vec![],
    };
    assert_eq!(fired(&hooks, &without), "");
}

#[test]
fn a_hook_is_found_again_by_its_name_or_else_by_its_place() {
    let nameless = Hook { name: None, ..hook("") };
    let hooks =
        AgentHooks { after_run: vec![hook("a"), nameless.clone(), hook("b")], on_error: vec![] };
    let find = |index, name| hooks.find(HookPosition { list: HookList::AfterRun, index }, name);
    assert_eq!(find(0, Some("a")), Some(&hooks.after_run[0]));
    assert_eq!(find(0, Some("b")), Some(&hooks.after_run[2]), "others stand before it now");
    assert_eq!(find(2, Some("gone")), None);
    assert_eq!(find(1, None), Some(&nameless));
    assert_eq!(find(0, None), None, "another hook stands there now");
    assert_eq!(hooks.find(HookPosition { list: HookList::OnError, index: 0 }, Some("a")), None);
}

#[test]
fn output_is_the_summary_where_none_is_given_and_cut_at_a_character() {
    assert_eq!(good().result.output, "all done");
    let long = "é".repeat(OUTPUT_BYTES_MAX);
    let job = job(JobStatus::Completed, ExitReason::Success);
    let context = HookContext::for_job(&job, "", Some(&format!("x{long}"))).unwrap();
    assert_eq!(context.result.output.len(), OUTPUT_BYTES_MAX - 1);
    assert!(context.result.output.ends_with('é'));
}

fn units(json: &Json) -> usize {
    json.as_str().unwrap().encode_utf16().count()
}

#[test]
fn a_slack_message_fits_and_can_neither_call_people_nor_link() {
    let mut context = bad();
    context.result.output = format!("<!channel> & {}", "🦀".repeat(4000));
    context.result.error = Some("e".repeat(1000));
    context.metadata = Some(json!({"note": "<@U1>", "long": "m".repeat(1000)}));
    let message = slack_message("C1", &context);
    assert_eq!(message["channel"], "C1");
    let attachment = &message["attachments"][0];
    let text = attachment["text"].as_str().unwrap();
    assert!(text.starts_with("&lt;!channel&gt; &amp; 🦀") && text.ends_with("🦀…"), "{text}");
    let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    assert!((SLACK_TEXT_MAX - 1..=SLACK_TEXT_MAX).contains(&plain.encode_utf16().count()));
    let fields = attachment["fields"].as_array().unwrap();
    let titles: Vec<&Json> = fields.iter().map(|it| &it["title"]).collect();
    assert_eq!(titles, ["Agent", "Job", "Duration", "Schedule", "Error", "Metadata"]);
    assert_eq!(fields[2]["value"], "1m 30s");
    assert_eq!(units(&fields[4]["value"]), FIELD_MAX + "```\n\n```".len());
    assert!(fields[5]["value"].as_str().unwrap().contains("&lt;@U1&gt;"));
    assert_eq!(
        (&attachment["title"], &attachment["ts"]),
        (&json!("Job failed"), &json!(at(92).as_second()))
    );
}

#[test]
fn a_discord_message_stays_within_every_limit_of_an_embed() {
    let mut context = bad();
    context.agent.name = "n".repeat(5000);
    context.job.schedule_name = Some("s".repeat(5000));
    context.result.output = "🦀".repeat(5000);
    context.result.error = Some("e".repeat(5000));
    context.metadata = Some(json!({"long": "m".repeat(5000)}));
    let message = discord_message(&context);
    assert_eq!(message["allowed_mentions"], json!({"parse": []}));
    let embed = &message["embeds"][0];
    let description = units(&embed["description"]);
    assert!(description <= DISCORD_TEXT_MAX);
    let fields = embed["fields"].as_array().unwrap();
    assert!(fields.iter().all(|it| units(&it["value"]) <= 1024));
    let all: usize = fields.iter().map(|it| units(&it["name"]) + units(&it["value"])).sum();
    let all = all + description + units(&embed["title"]) + units(&embed["footer"]["text"]);
    assert!((DISCORD_EMBED_MAX - 1..=DISCORD_EMBED_MAX).contains(&all), "{all}");

    let mut short = good();
    short.result.output = "é".repeat(4097);
    short.agent.name = " ".to_owned();
    let embed = &discord_message(&short)["embeds"][0];
    assert_eq!(units(&embed["description"]), DISCORD_TEXT_MAX);
    assert_eq!(embed["fields"][0]["value"], "team.coder", "an empty value would be refused");
    short.result.output = " \n".to_owned();
    assert_eq!(discord_message(&short)["embeds"][0].get("description"), None);
    assert_eq!(slack_message("C", &short)["attachments"][0].get("text"), None);
}
