//! HTTP hooks against local servers, and the effects recorded at a job's end.

mod server;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use camino::Utf8Path;
use heeler_model::{ExitReason, Job, JobStatus, TriggerType};
use heeler_store::{DatabaseError, EffectRecord};
use heeler_testkit::WAIT_MAX;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value as Json, json};

use super::*;
use crate::command::{DaemonMode, StopMode};
use crate::tests::EngineFixture;
use server::HookTestServer;

/// A secret that no error may hold.
const TOKEN: &str = "xoxb-hunter2-hunter2";

/// A fleet with one agent that has hooks.
struct HookFixture {
    place: EngineFixture,
    config: HookWorkerConfig,
}

/// One agent; `keys` are lines of it.
fn load(place: &EngineFixture, keys: &str, env: &BTreeMap<String, String>) -> Arc<LoadedConfig> {
    let head = "agents:\n  - name: coder\n    runtime: command\n    command: 'true'\n";
    let file = place.root.join("heeler.yaml");
    let read = |_: &Utf8Path| Ok(format!("{head}{keys}"));
    let loaded = heeler_config::load(&file, &read, env);
    Arc::new(loaded.unwrap_or_else(|faults| panic!("{}", faults.summary())))
}

impl HookFixture {
    /// `keys` are lines of the agent.
    fn new(keys: &str) -> HookFixture {
        let place = EngineFixture::new("success");
        let env = BTreeMap::from([("HOOK_TOKEN".to_owned(), TOKEN.to_owned())]);
        let (sockets, services) = (place.root.clone(), ChatServiceUrls::from_env(&env));
        let loaded = load(&place, keys, &env);
        let config = HookWorkerConfig { loaded, env, sockets, services };
        HookFixture { place, config }
    }

    /// An agent with this hook after each job.
    fn after_run(hook: &str) -> HookFixture {
        HookFixture::new(&format!("    hooks:\n      after_run:\n        - {hook}\n"))
    }

    fn load(&mut self, keys: &str) {
        self.config.loaded = load(&self.place, keys, &self.config.env);
    }

    fn agent(&self) -> &AgentConfig {
        &self.config.loaded.agents[0]
    }

    fn perform(&self) -> Result<(), HookExecutionError> {
        let mut context = HookContext::for_job(&job(), "Coder", None).unwrap();
        context.event_id = "job-2026-11-15-abc123.7.0000".to_owned();
        let (fleet, config, stop) = (&self.place.fleet, &self.config, &AtomicBool::new(false));
        let key = &HookResultKey::new();
        let around = HookExecutionContext { fleet, config, agent: self.agent(), key, stop };
        let done = execute_hook(&self.agent().hooks.after_run[0], &context, &around);
        if let Err(error) = &done {
            let told = format!("{error} {error:?}");
            assert!(!told.contains("hunter2"), "{told}");
        }
        done
    }

    fn effects(&self) -> Vec<EffectRecord> {
        hook_effects(self.agent(), &job(), &JobEnd::default(), (self.place.fleet.now)())
    }

    fn add(&self, effects: Vec<EffectRecord>) {
        let store = self.place.store();
        let add = move |tx: &mut heeler_store::StoreTransaction<'_>| {
            effects.iter().try_for_each(|effect| tx.add_effect(effect).map(|_| ()))
        };
        store.write::<_, DatabaseError, _>(add).unwrap();
    }

    /// A worker and its outcomes, which are not recorded.
    fn work(&self) -> (HookWorker, Receiver<HookOutcome>) {
        let (tell, told) = channel();
        let done = Box::new(move |outcome| tell.send(outcome).unwrap());
        let (fleet, key) = (self.place.fleet.clone(), HookResultKey::new());
        let worker = HookWorker::start(fleet, self.config.clone(), key, done);
        (worker.unwrap(), told)
    }
}

fn job() -> Job {
    let at: Timestamp = "2026-11-15T09:00:00Z".parse().unwrap();
    let id = "job-2026-11-15-abc123".parse().unwrap();
    let mut job = Job::new_pending(id, "coder", TriggerType::Schedule, at);
    job.head.status = JobStatus::Failed;
    job.head.exit_reason = Some(ExitReason::Error);
    job.head.finished_at = Some(at + SignedDuration::from_secs(3));
    job.head.summary = Some("did it".to_owned());
    job.error = Some("it broke".to_owned());
    job
}

#[track_caller]
fn lasting(done: Result<(), HookExecutionError>) -> String {
    match done.unwrap_err() {
        HookExecutionError::Permanent(message) => message,
        error => panic!("{error:?} is not lasting"),
    }
}

#[track_caller]
fn passing(done: Result<(), HookExecutionError>) -> (String, Option<u64>) {
    match done.unwrap_err() {
        HookExecutionError::Transient { message, after } => (message, after.map(|it| it.as_secs())),
        error => panic!("{error:?} is not passing"),
    }
}

fn webhook(server: &HookTestServer, more: &str) -> HookFixture {
    HookFixture::after_run(&format!(
        "{{type: webhook, url: '{}/in/${{HOOK_TOKEN}}?k=${{HOOK_TOKEN}}', headers: {{X-Key: \
         '${{HOOK_TOKEN}}'}}{more}}}",
        server.url()
    ))
}

#[test]
fn a_webhook_gets_the_context_its_headers_and_the_events_id() {
    let server = HookTestServer::start(&["204 No Content"]);
    webhook(&server, ", method: PUT").perform().unwrap();
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].line, format!("PUT /in/{TOKEN}?k={TOKEN}"));
    assert_eq!(asked[0].header("x-key"), Some(TOKEN));
    assert_eq!(asked[0].header("x-heeler-event"), Some("job-2026-11-15-abc123.7.0000"));
    assert_eq!(asked[0].header("content-type"), Some("application/json"));
    let body = asked[0].json();
    assert_eq!(body["eventId"], "job-2026-11-15-abc123.7.0000");
    assert_eq!((&body["event"], &body["result"]["output"]), (&json!("failed"), &json!("did it")));
}

#[test]
fn servers_that_have_trouble_are_asked_again_when_they_say_and_refusals_are_final() {
    let of = |answer: &str| webhook(&HookTestServer::start(&[answer]), "").perform();
    let echo = format!("500 Oops {TOKEN}\n\nyour key {TOKEN}");
    assert_eq!(passing(of(&echo)), ("127.0.0.1 answered 500".to_owned(), None));
    let limited = "429 Too Many Requests\nRetry-After: 7";
    assert_eq!(passing(of(limited)), ("127.0.0.1 answered 429".to_owned(), Some(7)));
    assert_eq!(passing(of("503 Busy\nRetry-After: 2")).1, Some(2));
    assert_eq!(lasting(of(&format!("404 {TOKEN}"))), "127.0.0.1 answered 404");
    assert_eq!(lasting(of("401 No")), "127.0.0.1 answered 401");
    of("200 OK\n\nfine").unwrap();
}

#[test]
fn a_server_that_is_silent_gone_or_no_server_passes() {
    let silent = webhook(&HookTestServer::start(&[""]), ", timeout: 200ms");
    assert_eq!(passing(silent.perform()).0, "127.0.0.1 did not answer within 0.2 s");
    let mut gone = HookTestServer::start(&["200 OK"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    gone.port = listener.local_addr().unwrap().port();
    drop(listener);
    let message = passing(webhook(&gone, "").perform()).0;
    assert!(message.starts_with("cannot reach 127.0.0.1: "), "{message}");
    let garbled = webhook(&HookTestServer::start(&["what\n\n?"]), "");
    assert_eq!(passing(garbled.perform()).0, "127.0.0.1 sent an invalid HTTP response");
}

#[test]
fn a_redirect_is_followed_within_its_host_and_nowhere_else() {
    let home = HookTestServer::start(&[
        "308 Moved\nLocation: /new?at=home",
        "307 Moved\nLocation: /newer",
        "200 OK",
    ]);
    webhook(&home, "").perform().unwrap();
    let asked = home.asked();
    let lines: Vec<&str> = asked[1..].iter().map(|it| it.line.as_str()).collect();
    assert_eq!(lines, ["POST /new?at=home", "POST /newer"]);
    assert!(asked.iter().all(|it| it.header("x-key") == Some(TOKEN) && it.body == asked[0].body));

    let other = HookTestServer::start(&["200 OK"]);
    for status in ["307", "308", "301", "302", "303"] {
        let away = format!("{status} Moved\nLocation: {}/{TOKEN}", other.url());
        let message = lasting(webhook(&HookTestServer::start(&[&away]), "").perform());
        assert!(
            message.starts_with(&format!("127.0.0.1 answered {status}, a redirect")),
            "{message}"
        );
    }
    // Another method would lose the body.
    let message =
        lasting(webhook(&HookTestServer::start(&["302 Found\nLocation: /x"]), "").perform());
    assert!(message.contains("not followed"), "{message}");
    assert_eq!(other.asked().len(), 0, "no other host has heard of it");

    let circle = HookTestServer::start(&["307 Moved\nLocation: /again"]);
    lasting(webhook(&circle, "").perform());
    assert_eq!(circle.asked().len(), 4);
}

fn slack(answer: &str) -> (HookTestServer, HookFixture) {
    let server = HookTestServer::start(&[answer]);
    let hook = "{type: slack, channel_id: C1, bot_token_env: HOOK_TOKEN}";
    let mut hooked = HookFixture::after_run(hook);
    hooked.config.env.insert("HEELER_SLACK_API".to_owned(), server.url());
    hooked.config.services = ChatServiceUrls::from_env(&hooked.config.env);
    (server, hooked)
}

#[test]
fn slack_is_believed_by_its_word_not_by_its_status() {
    let (server, hooked) = slack("200 OK\n\n{\"ok\": true}");
    hooked.perform().unwrap();
    let asked = server.asked().remove(0);
    assert_eq!(asked.line, "POST /chat.postMessage");
    assert_eq!(asked.header("authorization"), Some(format!("Bearer {TOKEN}").as_str()));
    assert_eq!(asked.json()["channel"], "C1");
    assert_eq!(asked.json()["attachments"][0]["text"], "did it");

    let of = |answer: &str| slack(answer).1.perform();
    let refused = "200 OK\n\n{\"ok\": false, \"error\": \"channel_not_found\"}";
    assert_eq!(lasting(of(refused)), "Slack answered `channel_not_found`");
    let echo = format!("200 OK\n\n{{\"ok\": false, \"error\": \"bad {TOKEN}\"}}");
    assert_eq!(lasting(of(&echo)), "Slack refused it without a reason");
    let trouble = "200 OK\n\n{\"ok\": false, \"error\": \"internal_error\"}";
    assert_eq!(passing(of(trouble)).0, "Slack answered `internal_error`");
    assert_eq!(passing(of("429 Too Many\nRetry-After: 30")).1, Some(30));
    let long = format!("200 OK\n\n{{\"ok\": true, \"long\": \"{}\"}}", "x".repeat(70_000));
    for strange in ["200 OK\n\n<html>", &long] {
        assert_eq!(passing(of(strange)).0, "Slack's response cannot be parsed");
    }
}

fn discord(answer: &str) -> (HookTestServer, HookFixture) {
    let server = HookTestServer::start(&[answer]);
    let hook = "{type: discord, channel_id: '12/3', bot_token_env: HOOK_TOKEN}";
    let mut hooked = HookFixture::after_run(hook);
    let api = format!("{}/api/v10/", server.url());
    hooked.config.env.insert("HEELER_DISCORD_API".to_owned(), api);
    hooked.config.services = ChatServiceUrls::from_env(&hooked.config.env);
    (server, hooked)
}

#[test]
fn discord_gets_an_embed_and_its_reason_is_told() {
    let (server, hooked) = discord("200 OK\n\n{\"id\": \"1\"}");
    hooked.perform().unwrap();
    let asked = server.asked().remove(0);
    assert_eq!(asked.line, "POST /api/v10/channels/12%2F3/messages");
    assert_eq!(asked.header("authorization"), Some(format!("Bot {TOKEN}").as_str()));
    assert_eq!(asked.json()["embeds"][0]["description"], "did it");
    let of = |answer: &str| discord(answer).1.perform();
    let refused = format!("403 Forbidden\n\n{{\"message\": \"Missing\\u001b Access {TOKEN}\"}}");
    let message = lasting(of(&refused));
    assert!(message.starts_with("127.0.0.1 answered 403: Missing Access "), "{message}");
    assert_eq!(passing(of("429 Slow\nRetry-After: 3\n\n{\"retry_after\": 3.0}")).1, Some(3));
}

#[test]
fn a_token_that_is_not_there_is_named_and_nothing_is_sent() {
    let (server, mut hooked) = slack("200 OK\n\n{\"ok\": true}");
    for value in [None, Some(" \n")] {
        hooked.config.env.remove("HOOK_TOKEN");
        hooked.config.env.extend(value.map(|it| ("HOOK_TOKEN".to_owned(), it.to_owned())));
        assert!(lasting(hooked.perform()).starts_with("there is no HOOK_TOKEN: "));
    }
    assert_eq!(server.asked().len(), 0);
    let server = HookTestServer::start(&["200 OK"]);
    let mut broken = webhook(&server, "");
    broken.config.env.insert("HOOK_TOKEN".to_owned(), format!("{TOKEN}\u{7}"));
    broken.load(&format!(
        "    hooks:\n      after_run:\n        - {{type: webhook, url: '{}', headers: {{X-Key: \
         '${{HOOK_TOKEN}}'}}}}\n",
        server.url()
    ));
    assert_eq!(lasting(broken.perform()), "the value of the header `X-Key` cannot be sent");
}

#[test]
fn a_jobs_end_is_recorded_hook_by_hook_in_order_and_without_secrets() {
    let hooked = HookFixture::new(
        "    hooks:
      after_run:
        - {type: webhook, name: first, url: 'http://x/${HOOK_TOKEN}'}
        - {type: shell, command: 'true', when: metadata.ready}
      on_error:
        - {type: shell, command: 'echo ${HOOK_TOKEN}'}\n",
    );
    let effects = hooked.effects();
    let ids: Vec<&str> = effects.iter().map(|it| it.id.as_str()).collect();
    let end = "job-2026-11-15-abc123.1794733203000";
    assert_eq!(ids, [format!("{end}.0000"), format!("{end}.0001")]);
    assert!(effects.iter().all(|it| it.kind == "hook" && it.key == "job-2026-11-15-abc123"));
    assert!(effects.iter().all(|it| !it.payload.contains("hunter2")));
    let payload: Json = serde_json::from_str(&effects[1].payload).unwrap();
    assert_eq!(payload["place"], json!({"list": "on_error", "index": 0}));
    assert_eq!(payload["context"]["eventId"], effects[1].id);

    let end = JobEnd { output: Some("more".to_owned()), metadata: Some(json!({"ready": 1})) };
    assert_eq!(hook_effects(hooked.agent(), &job(), &end, Timestamp::UNIX_EPOCH).len(), 3);
    let running =
        Job { head: heeler_model::JobHead { status: JobStatus::Running, ..job().head }, ..job() };
    assert_eq!(hook_effects(hooked.agent(), &running, &end, Timestamp::UNIX_EPOCH), []);
}

#[test]
fn chats_are_reached_where_they_are_unless_a_variable_says_otherwise() {
    let ChatServiceUrls { slack, discord } = ChatServiceUrls::from_env(&BTreeMap::new());
    assert_eq!((&*slack, &*discord), ("https://slack.com/api", "https://discord.com/api/v10"));
}

#[test]
fn metadata_counts_only_if_it_was_changed_since_the_run_started() {
    let hooked = HookFixture::new("    metadata_file: out/meta.json\n");
    let path = hooked.agent().working_directory.join("out/meta.json");
    let found = |since| read_metadata(hooked.agent(), &hooked.config.env, since);
    assert_eq!(found(Timestamp::UNIX_EPOCH), None, "there is none");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write(&format!("{{\"ready\": true, \"note\": \"key {TOKEN}\"}}"));
    let changed = Timestamp::try_from(path.metadata().unwrap().modified().unwrap()).unwrap();
    let second = SignedDuration::from_secs(1);
    let metadata = found(changed - second).unwrap();
    assert_eq!(metadata["ready"], true);
    assert!(!metadata.to_string().contains("hunter2"), "{metadata}");
    assert!(found(changed).is_some());
    assert_eq!(found(changed + second), None, "an earlier job left it");
    for bad in ["[1]", "{", &format!("{{\"long\": \"{}\"}}", "x".repeat(70_000))] {
        write(bad);
        assert_eq!(found(changed), None, "{}", &bad[..1]);
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    assert_eq!(found(Timestamp::UNIX_EPOCH), None, "links are not followed");
}

fn ids(outcome: &HookOutcome) -> Vec<(String, Option<String>)> {
    let HookOutcome::Finished(hooks) = outcome else { panic!("{outcome:?}") };
    let order = |id: &str| id.rsplit('.').next().unwrap().to_owned();
    hooks.iter().map(|hook| (order(&hook.id), hook.error.clone())).collect()
}

#[test]
fn a_failed_hook_stops_those_after_it_only_if_it_says_so() {
    let (good, bad) = (HookTestServer::start(&["200 OK"]), HookTestServer::start(&["400 Bad"]));
    let hook = |server: &HookTestServer, more: &str| {
        format!("        - {{type: webhook, url: '{}'{more}}}\n", server.url())
    };
    let hooks = [
        hook(&bad, ""),
        hook(&good, ", name: kept"),
        hook(&bad, ", continue_on_error: false"),
        hook(&good, ""),
        hook(&good, ""),
    ];
    let hooked = HookFixture::new(&format!("    hooks:\n      after_run:\n{}", hooks.concat()));
    hooked.add(hooked.effects());
    let (worker, told) = hooked.work();
    let next = || ids(&told.recv_timeout(WAIT_MAX).unwrap());
    let failed = || Some("127.0.0.1 answered 400".to_owned());
    assert_eq!(next(), [("0000".to_owned(), failed())]);
    assert_eq!(next(), [("0001".to_owned(), None)]);
    let why = "skipped: an earlier hook with `continue_on_error: false` failed";
    let left_out = |order: &str| (order.to_owned(), Some(why.to_owned()));
    assert_eq!(next(), [("0002".to_owned(), failed()), left_out("0003"), left_out("0004")]);
    assert_eq!((good.asked().len(), bad.asked().len()), (1, 2));
    // None of that is recorded, and it is not repeated while it is remembered.
    worker.wake();
    worker.stop();
    assert!(told.try_recv().is_err());
    assert_eq!(good.asked().len(), 1);
}

#[test]
fn a_hook_is_tried_again_until_it_succeeds_and_those_after_it_wait() {
    let server = HookTestServer::start(&["503 Busy", "200 OK"]);
    let hook = format!("        - {{type: webhook, url: '{}'}}\n", server.url());
    let hooked = HookFixture::new(&format!("    hooks:\n      after_run:\n{hook}{hook}"));
    hooked.add(hooked.effects());
    let (worker, told) = hooked.work();
    let first = told.recv_timeout(WAIT_MAX).unwrap();
    let HookOutcome::Postponed { id, error, .. } = &first else { panic!("{first:?}") };
    assert!(id.ends_with(".0000") && error == "127.0.0.1 answered 503", "{first:?}");
    let store = hooked.place.store();
    let record = |outcome: HookOutcome| {
        let now = (hooked.place.fleet.now)();
        store.write::<_, DatabaseError, _>(move |tx| outcome.record(tx, now)).unwrap();
    };
    record(first);
    let undone = hooked.place.reader().pending_effects(9).unwrap();
    assert_eq!(undone[0].last_error.as_deref(), Some("127.0.0.1 answered 503"));
    for order in ["0000", "0001"] {
        let outcome = told.recv_timeout(WAIT_MAX).unwrap();
        assert_eq!(ids(&outcome), [(order.to_owned(), None)]);
        record(outcome);
    }
    worker.stop();
    assert_eq!(hooked.place.reader().pending_effects(9).unwrap(), []);
    let asked = server.asked();
    let event = |at: usize| asked[at].header("x-heeler-event").unwrap();
    assert_eq!(event(0), event(1), "the same event has the same id");
    assert_ne!(event(1), event(2));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "no reader lists what is over")]
fn a_hook_that_never_succeeds_is_given_up_and_the_reason_is_kept() {
    let server = HookTestServer::start(&["500 Oops"]);
    let hooked = webhook(&server, "");
    let mut effects = hooked.effects();
    effects[0].attempts = ATTEMPTS_MAX - 1;
    let id = effects[0].id.clone();
    hooked.add(effects);
    let (worker, told) = hooked.work();
    let outcome = told.recv_timeout(WAIT_MAX).unwrap();
    let why = "127.0.0.1 answered 500; it was tried 5 times";
    assert_eq!(ids(&outcome), [("0000".to_owned(), Some(why.to_owned()))]);
    let now = (hooked.place.fleet.now)();
    let store = hooked.place.store();
    store.write::<_, DatabaseError, _>(move |tx| outcome.record(tx, now)).unwrap();
    worker.stop();
    let db = rusqlite::Connection::open(hooked.place.fleet.dir.database()).unwrap();
    let sql = "SELECT last_error, done_at IS NOT NULL FROM effects WHERE id = ?1";
    let row: (String, bool) =
        db.query_row(sql, [&id], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(row, (why.to_owned(), true));
}

/// A fleet file with an agent that has a schedule and calls the server after each job.
fn scheduled(server: &HookTestServer) -> String {
    format!(
        "agents:
  - name: coder
    runtime: scripted
    script: [{{say: hi}}]
    schedules: {{often: {{interval: 1h}}}}
    hooks: {{after_run: [{{type: webhook, url: '{}'}}]}}\n",
        server.url()
    )
}

#[track_caller]
fn wait_asked(server: &HookTestServer) {
    let deadline = std::time::Instant::now() + WAIT_MAX;
    while server.asked().is_empty() {
        assert!(std::time::Instant::now() < deadline, "nobody was called");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_daemon_does_the_hooks_of_scheduled_jobs() {
    let server = HookTestServer::start(&["200 OK"]);
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &scheduled(&server));
    wait_asked(&server);
    running.stop(StopMode::Wait { timeout: None });
    let context = server.asked()[0].json();
    assert_eq!(context["event"], "completed");
    assert_eq!(context["job"]["scheduleName"], "often");
    assert_eq!(context["result"]["output"], "did it");
}

#[test]
fn what_came_of_a_hook_while_its_daemon_ends_is_recorded() {
    let (server, gate) = HookTestServer::gated(&["200 OK"]);
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &scheduled(&server));
    wait_asked(&server);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| running.stop(StopMode::KeepJobs));
        gate.send(()).unwrap();
        stopping.join().unwrap();
    });
    assert_eq!(place.reader().pending_effects(9).unwrap(), []);
}

#[test]
fn hooks_that_the_config_has_no_more_are_passed_over_and_say_so() {
    let server = HookTestServer::start(&["200 OK"]);
    let hook = |name: &str| {
        format!("        - {{type: webhook, name: {name}, url: '{}'}}\n", server.url())
    };
    let mut hooked = HookFixture::new(&format!(
        "    hooks:\n      after_run:\n{}{}",
        hook("gone"),
        hook("moved")
    ));
    let mut effects = hooked.effects();
    let mut stray = effects[0].clone();
    (stray.id, stray.payload) = ("x.9999".to_owned(), "?".to_owned());
    effects.push(stray);
    hooked.add(effects);
    hooked.load(&format!("    hooks:\n      after_run:\n{}", hook("moved")));
    let (worker, told) = hooked.work();
    let next = || ids(&told.recv_timeout(WAIT_MAX).unwrap());
    let gone = "skipped: the config has no such hook any more";
    assert_eq!(next(), [("0000".to_owned(), Some(gone.to_owned()))]);
    assert_eq!(next(), [("0001".to_owned(), None)]);
    let stray = "skipped: its record cannot be parsed";
    assert_eq!(next(), [("9999".to_owned(), Some(stray.to_owned()))]);
    let mut nobody = LoadedConfig::clone(&hooked.config.loaded);
    nobody.agents.clear();
    worker.reload(HookWorkerConfig { loaded: Arc::new(nobody), ..hooked.config.clone() });
    let mut later = hooked.effects();
    later.iter_mut().for_each(|effect| effect.id = effect.id.replace("179", "180"));
    hooked.add(later);
    worker.wake();
    let gone = "skipped: the config has no such agent any more";
    assert_eq!(next(), [("0000".to_owned(), Some(gone.to_owned()))]);
    worker.stop();
    assert_eq!(server.asked().len(), 1);
}

/// `heeler doctor --fix` settles runs without a config.
#[test]
fn the_hooks_of_an_end_that_was_recorded_without_a_daemon_are_done_by_the_next() {
    let place = EngineFixture::new("success");
    let job = place.conducted(&place.request()).job;
    let server = HookTestServer::start(&["204 No Content"]);
    let config = format!(
        "agents:\n  - name: coder\n    runtime: command\n    command: 'true'\n    hooks:\n      \
         after_run:\n        - {{type: webhook, url: '{}/in'}}\n",
        server.url()
    );
    let running = place.daemon(DaemonMode::Permanent, &config);
    place.wait_until(|| place.reader().pending_effects(9).unwrap().is_empty());
    running.stop(StopMode::Wait { timeout: None });
    let [asked] = &server.asked()[..] else { panic!("it is called once") };
    assert!(asked.header("x-heeler-event").unwrap().starts_with(job.as_str()));
    // The next daemon has nothing to do.
    place.daemon(DaemonMode::Permanent, &config).stop(StopMode::Wait { timeout: None });
    assert_eq!(place.reader().pending_effects(9).unwrap(), []);
    assert_eq!(server.asked().len(), 1);
}
