//! `import herdctl`.

use expect_test::expect;
use heeler_import::{ImportError, ImportItemKind, import_herdctl};
use heeler_model::{ExitReason, JobStatus, SessionMode};
use heeler_store::{SessionFilter, StoreReader};

use super::{Place, fingerprint, mode, now, reasons, tally};

#[test]
fn everything_readable_comes_in_and_the_rest_is_listed() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    let report = import_herdctl(&store, &place.path("site"), now()).unwrap();

    assert_eq!(report.counts_for(ImportItemKind::Job), tally(6, 5, 0, 1));
    assert_eq!(report.counts_for(ImportItemKind::Transcript).imported, 6);
    expect![[r#"
        [
            "jobs/job-2026-11-12-broken.yaml: not YAML: illegal placement of ':' indicator at line 4, column 7",
            "discord-sessions/support.yaml: channel 444555666: `../../etc/passwd` is not an agent session id: it must start with a letter or digit",
            "sessions/broken.json: not JSON: EOF while parsing a string at line 1 column 35",
        ]
    "#]]
    .assert_debug_eq(&reasons(&report));
    expect![[r#"
        [
            "2 unfinished jobs were marked as interrupted",
        ]
    "#]]
    .assert_debug_eq(&report.notes);

    let reader = StoreReader::open(store.dir()).unwrap();
    let job = reader.find_job("job-2026-11-14-k3x9ab").unwrap();
    assert_eq!(job.head.status, JobStatus::Completed);
    assert_eq!(job.usage.cache_read_input_tokens, Some(15_000));
    assert_eq!(job.origin, Some(format!("herdctl:{source}")));
    let job = reader.find_job("job-2026-11-13-garbg1").unwrap();
    assert_eq!(job.head.exit_reason, Some(ExitReason::Cancelled));
    assert_eq!(job.stop_reason.as_deref(), Some("interrupt"));
    assert_eq!(job.prompt.as_deref(), Some("yes"));
    let agents = reader.agents().unwrap();
    assert_eq!(agents["coder"].schedules.len(), 2);
    assert!(agents.contains_key("website.writer"));
}

#[test]
fn a_job_left_running_is_shown_as_interrupted_in_the_database_and_in_its_file() {
    let place = Place::new();
    place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    import_herdctl(&store, &place.path("site"), now()).unwrap();
    store.publish_views(now()).unwrap();

    let job = StoreReader::open(store.dir()).unwrap().find_job("job-2026-11-14-stuck1").unwrap();
    assert_eq!(job.head.status, JobStatus::Failed);
    assert!(job.interrupted);
    assert_eq!(job.head.finished_at, heeler_model::parse_iso("2026-11-14T04:00:00.500Z"));
    let yaml = std::fs::read_to_string(store.dir().job_yaml(&job.head.id)).unwrap();
    assert!(yaml.contains("status: failed"), "{yaml}");
    assert!(yaml.contains("herdctl ended without finishing this job"), "{yaml}");
    assert!(yaml.contains("reviewer: ann"), "unknown keys survive: {yaml}");
    let state = std::fs::read_to_string(store.dir().state_yaml()).unwrap();
    assert!(state.contains("session_wakes") && !state.contains("running"), "{state}");
    assert!(state.contains("started_at: \"2026-11-14T01:00:00.000Z\""), "{state}");
}

#[test]
fn logs_are_copied_byte_for_byte_and_finished_records_keep_their_file() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    import_herdctl(&store, &source, now()).unwrap();
    store.publish_views(now()).unwrap();
    for file in [
        "jobs/job-2026-11-14-k3x9ab.yaml",
        "jobs/job-2026-11-14-k3x9ab.jsonl",
        "jobs/job-2026-11-14-stuck1.jsonl",
        "jobs/job-2026-11-13-garbg1.jsonl",
        "jobs/job-2026-11-10-outlog/output.log",
        "docker-sessions/7c1f0a52-0d6e-4c55-8f0b-1f5c2e9b0002.jsonl",
        "sessions/coder.json",
        "session-metadata/coder.json",
        "logs/coder.log",
    ] {
        let copy = store.dir().root().join(file);
        assert_eq!(
            std::fs::read(&copy).unwrap(),
            std::fs::read(source.join(file)).unwrap(),
            "{file}"
        );
        assert_eq!(mode(&copy), 0o600, "{file}");
    }
    let context = std::fs::read(source.join("sessions/sess-a1b2c3d4.context")).unwrap();
    let link = store.dir().root().join("sessions/sess-a1b2c3d4.context");
    assert_eq!(std::fs::read(link).unwrap(), context);
}

#[test]
fn sessions_of_every_kind_are_listed() {
    let place = Place::new();
    place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    import_herdctl(&store, &place.path("site"), now()).unwrap();
    let reader = StoreReader::open(store.dir()).unwrap();
    let sessions = reader.sessions(&SessionFilter::default(), None, 100).unwrap();
    let shown = sessions.iter().map(|session| {
        let channel = session.channel_id.as_deref().unwrap_or("-");
        let log = session.log_path.as_ref().map_or("-", |path| path.as_str());
        format!("{} {} {channel} {} {log}", session.agent, session.mode, session.message_count)
    });
    expect![[r#"
        support per_channel slack/C0123456 0 -
        support per_channel discord/111222333 0 -
        coder persistent - 0 -
        website.writer fresh_per_job - 2 docker-sessions/7c1f0a52-0d6e-4c55-8f0b-1f5c2e9b0002.jsonl
        coder persistent - 0 -
        website.writer persistent - 4 agent-sessions/projects/-herdctl/sess-a1b2c3d4.jsonl"#]]
    .assert_eq(&shown.collect::<Vec<_>>().join("\n"));
    let own = reader.agent_session("coder").unwrap().unwrap();
    assert_eq!(own.agent_session_id.unwrap().as_str(), "5b7c2c0e-4d3a-4a49-9a39-2f1f6f6ad001");
    assert_eq!(own.mode, SessionMode::Persistent);
}

#[test]
fn deleting_an_imported_agents_session_file_lets_the_session_go() {
    let place = Place::new();
    place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    import_herdctl(&store, &place.path("site"), now()).unwrap();
    store.publish_views(now()).unwrap();
    std::fs::remove_file(store.dir().root().join("sessions/coder.json")).unwrap();
    assert_eq!(store.apply_hand_edits(now()).unwrap().detached, ["coder"]);
}

#[test]
fn a_second_import_finds_everything_there_and_the_source_is_untouched() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let before = fingerprint(&place.path("site"));
    let store = place.store();
    let first = import_herdctl(&store, &source, now()).unwrap();
    store.publish_views(now()).unwrap();
    let state = fingerprint(&place.path("fleet/.heeler/jobs"));
    let second = import_herdctl(&store, &source, now()).unwrap();
    store.publish_views(now()).unwrap();

    assert_eq!(fingerprint(&place.path("site")), before);
    assert_eq!(fingerprint(&place.path("fleet/.heeler/jobs")), state);
    assert_eq!(second.total().imported, 0);
    assert_eq!(second.counts_for(ImportItemKind::Job), tally(6, 0, 5, 1));
    assert_eq!(second.counts_for(ImportItemKind::Agent), tally(2, 0, 2, 0));
    assert_eq!(second.counts_for(ImportItemKind::Session).refused, 2);
    assert_eq!(first.refused, second.refused);
    assert!(second.notes.is_empty(), "{:?}", second.notes);
}

#[test]
fn keys_of_a_state_file_that_cannot_come_along_are_named() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    std::fs::write(store.dir().state_yaml(), "fleet: {}\nagents: {}\n").unwrap();
    let report = import_herdctl(&store, &source, now()).unwrap();
    let note = "a state.yaml exists, so these keys were not imported: session_wakes";
    assert!(report.notes.contains(&note.to_owned()), "{:?}", report.notes);
}

#[test]
fn a_job_that_herdctl_is_at_is_left_for_the_next_import() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let mut alive = place.living_herdctl(&source);
    let store = place.store();
    let report = import_herdctl(&store, &source, now());
    alive.kill().unwrap();
    alive.wait().unwrap();
    let report = report.unwrap();
    assert_eq!(report.counts_for(ImportItemKind::Job), tally(6, 3, 0, 3));
    assert!(
        reasons(&report).iter().any(|reason| reason.contains("import again when it has ended"))
    );
    assert_eq!(
        import_herdctl(&store, &source, now()).unwrap().counts_for(ImportItemKind::Job),
        tally(6, 2, 3, 1)
    );
}

#[test]
fn hostile_names_and_links_are_refused() {
    let place = Place::new();
    let source = place.path("bad/.herdctl");
    std::fs::create_dir_all(source.join("jobs")).unwrap();
    std::fs::write(place.path("secret"), "agent: a").unwrap();
    std::os::unix::fs::symlink(
        place.path("secret"),
        source.join("jobs/job-2026-01-01-aaaaaa.yaml"),
    )
    .unwrap();
    let yaml = "agent: a\nstatus: completed\nstarted_at: 2026-01-01T00:00:00Z\n";
    std::fs::write(source.join("jobs/job 1.yaml"), yaml).unwrap();
    let hostile = yaml.replace("agent: a", "agent: ../../x");
    std::fs::write(source.join("jobs/job-2026-01-01-cccccc.yaml"), hostile).unwrap();
    std::fs::write(
        source.join("jobs/job-2026-01-01-bbbbbb.yaml"),
        format!("{yaml}output_file: /etc/passwd\n"),
    )
    .unwrap();
    std::os::unix::fs::symlink("/etc/passwd", source.join("jobs/job-2026-01-01-bbbbbb.jsonl"))
        .unwrap();
    let store = place.store();
    let report = import_herdctl(&store, &place.path("bad"), now()).unwrap();
    expect![[r#"
        [
            "jobs/job 1.yaml: `job 1` is not a job id: only letters, digits, `-` and `_` are allowed",
            "jobs/job-2026-01-01-aaaaaa.yaml: it is a link that leads out of the folder",
            "jobs/job-2026-01-01-bbbbbb.jsonl: it is a link that leads out of the folder",
            "jobs/job-2026-01-01-cccccc.yaml: `../../x` is not an agent name: it is empty",
        ]
    "#]]
    .assert_debug_eq(&reasons(&report));
    assert_eq!(report.counts_for(ImportItemKind::Job).imported, 1);
    assert!(!store.dir().root().join("jobs/job-2026-01-01-bbbbbb.jsonl").exists());
}

#[test]
fn a_folder_without_herdctl_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).unwrap();
    let store = place.store();
    let error = import_herdctl(&store, &place.path("empty"), now()).unwrap_err();
    assert!(matches!(error, ImportError::NotFound { .. }), "{error}");
    let error = import_herdctl(&store, &place.path("gone"), now()).unwrap_err();
    assert!(matches!(error, ImportError::Open { .. }), "{error}");
    let error = import_herdctl(&store, store.dir().root(), now()).unwrap_err();
    assert!(matches!(error, ImportError::SourceIsTarget { .. }), "{error}");
}

#[test]
fn more_than_a_thousand_jobs_are_imported() {
    let place = Place::new();
    let jobs = place.path("big/.herdctl/jobs");
    std::fs::create_dir_all(&jobs).unwrap();
    for number in 0..1100 {
        let id = format!("job-2026-01-01-{number:06}");
        let yaml = format!(
            "id: {id}\nagent: coder\ntrigger_type: manual\nstatus: completed\n\
            exit_reason: success\nstarted_at: 2026-01-01T00:00:00.000Z\nprompt: |\n  Do it.\nsummary: Done.\n"
        );
        std::fs::write(jobs.join(format!("{id}.yaml")), yaml).unwrap();
        std::fs::write(jobs.join(format!("{id}.jsonl")), "{}\n").unwrap();
    }
    let store = place.store();
    let report = import_herdctl(&store, &place.path("big"), now()).unwrap();
    assert_eq!(report.counts_for(ImportItemKind::Job).imported, 1100);
}

#[test]
fn a_transcript_that_is_here_is_never_replaced() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    let files = [
        "jobs/job-2026-11-14-k3x9ab.jsonl",
        "jobs/job-2026-11-13-garbg1.yaml",
        "jobs/job-2026-11-10-outlog/output.log",
        "agent-sessions/projects/-herdctl/sess-a1b2c3d4.jsonl",
        "docker-sessions/7c1f0a52-0d6e-4c55-8f0b-1f5c2e9b0002.jsonl",
        "logs/coder.log",
    ];
    for file in files {
        let path = store.dir().root().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "mine\n").unwrap();
    }
    let report = import_herdctl(&store, &source, now()).unwrap();
    for file in files {
        assert_eq!(std::fs::read_to_string(store.dir().root().join(file)).unwrap(), "mine\n");
    }
    let reasons = reasons(&report);
    let taken = reasons.iter().filter(|reason| reason.contains("a different file with that name"));
    let taken: std::collections::HashSet<_> = taken.collect();
    assert_eq!(taken.len(), files.len(), "{reasons:#?}");
    let reader = StoreReader::open(store.dir()).unwrap();
    // A record beside somebody else's log would show that as its own.
    assert!(reader.job(&"job-2026-11-14-k3x9ab".parse().unwrap()).unwrap().is_none());
    let session = reader.session(&"sess-a1b2c3d4".parse().unwrap()).unwrap().unwrap();
    assert_eq!(session.log_path, None);
}

#[test]
fn what_an_import_that_was_cut_off_left_is_taken_over_and_completed() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    let (same, grown) = ("jobs/job-2026-11-14-stuck1.jsonl", "jobs/job-2026-11-14-k3x9ab.jsonl");
    let content = |file: &str| std::fs::read(source.join(file)).unwrap();
    std::fs::write(store.dir().root().join(same), content(same)).unwrap();
    std::fs::write(store.dir().root().join(grown), &content(grown)[..20]).unwrap();
    let report = import_herdctl(&store, &source, now()).unwrap();
    assert_eq!(report.counts_for(ImportItemKind::Job), tally(6, 5, 0, 1));
    assert_eq!(report.counts_for(ImportItemKind::Transcript), tally(6, 5, 1, 0));
    for file in [same, grown] {
        assert_eq!(std::fs::read(store.dir().root().join(file)).unwrap(), content(file), "{file}");
    }
}

#[test]
fn nothing_is_imported_through_a_link_in_the_state_directory() {
    let place = Place::new();
    let source = place.fixture("herdctl", "site/.herdctl");
    let store = place.store();
    std::fs::create_dir(place.path("precious")).unwrap();
    std::os::unix::fs::symlink(place.path("precious"), store.dir().projects().join("-herdctl"))
        .unwrap();
    let error = import_herdctl(&store, &source, now()).unwrap_err();
    assert!(matches!(error, ImportError::Blocked { .. }), "{error}");
    assert_eq!(place.path("precious").read_dir_utf8().unwrap().count(), 0);
}

#[test]
fn a_conversation_that_is_here_under_another_id_is_left_alone() {
    let place = Place::new();
    let store = place.store();
    for (id, line) in [("sess-11111111", "one\n"), ("sess-22222222", "two\n")] {
        let sessions = place.path(id).join(".herdctl/sessions");
        std::fs::create_dir_all(&sessions).unwrap();
        let json = format!(
            "{{\"id\": \"{id}\", \"agentId\": \"coder\", \"agentSessionId\": \"5b7c\", \
             \"createdAt\": \"2026-11-14T08:00:00Z\"}}"
        );
        std::fs::write(sessions.join(format!("{id}.json")), json).unwrap();
        std::fs::write(sessions.join(format!("{id}.context")), line).unwrap();
        let report = import_herdctl(&store, &place.path(id), now()).unwrap();
        assert!(report.refused.is_empty(), "{:?}", reasons(&report));
    }
    let log = store.dir().projects().join("-herdctl/5b7c.jsonl");
    assert_eq!(std::fs::read_to_string(log).unwrap(), "one\n");
    let reader = StoreReader::open(store.dir()).unwrap();
    assert_eq!(reader.sessions(&SessionFilter::default(), None, 100).unwrap().len(), 1);
}
