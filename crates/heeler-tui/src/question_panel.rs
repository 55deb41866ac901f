//! Questions of agents: one at a time, in a panel above the input.
//!
//! A key press answers a question only if the question was on the screen at that time. Start at
//! [`QuestionPanel`].

use std::collections::VecDeque;

use heeler_chat::{ChatQuestion, ChatSpeaker, UserAction};
use heeler_model::question::{allows_multiple, options, questions};
use heeler_model::run::QuestionAnswer;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::{Map, Value as Json};

use crate::TerminalTheme;
use crate::editor::{CursorMotion, TextEditor};
use crate::preview;
use crate::text::{LineBreakMode, TextFlow, reveal_hidden, truncate_to_width};

/// Message to the agent for a denial without a reason.
const DENIED_MESSAGE: &str = "the person does not want this";

/// Choice of a permission question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PermissionChoice {
    AllowOnce,
    /// Also allows what the question's grant covers, for the rest of the conversation.
    AllowSession,
    /// Also allows what the question's grant covers, in all later runs of the agent.
    AllowAlways,
    Deny,
    DenyWithReason,
}

/// Panel of open questions.
#[derive(Default)]
pub(crate) struct QuestionPanel {
    waiting: VecDeque<ChatQuestion>,
    state: QuestionPanelState,
}

/// State of the first question.
#[derive(Default)]
struct QuestionPanelState {
    /// The question was on the screen, so it can be answered.
    is_visible: bool,
    cursor: usize,
    /// Selected options, if several can be chosen.
    selected: Vec<bool>,
    /// Answers so far: question and answer.
    answers: Vec<(String, String)>,
    /// Answer or reason that is being typed.
    text_input: Option<TextEditor>,
    /// Scroll position of the preview, and if it uses all rows.
    scrolled: usize,
    is_expanded: bool,
    /// Layout for a number of columns.
    cached_layout: Option<(usize, Vec<Line<'static>>)>,
    /// Visible lines of the preview.
    page: usize,
}

/// Result of a key press.
#[derive(Debug, PartialEq)]
pub(crate) enum QuestionKeyOutcome {
    /// The key has no meaning here.
    Ignored,
    /// The key was handled.
    Handled,
    /// Answer to send.
    Answer(UserAction),
}

impl QuestionPanel {
    /// Adds a question, once.
    pub(crate) fn add(&mut self, question: ChatQuestion) {
        // The same question may be reported twice: by the event and when a run is taken over.
        if self.waiting.iter().all(|known| known.ask.id != question.ask.id) {
            self.waiting.push_back(question);
        }
    }

    /// Removes a question; returns true if it was on the screen.
    pub(crate) fn remove(&mut self, ask: &str) -> bool {
        let place = self.waiting.iter().position(|known| known.ask.id == ask);
        let Some(at) = place else { return false };
        self.waiting.remove(at);
        // Only the first question is shown, so removing another one changes nothing on the screen.
        at == 0 && std::mem::take(&mut self.state).is_visible
    }

    /// Removes all questions, because the session was replaced.
    pub(crate) fn clear(&mut self) {
        *self = QuestionPanel::default();
    }

    /// Returns true if a question is on the screen and can be answered.
    pub(crate) fn is_visible(&self) -> bool {
        self.state.is_visible && !self.waiting.is_empty()
    }

    /// Returns true if there are open questions.
    pub(crate) fn is_open(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns true if an answer is being typed.
    pub(crate) fn is_typing(&self) -> bool {
        self.is_visible() && self.state.text_input.is_some()
    }

    /// Inserts a pasted text into the typed answer.
    pub(crate) fn paste(&mut self, text: &str) {
        if let Some(editor) = &mut self.state.text_input {
            editor.insert(&crate::text::sanitize(text));
        }
    }

    fn submit_answer(&mut self, answer: QuestionAnswer) -> QuestionKeyOutcome {
        // The next question starts without the cursor and text of this one.
        self.state = QuestionPanelState::default();
        let Some(question) = self.waiting.pop_front() else { return QuestionKeyOutcome::Ignored };
        QuestionKeyOutcome::Answer(UserAction::Answer {
            job: question.job,
            ask: question.ask.id,
            answer,
        })
    }

    fn deny(&mut self, reason: &str, interrupt: bool) -> QuestionKeyOutcome {
        self.submit_answer(QuestionAnswer::Deny { message: reason.to_owned(), interrupt })
    }

    /// Returns the question to answer next; `None` for a permission question.
    fn open_question(&self) -> Option<&Json> {
        let ask = &self.waiting.front()?.ask;
        // Other kinds have no list of questions and are shown as a permission.
        let questions = if ask.kind == "question" { questions(&ask.input) } else { &[] };
        questions.get(self.state.answers.len())
    }

    /// Returns the choices, with check boxes if several can be chosen.
    fn choices(&self) -> Vec<String> {
        let Some(question) = self.open_question() else {
            return self.permission_choices().into_iter().map(|(_, text)| text).collect();
        };
        let several = allows_multiple(question);
        let option = |(at, option): (usize, &Json)| {
            // Labels come from the agent, so hidden characters in them are made visible.
            let label = crate::text::one_line(&reveal_hidden(text(&option["label"])));
            let about = crate::text::one_line(&reveal_hidden(text(&option["description"])));
            let about = if about.is_empty() { about } else { format!(": {about}") };
            let is_selected = self.state.selected.get(at) == Some(&true);
            let check_box = match (several, is_selected) {
                (false, _) => "",
                (true, true) => "[x] ",
                (true, false) => "[ ] ",
            };
            format!("{check_box}{label}{about}")
        };
        let mut choices: Vec<String> = options(question).iter().enumerate().map(option).collect();
        choices.push("another answer, in your own words".to_owned());
        choices
    }

    /// Scrolls the preview; the range is limited when it is drawn.
    pub(crate) fn scroll(&mut self, lines: usize, up: bool) {
        let scrolled = self.state.scrolled;
        self.state.scrolled = if up { scrolled.saturating_sub(lines) } else { scrolled + lines };
    }

    /// Handles a key. Call it only if [`QuestionPanel::is_visible`].
    pub(crate) fn handle_key(&mut self, key: KeyEvent) -> QuestionKeyOutcome {
        if self.state.text_input.is_some() {
            return self.handle_text_key(key);
        }
        let count = self.choices().len();
        match (key.code, key.modifiers) {
            (KeyCode::Up, KeyModifiers::NONE) => {
                self.state.cursor = (self.state.cursor + count - 1) % count;
            }
            (KeyCode::Down, KeyModifiers::NONE) => {
                self.state.cursor = (self.state.cursor + 1) % count;
            }
            (KeyCode::PageUp, _) => self.scroll(self.state.page.max(1), true),
            (KeyCode::PageDown, _) => self.scroll(self.state.page.max(1), false),
            (KeyCode::Char('e'), KeyModifiers::CONTROL) => {
                self.state.is_expanded = !self.state.is_expanded;
            }
            // A person may correct an earlier answer of the same request.
            (KeyCode::Left, KeyModifiers::NONE) if !self.state.answers.is_empty() => {
                self.state.answers.pop();
                self.next_question();
            }
            (KeyCode::Char(' '), KeyModifiers::NONE) if self.allows_multiple() => {
                self.toggle_option(self.state.cursor);
            }
            // Modifiers are excluded: a key of the terminal must not answer.
            (KeyCode::Char(c), KeyModifiers::NONE) => {
                let number = c.to_digit(10).and_then(|digit| (digit as usize).checked_sub(1));
                match number.filter(|number| *number < count) {
                    Some(number) => return self.choose_number(number),
                    None => return QuestionKeyOutcome::Ignored,
                }
            }
            (KeyCode::Enter, KeyModifiers::NONE) => return self.enter(),
            (KeyCode::Esc, _) => return self.deny(DENIED_MESSAGE, true),
            _ => return QuestionKeyOutcome::Ignored,
        }
        QuestionKeyOutcome::Handled
    }

    fn allows_multiple(&self) -> bool {
        self.open_question().is_some_and(allows_multiple)
    }

    fn toggle_option(&mut self, at: usize) {
        let count = self.open_question().map_or(0, |question| options(question).len());
        // The entry after the options is the free text.
        if at >= count {
            self.state.text_input = Some(TextEditor::default());
            return;
        }
        self.state.selected.resize(count, false);
        self.state.selected[at] = !self.state.selected[at];
        self.state.cursor = at;
    }

    fn enter(&mut self) -> QuestionKeyOutcome {
        let selected = self.selected_options();
        // Without any mark the option under the cursor is the answer.
        match self.allows_multiple() && !selected.is_empty() {
            true => self.record_answer(selected.join(", ")),
            false => self.choose(self.state.cursor),
        }
    }

    fn selected_options(&self) -> Vec<String> {
        let question = self.open_question().unwrap_or(&Json::Null);
        let selected =
            options(question).iter().zip(&self.state.selected).filter(|(_, selected)| **selected);
        // The original label is sent, not the one that was changed for display.
        selected.map(|(option, _)| text(&option["label"]).to_owned()).collect()
    }

    /// Handles a number: toggles an option if several can be chosen, else chooses it.
    fn choose_number(&mut self, at: usize) -> QuestionKeyOutcome {
        if self.allows_multiple() {
            self.toggle_option(at);
            return QuestionKeyOutcome::Handled;
        }
        self.choose(at)
    }

    /// Chooses an option.
    fn choose(&mut self, at: usize) -> QuestionKeyOutcome {
        if let Some(question) = self.open_question() {
            let label = options(question).get(at).map(|option| text(&option["label"]).to_owned());
            return match label {
                Some(label) => self.record_answer(label),
                None => {
                    self.state.text_input = Some(TextEditor::default());
                    QuestionKeyOutcome::Handled
                }
            };
        }
        match self.permission_choices().get(at).map(|(choice, _)| *choice) {
            Some(PermissionChoice::AllowOnce) => {
                self.submit_answer(QuestionAnswer::Allow { input: None })
            }
            Some(PermissionChoice::AllowSession) => {
                self.submit_answer(QuestionAnswer::AllowSession)
            }
            Some(PermissionChoice::AllowAlways) => self.submit_answer(QuestionAnswer::AllowAlways),
            Some(PermissionChoice::Deny) => self.deny(DENIED_MESSAGE, false),
            Some(PermissionChoice::DenyWithReason) | None => {
                self.state.text_input = Some(TextEditor::default());
                QuestionKeyOutcome::Handled
            }
        }
    }

    /// Returns the choices of a permission question. What lasts longer than the request is named.
    fn permission_choices(&self) -> Vec<(PermissionChoice, String)> {
        let grant = self.waiting.front().and_then(|question| question.ask.grant.as_ref());
        let mut choices = vec![(PermissionChoice::AllowOnce, "allow it once".to_owned())];
        if let Some(grant) = grant {
            let what = reveal_hidden(&grant.describe());
            let text = format!("allow for this conversation: {what}");
            choices.push((PermissionChoice::AllowSession, text));
            if grant.lasting_rules().is_some() {
                choices.push((PermissionChoice::AllowAlways, format!("allow always: {what}")));
            }
        }
        choices.push((PermissionChoice::Deny, "deny it".to_owned()));
        choices.push((PermissionChoice::DenyWithReason, "deny it and say why".to_owned()));
        choices
    }

    /// Records the answer to the current question; all answers are sent together.
    fn record_answer(&mut self, answer: String) -> QuestionKeyOutcome {
        let question_text =
            self.open_question().map(|question| text(&question["question"]).to_owned());
        self.state.answers.push((question_text.unwrap_or_default(), answer));
        if self.open_question().is_some() {
            self.next_question();
            return QuestionKeyOutcome::Handled;
        }
        let Some(question) = self.waiting.front() else { return QuestionKeyOutcome::Ignored };
        let mut input = question.ask.input.clone();
        let answers =
            self.state.answers.drain(..).map(|(question, answer)| (question, answer.into()));
        // The agent reads the answers from the tool's input, by question.
        input["answers"] = Json::Object(answers.collect::<Map<String, Json>>());
        self.submit_answer(QuestionAnswer::Allow { input: Some(input) })
    }

    fn next_question(&mut self) {
        let answers = std::mem::take(&mut self.state.answers);
        let is_whole = self.state.is_expanded;
        self.state =
            QuestionPanelState { answers, is_expanded: is_whole, ..QuestionPanelState::default() };
    }

    fn handle_text_key(&mut self, key: KeyEvent) -> QuestionKeyOutcome {
        let Some(editor) = &mut self.state.text_input else { return QuestionKeyOutcome::Ignored };
        match (key.code, key.modifiers) {
            (KeyCode::Enter, KeyModifiers::NONE) => {
                let answer = editor.text().trim().to_owned();
                return match (answer.is_empty(), self.open_question().is_some()) {
                    // An empty answer is a slip, so it is not sent.
                    (true, _) => QuestionKeyOutcome::Handled,
                    (false, true) => self.record_answer(answer),
                    // A typed text on a permission is the reason of a denial.
                    (false, false) => self.deny(&answer, false),
                };
            }
            (KeyCode::Enter, _) => {
                editor.insert("\n");
            }
            (KeyCode::Esc, _) => {
                let has_options = self.open_question().is_none_or(|it| !options(it).is_empty());
                // Without options there is nothing to go back to.
                if !has_options {
                    return self.deny(DENIED_MESSAGE, true);
                }
                self.state.text_input = None;
            }
            (KeyCode::Char(c), KeyModifiers::NONE | KeyModifiers::SHIFT)
                if !heeler_model::is_terminal_control(c) =>
            {
                editor.insert(c.encode_utf8(&mut [0; 4]));
            }
            (KeyCode::Char('u'), KeyModifiers::CONTROL) => editor.cut(CursorMotion::LineStart),
            (KeyCode::Char('w'), KeyModifiers::CONTROL) => editor.cut(CursorMotion::PreviousBlank),
            (KeyCode::Char('a'), KeyModifiers::CONTROL) | (KeyCode::Home, _) => {
                editor.move_cursor(CursorMotion::LineStart);
            }
            (KeyCode::Char('e'), KeyModifiers::CONTROL) | (KeyCode::End, _) => {
                editor.move_cursor(CursorMotion::LineEnd);
            }
            (KeyCode::Backspace, _) => editor.delete(CursorMotion::PreviousGrapheme),
            (KeyCode::Delete, _) => editor.delete(CursorMotion::NextGrapheme),
            (KeyCode::Left, _) => editor.move_cursor(CursorMotion::PreviousGrapheme),
            (KeyCode::Right, _) => editor.move_cursor(CursorMotion::NextGrapheme),
            _ => return QuestionKeyOutcome::Ignored,
        }
        QuestionKeyOutcome::Handled
    }

    /// Returns the number of rows it needs, of those available.
    pub(crate) fn height(&mut self, columns: usize, rows: usize, theme: &TerminalTheme) -> usize {
        if self.waiting.is_empty() {
            return 0;
        }
        let lines = self.layout(columns, theme).len();
        // Leaves some rows for the rest of the screen, unless the preview is expanded.
        let most = if self.state.is_expanded { rows } else { rows - (rows / 4).min(4) };
        let below = if self.state.text_input.is_some() { 1 } else { self.choices().len() };
        (2 + lines + below).min(most)
    }

    fn layout(&mut self, columns: usize, theme: &TerminalTheme) -> &[Line<'static>] {
        let known = self.state.cached_layout.take().filter(|laid| laid.0 == columns);
        let laid = known.unwrap_or_else(|| (columns, self.lines(columns, theme)));
        &self.state.cached_layout.insert(laid).1
    }

    fn lines(&self, columns: usize, theme: &TerminalTheme) -> Vec<Line<'static>> {
        let Some(ChatQuestion { ask, .. }) = self.waiting.front() else { return vec![] };
        let Some(question) = self.open_question() else {
            let mut lines = preview::preview_lines(&ask.tool, &ask.input, columns, theme);
            if let Some(grant) = &ask.grant {
                // The choice is cut at the edge; here all of it can be read.
                let choices = match grant.lasting_rules() {
                    Some(_) => "choices 2 and 3 allow",
                    None => "choice 2 allows",
                };
                let text = format!("{choices}, without asking: {}", grant.describe());
                let margin = vec![Span::styled("│ ", theme.attention)];
                let flow = TextFlow {
                    first_margin: margin.clone(),
                    rest_margin: margin,
                    width: columns,
                    breaks: LineBreakMode::Anywhere,
                };
                flow.push_lines(&[Span::styled(reveal_hidden(&text), theme.dim)], &mut lines);
            }
            return lines;
        };
        let margin = vec![Span::styled("│ ", theme.attention)];
        let flow = TextFlow {
            first_margin: margin.clone(),
            rest_margin: margin,
            width: columns,
            breaks: LineBreakMode::Words,
        };
        let mut lines = vec![];
        flow.push_lines(&[Span::raw(reveal_hidden(text(&question["question"])))], &mut lines);
        lines
    }

    fn heading(&self) -> String {
        let Some(ChatQuestion { of, ask, .. }) = self.waiting.front() else { return String::new() };
        let speaker = match of {
            ChatSpeaker::Coordinator => "the agent".to_owned(),
            ChatSpeaker::Worker(name) => crate::text::one_line(name),
        };
        let more = match self.waiting.len() {
            1 => String::new(),
            all => format!(" (1 of {all})"),
        };
        let tool = crate::text::one_line(&reveal_hidden(&ask.tool));
        match self.open_question() {
            None => format!("? {speaker} wants to use {tool}{more}"),
            Some(_) if questions(&ask.input).len() > 1 => {
                let (at, all) = (self.state.answers.len() + 1, questions(&ask.input).len());
                format!("? {speaker} asks, question {at} of {all}{more}")
            }
            Some(_) => format!("? {speaker} asks{more}"),
        }
    }

    /// Draws the panel; returns the position of the cursor, if an answer is typed. A question that
    /// does not fit cannot be answered.
    pub(crate) fn draw(
        &mut self,
        area: Rect,
        buffer: &mut Buffer,
        has_keys: bool,
        theme: &TerminalTheme,
    ) -> Option<Position> {
        if self.waiting.is_empty() {
            return None;
        }
        let columns = usize::from(area.width);
        let rows = usize::from(area.height);
        // A question without options is answered in words only.
        let is_bare = self.open_question().is_some_and(|question| options(question).is_empty());
        if is_bare && self.state.text_input.is_none() {
            self.state.text_input = Some(TextEditor::default());
        }
        // A person must have seen part of the question, and that there is more, before they can
        // answer.
        let least = self.layout(columns, theme).len().min(2);
        self.state.is_visible = rows >= 2 + least;
        let choices = if self.state.text_input.is_some() { vec![] } else { self.choices() };
        let below = choices.len().max(1).min(rows.saturating_sub(1 + least));
        let hint = usize::from(rows > below + 2);
        let room = rows.saturating_sub(1 + below + hint);
        let mut lines =
            vec![Line::styled(truncate_to_width(&self.heading(), columns), theme.attention)];
        lines.extend(self.visible_lines(columns, room, theme));
        // The list scrolls with the cursor, so that the chosen option is visible.
        let top = (self.state.cursor + 1).saturating_sub(below);
        for (at, choice) in choices.iter().enumerate().skip(top).take(below) {
            let is_chosen = at == self.state.cursor;
            let sign = if is_chosen { "▸" } else { " " };
            let style = if is_chosen && has_keys { theme.selected } else { Style::new() };
            let choice = truncate_to_width(&format!("{sign} {}. {choice}", at + 1), columns);
            lines.push(Line::styled(choice, style));
        }
        let cursor = self.text_input_line(area, &mut lines);
        if hint > 0 {
            lines.push(Line::styled(truncate_to_width(self.hint(has_keys), columns), theme.dim));
        }
        for (y, line) in (area.y..area.bottom()).zip(&lines) {
            buffer.set_line(area.x, y, line, area.width);
        }
        cursor.filter(|_| has_keys)
    }

    /// Returns the visible lines of the preview, with a note about omitted ones.
    fn visible_lines(
        &mut self,
        columns: usize,
        room: usize,
        theme: &TerminalTheme,
    ) -> Vec<Line<'static>> {
        let count = self.layout(columns, theme).len();
        if count <= room {
            return self.layout(columns, theme).to_vec();
        }
        let page = room.saturating_sub(1);
        self.state.page = page;
        self.state.scrolled = self.state.scrolled.min(count - page);
        let from = self.state.scrolled;
        let mut lines = self.layout(columns, theme)[from..from + page].to_vec();
        let text = format!("… {}-{} of {count} lines: PgUp PgDn Ctrl+E", from + 1, from + page);
        // In the colour of errors, because a person must not overlook it.
        lines.push(Line::styled(truncate_to_width(&text, columns), theme.bad));
        lines.truncate(room);
        lines
    }

    /// Adds the line of the typed answer; returns the position of the cursor.
    fn text_input_line(&self, area: Rect, lines: &mut Vec<Line<'static>>) -> Option<Position> {
        let editor = self.state.text_input.as_ref()?;
        let columns = usize::from(area.width).saturating_sub(2).max(1);
        let rows = editor.rows(columns);
        let row = rows.rows.get(rows.cursor.0)?.clone();
        let y = area.y + lines.len() as u16;
        lines.push(Line::from(format!("» {}", &editor.text()[row])));
        let x = area.x.saturating_add(2).saturating_add(rows.cursor.1 as u16);
        Some(Position::new(
            x.min(area.right().saturating_sub(1)),
            y.min(area.bottom().saturating_sub(1)),
        ))
    }

    fn hint(&self, has_keys: bool) -> &'static str {
        match (has_keys, &self.state.text_input, self.open_question()) {
            (false, ..) => "Tab: answer this",
            (true, Some(_), Some(_)) => "Enter: answer · Esc: back",
            (true, Some(_), None) => "Enter: deny, with this reason · Esc: back",
            (true, None, Some(question)) if allows_multiple(question) => {
                "numbers or Space: tick · Enter: answer · Esc: no answer, end the turn · Tab: type"
            }
            (true, None, Some(_)) => "a number or Enter · Esc: no answer, end the turn · Tab: type",
            (true, None, None) => "a number or Enter · Esc: deny and end the turn · Tab: type",
        }
    }
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_default()
}
