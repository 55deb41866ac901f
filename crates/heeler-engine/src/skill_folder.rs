//! Files of skills, in the folder of the run whose agent may read them.
//!
//! Each run has copies of its own, so an agent that changes them harms only itself. Start at
//! [`place_skills`].

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use heeler_config::workflow::SkillFile;
use heeler_model::run::{AgentLaunchSpec, RuntimeLaunchSpec};
use heeler_transcript::{DiskError, OsDisk, create_folder};

use crate::fault::{self, FaultPoint};

/// Name of the folder in a run's folder.
const FOLDER: &str = "skills";

/// Folder of a skill whose files may be executed.
const SCRIPTS: &str = "scripts";

/// Placed files of skills.
#[derive(Debug)]
pub(crate) struct SkillFolder {
    path: Utf8PathBuf,
    /// One line per skill.
    note: String,
}

/// Writes the files of skills into a run's folder, read-only. Returns `None` if there are none.
pub(crate) fn place_skills(
    run_folder: &Utf8Path,
    files: &[SkillFile],
) -> Result<Option<SkillFolder>, DiskError> {
    if files.is_empty() {
        return Ok(None);
    }
    let path = run_folder.join(FOLDER);
    for file in files {
        let skill = path.join(&file.skill);
        let target = skill.join(&file.path);
        let parts = Utf8Path::new(&file.skill).join(&file.path);
        // The definition comes from the database, which may be damaged.
        if !parts.components().all(|part| matches!(part, Utf8Component::Normal(_))) {
            let source = io::Error::other("it leads out of the skill's folder");
            return Err(DiskError { action: "write", path: target, source });
        }
        create_folder(&OsDisk, target.parent().unwrap_or(&skill))?;
        let mode = if file.path.starts_with(SCRIPTS) { 0o500 } else { 0o400 };
        // Not synced: without a spec, which follows, nobody reads them.
        let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(&target);
        written
            .and_then(|mut written| written.write_all(file.text.as_bytes()))
            .map_err(|source| DiskError { action: "write", path: target.clone(), source })?;
    }
    fault::reach(FaultPoint::SkillsPlaced);
    let note = note(&path, files);
    Ok(Some(SkillFolder { path, note }))
}

/// Returns one line per skill, with its folder and its files.
fn note(path: &Utf8Path, files: &[SkillFile]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for same in files.chunk_by(|one, other| one.skill == other.skill) {
        let names: Vec<&str> = same.iter().map(|file| file.path.as_str()).collect();
        let folder = path.join(&same[0].skill);
        lines.push(format!(
            "The files of the skill `{}` are in {folder} (read-only): {}",
            same[0].skill,
            names.join(", ")
        ));
    }
    lines.join("\n")
}

impl SkillFolder {
    /// Tells the agent where the files are, and lets its tools read them.
    pub(crate) fn add_to(self, brief: &mut AgentLaunchSpec) {
        brief.prompt.push_str("\n\n");
        brief.prompt.push_str(&self.note);
        if let RuntimeLaunchSpec::Claude(claude) = &mut brief.work {
            claude.readable.push(self.path);
        }
    }
}
