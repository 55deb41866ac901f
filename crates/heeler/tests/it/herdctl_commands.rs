//! Every command of herdctl, as the table of `docs/coming-from-herdctl.md` promises it.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use heeler_store::{DaemonFile, StateDir};
use heeler_testkit::WAIT_MAX;
use rustix::process::{Pid, Signal};

use crate::fleet::{Fleet, Ran};
use crate::trigger::{ended, wait_for};

const PAGE: &str = include_str!("../../../../docs/coming-from-herdctl.md");

const CONFIG: &str = "
agents: [{path: agents/coder.yaml}, {path: agents/sleeper.yaml}]
";
const CODER: &str = "
name: coder
runtime: scripted
script: [{say: Done.}]
schedules: {nightly: {cron: '0 3 1 1 *', prompt: Look.}}
";
const SLEEPER: &str = "{name: sleeper, runtime: scripted, script: [{say: Waiting.}, {hang: true}]}";

/// A line of the table.
#[derive(Debug)]
struct TableLine {
    arguments: Vec<String>,
    meaning: String,
    exits: Vec<i32>,
}

fn table() -> Vec<TableLine> {
    let section = PAGE.split("\n## Commands\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("| `herdctl "));
    lines
        .map(|line| {
            let (command, rest) = line.split_once('`').unwrap();
            let cells: Vec<&str> = rest.trim_matches(['|', ' ']).rsplitn(2, '|').collect();
            let exits = cells[0].split(',').map(|code| code.trim().parse().unwrap()).collect();
            let meaning = cells.get(1).unwrap_or(&"").trim().to_owned();
            TableLine { arguments: words(command), meaning, exits }
        })
        .collect()
}

/// Splits a command line at spaces, except in single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}

impl Fleet {
    fn herdctl() -> Fleet {
        let fleet = Fleet::empty();
        fleet.write("herdctl.yaml", CONFIG);
        fleet.write("agents/coder.yaml", CODER);
        fleet.write("agents/sleeper.yaml", SLEEPER);
        fleet.write(
            "PACKAGE/agent.yaml",
            "name: packaged\nruntime: scripted\nscript: [{say: Hi.}]\n",
        );
        std::fs::create_dir(fleet.file(".herdctl")).unwrap();
        fleet
    }

    fn new_job(&self, agent: &str) -> String {
        let told = self.json(&["trigger", agent, "-p", "Go.", "--detach", "--json"]);
        told["job"]["id"].as_str().unwrap().to_owned()
    }

    /// Waits for a daemon in the foreground, stops it, and returns how it ended.
    fn start_and_stop(&self, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        command.env_remove("HEELER_NO_WEB").stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = child.id();
        let dir = StateDir::open(&self.state_dir().with_file_name(".herdctl")).unwrap();
        wait_for("the daemon", || {
            DaemonFile::read(&dir).ok().flatten().filter(|file| file.pid == pid)
        });
        self.run(&["stop", "-f"]).ok();
        ended(child)
    }

    /// Follows until the first line, then interrupts.
    fn follow(&self, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        ended(child)
    }

    fn run_line(&self, line: &TableLine) -> Ran {
        let job = || self.new_job("coder");
        let mut arguments = line.arguments.clone();
        for argument in &mut arguments {
            match argument.as_str() {
                "AGENT" => *argument = "coder".to_owned(),
                "SCHEDULE" => *argument = "nightly".to_owned(),
                "JOB" => *argument = job(),
                "RUNNING" => *argument = self.new_job("sleeper"),
                "PORT" => *argument = free_port().to_string(),
                _ => {}
            }
        }
        let args: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match args[..] {
            // It would serve the usual port, which tests share.
            ["start", "--web"] => {
                let port = free_port().to_string();
                self.start_and_stop(&["start", "--web", "--web-port", &port])
            }
            ["start", "--web-port", ..] => self.start_and_stop(&args),
            ["start", ..] => self.start_and_stop(&[&args[..], &["--no-web"]].concat()),
            ["stop", ..] => {
                self.run(&["start", "-d"]).ok();
                self.run(&args)
            }
            ["logs", .., "-f"] => self.follow(&args),
            ["init"] | ["init", "-y" | "-f" | "fleet", ..] => self.another().run(&args),
            _ => self.run(&args),
        }
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn every_command_of_herdctl_does_what_the_table_says() {
    let lines = table();
    assert!(lines.len() > 45, "{}", lines.len());
    let fleet = Fleet::herdctl();
    fleet.run(&["trigger", "coder", "-p", "Begin."]).ok();
    let begun = std::time::Instant::now();
    for line in &lines {
        let ran = fleet.run_line(line);
        // Shells report an interrupted command so.
        let code = ran.code.unwrap_or(130);
        let told = format!("{}{}", ran.stdout, ran.stderr);
        assert!(line.exits.contains(&code), "{line:?} ended with {code}: {told}");
        // A refusal names what to do instead.
        if code != 0 && code != 130 {
            let named = line.meaning.split('`').skip(1).step_by(2);
            let named: Vec<&str> = named.collect();
            assert!(named.iter().any(|text| told.contains(text)), "{line:?} says: {told}");
        }
        assert!(begun.elapsed() < 20 * WAIT_MAX);
    }
    assert!(fleet.read("agents/NEW.yaml").contains("permission_mode: plan"));
    assert!(fleet.read("agents/NEW.yaml").contains("description: \"What it does\""));
}
