//! Attacks on secrets: read tokens and declared secrets, directly or through replies.

use std::process::Command;

use serde_json::Value as Json;

use crate::fleet::Fleet;
use crate::pty::Pty;
use crate::web::{Served, bearer, send};

/// A value of `.env` that nothing but the file tells to be a secret.
const SETTING: &str = "q7Zk-setting-41xR9";

/// The secret that signs webhooks, under a name that does not tell it.
const SIGNING: &str = "hook/Signing+91aB==";

/// A fleet whose only agent runs a shell script, beside a `.env` with secrets.
fn fleet_with_script(like: &Fleet, script: &str) -> Fleet {
    let fleet = like.another();
    fleet.write(
        "heeler.yaml",
        "web: {port: auto}\nagents:\n  - name: thief\n    runtime: command\n    \
         command: bash attack.sh\n    env: {DB: 'postgres://app:dbpass@db.example/x'}\n    \
         schedules:\n      push: {type: webhook, secret_env: SIGNER}\n",
    );
    fleet.write(".env", &format!("SETTING='{SETTING}'\nSIGNER='{SIGNING}'\nMODE=production\n"));
    fleet.write("attack.sh", script);
    fleet
}

/// Runs the attack with a daemon; returns where it listens and a token that may only read.
fn attack(served: &Served) -> (String, String) {
    let address = served.start();
    let reader = served.run(&["token", "create", "viewer", "--scope", "read"]).ok();
    served.run(&["trigger", "thief", "-q"]).ok();
    (address, reader.trim().to_owned())
}

#[track_caller]
fn get(address: &str, token: &str, path: &str) -> String {
    let (code, _, body) = send(address, &format!("GET {path}"), &[&bearer(token)], "");
    assert_eq!(code, 200, "{path}: {body}");
    body
}

/// Searches everything that the fleet wrote.
#[track_caller]
fn assert_nowhere(fleet: &Fleet, secret: &str) {
    let mut grep = Command::new("grep");
    let found = grep.args(["-rlaF", "-e", secret]).arg(fleet.file(".heeler")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{secret} was written");
}

/// Number of rows that a search finds.
fn hits(address: &str, token: &str, query: &str) -> usize {
    let found: Json =
        serde_json::from_str(&get(address, token, &format!("/api/v1/search?{query}"))).unwrap();
    found["hits"].as_array().unwrap().len()
}

fn an_agent_cannot_bring_the_values_of_env_files_into_its_log(like: &Fleet) {
    let served =
        Served(fleet_with_script(like, "cat .env; base64 .env; echo 'mode: production'\n"));
    let (address, reader) = attack(&served);
    for secret in [SETTING, SIGNING] {
        assert_nowhere(&served.0, secret);
    }
    let job = served.0.json(&["jobs", "--json"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    let rows = served.run(&["jobs", "logs", &job]).ok();
    assert!(rows.contains("SETTING='[secret]'"), "{rows}");
    assert!(rows.contains("mode: production"), "a plain word stays: {rows}");
    assert_eq!(hits(&address, &reader, "text=41xR9"), 0);
    assert!(hits(&address, &reader, "text=mode") > 0);
}

fn an_agent_finds_no_token_on_disk(like: &Fleet) {
    let served = Served(fleet_with_script(
        like,
        "grep -rlaE 'heeler_[0-9a-f]{64}' . > found; ls .heeler > files\n",
    ));
    attack(&served);
    assert_eq!(served.0.read("found"), "");
    assert!(!served.0.read("files").contains("api-token"));
}

fn an_agent_cannot_hand_a_token_to_whoever_may_read(like: &Fleet) {
    let served = Served(fleet_with_script(like, "cat admin-token; printf 'url %s\\n' \"$DB\"\n"));
    let address = served.start();
    let admin = served.run(&["token", "create", "boss", "--scope", "admin"]).ok();
    let reader = served.run(&["token", "create", "viewer", "--scope", "read"]).ok();
    let reader = reader.trim().to_owned();
    served.0.write("admin-token", &admin);
    served.run(&["trigger", "thief", "-q"]).ok();
    let admin = admin.trim();
    assert_nowhere(&served.0, admin);
    assert_nowhere(&served.0, "dbpass");
    let pattern = "text=heeler_%5B0-9a-f%5D%7B64%7D&regex=true";
    assert_eq!(hits(&address, &reader, pattern), 0);
    assert_eq!(hits(&address, &reader, "text=app:dbpass"), 0);
    assert_eq!(hits(&address, &reader, "text=app:"), 1, "the rest of the address stays");
}

fn a_token_in_an_old_transcript_is_neither_found_nor_shown(like: &Fleet) {
    let served = Served(fleet_with_script(like, "echo marker\n"));
    let (address, reader) = attack(&served);
    let job = served.0.json(&["jobs", "--json"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    // As a version without this protection wrote it.
    let token = format!("heeler_{}", "ab".repeat(32));
    let log = served.0.file(&format!(".heeler/jobs/{job}.jsonl"));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("marker"), "{text}");
    std::fs::write(&log, text.replace("marker", &format!("marker {token} {SETTING}"))).unwrap();
    for query in [&token[..30], "41xR9", "heeler_%5B0-9a-f%5D%7B64%7D&regex=true"] {
        assert_eq!(hits(&address, &reader, &format!("text={query}")), 0, "{query}");
    }
    assert_eq!(hits(&address, &reader, "text=marker"), 1);
    for path in [format!("/api/v1/jobs/{job}/rows"), "/api/v1/search?text=marker".to_owned()] {
        let shown = get(&address, &reader, &path);
        assert!(shown.contains("marker [secret] [secret]"), "{path}: {shown}");
        assert!(!shown.contains(&token) && !shown.contains(SETTING), "{path}: {shown}");
    }
    assert!(!served.run(&["search", "marker"]).ok().contains(SETTING));
}

fn a_diff_shows_no_secret_to_whoever_may_read(like: &Fleet) {
    let script = "printf 'a\\n' > plain; cp ../.env settings; cp ../admin-token stolen; \
                  echo 'DB=postgres://app:dbpass@db.example/x' >> settings; \
                  printf '\\033]0;hidden\\n' > escape\n";
    let served = Served(fleet_with_script(like, script));
    let config =
        served.0.read("heeler.yaml").replace("runtime:", "working_directory: work\n    runtime:");
    // Only agents with sessions have snapshots.
    let scripted = "runtime: scripted\n    script: [{run: 'bash ../attack.sh'}, {say: Done.}]";
    let config = config.replace("runtime: command\n    command: bash attack.sh", scripted);
    served.0.write("heeler.yaml", &config);
    served.0.write("work/first", "x\n");
    for args in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "first"]] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(args);
        git.current_dir(served.0.file("work")).env("HOME", served.0.path());
        assert!(served.0.as_user(git).status().unwrap().success());
    }
    let token = format!("heeler_{}", "cd".repeat(32));
    served.0.write("admin-token", &token);
    let (address, reader) = attack(&served);
    let sessions = served.0.json(&["session", "list", "--json"]);
    let session = sessions["sessions"][0]["id"].as_str().unwrap();
    let diff = get(&address, &reader, &format!("/api/v1/sessions/{session}/diff"));
    let page = get(&address, &reader, &format!("/api/v1/sessions/{session}/messages"));
    let export = served.run(&["session", "export", session, "-q", "-o", "-"]).stdout;
    for shown in [&diff, &page, &export] {
        for secret in [SETTING, SIGNING, &token, "dbpass"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
    }
    let diff: Json = serde_json::from_str(&diff).unwrap();
    assert!(diff["patch"].as_str().unwrap().contains("+SETTING='[secret]'"), "{diff:#}");
    assert_eq!(diff["redacted"], true);
    let told = served.run(&["session", "diff", session]);
    assert!(told.stderr.contains("secrets were removed from the patch"), "{}", told.stderr);
    assert!(!told.stdout.contains(SETTING));
    let whole = served.run(&["session", "diff", session, "--secrets"]);
    assert!(whole.stdout.contains(SETTING) && whole.stderr.is_empty(), "{}", whole.stderr);
    // A terminal gets no control character of a file. The terminal is that of the test's user.
    let mut terminal = Pty::start(&served.0, &["-c", "heeler.yaml", "session", "diff", session]);
    let (code, screen) = terminal.ended();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("\\u{1b}]0;hidden"), "{screen}");
    assert!(!terminal.bytes().windows(3).any(|bytes| bytes == b"\x1b]0"));
}

fn the_password_of_an_address_in_the_config_is_shown_to_nobody(like: &Fleet) {
    let served = Served(fleet_with_script(like, "true\n"));
    let (address, reader) = attack(&served);
    let by_command = served.run(&["config", "show"]).ok();
    for shown in [by_command, get(&address, &reader, "/api/v1/config")] {
        assert!(shown.contains("postgres://app:[secret]@db.example/x"), "{shown}");
    }
}

#[test]
fn the_token_file_of_an_earlier_version_works_no_longer() {
    let served = Served::new("{port: auto}");
    let address = served.start();
    let token = served.0.read(".heeler/api-token").trim().to_owned();
    assert_eq!(crate::web::list(&address, &token), 200);
    served.run(&["stop"]).ok();
    let config = served.0.read("heeler.yaml").replace("token_file: true, ", "");
    served.0.write("heeler.yaml", &config);
    let address = served.start();
    assert_eq!(crate::web::list(&address, &token), 401);
    assert!(!served.0.file(".heeler/api-token").exists());
    let log = served.0.read(".heeler/logs/heeler.log");
    assert!(log.contains("heeler token create"), "{log}");
}

attacks![
    an_agent_cannot_bring_the_values_of_env_files_into_its_log,
    an_agent_finds_no_token_on_disk,
    an_agent_cannot_hand_a_token_to_whoever_may_read,
    a_token_in_an_old_transcript_is_neither_found_nor_shown,
    a_diff_shows_no_secret_to_whoever_may_read,
    the_password_of_an_address_in_the_config_is_shown_to_nobody,
];
