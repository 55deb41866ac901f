//! What must hold for any text at all; the fuzz target uses it too.

use std::collections::BTreeMap;
use std::io;

use camino::Utf8Path;
use heeler_config::{RenderStyle, load, parse_dotenv, templates};

/// Loads a fleet file and one agent file: it succeeds, or it says what is wrong and where.
pub(crate) fn check_loader(fleet: &str, agent: &str, dotenv: &str) {
    let read = |path: &Utf8Path| match path.file_name() {
        Some("heeler.yaml") => Ok(fleet.to_owned()),
        Some("a.yaml") => Ok(agent.to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    let (pairs, bad_lines) = parse_dotenv(dotenv);
    assert!(pairs.len() + bad_lines.len() <= dotenv.lines().count());
    let env: BTreeMap<String, String> = pairs.into_iter().collect();
    let faults = match load(Utf8Path::new("/fleet/heeler.yaml"), &read, &env) {
        Ok(loaded) => {
            drop(loaded.show());
            loaded.warnings
        }
        Err(faults) => {
            assert!(!faults.is_empty(), "refused without a reason");
            faults
        }
    };
    for fault in &faults.list {
        assert!(fault.line() >= 1 && fault.column() >= 1);
    }
    assert_eq!(
        faults.render(RenderStyle::Coloured, Utf8Path::new("/fleet")).is_empty(),
        faults.is_empty()
    );
}

/// Adds an agent to a fleet file: the file holds it and stays a file that parses, or is refused.
pub(crate) fn check_add_agent(text: &str) {
    let Ok(once) = templates::add_agent(text, "agents/new.yaml") else { return };
    assert!(once.contains("agents/new.yaml"));
    let twice = templates::add_agent(&once, "agents/newer.yaml");
    assert!(twice.is_ok(), "what was added cannot be added to:\n{once}");
}
