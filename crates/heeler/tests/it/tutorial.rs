//! The tutorial and the guides do what they say: every command of the tutorial is run, and every config
//! of the guides is checked.

use std::process::{Command, Stdio};

use heeler_testkit::FakeTelegram;

use crate::fleet::{Fleet, Ran};
use crate::telegram::{ANN, TOKEN};
use crate::trigger::wait_for;

/// Reads a page of the documentation.
fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// ID in the text that stands for the reader's own question.
const EXAMPLE_ID: &str = "ask-1a2b3c4d";

/// Token in the text that stands for that of the reader's own bot.
const EXAMPLE_TOKEN: &str = "123456789:your-token";

/// ID in the text that stands for the reader's own on Telegram.
const EXAMPLE_PERSON: &str = "1001";

/// Block of code of a page: its language and its text.
type PageBlock = (String, String);

fn blocks(page: &str) -> Vec<PageBlock> {
    let mut found = Vec::new();
    let mut open: Option<PageBlock> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some((_, text)), None) => text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

/// A person who reads the tutorial and types its commands.
struct TutorialReader {
    fleet: Fleet,
    folder: std::path::PathBuf,
}

impl TutorialReader {
    fn new() -> TutorialReader {
        let fleet = Fleet::empty();
        let folder = fleet.path().to_owned();
        TutorialReader { fleet, folder }
    }

    fn heeler(&self, args: &[&str]) -> Command {
        let mut command = self.fleet.command(args);
        // A newcomer has agreed to nothing, and has a dashboard.
        command.env_remove("HEELER_TRUST").env_remove("HEELER_NO_WEB").current_dir(&self.folder);
        command
    }

    /// Runs a block of commands; returns its output.
    fn run(&mut self, script: &str) -> String {
        let here = self.fleet.file("here");
        let script = format!("set -e\n{script}\npwd > '{}'", here.display());
        // The environment is that of the program itself.
        let like = self.heeler(&[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(&self.folder).stdin(Stdio::null()).env_clear();
        for (name, value) in like.get_envs() {
            shell.envs(value.map(|value| (name, value)));
        }
        let folder = std::path::Path::new(env!("CARGO_BIN_EXE_heeler")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", folder.display()));
        let ran = Ran::from(shell.output().unwrap());
        let output = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.code, Some(0), "{script}\n{output}");
        self.folder = std::fs::read_to_string(&here).unwrap().trim_end().into();
        output
    }

    /// Adds lines of the page to a file, with the reader's own ID and the phone of the test.
    fn add_lines(&self, file: &str, text: &str, phone: &FakeTelegram) {
        let address = format!("telegram: {{api_url: '{}', ", phone.url());
        assert!(text.contains("telegram: {"), "{text}");
        let text = text.replace("telegram: {", &address).replace(EXAMPLE_PERSON, &ANN.to_string());
        let path = self.folder.join(file);
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{before}\n{text}")).unwrap();
    }

    /// Waits until the agent has completed so many jobs.
    fn wait_until_completed(&self, count: usize) {
        wait_for("the end of the job", || {
            let args = ["jobs", "--agent", "updater", "--status", "completed", "--json"];
            let ran = Ran::from(self.heeler(&args).output().unwrap());
            let list: serde_json::Value = serde_json::from_str(&ran.stdout).ok()?;
            (list["jobs"].as_array()?.len() >= count).then_some(())
        });
    }

    /// Waits for the agent's question; returns its ID.
    fn question(&self) -> String {
        wait_for("a question of the agent", || {
            let ran = Ran::from(self.heeler(&["approvals", "list", "--json"]).output().unwrap());
            let list: serde_json::Value = serde_json::from_str(&ran.stdout).ok()?;
            Some(list["approvals"].as_array()?.first()?["id"].as_str()?.to_owned())
        })
    }
}

impl Drop for TutorialReader {
    fn drop(&mut self) {
        // A failed test must leave no daemon behind.
        drop(self.heeler(&["stop", "--force"]).output());
    }
}

#[test]
fn every_command_of_the_tutorial_works_as_it_says() {
    // The daemon ends before it.
    let phone = FakeTelegram::start(TOKEN);
    let mut reader = TutorialReader::new();
    let mut output = String::new();
    let (mut commands, mut outputs, mut answers) = (0, 0, 0);
    let mut has_phone = false;
    for (language, text) in blocks(&page("tutorial.md")) {
        match language.as_str() {
            "sh" => {
                commands += 1;
                let mut script = text.replace(EXAMPLE_TOKEN, TOKEN);
                if text.contains("heeler approvals") {
                    let id = reader.question();
                    script = script.replace(EXAMPLE_ID, &id);
                }
                // The agent needs a moment after the answer.
                if text.contains("cat deps.txt") {
                    if has_phone {
                        press_allow(&phone);
                    }
                    answers += 1;
                    reader.wait_until_completed(answers);
                }
                output = reader.run(&script);
            }
            "text" => {
                outputs += 1;
                for line in text.lines() {
                    assert!(output.contains(line), "{line:?} is not in:\n{output}");
                }
            }
            "yaml" => {
                let (head, _) = text.split_once('\n').unwrap();
                let name = head.strip_prefix("# ").unwrap();
                if let Some(file) = name.strip_prefix("part of ") {
                    replace_agent(&reader, file, &text);
                } else if let Some(file) = name.strip_prefix("added to ") {
                    reader.add_lines(file, &text, &phone);
                    has_phone = true;
                } else {
                    std::fs::write(reader.folder.join(name), &text).unwrap();
                }
            }
            other => panic!("an unknown kind of block: {other}"),
        }
    }
    assert!(commands >= 13 && outputs >= 6, "{commands} commands, {outputs} outputs");
    assert_eq!(answers, 2, "one at the terminal, and one on the phone");
}

/// Does what the page says about the phone: presses the first button of the question.
fn press_allow(phone: &FakeTelegram) {
    let question = phone.wait_for("the question", |posts| {
        posts.iter().find(|post| !post.buttons.is_empty()).cloned()
    });
    assert!(question.text.contains("May I use Edit?"), "{question:?}");
    assert!(question.buttons[0].starts_with("a:ask-"), "{question:?}");
    phone.click(ANN, &question, &question.buttons[0]);
}

/// Does what the page says about a part of a file: replaces the script of the agent, and checks the
/// result. It is put back, because the test has no API key.
fn replace_agent(reader: &TutorialReader, file: &str, part: &str) {
    let path = reader.folder.join(file);
    let before = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = before.split_once("runtime: scripted").unwrap();
    let (_, schedules) = rest.split_once("\nschedules:").unwrap();
    std::fs::write(&path, format!("{head}{part}\nschedules:{schedules}")).unwrap();
    let checked = Ran::from(reader.heeler(&["config", "validate"]).output().unwrap());
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    std::fs::write(&path, before).unwrap();
}

#[test]
fn every_config_of_the_guides_is_valid() {
    let configs: Vec<PageBlock> = blocks(&page("getting-started.md"))
        .into_iter()
        .filter(|(language, _)| language == "yaml")
        .collect();
    assert_eq!(configs.len(), 4);
    for (_, config) in configs {
        let fleet = Fleet::empty();
        std::fs::create_dir(fleet.file("repo")).unwrap();
        let git =
            Command::new("git").args(["init", "-q", "repo"]).current_dir(fleet.path()).status();
        assert!(git.unwrap().success());
        fleet.write("heeler.yaml", &config);
        let mut command = fleet.command(&["config", "validate"]);
        command.env("GITHUB_TOKEN", "ghp_0123456789").env("GITHUB_WEBHOOK_SECRET", "0123456789");
        let ran = Ran::from(command.output().unwrap());
        assert_eq!(ran.code, Some(0), "{config}\n{}{}", ran.stdout, ran.stderr);
        assert!(!ran.stderr.contains("warning"), "{config}\n{}", ran.stderr);
    }
}
