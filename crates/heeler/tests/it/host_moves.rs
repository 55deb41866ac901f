//! Sessions that move to another host: the conversation continues there, whatever is killed and whenever.
//!
//! Either host may lead at any time, because a slow machine can pause the leader. So no test depends on
//! the host that leads.

use std::io::Write as _;
use std::path::PathBuf;

use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentSessionId, JobId, JobRequest, JobStatus};
use heeler_testkit::PostgresCluster;
use serde_json::Value as Json;

use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::wanted;
use crate::host_placement::{completes_on, json, wait_for_reason};
use crate::host_runs::{rows, send, stop};
use crate::hosts::{cluster, failure_of};
use crate::trigger::wait_for;

/// An agent that says what it remembers, one that waits at its gate, and one for a label.
const AGENTS: &str = "agents:
  - {name: talker, host: {labels: []}, runtime: scripted, session: {mode: persistent},
     script: [{say: 'turn {turn}, I remember {remembered}.'}]}
  - {name: gated, host: {labels: []}, runtime: scripted, session: {mode: persistent},
     script: [{run: 'read line < gate'}, {say: Through the gate.}]}
  - {name: labelled, host: {labels: [gpu]}, runtime: scripted, session: {mode: persistent},
     script: [{say: Hello.}]}
";

/// Value of a variable whose name is that of a secret.
const SECRET: &str = "hunter2-hunter2-hunter2";

fn herd(cluster: &PostgresCluster) -> Herd {
    Herd::of(&format!("store: {}\nweb: {{enabled: false}}\n{AGENTS}", cluster.url("fleet")))
}

/// Begins a job with a prompt, in a session or a new one.
#[track_caller]
fn ask(
    herd: &Herd,
    life: &mut Life,
    agent: &str,
    prompt: &str,
    session: Option<&AgentSessionId>,
) -> JobId {
    let session =
        session.map_or(SessionChoice::Usual, |id| SessionChoice::Given { id: id.clone() });
    let prompt = Some(prompt.to_owned());
    let command = DaemonCommand::Trigger(Box::new(JobRequest { prompt, session, ..wanted(agent) }));
    let key = format!("host-moves-{agent}-{prompt}", prompt = prompt_key(&command));
    match send(herd, life, &command, Some(&key)) {
        CommandReply::Job { job, .. } => job,
        other => panic!("{other:?}"),
    }
}

/// The prompts of a test differ, so a repeated command creates no second job.
fn prompt_key(command: &DaemonCommand) -> String {
    let DaemonCommand::Trigger(request) = command else { panic!("{command:?}") };
    request.prompt.clone().unwrap()
}

fn session_of(herd: &Herd, job: &JobId) -> AgentSessionId {
    herd.job(job).head.session_id.unwrap()
}

/// Waits until the rows of a job say this on a host.
#[track_caller]
fn wait_for_text(herd: &Herd, job: &JobId, text: &str) {
    wait_for(&format!("{text} in the rows of {job}"), || {
        rows(herd, job).contains(text).then_some(())
    });
}

/// Returns the path of the native file of a session on a host.
fn native_path(herd: &Herd, session: &AgentSessionId) -> Option<PathBuf> {
    let projects = herd.fleet.file("home/.heeler/scripted/projects");
    let folders = std::fs::read_dir(projects).ok()?.filter_map(Result::ok);
    let mut files = folders.map(|folder| folder.path().join(format!("{session}.jsonl")));
    files.find(|file| file.is_file())
}

/// Returns the native file of a session on a host.
fn native_file(herd: &Herd, session: &AgentSessionId) -> Option<String> {
    Some(std::fs::read_to_string(native_path(herd, session)?).unwrap())
}

/// Moves a session, and waits for it.
#[track_caller]
fn move_to(herd: &Herd, session: &AgentSessionId, host: &str) {
    // A command that a host refuses because its role changes is repeated.
    json(herd, &["session", "move", session.as_str(), "--to", host, "--detach"]);
    wait_for_host(herd, session, host);
}

#[track_caller]
fn shown(herd: &Herd, session: &AgentSessionId) -> Json {
    json(herd, &["session", "show", session.as_str()])["session"].clone()
}

#[track_caller]
fn wait_for_host(herd: &Herd, session: &AgentSessionId, host: &str) {
    wait_for(&format!("the session on {host}"), || {
        (shown(herd, session)["host"] == host).then_some(())
    });
}

#[track_caller]
fn wait_for_move(herd: &Herd, session: &AgentSessionId, state: &str) -> Json {
    wait_for(&format!("a move that is {state}"), || {
        let shown = shown(herd, session);
        (shown["move"]["state"] == state).then(|| shown["move"].clone())
    })
}

#[test]
fn a_session_continues_on_the_host_to_which_it_was_moved_and_back() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let one = ask(&first, &mut alpha, "talker", "one", None);
    completes_on(&first, &one, "alpha");
    let session = session_of(&first, &one);
    let (beta, _) = second.begin(&["--host", "beta"]);
    assert_eq!(shown(&second, &session)["host"], "alpha");
    assert_eq!(native_file(&second, &session), None);

    let output = wait_for("a moved session", || {
        let args = ["move", session.as_str(), "--to", "beta"];
        let output = second.command("session").args(args).output().unwrap();
        output.status.success().then_some(output)
    });
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("is on host `beta`"), "{text}");
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("snapshots and files of its working directory stay"), "{note}");
    assert_eq!(native_file(&second, &session), native_file(&first, &session));
    assert_eq!(shown(&first, &session)["host"], "beta");

    // The next run is there, and remembers.
    let two = ask(&first, &mut alpha, "talker", "two", Some(&session));
    assert_eq!(completes_on(&first, &two, "beta"), "the files of its session are on `beta`");
    wait_for_text(&second, &two, "turn 2, I remember one.");
    assert_ne!(native_file(&second, &session), native_file(&first, &session));

    // The file that stayed is the beginning of the one that comes back.
    move_to(&second, &session, "alpha");
    assert_eq!(native_file(&second, &session), native_file(&first, &session));
    let three = ask(&first, &mut alpha, "talker", "three", Some(&session));
    completes_on(&first, &three, "alpha");
    wait_for_text(&first, &three, "turn 3, I remember one | two.");

    // Both hosts have the whole transcript.
    let known = first.reader().session_by_agent_id(&session).unwrap().unwrap();
    let log = known.log_path.unwrap();
    wait_for("the same transcript on both hosts", || {
        let read = |herd: &Herd| std::fs::read_to_string(herd.dir().root().join(&log)).ok();
        let own = read(&first)?;
        let is_whole = ["one", "two", "three"].iter().all(|prompt| own.contains(prompt));
        (is_whole && Some(own) == read(&second)).then_some(())
    });
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_session_with_a_secret_moves_without_it_and_continues() {
    let cluster = cluster();
    let (mut first, mut second) = (herd(&cluster), herd(&cluster));
    for herd in [&mut first, &mut second] {
        herd.env.push(("DEMO_TOKEN", SECRET.to_owned()));
    }
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let one = ask(&first, &mut alpha, "talker", "one", None);
    completes_on(&first, &one, "alpha");
    let session = session_of(&first, &one);
    // The program has noted a secret.
    let native = native_path(&first, &session).unwrap();
    let mut file = std::fs::File::options().append(true).open(native).unwrap();
    writeln!(file, "{{\"type\":\"note\",\"text\":\"{SECRET}\"}}").unwrap();
    let (beta, _) = second.begin(&["--host", "beta"]);
    move_to(&first, &session, "beta");
    let moved = native_file(&second, &session).unwrap();
    assert!(moved.contains("note") && !moved.contains(SECRET), "{moved}");
    // The file is another one, and has no messages from outside.
    let two = ask(&first, &mut alpha, "talker", "two", Some(&session));
    completes_on(&first, &two, "beta");
    wait_for_text(&second, &two, "turn 2, I remember one.");
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_session_survives_the_death_of_a_host_at_any_point_of_its_move() {
    let cluster = cluster();
    let herds = [herd(&cluster), herd(&cluster)];
    let names = ["alpha", "beta"];
    let (mut alpha, _) = herds[0].begin(&["--host", "alpha"]);
    let job = ask(&herds[0], &mut alpha, "talker", "prompt-0", None);
    completes_on(&herds[0], &job, "alpha");
    let session = session_of(&herds[0], &job);
    let (beta, _) = herds[1].begin(&["--host", "beta"]);
    let mut lives = [alpha, beta];
    // The point, and who reaches it: 0 for the source, 1 for the target.
    let points =
        [("move-part-shipped", 0), ("move-packed", 0), ("move-fetched", 1), ("move-placed", 1)];
    for (round, (point, side)) in points.into_iter().enumerate() {
        let (source, target) = (round % 2, (round + 1) % 2);
        let dying = [source, target][side];
        lives[dying].kill();
        lives[dying] = herds[dying].start(&["--fault", point]);
        herds[dying].connect(&mut lives[dying]).expect("nothing ends it yet");
        let other = &herds[1 - dying];
        let args = ["session", "move", session.as_str(), "--to", names[target], "--detach"];
        json(other, &args);
        wait_for(&format!("a death at {point}"), || lives[dying].has_ended().then_some(()));
        assert_eq!(shown(other, &session)["host"], names[source], "{point}");
        (lives[dying], _) = herds[dying].begin(&[]);
        wait_for_host(other, &session, names[target]);
        let prompt = format!("prompt-{}", round + 1);
        let next = ask(&herds[target], &mut lives[target], "talker", &prompt, Some(&session));
        completes_on(other, &next, names[target]);
        let before: Vec<String> = (0..=round).map(|turn| format!("prompt-{turn}")).collect();
        let text = format!("turn {}, I remember {}.", round + 2, before.join(" | "));
        wait_for_text(&herds[target], &next, &text);
    }
    let [alpha, beta] = lives;
    stop(&herds[1], beta);
    stop(&herds[0], alpha);
}

#[test]
fn a_leader_that_dies_before_it_records_a_move_leaves_that_to_the_next_one() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let job = ask(&first, &mut alpha, "talker", "one", None);
    completes_on(&first, &job, "alpha");
    let session = session_of(&first, &job);
    alpha.kill();
    // Whichever host leads dies.
    let fault = ["--fault", "move-reported"];
    let mut alpha = first.start(&fault);
    let mut beta = second.start(&[&["--host", "beta"][..], &fault].concat());
    first.connect(&mut alpha).expect("nothing ends it yet");
    second.connect(&mut beta).expect("nothing ends it yet");
    json(&first, &["session", "move", session.as_str(), "--to", "beta", "--detach"]);
    wait_for("the death of a leader", || (alpha.has_ended() || beta.has_ended()).then_some(()));
    alpha.kill();
    beta.kill();
    let (mut alpha, _) = first.begin(&[]);
    let (beta, _) = second.begin(&[]);
    wait_for_host(&first, &session, "beta");
    let next = ask(&first, &mut alpha, "talker", "two", Some(&session));
    completes_on(&first, &next, "beta");
    wait_for_text(&second, &next, "turn 2, I remember one.");
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn jobs_wait_for_a_moving_session_and_a_move_without_its_target_blocks_nothing_for_ever() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let one = ask(&first, &mut alpha, "talker", "one", None);
    completes_on(&first, &one, "alpha");
    let session = session_of(&first, &one);
    let begin = ["session", "move", session.as_str(), "--to", "beta", "--detach"];

    // The target dies before it has placed anything.
    let mut beta = second.start(&["--host", "beta", "--fault", "move-fetched"]);
    second.connect(&mut beta).expect("nothing ends it yet");
    json(&first, &begin);
    wait_for("the death of the target", || beta.has_ended().then_some(()));
    let two = ask(&first, &mut alpha, "talker", "two", Some(&session));
    wait_for_reason(&first, &two, "is being moved from host `alpha` to `beta`");
    // The same request again finds it.
    json(&first, &begin);
    let moved = wait_for_move(&first, &session, "placing");
    assert!(moved["secondsLeft"].as_u64().unwrap() <= 600, "{moved}");
    let host = json(&first, &["host", "show", "beta"]);
    assert_eq!(host["moves"][0]["target"], "beta", "{host}");
    json(&first, &["session", "move", session.as_str(), "--cancel"]);
    let ended = wait_for_move(&first, &session, "ended");
    assert!(ended["reason"].as_str().unwrap().starts_with("cancelled by"), "{ended}");
    completes_on(&first, &two, "alpha");
    wait_for_text(&first, &two, "turn 2, I remember one.");

    // Beyond the time limit the leader gives the move up by itself.
    let mut beta = second.start(&["--fault", "move-fetched"]);
    second.connect(&mut beta).expect("nothing ends it yet");
    json(&first, &begin);
    wait_for("the death of the target", || beta.has_ended().then_some(()));
    let three = ask(&first, &mut alpha, "talker", "three", Some(&session));
    wait_for_reason(&first, &three, "is being moved");
    cluster.query("fleet", "UPDATE session_moves SET until = now()");
    let ended = wait_for_move(&first, &session, "ended");
    assert_eq!(ended["reason"], "host `beta` did not do its part in time", "{ended}");
    completes_on(&first, &three, "alpha");
    wait_for_text(&first, &three, "turn 3, I remember one | two.");
    stop(&first, alpha);
}

#[test]
fn a_session_that_cannot_move_is_refused_with_the_reason() {
    let cluster = cluster();
    let (mut first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha", "--label", "gpu"]);
    let talk = ask(&first, &mut alpha, "talker", "one", None);
    let labelled = ask(&first, &mut alpha, "labelled", "one", None);
    completes_on(&first, &talk, "alpha");
    completes_on(&first, &labelled, "alpha");
    let gated = ask(&first, &mut alpha, "gated", "one", None);
    let at_work = wait_for("a session at work", || first.job(&gated).head.session_id);
    let (beta, _) = second.begin(&["--host", "beta"]);
    let (talk, labelled) = (session_of(&first, &talk), session_of(&first, &labelled));

    let refused = |session: &str, host: &str, code: i32, reason: &str| {
        wait_for(reason, || {
            let (found, text) = failure_of(&second, &["session", "move", session, "--to", host]);
            // Another refusal is that of a host that changes its role just then.
            (found == code && text.contains(reason)).then_some(())
        });
    };
    refused(talk.as_str(), "gamma", 4, "there is no host `gamma`");
    refused(talk.as_str(), "alpha", 5, "is on host `alpha` already");
    refused(labelled.as_str(), "beta", 5, "host `beta` lacks the label gpu");
    refused(at_work.as_str(), "beta", 5, "uses session");
    json(&first, &["host", "drain", "beta"]);
    refused(talk.as_str(), "beta", 5, "host `beta` is drained");
    json(&first, &["host", "drain", "beta", "--undo"]);

    // Another file of the session on the target is left alone.
    let name = format!("{talk}.jsonl");
    let slug =
        heeler_model::project_slug(camino::Utf8Path::from_path(second.fleet.path()).unwrap());
    let folder = second.fleet.file("home/.heeler/scripted/projects").join(slug);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(&name), "{\"foreign\":1}\n").unwrap();
    json(&first, &["session", "move", talk.as_str(), "--to", "beta", "--detach"]);
    let ended = wait_for_move(&first, &talk, "ended");
    assert!(ended["reason"].as_str().unwrap().contains("exists already and differs"), "{ended}");
    assert_eq!(std::fs::read_to_string(folder.join(&name)).unwrap(), "{\"foreign\":1}\n");
    assert_eq!(shown(&first, &talk)["host"], "alpha");
    first.let_through(1);
    assert_eq!(first.ends(&gated).head.status, JobStatus::Completed);
    stop(&second, beta);
    stop(&first, alpha);
}
