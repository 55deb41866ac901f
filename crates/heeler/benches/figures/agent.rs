//! An agent for measuring: this program itself, started in place of claude, says when it does what.
//!
//! What to do is in a variable, since its arguments are those that claude gets.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use camino::Utf8Path;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::protocol_agent::{SpokenTurn, play_acp, play_codex};

/// The variable that makes an agent of this program.
pub(crate) const VARIABLE: &str = "HEELER_BENCH_AGENT";

/// Returns the moment, by a clock that all processes share.
pub(crate) fn moment() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let parts = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    let (Ok(seconds), Ok(nanos)) = parts else { unreachable!("the clock runs from zero") };
    Duration::new(seconds, nanos)
}

/// Returns the variable's value for an agent that notes its start in `file`.
pub(crate) fn that_starts(file: &Utf8Path) -> String {
    format!("start {file}")
}

/// Returns the variable's value for an agent that says `count` times what time it is.
pub(crate) fn that_speaks(count: u32, pause: Duration) -> String {
    format!("speak {count} {}", pause.as_micros())
}

/// Returns the variable's value for an agent that sends `count` texts of so many bytes.
pub(crate) fn that_floods(count: u64, bytes: u64) -> String {
    format!("flood {count} {bytes}")
}

/// Is the agent that the variable describes.
pub(crate) fn play(script: &str) {
    let started = moment();
    let words: Vec<&str> = script.split(' ').collect();
    if let ["note", file, name] = words[..] {
        return note(file, name);
    }
    let number = |word: &str| word.parse::<u64>().expect("the bench wrote it");
    let turn = |words: &[&str]| match words {
        ["speak", count, pause] => {
            let pause = Duration::from_micros(number(pause));
            SpokenTurn::Times { count: number(count), pause }
        }
        ["flood", count, bytes] => {
            let bytes = usize::try_from(number(bytes)).expect("the bench wrote it");
            SpokenTurn::Texts { count: number(count), bytes }
        }
        _ => unreachable!("the bench wrote it"),
    };
    match &words[..] {
        ["acp", rest @ ..] => return play_acp(turn(rest)),
        ["codex", rest @ ..] => return play_codex(turn(rest)),
        _ => {}
    }
    say(&json!({ "type": "system", "subtype": "init", "session_id": SESSION, "tools": [] }));
    match words[..] {
        ["start", file] => {
            std::fs::write(file, started.as_nanos().to_string()).expect("the folder is there");
        }
        _ => turn(&words).speak(|_, text| speak(text)),
    }
    say(&json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "done",
        "num_turns": 1, "session_id": SESSION, "total_cost_usd": 0.0,
    }));
}

/// Adds a line to a file that many agents write: when this one started.
fn note(file: &str, name: &str) {
    let line = format!("{} {name}\n", Timestamp::now().as_nanosecond());
    let file = OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the folder is there");
}

const SESSION: &str = "00000000-0000-4000-8000-000000000000";

/// Says a text: one line, one write.
fn speak(text: &str) {
    let content = json!([{ "type": "text", "text": text }]);
    let message =
        json!({ "role": "assistant", "id": "msg_1", "model": "clock", "content": content });
    say(&json!({ "type": "assistant", "message": message, "session_id": SESSION }));
}

fn say(line: &serde_json::Value) {
    let line = format!("{line}\n");
    // Whoever does not listen any more has ended the measurement.
    drop(std::io::stdout().write_all(line.as_bytes()));
}
