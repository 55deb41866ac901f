//! A transcript on the screen: a window of what was said, of which only what is seen is laid out.
//!
//! The window is bounded. Entries that leave it at the old end are asked for again when somebody
//! scrolls there; [`Wish::LetGo`] tells the conversation from where on. Start at [`Transcript`].

use std::collections::{HashMap, VecDeque};

use heeler_chat::{Entry, Speaker, Wish};
use ratatui::text::Line;

use crate::Theme;
use crate::cell::{self, Cell};
use crate::text::harmless;

/// How much is held of a transcript whose end is looked at, in entries and bytes.
pub(crate) const LOOKED_AT: Bounds = Bounds { cells: 2000, bytes: 8 << 20 };
/// How much is held of one that nobody looks at.
pub(crate) const ASIDE: Bounds = Bounds { cells: 300, bytes: 1 << 20 };
/// How much is held of one whose past is looked at; nothing older is asked for then.
pub(crate) const SCROLLED: Bounds = Bounds { cells: 20_000, bytes: 64 << 20 };

/// How many things stay laid out that are not seen.
const LAID_MAX: usize = 256;

/// How much of what is being said is shown; all of it comes as an entry.
const STREAM_BYTES_MAX: usize = 32 * 1024;

/// How much is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) cells: usize,
    pub(crate) bytes: usize,
}

/// How things are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) unfolded: bool,
}

/// What is seen of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its end.
    End,
    /// From this line of this thing on.
    At { cell: i64, line: usize },
}

struct Held {
    cell: Cell,
    /// Which entry it is, counted from the first that was shown; none of what is no entry.
    entry: Option<i64>,
    laid: Option<(usize, bool, Vec<Line<'static>>)>,
}

/// A transcript on the screen.
pub(crate) struct Transcript {
    cells: VecDeque<Held>,
    /// The number of the first of them; it goes down when older ones come.
    first: i64,
    bytes: usize,
    laid: usize,
    /// The number of the next entry.
    next_entry: i64,
    /// The oldest entry, as the conversation has it.
    oldest_told: i64,
    has_older: bool,
    awaits_older: bool,
    /// The calls whose outcome is not known, by their ids: which thing each is.
    calls: HashMap<String, i64>,
    /// What is being said.
    stream: String,
    stream_laid: Option<(usize, Vec<Line<'static>>)>,
    place: Place,
    shape: Shape,
    /// How much has come since its end was seen.
    below: usize,
}

impl Default for Transcript {
    fn default() -> Transcript {
        Transcript {
            cells: VecDeque::new(),
            first: 0,
            bytes: 0,
            laid: 0,
            next_entry: 0,
            oldest_told: 0,
            has_older: true,
            awaits_older: false,
            calls: HashMap::new(),
            stream: String::new(),
            stream_laid: None,
            place: Place::End,
            shape: Shape::default(),
            below: 0,
        }
    }
}

impl Transcript {
    /// Takes another entry in.
    pub(crate) fn entry(&mut self, entry: &Entry, bounds: Bounds) {
        let number = self.next_entry;
        self.next_entry += 1;
        if entry.role == heeler_chat::Role::Assistant {
            self.end_delta();
        }
        if !self.end_call(entry) {
            let at = self.first + self.cells.len() as i64;
            if let Some(id) = entry.call.as_ref().filter(|_| !cell::is_outcome(entry)) {
                self.calls.insert(id.clone(), at);
            }
            self.push(Cell::of(entry), Some(number));
        }
        self.trim(bounds);
    }

    /// Takes something in that is no entry.
    pub(crate) fn told(&mut self, cell: Cell, bounds: Bounds) {
        self.push(cell, None);
        self.trim(bounds);
    }

    fn push(&mut self, cell: Cell, entry: Option<i64>) {
        self.bytes += cell.bytes();
        self.cells.push_back(Held { cell, entry, laid: None });
        if self.place != Place::End {
            self.below += 1;
        }
    }

    /// Gives an outcome to its call; says whether that is held.
    fn end_call(&mut self, entry: &Entry) -> bool {
        let id = entry.call.as_ref().filter(|_| cell::is_outcome(entry));
        let Some(at) = id.and_then(|id| self.calls.remove(id)) else { return false };
        let Some(held) = index(at, self.first).and_then(|at| self.cells.get_mut(at)) else {
            return false;
        };
        let before = held.cell.bytes();
        let Cell::Tool(call) = &mut held.cell else { return false };
        call.end(entry);
        self.laid -= usize::from(held.laid.take().is_some());
        self.bytes += held.cell.bytes().saturating_sub(before);
        true
    }

    /// Takes the next piece of what is being said.
    pub(crate) fn delta(&mut self, text: &str) {
        self.stream.push_str(text);
        self.stream_laid = None;
        if self.stream.len() > 2 * STREAM_BYTES_MAX {
            let from = self.stream.ceil_char_boundary(self.stream.len() - STREAM_BYTES_MAX);
            let from = self.stream[from..].find('\n').map_or(from, |end| from + end + 1);
            self.stream.drain(..from);
        }
    }

    /// Forgets what was being said.
    pub(crate) fn end_delta(&mut self) {
        self.stream.clear();
        self.stream_laid = None;
    }

    /// Takes older entries in. If nobody has asked for them they are the tail, with all that was shown.
    pub(crate) fn older(&mut self, entries: &[Entry], has_more: bool, bounds: Bounds) {
        if !self.awaits_older {
            self.forget_entries();
        }
        let fits = self.oldest() == self.oldest_told;
        self.awaits_older = false;
        self.has_older = has_more && !entries.is_empty();
        self.oldest_told -= entries.len() as i64;
        // So much has come meanwhile that what they were before is let go: they are asked for again.
        if !fits {
            return;
        }
        let mut page = Transcript { next_entry: self.oldest_told, ..Transcript::default() };
        for entry in entries {
            page.entry(entry, SCROLLED);
        }
        self.first -= page.cells.len() as i64;
        self.bytes += page.bytes;
        for held in page.cells.into_iter().rev() {
            self.cells.push_front(held);
        }
        // What these calls gave may still come.
        self.calls
            .extend(page.calls.into_iter().map(|(id, at)| (id, at - page.first + self.first)));
        self.trim(bounds);
    }

    fn forget_entries(&mut self) {
        self.cells.retain(|held| held.entry.is_none());
        self.bytes = self.cells.iter().map(|held| held.cell.bytes()).sum();
        self.laid = self.cells.iter().filter(|held| held.laid.is_some()).count();
        self.calls.clear();
        self.oldest_told = self.next_entry;
        (self.place, self.below) = (Place::End, 0);
    }

    /// Lets the oldest go that are beyond what may be held.
    pub(crate) fn trim(&mut self, bounds: Bounds) {
        // What is asked for has its place before the oldest that is held now.
        let is_end = self.place == Place::End && !self.awaits_older;
        let bounds = if is_end { bounds } else { SCROLLED };
        let mut is_trimmed = false;
        while self.cells.len() > bounds.cells || (self.bytes > bounds.bytes && self.cells.len() > 1)
        {
            let Some(held) = self.cells.pop_front() else { break };
            self.first += 1;
            self.bytes = self.bytes.saturating_sub(held.cell.bytes());
            self.laid -= usize::from(held.laid.is_some());
            is_trimmed = true;
        }
        if is_trimmed && self.calls.len() > self.cells.len() {
            let first = self.first;
            self.calls.retain(|_, at| *at >= first);
        }
        if let Place::At { cell, .. } = self.place
            && cell < self.first
        {
            self.place = Place::At { cell: self.first, line: 0 };
        }
    }

    /// Returns the oldest entry that is held, or the next one.
    fn oldest(&self) -> i64 {
        self.cells.iter().find_map(|held| held.entry).unwrap_or(self.next_entry)
    }

    /// Returns the wishes that bring older entries, if there may be any.
    fn wish_older(&mut self, of: &Speaker) -> Vec<Wish> {
        let oldest = self.oldest();
        let entries = usize::try_from(oldest - self.oldest_told).unwrap_or_default();
        if self.awaits_older || self.is_full() || !self.is_cut() {
            return vec![];
        }
        self.awaits_older = true;
        self.oldest_told = oldest;
        let of = of.clone();
        let older = Wish::Older { of: of.clone() };
        if entries == 0 { vec![older] } else { vec![Wish::LetGo { of, entries }, older] }
    }

    /// Says whether there are older entries than those that are held.
    fn is_cut(&self) -> bool {
        self.has_older || self.oldest() > self.oldest_told
    }

    /// Says whether all that there is is held, as far as that was told.
    pub(crate) fn is_all_held(&self) -> bool {
        !self.is_cut()
    }

    /// Says whether no more is held than this.
    fn is_full(&self) -> bool {
        self.cells.len() >= SCROLLED.cells || self.bytes >= SCROLLED.bytes
    }

    /// Says whether the oldest that is held is seen and nothing older will come.
    pub(crate) fn is_at_limit(&self) -> bool {
        let is_top = self.place == Place::At { cell: self.first, line: 0 };
        is_top && !self.awaits_older && self.is_full() && self.is_cut()
    }

    /// Says how much has come below what is seen; none if its end is seen.
    pub(crate) fn below(&self) -> Option<usize> {
        (self.place != Place::End).then_some(self.below)
    }

    /// Goes to its end.
    pub(crate) fn go_to_end(&mut self, bounds: Bounds) {
        self.place = Place::End;
        self.below = 0;
        self.trim(bounds);
    }

    /// Scrolls towards the past; returns what is wanted for that.
    pub(crate) fn up(&mut self, lines: usize, of: &Speaker, theme: &Theme) -> Vec<Wish> {
        let (mut at, mut line) = self.top(theme);
        let mut left = lines;
        while left > 0 {
            if line >= left {
                line -= left;
                left = 0;
            } else if at == 0 {
                left -= line;
                line = 0;
                break;
            } else {
                left -= line;
                at -= 1;
                line = self.lay(at, theme).len();
            }
        }
        // All of it is seen already.
        if self.place == Place::End && (at, line) == (0, 0) && left == lines {
            return self.wish_older(of);
        }
        self.place = Place::At { cell: self.first + at as i64, line };
        if left > 0 || (at, line) == (0, 0) { self.wish_older(of) } else { vec![] }
    }

    /// Scrolls towards the end.
    pub(crate) fn down(&mut self, lines: usize, bounds: Bounds, theme: &Theme) {
        let Place::At { cell, line } = self.place else { return };
        let mut at = index(cell, self.first).unwrap_or_default();
        let mut line = line + lines;
        while at <= self.cells.len() {
            let height = self.lay(at, theme).len();
            if line < height {
                break;
            }
            line -= height;
            at += 1;
        }
        self.place = Place::At { cell: self.first + at as i64, line };
        if self.from(at, line, theme).len() < self.shape.height {
            self.go_to_end(bounds);
        }
    }

    /// Returns where what is seen begins.
    fn top(&mut self, theme: &Theme) -> (usize, usize) {
        if let Place::At { cell, line } = self.place {
            return (index(cell, self.first).unwrap_or_default(), line);
        }
        let mut left = self.shape.height;
        let mut at = self.cells.len() + 1;
        while at > 0 {
            at -= 1;
            let height = self.lay(at, theme).len();
            if height >= left {
                return (at, height - left);
            }
            left -= height;
        }
        (0, 0)
    }

    /// Returns the lines that are seen.
    pub(crate) fn seen(
        &mut self,
        shape: Shape,
        bounds: Bounds,
        theme: &Theme,
    ) -> Vec<Line<'static>> {
        self.shape = shape;
        if let Place::At { cell, line } = self.place {
            // A thing that is laid out anew may have fewer lines.
            let at = index(cell, self.first).unwrap_or_default();
            let line = line.min(self.lay(at, theme).len().saturating_sub(1));
            self.place = Place::At { cell: self.first + at as i64, line };
        }
        let (at, line) = self.top(theme);
        let lines = self.from(at, line, theme);
        if lines.len() < shape.height && self.place != Place::End {
            self.go_to_end(bounds);
            return self.seen(shape, bounds, theme);
        }
        self.forget_layouts(at);
        lines
    }

    fn from(&mut self, at: usize, line: usize, theme: &Theme) -> Vec<Line<'static>> {
        let height = self.shape.height;
        let mut seen = Vec::with_capacity(height);
        let mut skipped = line;
        for at in at..=self.cells.len() {
            if seen.len() >= height {
                break;
            }
            let room = height - seen.len();
            seen.extend(self.lay(at, theme).iter().skip(skipped).take(room).cloned());
            skipped = 0;
        }
        seen
    }

    /// Lays a thing out, unless that is done; what is being said comes after all of them.
    fn lay(&mut self, at: usize, theme: &Theme) -> &[Line<'static>] {
        let Shape { width, unfolded, .. } = self.shape;
        if at >= self.cells.len() {
            return self.lay_stream(width, theme);
        }
        let held = &mut self.cells[at];
        let is_laid = held.laid.as_ref().is_some_and(|laid| (laid.0, laid.1) == (width, unfolded));
        if !is_laid {
            self.laid += usize::from(held.laid.is_none());
            held.laid = Some((width, unfolded, held.cell.lines(width, unfolded, theme)));
        }
        held.laid.as_ref().map_or(&[], |laid| &laid.2)
    }

    fn lay_stream(&mut self, width: usize, theme: &Theme) -> &[Line<'static>] {
        let laid = self.stream_laid.take().filter(|laid| laid.0 == width);
        let lay = || match harmless(&self.stream) {
            text if text.trim().is_empty() => vec![],
            text => cell::agent(&text, width, theme),
        };
        &self.stream_laid.insert(laid.unwrap_or_else(|| (width, lay()))).1
    }

    /// Forgets how things look that are not seen, if that is known of many.
    fn forget_layouts(&mut self, at: usize) {
        if self.laid <= LAID_MAX {
            return;
        }
        let seen = at..at + self.shape.height + 1;
        for (at, held) in self.cells.iter_mut().enumerate() {
            if !seen.contains(&at) {
                self.laid -= usize::from(held.laid.take().is_some());
            }
        }
    }
}

fn index(number: i64, first: i64) -> Option<usize> {
    usize::try_from(number - first).ok()
}

#[cfg(test)]
mod tests {
    use heeler_chat::Role;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    const SMALL: Bounds = Bounds { cells: 10, bytes: 1 << 20 };

    fn said(text: &str) -> Entry {
        Entry::new(Role::System, text, Timestamp::UNIX_EPOCH)
    }

    fn numbered(numbers: std::ops::Range<usize>) -> Vec<Entry> {
        numbers.map(|number| said(&format!("n{number}"))).collect()
    }

    fn seen(transcript: &mut Transcript, height: usize) -> String {
        let shape = Shape { width: 40, height, unfolded: false };
        let lines = transcript.seen(shape, SMALL, &Theme::plain());
        let lines: Vec<String> =
            lines.iter().map(|line| line.to_string().trim().to_owned()).collect();
        lines.join(" ")
    }

    fn filled(numbers: std::ops::Range<usize>) -> Transcript {
        let mut transcript = Transcript::default();
        for entry in numbered(numbers) {
            transcript.entry(&entry, SMALL);
        }
        transcript
    }

    #[test]
    fn what_was_let_go_is_asked_for_from_where_it_was() {
        let mut transcript = filled(0..25);
        let (of, theme) = (Speaker::Coordinator, Theme::plain());
        assert_eq!(seen(&mut transcript, 3), "n22 n23 n24");
        assert_eq!(transcript.up(4, &of, &theme), []);
        assert_eq!(seen(&mut transcript, 3), "n18 n19 n20");
        let wishes = transcript.up(9, &of, &theme);
        assert_eq!(
            wishes,
            [Wish::LetGo { of: of.clone(), entries: 15 }, Wish::Older { of: of.clone() }]
        );
        assert_eq!(transcript.up(9, &of, &theme), [], "it is asked for once");
        transcript.older(&numbered(10..15), true, SMALL);
        assert_eq!(seen(&mut transcript, 3), "n15 n16 n17", "what is seen stays");
        assert_eq!(transcript.up(2, &of, &theme), []);
        assert_eq!(seen(&mut transcript, 3), "n13 n14 n15");
        assert_eq!(transcript.up(9, &of, &theme), [Wish::Older { of: of.clone() }]);
        transcript.older(&numbered(8..10), false, SMALL);
        assert_eq!(transcript.up(9, &of, &theme), []);
        assert_eq!(seen(&mut transcript, 3), "n8 n9 n10");
        transcript.down(1, SMALL, &theme);
        assert_eq!(seen(&mut transcript, 3), "n9 n10 n11");
        transcript.go_to_end(SMALL);
        assert_eq!(transcript.cells.len(), SMALL.cells);
        assert_eq!(transcript.up(20, &of, &theme)[0], Wish::LetGo { of, entries: 7 });
    }

    #[test]
    fn a_tail_that_nobody_asked_for_has_what_was_shown_before() {
        let mut transcript = filled(3..5);
        transcript.told(Cell::Told("aside".to_owned()), SMALL);
        transcript.older(&numbered(1..5), true, SMALL);
        transcript.entry(&said("n5"), SMALL);
        assert_eq!(seen(&mut transcript, 9), "n1 n2 n3 n4  aside n5");
        let of = Speaker::Coordinator;
        let wishes = transcript.up(1, &of, &Theme::plain());
        assert_eq!(wishes, [Wish::Older { of }]);
        transcript.older(&numbered(0..1), false, SMALL);
        assert_eq!(seen(&mut transcript, 9), "n0 n1 n2 n3 n4  aside n5");
    }

    #[test]
    fn older_ones_that_come_too_late_leave_no_gap() {
        let mut transcript = filled(0..25);
        let (of, theme) = (Speaker::Coordinator, Theme::plain());
        seen(&mut transcript, 3);
        transcript.up(30, &of, &theme);
        for entry in numbered(25..25 + SCROLLED.cells) {
            transcript.entry(&entry, SMALL);
        }
        assert_eq!(transcript.cells.len(), SCROLLED.cells, "it is bounded also while it waits");
        assert_eq!(seen(&mut transcript, 2), "n25 n26");
        transcript.older(&numbered(10..15), true, SMALL);
        assert_eq!(seen(&mut transcript, 2), "n25 n26");
        transcript.go_to_end(SMALL);
        let let_go = 25 + SCROLLED.cells - SMALL.cells - 10;
        assert_eq!(transcript.up(30, &of, &theme)[0], Wish::LetGo { of, entries: let_go });
    }

    #[test]
    fn at_the_limit_of_what_is_held_it_says_so_and_asks_for_no_more() {
        let mut transcript = filled(0..10);
        let (of, theme) = (Speaker::Coordinator, Theme::plain());
        seen(&mut transcript, 3);
        while transcript.up(usize::MAX, &of, &theme) == [Wish::Older { of: of.clone() }] {
            assert!(!transcript.is_at_limit());
            transcript.older(&numbered(0..1000), true, SMALL);
            seen(&mut transcript, 3);
        }
        assert!(transcript.is_at_limit() && transcript.cells.len() == SCROLLED.cells);
        assert_eq!(transcript.up(1, &of, &theme), []);
        transcript.down(1, SMALL, &theme);
        assert!(!transcript.is_at_limit());
    }

    #[test]
    fn one_thing_that_is_taller_than_the_window_is_scrolled_to_its_top() {
        let mut transcript = filled(0..0);
        transcript.told(Cell::System("a\nb\nc\nd\ne".to_owned()), SMALL);
        let (of, theme) = (Speaker::Coordinator, Theme::plain());
        transcript.older(&[], false, SMALL);
        assert_eq!(seen(&mut transcript, 3), "c d e");
        transcript.up(4, &of, &theme);
        assert_eq!(seen(&mut transcript, 3), "a b c");
    }

    #[test]
    fn new_entries_do_not_move_what_is_read() {
        let mut transcript = filled(0..9);
        let (of, theme) = (Speaker::Coordinator, Theme::plain());
        assert_eq!(seen(&mut transcript, 3), "n6 n7 n8");
        transcript.up(2, &of, &theme);
        transcript.entry(&said("n9"), SMALL);
        transcript.delta("more");
        assert_eq!((seen(&mut transcript, 3).as_str(), transcript.below()), ("n4 n5 n6", Some(1)));
        transcript.down(1, SMALL, &theme);
        assert_eq!(seen(&mut transcript, 3), "n5 n6 n7");
        transcript.down(50, SMALL, &theme);
        assert_eq!((seen(&mut transcript, 3).as_str(), transcript.below()), ("n9  ● more", None));
    }

    #[test]
    fn only_what_is_seen_is_laid_out() {
        let mut transcript = filled(0..10);
        seen(&mut transcript, 3);
        assert_eq!(transcript.laid, 3);
        let mut transcript = Transcript::default();
        for number in 0..1000 {
            transcript.entry(&said(&format!("n{number}")), LOOKED_AT);
            seen(&mut transcript, 3);
            assert!(transcript.laid <= LAID_MAX);
        }
    }

    #[test]
    fn what_a_tool_gave_is_shown_with_its_call_even_if_others_come_between() {
        let mut transcript = Transcript::default();
        let call = |id: &str, name: &str| {
            let mut entry = said("");
            (entry.role, entry.content, entry.call) =
                (Role::Tool, json!(null), Some(id.to_owned()));
            (entry.name, entry.args) = (Some(name.to_owned()), Some(json!({"command": "ls"})));
            entry
        };
        let gave = |id: &str| {
            let mut entry = said("all well");
            (entry.role, entry.call) = (Role::Tool, Some(id.to_owned()));
            entry.name = Some("Lost".to_owned());
            entry.other.insert("durationMs".to_owned(), json!(1200));
            entry
        };
        for entry in [call("1", "A"), call("2", "B"), gave("2"), gave("1"), gave("0")] {
            transcript.entry(&entry, SMALL);
        }
        assert_eq!(seen(&mut transcript, 9), "✓ A ls  1.2s ✓ B ls  1.2s ✓ Lost   1.2s");
        assert!(transcript.calls.is_empty());
    }

    #[test]
    fn what_is_said_makes_way_for_its_entry_and_is_bounded() {
        let mut transcript = Transcript::default();
        transcript.delta("Hel");
        transcript.delta("lo\x1b[31");
        transcript.entry(&said("aside"), SMALL);
        assert_eq!(seen(&mut transcript, 5), "aside  ● Hello");
        transcript.entry(&Entry::new(Role::Assistant, "Hello!", Timestamp::UNIX_EPOCH), SMALL);
        assert_eq!(seen(&mut transcript, 5), "aside  ● Hello!");
        for _ in 0..10_000 {
            transcript.delta("0123456789\n");
        }
        assert!(transcript.stream.len() <= 2 * STREAM_BYTES_MAX);
        transcript.end_delta();
        assert_eq!(seen(&mut transcript, 5), "aside  ● Hello!");
    }
}
