//! Config from text to checked types, as the binary sees it.
//!
//! Expected renderings are updated by `UPDATE_EXPECT=1 cargo test -p heeler-config --test config`
//! (in one process: nextest would write a file from several at once).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod any_text;
mod changes;
mod compose;
mod examples;
mod faults;
mod goldens;
mod meaning;
mod notify;
mod policy;
mod programs;
mod properties;
mod rights;
mod templates;
mod values;
mod variables;
mod yaml_edit;

use std::collections::BTreeMap;
use std::io;

use camino::Utf8Path;
use expect_test::Expect;
use heeler_config::{AgentConfig, ConfigFaults, LoadedConfig, RenderStyle, load};

/// Files by path; the first is the fleet file.
pub type Files<'a> = &'a [(&'a str, &'a str)];

/// Loads a set of files that live in memory.
pub fn load_files(files: Files<'_>, env: &[(&str, &str)]) -> Result<LoadedConfig, ConfigFaults> {
    let read = |path: &Utf8Path| {
        let found = files.iter().find(|(name, _)| Utf8Path::new("/fleet").join(name) == path);
        match found {
            Some((_, text)) => Ok((*text).to_owned()),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    };
    let env: BTreeMap<String, String> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    load(&Utf8Path::new("/fleet").join(files[0].0), &read, &env)
}

/// Renders what is wrong with a set of files, or `ok`.
pub fn render(files: Files<'_>, env: &[(&str, &str)]) -> String {
    match load_files(files, env) {
        Ok(loaded) if loaded.warnings.is_empty() => "ok\n".to_owned(),
        Ok(loaded) => {
            format!("{}\n", loaded.warnings.render(RenderStyle::Plain, Utf8Path::new("/fleet")))
        }
        Err(faults) => format!("{}\n", faults.render(RenderStyle::Plain, Utf8Path::new("/fleet"))),
    }
}

/// Checks what is said about a fleet file.
#[track_caller]
pub fn check(yaml: &str, expect: Expect) {
    expect.assert_eq(&render(&[("heeler.yaml", yaml)], &[]));
}

/// Checks what is said about the keys of one scripted agent.
#[track_caller]
pub fn check_agent(keys: &str, expect: Expect) {
    let agent = format!("name: a\n{keys}");
    expect.assert_eq(&render(&[("heeler.yaml", "agents: [a.yaml]"), ("a.yaml", &agent)], &[]));
}

/// Loads one agent from its keys.
#[track_caller]
pub fn agent(keys: &str) -> AgentConfig {
    let text = format!("name: a\n{keys}");
    let loaded = load_files(&[("heeler.yaml", "agents: [a.yaml]"), ("a.yaml", &text)], &[]);
    loaded.unwrap().agents.remove(0)
}
