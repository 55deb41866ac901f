//! Files of a chat message: fetched from the platform and stored in the agent's working directory.
//!
//! The agent may have changed that directory, so no symbolic link in it is followed. A stored file is
//! complete, also after a crash, and is not fetched again. Start at [`receive_files`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_config::AgentConfig;
use heeler_connect::{
    ChatApiError, ChatBot, ChatPlatform, ChatPolicy, FileRequest, TranscriptionRequest, transcribe,
};
use heeler_model::{MessageFile, MessageFiles};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::credential::find_credential;
use super::rate_limits::note_rate_limit;
use crate::setup::DaemonSetup;

/// Time for all files of a message. Further ones are left out.
const FILES_TIME_MAX: Duration = Duration::from_secs(120);

/// Time limit of one attempt.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(60);

/// Attempts for one file.
const ATTEMPTS_MAX: u32 = 3;

/// Pause after a failed attempt, if the platform demands no longer one.
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);

/// Heading of the transcript of a voice message.
const TRANSCRIPT_HEADING: &str =
    "Transcript of the voice message, made by a program. It may have errors:";

/// Ending of a file that is not complete.
const PART_ENDING: &str = ".part";

/// Content of the file that keeps the directory out of git.
const GIT_IGNORE: &[u8] = b"*\n";

/// Fetches the files of a message that are not stored yet, and transcribes voice messages. Returns texts
/// for the agent: transcripts, and lines about files that could not be stored. Fails if a voice message
/// cannot be transcribed.
pub(crate) fn receive_files(
    setup: &DaemonSetup,
    (agent, files): (&AgentConfig, &MessageFiles),
    working_directory: &Utf8Path,
) -> Result<Vec<String>, String> {
    let deadline = Instant::now() + FILES_TIME_MAX;
    let bot = find_bot(setup, files);
    let mut texts = Vec::new();
    for voice in files.files.iter().filter(|file| file.is_voice) {
        let transcript = bot
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|bot| transcribe_voice(bot, setup, (agent, files, voice), deadline))?;
        texts.push(transcript);
    }
    if files.files.iter().any(|file| !file.is_voice) {
        texts.extend(store_files(bot.as_ref(), files, working_directory, deadline));
    }
    Ok(texts)
}

/// Stores files that are not stored yet; returns lines about those that could not be stored.
fn store_files(
    bot: Result<&ChatBot, &String>,
    files: &MessageFiles,
    working_directory: &Utf8Path,
    deadline: Instant,
) -> Vec<String> {
    let failed = |file: &MessageFile, reason: &dyn std::fmt::Display| {
        tracing::warn!(file = file.name, %reason, "a file of a chat message was not received");
        format!("- {}/{} could not be received: {reason}", files.folder, file.name)
    };
    let folder = match open_folder(working_directory, &files.folder) {
        Ok(folder) => folder,
        Err(error) => return files.files.iter().map(|file| failed(file, &error)).collect(),
    };
    let mut problems = Vec::new();
    let is_missing = |file: &&MessageFile| !file.is_voice && !is_stored(folder.as_fd(), &file.name);
    for file in files.files.iter().filter(is_missing) {
        let fetched = bot.map_err(Clone::clone).and_then(|bot| {
            fetch(bot, files, (file, files.bytes_max), deadline).map_err(|error| error.to_string())
        });
        let stored = fetched.and_then(|bytes| {
            store(folder.as_fd(), &file.name, &bytes).map_err(|error| error.to_string())
        });
        problems.extend(stored.err().map(|reason| failed(file, &reason)));
    }
    problems
}

/// Returns the bot that received the message.
fn find_bot(setup: &DaemonSetup, files: &MessageFiles) -> Result<ChatBot, String> {
    let platform: ChatPlatform =
        files.platform.parse().map_err(|_| "unknown platform".to_owned())?;
    let credential = find_credential(&setup.loaded, &setup.env, platform, &files.account);
    let credential = credential.ok_or("the config has no such bot any more")?;
    credential.bot().map_err(|error| error.to_string())
}

fn fetch(
    bot: &ChatBot,
    files: &MessageFiles,
    (file, bytes_max): (&MessageFile, u64),
    deadline: Instant,
) -> Result<Vec<u8>, ChatApiError> {
    with_attempts(deadline, |timeout| {
        let (source, media_type) = (&file.source, &file.media_type);
        let fetched = bot.fetch_file(FileRequest { source, media_type, bytes_max, timeout });
        if matches!(fetched, Err(ChatApiError::RateLimited { .. })) {
            note_rate_limit(&files.platform, &files.account);
        }
        fetched
    })
}

/// Fetches a voice message, and returns its transcript with a mark that it is one.
fn transcribe_voice(
    bot: &ChatBot,
    setup: &DaemonSetup,
    (agent, files, file): (&AgentConfig, &MessageFiles, &MessageFile),
    deadline: Instant,
) -> Result<String, String> {
    let platform = files.platform.parse::<ChatPlatform>().ok();
    let policy = platform.and_then(|platform| ChatPolicy::of_agent(agent, platform));
    let voice = policy.and_then(|policy| policy.voice);
    let voice =
        voice.ok_or("the agent transcribes no voice messages any more (`voice.enabled`)")?;
    let variable = voice.api_key_env.as_str();
    let key = setup.env.get(variable).map(|key| key.trim()).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| {
        format!(
            "there is no {variable}: set it in the `.env` beside the config (`voice.api_key_env`)"
        )
    })?;
    let audio = fetch(bot, files, (file, voice.bytes_max()), deadline);
    let audio = audio.map_err(|error| error.to_string())?;
    let text = with_attempts(deadline, |timeout| {
        transcribe(&TranscriptionRequest {
            api_url: voice.api_url.as_str(),
            key,
            variable,
            model: &voice.model,
            language: voice.language.as_deref(),
            name: &file.name,
            media_type: &file.media_type,
            audio: &audio,
            timeout,
        })
    });
    let text = text.map_err(|error| error.to_string())?;
    let quoted: Vec<String> = text.lines().map(|line| format!("> {line}")).collect();
    Ok(format!("\n{TRANSCRIPT_HEADING}\n\n{}", quoted.join("\n")))
}

/// Makes a call several times, if it may succeed later.
fn with_attempts<T>(
    deadline: Instant,
    call: impl Fn(Duration) -> Result<T, ChatApiError>,
) -> Result<T, ChatApiError> {
    let mut attempt = 1;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let reason = "it took too long".to_owned();
            return Err(ChatApiError::Unreachable { attempt: "fetch a file", reason });
        }
        let error = match call(left.min(ATTEMPT_TIME_MAX)) {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        let pause = error.retry_after().unwrap_or_default().max(ATTEMPT_PAUSE);
        let left = deadline.saturating_duration_since(Instant::now());
        if !error.is_transient() || attempt == ATTEMPTS_MAX || pause >= left {
            return Err(error);
        }
        std::thread::sleep(pause);
        attempt += 1;
    }
}

/// Opens a directory below another, and makes what is missing. The first part gets a `.gitignore`.
fn open_folder(root: &Utf8Path, folder: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut opened = openat(CWD, root.as_std_path(), flags, Mode::empty())?;
    for (depth, part) in folder.split('/').enumerate() {
        if matches!(part, "" | "." | "..") {
            return Err(io::Error::other("it leads out of the working directory"));
        }
        match mkdirat(&opened, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        opened = openat(&opened, part, flags, Mode::empty()).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => {
                io::Error::other(format!("`{part}` in the working directory is not a directory"))
            }
            error => error.into(),
        })?;
        if depth == 0 {
            ignore_in_git(opened.as_fd())?;
        }
    }
    Ok(opened)
}

/// Keeps received files out of commits of the agent.
fn ignore_in_git(folder: BorrowedFd<'_>) -> io::Result<()> {
    match create(folder, ".gitignore") {
        Ok(mut file) => file.write_all(GIT_IGNORE),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a file that does not exist.
fn create(folder: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::from_raw_mode(0o644))?.into())
}

fn is_stored(folder: BorrowedFd<'_>, name: &str) -> bool {
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Stores a file: it is complete under its name, or missing.
fn store(folder: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let part = format!("{name}{PART_ENDING}");
    // A daemon that was killed may have left one.
    match unlinkat(folder, &part, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mut file = create(folder, &part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    renameat(folder, &part, folder, name)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> (tempfile::TempDir, camino::Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().canonicalize_utf8().unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_is_complete_or_missing_and_stays_out_of_git() {
        let (_folder, root) = root();
        let opened = open_folder(&root, ".files/job-1").unwrap();
        std::fs::write(root.join(".files/job-1/1.txt.part"), "ha").unwrap();
        assert!(!is_stored(opened.as_fd(), "1.txt"));
        store(opened.as_fd(), "1.txt", b"hello").unwrap();
        assert!(is_stored(opened.as_fd(), "1.txt"));
        assert_eq!(std::fs::read_to_string(root.join(".files/job-1/1.txt")).unwrap(), "hello");
        assert!(!root.join(".files/job-1/1.txt.part").exists());
        assert_eq!(std::fs::read_to_string(root.join(".files/.gitignore")).unwrap(), "*\n");
        open_folder(&root, ".files/job-2").unwrap();
    }

    #[test]
    fn nothing_is_written_through_a_link_of_an_agent() {
        let (_folder, root) = root();
        let (_outside, outside) = self::root();
        std::os::unix::fs::symlink(&outside, root.join(".files")).unwrap();
        let error = open_folder(&root, ".files/job-1").unwrap_err().to_string();
        assert_eq!(error, "`.files` in the working directory is not a directory");
        std::fs::remove_file(root.join(".files")).unwrap();
        open_folder(&root, ".files").unwrap();
        std::os::unix::fs::symlink(&outside, root.join(".files/job-1")).unwrap();
        assert!(open_folder(&root, ".files/job-1").is_err());
        let opened = open_folder(&root, ".files/job-2").unwrap();
        let target = outside.join("target");
        for name in ["1.txt", "1.txt.part"] {
            std::os::unix::fs::symlink(&target, root.join(".files/job-2").join(name)).unwrap();
        }
        assert!(!is_stored(opened.as_fd(), "1.txt"));
        store(opened.as_fd(), "1.txt", b"hello").unwrap();
        assert!(!target.exists());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        for folder in ["../x", "/x", "a/../b", ""] {
            assert!(open_folder(&root, folder).is_err(), "{folder}");
        }
    }
}
