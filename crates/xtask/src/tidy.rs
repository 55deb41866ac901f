//! Tests for rules of the code base that the compiler does not check.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::imports::circles;
use crate::measure::shared_names;
use crate::shell::workspace_root;
use crate::source::sources;

/// Maximum length of a source file without its tests; a longer module has grown a second idea.
const FILE_LINES_MAX: usize = 700;

/// Type names that may be defined more than once, each with the reason.
const SHARED_NAMES: [(&str, &str); 4] = [
    ("AgentConfinement", "one for Linux and one for other systems; only one is compiled"),
    ("FileWatch", "one for Linux and one for systems without inotify; only one is compiled"),
    ("PreparedContainer", "one for Linux and one for other systems; only one is compiled"),
    ("ProcessHandle", "one for Linux and one for other systems; only one is compiled"),
];

/// Keys of transcript rows. Only `heeler_model::job_row` knows what they mean.
const ROW_KEYS: [&str; 6] =
    ["type", "subtype", "content", "tool_name", "tool_use_id", "parent_tool_use_id"];

/// Files and folders that may read such keys, each with the reason.
const ROW_KEY_READERS: [(&str, &str); 24] = [
    ("crates/heeler-connect/src/slack_frame.rs", "parses messages of Slack"),
    ("crates/heeler-connect/src/discord.rs", "parses channels of Discord"),
    ("crates/heeler-connect/src/discord_frame.rs", "parses messages of Discord"),
    ("crates/heeler-connect/src/discord_command.rs", "parses commands of Discord"),
    ("crates/heeler-server/src/webhooks/slack.rs", "tells the kinds of calls of Slack apart"),
    ("crates/heeler-server/src/webhooks/call_fuzz.rs", "checks the kinds of calls of Slack"),
    ("crates/heeler-egress/src/reply_figures.rs", "events of the model's API"),
    ("crates/heeler-config/src/capabilities.rs", "reads the transport of an MCP server"),
    ("crates/heeler-config/src/webhook.rs", "reads the payload of a webhook"),
    ("crates/heeler-model/src", "defines the rows, and Claude's messages that become rows"),
    ("crates/heeler-runner/src/acp.rs", "parses messages of ACP"),
    ("crates/heeler-runner/src/acp", "parses messages of ACP"),
    ("crates/heeler-runner/src/codex", "parses items of Codex"),
    ("crates/heeler-runner/src/qwen.rs", "parses messages of Qwen Code"),
    ("crates/heeler-runner/src/qwen", "parses messages of Qwen Code"),
    ("crates/heeler-runner/src/program_rows.rs", "reads the plan of an ACP agent"),
    ("crates/heeler-runner/src/protocol_replay.rs", "describes messages, in tests only"),
    ("crates/heeler-runner/src/captured_output.rs", "parses captures, in tests only"),
    ("crates/heeler-runner/src/claude", "parses Claude's stream and control requests"),
    ("crates/heeler-runner/src/scripted", "plays Claude's part of the stream"),
    ("crates/heeler-store/src/native", "parses session files of agent programs"),
    ("crates/heeler-store/src/history/native_chain.rs", "parses Claude's session files"),
    ("crates/heeler-pages/src/api_docs.rs", "reads an OpenAPI document"),
    ("crates/heeler-tui/src/transcript_cell.rs", "reads the to-do list in a tool's input"),
];

#[test]
fn crate_edges_are_those_that_the_architecture_lists() {
    let root = workspace_root().unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(&root)
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut real = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        for dependency in package["dependencies"].as_array().unwrap() {
            let (from, to) =
                (package["name"].as_str().unwrap(), dependency["name"].as_str().unwrap());
            if dependency["kind"].is_null() && to.starts_with("heeler") {
                real.insert(format!("{from} -> {to}"));
            }
        }
    }
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let listed: BTreeSet<String> = architecture
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- `"))
        .filter_map(|line| line.split('`').next())
        .filter(|edge| edge.contains(" -> "))
        .map(str::to_owned)
        .collect();
    assert_eq!(real, listed, "ARCHITECTURE.md lists the edges under \"Edges\"");
}

#[test]
fn no_file_is_too_long() {
    for file in sources().unwrap() {
        let lines = file.shipped_lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines: split it", file.path.display());
    }
}

#[test]
fn every_module_has_a_module_comment() {
    for file in sources().unwrap() {
        assert!(file.text.starts_with("//!"), "{} does not start with //!", file.path.display());
    }
}

#[test]
fn only_the_program_prints() {
    for file in sources().unwrap() {
        let prints = file.text.lines().any(|line| {
            let line = line.trim_start();
            line.starts_with("println!") || line.starts_with("print!") || line.starts_with("eprint")
        });
        let allowed = ["crates/heeler/src", "crates/xtask/src", "src/bin"]
            .iter()
            .any(|part| file.path.to_string_lossy().contains(part));
        assert!(allowed || !prints, "{} prints", file.path.display());
    }
}

/// The life cycle of a job is one function, `Job::apply`.
#[test]
fn a_job_status_is_assigned_in_one_place() {
    // Rows of workflow runs have a status too, and a state machine of their own.
    let assigns =
        |line: &str| line.contains("head.status = ") && !line.contains("row.head.status = ");
    for file in sources().unwrap() {
        let is_allowed = file.path.ends_with("heeler-model/src/job.rs");
        let is_clean = !file.shipped_lines().any(assigns);
        assert!(is_allowed || is_clean, "{}: use Job::apply", file.path.display());
    }
}

/// Eight crates once read rows by key, and the rules about turns drifted apart.
#[test]
fn only_the_model_reads_rows_by_key() {
    let is_read = |line: &str, key: &&str| {
        line.contains(&format!("[\"{key}\"]")) || line.contains(&format!(".get(\"{key}\")"))
    };
    let mut used = BTreeSet::new();
    for file in sources().unwrap() {
        let reads = file.shipped_lines().find(|line| ROW_KEYS.iter().any(|key| is_read(line, key)));
        let Some(line) = reads else { continue };
        let allowed = ROW_KEY_READERS.iter().find(|(path, _)| file.path.starts_with(path));
        let path = file.path.display();
        let (reader, _) = allowed.unwrap_or_else(|| {
            panic!("{path} reads a row by key, use heeler_model::job_row: {}", line.trim())
        });
        used.insert(*reader);
    }
    let unused: Vec<_> = ROW_KEY_READERS.iter().filter(|(path, _)| !used.contains(path)).collect();
    assert!(unused.is_empty(), "read no row by key, remove from the list: {unused:?}");
}

/// A reader who jumps to a type by its name must find one type.
#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for definition in shared_names(&sources().unwrap()) {
        let place = format!("{}:{}", definition.path.display(), definition.line);
        places.entry(definition.name).or_default().push(place);
    }
    let allowed: BTreeSet<&str> = SHARED_NAMES.iter().map(|(name, _)| *name).collect();
    let unexpected: Vec<_> =
        places.iter().filter(|(name, _)| !allowed.contains(name.as_str())).collect();
    assert!(unexpected.is_empty(), "defined more than once: {unexpected:#?}");
    let unused: Vec<_> = allowed.iter().filter(|name| !places.contains_key(**name)).collect();
    assert!(unused.is_empty(), "no longer shared, remove from the list: {unused:?}");
}

/// Most files of one crate that may need each other.
const CIRCLE_FILES_MAX: usize = 3;

/// Files that need each other can only be read and changed together.
#[test]
fn no_circle_has_more_than_three_files() {
    let mut too_large = circles(&sources().unwrap());
    too_large.retain(|circle| circle.files.len() > CIRCLE_FILES_MAX);
    let edges: Vec<_> = too_large.iter().map(|circle| &circle.edges).collect();
    assert!(edges.is_empty(), "move a shared definition to a file of its own: {edges:#?}");
}

/// A thread needs an owner and a name: use a pool, a scope, or `thread::Builder`. These files start
/// bare threads, each with the reason.
const BARE_THREADS: [(&str, &str); 20] = [
    ("heeler-chat/src/background.rs", "the owner stops and joins it"),
    (
        "heeler-chat/src/session_file.rs",
        "one for each open session file; its owner takes the result",
    ),
    ("heeler-engine/src/daemon_handle.rs", "a handle for tests, which no shipped program has"),
    ("heeler-runner/src/scripted.rs", "one for each process; handles signals until its end"),
    ("heeler-runner/src/scripted/agent.rs", "one for each process; ends with standard input"),
    ("heeler-runner/src/scripted/commands.rs", "one for each running command; ends with it"),
    ("heeler-tui/src/event_loop.rs", "one for each screen; ends with the conversation's output"),
    ("heeler-tui/src/terminal.rs", "one for each terminal; ends within one poll after it"),
    ("heeler/src/chat.rs", "one for each conversation; it is joined"),
    ("heeler/src/chat/daemon_fleet.rs", "one for each /diff; ends with the comparison"),
    ("heeler/src/chat/file_index.rs", "at most one at a time; ends with the list of files"),
    ("heeler/src/chat/input_queue.rs", "one for signals, one for events; end with the queue"),
    ("heeler/src/chat/job_follower.rs", "one for each followed job; ends with it"),
    ("heeler/src/chat/plain_printer.rs", "one for each process; ends with standard input"),
    ("heeler/src/chat/session_previews.rs", "a named limit; they end with the list"),
    ("heeler/src/chat/shell_command.rs", "two for the command of the person; end with it"),
    ("heeler/src/chat/worker_watcher.rs", "one for each conversation; stopped by its owner"),
    ("heeler/src/commands/", "one request or one pipe of a command that ends with the process"),
    ("heeler/src/job_watch", "one event source of a command that ends with the process"),
    ("xtask/src/tidy.rs", "names what it forbids"),
];

/// Files that may have a channel without a limit, each with the reason.
const UNBOUNDED_CHANNELS: [(&str, &str); 1] = [("xtask/src/tidy.rs", "names what it forbids")];

/// Returns the places with one of the texts, except in comments, tests and the listed files.
fn places_with(texts: &[&str], allowed: &[(&str, &str)]) -> Vec<String> {
    let mut places = Vec::new();
    for file in sources().unwrap() {
        let path = file.path.to_string_lossy().into_owned();
        if allowed.iter().any(|(part, _)| path.contains(&format!("crates/{part}"))) {
            continue;
        }
        let lines: Vec<&str> = file.text.lines().collect();
        let is_test = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1] == "mod tests {";
        let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
        for (index, line) in lines[..end].iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if texts.iter().any(|text| code.contains(text)) {
                places.push(format!("{path}:{}", index + 1));
            }
        }
    }
    places
}

#[test]
fn no_thread_is_started_without_an_owner() {
    let places = places_with(&["thread::spawn("], &BARE_THREADS);
    assert!(places.is_empty(), "use a pool or a scope, or list the reason: {places:#?}");
}

#[test]
fn no_channel_is_without_a_limit() {
    // The last three import the sender of a channel without a limit.
    let texts = [
        "mpsc::channel()",
        "mpsc::channel::<",
        "= channel()",
        "unbounded",
        " Sender,",
        "{Sender,",
        "mpsc::Sender;",
    ];
    let places = places_with(&texts, &UNBOUNDED_CHANNELS);
    assert!(places.is_empty(), "use a channel with a named limit: {places:#?}");
}

/// Tests use the program with the feature `fault-points`; a build without tests must not have it.
#[test]
fn the_program_ships_without_fault_points() {
    let tree = |edges: &str| {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--package", "heeler", "--offline", "--edges", edges])
            .current_dir(workspace_root().unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!tree("features,normal,build").contains("fault-points"));
    assert!(tree("features,normal,dev").contains("fault-points"), "the tests need them");
}
