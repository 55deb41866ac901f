//! Calls that no mode and no list opens, and calls that a person approves.

use serde_json::json;

use super::*;

fn policy(allowed: Option<&[&str]>) -> CallPolicy {
    let brief = ClaudeLaunchSpec {
        allowed_tools: allowed.map(|list| list.iter().map(|it| (*it).to_owned()).collect()),
        protected: vec!["/fleet/heeler.yaml".into(), "/fleet/.heeler".into()],
        instructed: vec!["/other".into()],
        unreadable: vec!["/fleet/.env".into()],
        ..ClaudeLaunchSpec::default()
    };
    CallPolicy::from_brief(&brief, &[]).unwrap()
}

fn denies(policy: &CallPolicy, tool: &str, input: Json) -> bool {
    matches!(policy.verdict(tool, &input, Some("/fleet/work")), CallVerdict::Deny(_))
}

#[test]
fn protected_files_are_not_written_with_any_list() {
    for list in
        [None, Some(&["Write", "NotebookEdit"][..]), Some(&["Write", "NotebookEdit", "Bash"])]
    {
        let policy = policy(list);
        let write = |path: &str| denies(&policy, "Write", json!({ "file_path": path }));
        for path in [
            "/fleet/heeler.yaml",
            "/fleet/x/../heeler.yaml",
            "/fleet//./.heeler/runs/1/result.json",
            "../heeler.yaml",
            "~/x",
            "/anywhere/.git/hooks/pre-commit",
            ".git/config",
            ".git",
            "/other/CLAUDE.md",
            "/other/a/b/CLAUDE.local.md",
            "/other/a/.claude/skills/x/SKILL.md",
        ] {
            assert!(write(path), "{path} with {list:?}");
        }
        for path in [
            "/fleet/notes",
            "/fleet/heeler.yaml.md",
            "/fleet/.heelers",
            "x",
            ".gitignore",
            "/fleet/work/CLAUDE.md",
            "/other/CLAUDE.mdx",
        ] {
            assert!(!write(path), "{path} with {list:?}");
        }
        assert!(denies(&policy, "NotebookEdit", json!({"notebook_path": "/fleet/.heeler/x"})));
    }
}

#[test]
fn secrets_of_the_fleet_are_not_read_and_the_rest_is() {
    let policy = policy(None);
    for (tool, key) in [("Read", "file_path"), ("Grep", "path"), ("Glob", "path")] {
        assert!(denies(&policy, tool, json!({ key: "/fleet/.env" })), "{tool}");
        assert!(!denies(&policy, tool, json!({ key: "/fleet/heeler.yaml" })), "{tool}");
    }
    let relative = json!({ "file_path": "heeler.yaml" });
    assert_eq!(policy.verdict("Read", &relative, Some("/fleet")), CallVerdict::Pass);
    assert!(matches!(policy.verdict("Write", &relative, None), CallVerdict::Deny(_)));
}

#[test]
fn a_review_asks_about_all_that_is_not_read_only() {
    let brief = ClaudeLaunchSpec { review: true, ..ClaudeLaunchSpec::default() };
    let policy = CallPolicy::from_brief(&brief, &[]).unwrap();
    for tool in ["Bash", "Write", "WebFetch", "Agent", "mcp__x__get", "mcp__heeler__spawn_worker"] {
        assert_eq!(policy.verdict(tool, &json!({}), None), CallVerdict::AskPerson, "{tool}");
    }
    for tool in REVIEW_FREE_TOOLS {
        assert_eq!(policy.verdict(tool, &json!({}), None), CallVerdict::Pass, "{tool}");
    }
    assert!(matches!(policy.verdict_without_name(), CallVerdict::Deny(_)));
}

#[test]
fn a_run_without_rules_needs_no_hook() {
    let policy = CallPolicy::from_brief(&ClaudeLaunchSpec::default(), &[]).unwrap();
    assert!(!policy.is_restrictive());
    assert_eq!(policy.verdict("Bash", &json!({}), None), CallVerdict::Pass);
}
