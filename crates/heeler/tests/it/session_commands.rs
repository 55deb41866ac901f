//! What the commands about sessions refuse, leave out and say.

use serde_json::{Value as Json, json};

use crate::fleet::Fleet;
use crate::terminal::Terminal;
use crate::trigger::{fleet, scripted, wait_for};

const ANSWERS: &str = "{say: 'Turn {turn}: {prompt}.'}";

fn kept(steps: &str) -> String {
    format!("session: {{mode: persistent}}\n{}", scripted(steps))
}

/// A fleet whose agent keeps one session with a turn in it, and that session.
fn one_turn() -> (Fleet, String) {
    let fleet = fleet(&[("coder", &kept(ANSWERS))]);
    fleet.run(&["trigger", "coder", "-p", "one"]).ok();
    let session = newest(&fleet);
    (fleet, session)
}

fn newest(fleet: &Fleet) -> String {
    let listed = fleet.json(&["session", "list", "--json"]);
    listed["sessions"][0]["id"].as_str().unwrap().to_owned()
}

/// The ids that a list shows.
fn ids(fleet: &Fleet, args: &[&str]) -> Vec<String> {
    let listed = fleet.json(&[&["session", "list", "--json"], args].concat());
    let sessions = listed["sessions"].as_array().unwrap();
    assert_eq!(listed["total"], sessions.len());
    let mut ids: Vec<String> =
        sessions.iter().map(|session| session["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn an_empty_prompt_is_refused_and_nothing_is_made_for_it() {
    let (fleet, session) = one_turn();
    let job = fleet.jobs()[0].head.id.to_string();
    for empty in ["", " \n\t", "-"] {
        for command in [
            &["trigger", "coder"][..],
            &["session", "resume", &session],
            &["agent", "resume", "coder"],
            &["jobs", "resume", &job],
            &["session", "fork", &session, "--run"],
            &["jobs", "fork", &job, "--run"],
        ] {
            let told = fleet.run(&[command, &["-p", empty]].concat()).fails(2);
            assert!(told.contains("is empty") && told.contains("try: -p"), "{command:?}: {told}");
        }
    }
    assert_eq!(fleet.jobs().len(), 1);
    assert_eq!(ids(&fleet, &[]), [session]);
}

#[test]
fn a_channel_has_a_form_and_is_listed_with_its_threads() {
    let chatty = format!("session: {{mode: per_channel}}\n{}", scripted(ANSWERS));
    let fleet = fleet(&[("chatty", &chatty)]);
    for wrong in ["general", "slack/", "slack/C 1", "slack/a/b/c"] {
        let told = fleet.run(&["trigger", "chatty", "--channel", wrong, "-p", "x"]).fails(2);
        assert!(told.contains("PLATFORM/CHANNEL/THREAD, as in slack/C0123/1731.55"), "{told}");
    }
    assert!(fleet.jobs().is_empty());
    let mut made = Vec::new();
    for channel in ["slack/C1", "slack/C1/17.5", "slack/C10", "discord/C1"] {
        fleet.run(&["trigger", "chatty", "--channel", channel, "-p", "x"]).ok();
        made.push(newest(&fleet));
    }
    let mut of_channel = made[..2].to_vec();
    of_channel.sort();
    assert_eq!(ids(&fleet, &["--channel", "slack/C1"]), of_channel);
    assert_eq!(ids(&fleet, &["--channel", "slack/C1", "--status", "paused"]), of_channel);
    assert_eq!(ids(&fleet, &["--channel", "slack/C1/17.5"]), made[1..2]);
}

#[test]
fn quiet_lists_are_without_remarks() {
    let (fleet, session) = one_turn();
    fleet.run(&["session", "fork", &session]).ok();
    for command in [
        &["session", "list", "--limit", "1"][..],
        &["session", "show", &session],
        &["session", "show", &session, "--history"],
        &["session", "restore"],
        &["jobs", "--limit", "1"],
    ] {
        let ran = fleet.run(&[command, &["-q"]].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{command:?}");
        assert!(!ran.stdout.is_empty(), "{command:?}");
    }
    let told = fleet.run(&["session", "list", "--limit", "1"]);
    assert!(told.stderr.contains("showing 1 of 2; older: "), "{}", told.stderr);
}

#[test]
fn a_number_of_entries_has_one_option_in_every_command() {
    let (fleet, session) = one_turn();
    fleet.run(&["session", "fork", &session]).ok();
    let history = ["session", "show", session.as_str(), "--history"];
    let commands: &[&[&str]] = &[
        &["jobs"],
        &["session", "list"],
        &["approvals", "list"],
        &["workflow", "runs"],
        &["logs"],
        &["search", "a"],
        &history,
    ];
    for command in commands {
        let shown = |option: &str| {
            let ran = fleet.run(&[command, &[option, "1"][..]].concat());
            assert_ne!(ran.code, Some(2), "{command:?} {option}: {}", ran.stderr);
            // Times pass between two commands.
            ran.stdout.lines().count()
        };
        assert_eq!(shown("-n"), shown("--number"), "{command:?}");
        // Scripts may use the earlier spellings.
        let earlier = if command == &["logs"] { "--lines" } else { "--limit" };
        assert_eq!(shown("-n"), shown(earlier), "{command:?}");
    }
    for command in [&["approvals", "list"][..], &["search", "a"], &["jobs"]] {
        assert_ne!(fleet.run(&[command, &["-l", "1"]].concat()).code, Some(2), "{command:?}");
    }
}

#[test]
fn jobs_and_sessions_get_titles_from_people() {
    let (fleet, session) = one_turn();
    let job = fleet.jobs().remove(0).head.id;
    let end = job.as_str().rsplit('-').next().unwrap();
    let ran = fleet.run(&["jobs", "rename", end, "  Cart:\u{1b}[2J total \n second line"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let title = |fleet: &Fleet| {
        let jobs = fleet.json(&["jobs", "--json"])["jobs"][0]["title"].clone();
        let sessions = fleet.json(&["session", "list", "--json"])["sessions"][0]["title"].clone();
        assert_eq!(jobs, sessions, "a session has the title of its first job");
        jobs.as_str().unwrap().to_owned()
    };
    assert_eq!(title(&fleet), "Cart:\\u{1b}[2J total");
    assert!(fleet.run(&["jobs"]).ok().contains("total"));
    fleet.run(&["session", "rename", &session, &"x".repeat(500)]).ok();
    assert_eq!(title(&fleet), "x".repeat(120));
    let fork = fleet.run(&["session", "fork", &session]).ok();
    let fork = fork.split_whitespace().next().unwrap();
    assert_eq!(fleet.run(&["session", "rename", fork, "early"]).code, Some(5));
    assert_eq!(fleet.run(&["session", "rename", &session, " \n "]).code, Some(2));
    assert_eq!(fleet.run(&["jobs", "rename", "job-2020-01-01-aaaaaa", "x"]).code, Some(4));
}

#[test]
fn a_cleanup_takes_no_number_for_a_dry_run() {
    let (fleet, session) = one_turn();
    let ran = fleet.run(&["session", "cleanup", "-n", "--older-than", "2100-01-01"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("--dry-run"), "{}", ran.stderr);
    assert_eq!(fleet.run(&["session", "show", &session]).code, Some(0), "it was not deleted");
}

#[test]
fn a_narrow_terminal_breaks_no_word() {
    let (fleet, session) = one_turn();
    let shown = fleet.json(&["session", "show", &session, "--json"]);
    let own = shown["session"]["agentSessionId"].as_str().unwrap().to_owned();
    let line = format!("stty cols 40; exec heeler session show {session}");
    let (code, screen) = Terminal::shell(&fleet, &line).end();
    assert_eq!(code, Some(0), "{screen}");
    let plain = anstream::adapter::strip_str(&screen).to_string();
    let lines: Vec<&str> = plain.lines().map(str::trim_end).collect();
    assert!(lines.contains(&&*format!("  {own}")), "{lines:#?}");
    // Only what has to be whole is wider: a path, a command.
    let wide: Vec<_> = lines.iter().filter(|line| line.chars().count() > 40).collect();
    let is_whole = |line: &&&str| line.trim().starts_with('/') || line.starts_with("heeler ");
    assert!(wide.iter().all(is_whole), "{lines:#?}");
}

#[test]
fn a_large_message_is_shown_in_part_unless_all_of_it_is_wanted() {
    let fleet = fleet(&[("coder", &kept("{say: Seen.}"))]);
    let text = "sheep ".repeat(50_000);
    let mut command = fleet.command(&["trigger", "coder", "-q", "-p", "-"]);
    fleet.write("prompt", &text);
    command.stdin(std::fs::File::open(fleet.file("prompt")).unwrap());
    assert!(command.output().unwrap().status.success());
    let session = newest(&fleet);
    let brief = fleet.run(&["session", "show", &session, "--history"]).ok();
    assert!(brief.len() < 64 * 1024 + 1024, "{}", brief.len());
    let line = brief.lines().find(|line| line.contains("more: ")).unwrap();
    assert_eq!(line, "  … 234.46 kB more: --full -n 1 --before 2");
    let args = line.split("more: ").nth(1).unwrap().split(' ');
    let whole: Vec<&str> =
        ["session", "show", &session, "--history"].into_iter().chain(args).collect();
    let whole = fleet.run(&whole).ok();
    assert!(whole.contains(text.trim_end()) && whole.starts_with("1 you"), "{}", whole.len());
}

#[test]
fn a_fork_that_runs_at_once_tells_of_itself_and_of_its_job() {
    let (fleet, session) = one_turn();
    let told = fleet.json(&["session", "fork", &session, "--run", "-p", "two", "--json"]);
    assert_eq!((&told["success"], &told["result"]), (&json!(true), &json!("Turn 2: two.")));
    let fork = &told["fork"];
    assert_eq!((&fork["parent"], &fork["atMessage"]), (&json!(session), &json!(2)));
    assert_eq!(told["job"]["sessionId"], fork["agentSessionId"], "{told:#}");
    // It is told of also where nothing runs.
    fleet.run(&["agent", "disable", "coder"]).ok();
    let refused = fleet.run(&["session", "fork", &session, "--run", "-p", "x", "--json"]);
    let refused: Json = serde_json::from_str(&refused.stdout).unwrap();
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains(" was created, but nothing ran in it: "), "{message}");
}

#[test]
fn a_fork_says_what_of_a_turn_that_was_cut_off_it_leaves_behind() {
    let steps =
        "{say: Begun.}, {run: 'test ! -e slow || { touch began; sleep 600; }'}, {say: Done.}";
    let fleet = fleet(&[("coder", &kept(steps))]);
    fleet.run(&["trigger", "coder", "-p", "one"]).ok();
    let session = newest(&fleet);
    fleet.write("slow", "");
    let job = fleet.run(&["trigger", "coder", "-p", "two", "--detach", "-q"]).ok();
    wait_for("the tool to run", || fleet.file("began").exists().then_some(()));
    fleet.run(&["jobs", "cancel", "--now", job.trim()]).ok();
    let all =
        fleet.json(&["session", "show", &session, "--json"])["session"]["messageCount"].clone();
    let ran = fleet.run(&["session", "fork", &session]);
    let fork = fleet.json(&["session", "fork", &session, "--json"]);
    let left = all.as_u64().unwrap() - fork["atMessage"].as_u64().unwrap();
    assert!(left > 0, "{fork:#}");
    assert_eq!(fork["leftBehind"], left);
    let plural = if left == 1 { "" } else { "s" };
    let told = format!(
        "{left} message{plural} after that were left out, because their turn has not ended"
    );
    assert!(ran.stderr.contains(&told), "{}", ran.stderr);
    // Whoever names the message knows.
    let named = fleet.json(&["session", "fork", &session, "-m", "3", "--json"]);
    assert_eq!(named["leftBehind"], 0);
}

#[test]
fn a_cleanup_names_what_it_takes_and_what_it_keeps_as_its_dry_run_does() {
    let fleet = fleet(&[("coder", &scripted(ANSWERS))]);
    let ended = |prompt: &str| {
        fleet.run(&["trigger", "coder", "-p", prompt]).ok();
        newest(&fleet)
    };
    let (needed, unneeded) = (ended("one"), ended("two"));
    let fork = fleet.json(&["session", "fork", &needed, "--json"])["id"].clone();
    let clean = |more: &[&str]| {
        let args = ["session", "cleanup", "--older-than", "2100-01-01"];
        fleet.run(&[&args, more].concat())
    };
    let dry = clean(&["--dry-run"]);
    let dry_json: Json = serde_json::from_str(&clean(&["--dry-run", "--json"]).ok()).unwrap();
    assert_eq!(clean(&["--dry-run", "-q"]).ok(), format!("{unneeded}\n"));
    assert_eq!(dry_json["sessions"], json!([unneeded]));
    let kept = &dry_json["kept"][0];
    assert_eq!(kept["id"], json!(needed), "{dry_json:#}");
    let reason = kept["reason"].as_str().unwrap();
    assert!(reason.contains(fork.as_str().unwrap()), "{reason}");
    let real = clean(&[]);
    for (ran, what) in [(&dry, "would be deleted"), (&real, "deleted")] {
        assert!(ran.stdout.contains(&unneeded) && ran.stdout.contains("coder"), "{}", ran.stdout);
        assert!(!ran.stdout.contains(&needed), "{}", ran.stdout);
        assert!(ran.stderr.contains(&format!("kept: {reason}")), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("1 session {what}")), "{}", ran.stderr);
    }
    // One that is kept alone is no error.
    let again: Json = serde_json::from_str(&clean(&["--json"]).ok()).unwrap();
    assert_eq!((&again["total"], &again["kept"][0]["id"]), (&json!(0), &json!(needed)));
    assert_eq!(again["dryRun"], false);
}

#[test]
fn the_size_of_the_context_is_told() {
    let steps = "{usage: {input: 2000, output: 345}}, {say: Hi.}";
    let fleet = fleet(&[("coder", &kept(steps))]);
    fleet.run(&["trigger", "coder"]).ok();
    let session = newest(&fleet);
    let shown = fleet.run(&["session", "show", &session]).ok();
    assert!(shown.contains("tokens:       about 2,345\n"), "{shown}");
    assert_eq!(
        fleet.json(&["session", "show", &session, "--json"])["session"]["tokenEstimate"],
        2345
    );
    let listed = fleet.json(&["session", "list", "--json"]);
    assert!(listed["sessions"][0].as_object().unwrap().contains_key("continues"), "{listed:#}");
}

#[test]
fn what_cannot_be_forked_is_not_shown_as_if_it_could() {
    let fleet = fleet(&[("cmd", "runtime: command\ncommand: echo hi")]);
    fleet.run(&["trigger", "cmd"]).ok();
    let session = newest(&fleet);
    fleet.run(&["session", "fork", &session]).fails(5);
    let ran = fleet.run(&["session", "show", &session, "--history"]);
    assert!(ran.stdout.contains("hi") && !ran.stdout.contains('*'), "{}", ran.stdout);
    assert!(!ran.stderr.contains("fork"), "{}", ran.stderr);
    let past = fleet.json(&["session", "show", &session, "--history", "--json"]);
    let last = past["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["safeCut"], &last["whyUnsafe"]),
        (&json!(false), &json!("a command has no sessions"))
    );
}

#[test]
fn a_session_that_has_expired_is_shown_so_before_anybody_put_it_aside() {
    let agent = |timeout: &str, other: &str| {
        let steps = scripted(ANSWERS).replace('\n', ", ");
        let coder =
            format!("{{name: coder, session: {{mode: persistent, timeout: {timeout}}}, {steps}}}");
        let other =
            format!("{{name: other, session: {{mode: persistent, timeout: {other}}}, {steps}}}");
        format!("agents:\n  - {coder}\n  - {other}\n")
    };
    let fleet = Fleet::empty();
    fleet.write("heeler.yaml", &agent("24h", "24h"));
    for agent in ["coder", "other"] {
        fleet.run(&["trigger", agent, "-p", "x"]).ok();
    }
    let all = ids(&fleet, &[]);
    let of = |name: &str| ids(&fleet, &["--agent", name]);
    let (coder, other) = (of("coder"), of("other"));
    assert_eq!(ids(&fleet, &["--status", "paused"]), all);
    assert!(ids(&fleet, &["--status", "expired"]).is_empty());
    // No daemon knows of these rules.
    fleet.write("heeler.yaml", &agent("1ms", "24h"));
    assert_eq!(ids(&fleet, &["--status", "expired"]), coder);
    assert_eq!(ids(&fleet, &["--status", "paused"]), other);
    assert!(ids(&fleet, &["--status", "expired", "--agent", "other"]).is_empty());
    assert!(ids(&fleet, &["--status", "expired", "--since", "2030-01-01"]).is_empty());
    let shown = fleet.json(&["session", "show", &coder[0], "--json"]);
    assert_eq!(shown["session"]["status"], "expired");
    let listed = fleet.run(&["session", "list"]).ok();
    assert!(listed.contains("expired") && listed.contains("paused"), "{listed}");
    let dry =
        fleet.json(&["session", "cleanup", "--older-than", "2100-01-01", "--dry-run", "--json"]);
    assert_eq!(dry["sessions"], json!(coder));

    // Page by page, as if it were on record.
    fleet.write("heeler.yaml", &agent("1ms", "1ms"));
    let page = |more: &[&str]| {
        let args = ["session", "list", "--status", "expired", "--limit", "1", "--json"];
        let page = fleet.json(&[&args, more].concat());
        assert_eq!(page["total"], 2, "{page:#}");
        page["sessions"][0]["id"].as_str().unwrap_or_default().to_owned()
    };
    let first = page(&[]);
    let second = page(&["--before", &first]);
    assert_eq!([&second, &first], [&coder[0], &other[0]]);
    assert_eq!(page(&["--before", &second]), "");
    assert!(ids(&fleet, &["--status", "paused"]).is_empty());
}

#[test]
fn whoever_purges_a_session_is_told_what_stays() {
    let (fleet, session) = one_turn();
    let job = fleet.jobs()[0].head.id.to_string();
    let stays = "the transcripts of its jobs and its native session";
    let mut terminal = Terminal::start(&fleet, &format!("session delete {session} --purge"));
    terminal.wait_for(&format!("Kept: {stays}"));
    terminal.wait_for("permanently? [y/N]");
    terminal.type_in("n\n");
    assert_eq!(terminal.end().0, Some(5));
    let ran = fleet.run(&["session", "delete", &session, "--purge", "--yes"]);
    assert!(ran.stderr.contains(stays), "{}", ran.stderr);
    assert!(fleet.read(&format!(".heeler/jobs/{job}.jsonl")).contains("Turn 1"));
}

#[test]
fn help_shows_examples_of_its_own_command() {
    let fleet = Fleet::empty();
    for command in [
        &["trigger"][..],
        &["session", "resume"],
        &["session", "fork"],
        &["jobs", "fork"],
        &["jobs", "resume"],
        &["agent", "resume"],
    ] {
        let help = fleet.run(&[command, &["--help"]].concat()).ok();
        let example = format!("Examples:\n  heeler {} ", command.join(" "));
        assert!(help.contains(&example), "{command:?}: {help}");
    }
}
