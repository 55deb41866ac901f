//! Tests with random keys, output and sizes from fixed seeds: nothing may panic or draw outside of
//! the screen.

use super::*;

const SEEDS: u64 = 4;
const STEPS: usize = 400;

const TEXTS: [&str; 8] = [
    "plain words",
    "# head\n\n- a\n  1. b\n\n| x | y |\n|---|---|\n| 日本 | 2 |\n\n> > q",
    "```\ncode\twith tab\n```",
    "👨\u{200d}👩\u{200d}👧 e\u{301} \u{202e}x\x1b[2J",
    "",
    "\n\n\n",
    "averyveryveryveryveryveryverylongwordthatfitsnowhere",
    "日本語日本語日本語日本語日本語",
];

fn key(rng: &mut fastrand::Rng) -> Event {
    const CODES: [KeyCode; 16] = [
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Backspace,
        KeyCode::Delete,
        KeyCode::Insert,
        KeyCode::F(3),
    ];
    const CHARS: [char; 21] = [
        'a', 'b', 'c', 'd', 'e', 'k', 'o', 'r', 's', 'u', 'w', 'y', '1', '3', '/', '@', '\\', ' ',
        '日', '\u{301}', '\u{7}',
    ];
    let code = match rng.bool() {
        true => CODES[rng.usize(..CODES.len())],
        false => KeyCode::Char(CHARS[rng.usize(..CHARS.len())]),
    };
    let with = [
        KeyModifiers::NONE,
        KeyModifiers::NONE,
        KeyModifiers::CONTROL,
        KeyModifiers::ALT,
        KeyModifiers::SHIFT,
    ];
    Event::Key(KeyEvent::new(code, with[rng.usize(..with.len())]))
}

fn speaker(rng: &mut fastrand::Rng) -> ChatSpeaker {
    if rng.bool() {
        ChatSpeaker::Coordinator
    } else {
        ChatSpeaker::Worker(format!("w-{}", rng.u8(..3)))
    }
}

fn entry(rng: &mut fastrand::Rng) -> ConversationEntry {
    let text = TEXTS[rng.usize(..TEXTS.len())];
    let roles = [
        EntryRole::User,
        EntryRole::Assistant,
        EntryRole::System,
        EntryRole::Tool,
        EntryRole::Other(text.to_owned()),
    ];
    let mut entry = ConversationEntry::new(roles[rng.usize(..roles.len())].clone(), text, now());
    if entry.role == EntryRole::Tool {
        entry.call = Some(rng.u8(..4).to_string());
        entry.name = rng.bool().then(|| text.to_owned());
        entry.args = rng.bool().then(|| json!({"command": text}));
    }
    entry
}

fn show(rig: &mut ScreenFixture, rng: &mut fastrand::Rng) {
    let of = speaker(rng);
    let text = TEXTS[rng.usize(..TEXTS.len())].to_owned();
    let shown = match rng.u8(..15) {
        0..4 => ChatOutput::Entry { of, entry: entry(rng) },
        4 => ChatOutput::Delta { of, text },
        5 => ChatOutput::DeltaEnded { of },
        6 => {
            let entries = (0..rng.usize(..9)).map(|_| entry(rng)).collect();
            ChatOutput::OlderEntries { of, entries, has_more: rng.bool() }
        }
        7 => ChatOutput::ViewChanged(of),
        8 => ChatOutput::Status(Box::new(ConversationStatus {
            agent: text.clone(),
            busy: rng.bool().then_some(text),
            queued: rng.usize(..3),
            queued_texts: vec![TEXTS[rng.usize(..TEXTS.len())].to_owned(); rng.usize(..5)],
            attached: rng.usize(..3),
            workers: (0..rng.usize(..5))
                .map(|at| ChatWorkerStatus {
                    name: format!("w-{at}"),
                    state: ChatJobState::Running,
                    unseen: at,
                })
                .collect(),
            ..ConversationStatus::default()
        })),
        9 => ChatOutput::QuestionClosed { ask: rng.u8(..5).to_string() },
        10 => ChatOutput::SuggestedInput(text),
        11 if rng.bool() => ChatOutput::Diff(text),
        11 => ChatOutput::Notice(text),
        12 => ChatOutput::ExitMessage(text),
        13 if rng.u8(..4) == 0 => ChatOutput::SessionReplaced,
        _ => {
            let options = json!([{"label": text, "description": text}, {"label": "b"}]);
            let questions = json!({"questions": [
                {"question": text, "options": options, "multiSelect": rng.bool()}, {"question": "x"},
            ]});
            let kind = if rng.bool() { "question" } else { "permission" };
            let input =
                if rng.bool() { questions } else { json!({"old_string": text, "new_string": "n"}) };
            return rig.ask(&rng.u8(..5).to_string(), of, kind, "Edit", input);
        }
    };
    rig.screen.handle_output(shown);
}

#[test]
fn no_keys_no_words_and_no_size_break_the_screen() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rig = ScreenFixture::new(30, 12);
        for _ in 0..STEPS {
            match rng.u8(..10) {
                0 => rig.terminal.backend_mut().resize(rng.u16(1..70), rng.u16(1..25)),
                1..4 => show(&mut rig, &mut rng),
                4 => {
                    let event =
                        Event::Paste(TEXTS[rng.usize(..TEXTS.len())].repeat(rng.usize(..9)));
                    rig.screen.handle_event(&event);
                }
                _ => {
                    rig.screen.handle_event(&key(&mut rng));
                }
            }
            if rng.u8(..4) > 0 {
                let shown = rig.draw();
                assert!(!shown.contains(|c| c != '\n' && heeler_model::is_terminal_control(c)));
            }
        }
    }
}

#[test]
fn no_answer_is_given_twice_whatever_is_pressed() {
    let mut all = 0;
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rig = ScreenFixture::new(50, 20);
        let mut answered = vec![];
        for number in 0..20 {
            rig.ask(&number.to_string(), ChatSpeaker::Coordinator, "permission", "Bash", json!({}));
            for _ in 0..10 {
                if rng.bool() {
                    rig.draw();
                }
                answered.extend(rig.screen.handle_event(&key(&mut rng)).into_iter().filter_map(
                    |action| match action {
                        UserAction::Answer { ask, .. } => Some(ask),
                        _ => None,
                    },
                ));
            }
        }
        let unique: std::collections::HashSet<&String> = answered.iter().collect();
        assert_eq!(unique.len(), answered.len());
        all += answered.len();
    }
    assert!(all > SEEDS as usize, "keys answer something");
}

#[test]
fn a_picker_takes_any_key_in_any_size() {
    let mut rng = fastrand::Rng::with_seed(7);
    let card = |text: &str| SessionPickerEntry {
        id: text.to_owned(),
        agent: text.to_owned(),
        at: None,
        entries: Some(3),
        first_message: text.to_owned(),
        last_message: text.to_owned(),
        foreign_source: Some(text.to_owned()),
        fault: None,
        is_loading: false,
    };
    let mut picker =
        SessionPicker::new(TEXTS.iter().map(|text| card(text)).collect(), TerminalTheme::dark());
    let mut terminal = Terminal::new(TestBackend::new(30, 12)).unwrap();
    for _ in 0..STEPS {
        picker.handle_event(&key(&mut rng));
        terminal.backend_mut().resize(rng.u16(1..70), rng.u16(1..25));
        terminal.draw(|frame| picker.draw(frame, now())).unwrap();
    }
}
