//! Requests of an ACP agent for services of the client: `fs/*` and `terminal/*`.
//!
//! An action for which the agent has asked, and which was allowed, is performed once. Any other one is
//! decided as a question of the agent would be. Start at [`AcpRuntime::handle_client_request`].

use std::collections::HashSet;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value as Json, json};

use super::question::AcpQuestion;
use super::{AcpRuntime, RPC};
use crate::client_tools::{
    ClientFileRequest, ClientToolReply, ClientToolRequest, FileOperation,
    TERMINAL_OUTPUT_BYTES_MAX, TerminalCommand, TerminalOperation,
};
use crate::json_rpc::{DENIED, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcId};
use crate::program_policy::{ProgramAction, ProgramVerdict};
use crate::program_questions::AskedAction;
use crate::program_rows as rows;
use crate::runtime::RuntimeEffect;

/// Limit on remembered permissions of a turn. Beyond it the oldest one is forgotten, and asked about
/// again.
const PERMISSIONS_MAX: usize = 256;

/// Shells that agents start for a line.
const SHELLS: [&str; 6] =
    ["/bin/sh", "/bin/bash", "/bin/zsh", "/usr/bin/sh", "/usr/bin/bash", "/usr/bin/zsh"];

/// Variables of a command that any permission covers. Agents send them with every command, and they
/// change only the look of its output.
const HARMLESS_VARIABLES: [&str; 17] = [
    "CARGO_TERM_PROGRESS_WHEN",
    "CARGO_TERM_PROGRESS_WIDTH",
    "CI",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLORTERM",
    "COLUMNS",
    "FORCE_COLOR",
    "GROK_SESSION_ID",
    "LANG",
    "LANGUAGE",
    "LINES",
    "NO_COLOR",
    "NPM_CONFIG_PROGRESS",
    "PIP_PROGRESS_BAR",
    "TERM",
    "TZ",
];

/// Variables that a permission covers with exactly these values. With others they can run programs.
const HARMLESS_VALUES: [(&str, &str); 7] = [
    ("GIT_PAGER", ""),
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GRADLE_OPTS", "-Dorg.gradle.console=rich"),
    ("MAVEN_OPTS", "-Dstyle.color=always"),
    ("PAGER", ""),
    ("PAGER", "cat"),
];

/// Texts in the input of a call that changes a file.
const CHANGE_KEYS: [&str; 5] = ["content", "file_text", "new_str", "new_string", "after"];

/// Terminals of an agent, and the actions that it may perform.
#[derive(Debug, Default)]
pub(super) struct AcpClientState {
    /// Terminals whose commands were started, until the agent releases them.
    terminals: HashSet<String>,
    /// Number of terminals that the agent asked for.
    requested: u64,
    /// Actions that were allowed and not performed yet.
    permissions: Vec<GivenPermission>,
}

/// Action for which the agent has asked, and which was allowed.
#[derive(Debug)]
struct GivenPermission {
    command: Option<String>,
    /// Absolute paths.
    paths: Vec<Utf8PathBuf>,
    /// The files may be changed.
    has_writes: bool,
}

impl AcpClientState {
    /// Forgets the permissions of the turn before.
    pub(super) fn begin_turn(&mut self) {
        self.permissions.clear();
    }

    /// Remembers an allowed action, of which a person saw this input.
    pub(super) fn add_permission(
        &mut self,
        action: ProgramAction,
        input: &Json,
        paths: Vec<Utf8PathBuf>,
    ) {
        if self.permissions.len() >= PERMISSIONS_MAX {
            self.permissions.remove(0);
        }
        // Edits may be accepted without a person, and reads seem harmless, so neither permits a command.
        let command = input["command"].as_str().filter(|_| action == ProgramAction::Other);
        let has_writes = match action {
            ProgramAction::Read => false,
            ProgramAction::Edit => true,
            // Some agents do not tell the kind of their edits.
            ProgramAction::Other => CHANGE_KEYS.iter().any(|key| input[*key].is_string()),
        };
        let command = command.map(str::to_owned);
        self.permissions.push(GivenPermission { command, paths, has_writes });
    }

    /// Takes the permission for a command. It holds once, in the working directory, and only with
    /// variables that cannot change what the command does.
    fn take_command(&mut self, command: &TerminalCommand, working_directory: &Utf8Path) -> bool {
        let is_elsewhere = !command.directory.starts_with(working_directory);
        if is_elsewhere || !command.env.iter().all(is_harmless) {
            return false;
        }
        let lines = shell_lines(command);
        let is_about = |it: &GivenPermission| {
            it.command.as_ref().is_some_and(|allowed| lines.contains(&allowed.as_str()))
        };
        let found = self.permissions.iter().position(is_about);
        found.map(|at| self.permissions.remove(at)).is_some()
    }

    /// Returns true if the agent may use this file. A change of a file may take several writes.
    fn may_use_file(&self, action: ProgramAction, path: &Utf8Path) -> bool {
        let is_about = |it: &&GivenPermission| it.paths.iter().any(|allowed| allowed == path);
        let mut about = self.permissions.iter().filter(is_about);
        about.any(|it| it.has_writes || action == ProgramAction::Read)
    }
}

/// Returns true for a variable that cannot change what a command does.
fn is_harmless((name, value): &(String, String)) -> bool {
    let (name, value) = (name.as_str(), value.as_str());
    HARMLESS_VARIABLES.contains(&name)
        || name.starts_with("LC_")
        || HARMLESS_VALUES.contains(&(name, value))
        || (name == "SHELL" && SHELLS.contains(&value))
}

/// Returns the texts by which an agent may have asked for a command: the line of its shell, also without
/// the change of the directory that some agents put before it.
fn shell_lines(command: &TerminalCommand) -> Vec<&str> {
    let line = match command.args.as_slice() {
        [] => command.program.as_str(),
        [option, line]
            if matches!(option.as_str(), "-c" | "-lc")
                && SHELLS.contains(&command.program.as_str()) =>
        {
            line.as_str()
        }
        _ => return Vec::new(),
    };
    let folder = command.directory.as_str();
    // In other names a shell may find commands.
    let is_plain = folder.bytes().all(|it| it.is_ascii_alphanumeric() || b"/._-".contains(&it));
    let change = line.strip_prefix("cd ").filter(|_| is_plain).and_then(|rest| {
        let rest = rest.strip_prefix(&format!("'{folder}'")).or(rest.strip_prefix(folder))?;
        rest.strip_prefix(" && ")
    });
    [Some(line), change].into_iter().flatten().collect()
}

impl AcpRuntime {
    /// Handles a request for a service of the client.
    pub(super) fn handle_client_request(
        &mut self,
        id: RpcId,
        method: &str,
        params: &Json,
    ) -> Vec<RuntimeEffect> {
        if !self.offers(method) {
            // The agent waits for a reply to every request.
            let reason = format!("Heeler does not offer `{method}`");
            return vec![RPC.error_reply(&id, METHOD_NOT_FOUND, &reason)];
        }
        let is_ours = self.is_our_session(params) && !self.state.questions.contains(&id);
        if !is_ours || self.state.is_done {
            let reason = "this request is not about the running session, or repeats another";
            return vec![RPC.error_reply(&id, INVALID_REQUEST, reason)];
        }
        let begun = match method {
            "terminal/create" => self.create_terminal(params),
            "fs/read_text_file" | "fs/write_text_file" => self.file_request(method, params),
            _ => self.terminal_request(method, params).map(|it| (it, ProgramVerdict::Allow)),
        };
        match begun {
            Ok((request, verdict)) => self.decide_client_request(id, request, verdict),
            Err(reason) => vec![RPC.error_reply(&id, INVALID_PARAMS, &reason)],
        }
    }

    fn offers(&self, method: &str) -> bool {
        let offered = &self.options.client_tools;
        match method {
            "fs/read_text_file" => offered.reads,
            "fs/write_text_file" => offered.writes,
            "terminal/create"
            | "terminal/output"
            | "terminal/wait_for_exit"
            | "terminal/kill"
            | "terminal/release" => offered.terminals,
            _ => false,
        }
    }

    fn create_terminal(
        &mut self,
        params: &Json,
    ) -> Result<(ClientToolRequest, ProgramVerdict), String> {
        let command = self.read_command(params)?;
        let verdict =
            match self.state.client.take_command(&command, &self.options.working_directory) {
                true => ProgramVerdict::Allow,
                false => self.options.policy.decide_command(),
            };
        self.state.client.requested += 1;
        let terminal = format!("terminal-{}", self.state.client.requested);
        let operation = TerminalOperation::Create(command);
        Ok((ClientToolRequest::Terminal { terminal, operation }, verdict))
    }

    fn read_command(&self, params: &Json) -> Result<TerminalCommand, String> {
        let texts = |value: &Json| -> Option<Vec<String>> {
            let texts = value.as_array()?.iter().map(|it| it.as_str().map(str::to_owned));
            texts.collect()
        };
        let program = params["command"].as_str().filter(|program| !program.is_empty());
        let args = match &params["args"] {
            Json::Null => Some(Vec::new()),
            args => texts(args),
        };
        let (Some(program), Some(args)) = (program, args) else {
            return Err("a terminal needs a command, and its arguments are texts".to_owned());
        };
        let pairs = params["env"].as_array().map_or(&[][..], Vec::as_slice).iter();
        let pairs = pairs.filter_map(|it| Some((it["name"].as_str()?, it["value"].as_str()?)));
        // The kernel takes no others, and a library would panic.
        let is_usable = |(name, value): &(&str, &str)| {
            !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
        };
        let env = pairs.filter(is_usable).map(|(name, value)| (name.to_owned(), value.to_owned()));
        let limit = params["outputByteLimit"].as_u64().and_then(|it| usize::try_from(it).ok());
        let directory = match params["cwd"].as_str() {
            Some(path) => self.options.policy.absolute(path),
            None => self.options.working_directory.clone(),
        };
        Ok(TerminalCommand {
            program: program.to_owned(),
            args,
            env: env.collect(),
            directory,
            output_bytes_max: limit.unwrap_or(TERMINAL_OUTPUT_BYTES_MAX),
        })
    }

    fn terminal_request(
        &mut self,
        method: &str,
        params: &Json,
    ) -> Result<ClientToolRequest, String> {
        let terminals = &mut self.state.client.terminals;
        let terminal = params["terminalId"].as_str().filter(|id| terminals.contains(*id));
        let terminal = terminal.ok_or("there is no terminal with this ID")?.to_owned();
        let operation = match method {
            "terminal/output" => TerminalOperation::ReadOutput,
            "terminal/wait_for_exit" => TerminalOperation::WaitForExit,
            "terminal/kill" => TerminalOperation::Kill,
            _ => {
                terminals.remove(&terminal);
                TerminalOperation::Release
            }
        };
        Ok(ClientToolRequest::Terminal { terminal, operation })
    }

    fn file_request(
        &self,
        method: &str,
        params: &Json,
    ) -> Result<(ClientToolRequest, ProgramVerdict), String> {
        let path = params["path"].as_str().filter(|path| !path.is_empty() && !path.contains('\0'));
        let path = path.ok_or("the path of the file is missing")?;
        let path = self.options.policy.absolute(path);
        let number = |key: &str| params[key].as_u64().and_then(|it| usize::try_from(it).ok());
        let operation = match (method, params["content"].as_str()) {
            ("fs/read_text_file", _) => FileOperation::Read {
                // Lines are counted from one.
                skipped: number("line").unwrap_or(1).saturating_sub(1),
                lines: number("limit"),
            },
            (_, Some(content)) => FileOperation::Write { content: content.to_owned() },
            (_, None) => return Err("the content of the file is missing".to_owned()),
        };
        let policy = self.options.policy.clone();
        let by_mode = policy.decide_file(operation.action(), &path);
        let was_asked = by_mode == ProgramVerdict::AskPerson;
        let verdict = match was_asked && self.state.client.may_use_file(operation.action(), &path) {
            true => ProgramVerdict::Allow,
            false => by_mode,
        };
        let request = ClientFileRequest { path, operation, was_asked, policy };
        Ok((ClientToolRequest::File(request), verdict))
    }

    fn decide_client_request(
        &mut self,
        id: RpcId,
        request: ClientToolRequest,
        verdict: ProgramVerdict,
    ) -> Vec<RuntimeEffect> {
        let Some(action) = describe_action(&request) else {
            return vec![RuntimeEffect::ClientTool { call: id, request }];
        };
        let refusal = match &verdict {
            ProgramVerdict::Deny(reason) => Some(reason.clone()),
            _ if self.state.is_ending => Some("the run is being ended".to_owned()),
            ProgramVerdict::AskPerson if !self.state.questions.has_room() => {
                Some("too many questions are open".to_owned())
            }
            _ => None,
        };
        let mut effects: Vec<RuntimeEffect> = Vec::new();
        if let Some(reason) = refusal {
            effects.extend(self.state.text.flush());
            self.state.has_denied = true;
            effects.push(rows::notice("denied", &format!("{} was denied: {reason}", action.name)));
            effects.push(RPC.error_reply(&id, DENIED, &format!("denied: {reason}")));
            return effects;
        }
        if verdict == ProgramVerdict::AskPerson {
            effects.extend(self.state.text.flush());
        }
        let question = AcpQuestion::ClientTool { id, request: Box::new(request) };
        let decision = self.state.questions.decide(question, action, verdict);
        effects.extend(self.apply_decision(decision));
        effects
    }

    /// Sends the result of a service.
    pub(super) fn reply_to_client_request(
        &mut self,
        call: &RpcId,
        reply: ClientToolReply,
    ) -> Vec<RuntimeEffect> {
        // The input of the agent is closed, or will be.
        if self.state.is_done {
            return Vec::new();
        }
        let ClientToolReply { terminal, output, result } = reply;
        if let Some(created) = result.as_ref().ok().and_then(|it| it["terminalId"].as_str()) {
            self.state.client.terminals.insert(created.to_owned());
        }
        if let (Some(terminal), Some(output)) = (terminal, output) {
            self.state.calls.set_terminal_output(terminal, output);
        }
        vec![match result {
            Ok(result) => RPC.reply(call, result),
            Err(reason) => RPC.error_reply(call, DENIED, &reason),
        }]
    }
}

/// Describes what a person is asked. `None` if the request is about an action that was allowed.
pub(super) fn describe_action(request: &ClientToolRequest) -> Option<AskedAction> {
    let (name, input) = match request {
        ClientToolRequest::Terminal { operation: TerminalOperation::Create(command), .. } => {
            let mut input = json!({ "command": command.program, "cwd": command.directory });
            if !command.args.is_empty() {
                input["args"] = command.args.clone().into();
            }
            let shown = command.env.iter().filter(|variable| !is_harmless(variable));
            let shown: Map<String, Json> =
                shown.map(|(name, value)| (name.clone(), value.as_str().into())).collect();
            if !shown.is_empty() {
                input["env"] = shown.into();
            }
            ("terminal", input)
        }
        ClientToolRequest::Terminal { .. } => return None,
        ClientToolRequest::File(ClientFileRequest { path, operation, .. }) => match operation {
            FileOperation::Read { .. } => ("read_file", json!({ "path": path })),
            FileOperation::Write { content } => {
                ("write_file", json!({ "path": path, "content": content }))
            }
        },
    };
    Some(AskedAction { name: name.to_owned(), input })
}
