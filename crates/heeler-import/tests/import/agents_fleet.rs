//! `import agents-fleet`.

use expect_test::expect;
use heeler_import::{ImportItemKind, import_agents_fleet};
use heeler_store::{SessionFilter, StoreReader};
use serde_json::Value;

use super::{Place, fingerprint, mode, now, reasons, tally};

#[test]
fn sessions_of_all_versions_come_in_as_version_3() {
    let place = Place::new();
    let source = place.fixture("agents-fleet", "home/.fleet/sessions");
    let home = place.path("home/.heeler");
    let store = place.store();
    let report = import_agents_fleet(&store, &home, &place.path("home/.fleet"), now()).unwrap();

    assert_eq!(report.counts_for(ImportItemKind::Session), tally(5, 3, 0, 2));
    expect![[r#"
        [
            "broken.json: not JSON: EOF while parsing a list at line 1 column 32",
            "later.json: its schemaVersion is 4; 1 to 3 are known",
            "v2-roster.json: worker-2: transcript path `../../../etc/passwd`: it contains `..`",
            "v2-roster.json: worker-3: transcript path `/etc/passwd`: it is an absolute path",
            "v2-roster.json: worker-4: transcript path `sub/worker-4.ndjson`: it contains a path separator",
            "v2-roster.json: worker-5.ndjson: its transcript is missing",
            "orphan.transcript.ndjson: it has no session file",
        ]
    "#]]
    .assert_debug_eq(&reasons(&report));

    for (id, messages) in [("v1-plain", 2), ("v2-roster", 1), ("v3-split", 3)] {
        let json = home.join(format!("sessions/{id}.json"));
        let raised: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let original = std::fs::read(source.join(format!("{id}.json"))).unwrap();
        let original: Value = serde_json::from_slice(&original).unwrap();
        assert_eq!(raised["schemaVersion"], 3);
        assert_eq!(raised["msgCount"], messages, "{id}");
        assert_eq!(raised["transcript"], original["transcript"]);
        let transcript = home.join("sessions").join(raised["transcriptPath"].as_str().unwrap());
        assert_eq!(std::fs::read_to_string(&transcript).unwrap().lines().count(), messages);
        assert_eq!((mode(&json), mode(&transcript)), (0o600, 0o600));
    }
    for worker in ["worker-1.ndjson", "worker-9.ndjson"] {
        let name = format!("v2-roster.workers/{worker}");
        let copy = home.join("sessions").join(&name);
        assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(source.join(&name)).unwrap());
        assert_eq!(mode(&copy), 0o600);
    }
}

#[test]
fn they_are_listed_under_interactive_with_the_path_of_their_transcript() {
    let place = Place::new();
    place.fixture("agents-fleet", "home/.fleet/sessions");
    let home = place.path("home/.heeler");
    let store = place.store();
    import_agents_fleet(&store, &home, &place.path("home/.fleet/sessions"), now()).unwrap();
    let reader = StoreReader::open(store.dir()).unwrap();
    let filter =
        SessionFilter { agent: Some("interactive".to_owned()), ..SessionFilter::default() };
    let sessions = reader.sessions(&filter, None, 10).unwrap();
    assert_eq!(sessions.len(), 3);
    for session in sessions {
        let log = session.log_path.unwrap();
        assert!(log.is_absolute() && log.exists(), "{log}");
    }
}

#[test]
fn a_second_import_leaves_a_session_alone_that_went_on_here() {
    let place = Place::new();
    let source = place.fixture("agents-fleet", "home/.fleet/sessions");
    let before = fingerprint(&source);
    let home = place.path("home/.heeler");
    let store = place.store();
    import_agents_fleet(&store, &home, &source, now()).unwrap();
    let json = home.join("sessions/v1-plain.json");
    std::fs::write(&json, "{\"id\":\"v1-plain\",\"schemaVersion\":3,\"more\":true}").unwrap();
    let second = import_agents_fleet(&store, &home, &source, now()).unwrap();
    assert_eq!(second.total().imported, 0);
    assert_eq!(second.counts_for(ImportItemKind::Session), tally(5, 0, 3, 2));
    assert!(std::fs::read_to_string(&json).unwrap().contains("more"));
    assert_eq!(fingerprint(&source), before);
}

#[test]
fn a_transcript_that_is_here_is_never_replaced() {
    let place = Place::new();
    place.fixture("agents-fleet", "home/.fleet/sessions");
    let home = place.path("home/.heeler");
    let files = ["v3-split.transcript.ndjson", "v2-roster.workers/worker-1.ndjson"];
    for file in files {
        let path = home.join("sessions").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "mine\n").unwrap();
    }
    let store = place.store();
    let report = import_agents_fleet(&store, &home, &place.path("home/.fleet"), now()).unwrap();
    for file in files {
        assert_eq!(std::fs::read_to_string(home.join("sessions").join(file)).unwrap(), "mine\n");
    }
    assert_eq!(report.counts_for(ImportItemKind::Session), tally(5, 2, 0, 3));
    assert!(!home.join("sessions/v3-split.json").exists());
}

#[test]
fn what_a_power_loss_left_empty_is_written_again() {
    let place = Place::new();
    let source = place.fixture("agents-fleet", "home/.fleet/sessions");
    let home = place.path("home/.heeler");
    let sessions = home.join("sessions");
    std::fs::create_dir_all(&sessions).unwrap();
    std::fs::write(sessions.join("v3-split.json"), "").unwrap();
    std::fs::write(sessions.join("v2-roster.json"), [0; 100]).unwrap();
    let transcript = "v3-split.transcript.ndjson";
    std::fs::write(sessions.join(transcript), "").unwrap();
    let store = place.store();
    let report = import_agents_fleet(&store, &home, &place.path("home/.fleet"), now()).unwrap();
    assert_eq!(report.counts_for(ImportItemKind::Session).existing, 0);
    for json in ["v3-split.json", "v2-roster.json"] {
        assert!(std::fs::read_to_string(sessions.join(json)).unwrap().starts_with('{'), "{json}");
    }
    let copied = std::fs::read(sessions.join(transcript)).unwrap();
    assert_eq!(copied, std::fs::read(source.join(transcript)).unwrap());
    let again = import_agents_fleet(&store, &home, &place.path("home/.fleet"), now()).unwrap();
    assert_eq!(again.total().imported, 0);
}
