//! A conversation with a fleet: what holds its parts together. Start at [`Inputs`].

pub(crate) mod fleet;
mod follow;
mod glances;
mod plain;
mod rules;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use heeler_chat::{Book, COMMANDS, Happened, Role, Shown, Speaker, Talk, Wish};
use heeler_tui::{Completion, Screen, Terminal, Theme};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::fleet::DaemonFleet;
pub(crate) use self::glances::{Glances, unread};
use self::plain::Plain;
use crate::failure::Outcome;
use crate::output;
use crate::place;

/// How many happenings wait to be taken; what follows runs has to wait then, never a person.
const HAPPENED_MAX: usize = 1024;
/// How long it waits before it looks again.
const FULL_WAIT: Duration = Duration::from_millis(2);
/// How many things wait to be drawn.
const SHOWN_MAX: usize = 1024;
/// How many files of a folder are looked at for completion.
const FILES_MAX: usize = 10_000;
/// How many of the person's lines can be called back.
const HISTORY_MAX: usize = 200;
/// How often time passes for a conversation.
const TICK: Duration = Duration::from_millis(500);
/// How often it is tried again to write what a disk did not take.
const STUCK_TICK: Duration = Duration::from_millis(100);

/// What a conversation takes.
enum Input {
    /// Of a person.
    Wish(Wish),
    /// Of the fleet.
    Happened(Happened),
}

/// Where everything comes together that a conversation takes.
pub(crate) struct Inputs {
    tell: Sender<Input>,
    inputs: Receiver<Input>,
    /// What came while nothing could be taken.
    late: VecDeque<Input>,
    waiting: Arc<AtomicUsize>,
}

impl Inputs {
    /// Makes every signal that ends a process a wish to leave.
    pub(crate) fn new() -> Outcome<Inputs> {
        let (tell, inputs) = channel();
        on_signals(tell.clone())?;
        let (late, waiting) = (VecDeque::new(), Arc::new(AtomicUsize::new(0)));
        Ok(Inputs { tell, inputs, late, waiting })
    }

    /// Takes what happens in a fleet too.
    pub(crate) fn hear(&self, happened: Receiver<Happened>) {
        let (teller, count) = (self.tell.clone(), Arc::clone(&self.waiting));
        std::thread::spawn(move || {
            for happened in happened {
                while count.load(Ordering::Relaxed) >= HAPPENED_MAX {
                    std::thread::sleep(FULL_WAIT);
                }
                count.fetch_add(1, Ordering::Relaxed);
                if teller.send(Input::Happened(happened)).is_err() {
                    return;
                }
            }
        });
    }

    /// Says whether somebody wants to leave before there is a conversation.
    pub(crate) fn is_left(&mut self) -> bool {
        self.next_to_leave(Duration::ZERO).is_some()
    }

    /// Returns what came first, if something comes in time.
    fn next(&mut self, wait: Duration) -> Option<Input> {
        self.late.pop_front().or_else(|| self.inputs.recv_timeout(wait).ok())
    }

    /// Returns the next wish to leave, if one comes in time. All else stays for later.
    fn next_to_leave(&mut self, wait: Duration) -> Option<Input> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.inputs.recv_timeout(left).ok()? {
                Input::Wish(wish) if wish.is_to_leave() => return Some(Input::Wish(wish)),
                other => self.late.push_back(other),
            }
        }
    }
}

fn on_signals(tell: Sender<Input>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            let mut terminates = 0;
            loop {
                let wish = tokio::select! {
                    _ = interrupt.recv() => Wish::Leave,
                    _ = terminate.recv() => {
                        terminates += 1;
                        if terminates == 1 { Wish::HangUp } else { Wish::Leave }
                    }
                    // A terminal that is closed tells it in several ways: none of them hurries.
                    _ = hangup.recv() => Wish::HangUp,
                };
                if tell.send(Input::Wish(wish)).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

/// Holds a conversation in lines until it ends.
pub(crate) fn in_lines(mut talk: Talk, mut inputs: Inputs) -> Outcome {
    let mut face = Plain::new(inputs.tell.clone());
    run(&mut talk, &mut inputs, &mut |talk, is_line| {
        if is_line {
            face.heard();
        }
        for shown in talk.shown() {
            // Whoever read has gone: the conversation ends as it should.
            if face.show(&shown).is_err() && !talk.is_over() {
                talk.wish(Wish::HangUp, place::now());
            }
        }
        face.settle();
    });
    Ok(())
}

/// Holds a conversation on a screen until it ends.
pub(crate) fn on_screen(
    mut talk: Talk,
    mut inputs: Inputs,
    mut terminal: Terminal,
    history: Vec<String>,
    env: &BTreeMap<String, String>,
) -> Outcome {
    let (show, shown) = sync_channel(SHOWN_MAX);
    let tell = inputs.tell.clone();
    let talking = std::thread::spawn(move || {
        let mut last_words = Vec::new();
        run(&mut talk, &mut inputs, &mut |talk, _| {
            for shown in talk.shown() {
                if let Shown::Leaving(text) = &shown {
                    last_words.push(text.clone());
                }
                // A closed terminal: the conversation ends as it should.
                if show.send(shown).is_err() && !talk.is_over() {
                    talk.wish(Wish::HangUp, place::now());
                }
            }
        });
        last_words
    });
    let completion = Completion { commands: COMMANDS, files: Box::new(files) };
    let mut screen = Screen::new(theme(env), completion, history);
    heeler_tui::run(&mut terminal, &mut screen, shown, place::now, move |wish| {
        // It has ended already.
        drop(tell.send(Input::Wish(wish)));
    });
    let last_words = talking.join();
    drop(terminal);
    let broken = |_| anyhow::anyhow!("the conversation broke off; everything shown is on disk");
    // They went with the screen. All is saved, so a terminal that is gone is no failure.
    let told = last_words.map_err(broken)?.into_iter().try_for_each(output::line);
    drop(told);
    Ok(())
}

/// Chooses the colours.
pub(crate) fn theme(env: &BTreeMap<String, String>) -> Theme {
    let is_set = |name: &str| env.get(name).is_some_and(|value| !value.is_empty());
    let background = env.get("COLORFGBG").and_then(|it| it.rsplit(';').next()?.parse::<u8>().ok());
    match background {
        _ if is_set("NO_COLOR") => Theme::plain(),
        Some(7 | 9..=15) => Theme::light(),
        _ => Theme::dark(),
    }
}

/// Returns what the person said before, oldest first.
pub(crate) fn history(book: &Book) -> Vec<String> {
    let page = book.older(&Speaker::Coordinator, None, HISTORY_MAX);
    let entries = page.map(|page| page.entries).unwrap_or_default();
    entries.iter().filter(|entry| entry.role == Role::User).map(heeler_chat::Entry::text).collect()
}

/// Names the files of a folder that begin so.
fn files(typed: &str) -> Vec<String> {
    let (folder, start) =
        typed.rsplit_once('/').map_or(("", typed), |(folder, start)| (folder, start));
    let listed = std::fs::read_dir(if folder.is_empty() { "." } else { folder });
    let mut names: Vec<String> = listed
        .into_iter()
        .flatten()
        .take(FILES_MAX)
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let is_hidden = name.starts_with('.') && !start.starts_with('.');
            let slash = if entry.file_type().is_ok_and(|it| it.is_dir()) { "/" } else { "" };
            let before = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            (name.starts_with(start) && !is_hidden).then(|| format!("{before}{name}{slash}"))
        })
        .collect();
    names.sort();
    names
}

/// Hands in what comes, and time, until the conversation is over.
fn run(talk: &mut Talk, inputs: &mut Inputs, shows: &mut dyn FnMut(&mut Talk, bool)) {
    let mut next_tick = Instant::now() + TICK;
    shows(talk, false);
    while !talk.is_over() {
        let input = match talk.is_stuck() {
            true => inputs.next_to_leave(STUCK_TICK),
            false => inputs.next(next_tick.saturating_duration_since(Instant::now())),
        };
        let heard = match input {
            Some(Input::Wish(wish)) => {
                let is_line = matches!(wish, Wish::Say(_));
                talk.wish(wish, place::now());
                is_line
            }
            Some(Input::Happened(happened)) => {
                inputs.waiting.fetch_sub(1, Ordering::Relaxed);
                talk.happened(happened, place::now());
                false
            }
            None => {
                talk.tick(place::now());
                next_tick = Instant::now() + TICK;
                false
            }
        };
        shows(talk, heard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_to_leave_is_heard_before_all_else_while_a_disk_takes_nothing() {
        let mut inputs = Inputs::new().unwrap();
        let line = || Wish::Say("hello".to_owned());
        for wish in [line(), Wish::Interrupt, Wish::Leave] {
            inputs.tell.send(Input::Wish(wish)).unwrap();
        }
        let wish = |input| match input {
            Some(Input::Wish(wish)) => Some(wish),
            _ => None,
        };
        assert_eq!(wish(inputs.next_to_leave(STUCK_TICK)), Some(Wish::Leave));
        assert_eq!(wish(inputs.next_to_leave(Duration::ZERO)), None);
        assert_eq!(wish(inputs.next(TICK)), Some(line()), "the others are not lost");
        assert_eq!(wish(inputs.next(TICK)), Some(Wish::Interrupt));
    }
}
