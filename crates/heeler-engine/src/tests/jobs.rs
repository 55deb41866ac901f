//! Jobs without crashes.

use std::time::Duration;

use heeler_model::run::{ErrorClass, RunEnd};
use heeler_model::{AgentStatus, ExitReason, JobStatus, SessionStatus};
use heeler_store::{JobFilter, SessionFilter};
use heeler_transcript::{LockFile, LockHolder};

use super::*;
use crate::{RunStartError, StateOpenError};

#[test]
fn a_job_goes_from_request_to_record() {
    let place = EngineFixture::new("success");
    let (told, done) = place.conduct(&place.request());
    let done = done.unwrap();
    assert_eq!((done.status, done.end), (JobStatus::Completed, RunEnd::Finished));
    let [JobNotice::Started { job, run }, JobNotice::Ended { end: RunEnd::Finished, .. }] =
        &told[..]
    else {
        panic!("{told:?}");
    };

    let record = place.job(job);
    assert_eq!(record.head.exit_reason, Some(ExitReason::Success));
    assert_eq!(record.head.summary.as_deref(), Some("did it"));
    assert_eq!((record.head.cost_usd, record.head.duration_ms), (Some(0.25), Some(2000)));
    assert_eq!((record.usage.num_turns, record.usage.output_tokens), (Some(2), Some(7)));
    assert_eq!(record.working_directory.as_ref(), Some(&place.root));

    let row = place.reader().run(*run).unwrap().unwrap();
    assert!(row.committed && row.attempt == 1 && row.status == "finished");
    assert_eq!(place.reader().run_result(*run).unwrap().unwrap().end, RunEnd::Finished);

    let session = place.session_of(job);
    assert_eq!((session.status, session.job_count), (SessionStatus::Completed, 1));
    assert_eq!((session.message_count, session.token_estimate), (4, 100));
    let agent = place.reader().agent("coder").unwrap().unwrap();
    assert_eq!((agent.status, agent.current_job), (AgentStatus::Idle, None));
    assert_eq!(agent.last_job.as_ref(), Some(job));
    let view = place.read(&format!(".heeler/jobs/{job}.yaml"));
    assert!(view.contains("status: completed"), "{view}");
    assert!(place.read(".heeler/state.yaml").contains("coder:"));
}

#[test]
fn a_failed_job_says_so_everywhere() {
    let place = EngineFixture::new("failure");
    let done = place.conducted(&place.request());
    assert_eq!(done.status, JobStatus::Failed);
    let record = place.job(&done.job);
    assert_eq!(record.error.as_deref(), Some("it said [secret]"));
    let agent = place.reader().agent("coder").unwrap().unwrap();
    assert_eq!(agent.status, AgentStatus::Error);
    assert_eq!(agent.error_message.as_deref(), Some("it said [secret]"));
    place.behave("cancelled");
    assert_eq!(place.conducted(&place.request()).status, JobStatus::Cancelled);
}

#[test]
fn no_secret_is_in_a_file_or_an_argument() {
    let place = EngineFixture::new("failure");
    let done = place.conducted(&place.request());
    assert_eq!(place.job(&done.job).prompt.as_deref(), Some("use [secret]"));
    for (path, bytes) in place.files(&place.root.join(".heeler")) {
        // The fake runner redacts nothing; a real one does.
        if path.ends_with("result.json") {
            continue;
        }
        let found = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        assert!(!found, "{path}");
    }
    assert!(!place.read("argv").contains(SECRET));
    assert!(!place.read("env").contains(SECRET));
    assert!(place.read("brief.json").contains(SECRET), "it comes through the pipe");
}

#[test]
fn our_own_processes_get_a_clean_environment() {
    let place = EngineFixture::new("success");
    place.conducted(&place.request());
    let env = place.read("env");
    let mut names: Vec<&str> = env.lines().filter_map(|line| line.split('=').next()).collect();
    names.retain(|name| !["PWD", "SHLVL", "_", "OLDPWD"].contains(name));
    assert_eq!(names, ["PATH"]);
}

#[test]
fn a_persistent_agent_continues_its_session_until_it_is_told_otherwise() {
    let place = EngineFixture::new("success");
    let first = place.conducted(&place.persistent()).job;
    let second = place.conducted(&place.persistent()).job;
    let session = place.session_of(&second);
    assert_eq!(session.id, place.session_of(&first).id);
    assert_eq!(session.job_count, 2);

    let mut fresh = place.persistent();
    fresh.session = SessionChoice::Fresh;
    let third = place.conducted(&fresh).job;
    assert_ne!(place.session_of(&third).id, session.id);
    let own = place.reader().agent_session("coder").unwrap().unwrap();
    assert_eq!(own.id, place.session_of(&third).id, "the new one is the agent's from now on");

    let mut given = place.persistent();
    given.session = SessionChoice::Given { id: session.agent_session_id.clone().unwrap() };
    let fourth = place.conducted(&given).job;
    assert_eq!(place.session_of(&fourth).id, session.id);
    let own = place.reader().agent_session("coder").unwrap().unwrap();
    assert_eq!(
        own.id,
        place.session_of(&third).id,
        "a session that a caller named is the caller's"
    );
}

#[test]
fn a_job_with_a_session_of_its_own_leaves_the_agents_kept_one() {
    let place = EngineFixture::new("success");
    let kept = place.session_of(&place.conducted(&place.persistent()).job);
    let mut single = place.persistent();
    single.rules.mode = SessionMode::FreshPerJob;
    place.conducted(&single);
    let own = place.reader().agent_session("coder").unwrap().unwrap();
    assert_eq!(own.id, kept.id);
}

#[test]
fn a_session_from_elsewhere_does_not_become_the_agents() {
    let place = EngineFixture::new("success");
    let mut given = place.persistent();
    given.session = SessionChoice::Given { id: place.agent_has("5b7c2c0e-elsewhere") };
    let job = place.conducted(&given).job;
    assert_eq!(place.session_of(&job).origin.as_deref(), Some("elsewhere"));
    assert_eq!(place.reader().agent_session("coder").unwrap(), None);
}

#[test]
fn a_session_that_is_nowhere_is_refused_before_anything_is_written() {
    let place = EngineFixture::new("success");
    let nowhere: AgentSessionId = "0b9f6c1a-5d0e-4b7e-9d3a-0c5a3c2b1a00".parse().unwrap();
    let wishes = [
        SessionChoice::Given { id: nowhere.clone() },
        SessionChoice::Fork { source: nowhere.clone(), at: None },
    ];
    for runtime in [RuntimeType::Scripted, RuntimeType::Command, RuntimeType::Sdk] {
        for wish in &wishes {
            let mut request = place.persistent();
            (request.runtime, request.session) = (runtime, wish.clone());
            request.brief.env.insert("HOME".to_owned(), place.root.to_string());
            let (told, done) = place.conduct(&request);
            let error = done.unwrap_err();
            assert!(matches!(error, RunStartError::NoSession { .. }) && told.is_empty(), "{error}");
            assert!(error.to_string().contains(nowhere.as_str()), "{error}");
        }
    }
    let reader = place.reader();
    assert_eq!(reader.jobs(&JobFilter::default(), None, 9).unwrap(), []);
    assert_eq!(reader.sessions(&SessionFilter::default(), None, 9).unwrap(), []);
}

#[test]
fn a_session_that_only_claude_has_goes_on() {
    let place = EngineFixture::new("success");
    let id: AgentSessionId = "0b9f6c1a-5d0e-4b7e-9d3a-0c5a3c2b1a01".parse().unwrap();
    for (variable, projects) in [("HOME", ".claude/projects"), ("CLAUDE_CONFIG_DIR", "projects")] {
        let mut request = place.request();
        request.runtime = RuntimeType::Sdk;
        request.session = SessionChoice::Fork { source: id.clone(), at: None };
        let config = place.root.join(variable);
        request.brief.env.insert(variable.to_owned(), config.to_string());
        let error = place.conduct(&request).1.unwrap_err();
        assert!(matches!(error, RunStartError::NoSession { .. }), "{error}");
        let folder = config.join(projects).join("-srv-demo");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{id}.jsonl")), "{}\n").unwrap();
        assert_eq!(place.conducted(&request).status, JobStatus::Completed);
    }
}

#[test]
fn claudes_sessions_are_looked_for_from_where_it_works_and_may_be_where_nobody_can_look() {
    let place = EngineFixture::new("success");
    let id: AgentSessionId = "0b9f6c1a-5d0e-4b7e-9d3a-0c5a3c2b1a02".parse().unwrap();
    let mut request = place.request();
    request.runtime = RuntimeType::Sdk;
    request.session = SessionChoice::Fork { source: id.clone(), at: None };
    request.brief.env.insert("CLAUDE_CONFIG_DIR".to_owned(), "config".to_owned());
    let error = place.conduct(&request).1.unwrap_err();
    let projects = place.root.join("config/projects");
    assert!(error.to_string().ends_with(&format!("not in {projects}")), "{error}");
    std::fs::create_dir_all(projects.join("-srv-demo")).unwrap();
    std::fs::write(projects.join("no folder"), "").unwrap();
    let error = place.conduct(&request).1.unwrap_err();
    assert!(matches!(error, RunStartError::NoSession { .. }), "{error}");
    std::fs::write(projects.join(format!("-srv-demo/{id}.jsonl")), "{}\n").unwrap();
    assert_eq!(place.conducted(&request).status, JobStatus::Completed);

    // A link to itself can never be read.
    std::fs::remove_dir_all(&projects).unwrap();
    std::os::unix::fs::symlink(&projects, &projects).unwrap();
    assert_eq!(place.conducted(&request).status, JobStatus::Completed);
}

#[test]
fn the_session_of_another_agent_is_refused_and_the_agent_named() {
    let place = EngineFixture::new("success");
    let first = place.conducted(&place.request()).job;
    let session = place.session_of(&first);
    let id = session.agent_session_id.clone().unwrap();
    for wish in
        [SessionChoice::Given { id: id.clone() }, SessionChoice::Fork { source: id, at: None }]
    {
        let mut other = place.request();
        other.agent = "writer".parse().unwrap();
        other.session = wish;
        let error = place.conduct(&other).1.unwrap_err();
        assert!(matches!(error, RunStartError::OthersSession { .. }), "{error}");
        let said = format!("session {} belongs to agent coder", session.id);
        assert!(error.to_string().starts_with(&said), "{error}");
    }
    assert_eq!(place.reader().jobs(&JobFilter::default(), None, 9).unwrap().len(), 1);
}

#[test]
fn a_session_of_no_agent_in_the_config_is_whose_uses_it() {
    for fork in [false, true] {
        let place = EngineFixture::new("success");
        let imported = place.import(None);
        let id = imported.agent_session_id.clone().unwrap();
        let mut request = place.request();
        request.agent = "writer".parse().unwrap();
        request.session = match fork {
            false => SessionChoice::Given { id },
            true => SessionChoice::Fork { source: id, at: None },
        };
        let error = place.conduct(&request).1.unwrap_err();
        assert!(matches!(error, RunStartError::OthersSession { .. }), "{error}");
        // As after `coder` was renamed.
        request.fleet_agents = vec!["writer".parse().unwrap()];
        let error = place.conduct(&request).1.unwrap_err();
        assert!(matches!(error, RunStartError::NoSession { .. }), "it would begin anew: {error}");
        assert!(error.to_string().contains("recorded under `coder` and not in"), "{error}");
        place.agent_has("22222222-imported");
        let job = place.conducted(&request).job;
        let session = place.session_of(&job);
        assert_eq!((session.agent.as_str(), session.id == imported.id), ("writer", !fork));
        let source = place.reader().session(&imported.id).unwrap().unwrap();
        let left = place.reader().agent_session("coder").unwrap().map(|own| own.id);
        match fork {
            false => assert_eq!(left, None, "`coder` would go on with another's"),
            true => assert_eq!((source.agent.as_str(), left), ("coder", Some(imported.id))),
        }
        let of_coder = SessionFilter { agent: Some("coder".to_owned()), ..Default::default() };
        assert_eq!(place.reader().count_sessions(&of_coder).unwrap(), i64::from(fork));
    }
}

#[test]
fn a_fork_says_where_it_came_from() {
    let place = EngineFixture::new("success");
    let first = place.conducted(&place.persistent()).job;
    let source = place.session_of(&first);
    let second = place.conducted(&place.persistent()).job;
    let mut fork = place.persistent();
    fork.session =
        SessionChoice::Fork { source: source.agent_session_id.clone().unwrap(), at: None };
    // The preparation finds the job whose message is the last one.
    fork.forked_from = Some(second.clone());
    let job = place.conducted(&fork).job;
    assert_eq!(place.job(&job).forked_from, Some(second));
    let session = place.session_of(&job);
    assert_ne!(session.id, source.id);
    assert_eq!((session.parent, session.forked_at_message), (Some(source.id), Some(4)));
}

#[test]
fn a_run_that_never_started_leaves_no_session() {
    let place = EngineFixture::new("die");
    let done = place.conducted(&place.persistent());
    assert_eq!(done.end, RunEnd::NeverStarted);
    let filter = SessionFilter::default();
    assert_eq!(place.reader().sessions(&filter, None, 9).unwrap(), []);
    assert_eq!(place.reader().count_sessions(&filter).unwrap(), 0);
    assert_eq!(place.job(&done.job).head.session_id, None);
    let left = place.root.join(".heeler/sessions").read_dir_utf8().unwrap();
    let left: Vec<String> = left.map(|entry| entry.unwrap().path().to_string()).collect();
    assert_eq!(left, Vec::<String>::new());

    // A session that was used before stays, regardless of this run's outcome.
    place.behave("success");
    let first = place.conducted(&place.persistent()).job;
    let session = place.session_of(&first);
    place.behave("die");
    let done = place.conducted(&place.persistent());
    assert_eq!(done.end, RunEnd::NeverStarted);
    assert_eq!(place.session_of(&done.job).id, session.id);
}

#[test]
fn an_imported_conversation_outlives_a_run_that_never_started() {
    for (how, end) in [("die", RunEnd::NeverStarted), ("busy", RunEnd::SessionBusy)] {
        for channel in [None, Some("C1")] {
            let place = EngineFixture::new(how);
            let imported = place.import(channel);
            let mut request = place.persistent();
            request.channel = channel.map(str::to_owned);
            let done = place.conducted(&request);
            assert_eq!(done.end, end);
            let kept = place.session_of(&done.job);
            assert_eq!(kept.id, imported.id);
            if channel.is_none() {
                let own = place.reader().agent_session("coder").unwrap().unwrap();
                assert_eq!(own.id, imported.id);
            }
            place.behave("success");
            let next = place.conducted(&request).job;
            assert_eq!(place.session_of(&next).id, imported.id, "{how}: it goes on");
        }
    }
}

#[test]
fn an_imported_conversation_outlives_a_start_that_was_cut_off() {
    let place = EngineFixture::new("success");
    let imported = place.import(None);
    let begun = run_without_daemon::begin(&place.fleet, &place.store(), &place.persistent(), None);
    let begun = begun.unwrap();
    let folder = place.fleet.dir.run(begun.run);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("spec.json"), serde_json::to_vec_pretty(&begun.spec).unwrap())
        .unwrap();
    // The second time it is as after a restore: the session is as imported, the run has no row.
    let other = EngineFixture::new("success");
    other.import(None);
    std::fs::rename(&folder, other.fleet.dir.run(begun.run)).unwrap();
    for place in [place, other] {
        let store = place.store();
        let done =
            crate::recover_runs(&place.fleet, &store, crate::RunFolderCheck::WhenDue).unwrap();
        assert_eq!(done.committed[0].end, RunEnd::NeverStarted);
        let kept = place.session_of(&begun.job);
        assert_eq!((kept.id, kept.status), (imported.id.clone(), SessionStatus::Paused));
    }
}

#[test]
fn each_channel_has_a_session_of_its_own() {
    let place = EngineFixture::new("success");
    let in_channel = |name: &str| {
        let mut request = place.persistent();
        request.rules.mode = SessionMode::PerChannel;
        request.channel = Some(name.to_owned());
        place.session_of(&place.conducted(&request).job).id
    };
    let one = in_channel("C1");
    assert_ne!(in_channel("C2"), one);
    assert_eq!(in_channel("C1"), one);
    assert_eq!(place.reader().agent_session("coder").unwrap(), None);
}

#[test]
fn a_busy_session_is_refused_before_there_is_a_job_and_the_holder_is_named() {
    let place = EngineFixture::new("success");
    let id = place.agent_has("11111111-busy");
    std::fs::create_dir_all(place.root.join("home/locks")).unwrap();
    let lock = place.root.join("home/locks").join(id.as_str());
    let holder = LockHolder::this_process("runner job-2026-11-15-abcdef", clock());
    let held = LockFile::acquire(&lock, &holder, Duration::ZERO).unwrap();
    let mut request = place.request();
    request.session = SessionChoice::Given { id };
    let (told, done) = place.conduct(&request);
    let error = done.unwrap_err();
    let RunStartError::SessionBusy { job, .. } = &error else { panic!("{error}") };
    assert_eq!(job.as_ref().map(JobId::as_str), Some("job-2026-11-15-abcdef"));
    assert!(told.is_empty(), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert_eq!(place.reader().running_jobs().unwrap(), []);
    drop(held);
    place.conducted(&request);
}

#[test]
fn the_first_session_of_an_agent_is_begun_once() {
    let place = EngineFixture::new("success");
    let store = place.store();
    let begin = |request: &ResolvedJobRequest| {
        run_without_daemon::begin(&place.fleet, &store, request, None)
    };
    let mut request = place.persistent();
    request.max_concurrent = NonZeroU32::new(9).unwrap();
    let mut in_channel = request.clone();
    in_channel.channel = Some("C1".to_owned());
    begin(&in_channel).unwrap();
    let mut alone = request.clone();
    alone.rules.mode = SessionMode::FreshPerJob;
    begin(&alone).unwrap();
    let first = begin(&request).unwrap();
    let refused = begin(&request).unwrap_err();
    let session = place.session_of(&first.job).id;
    let said = format!("session {session} is busy: job {} is starting it", first.job);
    assert_eq!(refused.to_string(), said);

    let mut fresh = request.clone();
    fresh.session = SessionChoice::Fresh;
    begin(&fresh).unwrap();
    let mut other = request.clone();
    other.agent = "writer".parse().unwrap();
    begin(&other).unwrap();
    begin(&alone).unwrap();
}

#[test]
fn a_session_that_became_busy_fails_the_job_for_now() {
    let place = EngineFixture::new("busy");
    let done = place.conducted(&place.request());
    assert_eq!((done.status, done.end), (JobStatus::Failed, RunEnd::SessionBusy));
    let runs = place.reader().runs_of_job(&done.job).unwrap();
    let result = place.reader().run_result(runs[0].id).unwrap().unwrap();
    assert_eq!(result.error.unwrap().class, ErrorClass::SessionBusy);
}

#[test]
fn a_run_that_never_started_is_started_once_more() {
    let place = EngineFixture::new("die");
    let (told, done) = place.conduct(&place.request());
    let done = done.unwrap();
    assert_eq!((done.status, done.end), (JobStatus::Failed, RunEnd::NeverStarted));
    let starts = told.iter().filter(|it| matches!(it, JobNotice::Started { .. })).count();
    assert_eq!((starts, told.len()), (2, 3), "{told:?}");
    let runs = place.reader().runs_of_job(&done.job).unwrap();
    assert_eq!(runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2]);
    assert!(runs.iter().all(|run| run.committed));
}

#[test]
fn what_was_started_once_more_may_succeed_in_a_session_of_its_own() {
    let place = EngineFixture::new("die-once");
    let done = place.conducted(&place.persistent());
    assert_eq!((done.status, done.end), (JobStatus::Completed, RunEnd::Finished));
    let session = place.session_of(&done.job);
    assert_eq!((session.status, session.job_count), (SessionStatus::Paused, 1));
    let own = place.reader().agent_session("coder").unwrap().unwrap();
    assert_eq!(own.id, session.id);
    let all = place.reader().sessions(&SessionFilter::default(), None, 9).unwrap();
    assert!(all.iter().all(|it| it.status != SessionStatus::Active), "{all:?}");
    assert_eq!(all.iter().map(|it| it.job_count).sum::<i64>(), 1, "{all:?}");
}

#[test]
fn a_session_that_is_on_record_already_succeeds_one_that_is_gone() {
    let place = EngineFixture::new("success");
    let first = place.conducted(&place.persistent()).job;
    let gone = place.session_of(&first);
    let known = place.conducted(&place.request()).job;
    let known = place.session_of(&known);
    let behave = format!("in {}", known.agent_session_id.as_ref().unwrap());
    place.behave(&behave);
    let mut given = place.persistent();
    given.session = SessionChoice::Given { id: gone.agent_session_id.clone().unwrap() };
    let job = place.conducted(&given).job;
    let session = place.session_of(&job);
    assert_eq!((&session.id, session.job_count), (&known.id, 2));
    let gone = place.reader().session(&gone.id).unwrap().unwrap();
    assert_eq!(gone.status, SessionStatus::Expired);
}

#[test]
fn a_runner_that_dies_at_work_leaves_an_interrupted_job() {
    let place = EngineFixture::new("die-late");
    let done = place.conducted(&place.request());
    assert_eq!((done.status, done.end), (JobStatus::Failed, RunEnd::Interrupted));
    assert!(place.job(&done.job).interrupted);
}

#[test]
fn a_program_that_is_not_there_fails_the_job_with_the_reason() {
    let mut place = EngineFixture::new("success");
    place.fleet.program = place.root.join("nowhere");
    let done = place.conducted(&place.request());
    assert_eq!(done.status, JobStatus::Failed);
    let error = place.job(&done.job).error.unwrap();
    assert!(error.contains("nowhere runner`: No such file"), "{error}");
}

#[test]
fn a_state_that_another_process_keeps_is_waited_for_and_then_named() {
    let place = EngineFixture::new("success");
    let store = place.store();
    let error = place.fleet.open_writer("conduct", Duration::from_millis(1)).unwrap_err();
    let StateOpenError::Busy { source, .. } = &error else { panic!("{error}") };
    let cause = heeler_model::error_chain(source);
    assert!(cause.contains("`heeler test`, process"), "{cause}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| place.fleet.open_writer("conduct", Duration::from_secs(20)));
        drop(store);
        waiting.join().unwrap().unwrap();
    });
}
