//! Notices on the desktop of this machine, by `notify-send`.
//!
//! Start at [`show`].

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::NotifyEvent;
use heeler_notify::{NoticeSendError, PersonNotice};

/// The program, as desktops provide it.
const PROGRAM: &str = "notify-send";

/// Time after which the program is ended.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Interval at which it is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Variables that the program needs to find the desktop.
const PASSED_VARIABLES: [&str; 7] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOME",
    "LANG",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
];

/// Longest text, in characters. Desktops show a few lines.
const TEXT_CHARS_MAX: usize = 400;

/// Returns the path of the program.
pub(super) fn find_program(env: &BTreeMap<String, String>) -> Result<Utf8PathBuf, String> {
    let path = env.get("PATH").map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
    let folders = path.split(':').filter(|folder| folder.starts_with('/'));
    let mut files = folders.map(|folder| Utf8Path::new(folder).join(PROGRAM));
    files.find(|file| file.is_file()).ok_or_else(|| {
        format!("there is no {PROGRAM}: install it (the package libnotify-bin on Debian)")
    })
}

/// Shows a notice, and waits for the program.
pub(super) fn show(
    env: &BTreeMap<String, String>,
    notice: &PersonNotice,
) -> Result<(), NoticeSendError> {
    // The message cannot be removed, and one that says that nothing is left to do only disturbs.
    if notice.is_closing {
        return Ok(());
    }
    let program = find_program(env).map_err(NoticeSendError::permanent)?;
    let mut child = start(&program, env, notice)
        .map_err(|error| NoticeSendError::permanent(format!("cannot start {PROGRAM}: {error}")))?;
    let deadline = Instant::now() + TIME_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let message = format!("{PROGRAM} ended with {status}: is there a desktop session?");
                return Err(NoticeSendError::transient(message));
            }
            Ok(None) if Instant::now() < deadline => std::thread::park_timeout(POLL_INTERVAL),
            Ok(None) | Err(_) => {
                end(&mut child);
                return Err(NoticeSendError::transient(format!("{PROGRAM} does not end")));
            }
        }
    }
}

fn end(child: &mut Child) {
    // It may have ended in the meantime.
    drop(child.kill());
    drop(child.wait());
}

#[expect(clippy::disallowed_methods, reason = "the engine's one function that starts notify-send")]
fn start(
    program: &Utf8Path,
    env: &BTreeMap<String, String>,
    notice: &PersonNotice,
) -> std::io::Result<Child> {
    let urgency = match notice.event {
        NotifyEvent::Question => "critical",
        _ => "normal",
    };
    let text: String = notice.body().chars().take(TEXT_CHARS_MAX).collect();
    let passed = PASSED_VARIABLES.iter().filter_map(|name| Some((*name, env.get(*name)?)));
    Command::new(program)
        .arg("--app-name=Heeler")
        .arg(format!("--urgency={urgency}"))
        // The dashes keep a text that begins with a dash from becoming an option.
        .arg("--")
        .arg(escape(&notice.title))
        .arg(escape(&text))
        .env_clear()
        .envs(passed)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Escapes text, because desktops show some of HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
