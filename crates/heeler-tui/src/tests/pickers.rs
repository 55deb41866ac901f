//! Tests of the session picker.

use super::*;

fn card(id: &str, first: &str, at: &str) -> SessionPickerEntry {
    SessionPickerEntry {
        id: id.to_owned(),
        agent: "lead".to_owned(),
        at: Some(at.parse().unwrap()),
        entries: Some(12),
        first_message: first.to_owned(),
        last_message: "done\nwith it".to_owned(),
        foreign_source: None,
        fault: None,
        is_loading: false,
    }
}

fn cards() -> Vec<SessionPickerEntry> {
    let foreign = Some("~/.fleet".to_owned());
    let fault = Some("its file is no JSON".to_owned());
    vec![
        card("aaa", "fix the \x1b[31mtests", "2026-11-16T11:59:30Z"),
        SessionPickerEntry {
            entries: Some(1),
            ..card("bbb", "write docs", "2026-11-16T09:00:00Z")
        },
        SessionPickerEntry {
            foreign_source: foreign,
            ..card("ccc", "an old one", "2026-11-01T12:00:00Z")
        },
        SessionPickerEntry {
            fault,
            at: None,
            entries: None,
            ..card("ddd", "", "2026-11-01T12:00:00Z")
        },
    ]
}

struct SessionPickerFixture {
    picker: SessionPicker,
    terminal: Terminal<TestBackend>,
}

impl SessionPickerFixture {
    fn new(width: u16, height: u16) -> SessionPickerFixture {
        let picker = SessionPicker::new(cards(), TerminalTheme::plain());
        SessionPickerFixture {
            picker,
            terminal: Terminal::new(TestBackend::new(width, height)).unwrap(),
        }
    }

    #[track_caller]
    fn check(&mut self, expected: Expect) {
        self.terminal.draw(|frame| self.picker.draw(frame, now())).unwrap();
        expected.assert_eq(&text(&self.terminal));
    }

    fn keys(&mut self, text: &str) -> Option<SessionPickerOutcome> {
        let mut picked = None;
        for event in events(text) {
            picked = self.picker.handle_event(&event);
        }
        picked
    }
}

#[test]
fn sessions_tell_their_age_size_first_and_last_words_origin_and_faults() {
    let mut list = SessionPickerFixture::new(60, 14);
    list.check(expect![[r#"
        Resume a session (4 of 4):
        ▸ fix the tests
          now · 12 entries · lead · aaa
          … done with it
          write docs
          3h ago · 1 entry · lead · bbb
          … done with it
          an old one
          15d ago · 12 entries · lead · from ~/.fleet · ccc
          … done with it
          (unreadable)
          lead · ddd
          ! its file is no JSON
        type to search · Enter: resume · Esc: leave"#]]);
    assert_eq!(list.keys("<Down><Enter>"), Some(SessionPickerOutcome::Session("bbb".to_owned())));
    assert_eq!(list.keys("<Esc>"), Some(SessionPickerOutcome::Cancelled));
}

#[test]
fn words_find_a_session_and_esc_takes_them_back_first() {
    let mut list = SessionPickerFixture::new(60, 8);
    list.keys("OLD one");
    list.check(expect![[r#"
        Resume a session (1 of 4): OLD one
        ▸ an old one
          15d ago · 12 entries · lead · from ~/.fleet · ccc
          … done with it



        type to search · Enter: resume · Esc: leave"#]]);
    assert_eq!(list.keys("<Enter>"), Some(SessionPickerOutcome::Session("ccc".to_owned())));
    list.keys("x");
    list.check(expect![[r#"
        Resume a session (0 of 4): OLD onex
          no matching sessions





        type to search · Enter: resume · Esc: leave"#]]);
    assert_eq!(list.keys("<Enter>"), None);
    assert_eq!(list.keys("<Esc>"), None);
    assert_eq!(list.keys("<Esc>"), Some(SessionPickerOutcome::Cancelled));
}

#[test]
fn one_that_cannot_be_resumed_says_why() {
    let mut list = SessionPickerFixture::new(60, 8);
    assert_eq!(list.keys("<End><Enter>"), None);
    list.check(expect![[r#"
        Resume a session (4 of 4):
          an old one
          15d ago · 12 entries · lead · from ~/.fleet · ccc
          … done with it
        ▸ (unreadable)
          lead · ddd
          ! its file is no JSON
        it cannot be resumed: its file is no JSON"#]]);
}

#[test]
fn a_small_window_shows_the_one_that_is_chosen() {
    let mut list = SessionPickerFixture::new(24, 5);
    list.keys("<Down><Down>");
    list.check(expect![[r#"
        Resume a session (4 of …
        ▸ an old one
          15d ago · 12 entries …
          … done with it
        type to search · Enter:…"#]]);
    list.terminal.backend_mut().resize(4, 1);
    list.check(expect!["Res…"]);
}

#[test]
fn what_is_found_in_a_session_comes_into_the_list_and_what_is_chosen_stays_so() {
    let unread = |card: SessionPickerEntry| SessionPickerEntry {
        id: card.id,
        at: card.at,
        foreign_source: card.foreign_source,
        is_loading: true,
        ..SessionPickerEntry::default()
    };
    let picker =
        SessionPicker::new(cards().into_iter().map(unread).collect(), TerminalTheme::plain());
    let terminal = Terminal::new(TestBackend::new(60, 8)).unwrap();
    let mut list = SessionPickerFixture { picker, terminal };
    list.check(expect![[r#"
        Resume a session (4 of 4):
        ▸ …
          now · … entries · aaa

          …
          3h ago · … entries · bbb

        type to search · Enter: resume · Esc: leave"#]]);
    list.keys("o");
    assert_eq!(list.keys("<Enter>"), None, "none has it in its name");
    let [aaa, bbb, ccc, _] = cards().try_into().unwrap();
    for (at, card) in [(2, ccc), (1, bbb), (0, aaa), (9, SessionPickerEntry::default())] {
        list.picker.update_entry(at, card);
    }
    list.check(expect![[r#"
        Resume a session (3 of 4): o
          write docs
          3h ago · 1 entry · lead · bbb
          … done with it
        ▸ an old one
          15d ago · 12 entries · lead · from ~/.fleet · ccc
          … done with it
        type to search · Enter: resume · Esc: leave"#]]);
    assert_eq!(list.picker.first_visible(), 1);
    assert_eq!(list.keys("<Enter>"), Some(SessionPickerOutcome::Session("ccc".to_owned())));
}
