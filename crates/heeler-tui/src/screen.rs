//! What a person sees of a conversation and does to it: data in, wishes out.

use std::collections::HashMap;

use heeler_chat::{JobState, Shown, Speaker, Status, Wish};
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseEventKind};
use ratatui::layout::{Position, Rect};
use ratatui::text::Line;

use crate::ask::{Asks, Said};
use crate::cell::Cell;
use crate::input::{Completion, Did, Input};
use crate::text::{harmless, one_line, shortened, width};
use crate::transcript::{ASIDE, LOOKED_AT, Shape, Transcript};
use crate::{Theme, keys, status};

/// How far the wheel scrolls.
const WHEEL_LINES: usize = 3;

/// The least heights at which parts of the screen are there at all.
const STATUS_FROM: usize = 3;
const BUSY_FROM: usize = 5;
const CHIPS_FROM: usize = 6;
const RULE_FROM: usize = 8;

/// What stands where nothing was said yet.
const NOTHING_SAID: &str = "  Type and press Enter; /help tells what else can be typed.";

/// What stands above the oldest that can be scrolled to.
const AT_LIMIT: &str = "↑ more is not kept on the screen: /search TEXT finds it, /export writes it";

/// Who gets the keys while something is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// What is asked, unless something is typed already.
    Auto,
    /// What is asked.
    Ask,
    /// The input.
    Input,
}

/// The screen.
pub struct Screen {
    theme: Theme,
    transcripts: HashMap<Speaker, Transcript>,
    view: Speaker,
    status: Status,
    busy_since: Option<Timestamp>,
    asks: Asks,
    keys: Keys,
    input: Input,
    /// Said until the next key.
    hint: Option<String>,
    /// Ctrl+C was pressed: once more leaves.
    leaves_next: bool,
    unfolded: bool,
    now: Timestamp,
    /// How many lines of the transcript were seen.
    page: usize,
}

impl Screen {
    /// Makes a screen; `history` is what the person typed before, oldest first.
    pub fn new(theme: Theme, completion: Completion, history: Vec<String>) -> Screen {
        Screen {
            theme,
            transcripts: HashMap::new(),
            view: Speaker::Coordinator,
            status: Status::default(),
            busy_since: None,
            asks: Asks::default(),
            keys: Keys::Auto,
            input: Input::new(completion, history),
            hint: None,
            leaves_next: false,
            unfolded: false,
            now: Timestamp::UNIX_EPOCH,
            page: 1,
        }
    }

    /// Says what time it is from now on.
    pub fn at(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Says whether the passing of time shows.
    pub fn is_ticking(&self) -> bool {
        self.busy_since.is_some()
    }

    /// Takes something in that is to be shown from now on.
    pub fn show(&mut self, shown: Shown) {
        match shown {
            Shown::Entry { of, entry } => {
                let bounds = self.bounds(&of);
                self.transcript(of).entry(&entry, bounds);
            }
            Shown::Delta { of, text } => self.transcript(of).delta(&text),
            Shown::DeltaEnded { of } => self.transcript(of).end_delta(),
            Shown::Older { of, entries, has_more } => {
                let bounds = self.bounds(&of);
                self.transcript(of).older(&entries, has_more, bounds);
            }
            Shown::Restarted => {
                self.transcripts.clear();
                self.asks.clear();
                self.view = Speaker::Coordinator;
            }
            Shown::Asked(question) => self.asks.add(question),
            Shown::Settled { ask } => {
                if self.asks.settled(&ask) {
                    // Who was about to answer that answers nothing else by it.
                    self.keys = Keys::Auto;
                    self.hint = Some("what was asked is settled".to_owned());
                }
            }
            Shown::Told(text) => self.tell(Cell::Told(harmless(&text))),
            Shown::Leaving(text) => self.tell(Cell::System(harmless(&text))),
            Shown::Failed(text) => self.tell(Cell::Failed(harmless(&text))),
            Shown::Status(status) => {
                let since = self.busy_since.unwrap_or(self.now);
                self.busy_since = status.busy.is_some().then_some(since);
                self.status = *status;
            }
            Shown::View(view) => self.look_at(view),
            Shown::Suggested(text) => self.input.suggest(&text),
            Shown::Left => {}
        }
    }

    fn transcript(&mut self, of: Speaker) -> &mut Transcript {
        self.transcripts.entry(of).or_default()
    }

    fn bounds(&self, of: &Speaker) -> crate::transcript::Bounds {
        if *of == self.view { LOOKED_AT } else { ASIDE }
    }

    fn tell(&mut self, cell: Cell) {
        let view = self.view.clone();
        self.transcript(view).told(cell, LOOKED_AT);
    }

    fn look_at(&mut self, view: Speaker) {
        let before = std::mem::replace(&mut self.view, view);
        if before != self.view {
            self.transcript(before).go_to_end(ASIDE);
        }
    }

    /// Takes a key, a paste or a new size; returns what the person wants by it.
    pub fn key(&mut self, event: &Event) -> Vec<Wish> {
        match event {
            Event::Paste(text) => {
                self.paste(text);
                vec![]
            }
            Event::Mouse(mouse) => match mouse.kind {
                MouseEventKind::ScrollUp => self.wheel(true),
                MouseEventKind::ScrollDown => self.wheel(false),
                _ => vec![],
            },
            event => keys::pressed(event).map_or_else(Vec::new, |key| self.press(key)),
        }
    }

    /// Scrolls the transcript, or what is asked where that has all the room.
    fn wheel(&mut self, up: bool) -> Vec<Wish> {
        match up {
            _ if self.page == 0 && self.asks.is_seen() => {
                self.asks.scroll(WHEEL_LINES, up);
                vec![]
            }
            true => self.scroll_up(WHEEL_LINES),
            false => self.scroll_down(WHEEL_LINES),
        }
    }

    fn paste(&mut self, text: &str) {
        let did = match self.ask_has_keys() {
            true if self.asks.is_typing() => return self.asks.paste(text),
            true => {
                self.keys = Keys::Input;
                self.input.paste(text)
            }
            false => self.input.paste(text),
        };
        if did == Did::Full {
            self.hint = Some("that is too long to be typed here: name a file with @".to_owned());
        }
    }

    fn press(&mut self, key: KeyEvent) -> Vec<Wish> {
        self.hint = None;
        let leaves = std::mem::take(&mut self.leaves_next);
        if (key.code, key.modifiers) == (KeyCode::Char('c'), KeyModifiers::CONTROL) {
            return self.control_c(leaves);
        }
        if let Some(wishes) = self.scroll_key(key) {
            return wishes;
        }
        if self.ask_has_keys() {
            match self.asks.key(key) {
                Said::Answer(wish) => {
                    self.keys = Keys::Auto;
                    return vec![wish];
                }
                Said::Taken => return vec![],
                Said::Nothing if self.asks.is_typing() => return vec![],
                Said::Nothing => {}
            }
        }
        self.input_key(key)
    }

    /// Says whether what is asked gets the keys, once it is seen.
    fn ask_wants_keys(&self) -> bool {
        match self.keys {
            Keys::Auto => self.input.is_empty() && !self.input.is_in_mode(),
            Keys::Ask => true,
            Keys::Input => false,
        }
    }

    fn ask_has_keys(&self) -> bool {
        self.ask_wants_keys() && self.asks.is_seen()
    }

    fn control_c(&mut self, leaves: bool) -> Vec<Wish> {
        if !self.input.is_empty() || self.input.is_in_mode() {
            self.input.clear();
            return vec![];
        }
        if leaves {
            return vec![Wish::Leave];
        }
        self.leaves_next = true;
        self.hint = Some("Ctrl+C again to leave".to_owned());
        vec![]
    }

    fn scroll_key(&mut self, key: KeyEvent) -> Option<Vec<Wish>> {
        let page = self.page.saturating_sub(2).max(1);
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let is_shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            // A long request is paged through, and the transcript with Shift then.
            KeyCode::PageUp | KeyCode::PageDown if self.ask_has_keys() && !is_shift => None,
            KeyCode::PageUp => Some(self.scroll_up(page)),
            KeyCode::PageDown => Some(self.scroll_down(page)),
            KeyCode::Up if is_shift => Some(self.scroll_up(1)),
            KeyCode::Down if is_shift => Some(self.scroll_down(1)),
            KeyCode::End if is_control => {
                let view = self.view.clone();
                self.transcript(view).go_to_end(LOOKED_AT);
                Some(vec![])
            }
            KeyCode::Char('o') if is_control => {
                self.unfolded = !self.unfolded;
                Some(vec![])
            }
            _ => None,
        }
    }

    fn scroll_up(&mut self, lines: usize) -> Vec<Wish> {
        let view = self.view.clone();
        let theme = self.theme;
        self.transcript(view.clone()).up(lines, &view, &theme)
    }

    fn scroll_down(&mut self, lines: usize) -> Vec<Wish> {
        let view = self.view.clone();
        let theme = self.theme;
        self.transcript(view).down(lines, LOOKED_AT, &theme);
        vec![]
    }

    fn input_key(&mut self, key: KeyEvent) -> Vec<Wish> {
        let is_free = !self.input.is_in_mode();
        match (key.code, key.modifiers) {
            (KeyCode::Esc, _) if is_free => return self.escape(),
            (KeyCode::Char('d'), KeyModifiers::CONTROL) if self.input.is_empty() => {
                return vec![Wish::Leave];
            }
            (KeyCode::Tab, _) if is_free && self.asks.is_seen() => {
                self.keys = if self.ask_has_keys() { Keys::Input } else { Keys::Ask };
                return vec![];
            }
            (KeyCode::Tab, _) if is_free => return vec![Wish::ViewNext { back: false }],
            (KeyCode::BackTab, _) if is_free => return vec![Wish::ViewNext { back: true }],
            _ => {}
        }
        match self.input.key(key) {
            Did::Send(text) => {
                self.keys = Keys::Auto;
                let view = self.view.clone();
                self.transcript(view).go_to_end(LOOKED_AT);
                vec![Wish::Say(text)]
            }
            Did::Full => {
                self.hint = Some("there is no room for more".to_owned());
                vec![]
            }
            Did::Taken | Did::Nothing => vec![],
        }
    }

    /// Interrupts who is at work; else clears what is typed, or goes to the end or back to the agent.
    fn escape(&mut self) -> Vec<Wish> {
        let view = self.view.clone();
        let is_busy = match &view {
            Speaker::Coordinator => self.status.busy.is_some(),
            Speaker::Worker(name) => self.is_at_work(name),
        };
        if is_busy {
            return vec![Wish::Interrupt];
        }
        if !self.input.is_empty() {
            self.input.clear();
            return vec![];
        }
        if self.transcript(view.clone()).below().is_some() {
            self.transcript(view).go_to_end(LOOKED_AT);
            return vec![];
        }
        match view {
            Speaker::Coordinator => vec![],
            Speaker::Worker(_) => vec![Wish::View(Speaker::Coordinator)],
        }
    }

    fn is_at_work(&self, name: &str) -> bool {
        let worker = self.status.workers.iter().find(|worker| worker.name == name);
        worker.is_some_and(|worker| worker.state == JobState::Running)
    }

    /// Returns the line that tells that whoever is looked at is at work, and what Esc does then.
    fn busy(&self, columns: usize) -> Option<String> {
        match &self.view {
            Speaker::Coordinator => {
                let (what, since) = (self.status.busy.as_ref()?, self.busy_since?);
                Some(status::busy(what, since, self.now, self.status.queued, columns))
            }
            Speaker::Worker(name) => {
                let told = format!("* {} is at work · Esc stops it", one_line(name));
                self.is_at_work(name).then(|| shortened(&told, columns))
            }
        }
    }

    /// Draws it all.
    pub fn draw(&mut self, frame: &mut Frame) {
        let area = frame.area();
        if area.is_empty() {
            return;
        }
        let (columns, rows) = (usize::from(area.width), usize::from(area.height));
        let plan = self.plan(columns, rows);
        let mut y = area.y;
        let mut next = |height: usize| {
            let part = Rect::new(area.x, y, area.width, height as u16);
            y += height as u16;
            part
        };
        let (transcript, busy, ask, menu, rule, input, chips, status) = (
            next(plan.transcript),
            next(plan.busy),
            next(plan.ask),
            next(plan.menu),
            next(plan.rule),
            next(plan.input),
            next(plan.chips),
            next(plan.status),
        );
        self.draw_transcript(frame, transcript);
        let has_keys = self.ask_wants_keys();
        let buffer = frame.buffer_mut();
        if busy.height > 0
            && let Some(line) = self.busy(columns)
        {
            buffer.set_line(busy.x, busy.y, &Line::styled(line, self.theme.asks), busy.width);
        }
        let asked = self.asks.draw(ask, buffer, has_keys, &self.theme);
        self.input.draw_menu(menu, buffer, &self.theme);
        if rule.height > 0 {
            buffer.set_line(rule.x, rule.y, &self.rule(columns), rule.width);
        }
        let typed = self.input.draw(input, buffer, &self.theme);
        if chips.height > 0 {
            let line = status::chips(&self.status, &self.view, columns, &self.theme);
            buffer.set_line(chips.x, chips.y, &line, chips.width);
        }
        if status.height > 0 {
            let line = self.status_line(columns, plan.rule > 0);
            buffer.set_line(status.x, status.y, &line, status.width);
        }
        if let Some(cursor) = self.cursor(asked, typed) {
            frame.set_cursor_position(cursor);
        }
    }

    /// There is a cursor where something can be typed.
    fn cursor(&self, asked: Option<Position>, typed: Position) -> Option<Position> {
        if self.ask_has_keys() { asked } else { Some(typed) }
    }

    fn draw_transcript(&mut self, frame: &mut Frame, area: Rect) {
        self.page = area.height.into();
        let shape =
            Shape { width: area.width.into(), height: area.height.into(), unfolded: self.unfolded };
        let theme = self.theme;
        let view = self.view.clone();
        let is_agent = view == Speaker::Coordinator;
        let transcript = self.transcript(view);
        let is_new = is_agent && transcript.is_all_held();
        let lines = transcript.seen(shape, LOOKED_AT, &theme);
        let (below, is_at_limit) = (transcript.below(), transcript.is_at_limit());
        let lines = match lines.is_empty() && is_new {
            true => vec![Line::styled(shortened(NOTHING_SAID, area.width.into()), theme.dim)],
            false => lines,
        };
        // What is little stands at the bottom, near the input.
        let top = area.bottom() - (lines.len() as u16).min(area.height);
        for (y, line) in (top..area.bottom()).zip(&lines) {
            frame.buffer_mut().set_line(area.x, y, line, area.width);
        }
        if is_at_limit && area.height > 2 {
            let told = shortened(AT_LIMIT, area.width.into());
            let told = format!("{told:<width$}", width = usize::from(area.width));
            frame.buffer_mut().set_stringn(area.x, area.y, told, area.width.into(), theme.asks);
        }
        if let Some(below) = below.filter(|_| area.height > 2) {
            let told = if below == 0 {
                "↓ Ctrl+End".to_owned()
            } else {
                format!("↓ {below} new · Ctrl+End")
            };
            let told = shortened(&format!(" {told}"), area.width.into());
            let x = area.right() - width(&told) as u16;
            let y = area.bottom() - 1;
            frame.buffer_mut().set_stringn(x, y, told, area.width.into(), theme.asks);
        }
    }

    /// Draws the line above the input: to whom it is said.
    fn rule(&self, columns: usize) -> Line<'static> {
        let to = match &self.view {
            Speaker::Coordinator => String::new(),
            Speaker::Worker(name) => format!("─ to {} ", shortened(&one_line(name), columns / 2)),
        };
        let rest = "─".repeat(columns.saturating_sub(width(&to)));
        Line::styled(format!("{to}{rest}"), self.theme.dim)
    }

    fn status_line(&self, columns: usize, has_rule: bool) -> Line<'static> {
        if let Some(hint) = self.input.searching().or_else(|| self.hint.clone()) {
            return Line::styled(shortened(&hint, columns), self.theme.asks);
        }
        if self.asks.is_open() && !self.asks.is_seen() {
            let told = shortened("? something is asked: make the window larger", columns);
            return Line::styled(told, self.theme.asks);
        }
        match &self.view {
            Speaker::Worker(name) if !has_rule => {
                let to = shortened(&format!("to {}", one_line(name)), columns);
                Line::styled(to, self.theme.dim)
            }
            _ => status::line(&self.status, columns, &self.theme),
        }
    }

    /// Shares the rows out: the input first, what is seen of the transcript last.
    fn plan(&mut self, columns: usize, rows: usize) -> Plan {
        let mut plan = Plan {
            input: self.input.height(columns).clamp(1, (rows / 3).max(1)),
            ..Plan::default()
        };
        plan.status = usize::from(rows >= STATUS_FROM);
        plan.chips = usize::from(rows >= CHIPS_FROM && !self.status.workers.is_empty());
        plan.busy = usize::from(rows >= BUSY_FROM && self.busy(columns).is_some());
        plan.rule = usize::from(rows >= RULE_FROM);
        let left = rows - plan.input - plan.status - plan.chips - plan.busy - plan.rule;
        plan.ask = self.asks.height(columns, left, &self.theme);
        plan.menu = self.input.menu_height().min((left - plan.ask) / 2);
        plan.transcript = left - plan.ask - plan.menu;
        plan
    }
}

/// How many rows each part has, from the top.
#[derive(Default)]
struct Plan {
    transcript: usize,
    busy: usize,
    ask: usize,
    menu: usize,
    rule: usize,
    input: usize,
    chips: usize,
    status: usize,
}
