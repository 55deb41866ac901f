//! Commands that an agent itself understands: Claude's own, and the commands and skills in its
//! folders. They are offered in the `/` menu. Start at [`find_agent_commands`].

use std::collections::BTreeMap;
use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_chat::{AgentSlashCommand, COMMANDS};
use heeler_config::{AgentConfig, RuntimeConfig};

/// Claude's own commands that have an effect outside of its own terminal.
const CLAUDE_COMMANDS: [(&str, &str); 5] = [
    ("compact", "replace the conversation so far by a summary"),
    ("context", "show what fills the context"),
    ("init", "write a CLAUDE.md for this folder"),
    ("code-review", "review the changes of this branch"),
    ("security-review", "review the changes of this branch for security"),
];

/// Most commands of a folder; further ones are not offered.
const FOLDER_COMMANDS_MAX: usize = 200;
/// Deepest folder of commands.
const FOLDER_DEPTH_MAX: usize = 4;
/// Bytes of a file that are searched for its description.
const DESCRIPTION_BYTES_MAX: u64 = 4096;
/// Characters of a name and of a description.
const NAME_CHARS_MAX: usize = 64;
const DESCRIPTION_CHARS_MAX: usize = 100;

/// Returns the commands of an agent, sorted, without those that have the name of a command of ours.
pub(crate) fn find_agent_commands(
    agent: &AgentConfig,
    home: Option<&str>,
) -> Vec<AgentSlashCommand> {
    if !matches!(agent.runtime, RuntimeConfig::Sdk) {
        return Vec::new();
    }
    let mut found: BTreeMap<String, String> = CLAUDE_COMMANDS
        .iter()
        .map(|(name, about)| ((*name).to_owned(), (*about).to_owned()))
        .collect();
    // The project's own files win over the person's, as in Claude.
    let folders = home.map(Utf8Path::new).into_iter().chain([agent.working_directory.as_path()]);
    for claude in folders.map(|folder| folder.join(".claude")) {
        add_commands(&claude.join("commands"), FOLDER_DEPTH_MAX, &mut found);
        add_skills(&claude.join("skills"), &mut found);
    }
    let is_ours = |name: &str| COMMANDS.iter().any(|(own, ..)| *own == name);
    let to_command = |(name, about)| AgentSlashCommand { name, about };
    found.into_iter().filter(|(name, _)| !is_ours(name)).map(to_command).collect()
}

fn add_commands(folder: &Utf8Path, depth: usize, found: &mut BTreeMap<String, String>) {
    for path in entries(folder) {
        if path.is_dir() && depth > 1 {
            add_commands(&path, depth - 1, found);
        } else if path.extension() == Some("md")
            && let Some(name) = path.file_stem()
        {
            add_command(name, &path, found);
        }
    }
}

fn add_skills(folder: &Utf8Path, found: &mut BTreeMap<String, String>) {
    for path in entries(folder) {
        let file = path.join("SKILL.md");
        if file.is_file()
            && let Some(name) = path.file_name()
        {
            add_command(name, &file, found);
        }
    }
}

fn entries(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
    entries.take(FOLDER_COMMANDS_MAX).map(camino::Utf8DirEntry::into_path).collect()
}

fn add_command(name: &str, file: &Utf8Path, found: &mut BTreeMap<String, String>) {
    // The name is typed as a word, so a file with another name is no command.
    let is_word = |c: char| c.is_alphanumeric() || "-_:.".contains(c);
    let is_name = !name.is_empty() && name.chars().all(is_word);
    if is_name && name.chars().count() <= NAME_CHARS_MAX {
        found.insert(name.to_owned(), read_description(file).unwrap_or_default());
    }
}

/// Returns the description in the head of a file, or else its first line.
fn read_description(file: &Utf8Path) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(file).ok().filter(|_| file.is_file())?;
    // A cut inside of a character leaves no text, which is only a missing description.
    file.take(DESCRIPTION_BYTES_MAX).read_to_string(&mut text).ok();
    let named = text.lines().find_map(|line| line.strip_prefix("description:"));
    let first = || {
        text.lines().map(|line| line.trim_start_matches('#')).find(|line| {
            let line = line.trim();
            !line.is_empty() && line != "---"
        })
    };
    let about = named.or_else(first)?.trim().trim_matches(['"', '\'']);
    Some(about.chars().take(DESCRIPTION_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_skills_of_folders_are_found_with_their_descriptions() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        let files = [
            ("commands/fix.md", "---\ndescription: \"Fix an issue\"\n---\nDo it"),
            ("commands/db/reset.md", "# Reset the database\n"),
            ("commands/bad name.md", "x"),
            ("commands/notes.txt", "x"),
            ("skills/deploy/SKILL.md", "---\nname: deploy\ndescription: Ship it\n---"),
            ("skills/empty/README.md", "x"),
        ];
        for (path, text) in files {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), text).unwrap();
        }
        let mut found = BTreeMap::new();
        add_commands(&root.join("commands"), FOLDER_DEPTH_MAX, &mut found);
        add_skills(&root.join("skills"), &mut found);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, about)| (name.as_str(), about.as_str())).collect();
        assert_eq!(
            found,
            [("deploy", "Ship it"), ("fix", "Fix an issue"), ("reset", "Reset the database")]
        );
    }
}
