//! Reading of the files that decide what a fleet runs, with a record of exactly what was read.
//!
//! Start at [`ConfigFileRecorder`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::FILE_BYTES_MAX;
use heeler_config::workflow::{SKILL_FILES_MAX, WORKFLOW_FILES_MAX};
use heeler_model::config_change::{ConfigContent, ConfigFileContent, ConfigFileKind};
use rustix::fs::OFlags;

/// Depth of folders in which workflows are searched.
const WORKFLOW_DEPTH_MAX: usize = 8;

/// Largest program whose content is compared. A larger one counts as unreadable.
const PROGRAM_BYTES_MAX: u64 = 64 << 20;

/// Reads files for one load of a config. A file that is read twice has one content, so that the
/// record covers exactly what was loaded.
#[derive(Debug, Default)]
pub struct ConfigFileRecorder {
    read: RefCell<BTreeMap<Utf8PathBuf, RecordedConfigFile>>,
    drafts: ConfigDrafts,
}

/// Texts that are about to be written, by the real path of the file. `None` stands for a file that is
/// about to be removed.
pub type ConfigDrafts = BTreeMap<Utf8PathBuf, Option<String>>;

#[derive(Debug)]
struct RecordedConfigFile {
    content: ConfigFileContent,
    /// The text as the loader sees it.
    text: Result<String, (io::ErrorKind, String)>,
}

impl ConfigFileRecorder {
    /// Creates a recorder that reads these texts in place of the files, by their real paths.
    pub fn with_drafts(drafts: ConfigDrafts) -> ConfigFileRecorder {
        ConfigFileRecorder { drafts, ..ConfigFileRecorder::default() }
    }

    /// Reads a text file.
    pub fn read_text(&self, path: &Utf8Path) -> io::Result<String> {
        self.read_as(ConfigFileKind::Text, path)
    }

    /// Reads a text file whose content is never shown.
    pub fn read_secret(&self, path: &Utf8Path) -> io::Result<String> {
        self.read_as(ConfigFileKind::Secret, path)
    }

    fn read_as(&self, kind: ConfigFileKind, path: &Utf8Path) -> io::Result<String> {
        let mut read = self.read.borrow_mut();
        let file = read.entry(normalize(path)).or_insert_with(|| match self.draft(path) {
            Some(Some(draft)) => RecordedConfigFile::new(kind, Ok(draft.as_bytes().to_vec())),
            Some(None) => RecordedConfigFile::new(kind, Err(io::ErrorKind::NotFound.into())),
            None => RecordedConfigFile::new(kind, read_bytes(path)),
        });
        file.text.clone().map_err(|(kind, message)| io::Error::new(kind, message))
    }

    fn draft(&self, path: &Utf8Path) -> Option<&Option<String>> {
        if self.drafts.is_empty() {
            return None;
        }
        self.drafts.get(&real_path(path))
    }

    /// Records a file that decides what runs but is not loaded: a program that the config names, or
    /// a file that a command or Claude would find if it existed.
    pub fn add_file(&self, kind: ConfigFileKind, path: &Utf8Path) {
        // Only the record counts: the file need not exist.
        let _text = self.read_as(kind, path);
    }

    /// Lists the workflow files of a folder.
    pub fn list_workflows(&self, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
        let mut files = list_workflow_files(folder);
        files.retain(|file| self.draft(file) != Some(&None));
        let real = real_path(folder);
        for (path, _) in self.drafts.iter().filter(|(_, text)| text.is_some()) {
            // A draft is a file of the folder itself.
            let Some(name) = path.strip_prefix(&real).ok().filter(|name| is_workflow_file(name))
            else {
                continue;
            };
            let file = folder.join(name);
            if let Err(place) = files.binary_search(&file) {
                files.insert(place, file);
            }
        }
        let content = folder_content(ConfigFileKind::WorkflowFolder, &files);
        let text = Err((io::ErrorKind::IsADirectory, "it is a folder".to_owned()));
        self.read.borrow_mut().insert(normalize(folder), RecordedConfigFile { content, text });
        files
    }

    /// Lists the files of a skill.
    pub fn list_skill(&self, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
        let files = list_skill_files(folder);
        let content = folder_content(ConfigFileKind::SkillFolder, &files);
        let text = Err((io::ErrorKind::IsADirectory, "it is a folder".to_owned()));
        self.read.borrow_mut().insert(normalize(folder), RecordedConfigFile { content, text });
        files
    }

    /// Returns the content of all files that were read.
    pub fn into_content(self) -> ConfigContent {
        let files = self.read.into_inner().into_iter();
        ConfigContent { files: files.map(|(path, file)| (path, file.content)).collect() }
    }
}

impl RecordedConfigFile {
    fn new(kind: ConfigFileKind, bytes: io::Result<Vec<u8>>) -> RecordedConfigFile {
        let content = file_content(kind, &bytes);
        let text = bytes.and_then(into_text);
        let text = text.map_err(|error| (error.kind(), error.to_string()));
        RecordedConfigFile { content, text }
    }
}

/// Reads the files of a content again.
pub(crate) fn read_content_again(known: &ConfigContent) -> ConfigContent {
    let read = |(path, file): (&Utf8PathBuf, &ConfigFileContent)| {
        let content = match file.kind {
            kind @ ConfigFileKind::WorkflowFolder => {
                folder_content(kind, &list_workflow_files(path))
            }
            kind @ ConfigFileKind::SkillFolder => folder_content(kind, &list_skill_files(path)),
            kind => file_content(kind, &read_bytes(path)),
        };
        (path.clone(), content)
    };
    ConfigContent { files: known.files.iter().map(read).collect() }
}

/// State of files by which a change is noticed without reading them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigFileStamps(BTreeMap<Utf8PathBuf, Option<ConfigFileStamp>>);

/// State of one file. An agent cannot set the time of the last change.
#[derive(Debug, PartialEq, Eq)]
enum ConfigFileStamp {
    File { device: u64, inode: u64, size: u64, changed_at: (i64, i64) },
    WorkflowFolder { files: Vec<Utf8PathBuf> },
}

impl ConfigFileStamps {
    /// Returns the state of the files of two contents as they are now.
    pub(crate) fn of_files(one: &ConfigContent, other: &ConfigContent) -> ConfigFileStamps {
        let files = one.files.iter().chain(&other.files);
        ConfigFileStamps(files.map(|(path, file)| (path.clone(), stamp(path, file.kind))).collect())
    }
}

fn stamp(path: &Utf8Path, kind: ConfigFileKind) -> Option<ConfigFileStamp> {
    if kind == ConfigFileKind::WorkflowFolder {
        return Some(ConfigFileStamp::WorkflowFolder { files: list_workflow_files(path) });
    }
    let found = path.metadata().ok()?;
    Some(ConfigFileStamp::File {
        device: found.dev(),
        inode: found.ino(),
        size: found.size(),
        changed_at: (found.ctime(), found.ctime_nsec()),
    })
}

/// Returns the content of one file that is executed.
pub(crate) fn program_content(path: &Utf8Path) -> ConfigFileContent {
    file_content_of_kind(ConfigFileKind::Text, path)
}

/// Returns the content of one file.
pub(crate) fn file_content_of_kind(kind: ConfigFileKind, path: &Utf8Path) -> ConfigFileContent {
    file_content(kind, &read_bytes(path))
}

/// Resolves the links in a path, of which the last parts need not exist yet.
fn real_path(path: &Utf8Path) -> Utf8PathBuf {
    let real = path.ancestors().find_map(|above| {
        let real = above.canonicalize_utf8().ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    });
    normalize(&real.unwrap_or_else(|| path.to_owned()))
}

/// Removes `.` from a path, so that a file has one name in a record.
pub(crate) fn normalize(path: &Utf8Path) -> Utf8PathBuf {
    path.components().collect()
}

fn file_content(kind: ConfigFileKind, bytes: &io::Result<Vec<u8>>) -> ConfigFileContent {
    match bytes {
        Ok(bytes) => ConfigFileContent::of_bytes(kind, bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => ConfigFileContent::absent(kind),
        Err(error) => ConfigFileContent::unreadable(kind, &error.kind().to_string()),
    }
}

fn folder_content(kind: ConfigFileKind, files: &[Utf8PathBuf]) -> ConfigFileContent {
    let names: String = files.iter().map(|file| format!("{file}\n")).collect();
    ConfigFileContent::of_bytes(kind, names.as_bytes())
}

/// Reads a file, which an agent may have made: a pipe, a device or a very large file is an error, so
/// that reading never blocks.
fn read_bytes(path: &Utf8Path) -> io::Result<Vec<u8>> {
    // A pipe would block, and a terminal could become the controlling one.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    // Checked on the open file: the path may be replaced between two calls.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // One byte more tells a file of exactly this size from a larger one.
    file.take(PROGRAM_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > PROGRAM_BYTES_MAX {
        false => Ok(bytes),
        true => Err(too_large(PROGRAM_BYTES_MAX)),
    }
}

fn into_text(bytes: Vec<u8>) -> io::Result<String> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(too_large(FILE_BYTES_MAX as u64));
    }
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

fn too_large(limit: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {limit} bytes"))
}

/// Lists the files of a workflow folder, sorted. A missing or unreadable folder has none.
pub fn list_workflow_files(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    add_workflow_files(folder, 0, &mut found);
    found.sort();
    found
}

fn add_workflow_files(folder: &Utf8Path, depth: usize, found: &mut Vec<Utf8PathBuf>) {
    // One unreadable folder must not hide the others.
    let Ok(entries) = folder.read_dir_utf8() else { return };
    for entry in entries.filter_map(Result::ok) {
        let (path, name) = (entry.path(), entry.file_name());
        // One file more than allowed is kept, so that the loader reports the excess.
        if found.len() > WORKFLOW_FILES_MAX || name.starts_with('.') {
            continue;
        }
        // Do not follow a link to a folder: it may lead back here.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // Prompts and skills are parts of workflows, and may hold YAML that is no workflow.
        if is_folder && depth < WORKFLOW_DEPTH_MAX && !["prompts", "skills"].contains(&name) {
            add_workflow_files(path, depth + 1, found);
        }
        if !is_folder && has_yaml_extension(path) {
            found.push(path.to_owned());
        }
    }
}

fn has_yaml_extension(path: &Utf8Path) -> bool {
    matches!(path.extension(), Some("yaml" | "yml"))
}

/// Returns true if a path below the folder of workflows is a workflow file directly in it.
fn is_workflow_file(path: &Utf8Path) -> bool {
    path.components().count() == 1 && has_yaml_extension(path)
}

/// Lists the files of a skill, sorted. Names that begin with a dot are left out.
pub fn list_skill_files(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    add_skill_files(folder, 0, &mut found);
    found.sort();
    found
}

fn add_skill_files(folder: &Utf8Path, depth: usize, found: &mut Vec<Utf8PathBuf>) {
    let Ok(entries) = folder.read_dir_utf8() else { return };
    for entry in entries.filter_map(Result::ok) {
        // `SKILL.md` and one file more than allowed, so that the loader reports the excess.
        if found.len() > SKILL_FILES_MAX + 1 || entry.file_name().starts_with('.') {
            continue;
        }
        // Do not follow a link to a folder: it may lead back here.
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true if depth < WORKFLOW_DEPTH_MAX => add_skill_files(entry.path(), depth + 1, found),
            true => {}
            false => found.push(entry.path().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_what_was_read_first() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        let (file, missing) = (root.join("a.yaml"), root.join("b.yaml"));
        std::fs::write(&file, "one").unwrap();
        let recorder = ConfigFileRecorder::default();
        assert_eq!(recorder.read_text(&file).unwrap(), "one");
        // An agent changes the file between two reads of one load.
        std::fs::write(&file, "two").unwrap();
        assert_eq!(recorder.read_text(&root.join("./a.yaml")).unwrap(), "one");
        assert_eq!(recorder.read_text(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        let content = recorder.into_content();
        assert_eq!(content.files.len(), 2);
        let again = read_content_again(&content);
        assert!(!content.covers(&again), "the change is noticed");
        std::fs::write(&file, "one").unwrap();
        assert!(content.covers(&read_content_again(&content)));
        std::fs::write(&missing, "").unwrap();
        assert!(!content.covers(&read_content_again(&content)), "a new file is noticed");
    }

    #[test]
    fn drafts_are_files_that_come_and_go_also_behind_a_link() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let (real, link) = (root.join("real/workflows"), root.join("link"));
        std::fs::create_dir_all(&real).unwrap();
        std::os::unix::fs::symlink(root.join("real"), &link).unwrap();
        std::fs::write(real.join("old.yaml"), "old").unwrap();
        let drafts = [
            (real.join("new.yaml"), Some("new".to_owned())),
            (real.join("old.yaml"), None),
            (root.join("elsewhere.yaml"), Some(String::new())),
            (root.join("real/none/new.yaml"), Some("there".to_owned())),
        ];
        let recorder = ConfigFileRecorder::with_drafts(drafts.into());
        let folder = link.join("workflows");
        assert_eq!(recorder.list_workflows(&folder), [folder.join("new.yaml")]);
        assert_eq!(recorder.read_text(&folder.join("new.yaml")).unwrap(), "new");
        let gone = recorder.read_text(&folder.join("old.yaml")).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        let none = link.join("none");
        assert_eq!(recorder.list_workflows(&none), [none.join("new.yaml")]);
        assert_eq!(recorder.read_text(&none.join("new.yaml")).unwrap(), "there");
    }

    #[test]
    fn a_new_workflow_is_a_change_of_its_folder() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let recorder = ConfigFileRecorder::default();
        assert_eq!(recorder.list_workflows(folder), Vec::<Utf8PathBuf>::new());
        let content = recorder.into_content();
        std::fs::write(folder.join("notes.txt"), "").unwrap();
        assert!(content.covers(&read_content_again(&content)), "it is no workflow");
        std::fs::write(folder.join("new.yaml"), "").unwrap();
        assert!(!content.covers(&read_content_again(&content)));
    }
}
