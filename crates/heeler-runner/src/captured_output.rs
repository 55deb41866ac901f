//! Test of the runtimes with captured output of real agents, also with captures that a person
//! recorded elsewhere.
//!
//! A capture is a text file: lines with `#` tell the command and its exit, and the other lines have a
//! time in seconds, a direction (`<` printed, `>` written to the agent, `E` printed to standard
//! error) and the text. The time may be missing. A line that was cut by the recorder is passed on as
//! a damaged line. The captured command and its first lines tell which runtime talks to such an
//! agent. Start at [`parse_capture`]; `replay` replays what it
//! returns.

mod replay;

use serde_json::Value as Json;

use crate::protocol_replay::RecordedLine;

/// Captured run of an agent.
#[derive(Debug)]
pub(crate) struct AgentCapture {
    /// Command line, or the name of the agent.
    pub(crate) command: String,
    pub(crate) exit: CapturedExit,
    pub(crate) lines: Vec<RecordedLine>,
    /// Standard error.
    pub(crate) stderr: String,
}

/// End of a captured run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CapturedExit {
    Code(i32),
    Signal(i32),
    /// The recorder ended it after this time.
    TimedOut {
        after_ms: u64,
    },
}

/// Protocol that a captured agent speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CapturedProtocol {
    Acp,
    Codex,
    Qwen,
    /// Claude Code with the control protocol.
    ClaudeControl,
    /// Lines of Claude Code for one prompt.
    ClaudeOutput,
    /// Any other output, as that of a command.
    Command,
}

impl AgentCapture {
    /// Returns the name of the program, without its directory.
    pub(crate) fn program(&self) -> &str {
        let program = self.command.split_whitespace().next().unwrap_or_default();
        program.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the value of an option of the command.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.command.split_whitespace();
        words.find(|word| *word == name)?;
        words.next()
    }

    pub(crate) fn protocol(&self) -> CapturedProtocol {
        let first = |is_agents: bool| {
            let mut lines = self.lines.iter().filter(|line| line.is_agents == is_agents);
            lines.find(|line| line.message.is_object()).map(|line| &line.message)
        };
        if let Some(request) = first(false).filter(|line| line["method"] == "initialize") {
            let is_acp = request["params"].get("protocolVersion").is_some();
            return if is_acp { CapturedProtocol::Acp } else { CapturedProtocol::Codex };
        }
        let has_init = self.lines.iter().any(|line| {
            line.is_agents && line.message["type"] == "system" && line.message["subtype"] == "init"
        });
        let is_qwen = self.command.to_lowercase().starts_with("qwen");
        let has_input = first(false).is_some();
        match (has_init, is_qwen, has_input) {
            (true, true, _) => CapturedProtocol::Qwen,
            (true, false, true) => CapturedProtocol::ClaudeControl,
            (true, false, false) => CapturedProtocol::ClaudeOutput,
            (false, ..) => CapturedProtocol::Command,
        }
    }
}

/// Reads a capture. Lines in no known form are skipped.
pub(crate) fn parse_capture(text: &str) -> AgentCapture {
    let mut capture = AgentCapture {
        command: String::new(),
        exit: CapturedExit::Code(0),
        lines: Vec::new(),
        stderr: String::new(),
    };
    for line in text.lines() {
        if let Some(header) = line.strip_prefix('#') {
            read_header(header.trim(), &mut capture);
            continue;
        }
        match split_line(line) {
            Some(("E", text)) => {
                capture.stderr.push_str(text);
                capture.stderr.push('\n');
            }
            Some((direction @ ("<" | ">"), text)) => {
                let message = serde_json::from_str(text).unwrap_or(Json::Null);
                let is_agents = direction == "<";
                capture.lines.push(RecordedLine { is_agents, text: text.to_owned(), message });
            }
            _ => {}
        }
    }
    capture
}

fn read_header(header: &str, capture: &mut AgentCapture) {
    match header.split_once(": ") {
        Some(("cmd", command)) => command.clone_into(&mut capture.command),
        Some(("exit", exit)) => capture.exit = parse_exit(exit),
        Some(_) => {}
        None if capture.command.is_empty() => header.clone_into(&mut capture.command),
        None => {}
    }
}

/// Parses `0  wall: 1.61s`, `-15  wall: 4.03s` or `TIMEOUT-killed  wall: 30.03s`.
fn parse_exit(exit: &str) -> CapturedExit {
    let mut words = exit.split_whitespace();
    match words.next().unwrap_or_default().parse::<i32>() {
        Ok(code @ 0..) => CapturedExit::Code(code),
        Ok(signal) => CapturedExit::Signal(-signal),
        Err(_) => {
            let seconds = words.nth(1).and_then(|wall| wall.trim_end_matches('s').parse().ok());
            let seconds: f64 = seconds.unwrap_or_default();
            CapturedExit::TimedOut { after_ms: (seconds * 1000.0) as u64 }
        }
    }
}

/// Returns the direction and the text of a line, which may begin with a time.
fn split_line(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let rest = match line.split_once(' ') {
        Some((time, rest)) if time.parse::<f64>().is_ok() => rest,
        _ => line,
    };
    Some(rest.split_once(' ').unwrap_or((rest, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_read_with_and_without_times() {
        let text = "# cwd: /project\n# cmd: /bin/codex app-server --limit 2\n# exit: -15  wall: 4.03s\n\
                    \u{20}  0.019 > {\"id\":1,\"method\":\"initialize\"}\n12.000 E words < here\n\
                    < {\"id\":1,\"result\":{}}\n0.100 < {\"cut\":\"x…[+90 chars cut]\nnonsense\n";
        let capture = parse_capture(text);
        assert_eq!((capture.program(), capture.option("--limit")), ("codex", Some("2")));
        assert_eq!(capture.exit, CapturedExit::Signal(15));
        assert_eq!(capture.stderr, "words < here\n");
        let lines: Vec<_> =
            capture.lines.iter().map(|it| (it.is_agents, it.message.is_object())).collect();
        assert_eq!(lines, [(false, true), (true, true), (true, false)]);
        assert_eq!(capture.lines[2].text, "{\"cut\":\"x…[+90 chars cut]");
        assert_eq!(capture.protocol(), CapturedProtocol::Codex);
    }

    #[test]
    fn the_first_lines_tell_the_protocol() {
        for (text, expected) in [
            (
                "> {\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}",
                CapturedProtocol::Acp,
            ),
            ("< {\"type\":\"system\",\"subtype\":\"init\"}", CapturedProtocol::ClaudeOutput),
            (
                "# cmd: qwen -o stream-json x\n< {\"type\":\"system\",\"subtype\":\"init\"}",
                CapturedProtocol::Qwen,
            ),
            (
                "> {\"type\":\"control_request\"}\n< {\"type\":\"system\",\"subtype\":\"init\"}",
                CapturedProtocol::ClaudeControl,
            ),
            ("< words", CapturedProtocol::Command),
            ("", CapturedProtocol::Command),
        ] {
            assert_eq!(parse_capture(text).protocol(), expected, "{text}");
        }
        assert_eq!(
            parse_exit("TIMEOUT-killed  wall: 30.5s"),
            CapturedExit::TimedOut { after_ms: 30_500 }
        );
        assert_eq!(parse_exit("53  wall: 7.19s"), CapturedExit::Code(53));
    }
}
