//! Transcript on the screen: a bounded window of entries, of which only the visible part is laid
//! out.
//!
//! Entries that leave the window at the old end are requested again when the person scrolls there;
//! [`UserAction::DropEntries`] tells the conversation where the window begins. Start at
//! [`TranscriptWidget`].

mod search;

use std::collections::{HashMap, VecDeque};

use heeler_chat::{ChatSpeaker, ConversationEntry, UserAction};
use ratatui::text::Line;

use crate::TerminalTheme;
use crate::text::sanitize;
use crate::transcript_cell::{self, TranscriptCell};

pub(crate) use self::search::{SearchDirection, TranscriptSearch, mark_matches};

/// Limits of a transcript whose end is in view, in entries and bytes.
pub(crate) const FOCUSED_LIMITS: TranscriptLimits =
    // A person usually reads the end, so older entries are read again from the file if needed.
    TranscriptLimits { cells: 2000, bytes: 8 << 20 };
/// Limits of a transcript that is not in view.
pub(crate) const BACKGROUND_LIMITS: TranscriptLimits =
    TranscriptLimits { cells: 300, bytes: 1 << 20 };
/// Limits of a transcript that is scrolled back; beyond them, no older entries are requested.
pub(crate) const SCROLLED_LIMITS: TranscriptLimits =
    TranscriptLimits { cells: 20_000, bytes: 64 << 20 };

/// Most cached layouts of cells that are not visible.
const CACHED_LAYOUTS_MAX: usize = 256;

/// Bytes of an unfinished message that are shown; the complete message arrives as an entry.
const STREAM_BYTES_MAX: usize = 32 * 1024;

/// Limits of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TranscriptLimits {
    pub(crate) cells: usize,
    pub(crate) bytes: usize,
}

/// Size and folding of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TranscriptViewport {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) unfolded: bool,
}

/// Scroll position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScrollPosition {
    /// The end is visible.
    End,
    /// Number of the first visible cell, and the first visible line in it.
    At { cell: i64, line: usize },
}

struct HeldCell {
    cell: TranscriptCell,
    /// Number of the entry, counted from the first shown one; `None` for a notice.
    entry: Option<i64>,
    cached_layout: Option<(usize, bool, Vec<Line<'static>>)>,
}

/// Transcript on the screen.
pub(crate) struct TranscriptWidget {
    cells: VecDeque<HeldCell>,
    /// Number of the first cell; it decreases when older ones are added.
    first: i64,
    bytes: usize,
    cached_layouts: usize,
    /// Number of the next entry.
    next_entry: i64,
    /// Number of the oldest entry from the conversation's view.
    conversation_oldest: i64,
    has_older: bool,
    awaits_older: bool,
    /// Tool calls without a result, by ID: the number of the cell.
    calls: HashMap<String, i64>,
    /// Unfinished message.
    stream: String,
    cached_stream_layout: Option<(usize, Vec<Line<'static>>)>,
    position: ScrollPosition,
    viewport: TranscriptViewport,
    /// Entries added since the end was visible.
    unseen_below: usize,
}

impl Default for TranscriptWidget {
    fn default() -> TranscriptWidget {
        TranscriptWidget {
            cells: VecDeque::new(),
            first: 0,
            bytes: 0,
            cached_layouts: 0,
            next_entry: 0,
            conversation_oldest: 0,
            has_older: true,
            awaits_older: false,
            calls: HashMap::new(),
            stream: String::new(),
            cached_stream_layout: None,
            position: ScrollPosition::End,
            viewport: TranscriptViewport::default(),
            unseen_below: 0,
        }
    }
}

impl TranscriptWidget {
    /// Adds an entry.
    pub(crate) fn push_entry(&mut self, entry: &ConversationEntry, bounds: TranscriptLimits) {
        let number = self.next_entry;
        self.next_entry += 1;
        // The complete message replaces the text that was streamed for it.
        if entry.role == heeler_chat::EntryRole::Assistant {
            self.clear_stream();
        }
        // A result is shown with its call, which may be far above.
        if !self.attach_outcome(entry) {
            let at = self.first + self.cells.len() as i64;
            if let Some(id) = entry.call.as_ref().filter(|_| !transcript_cell::is_outcome(entry)) {
                self.calls.insert(id.clone(), at);
            }
            self.push(TranscriptCell::of(entry), Some(number));
        }
        self.trim(bounds);
    }

    /// Adds a cell that is not an entry.
    pub(crate) fn push_notice(&mut self, cell: TranscriptCell, bounds: TranscriptLimits) {
        self.push(cell, None);
        self.trim(bounds);
    }

    fn push(&mut self, cell: TranscriptCell, entry: Option<i64>) {
        self.bytes += cell.bytes();
        self.cells.push_back(HeldCell { cell, entry, cached_layout: None });
        // Only entries that arrive while the person reads above count as unseen.
        if self.position != ScrollPosition::End {
            self.unseen_below += 1;
        }
    }

    /// Adds a result to its tool call; returns false if the call is not in the window.
    fn attach_outcome(&mut self, entry: &ConversationEntry) -> bool {
        let id = entry.call.as_ref().filter(|_| transcript_cell::is_outcome(entry));
        // The call may have left the window, and then its result is shown alone.
        let Some(at) = id.and_then(|id| self.calls.remove(id)) else { return false };
        let Some(held) = cell_index(at, self.first).and_then(|at| self.cells.get_mut(at)) else {
            return false;
        };
        let before = held.cell.bytes();
        let TranscriptCell::Tool(call) = &mut held.cell else { return false };
        call.set_outcome(entry);
        // The cell has another height now.
        self.cached_layouts -= usize::from(held.cached_layout.take().is_some());
        self.bytes += held.cell.bytes().saturating_sub(before);
        true
    }

    /// Appends to the unfinished message.
    pub(crate) fn append_stream(&mut self, text: &str) {
        self.stream.push_str(text);
        self.cached_stream_layout = None;
        // Cut at twice the size, so that the text is not moved for every piece that arrives.
        if self.stream.len() > 2 * STREAM_BYTES_MAX {
            let from = self.stream.ceil_char_boundary(self.stream.len() - STREAM_BYTES_MAX);
            // At a line break, so that the visible part does not begin inside a word.
            let from = self.stream[from..].find('\n').map_or(from, |end| from + end + 1);
            self.stream.drain(..from);
        }
    }

    /// Removes the unfinished message.
    pub(crate) fn clear_stream(&mut self) {
        self.stream.clear();
        self.cached_stream_layout = None;
    }

    /// Forgets all layouts, because they have other colours.
    pub(crate) fn forget_layouts(&mut self) {
        self.cells.iter_mut().for_each(|held| held.cached_layout = None);
        self.cached_layouts = 0;
        self.cached_stream_layout = None;
    }

    /// Adds older entries. If none were requested, they are the end of the transcript and replace
    /// all entries.
    pub(crate) fn prepend_entries(
        &mut self,
        entries: &[ConversationEntry],
        has_more: bool,
        bounds: TranscriptLimits,
    ) {
        if !self.awaits_older {
            self.clear_entries();
        }
        let fits = self.oldest_entry() == self.conversation_oldest;
        self.awaits_older = false;
        // An empty page ends the requests, whatever the conversation says.
        self.has_older = has_more && !entries.is_empty();
        self.conversation_oldest -= entries.len() as i64;
        // So many entries arrived meanwhile that the window moved: the older ones are requested
        // again.
        if !fits {
            return;
        }
        // A widget of its own, so that results find their calls within the page.
        let mut page = TranscriptWidget {
            next_entry: self.conversation_oldest,
            ..TranscriptWidget::default()
        };
        for entry in entries {
            page.push_entry(entry, SCROLLED_LIMITS);
        }
        // Numbers of cells stay valid, because they count down from the first one.
        self.first -= page.cells.len() as i64;
        self.bytes += page.bytes;
        for held in page.cells.into_iter().rev() {
            self.cells.push_front(held);
        }
        // Results of these calls may still arrive.
        self.calls
            .extend(page.calls.into_iter().map(|(id, at)| (id, at - page.first + self.first)));
        self.trim(bounds);
    }

    fn clear_entries(&mut self) {
        // Notices are not part of the conversation's file and cannot be requested again.
        self.cells.retain(|held| held.entry.is_none());
        self.bytes = self.cells.iter().map(|held| held.cell.bytes()).sum();
        self.cached_layouts = self.cells.iter().filter(|held| held.cached_layout.is_some()).count();
        self.calls.clear();
        self.conversation_oldest = self.next_entry;
        (self.position, self.unseen_below) = (ScrollPosition::End, 0);
    }

    /// Removes the oldest cells beyond the limits.
    pub(crate) fn trim(&mut self, bounds: TranscriptLimits) {
        // Requested entries belong before the current oldest one, so nothing may be removed until
        // they arrive.
        let is_end = self.position == ScrollPosition::End && !self.awaits_older;
        let bounds = if is_end { bounds } else { SCROLLED_LIMITS };
        let mut is_trimmed = false;
        // One cell stays, even if it alone exceeds the limit.
        while self.cells.len() > bounds.cells || (self.bytes > bounds.bytes && self.cells.len() > 1)
        {
            let Some(held) = self.cells.pop_front() else { break };
            self.first += 1;
            self.bytes = self.bytes.saturating_sub(held.cell.bytes());
            self.cached_layouts -= usize::from(held.cached_layout.is_some());
            is_trimmed = true;
        }
        // Cleaned only when many calls are left, because it visits all of them.
        if is_trimmed && self.calls.len() > self.cells.len() {
            let first = self.first;
            self.calls.retain(|_, at| *at >= first);
        }
        // The visible cell was removed, so the oldest one that is left is shown.
        if let ScrollPosition::At { cell, .. } = self.position
            && cell < self.first
        {
            self.position = ScrollPosition::At { cell: self.first, line: 0 };
        }
    }

    /// Returns the number of the oldest entry in the window, or of the next one.
    fn oldest_entry(&self) -> i64 {
        self.cells.iter().find_map(|held| held.entry).unwrap_or(self.next_entry)
    }

    /// Returns the actions that load older entries, if there may be any.
    fn request_older(&mut self, of: &ChatSpeaker) -> Vec<UserAction> {
        let oldest = self.oldest_entry();
        let entries = usize::try_from(oldest - self.conversation_oldest).unwrap_or_default();
        // A request that is open or cannot be shown is not repeated.
        if self.awaits_older || self.is_full() || !self.has_older_entries() {
            return vec![];
        }
        self.awaits_older = true;
        self.conversation_oldest = oldest;
        let of = of.clone();
        let older = UserAction::LoadOlder { of: of.clone() };
        if entries == 0 {
            vec![older]
        } else {
            // The conversation must forget entries that the window has dropped, or a page would be
            // missing.
            vec![UserAction::DropEntries { of, entries }, older]
        }
    }

    /// Returns true if there are entries older than the window.
    fn has_older_entries(&self) -> bool {
        self.has_older || self.oldest_entry() > self.conversation_oldest
    }

    /// Returns true if the window has all known entries.
    pub(crate) fn is_complete(&self) -> bool {
        !self.has_older_entries()
    }

    /// Returns true if the largest limits are reached.
    fn is_full(&self) -> bool {
        self.cells.len() >= SCROLLED_LIMITS.cells || self.bytes >= SCROLLED_LIMITS.bytes
    }

    /// Returns true if the oldest cell is visible and no older ones will be loaded.
    pub(crate) fn is_at_limit(&self) -> bool {
        let is_top = self.position == ScrollPosition::At { cell: self.first, line: 0 };
        is_top && !self.awaits_older && self.is_full() && self.has_older_entries()
    }

    /// Returns the number of entries below the visible part; `None` if the end is visible.
    pub(crate) fn unseen_below(&self) -> Option<usize> {
        (self.position != ScrollPosition::End).then_some(self.unseen_below)
    }

    /// Scrolls to the end.
    pub(crate) fn go_to_end(&mut self, bounds: TranscriptLimits) {
        self.position = ScrollPosition::End;
        self.unseen_below = 0;
        self.trim(bounds);
    }

    /// Scrolls up; returns the actions that load older entries.
    pub(crate) fn scroll_up(
        &mut self,
        lines: usize,
        of: &ChatSpeaker,
        theme: &TerminalTheme,
    ) -> Vec<UserAction> {
        let (mut at, mut line) = self.first_visible_line(theme);
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
                line = self.layout_cell(at, theme).len();
            }
        }
        // Everything is visible already.
        if self.position == ScrollPosition::End && (at, line) == (0, 0) && left == lines {
            return self.request_older(of);
        }
        self.position = ScrollPosition::At { cell: self.first + at as i64, line };
        if left > 0 || (at, line) == (0, 0) { self.request_older(of) } else { vec![] }
    }

    /// Scrolls down.
    pub(crate) fn scroll_down(
        &mut self,
        lines: usize,
        bounds: TranscriptLimits,
        theme: &TerminalTheme,
    ) {
        let ScrollPosition::At { cell, line } = self.position else { return };
        let mut at = cell_index(cell, self.first).unwrap_or_default();
        let mut line = line + lines;
        // One more than the cells: the unfinished message is laid out as the last one.
        while at <= self.cells.len() {
            let height = self.layout_cell(at, theme).len();
            if line < height {
                break;
            }
            line -= height;
            at += 1;
        }
        self.position = ScrollPosition::At { cell: self.first + at as i64, line };
        // A position from which the screen is not filled is the end.
        if self.lines_from(at, line, theme).len() < self.viewport.height {
            self.go_to_end(bounds);
        }
    }

    /// Returns cell and line of the first visible line.
    fn first_visible_line(&mut self, theme: &TerminalTheme) -> (usize, usize) {
        if let ScrollPosition::At { cell, line } = self.position {
            return (cell_index(cell, self.first).unwrap_or_default(), line);
        }
        let mut left = self.viewport.height;
        let mut at = self.cells.len() + 1;
        while at > 0 {
            at -= 1;
            let height = self.layout_cell(at, theme).len();
            if height >= left {
                // The last lines fill the view, so a tall cell is shown from its middle.
                return (at, height - left);
            }
            left -= height;
        }
        (0, 0)
    }

    /// Returns the visible lines.
    pub(crate) fn visible_lines(
        &mut self,
        shape: TranscriptViewport,
        bounds: TranscriptLimits,
        theme: &TerminalTheme,
    ) -> Vec<Line<'static>> {
        self.viewport = shape;
        if let ScrollPosition::At { cell, line } = self.position {
            // After a resize the cell may have fewer lines.
            let at = cell_index(cell, self.first).unwrap_or_default();
            let line = line.min(self.layout_cell(at, theme).len().saturating_sub(1));
            self.position = ScrollPosition::At { cell: self.first + at as i64, line };
        }
        let (at, line) = self.first_visible_line(theme);
        let lines = self.lines_from(at, line, theme);
        // A larger window shows the end, which then stays in view.
        if lines.len() < shape.height && self.position != ScrollPosition::End {
            self.go_to_end(bounds);
            return self.visible_lines(shape, bounds, theme);
        }
        self.evict_layouts(at);
        lines
    }

    fn lines_from(&mut self, at: usize, line: usize, theme: &TerminalTheme) -> Vec<Line<'static>> {
        let height = self.viewport.height;
        let mut seen = Vec::with_capacity(height);
        let mut skipped = line;
        for at in at..=self.cells.len() {
            if seen.len() >= height {
                break;
            }
            let room = height - seen.len();
            seen.extend(self.layout_cell(at, theme).iter().skip(skipped).take(room).cloned());
            skipped = 0;
        }
        seen
    }

    /// Returns the layout of a cell, cached if possible; the index after the last cell is the
    /// unfinished message.
    fn layout_cell(&mut self, at: usize, theme: &TerminalTheme) -> &[Line<'static>] {
        let TranscriptViewport { width, unfolded, .. } = self.viewport;
        if at >= self.cells.len() {
            return self.layout_stream(width, theme);
        }
        let held = &mut self.cells[at];
        // The layout depends on the width and on folding, so a change of either replaces it.
        let is_laid =
            held.cached_layout.as_ref().is_some_and(|laid| (laid.0, laid.1) == (width, unfolded));
        if !is_laid {
            self.cached_layouts += usize::from(held.cached_layout.is_none());
            held.cached_layout = Some((width, unfolded, held.cell.lines(width, unfolded, theme)));
        }
        held.cached_layout.as_ref().map_or(&[], |laid| &laid.2)
    }

    fn layout_stream(&mut self, width: usize, theme: &TerminalTheme) -> &[Line<'static>] {
        let laid = self.cached_stream_layout.take().filter(|laid| laid.0 == width);
        let lay = || match sanitize(&self.stream) {
            text if text.trim().is_empty() => vec![],
            text => transcript_cell::agent_lines(&text, width, theme),
        };
        &self.cached_stream_layout.insert(laid.unwrap_or_else(|| (width, lay()))).1
    }

    /// Drops cached layouts of cells that are not visible, if there are many.
    fn evict_layouts(&mut self, at: usize) {
        if self.cached_layouts <= CACHED_LAYOUTS_MAX {
            return;
        }
        let seen = at..at + self.viewport.height + 1;
        // Rare: it runs only after a long scroll.
        for (at, held) in self.cells.iter_mut().enumerate() {
            if !seen.contains(&at) {
                self.cached_layouts -= usize::from(held.cached_layout.take().is_some());
            }
        }
    }
}

fn cell_index(number: i64, first: i64) -> Option<usize> {
    usize::try_from(number - first).ok()
}

#[cfg(test)]
mod tests;
