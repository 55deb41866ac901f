//! Values in commands of workflows reach a real shell as they are, whatever they hold.

use std::process::Command;

use heeler_config::workflow::{TemplateScope, WorkflowTemplate};
use indexmap::IndexMap;
use serde_json::{Map, json};

/// How many commands are tried.
const ROUNDS: usize = 100;

/// Letters that mean something to a shell.
const LETTERS: &[char] = &[
    'a', 'b', ' ', '\n', '\t', '\'', '"', '\\', '$', '`', '(', ')', '{', '}', '|', '&', ';', '<',
    '>', '*', '?', '[', ']', '!', '#', '~', '=', '%', '-', '/', 'ä', '\r',
];

fn text(random: &mut fastrand::Rng) -> String {
    let known = ["$(touch evil)", "`touch evil`", "'; touch evil; '", "\"; touch evil; \"", ""];
    match random.u8(0..8) {
        0 => known[random.usize(..known.len())].to_owned(),
        _ => (0..random.usize(..12)).map(|_| LETTERS[random.usize(..LETTERS.len())]).collect(),
    }
}

#[test]
fn a_shell_takes_values_as_they_are() {
    let template = "printf '%s\\037' {{a}} \"{{b}}\" '{{c}}' x{{d}}\"y {{e}}\"'z'\n\
        {% if f %}printf '%s\\037' \"$(printf '%s.' {{f}})\" $(true {{g}}) \"{% if g %}{{g}}{% endif %}\"{% endif %}";
    let template = WorkflowTemplate::parse_shell(template).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..ROUNDS {
        let v: Vec<String> = (0..7).map(|_| text(&mut random)).collect();
        let context = json!({
            "a": v[0], "b": v[1], "c": v[2], "d": v[3], "e": v[4],
            "f": format!("{}f", v[5]), "g": v[6],
        });
        let scope = TemplateScope {
            context: &context,
            scratch: &Map::new(),
            outputs: &IndexMap::new(),
            loop_results: &indexmap::IndexMap::new(),
            extra_names: &[],
        };
        let command = template.render(&scope).unwrap();
        let ran = Command::new("/bin/sh").args(["-c", &command]).current_dir(&folder).output();
        let said = String::from_utf8(ran.unwrap().stdout).unwrap();
        let expected = [
            v[0].clone(),
            v[1].clone(),
            v[2].clone(),
            format!("x{}y {}z", v[3], v[4]),
            format!("{}f.", v[5]),
            v[6].clone(),
        ];
        let said: Vec<&str> = said.strip_suffix('\u{1f}').unwrap().split('\u{1f}').collect();
        assert_eq!(said, expected, "seed {seed}: {command}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "seed {seed}: a value was run");
}
