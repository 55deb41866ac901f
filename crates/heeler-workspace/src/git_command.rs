//! Runs git: with a clean environment, Heeler's own config, a time limit, and no child that
//! outlives it. Start at [`GitCommand`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use camino::Utf8Path;
use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;

/// Time limit of one git command.
pub const GIT_TIME_MAX: Duration = Duration::from_secs(600);

/// Limit on the kept bytes of git's standard error.
const STDERR_BYTES_MAX: u64 = 4096;

/// Reason that a git command failed.
#[derive(Debug, Error)]
pub enum GitError {
    /// The program `git` was not found.
    #[error("git is not installed, or not on PATH; install it to take snapshots")]
    Missing,
    /// It could not be started, or communication with it failed.
    #[error("cannot run git {verb}")]
    Start {
        verb: String,
        #[source]
        source: io::Error,
    },
    /// It ended with an error.
    #[error("git {verb} failed: {complaint}")]
    Failed {
        verb: String,
        /// Its standard error, or its exit status.
        complaint: String,
    },
    /// It took too long and was killed, with all its children.
    #[error("git {verb} took longer than {} s and was killed", limit.as_secs())]
    TooLong { verb: String, limit: Duration },
}

/// One git command.
pub(crate) struct GitCommand {
    command: Command,
    verb: String,
    limit: Duration,
}

/// Input of a git command.
pub(crate) enum GitInput<'a> {
    /// None; git holds this lock until it ends, even if this process dies before.
    HoldLock(&'a File),
    /// The output of this function.
    Write(&'a mut (dyn FnMut(&mut dyn Write) -> io::Result<()> + Send)),
}

impl GitCommand {
    /// Prepares `git <args>` on a repository of Heeler. Nothing of the caller's environment reaches
    /// it except `PATH`.
    pub(crate) fn new(
        git_dir: &Utf8Path,
        objects: &Utf8Path,
        args: &[&str],
    ) -> Result<GitCommand, GitError> {
        let path = search_path();
        let mut command = new_command(&find_git(&path)?);
        // The environment may hold variables such as GIT_DIR that would redirect git.
        command.env_clear().env("PATH", path).env("LC_ALL", "C");
        command.env("GIT_DIR", git_dir).env("GIT_OBJECT_DIRECTORY", objects);
        let settings = [
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            // Heeler only reads, so git need not refresh an index and lock it.
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            // A missing object of a partial clone must not be fetched: no remote is contacted.
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_LITERAL_PATHSPECS", "1"),
        ];
        command.envs(settings);
        command.args([
            "--no-pager",
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "core.fsmonitor=false",
        ]);
        command.args(["-c", "core.attributesFile=/dev/null", "-c", "core.excludesFile=/dev/null"]);
        command.args(["-c", "protocol.allow=never"]);
        // A directory that always exists; no command depends on the current directory of this
        // process.
        // A group of its own, so that a timeout also kills the children of git.
        command.args(args).current_dir(git_dir).process_group(0);
        let verb = args.iter().find(|arg| !arg.starts_with('-')).map_or("", |arg| arg).to_owned();
        Ok(GitCommand { command, verb, limit: GIT_TIME_MAX })
    }

    /// Adds an argument that need not be UTF-8.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> GitCommand {
        self.command.arg(arg);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> GitCommand {
        self.command.env(key, value);
        self
    }

    pub(crate) fn folder(mut self, folder: &Utf8Path) -> GitCommand {
        self.command.current_dir(folder);
        self
    }

    #[cfg(test)]
    pub(crate) fn limit(mut self, limit: Duration) -> GitCommand {
        self.limit = limit;
        self
    }

    /// Runs the command and returns its output as text.
    pub(crate) fn text(self, feed: GitInput<'_>) -> Result<String, GitError> {
        let bytes = self.output(feed)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// Runs the command and returns its output.
    pub(crate) fn output(self, feed: GitInput<'_>) -> Result<Vec<u8>, GitError> {
        let mut bytes = Vec::new();
        self.read(feed, &mut |out| out.read_to_end(&mut bytes).map(|_| ()))?;
        Ok(bytes)
    }

    /// Runs the command and passes its output to `reader`, which may stop before the end.
    pub(crate) fn read(
        mut self,
        feed: GitInput<'_>,
        reader: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>,
    ) -> Result<(), GitError> {
        let started = |source| GitError::Start { verb: self.verb.clone(), source };
        let stdin = match &feed {
            // Git inherits the lock: pruning must not start while an orphaned git still writes.
            GitInput::HoldLock(lock) => Stdio::from(lock.try_clone().map_err(started)?),
            GitInput::Write(_) => Stdio::piped(),
        };
        self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().map_err(started)?;
        let ran = run_child(&mut child, feed, reader, self.limit).map_err(started)?;
        if ran.killed {
            return Err(GitError::TooLong { verb: self.verb, limit: self.limit });
        }
        if !ran.status.success() {
            let complaint = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
            let complaint =
                if complaint.is_empty() { describe_exit(ran.status) } else { complaint };
            return Err(GitError::Failed { verb: self.verb, complaint });
        }
        // A reader that stops early makes git fail with a broken pipe, which is reported above.
        ran.io.map_err(|source| GitError::Start { verb: self.verb, source })
    }
}

/// End of a git command.
struct GitExit {
    status: ExitStatus,
    stderr: Vec<u8>,
    killed: bool,
    /// Result of writing its input and reading its output.
    io: io::Result<()>,
}

/// Writes to and reads from a child until it ends or its time is up.
fn run_child(
    child: &mut Child,
    feed: GitInput<'_>,
    reader: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>,
    limit: Duration,
) -> io::Result<GitExit> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let group = Pid::from_child(child);
    // Nothing is ever sent: the end of the sender is the message.
    let (ended, wait) = mpsc::sync_channel::<()>(0);
    std::thread::scope(|scope| {
        let watchdog = scope.spawn(move || match wait.recv_timeout(limit) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // The child has not been waited for yet, so the process group is still its own.
                let _unused = kill_process_group(group, Signal::KILL);
                true
            }
            _ => false,
        });
        let feeder = scope.spawn(move || match (feed, stdin) {
            (GitInput::Write(write), Some(mut stdin)) => write(&mut stdin),
            _ => Ok(()),
        });
        let complaints = scope.spawn(move || {
            let mut message = Vec::new();
            if let Some(mut stderr) = stderr {
                let _unused = (&mut stderr).take(STDERR_BYTES_MAX).read_to_end(&mut message);
                // The rest is read too, or git would block on a full pipe.
                let _unused = io::copy(&mut stderr, &mut io::sink());
            }
            message
        });
        let read = stdout.map_or(Ok(()), |mut stdout| reader(&mut stdout));
        let fed = feeder.join().expect("the feeder does not panic");
        let complaint = complaints.join().expect("reading does not panic");
        // The wait comes after the pipes are closed: by then the group has ended, or is about to.
        let status = child.wait();
        drop(ended);
        let killed = watchdog.join().expect("the watchdog does not panic");
        Ok(GitExit { status: status?, stderr: complaint, killed, io: read.and(fed) })
    })
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it was ended".to_owned(),
    }
}

/// Returns what distinguishes the installed git from another release of it.
pub(crate) fn program_identity() -> Vec<u8> {
    let Ok(program) = find_git(&search_path()) else { return Vec::new() };
    let found = std::fs::metadata(&program).ok();
    let state = found.map(|it| (it.ino(), it.size(), it.mtime(), it.mtime_nsec()));
    format!("{} {state:?}", program.display()).into_bytes()
}

/// Finds the program in the directories of a search path.
fn find_git(path: &OsStr) -> Result<PathBuf, GitError> {
    std::env::split_paths(path)
        // A relative folder would depend on the current directory of the daemon.
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("git"))
        .find(|program| program.is_file() && !is_in_work_tree(program))
        .ok_or(GitError::Missing)
}

/// Returns true if a program is in a git work tree. Agents work there, also those whose isolation ends at
/// it, and this process would execute their program outside of it.
fn is_in_work_tree(program: &Path) -> bool {
    let Ok(real) = program.canonicalize() else { return true };
    real.ancestors().skip(1).any(|folder| folder.join(".git").symlink_metadata().is_ok())
}

#[expect(clippy::disallowed_methods, reason = "git is where the user's shell finds it")]
fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into())
}

#[expect(clippy::disallowed_methods, reason = "this is where the workspace starts git")]
fn new_command(program: &Path) -> Command {
    Command::new(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(script: &str) -> GitCommand {
        let mut command = new_command(Path::new("/bin/sh"));
        command.args(["-c", script]).process_group(0);
        GitCommand { command, verb: "sh".to_owned(), limit: GIT_TIME_MAX }
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn a_git_in_a_work_tree_is_not_executed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        for folder in ["repo/.git", "repo/bin", "links", "system"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for program in ["repo/bin/git", "system/git"] {
            std::fs::write(root.join(program), "").unwrap();
        }
        std::os::unix::fs::symlink(root.join("repo/bin/git"), root.join("links/git")).unwrap();
        let path = |folders: &[&str]| {
            std::env::join_paths(folders.iter().map(|folder| root.join(folder))).unwrap()
        };
        let found = find_git(&path(&["repo/bin", "links", "system"])).unwrap();
        assert_eq!(found, root.join("system/git"));
        assert!(matches!(find_git(&path(&["repo/bin", "links"])), Err(GitError::Missing)));
    }

    #[test]
    fn a_call_that_takes_too_long_is_ended_with_all_that_it_started() {
        let temp = tempfile::tempdir().unwrap();
        let pids = temp.path().join("pids");
        let script = format!("sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait", pids.display());
        let call = sleeper(&script).limit(Duration::from_millis(300));
        let error = call.output(GitInput::HoldLock(&null())).unwrap_err();
        assert!(matches!(error, GitError::TooLong { .. }), "{error}");
        let pids = std::fs::read_to_string(pids).unwrap();
        assert_eq!(pids.lines().count(), 2);
        for pid in pids.lines() {
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            loop {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
                let stat = stat.unwrap_or_default();
                let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
                // Killed: gone, or a zombie. On a busy machine it dies a moment later.
                if matches!(state, None | Some('Z' | 'X')) {
                    break;
                }
                assert!(std::time::Instant::now() < deadline, "{pid} lives: {stat}");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_complaint_is_told_and_a_silent_failure_too() {
        let said = |script: &str| {
            sleeper(script).output(GitInput::HoldLock(&null())).unwrap_err().to_string()
        };
        assert_eq!(said("echo no >&2; exit 3"), "git sh failed: no");
        assert_eq!(said("exit 3"), "git sh failed: it exited with 3");
        assert_eq!(said("kill -9 $$"), "git sh failed: it was ended by signal 9");
    }

    #[test]
    fn a_missing_git_is_an_error_of_its_own() {
        let temp = tempfile::tempdir().unwrap();
        assert!(matches!(find_git(temp.path().as_os_str()), Err(GitError::Missing)));
        assert!(matches!(find_git(OsStr::new("relative:")), Err(GitError::Missing)));
        std::fs::write(temp.path().join("git"), "").unwrap();
        assert_eq!(find_git(temp.path().as_os_str()).unwrap(), temp.path().join("git"));
    }
}
