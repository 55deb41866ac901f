//! A terminal of a test's own: what the program writes there is a screen of text, and what people do
//! to terminals can be done to it. Start at [`Pty`].

use std::io::Write as _;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expect_test::Expect;
use heeler_testkit::WAIT_MAX;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::fleet::Fleet;

/// How large the window is at first.
const COLUMNS: u16 = 100;
const ROWS: u16 = 30;

/// How long a screen may take to become what is then written down as expected.
const UPDATE_WAIT: Duration = Duration::from_secs(3);

/// How many digits the id of a session has.
const ID_LEN: usize = 8;

/// How often it is looked whether the terminal was closed.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

pub(crate) const ENTER: &str = "\r";
pub(crate) const ALT_ENTER: &str = "\x1b\r";
pub(crate) const ESC: &str = "\x1b";
pub(crate) const TAB: &str = "\t";
pub(crate) const ALT_SHIFT_TAB: &str = "\x1b[9;4u";
pub(crate) const UP: &str = "\x1b[A";
pub(crate) const DOWN: &str = "\x1b[B";
pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_D: &str = "\x04";
pub(crate) const CTRL_L: &str = "\x0c";
pub(crate) const CTRL_O: &str = "\x0f";
pub(crate) const CTRL_R: &str = "\x12";
pub(crate) const CTRL_Z: &str = "\x1a";

/// A terminal with a program in it.
pub(crate) struct Pty {
    child: Child,
    /// The person's end, while there is one.
    master: Option<OwnedFd>,
    seen: Arc<Seen>,
    reader: Option<JoinHandle<()>>,
}

struct Seen {
    state: Mutex<State>,
    changed: Condvar,
    /// The terminal is closed.
    closed: AtomicBool,
}

struct State {
    parser: vt100::Parser,
    bytes: Vec<u8>,
    /// Nobody writes there any more.
    is_over: bool,
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Most have ended.
        drop(self.child.kill());
        drop(self.child.wait());
        self.close();
    }
}

impl Pty {
    /// Starts the program in a terminal of 100 columns and 30 rows.
    pub(crate) fn start(fleet: &Fleet, args: &[&str]) -> Pty {
        Pty::of(&fleet.command(args))
    }

    /// Starts a command in one.
    pub(crate) fn of(command: &Command) -> Pty {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let master = master.unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
        // It becomes the program, as the leader of a session with this terminal.
        let mut in_session = Command::new("setsid");
        in_session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        in_session.current_dir(command.get_current_dir().unwrap()).env_clear();
        let envs = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        in_session.envs(envs).env("TERM", "xterm-256color");
        in_session.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap());
        in_session.stderr(slave);
        set_size(&master, COLUMNS, ROWS);
        let child = in_session.spawn().unwrap();
        // The terminal is over when the program has closed it, not when we do.
        drop(in_session);
        let state = State { parser: parser(), bytes: Vec::new(), is_over: false };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let seen = Arc::new(Seen { state, changed, closed: AtomicBool::new(false) });
        let (own, written) = (Arc::clone(&seen), master.try_clone().unwrap());
        let reader = Some(std::thread::spawn(move || own.read(&written)));
        Pty { child, master: Some(master), seen, reader }
    }

    /// Types keys.
    pub(crate) fn type_in(&self, keys: &str) {
        let master = self.master.as_ref().expect("it is not closed").try_clone().unwrap();
        std::fs::File::from(master).write_all(keys.as_bytes()).unwrap();
    }

    /// Pastes, as terminals tell it.
    pub(crate) fn paste(&self, text: &str) {
        self.type_in(&format!("\x1b[200~{text}\x1b[201~"));
    }

    /// Makes the window another size; the program gets its signal.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.seen.lock().set_size(columns, rows);
        set_size(self.master.as_ref().expect("it is not closed"), columns, rows);
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the program, which was not waited for, so the number is its own.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Closes the terminal, as who closes the window.
    pub(crate) fn close(&mut self) {
        self.seen.closed.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
        self.master = None;
    }

    /// Returns what is seen: the rows, without what each run has another of.
    pub(crate) fn screen(&self) -> String {
        self.seen.lock().screen()
    }

    /// Returns everything that was written to the terminal.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.seen.lock().bytes.clone()
    }

    /// Waits until the screen is as wanted, and returns it.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        match self.seen.wait(WAIT_MAX, |state| is_it(&state.screen())) {
            Ok(screen) => screen,
            Err(screen) => panic!("waited for {what}; the screen is\n{screen}"),
        }
    }

    /// Waits until the screen shows a text.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Waits until the screen does not show a text.
    #[track_caller]
    pub(crate) fn hides(&self, text: &str) -> String {
        self.until(&format!("no {text}"), |screen| !screen.contains(text))
    }

    /// Waits until the screen is this one.
    #[track_caller]
    pub(crate) fn check(&self, expected: &Expect) {
        let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
        let wait = if is_update { UPDATE_WAIT } else { WAIT_MAX };
        let wanted = dedented(expected.data());
        let (Ok(screen) | Err(screen)) = self.seen.wait(wait, |state| {
            // What is not written down yet is no empty screen.
            !wanted.is_empty() && state.screen() == wanted
        });
        expected.assert_eq(&screen);
    }

    /// Waits for the program's end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "it does not end; the screen is\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the program's end; returns its code and what is seen when nobody writes any more.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        let code = self.wait().code();
        let ended = self.seen.wait(WAIT_MAX, |state| state.is_over);
        (code, ended.unwrap_or_else(|screen| panic!("somebody has the terminal still\n{screen}")))
    }

    /// Waits until the terminal is as it was before the program came.
    #[track_caller]
    pub(crate) fn is_given_back(&self) {
        let until = Instant::now() + WAIT_MAX;
        while self.taken() != [""; 0] {
            let told = format!("{:?}\n{}", self.taken(), self.screen());
            assert!(Instant::now() < until, "{told}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Names what of the terminal is not as it was.
    pub(crate) fn taken(&self) -> Vec<&'static str> {
        let modes = tcgetattr(self.master.as_ref().expect("it is not closed")).unwrap().local_modes;
        let state = self.seen.lock();
        let screen = state.parser.screen();
        let is_on = |on: &str, off: &str| last(&state.bytes, on) > last(&state.bytes, off);
        let taken = [
            ("raw", !modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)),
            ("alternate screen", screen.alternate_screen()),
            ("hidden cursor", screen.hide_cursor()),
            ("bracketed paste", screen.bracketed_paste()),
            ("mouse", screen.mouse_protocol_mode() != vt100::MouseProtocolMode::None),
            ("focus", is_on("\x1b[?1004h", "\x1b[?1004l")),
            ("keyboard", is_on("\x1b[>1u", "\x1b[<1u")),
        ];
        taken.into_iter().filter_map(|(name, is_taken)| is_taken.then_some(name)).collect()
    }
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Reads what is written until nobody does any more or the terminal is closed.
    fn read(&self, master: &OwnedFd) {
        let mut piece = vec![0; 64 * 1024];
        while !self.closed.load(Ordering::Acquire) {
            let mut fds = [PollFd::new(master, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK_EVERY)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
            // The kernel tells an error when the last who had it open has gone.
            let count = rustix::io::read(master, &mut piece).unwrap_or(0);
            let mut state = self.lock();
            state.parser.process(&piece[..count]);
            state.bytes.extend(&piece[..count]);
            state.is_over = count == 0;
            self.changed.notify_all();
            if count == 0 {
                return;
            }
        }
    }

    /// Waits; returns the screen, which is an error if it did not become as wanted.
    fn wait(&self, wait: Duration, is_it: impl Fn(&State) -> bool) -> Result<String, String> {
        let (state, waited) =
            self.changed.wait_timeout_while(self.lock(), wait, |state| !is_it(state)).unwrap();
        if waited.timed_out() { Err(state.screen()) } else { Ok(state.screen()) }
    }
}

impl State {
    fn set_size(&mut self, columns: u16, rows: u16) {
        let [columns, rows] = [columns, rows].map(|it| NonZeroU16::new(it).unwrap());
        self.parser.screen_mut().set_size(rows, columns);
    }

    fn screen(&self) -> String {
        let screen = self.parser.screen();
        let rows = screen.rows(0, screen.size().1.get());
        let rows: Vec<String> = rows.map(|row| plain(row.trim_end())).collect();
        rows.join("\n").trim_matches('\n').to_owned()
    }
}

/// Makes a screen of what is written to a terminal of the first size.
pub(crate) fn parser() -> vt100::Parser {
    let [columns, rows] = [COLUMNS, ROWS].map(|it| NonZeroU16::new(it).unwrap());
    vt100::Parser::new(rows, columns, 0)
}

fn set_size(master: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).unwrap();
}

/// Where a sequence was written last.
fn last(bytes: &[u8], sequence: &str) -> Option<usize> {
    bytes.windows(sequence.len()).rposition(|part| part == sequence.as_bytes())
}

/// Returns a row without what each run has another of: ids of sessions, how long things took, and
/// the folder of the test.
fn plain(row: &str) -> String {
    let mut row = row.to_owned();
    if let Some(at) = row.rfind(" · .tmp") {
        row.truncate(at);
    }
    let is_id = |id: &str| id.len() == ID_LEN && id.bytes().all(|it| it.is_ascii_hexdigit());
    let found = row.find("chat-").map(|at| at + "chat-".len());
    if let Some(at) = found.filter(|at| row.get(*at..at + ID_LEN).is_some_and(is_id)) {
        row.replace_range(at..at + ID_LEN, "ID");
    }
    if let Some((before, rest)) = row.split_once(" · Esc interrupts")
        && let Some((what, _)) = before.rsplit_once(' ')
    {
        return format!("{what} TIME · Esc interrupts{rest}");
    }
    let is_tool = ["✓ ", "✗ "].iter().any(|sign| row.trim_start().starts_with(sign));
    match row.rsplit_once("  ") {
        // It is not told of what took no time.
        Some((call, took)) if is_tool && took.ends_with('s') => call.to_owned(),
        _ => row,
    }
}

/// Returns an expected text as the comparison takes it.
fn dedented(text: &str) -> String {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let indent = |line: &str| line.len() - line.trim_start().len();
    let least = text.lines().filter(|line| !line.trim().is_empty()).map(indent).min();
    let lines = text.lines().map(|line| line.get(least.unwrap_or(0)..).unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}
