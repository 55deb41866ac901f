//! Sessions as they are read: histories, trees, channels.

use serde_json::json;

use crate::fleet::Fleet;
use crate::terminal::Terminal;

/// A fleet whose agent has had two jobs in one session; returns the session too.
fn two_turns() -> (Fleet, String) {
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        "agents:\n  - name: coder\n    runtime: scripted\n    session: {mode: persistent}\n    \
         script: [{say: 'I look.'}, {run: 'echo hi'}, {say: 'Done.'}]\n",
    );
    for prompt in ["One.", "Two."] {
        fleet.run(&["trigger", "coder", "-p", prompt]).ok();
    }
    let sessions = fleet.json(&["session", "list", "--json"]);
    let id = sessions["sessions"][0]["id"].as_str().unwrap().to_owned();
    (fleet, id)
}

#[test]
fn a_history_has_the_numbers_that_a_fork_takes() {
    let (fleet, id) = two_turns();
    let past = fleet.json(&["session", "show", &id, "--history", "--json"]);
    let messages = past["messages"].as_array().unwrap();
    let total = past["total"].as_u64().unwrap();
    let numbers: Vec<u64> = messages.iter().map(|it| it["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=total).collect::<Vec<_>>());
    let shown = fleet.json(&["session", "show", &id, "--json"]);
    assert_eq!(shown["session"]["messageCount"], total);
    assert_eq!(messages[0]["content"], json!([{"type": "text", "text": "One."}]));
    assert!(messages.iter().all(|it| it["inContext"] == true), "{messages:?}");
    let safe = |it: &&serde_json::Value| it["safeCut"] == true;
    let safe: Vec<u64> =
        messages.iter().filter(safe).map(|it| it["number"].as_u64().unwrap()).collect();
    assert_eq!(safe, [total / 2, total]);
    let tool = messages.iter().find_map(|it| it["tools"].get(0)).unwrap();
    assert_eq!(tool["result"]["isError"], false, "{tool}");

    // The page before, and what a fork says of the same numbers.
    let before = total.to_string();
    let args = ["session", "show", &id, "--history", "-n", "1", "--before", &before, "--json"];
    let page = fleet.json(&args);
    assert_eq!(page["messages"], json!([messages[total as usize - 2]]));
    let fork = fleet.json(&["session", "fork", &id, "--at-message", &before, "--json"]);
    assert_eq!(fork["atMessage"], total);
    let middle = (total - 1).to_string();
    let fork = fleet.json(&["session", "fork", &id, "--at-message", &middle, "--json"]);
    assert_eq!(fork["atMessage"], total / 2, "it moves to the nearest safe one before");

    // A fork that has not begun knows what it will take over.
    let of_fork = fork["id"].as_str().unwrap();
    let past = fleet.json(&["session", "show", of_fork, "--history", "--json"]);
    assert_eq!(past["total"], total / 2);
    assert_eq!(past["messages"], json!(messages[..total as usize / 2]));
}

#[test]
fn a_history_reads_well_and_says_what_to_do_next() {
    let (fleet, id) = two_turns();
    let ran = fleet.run(&["session", "show", &id, "--history", "-n", "2"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let last = ran.stdout.lines().last().unwrap();
    assert_eq!(last, "  Done.", "{}", ran.stdout);
    assert!(ran.stdout.lines().any(|line| line.ends_with(" *")), "{}", ran.stdout);
    let older = format!("older: heeler session show {id} --history --before ");
    assert!(ran.stderr.contains(&older), "{}", ran.stderr);
    let fork = format!("heeler session fork {id} --at-message ");
    assert!(ran.stderr.contains(&fork), "{}", ran.stderr);
    fleet.run(&["session", "show", &id, "-n", "2"]).fails(2);
    fleet.run(&["session", "show", "sess-ffffffff", "--history"]).fails(4);
}

#[test]
fn forks_are_shown_below_what_they_came_from() {
    let (fleet, id) = two_turns();
    let fork = fleet.json(&["session", "fork", &id, "--json"])["id"].as_str().unwrap().to_owned();
    let listed = fleet.json(&["session", "list", "--tree", "--json"]);
    let sessions = listed["sessions"].as_array().unwrap();
    let shape: Vec<_> = sessions.iter().map(|it| (&it["id"], &it["depth"])).collect();
    assert_eq!(shape, [(&json!(id), &json!(0)), (&json!(fork), &json!(1))]);
    let text = fleet.run(&["session", "list", "--tree", "--limit", "1"]).ok();
    assert!(text.contains(&format!("\n└ {fork}")), "{text}");
    let shown = fleet.run(&["session", "show", &id]).ok();
    assert!(shown.contains(&format!("forks:        {fork}")), "{shown}");
    // Only claude's sessions can be continued with it.
    assert!(!shown.contains("claude --resume"), "{shown}");
}

#[test]
fn the_sessions_of_a_channel_are_listed() {
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        "agents:\n  - {name: coder, runtime: scripted, session: {mode: per_channel}, script: [{say: Hi.}]}\n",
    );
    for channel in ["discord/1", "discord/2"] {
        fleet.run(&["trigger", "coder", "--channel", channel]).ok();
    }
    let listed = fleet.json(&["session", "list", "--channel", "discord/1", "--json"]);
    assert_eq!((&listed["total"], &listed["sessions"][1]), (&json!(1), &json!(null)));
    assert_eq!(listed["sessions"][0]["channelId"], "discord/1");
    let none = fleet.run(&["session", "list", "--channel", "x"]).ok();
    assert_eq!(none, "no sessions match\n");
}

const NATIVE: &str = "11111111-2222-4333-8444-555555555555";

/// A fleet whose user has used claude in a terminal.
fn with_native() -> Fleet {
    let fleet = Fleet::new();
    write_native(&fleet, "/work/my app");
    fleet
}

/// Writes a session of claude's that was made in this directory.
fn write_native(fleet: &Fleet, directory: &str) {
    let key = format!("sk-ant-{}", "a1B2".repeat(10));
    let row = |kind: &str, uuid: &str, parent: serde_json::Value, content: &str| {
        json!({"parentUuid": parent, "isSidechain": false, "type": kind, "uuid": uuid,
            "cwd": directory, "sessionId": NATIVE, "timestamp": "2026-11-15T10:00:00.000Z",
            "gitBranch": "main", "message": {"role": kind, "id": uuid, "content": content}})
    };
    let (one, two) =
        ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002");
    let asked = row("user", one, json!(null), &format!("Find the lost sheep with {key}"));
    let said = row("assistant", two, json!(one), "It is in the barn.");
    let file = format!("home/.claude/projects/-work-my-app/{NATIVE}.jsonl");
    fleet.write(&file, &format!("{asked}\n{said}\n"));
}

/// An agent of the same user can write the file of a session, and so name any directory in it.
#[test]
fn a_session_of_a_foreign_directory_is_adopted_only_with_an_agreement() {
    let fleet = with_native();
    fleet.write("heeler.yaml", "agents: [{name: coder, working_directory: work}]\n");
    fleet.write("work/README.md", "work\n");
    let adopt = ["session", "adopt", NATIVE, "--as", "coder"];
    let is_refused = |directory: &str| {
        let refused = fleet.run(&adopt).fails(6);
        let outside = format!("{directory}, which is outside of the fleet's working directories");
        assert!(refused.contains(&outside), "{refused}");
        assert_eq!(fleet.json(&["session", "list", "--json"])["total"], 0);
    };
    is_refused("/work/my app");
    let mut terminal = Terminal::start(&fleet, &format!("session adopt {NATIVE} --as coder"));
    terminal.wait_for("Continue it there? [y/N]");
    terminal.type_in("\n");
    let (code, seen) = terminal.end();
    assert!(code == Some(5) && seen.contains("nothing was changed"), "{code:?} {seen}");

    // A link could be replaced after the agreement.
    let root = fleet.path().canonicalize().unwrap();
    std::os::unix::fs::symlink(root.join("work"), root.join("work/link")).unwrap();
    let link = root.join("work/link");
    write_native(&fleet, link.to_str().unwrap());
    is_refused(link.to_str().unwrap());

    write_native(&fleet, "/work/my app");
    let agreed = fleet.json(&[&adopt[..], &["--yes", "--json"]].concat());
    assert_eq!(agreed["workingDirectory"], "/work/my app");
}

#[test]
fn a_session_of_a_working_directory_of_the_fleet_is_adopted_without_a_question() {
    let fleet = Fleet::new();
    fleet.write("heeler.yaml", "agents: [{name: coder, working_directory: work}]\n");
    fleet.write("work/part/README.md", "work\n");
    let part = fleet.file("work/part").canonicalize().unwrap();
    write_native(&fleet, part.to_str().unwrap());
    let adopted = fleet.json(&["session", "adopt", NATIVE, "--as", "coder", "--json"]);
    assert_eq!(adopted["workingDirectory"].as_str(), part.to_str());
}

#[test]
fn sessions_made_with_claude_in_a_terminal_are_listed_shown_and_searched_without_secrets() {
    let fleet = with_native();
    let listed = fleet.json(&["session", "list", "--native", "--json"]);
    let session = &listed["sessions"][0];
    assert_eq!((&listed["total"], &session["agentSessionId"]), (&json!(1), &json!(NATIVE)));
    assert_eq!(session["title"], "Find the lost sheep with [secret]");
    assert_eq!((&session["messageCount"], &session["id"]), (&json!(2), &json!(null)));
    let elsewhere = ["session", "list", "--native", "--directory", "/work/other", "--json"];
    assert_eq!(fleet.json(&elsewhere)["total"], 0);
    let here = ["session", "list", "--native", "--directory", "/work/my app", "--json"];
    assert_eq!(fleet.json(&here)["total"], 1);

    let text = fleet.run(&["session", "list", "--native"]).ok();
    assert!(text.contains(NATIVE) && text.contains("lost sheep"), "{text}");
    let shown = fleet.run(&["session", "show", "11111111"]).ok();
    let resume = format!("cd '/work/my app' && claude --resume {NATIVE}");
    assert!(shown.contains(&resume), "{shown}");
    let past = fleet.json(&["session", "show", "11111111", "--history", "--json"]);
    let safe: Vec<_> =
        past["messages"].as_array().unwrap().iter().map(|it| &it["safeCut"]).collect();
    assert_eq!(safe, [&json!(false), &json!(true)]);

    let found = fleet.run(&["search", "--native", "sheep"]).ok();
    assert!(found.contains("[secret]"), "{found}");
    let raw = fleet.run(&["search", "--native", "barn", "--json"]).ok();
    assert_eq!(raw.lines().count(), 1, "{raw}");
    for text in [text, shown, past.to_string(), found, listed.to_string()] {
        assert!(!text.contains("sk-ant"), "{text}");
    }
    // Whoever guesses at a key is not told that it was right.
    for guess in ["sk-ant-a1B2", "a1B2a1B2", "sheep with sk-"] {
        fleet.run(&["search", "--native", guess]).fails(1);
        fleet.run(&["search", "--native", "--json", guess]).fails(1);
    }
    fleet.run(&["search", "--native", "-e", "sk-ant-(a1B2)+"]).fails(1);
    fleet.run(&["session", "show", "11111112"]).fails(4);
    fleet.run(&["search", "sheep"]).fails(1);
}

#[test]
fn an_exported_session_is_one_document_that_is_whole() {
    let (fleet, id) = two_turns();
    let text = fleet.run(&["session", "export", &id]).ok();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["session"]["id"], json!(id));
    assert_eq!(document["jobs"].as_array().unwrap().len(), 2);
    let own = document["own"].as_array().unwrap();
    let kept = own.iter().filter(|line| line["type"] == "user").count();
    assert!(kept >= 2, "{own:?}");
    assert_eq!(fleet.run(&["session", "export", &id, "-o", "out.json"]).ok(), "");
    assert_eq!(fleet.read("out.json"), text);
    let path = camino::Utf8PathBuf::from_path_buf(fleet.file("out.json")).unwrap();
    let bundle = heeler_store::bundle::open(&path).unwrap();
    assert_eq!(bundle.session.id.as_str(), id);
    assert_eq!(bundle.sums.events.lines, document["events"].as_array().unwrap().len() as u64);
    fleet.run(&["session", "export", "sess-ffffffff"]).fails(4);
}

/// Writes a session of each program that keeps one in a folder; returns their names in commands.
fn write_folder_sessions(fleet: &Fleet, directory: &str) -> [(&'static str, String); 3] {
    let (kimi, grok) = (format!("session_{NATIVE}"), NATIVE.replace('1', "2"));
    let copilot = [
        json!({ "type": "session.start", "id": "1", "data": { "context": { "cwd": directory } } }),
        json!({ "type": "user.message", "id": "2", "data": { "content": "Find the lost sheep" } }),
        json!({ "type": "assistant.message", "id": "3",
            "data": { "content": "In the barn.\u{1b}[2J\u{202e}" } }),
    ];
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let prompt = json!({ "role": "user", "content": text("Find the lost sheep"),
        "origin": { "kind": "user" } });
    let part = json!({ "type": "content.part", "part": text("In the barn.")[0] });
    let wire = [
        json!({ "type": "context.append_message", "time": 1_795_092_967_955_i64,
            "message": prompt }),
        json!({ "type": "context.append_loop_event", "event": part }),
    ];
    let query = text("<user_query>\nFind the lost sheep\n</user_query>");
    let history = [
        json!({ "type": "user", "content": query, "prompt_index": 0 }),
        json!({ "type": "assistant", "content": "In the barn." }),
    ];
    let write = |file: &str, lines: &[serde_json::Value]| {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fleet.write(&format!("home/{file}"), &lines);
    };
    write(&format!(".copilot/session-state/{NATIVE}/events.jsonl"), &copilot);
    let folder = format!(".kimi-code/sessions/wd_work_1/{kimi}");
    write(&format!("{folder}/agents/main/wire.jsonl"), &wire);
    write(&format!("{folder}/state.json"), &[json!({ "cwd": directory })]);
    let folder = format!(".grok/sessions/work/{grok}");
    write(&format!("{folder}/chat_history.jsonl"), &history);
    write(&format!("{folder}/summary.json"), &[json!({ "info": { "cwd": directory } })]);
    [
        ("copilot", format!("copilot:{NATIVE}")),
        ("kimi", format!("kimi:{kimi}")),
        ("grok", format!("grok:{grok}")),
    ]
}

#[test]
fn sessions_of_copilot_kimi_and_grok_are_listed_and_adopted_by_their_own_agents() {
    let fleet = Fleet::new();
    let agents = ["copilot", "kimi", "grok"].map(|name| {
        json!({ "name": name, "runtime": "acp", "program": name, "working_directory": "work" })
    });
    fleet.write("heeler.yaml", &json!({ "agents": agents }).to_string());
    fleet.write("work/README.md", "work\n");
    let work = fleet.file("work").canonicalize().unwrap();
    let named = write_folder_sessions(&fleet, work.to_str().unwrap());
    let list = ["session", "list", "--native", "--json"];
    assert_eq!(fleet.json(&list)["total"], 3);
    for (agent, id) in &named {
        let shown = fleet.run(&["session", "show", id]).ok();
        assert!(shown.contains("Find the lost sheep"), "{shown}");
        let other = if *agent == "kimi" { "grok" } else { "kimi" };
        let refused = fleet.run(&["session", "adopt", id, "--as", other]).fails(5);
        assert!(refused.contains(&format!("the session is {agent}'s")), "{refused}");
        let adopted = fleet.json(&["session", "adopt", id, "--as", agent, "--json"]);
        assert_eq!(adopted["workingDirectory"].as_str(), work.to_str(), "{adopted:#}");
        assert_eq!(adopted["messageCount"], 2, "{adopted:#}");
        let session = adopted["id"].as_str().unwrap();
        let past = fleet.run(&["session", "show", session, "--history"]).ok();
        assert!(past.contains("In the barn."), "{past}");
    }
    let natives = fleet.json(&list);
    let natives = natives["sessions"].as_array().unwrap();
    assert!(natives.iter().all(|it| it["id"].is_string()), "{natives:#?}");
}

#[test]
fn messages_of_copilot_kimi_and_grok_are_shown_before_an_adoption() {
    let fleet = Fleet::new();
    fleet.write("heeler.yaml", "agents: [{name: coder}]\n");
    for (_, id) in write_folder_sessions(&fleet, "/work/my app") {
        let shown = fleet.run(&["session", "show", &id]);
        assert!(shown.stderr.contains(&format!("session show {id} --history")), "{}", shown.stderr);
        let past = fleet.run(&["session", "show", &id, "--history"]);
        assert!(!past.stderr.contains("session fork"), "{}", past.stderr);
        let past = past.ok();
        assert!(past.contains("Find the lost sheep") && past.contains("In the barn."), "{past}");
        assert!(!past.contains(['\u{1b}', '\u{202e}']), "{past:?}");
        let last = fleet.run(&["session", "show", &id, "--history", "-n", "1"]);
        let older = format!("older: heeler session show {id} --history --before 2");
        assert!(last.stderr.contains(&older), "{}", last.stderr);
        let page = fleet.json(&["session", "show", &id, "--history", "--json"]);
        assert_eq!((&page["session"], &page["total"]), (&json!(id), &json!(2)));
        assert_eq!(page["messages"][1]["safeCut"], false, "{page:#}");
    }
    let left = std::fs::read_dir(fleet.path()).unwrap().filter_map(Result::ok);
    let is_temporary =
        |it: &std::fs::DirEntry| it.file_name().to_string_lossy().starts_with(".tmp");
    assert_eq!(left.filter(is_temporary).count(), 0, "no copy is left");
}

#[test]
fn sessions_of_copilot_kimi_and_grok_move_to_another_machine() {
    let machine = || {
        let fleet = Fleet::new();
        let agents = ["copilot", "kimi", "grok"].map(|name| {
            json!({ "name": name, "runtime": "acp", "program": name, "working_directory": "work" })
        });
        fleet.write("heeler.yaml", &json!({ "agents": agents }).to_string());
        fleet.write("work/README.md", "work\n");
        let work = fleet.file("work").canonicalize().unwrap();
        (fleet, work.to_str().unwrap().to_owned())
    };
    let ((there, their_work), (here, our_work)) = (machine(), machine());
    for (agent, native) in write_folder_sessions(&there, &their_work) {
        let adopted = there.json(&["session", "adopt", &native, "--as", agent, "--json"]);
        let id = adopted["id"].as_str().unwrap();
        let exported = there.run(&["session", "export", id]);
        assert!(!exported.stderr.contains("not continue it"), "{}", exported.stderr);
        here.write("session.json", &exported.ok());
        let imported = here.run(&["session", "import", "session.json"]);
        assert!(imported.stderr.contains("continue it: heeler session resume"));
        imported.ok();
        let shown = here.run(&["session", "show", &native, "--history"]).ok();
        assert!(shown.contains("In the barn."), "{shown}");
        // Again, the session exists.
        here.run(&["session", "import", "session.json"]).fails(5);

        // Without the native session, only the messages move.
        for folder in [".copilot", ".kimi-code", ".grok"] {
            std::fs::remove_dir_all(there.file("home").join(folder)).unwrap();
        }
        let exported = there.run(&["session", "export", id]);
        let reason = "fork it as text, but not continue it";
        assert!(exported.stderr.contains(reason), "{}", exported.stderr);
        assert!(exported.stderr.contains("no longer has its session"), "{}", exported.stderr);
        let bundle: serde_json::Value = serde_json::from_str(&exported.ok()).unwrap();
        assert_eq!((&bundle["version"], &bundle["native"]), (&json!(1), &json!(null)));
        write_folder_sessions(&there, &their_work);
    }
    let natives = here.json(&["session", "list", "--native", "--directory", &our_work, "--json"]);
    assert_eq!(natives["total"], 3, "{natives:#}");
    let natives = natives["sessions"].as_array().unwrap();
    assert!(natives.iter().all(|it| it["id"].is_string()), "{natives:#?}");
}

#[test]
fn a_native_session_that_cannot_be_read_is_named_with_the_reason() {
    let fleet = Fleet::new();
    fleet.write("heeler.yaml", "agents: [{name: coder}]\n");
    write_folder_sessions(&fleet, "/work/my app");
    fleet.write(&format!("home/.copilot/session-state/{NATIVE}/events.jsonl"), "no record\n");
    let listed = fleet.run(&["session", "list", "--native"]);
    assert!(listed.stderr.contains("no line of it is a record"), "{}", listed.stderr);
    assert!(listed.ok().contains("grok:22222222"));
}
