//! Random keys, things shown and sizes, from fixed seeds: nothing may panic or leave the screen.

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
    const CHARS: [char; 20] = [
        'a', 'b', 'c', 'd', 'e', 'k', 'o', 'r', 'u', 'w', 'y', '1', '3', '/', '@', '\\', ' ', '日',
        '\u{301}', '\u{7}',
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

fn speaker(rng: &mut fastrand::Rng) -> Speaker {
    if rng.bool() { Speaker::Coordinator } else { Speaker::Worker(format!("w-{}", rng.u8(..3))) }
}

fn entry(rng: &mut fastrand::Rng) -> Entry {
    let text = TEXTS[rng.usize(..TEXTS.len())];
    let roles =
        [Role::User, Role::Assistant, Role::System, Role::Tool, Role::Other(text.to_owned())];
    let mut entry = Entry::new(roles[rng.usize(..roles.len())].clone(), text, now());
    if entry.role == Role::Tool {
        entry.call = Some(rng.u8(..4).to_string());
        entry.name = rng.bool().then(|| text.to_owned());
        entry.args = rng.bool().then(|| json!({"command": text}));
    }
    entry
}

fn show(rig: &mut Rig, rng: &mut fastrand::Rng) {
    let of = speaker(rng);
    let text = TEXTS[rng.usize(..TEXTS.len())].to_owned();
    let shown = match rng.u8(..15) {
        0..4 => Shown::Entry { of, entry: entry(rng) },
        4 => Shown::Delta { of, text },
        5 => Shown::DeltaEnded { of },
        6 => {
            let entries = (0..rng.usize(..9)).map(|_| entry(rng)).collect();
            Shown::Older { of, entries, has_more: rng.bool() }
        }
        7 => Shown::View(of),
        8 => Shown::Status(Box::new(Status {
            agent: text.clone(),
            busy: rng.bool().then_some(text),
            queued: rng.usize(..3),
            workers: (0..rng.usize(..5))
                .map(|at| WorkerChip {
                    name: format!("w-{at}"),
                    state: JobState::Running,
                    unseen: at,
                })
                .collect(),
            ..Status::default()
        })),
        9 => Shown::Settled { ask: rng.u8(..5).to_string() },
        10 => Shown::Suggested(text),
        11 => Shown::Told(text),
        12 => Shown::Leaving(text),
        13 if rng.u8(..4) == 0 => Shown::Restarted,
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
    rig.screen.show(shown);
}

#[test]
fn no_keys_no_words_and_no_size_break_the_screen() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rig = Rig::new(30, 12);
        for _ in 0..STEPS {
            match rng.u8(..10) {
                0 => rig.terminal.backend_mut().resize(rng.u16(1..70), rng.u16(1..25)),
                1..4 => show(&mut rig, &mut rng),
                4 => {
                    let event =
                        Event::Paste(TEXTS[rng.usize(..TEXTS.len())].repeat(rng.usize(..9)));
                    rig.screen.key(&event);
                }
                _ => {
                    rig.screen.key(&key(&mut rng));
                }
            }
            if rng.u8(..4) > 0 {
                let shown = rig.draw();
                assert!(!shown.contains(|c| c != '\n' && heeler_model::steers_terminal(c)));
            }
        }
    }
}

#[test]
fn no_answer_is_given_twice_whatever_is_pressed() {
    let mut all = 0;
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rig = Rig::new(50, 20);
        let mut answered = vec![];
        for number in 0..20 {
            rig.ask(&number.to_string(), Speaker::Coordinator, "permission", "Bash", json!({}));
            for _ in 0..10 {
                if rng.bool() {
                    rig.draw();
                }
                answered.extend(rig.screen.key(&key(&mut rng)).into_iter().filter_map(|wish| {
                    match wish {
                        Wish::Answer { ask, .. } => Some(ask),
                        _ => None,
                    }
                }));
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
    let card = |text: &str| Card {
        id: text.to_owned(),
        agent: text.to_owned(),
        at: None,
        entries: Some(3),
        first: text.to_owned(),
        last: text.to_owned(),
        foreign: Some(text.to_owned()),
        fault: None,
        is_unread: false,
    };
    let mut picker = Picker::new(TEXTS.iter().map(|text| card(text)).collect(), Theme::dark());
    let mut terminal = Terminal::new(TestBackend::new(30, 12)).unwrap();
    for _ in 0..STEPS {
        picker.key(&key(&mut rng));
        terminal.backend_mut().resize(rng.u16(1..70), rng.u16(1..25));
        terminal.draw(|frame| picker.draw(frame, now())).unwrap();
    }
}
