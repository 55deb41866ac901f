//! Configs that people have: the examples of the documentation and a herdctl project.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use expect_test::{expect, expect_file};
use heeler_config::{ConfigFaults, LoadedConfig, RenderStyle, load};

fn folder(name: &str) -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/fixtures").join(name)
}

fn load_fixture(
    folder: &Utf8Path,
    file: &str,
    env: &[(&str, &str)],
) -> Result<LoadedConfig, ConfigFaults> {
    let env: BTreeMap<String, String> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    load(&folder.join(file), &|path| std::fs::read_to_string(path), &env)
}

/// Shows a config without what differs between machines.
fn shown(loaded: &LoadedConfig, folder: &Utf8Path) -> String {
    let text = serde_json::to_string_pretty(&loaded.show()).unwrap();
    format!("{}\n", text.replace(folder.parent().unwrap().as_str(), ""))
}

#[test]
fn the_examples_of_the_sessions_page_load_and_only_keys_without_effect_are_warned_about() {
    let folder = folder("seed");
    let loaded = load_fixture(&folder, "heeler.yaml", &[]).unwrap();
    let warnings: Vec<&str> =
        loaded.warnings.list.iter().map(|fault| fault.message.as_str()).collect();
    expect![""].assert_eq(&warnings.join("\n"));
    let sessions: Vec<String> = loaded
        .agents
        .iter()
        .map(|agent| {
            let schedules: Vec<String> = agent
                .schedules
                .iter()
                .map(|schedule| {
                    let limit = schedule.timeout.map(|limit| limit.to_string());
                    let expiry = schedule.session.expires_after.map(|expiry| expiry.to_string());
                    let limit = limit.unwrap_or_default();
                    format!("{} {} [{limit}] {expiry:?}", schedule.name, schedule.session.mode)
                })
                .collect();
            format!("{}: {} {schedules:?}", agent.name, agent.session.mode)
        })
        .collect();
    expect![[r#"
        stateless-coder: fresh_per_job ["issue-check fresh_per_job [30m] None"]
        research-agent: persistent ["daily-analysis persistent [] Some(\"1d\")"]
        support-bot: per_channel []
        hybrid-agent: persistent ["continuous-work persistent [] Some(\"1h\")", "fresh-review fresh_per_job [] None"]
        project-support: per_channel []"#]].assert_eq(&sessions.join("\n"));
}

#[test]
fn a_herdctl_project_loads_as_it_stands() {
    let folder = folder("herdctl");
    let env = [("HOOK_URL", "https://hooks.example.com/T0/x"), ("HOOK_TOKEN", "s3cr3t")];
    let loaded = load_fixture(&folder, "herdctl.yaml", &env).unwrap();
    let warnings = loaded.warnings.render(RenderStyle::Plain, &folder);
    expect![[r#"
        warning: `plugins.skipMcpDiscovery` has no effect yet
          --> agents/janitor.yaml:45:5
           |
        45 |     skipMcpDiscovery: true
           |     ^^^^^^^^^^^^^^^^ accepted, not used

        warning: `work_source` needs access to GitHub
          --> agents/janitor.yaml:48:3
           |
        48 |   type: github
           |   ^^^^ it has no effect
           |
           = help: set `github` in the fleet file, with `token_env` or `app`, and `repos`

        warning: `identity.role` has no effect yet
         --> agents/helper.yaml:4:3
          |
        4 |   role: support
          |   ^^^^ accepted, not used

        warning: unknown key `made_up_by_a_newer_herdctl` in attachments
          --> agents/helper.yaml:41:7
           |
        41 |       made_up_by_a_newer_herdctl: true
           |       ^^^^^^^^^^^^^^^^^^^^^^^^^^
           |
           = help: known keys: enabled, max_file_size_mb, max_files_per_message, allowed_types, download_dir, cleanup_after_processing"#]].assert_eq(&warnings);
    expect_file!["fixtures/herdctl/shown.json"].assert_eq(&shown(&loaded, &folder));
}

#[test]
fn a_herdctl_project_without_its_variables_says_which() {
    let folder = folder("herdctl");
    let faults = load_fixture(&folder, "herdctl.yaml", &[]).unwrap_err();
    let messages: Vec<String> = faults
        .list
        .iter()
        .filter(|fault| fault.message.contains("variable"))
        .map(|fault| {
            format!("{}:{} {}", fault.path().file_name().unwrap(), fault.line(), fault.message)
        })
        .collect();
    expect![[r#"
        janitor.yaml:23 the variable `HOOK_URL` is not set
        janitor.yaml:25 the variable `HOOK_TOKEN` is not set
        janitor.yaml:38 the variable `HOOK_TOKEN` is not set"#]]
    .assert_eq(&messages.join("\n"));
}
