//! Opens a session of an ACP agent: `initialize`, then a new session or an earlier one, then its mode
//! and its model.

use heeler_config::{ClientTools, PermissionMode};
use heeler_model::message::ID_BYTES_MAX;
use heeler_model::run::McpServerSpec;
use serde_json::{Value as Json, json};

use super::{AcpRequest, AcpRuntime, AcpSessionStart};
use crate::json_rpc::RpcError;
use crate::native_fork::FORK_SUBTYPE;
use crate::program_rows as rows;
use crate::runtime::RuntimeEffect;

/// Version of the protocol that Heeler speaks.
const PROTOCOL_VERSION: u64 = 1;

/// Error code with which an agent asks for a login.
pub(super) const LOGIN_REQUIRED: i64 = -32000;

/// Capabilities that an agent declared.
#[derive(Debug, Default)]
pub(super) struct AcpCapabilities {
    pub(super) version: Option<String>,
    can_load: bool,
    can_resume: bool,
    can_fork: bool,
    has_http_servers: bool,
    has_sse_servers: bool,
}

impl AcpCapabilities {
    fn read(reply: &Json) -> AcpCapabilities {
        let agent = &reply["agentCapabilities"];
        let is_true = |value: &Json| value.as_bool().unwrap_or(false);
        AcpCapabilities {
            version: reply["agentInfo"]["version"].as_str().map(str::to_owned),
            can_load: is_true(&agent["loadSession"]),
            can_resume: agent["sessionCapabilities"]["resume"].is_object(),
            can_fork: agent["sessionCapabilities"]["fork"].is_object(),
            has_http_servers: is_true(&agent["mcpCapabilities"]["http"]),
            has_sse_servers: is_true(&agent["mcpCapabilities"]["sse"]),
        }
    }
}

impl AcpRuntime {
    pub(super) fn initialize(&mut self) -> RuntimeEffect {
        let ClientTools { terminals, reads, writes } = self.options.client_tools;
        let params = json!({
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": {
                "fs": { "readTextFile": reads, "writeTextFile": writes },
                "terminal": terminals,
            },
            "clientInfo": {
                "name": "heeler", "title": "Heeler", "version": env!("CARGO_PKG_VERSION"),
            },
        });
        self.send(AcpRequest::Initialize, "initialize", params)
    }

    pub(super) fn handle_initialized(
        &mut self,
        result: Result<Json, RpcError>,
    ) -> Vec<RuntimeEffect> {
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.give_up_after(&error, "cannot be initialized"),
        };
        let version = reply["protocolVersion"].as_u64();
        if version != Some(PROTOCOL_VERSION) {
            let spoken = version.map_or("none".to_owned(), |version| version.to_string());
            let message = format!(
                "{} speaks version {spoken} of ACP, and Heeler speaks {PROTOCOL_VERSION}",
                self.options.agent
            );
            return self.give_up(&message, None);
        }
        self.state.capabilities = AcpCapabilities::read(&reply);
        self.open_session()
    }

    fn open_session(&mut self) -> Vec<RuntimeEffect> {
        let (servers, notes) = match self.servers() {
            Ok(servers) => servers,
            Err(reason) => return self.give_up(&reason, None),
        };
        let mut effects: Vec<RuntimeEffect> =
            notes.iter().map(|note| rows::notice("warning", note)).collect();
        let mut params = json!({ "cwd": self.options.working_directory, "mcpServers": servers });
        let capabilities = &self.state.capabilities;
        let (request, method) = match &self.start {
            AcpSessionStart::Load(id) => {
                params["sessionId"] = id.as_str().into();
                match (capabilities.can_resume, capabilities.can_load) {
                    // It does the same as loading, without repeating the history.
                    (true, _) => (AcpRequest::LoadSession, "session/resume"),
                    (false, true) => (AcpRequest::LoadSession, "session/load"),
                    (false, false) => {
                        let message = format!(
                            "cannot resume the session: {} cannot load sessions",
                            self.options.agent
                        );
                        return self.give_up(&message, Some("session_not_found"));
                    }
                }
            }
            AcpSessionStart::New if self.options.fork.is_some() => {
                effects.extend(self.fork_session(params));
                return effects;
            }
            _ => (AcpRequest::OpenSession, "session/new"),
        };
        effects.push(self.send(request, method, params));
        effects
    }

    /// Returns the MCP servers in the form of the protocol, and notes about those that the agent
    /// does not accept. A configured server that it does not accept is an error.
    fn servers(&self) -> Result<(Vec<Json>, Vec<String>), String> {
        let capabilities = &self.state.capabilities;
        let agent = &self.options.agent;
        let pairs = |map: &indexmap::IndexMap<String, String>| -> Vec<Json> {
            map.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
        };
        let mut servers = Vec::new();
        for (name, server) in &self.options.mcp_servers {
            // Heeler guarantees its own tools to the agent.
            if self.options.injected.iter().any(|injected| injected.name == *name) {
                continue;
            }
            let (entry, is_accepted) = match server {
                McpServerSpec::Stdio { command, args, env, .. } => {
                    let env = pairs(env);
                    (json!({ "name": name, "command": command, "args": args, "env": env }), true)
                }
                McpServerSpec::Http { url, headers, .. } => (
                    json!({ "type": "http", "name": name, "url": url, "headers": pairs(headers) }),
                    capabilities.has_http_servers,
                ),
                McpServerSpec::Sse { url, headers, .. } => (
                    json!({ "type": "sse", "name": name, "url": url, "headers": pairs(headers) }),
                    capabilities.has_sse_servers,
                ),
            };
            if !is_accepted {
                return Err(format!(
                    "{agent} accepts no MCP servers of the type of `{name}`: remove it from \
                     `mcp_servers`, or use a server of type `stdio`"
                ));
            }
            servers.push(entry);
        }
        if !capabilities.has_http_servers && !self.options.injected.is_empty() {
            let note =
                format!("{agent} accepts no MCP servers by HTTP, so it lacks Heeler's tools");
            return Ok((servers, vec![note]));
        }
        servers.extend(self.options.injected.iter().map(|server| {
            let header = json!({ "name": "Authorization", "value": server.authorization });
            json!({ "type": "http", "name": server.name, "url": server.url, "headers": [header] })
        }));
        Ok((servers, Vec::new()))
    }

    pub(super) fn handle_session_opened(
        &mut self,
        result: Result<Json, RpcError>,
    ) -> Vec<RuntimeEffect> {
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.give_up_after(&error, "cannot open a session"),
        };
        let id = reply["sessionId"].as_str().unwrap_or_default().to_owned();
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return self.give_up("the agent opened a session without a usable ID", None);
        }
        self.configure(&id, &reply)
    }

    /// Requests a fork, unless the agent does not offer it.
    fn fork_session(&mut self, mut params: Json) -> Vec<RuntimeEffect> {
        let Some(fork) = &self.options.fork else { return Vec::new() };
        let source = fork.point.session.clone();
        if !self.state.capabilities.can_fork {
            return self.open_without_fork(&source, "it does not offer forks");
        }
        params["sessionId"] = source.into();
        vec![self.send(AcpRequest::ForkSession, "session/fork", params)]
    }

    /// Begins a new session with the conversation as text.
    fn open_without_fork(&mut self, source: &str, reason: &str) -> Vec<RuntimeEffect> {
        self.options.fork = None;
        if let Some(prompt) = self.state.queued.front_mut() {
            prompt.clone_from(&self.prompt);
        }
        let text = format!(
            "{} cannot fork its session {source}: {reason}; the agent gets the conversation as text",
            self.options.agent
        );
        let mut effects = vec![rows::notice(FORK_SUBTYPE, &text)];
        effects.extend(self.open_session());
        effects
    }

    pub(super) fn handle_session_forked(
        &mut self,
        result: Result<Json, RpcError>,
    ) -> Vec<RuntimeEffect> {
        let Some(fork) = self.options.fork.clone() else { return Vec::new() };
        let source = fork.point.session;
        let reply = match result {
            Ok(reply) => reply,
            Err(error) if self.is_login_error(&error) => {
                return self.give_up_after(&error, "cannot fork the session");
            }
            Err(error) => return self.open_without_fork(&source, &error.message),
        };
        let id = reply["sessionId"].as_str().unwrap_or_default().to_owned();
        // Without an ID of its own, the prompt would go to the session that is to stay as it is.
        if id.is_empty() || id.len() > ID_BYTES_MAX || id == source {
            return self.open_without_fork(&source, "it told no usable ID of the fork");
        }
        self.state.is_forked = true;
        let text = format!("{} forked its own session {source}", self.options.agent);
        let mut effects = vec![rows::notice(FORK_SUBTYPE, &text)];
        effects.extend(self.configure(&id, &reply));
        effects
    }

    pub(super) fn handle_session_loaded(
        &mut self,
        result: Result<Json, RpcError>,
    ) -> Vec<RuntimeEffect> {
        let AcpSessionStart::Load(id) = self.start.clone() else { return Vec::new() };
        match result {
            Ok(reply) => self.configure(&id, &reply),
            Err(error) if self.is_login_error(&error) => {
                self.give_up_after(&error, "cannot load the session")
            }
            // Agents have no common code for a session that they do not have.
            Err(error) => {
                let message = format!("cannot resume session {id}: {}", error.message);
                self.give_up(&message, Some("session_not_found"))
            }
        }
    }

    /// Requests the mode and the model of an open session.
    fn configure(&mut self, id: &str, reply: &Json) -> Vec<RuntimeEffect> {
        let mut effects = vec![self.set_session(id)];
        self.state.model = current_model(reply);
        let settings = self
            .mode_setting(id, reply)
            .and_then(|mode| Ok(mode.into_iter().chain(self.model_setting(id, reply)?)));
        match settings {
            Ok(settings) => self.state.settings = settings.collect(),
            Err(reason) => {
                effects.extend(self.give_up(&reason, None));
                return effects;
            }
        }
        effects.extend(self.next_setting());
        effects
    }

    fn next_setting(&mut self) -> Vec<RuntimeEffect> {
        match self.state.settings.pop_front() {
            Some((method, params)) => vec![self.send(AcpRequest::Configure, method, params)],
            None => {
                self.state.is_ready = true;
                self.next_turn()
            }
        }
    }

    pub(super) fn handle_configured(
        &mut self,
        result: Result<Json, RpcError>,
    ) -> Vec<RuntimeEffect> {
        match result {
            Ok(_) => self.next_setting(),
            // An agent never runs in another mode, or with another model, than its config says.
            Err(error) => self.give_up_after(&error, "refuses its mode or model"),
        }
    }

    /// Returns the request that sets the agent's own mode, if it has one for the permission mode.
    fn mode_setting(&self, id: &str, reply: &Json) -> Result<Option<(&'static str, Json)>, String> {
        let Some(known) = self.options.known else { return Ok(None) };
        let modes = &known.modes;
        let (wanted, is_needed) = match self.options.mode {
            PermissionMode::BypassPermissions => (modes.bypass, false),
            PermissionMode::Plan => (modes.plan, true),
            PermissionMode::Auto => (modes.auto, true),
            PermissionMode::Default
            | PermissionMode::AcceptEdits
            | PermissionMode::DontAsk
            | PermissionMode::Delegate => (modes.ask, modes.ask.is_some()),
        };
        let Some(wanted) = wanted else { return Ok(None) };
        let list = |value: &Json| value.as_array().cloned().unwrap_or_default();
        // Some agents list their modes as an option of the session instead.
        let option = find_option(reply, "mode").cloned().unwrap_or_default();
        let is_offered =
            list(&reply["modes"]["availableModes"]).iter().any(|it| it["id"] == wanted)
                || list(&option["options"]).iter().any(|it| it["value"] == wanted);
        let is_current =
            reply["modes"]["currentModeId"] == wanted || option["currentValue"] == wanted;
        match (is_offered, is_needed) {
            (true, _) if is_current => Ok(None),
            (true, _) => {
                let params = json!({ "sessionId": id, "modeId": wanted });
                Ok(Some(("session/set_mode", params)))
            }
            (false, true) => Err(format!(
                "{} does not offer its mode `{wanted}`, which `permission_mode: {}` needs",
                known.title, self.options.mode
            )),
            (false, false) => Ok(None),
        }
    }

    fn model_setting(
        &self,
        id: &str,
        reply: &Json,
    ) -> Result<Option<(&'static str, Json)>, String> {
        let Some(model) = &self.options.model else { return Ok(None) };
        if current_model(reply).as_ref() == Some(model) {
            return Ok(None);
        }
        if find_option(reply, "model").is_some() {
            let params = json!({ "sessionId": id, "configId": "model", "value": model });
            return Ok(Some(("session/set_config_option", params)));
        }
        if reply["models"].is_object() {
            let params = json!({ "sessionId": id, "modelId": model });
            return Ok(Some(("session/set_model", params)));
        }
        Err(format!(
            "{} does not let clients choose the model: remove `model`, and set it in the agent's \
             own settings",
            self.options.agent
        ))
    }

    /// Ends the run because the agent refused a request.
    fn give_up_after(&mut self, error: &RpcError, what: &str) -> Vec<RuntimeEffect> {
        let message = format!("{} {what}: {}", self.options.agent, error.describe());
        let code = self.is_login_error(error).then_some("authentication_failed");
        self.give_up(&message, code)
    }
}

/// Returns an option of a session.
fn find_option<'r>(reply: &'r Json, id: &str) -> Option<&'r Json> {
    reply["configOptions"].as_array()?.iter().find(|option| option["id"] == id)
}

/// Returns the model of a session, as the agent reports it.
fn current_model(reply: &Json) -> Option<String> {
    let model = find_option(reply, "model").and_then(|option| option["currentValue"].as_str());
    model.or_else(|| reply["models"]["currentModelId"].as_str()).map(str::to_owned)
}
