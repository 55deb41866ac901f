//! Tests of the transcript on the screen.

use heeler_chat::EntryRole;
use jiff::Timestamp;
use serde_json::json;

use super::*;

const SMALL: TranscriptLimits = TranscriptLimits { cells: 10, bytes: 1 << 20 };

fn said(text: &str) -> ConversationEntry {
    ConversationEntry::new(EntryRole::System, text, Timestamp::UNIX_EPOCH)
}

fn numbered(numbers: std::ops::Range<usize>) -> Vec<ConversationEntry> {
    numbers.map(|number| said(&format!("n{number}"))).collect()
}

fn seen(transcript: &mut TranscriptWidget, height: usize) -> String {
    let shape = TranscriptViewport { width: 40, height, unfolded: false };
    let lines = transcript.visible_lines(shape, SMALL, &TerminalTheme::plain());
    let lines: Vec<String> = lines.iter().map(|line| line.to_string().trim().to_owned()).collect();
    lines.join(" ")
}

fn filled(numbers: std::ops::Range<usize>) -> TranscriptWidget {
    let mut transcript = TranscriptWidget::default();
    for entry in numbered(numbers) {
        transcript.push_entry(&entry, SMALL);
    }
    transcript
}

#[test]
fn what_was_let_go_is_asked_for_from_where_it_was() {
    let mut transcript = filled(0..25);
    let (of, theme) = (ChatSpeaker::Coordinator, TerminalTheme::plain());
    assert_eq!(seen(&mut transcript, 3), "n22 n23 n24");
    assert_eq!(transcript.scroll_up(4, &of, &theme), []);
    assert_eq!(seen(&mut transcript, 3), "n18 n19 n20");
    let actions = transcript.scroll_up(9, &of, &theme);
    assert_eq!(
        actions,
        [
            UserAction::DropEntries { of: of.clone(), entries: 15 },
            UserAction::LoadOlder { of: of.clone() }
        ]
    );
    assert_eq!(transcript.scroll_up(9, &of, &theme), [], "it is asked for once");
    transcript.prepend_entries(&numbered(10..15), true, SMALL);
    assert_eq!(seen(&mut transcript, 3), "n15 n16 n17", "what is seen stays");
    assert_eq!(transcript.scroll_up(2, &of, &theme), []);
    assert_eq!(seen(&mut transcript, 3), "n13 n14 n15");
    assert_eq!(transcript.scroll_up(9, &of, &theme), [UserAction::LoadOlder { of: of.clone() }]);
    transcript.prepend_entries(&numbered(8..10), false, SMALL);
    assert_eq!(transcript.scroll_up(9, &of, &theme), []);
    assert_eq!(seen(&mut transcript, 3), "n8 n9 n10");
    transcript.scroll_down(1, SMALL, &theme);
    assert_eq!(seen(&mut transcript, 3), "n9 n10 n11");
    transcript.go_to_end(SMALL);
    assert_eq!(transcript.cells.len(), SMALL.cells);
    assert_eq!(
        transcript.scroll_up(20, &of, &theme)[0],
        UserAction::DropEntries { of, entries: 7 }
    );
}

#[test]
fn a_tail_that_nobody_asked_for_has_what_was_shown_before() {
    let mut transcript = filled(3..5);
    transcript.push_notice(TranscriptCell::Notice("aside".to_owned()), SMALL);
    transcript.prepend_entries(&numbered(1..5), true, SMALL);
    transcript.push_entry(&said("n5"), SMALL);
    assert_eq!(seen(&mut transcript, 9), "n1 n2 n3 n4  aside n5");
    let of = ChatSpeaker::Coordinator;
    let actions = transcript.scroll_up(1, &of, &TerminalTheme::plain());
    assert_eq!(actions, [UserAction::LoadOlder { of }]);
    transcript.prepend_entries(&numbered(0..1), false, SMALL);
    assert_eq!(seen(&mut transcript, 9), "n0 n1 n2 n3 n4  aside n5");
}

#[test]
fn older_ones_that_come_too_late_leave_no_gap() {
    let mut transcript = filled(0..25);
    let (of, theme) = (ChatSpeaker::Coordinator, TerminalTheme::plain());
    seen(&mut transcript, 3);
    transcript.scroll_up(30, &of, &theme);
    for entry in numbered(25..25 + SCROLLED_LIMITS.cells) {
        transcript.push_entry(&entry, SMALL);
    }
    assert_eq!(transcript.cells.len(), SCROLLED_LIMITS.cells, "it is bounded also while it waits");
    assert_eq!(seen(&mut transcript, 2), "n25 n26");
    transcript.prepend_entries(&numbered(10..15), true, SMALL);
    assert_eq!(seen(&mut transcript, 2), "n25 n26");
    transcript.go_to_end(SMALL);
    let let_go = 25 + SCROLLED_LIMITS.cells - SMALL.cells - 10;
    assert_eq!(
        transcript.scroll_up(30, &of, &theme)[0],
        UserAction::DropEntries { of, entries: let_go }
    );
}

#[test]
fn at_the_limit_of_what_is_held_it_says_so_and_asks_for_no_more() {
    let mut transcript = filled(0..10);
    let (of, theme) = (ChatSpeaker::Coordinator, TerminalTheme::plain());
    seen(&mut transcript, 3);
    while transcript.scroll_up(usize::MAX, &of, &theme)
        == [UserAction::LoadOlder { of: of.clone() }]
    {
        assert!(!transcript.is_at_limit());
        transcript.prepend_entries(&numbered(0..1000), true, SMALL);
        seen(&mut transcript, 3);
    }
    assert!(transcript.is_at_limit() && transcript.cells.len() == SCROLLED_LIMITS.cells);
    assert_eq!(transcript.scroll_up(1, &of, &theme), []);
    transcript.scroll_down(1, SMALL, &theme);
    assert!(!transcript.is_at_limit());
}

#[test]
fn one_thing_that_is_taller_than_the_window_is_scrolled_to_its_top() {
    let mut transcript = filled(0..0);
    transcript.push_notice(TranscriptCell::System("a\nb\nc\nd\ne".to_owned()), SMALL);
    let (of, theme) = (ChatSpeaker::Coordinator, TerminalTheme::plain());
    transcript.prepend_entries(&[], false, SMALL);
    assert_eq!(seen(&mut transcript, 3), "c d e");
    transcript.scroll_up(4, &of, &theme);
    assert_eq!(seen(&mut transcript, 3), "a b c");
}

#[test]
fn new_entries_do_not_move_what_is_read() {
    let mut transcript = filled(0..9);
    let (of, theme) = (ChatSpeaker::Coordinator, TerminalTheme::plain());
    assert_eq!(seen(&mut transcript, 3), "n6 n7 n8");
    transcript.scroll_up(2, &of, &theme);
    transcript.push_entry(&said("n9"), SMALL);
    transcript.append_stream("more");
    assert_eq!(
        (seen(&mut transcript, 3).as_str(), transcript.unseen_below()),
        ("n4 n5 n6", Some(1))
    );
    transcript.scroll_down(1, SMALL, &theme);
    assert_eq!(seen(&mut transcript, 3), "n5 n6 n7");
    transcript.scroll_down(50, SMALL, &theme);
    assert_eq!(
        (seen(&mut transcript, 3).as_str(), transcript.unseen_below()),
        ("n9  ● more", None)
    );
}

#[test]
fn only_what_is_seen_is_laid_out() {
    let mut transcript = filled(0..10);
    seen(&mut transcript, 3);
    assert_eq!(transcript.cached_layouts, 3);
    let mut transcript = TranscriptWidget::default();
    for number in 0..1000 {
        transcript.push_entry(&said(&format!("n{number}")), FOCUSED_LIMITS);
        seen(&mut transcript, 3);
        assert!(transcript.cached_layouts <= CACHED_LAYOUTS_MAX);
    }
}

#[test]
fn what_a_tool_gave_is_shown_with_its_call_even_if_others_come_between() {
    let mut transcript = TranscriptWidget::default();
    let call = |id: &str, name: &str| {
        let mut entry = said("");
        (entry.role, entry.content, entry.call) =
            (EntryRole::Tool, json!(null), Some(id.to_owned()));
        (entry.name, entry.args) = (Some(name.to_owned()), Some(json!({"command": "ls"})));
        entry
    };
    let gave = |id: &str| {
        let mut entry = said("all well");
        (entry.role, entry.call) = (EntryRole::Tool, Some(id.to_owned()));
        entry.name = Some("Lost".to_owned());
        entry.other.insert("durationMs".to_owned(), json!(1200));
        entry
    };
    for entry in [call("1", "A"), call("2", "B"), gave("2"), gave("1"), gave("0")] {
        transcript.push_entry(&entry, SMALL);
    }
    assert_eq!(seen(&mut transcript, 9), "✓ A ls  1.2s ✓ B ls  1.2s ✓ Lost   1.2s");
    assert!(transcript.calls.is_empty());
}

#[test]
fn what_is_said_makes_way_for_its_entry_and_is_bounded() {
    let mut transcript = TranscriptWidget::default();
    transcript.append_stream("Hel");
    transcript.append_stream("lo\x1b[31");
    transcript.push_entry(&said("aside"), SMALL);
    assert_eq!(seen(&mut transcript, 5), "aside  ● Hello\\u{1b}[31");
    transcript.push_entry(
        &ConversationEntry::new(EntryRole::Assistant, "Hello!", Timestamp::UNIX_EPOCH),
        SMALL,
    );
    assert_eq!(seen(&mut transcript, 5), "aside  ● Hello!");
    for _ in 0..10_000 {
        transcript.append_stream("0123456789\n");
    }
    assert!(transcript.stream.len() <= 2 * STREAM_BYTES_MAX);
    transcript.clear_stream();
    assert_eq!(seen(&mut transcript, 5), "aside  ● Hello!");
}
