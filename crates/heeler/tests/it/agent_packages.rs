//! Agents from packages: fetched, shown, agreed to, installed and removed.

use std::process::Command;

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted};

const PACKAGE: &str = "name: reviewer\ndescription: Reviews.\nruntime: scripted\n\
    script: [{say: Fine.}]\nhooks: {after_run: [{type: shell, command: './notify.sh'}]}\n";

/// A repository with a package.
fn repository(fleet: &Fleet, agent: &str) -> String {
    fleet.write("package/agent.yaml", agent);
    fleet.write("package/notify.sh", "#!/bin/sh\n");
    fleet.write("package/node_modules/x/index.js", "");
    std::os::unix::fs::symlink("/etc/passwd", fleet.file("package/link")).unwrap();
    for args in [
        &["init", "--quiet", "--initial-branch=main"][..],
        &["add", "agent.yaml", "notify.sh", "link"],
        &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first"],
    ] {
        let mut git = Command::new("git");
        git.current_dir(fleet.file("package")).env("HOME", fleet.path());
        assert!(git.args(args).status().unwrap().success());
    }
    format!("file://{}", fleet.file("package").display())
}

#[test]
fn an_agent_is_installed_from_a_repository_only_if_a_person_agrees() {
    let home = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let url = repository(&home, PACKAGE);
    let before = home.read("heeler.yaml");
    let refused = home.run(&["agent", "add", &url]).fails(6);
    // What it would run is shown before the question.
    assert!(refused.contains("reviewer would run, as you:"), "{refused}");
    assert!(refused.contains("notify.sh") && refused.contains("--yes"), "{refused}");
    assert!(refused.contains("not copied:") && refused.contains("link"), "{refused}");
    assert_eq!(home.read("heeler.yaml"), before);
    assert!(!home.file("agents/reviewer").exists());
    assert_eq!(std::fs::read_dir(home.file("agents")).unwrap().count(), 0, "nothing is left");
    home.run(&["agent", "add", &url, "--dry-run"]).ok();
    assert!(!home.file("agents/reviewer").exists());

    home.run(&["agent", "add", &url, "--yes"]).ok();
    assert!(home.read("heeler.yaml").contains("path: agents/reviewer/agent.yaml"));
    assert!(home.file("agents/reviewer/notify.sh").is_file());
    assert!(!home.file("agents/reviewer/link").exists());
    assert!(!home.file("agents/reviewer/.git").exists());
    let origin: serde_json::Value =
        serde_json::from_str(&home.read("agents/reviewer/heeler-agent.json")).unwrap();
    assert_eq!(
        (origin["url"].as_str(), origin["commit"].as_str().unwrap().len()),
        (Some(&*url), 40)
    );
    assert!(home.run(&["agent", "info", "reviewer"]).ok().contains("Reviews."));
    assert_eq!(home.run(&["trigger", "reviewer"]).ok(), "Fine.\n");
    let refused = home.run(&["agent", "add", &url, "--yes", "-f"]).fails(5);
    assert!(refused.contains("heeler agent remove reviewer"), "{refused}");

    let refused = home.run(&["agent", "remove", "reviewer"]).fails(5);
    assert!(refused.contains("--yes"), "{refused}");
    home.run(&["agent", "remove", "coder", "--yes"]).fails(4);
    home.run(&["agent", "remove", "reviewer", "--yes"]).ok();
    assert!(!home.read("heeler.yaml").contains("reviewer"));
    assert!(!home.file("agents/reviewer").exists());
    assert!(home.run(&["jobs"]).ok().contains("reviewer"), "its jobs stay");
    assert_eq!(home.run(&["trigger", "coder"]).ok(), "Done.\n");
}

#[test]
fn a_package_that_would_break_the_fleet_changes_nothing() {
    let home = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let before = home.read("heeler.yaml");
    home.write("bad/agent.yaml", "name: coder\nruntime: scripted\nscript: [{say: Again.}]\n");
    home.run(&["agent", "add", "./bad", "--yes"]).fails(2);
    home.write("bad/agent.yaml", "name: x\nno_such_key: 1\n");
    home.run(&["agent", "add", "./bad", "--yes"]).fails(2);
    home.write("empty/README.md", "");
    let refused = home.run(&["agent", "add", "./empty", "--yes"]).fails(4);
    assert!(refused.contains("no agent.yaml"), "{refused}");
    home.write("bad/agent.yaml", "name: yard\nruntime: scripted\nscript: [{say: Hi.}]\n");
    home.run(&["agent", "add", "./bad", "--yes", "--path", "../outside"]).fails(2);
    let refused = home.run(&["agent", "add", "reviewer"]).fails(2);
    assert!(refused.contains("owner/repo"), "{refused}");
    assert_eq!(home.read("heeler.yaml"), before);
    // Of two agents, one is removed and the other stays.
    home.run(&["agent", "add", "./bad", "--yes", "--path", "agents/here"]).ok();
    home.write("agents/here/workspace/notes", "mine");
    home.run(&["agent", "remove", "yard", "--yes", "--keep-workspace"]).ok();
    assert_eq!(home.read("agents/here/workspace/notes"), "mine");
    assert!(!home.file("agents/here/agent.yaml").exists());
}
