//! Which calls a list of allowed tools lets run, as tables.

use serde_json::json;

use super::*;

fn allowed(entries: &[&str]) -> Result<ToolAllowlist, AllowedToolsError> {
    let listed = entries.iter().map(|entry| (*entry).to_owned()).collect();
    let brief = ClaudeLaunchSpec { allowed_tools: Some(listed), ..ClaudeLaunchSpec::default() };
    ToolAllowlist::from_brief(&brief, &["fleet".to_owned()])
        .map(|allowed| allowed.expect("there is a list"))
}

#[track_caller]
fn check(entries: &[&str], tool: &str, input: Json, permitted: bool) {
    let list = allowed(entries).unwrap();
    assert_eq!(list.permits(tool, &input), permitted, "{entries:?}: {tool} {input}");
}

#[track_caller]
fn check_bash(entries: &[&str], command: &str, permitted: bool) {
    check(entries, "Bash", json!({ "command": command }), permitted);
}

#[test]
fn a_name_permits_that_tool_and_no_other() {
    check(&["Read"], "Read", json!({"file_path": "/x"}), true);
    for tool in ["Write", "ReadMore", "read", "Bash", "Skill", "ToolSearch", "Agent", ""] {
        check(&["Read"], tool, json!({}), false);
    }
    check(&[], "Read", json!({}), false);
}

#[test]
fn a_tool_goes_by_its_old_name_too() {
    check(&["Task"], "Agent", json!({}), true);
    check(&["Agent"], "Task", json!({}), true);
}

#[test]
fn tools_of_a_server_are_permitted_one_by_one_or_together() {
    for entry in ["mcp__github", "mcp__github__*"] {
        check(&[entry], "mcp__github__create_issue", json!({}), true);
        check(&[entry], "mcp__github_enterprise__create_issue", json!({}), false);
        check(&[entry], "mcp__githubx", json!({}), false);
    }
    check(&["mcp__github__get_*"], "mcp__github__get_issue", json!({}), true);
    check(&["mcp__github__get_*"], "mcp__github__create_issue", json!({}), false);
    check(&["mcp__github__get_issue"], "mcp__github__get_issue", json!({}), true);
    check(&["mcp__github__get_issue"], "mcp__github__get_issues", json!({}), false);
}

#[test]
fn tools_of_injected_servers_join_the_list() {
    check(&[], "mcp__fleet__ask_human", json!({}), true);
    check(&[], "mcp__other__ask_human", json!({}), false);
    assert_eq!(allowed(&["Read"]).unwrap().entries(), ["Read", "mcp__fleet__*"]);
}

#[test]
fn every_command_of_a_line_must_be_listed() {
    for entries in [["Bash(git *)"], ["Bash(git:*)"]] {
        check_bash(&entries, "git", true);
        check_bash(&entries, "git status", true);
        check_bash(&entries, "git add . && git commit -m 'a; b'", true);
        check_bash(&entries, "gitk", false);
        check_bash(&entries, "git status && rm -rf x", false);
        check_bash(&entries, "git status | sh", false);
        check_bash(&entries, "echo hi", false);
        check_bash(&entries, "git log $(rm x)", false);
        check_bash(&entries, "git log > x", false);
        check_bash(&entries, "", false);
    }
    check_bash(&["Bash(git *)", "Bash(npm test)"], "npm test && git push", true);
    check_bash(&["Bash(git *)", "Bash(npm test)"], "npm test --all", false);
}

/// To a shell, any other blank is part of the command's name.
#[test]
fn a_command_ends_at_a_blank_of_the_shell() {
    for entry in ["Bash(git *)", "Bash(git:*)"] {
        check_bash(&[entry], "git\tstatus", true);
        check_bash(&[entry], "git\u{a0}status", false);
        check_bash(&[entry], "git\u{2003}status", false);
    }
}

#[test]
fn a_star_stands_for_anything_in_a_command() {
    check_bash(&["Bash(ls*)"], "lsof", true);
    check_bash(&["Bash(* --version)"], "node --version", true);
    check_bash(&["Bash(* --version)"], "node --help", false);
    check_bash(&["Bash(git * main)"], "git push origin main", true);
    check_bash(&["Bash(git * main)"], "git main", false);
    for entry in ["Bash", "Bash(*)", "Bash()"] {
        check_bash(&[entry], "anything > at | all $(here)", true);
    }
}

#[test]
fn a_call_without_what_is_judged_is_not_permitted() {
    for input in [json!({}), json!(null), json!({"command": 1}), json!([])] {
        check(&["Bash(git *)"], "Bash", input, false);
    }
}

#[test]
fn an_address_must_be_of_the_listed_host() {
    let entry = ["WebFetch(domain:example.com)"];
    let fetch = |url: &str, permitted| check(&entry, "WebFetch", json!({ "url": url }), permitted);
    fetch("https://example.com/a", true);
    fetch("https://EXAMPLE.com:8080/a", true);
    fetch("https://example.com.evil.org/", false);
    fetch("https://example.com@evil.org/", false);
    fetch("https://evil.org/?example.com", false);
    fetch("example.com", false);
    let entry = ["WebFetch(domain:*.example.com)"];
    check(&entry, "WebFetch", json!({"url": "https://docs.example.com/"}), true);
    check(&entry, "WebFetch", json!({"url": "https://evilexample.com/"}), false);
}

#[test]
fn agents_and_skills_are_permitted_by_name() {
    check(&["Agent(Explore)"], "Agent", json!({"subagent_type": "Explore"}), true);
    check(&["Task(Explore)"], "Agent", json!({"subagent_type": "Plan"}), false);
    check(&["Agent(Explore)"], "Agent", json!({}), false);
    check(&["Skill(deploy)"], "Skill", json!({"skill": "deploy"}), true);
    check(&["Skill(deploy)"], "Skill", json!({"skill": "deploy-all"}), false);
}

#[track_caller]
fn check_refused(entry: &str, reason: &str) {
    let refusal = allowed(&[entry]).expect_err("an entry that cannot be held");
    let message = refusal.to_string();
    assert!(message.contains(&format!("{entry:?}")) && message.contains(reason), "{message}");
}

#[test]
fn an_entry_that_cannot_be_held_is_refused_with_a_cure() {
    check_refused("Read(src/**)", "denied_tools");
    check_refused("WebFetch(https://x)", "`domain:…`");
    check_refused("*", "leave out allowed_tools");
    check_refused("Web*", "name each tool");
    check_refused("Bash(git *", "closing parenthesis");
    check_refused("", "is not the name of a tool");
    check_refused("Read Write", "is not the name of a tool");
}

#[test]
fn what_only_the_protocol_can_hold_is_refused_without_it() {
    for entry in ["Bash(git *)", "mcp__github__get_*", "mcp__github__get_issue", "mcp__*"] {
        let refusal = allowed(&[entry]).unwrap().ensure_no_input_rules().expect_err(entry);
        assert!(refusal.to_string().contains("use runtime sdk"), "{refusal}");
    }
    let list = allowed(&["Read", "Task", "Bash(*)", "mcp__github", "mcp__git_hub__*"]).unwrap();
    assert_eq!(list.ensure_no_input_rules(), Ok(()));
    assert_eq!(list.built_in_tools(), ["Read", "Agent", "Bash"]);
    assert!(list.has_server("github") && list.has_server("git hub") && list.has_server("fleet"));
    assert!(!list.has_server("git"));
}

#[test]
fn an_agent_is_told_what_it_may_do() {
    let list = allowed(&["Read", "Bash(git *)"]).unwrap();
    assert_eq!(
        list.denial_reason("Write"),
        "This agent may only use: Read, Bash(git *), mcp__fleet__*."
    );
    assert!(list.denial_reason("Bash").contains("Every command of a line must match"));
}

#[test]
fn the_lists_hold_for_requests_to_servers_too() {
    let lists = |allowed: Option<&[&str]>, denied: &[&str]| {
        let texts = |list: &[&str]| list.iter().map(|entry| (*entry).to_owned()).collect();
        let brief = ClaudeLaunchSpec {
            allowed_tools: allowed.map(texts),
            denied_tools: texts(denied),
            ..ClaudeLaunchSpec::default()
        };
        McpToolLists::from_brief(&brief).unwrap()
    };
    let call = |lists: &McpToolLists, tool: &str| {
        lists.denial("my shop", "tools/call", &json!({ "name": tool, "arguments": {} })).is_none()
    };
    let read =
        |lists: &McpToolLists| lists.denial("my shop", "resources/read", &json!({})).is_none();
    let free = lists(None, &["Bash", "Bash(rm *)", "mcp__other"]);
    assert!(call(&free, "buy") && read(&free));
    // Characters are replaced as in Claude's names.
    let partly = lists(None, &["mcp__my_shop__buy_it"]);
    assert!(call(&partly, "look") && read(&partly));
    assert!(!call(&partly, "buy_it") && !call(&partly, "buy.it") && !call(&partly, "buy it"));
    for whole in ["mcp__my_shop", "mcp__my_shop__*"] {
        let denied = lists(None, &[whole]);
        assert!(!call(&denied, "look") && !read(&denied), "{whole}");
    }
    let listed = lists(Some(&["Read", "mcp__my_shop__look"]), &[]);
    assert!(call(&listed, "look"));
    assert!(!call(&listed, "buy") && !call(&listed, "") && !read(&listed));
    let whole = lists(Some(&["mcp__my_shop__*"]), &["mcp__my_shop__buy"]);
    assert!(call(&whole, "look") && read(&whole) && !call(&whole, "buy"));
    let none = lists(Some(&["Read"]), &[]);
    assert!(!call(&none, "look") && !read(&none));
    assert_eq!(none.denial("my shop", "tools/list", &json!({})), None, "Claude needs the list");
}

#[test]
fn a_denied_tool_of_a_server_is_denied_in_every_form_of_the_list() {
    let lists = |denied: &[&str]| {
        McpToolLists::from_brief(&ClaudeLaunchSpec {
            denied_tools: denied.iter().map(|entry| (*entry).to_owned()).collect(),
            ..ClaudeLaunchSpec::default()
        })
    };
    let is_denied = |entry: &str, server: &str, tool: &str| {
        let lists = lists(&[entry]).unwrap();
        lists.denial(server, "tools/call", &json!({ "name": tool })).is_some()
    };
    for entry in [
        "Bash,mcp__shop__buy",
        "Read mcp__shop__buy",
        "Bash(rm *, mv *), mcp__shop__buy ,Write",
        "mcp__shop__buy(*)",
        "mcp__shop__buy(a, b)",
        " mcp__shop__buy",
    ] {
        assert!(is_denied(entry, "shop", "buy"), "{entry}");
        assert!(!is_denied(entry, "shop", "look"), "{entry}");
    }
    assert!(!is_denied("Bash(echo mcp__shop__buy)", "shop", "buy"));
    // The name of a server may look like the name of a tool.
    assert!(is_denied("mcp__my__shop", "my__shop", "buy"));
    assert!(is_denied("mcp__my__shop", "my", "shop"));
    assert!(!is_denied("mcp__my__shop", "my", "buy"));
    assert!(is_denied("mcp__my__*", "my__shop", "buy"));
    for refused in ["mcp__shop__buy(a", "mcp__shop__buy(a)b"] {
        let refusal = lists(&["Bash(rm *", refused]).err().unwrap().to_string();
        assert!(refusal.contains("denied_tools") && refusal.contains(refused), "{refusal}");
    }
}
