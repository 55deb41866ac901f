//! What agents ask the person: one at a time, in a panel above the input.
//!
//! A key counts as an answer only to what was on the screen when it was pressed. Start at [`Asks`].

use std::collections::VecDeque;

use heeler_chat::{Question, Speaker, Wish};
use heeler_model::question::{options, questions, takes_several};
use heeler_model::run::Answer;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::{Map, Value as Json};

use crate::Theme;
use crate::editor::{Editor, To};
use crate::preview;
use crate::text::{Break, Flow, open_text, shortened};

/// What the agent is told by a plain no.
const NO: &str = "the person does not want this";

/// What can be said to a request.
const PERMISSION: [&str; 3] = ["allow it once", "deny it", "deny it and say why"];

/// What agents wait for.
#[derive(Default)]
pub(crate) struct Asks {
    waiting: VecDeque<Question>,
    state: State,
}

/// Where the person is with the first of them.
#[derive(Default)]
struct State {
    /// It was on the screen, so it can be answered.
    is_seen: bool,
    chosen: usize,
    /// Which options are ticked, where several can be.
    ticked: Vec<bool>,
    /// Answers to its first questions: what was asked, what is answered.
    answers: Vec<(String, String)>,
    /// Words of their own that are being typed.
    words: Option<Editor>,
    /// How far the preview is scrolled, and whether it has all the room.
    scrolled: usize,
    is_whole: bool,
    /// How it looks in a number of columns.
    laid: Option<(usize, Vec<Line<'static>>)>,
    /// How many lines of it were seen at once.
    page: usize,
}

/// What came of a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    /// The key means nothing here.
    Nothing,
    /// It was taken.
    Taken,
    /// This is the answer.
    Answer(Wish),
}

impl Asks {
    /// Takes something that is asked; what is known is not asked twice.
    pub(crate) fn add(&mut self, question: Question) {
        if self.waiting.iter().all(|known| known.ask.id != question.ask.id) {
            self.waiting.push_back(question);
        }
    }

    /// Takes back what is settled; says whether that was on the screen.
    pub(crate) fn settled(&mut self, ask: &str) -> bool {
        let place = self.waiting.iter().position(|known| known.ask.id == ask);
        let Some(at) = place else { return false };
        self.waiting.remove(at);
        at == 0 && std::mem::take(&mut self.state).is_seen
    }

    /// Forgets all: it is another session.
    pub(crate) fn clear(&mut self) {
        *self = Asks::default();
    }

    /// Says whether something can be answered: it is on the screen.
    pub(crate) fn is_seen(&self) -> bool {
        self.state.is_seen && !self.waiting.is_empty()
    }

    /// Says whether something is asked.
    pub(crate) fn is_open(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Says whether words are being typed here.
    pub(crate) fn is_typing(&self) -> bool {
        self.is_seen() && self.state.words.is_some()
    }

    /// Takes a paste, where words are typed.
    pub(crate) fn paste(&mut self, text: &str) {
        if let Some(words) = &mut self.state.words {
            words.insert(&crate::text::harmless(text));
        }
    }

    fn answer(&mut self, answer: Answer) -> Said {
        self.state = State::default();
        let Some(question) = self.waiting.pop_front() else { return Said::Nothing };
        Said::Answer(Wish::Answer { job: question.job, ask: question.ask.id, answer })
    }

    fn deny(&mut self, why: &str, interrupt: bool) -> Said {
        self.answer(Answer::Deny { message: why.to_owned(), interrupt })
    }

    /// Returns the question that is to be answered next; none if this is a request.
    fn open_question(&self) -> Option<&Json> {
        let ask = &self.waiting.front()?.ask;
        let questions = if ask.kind == "question" { questions(&ask.input) } else { &[] };
        questions.get(self.state.answers.len())
    }

    /// Returns what can be chosen: signs of their own where several can be.
    fn choices(&self) -> Vec<String> {
        let Some(question) = self.open_question() else {
            return PERMISSION.map(str::to_owned).to_vec();
        };
        let several = takes_several(question);
        let option = |(at, option): (usize, &Json)| {
            let label = crate::text::one_line(&open_text(text(&option["label"])));
            let about = crate::text::one_line(&open_text(text(&option["description"])));
            let about = if about.is_empty() { about } else { format!(": {about}") };
            let is_ticked = self.state.ticked.get(at) == Some(&true);
            let tick = match (several, is_ticked) {
                (false, _) => "",
                (true, true) => "[x] ",
                (true, false) => "[ ] ",
            };
            format!("{tick}{label}{about}")
        };
        let mut choices: Vec<String> = options(question).iter().enumerate().map(option).collect();
        choices.push("something else, in your words".to_owned());
        choices
    }

    /// Scrolls what is wanted; how far that can go is known when it is drawn.
    pub(crate) fn scroll(&mut self, lines: usize, up: bool) {
        let scrolled = self.state.scrolled;
        self.state.scrolled = if up { scrolled.saturating_sub(lines) } else { scrolled + lines };
    }

    /// Takes a key. Only to be asked when [`Asks::is_seen`].
    pub(crate) fn key(&mut self, key: KeyEvent) -> Said {
        if self.state.words.is_some() {
            return self.words_key(key);
        }
        let count = self.choices().len();
        match (key.code, key.modifiers) {
            (KeyCode::Up, KeyModifiers::NONE) => {
                self.state.chosen = (self.state.chosen + count - 1) % count;
            }
            (KeyCode::Down, KeyModifiers::NONE) => {
                self.state.chosen = (self.state.chosen + 1) % count;
            }
            (KeyCode::PageUp, _) => self.scroll(self.state.page.max(1), true),
            (KeyCode::PageDown, _) => self.scroll(self.state.page.max(1), false),
            (KeyCode::Char('e'), KeyModifiers::CONTROL) => {
                self.state.is_whole = !self.state.is_whole;
            }
            (KeyCode::Left, KeyModifiers::NONE) if !self.state.answers.is_empty() => {
                self.state.answers.pop();
                self.next_question();
            }
            (KeyCode::Char(' '), KeyModifiers::NONE) if self.is_several() => {
                self.tick(self.state.chosen);
            }
            (KeyCode::Char(c), KeyModifiers::NONE) => {
                let number = c.to_digit(10).and_then(|digit| (digit as usize).checked_sub(1));
                match number.filter(|number| *number < count) {
                    Some(number) => return self.pick(number),
                    None => return Said::Nothing,
                }
            }
            (KeyCode::Enter, KeyModifiers::NONE) => return self.enter(),
            (KeyCode::Esc, _) => return self.deny(NO, true),
            _ => return Said::Nothing,
        }
        Said::Taken
    }

    fn is_several(&self) -> bool {
        self.open_question().is_some_and(takes_several)
    }

    fn tick(&mut self, at: usize) {
        let count = self.open_question().map_or(0, |question| options(question).len());
        if at >= count {
            self.state.words = Some(Editor::default());
            return;
        }
        self.state.ticked.resize(count, false);
        self.state.ticked[at] = !self.state.ticked[at];
        self.state.chosen = at;
    }

    fn enter(&mut self) -> Said {
        let ticked = self.ticked();
        match self.is_several() && !ticked.is_empty() {
            true => self.answered(ticked.join(", ")),
            false => self.settle(self.state.chosen),
        }
    }

    fn ticked(&self) -> Vec<String> {
        let question = self.open_question().unwrap_or(&Json::Null);
        let ticked =
            options(question).iter().zip(&self.state.ticked).filter(|(_, ticked)| **ticked);
        ticked.map(|(option, _)| text(&option["label"]).to_owned()).collect()
    }

    /// Takes a number: a tick where several can be chosen, else the choice.
    fn pick(&mut self, at: usize) -> Said {
        if self.is_several() {
            self.tick(at);
            return Said::Taken;
        }
        self.settle(at)
    }

    /// Takes a choice.
    fn settle(&mut self, at: usize) -> Said {
        if let Some(question) = self.open_question() {
            let label = options(question).get(at).map(|option| text(&option["label"]).to_owned());
            return match label {
                Some(label) => self.answered(label),
                None => {
                    self.state.words = Some(Editor::default());
                    Said::Taken
                }
            };
        }
        match at {
            0 => self.answer(Answer::Allow { input: None }),
            1 => self.deny(NO, false),
            _ => {
                self.state.words = Some(Editor::default());
                Said::Taken
            }
        }
    }

    /// Takes the answer to the open question; all of them go together.
    fn answered(&mut self, answer: String) -> Said {
        let asked = self.open_question().map(|question| text(&question["question"]).to_owned());
        self.state.answers.push((asked.unwrap_or_default(), answer));
        if self.open_question().is_some() {
            self.next_question();
            return Said::Taken;
        }
        let Some(question) = self.waiting.front() else { return Said::Nothing };
        let mut input = question.ask.input.clone();
        let answers = self.state.answers.drain(..).map(|(asked, said)| (asked, said.into()));
        input["answers"] = Json::Object(answers.collect::<Map<String, Json>>());
        self.answer(Answer::Allow { input: Some(input) })
    }

    fn next_question(&mut self) {
        let answers = std::mem::take(&mut self.state.answers);
        let is_whole = self.state.is_whole;
        self.state = State { answers, is_whole, ..State::default() };
    }

    fn words_key(&mut self, key: KeyEvent) -> Said {
        let Some(words) = &mut self.state.words else { return Said::Nothing };
        match (key.code, key.modifiers) {
            (KeyCode::Enter, KeyModifiers::NONE) => {
                let said = words.text().trim().to_owned();
                return match (said.is_empty(), self.open_question().is_some()) {
                    (true, _) => Said::Taken,
                    (false, true) => self.answered(said),
                    (false, false) => self.deny(&said, false),
                };
            }
            (KeyCode::Enter, _) => {
                words.insert("\n");
            }
            (KeyCode::Esc, _) => {
                let has_options = self.open_question().is_none_or(|it| !options(it).is_empty());
                if !has_options {
                    return self.deny(NO, true);
                }
                self.state.words = None;
            }
            (KeyCode::Char(c), KeyModifiers::NONE | KeyModifiers::SHIFT)
                if !heeler_model::steers_terminal(c) =>
            {
                words.insert(c.encode_utf8(&mut [0; 4]));
            }
            (KeyCode::Char('u'), KeyModifiers::CONTROL) => words.cut(To::LineStart),
            (KeyCode::Char('w'), KeyModifiers::CONTROL) => words.cut(To::BlankBefore),
            (KeyCode::Char('a'), KeyModifiers::CONTROL) | (KeyCode::Home, _) => {
                words.go(To::LineStart);
            }
            (KeyCode::Char('e'), KeyModifiers::CONTROL) | (KeyCode::End, _) => {
                words.go(To::LineEnd);
            }
            (KeyCode::Backspace, _) => words.delete(To::Before),
            (KeyCode::Delete, _) => words.delete(To::After),
            (KeyCode::Left, _) => words.go(To::Before),
            (KeyCode::Right, _) => words.go(To::After),
            _ => return Said::Nothing,
        }
        Said::Taken
    }

    /// Returns how many rows it wants of those there are.
    pub(crate) fn height(&mut self, columns: usize, rows: usize, theme: &Theme) -> usize {
        if self.waiting.is_empty() {
            return 0;
        }
        let lines = self.lay(columns, theme).len();
        // The rest of the screen keeps something, unless all is wanted.
        let most = if self.state.is_whole { rows } else { rows - (rows / 4).min(4) };
        let below = if self.state.words.is_some() { 1 } else { self.choices().len() };
        (2 + lines + below).min(most)
    }

    fn lay(&mut self, columns: usize, theme: &Theme) -> &[Line<'static>] {
        let known = self.state.laid.take().filter(|laid| laid.0 == columns);
        let laid = known.unwrap_or_else(|| (columns, self.lines(columns, theme)));
        &self.state.laid.insert(laid).1
    }

    fn lines(&self, columns: usize, theme: &Theme) -> Vec<Line<'static>> {
        let Some(Question { ask, .. }) = self.waiting.front() else { return vec![] };
        let Some(question) = self.open_question() else {
            return preview::lines(&ask.tool, &ask.input, columns, theme);
        };
        let margin = vec![Span::styled("│ ", theme.asks)];
        let flow =
            Flow { first: margin.clone(), rest: margin, width: columns, breaks: Break::Words };
        let mut lines = vec![];
        flow.lines(&[Span::raw(open_text(text(&question["question"])))], &mut lines);
        lines
    }

    fn heading(&self) -> String {
        let Some(Question { of, ask, .. }) = self.waiting.front() else { return String::new() };
        let who = match of {
            Speaker::Coordinator => "the agent".to_owned(),
            Speaker::Worker(name) => crate::text::one_line(name),
        };
        let more = match self.waiting.len() {
            1 => String::new(),
            all => format!(" (1 of {all})"),
        };
        let tool = crate::text::one_line(&open_text(&ask.tool));
        match self.open_question() {
            None => format!("? {who} wants to use {tool}{more}"),
            Some(_) if questions(&ask.input).len() > 1 => {
                let (at, all) = (self.state.answers.len() + 1, questions(&ask.input).len());
                format!("? {who} asks, question {at} of {all}{more}")
            }
            Some(_) => format!("? {who} asks{more}"),
        }
    }

    /// Draws it; returns where the cursor is, if words are typed. What does not fit to be answered is
    /// not to be answered.
    pub(crate) fn draw(
        &mut self,
        area: Rect,
        buffer: &mut Buffer,
        has_keys: bool,
        theme: &Theme,
    ) -> Option<Position> {
        if self.waiting.is_empty() {
            return None;
        }
        let columns = usize::from(area.width);
        let rows = usize::from(area.height);
        let is_bare = self.open_question().is_some_and(|question| options(question).is_empty());
        if is_bare && self.state.words.is_none() {
            self.state.words = Some(Editor::default());
        }
        // Whoever answers must have seen something of it, and whether that is all.
        let least = self.lay(columns, theme).len().min(2);
        self.state.is_seen = rows >= 2 + least;
        let choices = if self.state.words.is_some() { vec![] } else { self.choices() };
        let below = choices.len().max(1).min(rows.saturating_sub(1 + least));
        let hint = usize::from(rows > below + 2);
        let room = rows.saturating_sub(1 + below + hint);
        let mut lines = vec![Line::styled(shortened(&self.heading(), columns), theme.asks)];
        lines.extend(self.page(columns, room, theme));
        let top = (self.state.chosen + 1).saturating_sub(below);
        for (at, choice) in choices.iter().enumerate().skip(top).take(below) {
            let is_chosen = at == self.state.chosen;
            let sign = if is_chosen { "▸" } else { " " };
            let style = if is_chosen && has_keys { theme.chosen } else { Style::new() };
            let choice = shortened(&format!("{sign} {}. {choice}", at + 1), columns);
            lines.push(Line::styled(choice, style));
        }
        let cursor = self.words_line(area, &mut lines);
        if hint > 0 {
            lines.push(Line::styled(shortened(self.hint(has_keys), columns), theme.dim));
        }
        for (y, line) in (area.y..area.bottom()).zip(&lines) {
            buffer.set_line(area.x, y, line, area.width);
        }
        cursor.filter(|_| has_keys)
    }

    /// Returns what is seen of the preview, with what is cut told.
    fn page(&mut self, columns: usize, room: usize, theme: &Theme) -> Vec<Line<'static>> {
        let count = self.lay(columns, theme).len();
        if count <= room {
            return self.lay(columns, theme).to_vec();
        }
        let page = room.saturating_sub(1);
        self.state.page = page;
        self.state.scrolled = self.state.scrolled.min(count - page);
        let from = self.state.scrolled;
        let mut lines = self.lay(columns, theme)[from..from + page].to_vec();
        let told = format!("… {}-{} of {count} lines: PgUp PgDn Ctrl+E", from + 1, from + page);
        lines.push(Line::styled(shortened(&told, columns), theme.bad));
        lines.truncate(room);
        lines
    }

    /// Adds the line that is typed; returns where the cursor is.
    fn words_line(&self, area: Rect, lines: &mut Vec<Line<'static>>) -> Option<Position> {
        let words = self.state.words.as_ref()?;
        let columns = usize::from(area.width).saturating_sub(2).max(1);
        let rows = words.rows(columns);
        let row = rows.rows.get(rows.cursor.0)?.clone();
        let y = area.y + lines.len() as u16;
        lines.push(Line::from(format!("» {}", &words.text()[row])));
        let x = area.x.saturating_add(2).saturating_add(rows.cursor.1 as u16);
        Some(Position::new(
            x.min(area.right().saturating_sub(1)),
            y.min(area.bottom().saturating_sub(1)),
        ))
    }

    fn hint(&self, has_keys: bool) -> &'static str {
        match (has_keys, &self.state.words, self.open_question()) {
            (false, ..) => "Tab: answer this",
            (true, Some(_), Some(_)) => "Enter: answer · Esc: back",
            (true, Some(_), None) => "Enter: deny, with this reason · Esc: back",
            (true, None, Some(question)) if takes_several(question) => {
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
