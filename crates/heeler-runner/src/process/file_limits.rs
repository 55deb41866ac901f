//! Limits of the files that an agent may use, by Landlock: the weaker level of `sandbox`.
//!
//! The kernel allows what a rule names and denies the rest. A rule covers everything below its path,
//! so nothing can be hidden below a directory that the agent writes; and to hide a path, every file
//! beside it and beside the directories above it gets a rule of its own. Names can be listed
//! everywhere. Start at [`AgentFileLimits`].

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::FileLimitSpec;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError,
};
use rustix::fs::{FileType, Mode, OFlags};
use thiserror::Error;

use super::git_folder::GitFolder;

/// Version of Landlock that is needed: without it, files could be emptied that cannot be written.
const NEEDED: ABI = ABI::V3;

/// Maximum number of rules. A directory above a hidden path needs one for each of its entries.
const RULES_MAX: usize = 20_000;

/// Devices that programs write. The user's permissions limit all others.
const WRITABLE_DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts"];

/// Reason that the files of an agent cannot be limited.
#[derive(Debug, Error)]
pub(super) enum FileLimitError {
    #[error(
        "Landlock does not hold an agent of root, which could load a module into the kernel: run the \
         fleet as another user, or set `sandbox: true`"
    )]
    Root,
    #[error(
        "this kernel cannot limit the files of an agent by Landlock: it needs Linux 6.2 or later with \
         Landlock switched on (`lsm=landlock,…`); set `sandbox: true`, or `sandbox: off` if the agent \
         may run without limits"
    )]
    Kernel(#[source] RulesetError),
    #[error(
        "Landlock cannot hide {hidden}, because the agent may write {above}, which contains it: give \
         the agent a working directory of its own, or set `sandbox: true`"
    )]
    Unhideable { hidden: Utf8PathBuf, above: Utf8PathBuf },
    #[error("{path} cannot be used; create it, or change `sandbox.write` in the config")]
    Missing {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} cannot be listed, so nothing in it can be hidden")]
    Unlisted {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "there are more than {RULES_MAX} files beside those that must be hidden: set `sandbox: true`"
    )]
    TooMany,
    #[error("a rule of Landlock cannot be made")]
    Rule(#[source] RulesetError),
}

/// Files that the agents of a run may use.
#[derive(Debug, Clone)]
pub(crate) struct AgentFileLimits {
    pub(crate) spec: FileLimitSpec,
    /// Canonical path.
    pub(crate) working_directory: Utf8PathBuf,
    /// Directory for temporary files, which is created.
    pub(crate) temporary: Utf8PathBuf,
    /// Claude's config directory, if the agent is Claude.
    pub(crate) claude_config: Option<Utf8PathBuf>,
    /// Directories of the run that the agent reads.
    pub(crate) readable: Vec<Utf8PathBuf>,
}

impl AgentFileLimits {
    /// Builds the rules, which a process then applies to itself.
    pub(super) fn build(&self) -> Result<RulesetCreated, FileLimitError> {
        if rustix::process::geteuid().is_root() {
            return Err(FileLimitError::Root);
        }
        self.build_rules()
    }

    fn build_rules(&self) -> Result<RulesetCreated, FileLimitError> {
        let writable = self.writable_paths()?;
        let hidden = self.hidden_paths();
        if let Some((path, above)) =
            hidden.iter().find_map(|path| Some((path, find_above(path, &writable)?)))
        {
            let (hidden, above) = (path.clone(), above.clone());
            return Err(FileLimitError::Unhideable { hidden, above });
        }
        let mut rules = RuleList { ruleset: create_ruleset()?, count: 0 };
        rules.allow_around(Utf8Path::new("/"), &hidden)?;
        for path in &self.readable {
            rules.allow(path, read_access())?;
        }
        for path in writable.iter().chain([&self.temporary]) {
            rules.allow(path, handled_access())?;
        }
        for path in WRITABLE_DEVICES {
            rules.allow(Utf8Path::new(path), read_access() | AccessFs::WriteFile)?;
        }
        Ok(rules.ruleset)
    }

    /// Returns canonical paths.
    fn writable_paths(&self) -> Result<Vec<Utf8PathBuf>, FileLimitError> {
        let mut paths = vec![self.working_directory.clone()];
        paths.extend(GitFolder::find(&self.working_directory).map(|git| git.common));
        for path in self.spec.writable.iter().chain(&self.claude_config) {
            let real = path.canonicalize_utf8();
            let missing = |source| FileLimitError::Missing { path: path.clone(), source };
            paths.push(real.map_err(missing)?);
        }
        Ok(paths)
    }

    /// Returns the canonical paths of those that exist, except below others.
    fn hidden_paths(&self) -> BTreeSet<Utf8PathBuf> {
        let real = self.spec.hidden.iter().filter_map(|path| path.canonicalize_utf8().ok());
        // Claude cannot work without its login, which it renews.
        let is_claude = |path: &Utf8PathBuf| {
            let config = self.claude_config.as_ref().and_then(|it| it.canonicalize_utf8().ok());
            config.is_some_and(|config| path.starts_with(config))
        };
        real.filter(|path| !is_claude(path)).collect()
    }
}

/// Returns the directory of a list that contains a path, or is it.
fn find_above<'p>(path: &Utf8Path, paths: &'p [Utf8PathBuf]) -> Option<&'p Utf8PathBuf> {
    paths.iter().find(|above| path.starts_with(above))
}

/// Actions that the kernel denies without a rule. Listing a directory is not one of them.
fn handled_access() -> BitFlags<AccessFs> {
    AccessFs::from_all(NEEDED) & !BitFlags::from(AccessFs::ReadDir)
}

fn read_access() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::Execute
}

fn create_ruleset() -> Result<RulesetCreated, FileLimitError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset
        .handle_access(handled_access())
        .and_then(Ruleset::create)
        .map_err(FileLimitError::Kernel)
}

/// Returns the reason that this kernel cannot limit files, if it cannot.
pub fn landlock_unavailable_reason() -> Option<String> {
    create_ruleset().err().map(|error| error.to_string())
}

/// Rules of one run.
struct RuleList {
    ruleset: RulesetCreated,
    count: usize,
}

impl RuleList {
    /// Lets the agent read everything below a directory, except the hidden paths.
    fn allow_around(
        &mut self,
        folder: &Utf8Path,
        hidden: &BTreeSet<Utf8PathBuf>,
    ) -> Result<(), FileLimitError> {
        let unlisted = |source| FileLimitError::Unlisted { path: folder.to_owned(), source };
        for entry in folder.read_dir().map_err(unlisted)? {
            let entry = entry.map_err(unlisted)?;
            // A name that is not text is not in the config, so nothing in it is hidden; but it cannot
            // be compared either.
            let Ok(path) = Utf8PathBuf::from_path_buf(entry.path()) else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            // What a link leads to has a rule of its own, or is hidden.
            if kind.is_symlink() || hidden.contains(&path) {
                continue;
            }
            match hidden.iter().any(|hidden| hidden.starts_with(&path)) {
                true => self.allow_around(&path, hidden)?,
                false => self.allow(&path, read_access())?,
            }
        }
        Ok(())
    }

    fn allow(&mut self, path: &Utf8Path, access: BitFlags<AccessFs>) -> Result<(), FileLimitError> {
        self.count += 1;
        if self.count > RULES_MAX {
            return Err(FileLimitError::TooMany);
        }
        // A file that was removed meanwhile, or that cannot be reached, needs no rule.
        let Ok((file, kind)) = open_path(path) else { return Ok(()) };
        let access = match kind {
            FileType::Directory => access,
            // A rule for a file must not have rights of directories.
            _ => access & AccessFs::from_file(NEEDED),
        };
        // The kernel limits no files of other kinds, such as sockets.
        (&mut self.ruleset)
            .add_rule(PathBeneath::new(file, access))
            .map(|_| ())
            .map_err(FileLimitError::Rule)
    }
}

/// Opens a path for a rule, without following a link.
fn open_path(path: &Utf8Path) -> io::Result<(OwnedFd, FileType)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path.as_std_path(), flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    match kind {
        FileType::Symlink => Err(io::ErrorKind::InvalidInput.into()),
        kind => Ok((file, kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct LimitFixture {
        _temp: tempfile::TempDir,
        root: Utf8PathBuf,
    }

    impl LimitFixture {
        fn new() -> LimitFixture {
            let temp = tempfile::tempdir().unwrap();
            let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
            for folder in ["work", "home/.ssh", "home/src", "state/runs/1/tmp"] {
                std::fs::create_dir_all(root.join(folder)).unwrap();
            }
            for file in ["work/own", "home/.ssh/key", "home/src/code", "home/notes", "state/db"] {
                std::fs::write(root.join(file), file).unwrap();
            }
            LimitFixture { _temp: temp, root }
        }

        fn limits(&self) -> AgentFileLimits {
            let hidden = ["home/.ssh", "state", "home/.netrc"].map(|it| self.root.join(it));
            AgentFileLimits {
                spec: FileLimitSpec { writable: Vec::new(), hidden: hidden.into() },
                working_directory: self.root.join("work"),
                temporary: self.root.join("state/runs/1/tmp"),
                claude_config: None,
                readable: Vec::new(),
            }
        }
    }

    /// Applies the rules to a thread, and returns which of the paths it may read and write.
    fn access_of(rules: RulesetCreated, paths: Vec<Utf8PathBuf>) -> Vec<(bool, bool)> {
        let limited = std::thread::spawn(move || {
            rules.restrict_self().unwrap();
            let look = |path: &Utf8PathBuf| {
                let write = std::fs::OpenOptions::new().append(true).open(path);
                (std::fs::read(path).is_ok(), write.is_ok())
            };
            paths.iter().map(look).collect()
        });
        limited.join().unwrap()
    }

    #[test]
    fn an_agent_reads_what_is_not_hidden_and_writes_its_own_directories() {
        let fixture = LimitFixture::new();
        let link = fixture.root.join("home/src/link");
        std::os::unix::fs::symlink(fixture.root.join("home/.ssh/key"), link).unwrap();
        std::fs::write(fixture.root.join("state/runs/1/tmp/t"), "").unwrap();
        let rules = fixture.limits().build_rules().unwrap();
        let cases = [
            ("work/own", (true, true)),
            ("state/runs/1/tmp/t", (true, true)),
            ("home/src/code", (true, false)),
            ("home/notes", (true, false)),
            ("home/.ssh/key", (false, false)),
            ("home/src/link", (false, false)),
            ("state/db", (false, false)),
        ];
        let paths = cases.map(|(path, _)| fixture.root.join(path)).to_vec();
        let expected: Vec<(bool, bool)> = cases.map(|(_, access)| access).to_vec();
        assert_eq!(access_of(rules, paths), expected);
    }

    #[test]
    fn what_cannot_be_hidden_is_refused_with_the_cure() {
        let fixture = LimitFixture::new();
        let mut limits = fixture.limits();
        limits.working_directory = fixture.root.join("home");
        let error = limits.build_rules().unwrap_err().to_string();
        assert!(error.contains("cannot hide") && error.contains("home/.ssh"), "{error}");
        let mut limits = fixture.limits();
        limits.spec.writable.push(fixture.root.join("none"));
        let error = limits.build_rules().unwrap_err().to_string();
        assert!(error.contains("none cannot be used"), "{error}");
    }

    #[test]
    fn an_agent_of_root_is_refused() {
        if rustix::process::geteuid().is_root() {
            let error = LimitFixture::new().limits().build().unwrap_err();
            assert!(matches!(error, FileLimitError::Root), "{error}");
        }
    }
}
