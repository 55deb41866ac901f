//! Chat screen: shows a conversation and turns key presses into user actions.

use std::collections::HashMap;

use heeler_chat::{ChatJobState, ChatOutput, ChatSpeaker, ConversationStatus, UserAction};
use jiff::{SignedDuration, Timestamp};
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseEventKind};
use ratatui::layout::{Position, Rect};
use ratatui::text::Line;

use crate::input::{CompletionSources, InputKeyOutcome, InputWidget};
use crate::question_panel::{QuestionKeyOutcome, QuestionPanel};
use crate::text::{one_line, sanitize, truncate_to_width, width};
use crate::transcript::{
    BACKGROUND_LIMITS, FOCUSED_LIMITS, SearchDirection, TranscriptSearch, TranscriptViewport,
    TranscriptWidget, mark_matches,
};
use crate::transcript_cell::TranscriptCell;
use crate::{TerminalTheme, keys, status_line};

/// Time within which the second Ctrl+C leaves.
const EXIT_ARMED_TIME: SignedDuration = SignedDuration::from_secs(3);
const EXIT_HINT: &str = "Ctrl+C again to leave";

/// Queued messages that are shown above the input.
const QUEUED_SHOWN_MAX: usize = 3;

/// Lines per step of the mouse wheel.
const WHEEL_LINES: usize = 3;

/// Smallest screen heights at which optional parts are shown.
const STATUS_ROWS_MIN: usize = 3;
const BUSY_ROWS_MIN: usize = 5;
const CHIPS_ROWS_MIN: usize = 6;
const RULE_ROWS_MIN: usize = 8;

/// Hint in an empty transcript.
const EMPTY_TRANSCRIPT_HINT: &str =
    "  Type a message and press Enter; /help lists commands and keys.";

/// Hint above the oldest entry that can be scrolled to.
const SCROLL_LIMIT_HINT: &str =
    "↑ older entries are not shown: /search TEXT finds them, /export writes them";

/// Receiver of keys while a question is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyFocus {
    /// The question, unless there is typed text.
    Auto,
    /// The question.
    Question,
    /// The input.
    Input,
}

/// Chat screen.
pub struct ChatScreen {
    theme: TerminalTheme,
    transcripts: HashMap<ChatSpeaker, TranscriptWidget>,
    view: ChatSpeaker,
    status: ConversationStatus,
    busy_since: Option<Timestamp>,
    questions: QuestionPanel,
    focus: KeyFocus,
    input: InputWidget,
    /// Message shown until the next key press.
    hint: Option<String>,
    /// Ctrl+C was pressed; a second press before this time leaves.
    exit_armed_until: Option<Timestamp>,
    /// Open search in the transcript.
    search: Option<TranscriptSearch>,
    /// Text for the terminal's clipboard.
    clipboard: Option<String>,
    unfolded: bool,
    now: Timestamp,
    /// Visible lines of the transcript.
    page: usize,
}

impl ChatScreen {
    /// Creates a screen; `history` are earlier input lines, oldest first.
    pub fn new(
        theme: TerminalTheme,
        completion: CompletionSources,
        history: Vec<String>,
    ) -> ChatScreen {
        ChatScreen {
            theme,
            transcripts: HashMap::new(),
            view: ChatSpeaker::Coordinator,
            status: ConversationStatus::default(),
            busy_since: None,
            questions: QuestionPanel::default(),
            focus: KeyFocus::Auto,
            input: InputWidget::new(completion, history),
            hint: None,
            exit_armed_until: None,
            search: None,
            clipboard: None,
            unfolded: false,
            now: Timestamp::UNIX_EPOCH,
            page: 1,
        }
    }

    /// Sets the current time.
    pub fn set_time(&mut self, now: Timestamp) {
        self.now = now;
        if self.exit_armed_until.is_some_and(|until| until < now) {
            self.exit_armed_until = None;
            self.hint = self.hint.take().filter(|hint| hint != EXIT_HINT);
        }
    }

    /// Returns true if the screen changes with time.
    pub fn is_ticking(&self) -> bool {
        self.busy_since.is_some() || self.exit_armed_until.is_some()
    }

    /// Takes the text that the person wants in the clipboard.
    pub fn take_clipboard(&mut self) -> Option<String> {
        self.clipboard.take()
    }

    /// Handles output of the conversation.
    pub fn handle_output(&mut self, shown: ChatOutput) {
        match shown {
            ChatOutput::Entry { of, entry } => {
                let bounds = self.transcript_limits(&of);
                self.transcript(of).push_entry(&entry, bounds);
            }
            ChatOutput::Delta { of, text } => self.transcript(of).append_stream(&text),
            ChatOutput::DeltaEnded { of } => self.transcript(of).clear_stream(),
            ChatOutput::OlderEntries { of, entries, has_more } => {
                let bounds = self.transcript_limits(&of);
                self.transcript(of).prepend_entries(&entries, has_more, bounds);
            }
            // Entries and questions of the old session must not mix with the new one.
            ChatOutput::SessionReplaced => {
                self.transcripts.clear();
                self.questions.clear();
                self.view = ChatSpeaker::Coordinator;
            }
            ChatOutput::QuestionAsked(question) => self.questions.add(question),
            ChatOutput::QuestionClosed { ask } => {
                if self.questions.remove(&ask) {
                    // A key press meant for this question must not answer another one.
                    self.focus = KeyFocus::Auto;
                    self.hint = Some("the question was closed".to_owned());
                }
            }
            ChatOutput::Notice(text) => self.push_notice(TranscriptCell::Notice(sanitize(&text))),
            ChatOutput::Diff(patch) => self.push_notice(TranscriptCell::Diff(sanitize(&patch))),
            ChatOutput::Clipboard(text) => {
                let count = text.chars().count();
                self.hint = Some(format!("copied: {count} characters (if the terminal allows it)"));
                self.clipboard = Some(text);
            }
            ChatOutput::ExitMessage(text) => {
                self.push_notice(TranscriptCell::System(sanitize(&text)));
            }
            ChatOutput::Error(text) => self.push_notice(TranscriptCell::Failed(sanitize(&text))),
            ChatOutput::ThemeChanged(theme) => {
                self.theme = theme.into();
                self.transcripts.values_mut().for_each(TranscriptWidget::forget_layouts);
            }
            ChatOutput::Status(status) => {
                // The time continues while the status changes, for example from one tool to the
                // next.
                let since = self.busy_since.unwrap_or(self.now);
                self.busy_since = status.busy.is_some().then_some(since);
                self.status = *status;
            }
            ChatOutput::ViewChanged(view) => self.switch_view(view),
            ChatOutput::SuggestedInput(text) => self.input.suggest(&text),
            ChatOutput::Exited => {}
        }
    }

    fn transcript(&mut self, of: ChatSpeaker) -> &mut TranscriptWidget {
        self.transcripts.entry(of).or_default()
    }

    fn transcript_limits(&self, of: &ChatSpeaker) -> crate::transcript::TranscriptLimits {
        if *of == self.view { FOCUSED_LIMITS } else { BACKGROUND_LIMITS }
    }

    fn push_notice(&mut self, cell: TranscriptCell) {
        let view = self.view.clone();
        // A notice answers the person, so it appears where they look.
        self.transcript(view).push_notice(cell, FOCUSED_LIMITS);
    }

    fn switch_view(&mut self, view: ChatSpeaker) {
        let before = std::mem::replace(&mut self.view, view);
        if before != self.view {
            // A transcript out of view needs less memory, and opens at its end the next time.
            self.transcript(before).go_to_end(BACKGROUND_LIMITS);
        }
    }

    /// Handles a key, paste, mouse or resize event; returns the resulting actions.
    pub fn handle_event(&mut self, event: &Event) -> Vec<UserAction> {
        match event {
            Event::Paste(text) => {
                self.paste(text);
                vec![]
            }
            Event::Mouse(mouse) => match mouse.kind {
                MouseEventKind::ScrollUp => self.handle_wheel(true),
                MouseEventKind::ScrollDown => self.handle_wheel(false),
                _ => vec![],
            },
            event => keys::pressed_key(event).map_or_else(Vec::new, |key| self.handle_key(key)),
        }
    }

    /// Scrolls the transcript, or the question if it fills the screen.
    fn handle_wheel(&mut self, up: bool) -> Vec<UserAction> {
        match up {
            // Without a visible transcript the wheel can only mean the question.
            _ if self.page == 0 && self.questions.is_visible() => {
                self.questions.scroll(WHEEL_LINES, up);
                vec![]
            }
            true => self.scroll_up(WHEEL_LINES),
            false => self.scroll_down(WHEEL_LINES),
        }
    }

    fn paste(&mut self, text: &str) {
        let outcome = match self.question_has_focus() {
            true if self.questions.is_typing() => return self.questions.paste(text),
            true => {
                // Pasted text is meant for the input, even if a question is open.
                self.focus = KeyFocus::Input;
                self.input.paste(text)
            }
            false => self.input.paste(text),
        };
        if outcome == InputKeyOutcome::Full {
            self.hint = Some("the text is too long to paste: refer to a file with @".to_owned());
        }
    }

    fn handle_key(&mut self, key: KeyEvent) -> Vec<UserAction> {
        // A hint lasts until the next key, so that it cannot hide something newer.
        self.hint = None;
        // Any other key in between cancels the exit.
        let leaves = self.exit_armed_until.take().is_some();
        if (key.code, key.modifiers) == (KeyCode::Char('c'), KeyModifiers::CONTROL) {
            return self.handle_control_c(leaves);
        }
        if self.search.is_some() && self.handle_search_key(key) {
            return vec![];
        }
        if let Some(actions) = self.handle_scroll_key(key) {
            return actions;
        }
        if self.question_has_focus() {
            match self.questions.handle_key(key) {
                QuestionKeyOutcome::Answer(action) => {
                    self.focus = KeyFocus::Auto;
                    return vec![action];
                }
                QuestionKeyOutcome::Handled => return vec![],
                // While an answer is typed, no key may reach the input behind it.
                QuestionKeyOutcome::Ignored if self.questions.is_typing() => return vec![],
                QuestionKeyOutcome::Ignored => {}
            }
        }
        self.handle_input_key(key)
    }

    /// Returns true if keys go to the question as soon as it is visible.
    fn question_wants_focus(&self) -> bool {
        match self.focus {
            // Typed text is never taken for an answer: a person may be in the middle of a word.
            KeyFocus::Auto => self.input.is_empty() && !self.input.has_popup(),
            KeyFocus::Question => true,
            KeyFocus::Input => false,
        }
    }

    fn question_has_focus(&self) -> bool {
        self.question_wants_focus() && self.questions.is_visible()
    }

    fn handle_control_c(&mut self, leaves: bool) -> Vec<UserAction> {
        if self.search.take().is_some() {
            return vec![];
        }
        // As in a shell, the first press clears the line.
        if !self.input.is_empty() || self.input.has_popup() {
            self.input.clear();
            return vec![];
        }
        if leaves {
            return vec![UserAction::Exit];
        }
        self.exit_armed_until = self.now.checked_add(EXIT_ARMED_TIME).ok();
        self.hint = Some(EXIT_HINT.to_owned());
        vec![]
    }

    fn handle_scroll_key(&mut self, key: KeyEvent) -> Option<Vec<UserAction>> {
        // Two lines overlap, so that the reader keeps their place.
        let page = self.page.saturating_sub(2).max(1);
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let is_shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            // PgUp and PgDn scroll a long question; with Shift they scroll the transcript.
            KeyCode::PageUp | KeyCode::PageDown if self.question_has_focus() && !is_shift => None,
            KeyCode::PageUp => Some(self.scroll_up(page)),
            KeyCode::PageDown => Some(self.scroll_down(page)),
            KeyCode::Up if is_shift => Some(self.scroll_up(1)),
            KeyCode::Down if is_shift => Some(self.scroll_down(1)),
            KeyCode::End if is_control => {
                let view = self.view.clone();
                self.transcript(view).go_to_end(FOCUSED_LIMITS);
                Some(vec![])
            }
            KeyCode::Char('o') if is_control => {
                self.unfolded = !self.unfolded;
                Some(vec![])
            }
            _ => None,
        }
    }

    fn scroll_up(&mut self, lines: usize) -> Vec<UserAction> {
        let view = self.view.clone();
        let theme = self.theme;
        self.transcript(view.clone()).scroll_up(lines, &view, &theme)
    }

    fn scroll_down(&mut self, lines: usize) -> Vec<UserAction> {
        let view = self.view.clone();
        let theme = self.theme;
        self.transcript(view).scroll_down(lines, FOCUSED_LIMITS, &theme);
        vec![]
    }

    fn handle_input_key(&mut self, key: KeyEvent) -> Vec<UserAction> {
        let is_free = !self.input.has_popup();
        match (key.code, key.modifiers) {
            (KeyCode::Esc, _) if is_free => return self.handle_escape(),
            // As in a shell, only on an empty line.
            (KeyCode::Char('d'), KeyModifiers::CONTROL) if self.input.is_empty() => {
                return vec![UserAction::Exit];
            }
            (KeyCode::Tab, _) if is_free && self.questions.is_visible() => {
                self.focus =
                    if self.question_has_focus() { KeyFocus::Input } else { KeyFocus::Question };
                return vec![];
            }
            (KeyCode::Tab, _) if is_free => return vec![UserAction::ViewNext { back: false }],
            (KeyCode::BackTab, held) if is_free && held.contains(KeyModifiers::ALT) => {
                return vec![UserAction::ViewNext { back: true }];
            }
            (KeyCode::BackTab, _) if is_free => return vec![UserAction::CycleMode],
            (KeyCode::Char('s'), KeyModifiers::CONTROL) if is_free => {
                self.search = Some(TranscriptSearch::default());
                return vec![];
            }
            (KeyCode::Up, KeyModifiers::NONE)
                if is_free && self.input.is_empty() && self.status.queued > 0 =>
            {
                return vec![UserAction::EditQueued];
            }
            _ => {}
        }
        match self.input.handle_key(key) {
            InputKeyOutcome::Send(text) => {
                self.focus = KeyFocus::Auto;
                let view = self.view.clone();
                // A person who sends a message wants to see its answer.
                self.transcript(view).go_to_end(FOCUSED_LIMITS);
                vec![UserAction::SendLine(text)]
            }
            InputKeyOutcome::Full => {
                self.hint = Some("the input is full".to_owned());
                vec![]
            }
            InputKeyOutcome::Handled | InputKeyOutcome::Ignored => vec![],
        }
    }

    /// Handles a key of an open search; returns false if the key ends the search and has a meaning
    /// of its own.
    fn handle_search_key(&mut self, key: KeyEvent) -> bool {
        let (view, theme) = (self.view.clone(), self.theme);
        let Some(mut search) = self.search.take() else { return false };
        let transcript = self.transcript(view);
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => return true,
            KeyCode::Char('s') if is_control => {
                search.find(transcript, SearchDirection::Older, &theme);
            }
            KeyCode::Up | KeyCode::Enter => search.find(transcript, SearchDirection::Older, &theme),
            KeyCode::Down => search.find(transcript, SearchDirection::Newer, &theme),
            KeyCode::Backspace => {
                search.pattern.pop();
                search.restart(transcript, &theme);
            }
            KeyCode::Char(c) if !is_control && !c.is_control() => {
                search.pattern.push(c);
                search.restart(transcript, &theme);
            }
            _ => return false,
        }
        self.search = Some(search);
        true
    }

    /// Interrupts a running agent; else clears the input, scrolls to the end, or returns to the
    /// agent's view.
    fn handle_escape(&mut self) -> Vec<UserAction> {
        let view = self.view.clone();
        let is_busy = match &view {
            ChatSpeaker::Coordinator => self.status.busy.is_some(),
            ChatSpeaker::Worker(name) => self.is_worker_running(name),
        };
        // Interrupting comes first, because it is urgent.
        if is_busy {
            return vec![UserAction::Interrupt];
        }
        if !self.input.is_empty() {
            self.input.clear();
            return vec![];
        }
        if self.transcript(view.clone()).unseen_below().is_some() {
            self.transcript(view).go_to_end(FOCUSED_LIMITS);
            return vec![];
        }
        match view {
            ChatSpeaker::Coordinator => vec![],
            ChatSpeaker::Worker(_) => vec![UserAction::View(ChatSpeaker::Coordinator)],
        }
    }

    fn is_worker_running(&self, name: &str) -> bool {
        let worker = self.status.workers.iter().find(|worker| worker.name == name);
        worker.is_some_and(|worker| worker.state == ChatJobState::Running)
    }

    /// Returns the line that shows the activity of the agent or worker in view, and the effect of
    /// Esc.
    fn busy_line(&self, columns: usize) -> Option<String> {
        match &self.view {
            ChatSpeaker::Coordinator => {
                let (what, since) = (self.status.busy.as_ref()?, self.busy_since?);
                Some(status_line::busy_line(what, since, self.now, self.status.queued, columns))
            }
            ChatSpeaker::Worker(name) => {
                let text = format!("* {} is running · Esc stops it", one_line(name));
                self.is_worker_running(name).then(|| truncate_to_width(&text, columns))
            }
        }
    }

    /// Draws the screen.
    pub fn draw(&mut self, frame: &mut Frame) {
        let area = frame.area();
        if area.is_empty() {
            return;
        }
        let (columns, rows) = (usize::from(area.width), usize::from(area.height));
        let plan = self.compute_layout(columns, rows);
        let mut y = area.y;
        let mut next = |height: usize| {
            let part = Rect::new(area.x, y, area.width, height as u16);
            y += height as u16;
            part
        };
        let (transcript, busy, queued, ask, menu, rule, input, chips, status) = (
            next(plan.transcript),
            next(plan.busy),
            next(plan.queued),
            next(plan.ask),
            next(plan.menu),
            next(plan.rule),
            next(plan.input),
            next(plan.chips),
            next(plan.status),
        );
        self.draw_transcript(frame, transcript);
        let has_keys = self.question_wants_focus();
        let buffer = frame.buffer_mut();
        if busy.height > 0
            && let Some(line) = self.busy_line(columns)
        {
            buffer.set_line(busy.x, busy.y, &Line::styled(line, self.theme.attention), busy.width);
        }
        for (y, text) in (queued.top()..queued.bottom()).zip(&self.status.queued_texts) {
            let text = truncate_to_width(&format!("↳ queued: {}", one_line(text)), columns);
            buffer.set_line(queued.x, y, &Line::styled(text, self.theme.dim), queued.width);
        }
        let question_cursor = self.questions.draw(ask, buffer, has_keys, &self.theme);
        self.input.draw_menu(menu, buffer, &self.theme);
        if rule.height > 0 {
            buffer.set_line(rule.x, rule.y, &self.separator_line(columns), rule.width);
        }
        let input_cursor = self.input.draw(input, buffer, &self.theme);
        if chips.height > 0 {
            let line = status_line::worker_chips(&self.status, &self.view, columns, &self.theme);
            buffer.set_line(chips.x, chips.y, &line, chips.width);
        }
        if status.height > 0 {
            let line = self.status_line(columns, plan.rule > 0);
            buffer.set_line(status.x, status.y, &line, status.width);
        }
        if let Some(cursor) = self.cursor_position(question_cursor, input_cursor) {
            frame.set_cursor_position(cursor);
        }
    }

    /// Returns the position of the cursor, if text can be typed.
    fn cursor_position(&self, question: Option<Position>, input: Position) -> Option<Position> {
        if self.question_has_focus() { question } else { Some(input) }
    }

    fn draw_transcript(&mut self, frame: &mut Frame, area: Rect) {
        self.page = area.height.into();
        let shape = TranscriptViewport {
            width: area.width.into(),
            height: area.height.into(),
            unfolded: self.unfolded,
        };
        let theme = self.theme;
        let view = self.view.clone();
        let is_agent = view == ChatSpeaker::Coordinator;
        let transcript = self.transcript(view);
        let is_new = is_agent && transcript.is_complete();
        let mut lines = transcript.visible_lines(shape, FOCUSED_LIMITS, &theme);
        let (below, is_at_limit) = (transcript.unseen_below(), transcript.is_at_limit());
        if let Some(search) = &self.search {
            lines.iter_mut().for_each(|line| mark_matches(line, &search.pattern));
        }
        let lines = match lines.is_empty() && is_new {
            true => vec![Line::styled(
                truncate_to_width(EMPTY_TRANSCRIPT_HINT, area.width.into()),
                theme.dim,
            )],
            false => lines,
        };
        // A short transcript is drawn at the bottom, near the input.
        let top = area.bottom() - (lines.len() as u16).min(area.height);
        for (y, line) in (top..area.bottom()).zip(&lines) {
            frame.buffer_mut().set_line(area.x, y, line, area.width);
        }
        // In a tiny window a hint would cover the only lines.
        if is_at_limit && area.height > 2 {
            let text = truncate_to_width(SCROLL_LIMIT_HINT, area.width.into());
            let text = format!("{text:<width$}", width = usize::from(area.width));
            frame.buffer_mut().set_stringn(
                area.x,
                area.y,
                text,
                area.width.into(),
                theme.attention,
            );
        }
        if let Some(below) = below.filter(|_| area.height > 2) {
            let text = if below == 0 {
                "↓ Ctrl+End".to_owned()
            } else {
                format!("↓ {below} new · Ctrl+End")
            };
            let text = truncate_to_width(&format!(" {text}"), area.width.into());
            let x = area.right() - width(&text) as u16;
            let y = area.bottom() - 1;
            frame.buffer_mut().set_stringn(x, y, text, area.width.into(), theme.attention);
        }
    }

    /// Returns the line above the input; it names the worker that receives the input.
    fn separator_line(&self, columns: usize) -> Line<'static> {
        let to = match &self.view {
            ChatSpeaker::Coordinator => String::new(),
            ChatSpeaker::Worker(name) => {
                format!("─ to {} ", truncate_to_width(&one_line(name), columns / 2))
            }
        };
        let rest = "─".repeat(columns.saturating_sub(width(&to)));
        Line::styled(format!("{to}{rest}"), self.theme.dim)
    }

    fn status_line(&self, columns: usize, has_rule: bool) -> Line<'static> {
        let search = self.search.as_ref().map(TranscriptSearch::prompt);
        if let Some(hint) = search.or(self.input.search_prompt()).or_else(|| self.hint.clone()) {
            return Line::styled(truncate_to_width(&hint, columns), self.theme.attention);
        }
        // A question that does not fit must not wait unnoticed.
        if self.questions.is_open() && !self.questions.is_visible() {
            let text = truncate_to_width("? a question is open: enlarge the window", columns);
            return Line::styled(text, self.theme.attention);
        }
        match &self.view {
            ChatSpeaker::Worker(name) if !has_rule => {
                let to = truncate_to_width(&format!("to {}", one_line(name)), columns);
                Line::styled(to, self.theme.dim)
            }
            _ => status_line::status_line(&self.status, columns, &self.theme),
        }
    }

    /// Distributes the rows: the input first, the transcript last.
    fn compute_layout(&mut self, columns: usize, rows: usize) -> ScreenLayout {
        let mut plan = ScreenLayout {
            // A long input may take a third of the screen, so that the transcript stays visible.
            input: self.input.height(columns).clamp(1, (rows / 3).max(1)),
            ..ScreenLayout::default()
        };
        plan.status = usize::from(rows >= STATUS_ROWS_MIN);
        plan.chips = usize::from(rows >= CHIPS_ROWS_MIN && !self.status.workers.is_empty());
        plan.busy = usize::from(rows >= BUSY_ROWS_MIN && self.busy_line(columns).is_some());
        plan.rule = usize::from(rows >= RULE_ROWS_MIN);
        let mut left = rows - plan.input - plan.status - plan.chips - plan.busy - plan.rule;
        // The messages that wait are shown where the transcript stays readable.
        plan.queued = self.status.queued_texts.len().min(QUEUED_SHOWN_MAX).min(left / 4);
        left -= plan.queued;
        plan.ask = self.questions.height(columns, left, &self.theme);
        plan.menu = self.input.menu_height().min((left - plan.ask) / 2);
        plan.transcript = left - plan.ask - plan.menu;
        plan
    }
}

/// Rows of each part, from the top.
#[derive(Default)]
struct ScreenLayout {
    transcript: usize,
    busy: usize,
    queued: usize,
    ask: usize,
    menu: usize,
    rule: usize,
    input: usize,
    chips: usize,
    status: usize,
}
