//! The injected MCP servers, defined once for every transport.
//!
//! rmcp implements the protocol; the tools are in [`super::file_tools`] and [`super::fleet_tools`].
//! No state is kept between two requests, so every request is served on its own, by the same
//! handler in process and over HTTP. Start at [`InjectedMcpServers`].

use std::sync::Arc;

use camino::Utf8Path;
use heeler_model::redact::SecretRedactor;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientJsonRpcMessage, ContentBlock,
    Implementation, InitializeRequestParams, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ServerCapabilities, ServerConfig, ServerJsonRpcMessage, Tool,
};
use rmcp::service::{RequestContext, serve_directly};
use rmcp::transport::OneshotTransport;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::file_tools::FileSender;
use super::fleet_client::{AsyncFleetClient, FleetClient};
use super::fleet_tools::FleetTools;
use super::host_server::HostMcpServer;
use super::tool_definition::ToolCallOutcome;
use super::tool_note::{ToolNote, ToolQuestion};
use super::{file_tools, fleet_tools};

/// Limit on notes, and on questions, that wait for the event loop; a tool with a further one waits.
const NOTES_MAX: usize = 16;
/// Metadata key of claude's tool call ID.
const TOOL_USE_ID: &str = "claudecode/toolUseId";
const TOOL_USE_ID_BYTES_MAX: usize = 128;

/// Receivers of the tools' notes and questions, for the event loop.
#[derive(Debug)]
pub(crate) struct ToolChannels {
    pub(crate) notes: mpsc::Receiver<ToolNote>,
    pub(crate) questions: mpsc::Receiver<ToolQuestion>,
    /// For parts of the runner that record notes and ask people as tools do.
    pub(crate) note_sender: mpsc::Sender<ToolNote>,
    pub(crate) question_sender: mpsc::Sender<ToolQuestion>,
}

/// Connection of the tools to the fleet.
#[derive(Debug, Default)]
pub(crate) struct FleetToolAccess {
    pub(crate) client: Option<Arc<dyn FleetClient>>,
    /// True if the agent may start jobs of other agents.
    pub(crate) may_start_jobs: bool,
}

/// The injected servers of a run.
#[derive(Debug, Clone)]
pub(crate) struct InjectedMcpServers {
    servers: Arc<[InjectedMcpServer]>,
    /// Configured servers that run outside of the agent's sandbox.
    on_host: Arc<[HostMcpServer]>,
}

impl InjectedMcpServers {
    /// Returns the servers of a run, and the receivers of their notes and questions.
    ///
    /// The file sender exists only if there is a directory for files.
    pub(crate) fn new(
        working_directory: &Utf8Path,
        send_files_to: Option<&Utf8Path>,
        secrets: &SecretRedactor,
        access: FleetToolAccess,
    ) -> (InjectedMcpServers, ToolChannels) {
        let (note_sender, notes) = mpsc::channel(NOTES_MAX);
        let (question_sender, questions) = mpsc::channel(NOTES_MAX);
        let files = send_files_to
            .map(|folder| FileSender::new(working_directory, folder, secrets, note_sender.clone()))
            .map(|sender| InjectedMcpServer::Files(Arc::new(sender)));
        let fleet = InjectedMcpServer::Fleet(FleetTools::new(
            note_sender.clone(),
            question_sender.clone(),
            AsyncFleetClient::new(access.client),
            access.may_start_jobs,
        ));
        let channels = ToolChannels { notes, questions, note_sender, question_sender };
        let servers = files.into_iter().chain([fleet]).collect();
        (InjectedMcpServers { servers, on_host: Arc::new([]) }, channels)
    }

    pub(crate) fn none() -> InjectedMcpServers {
        InjectedMcpServers { servers: Arc::new([]), on_host: Arc::new([]) }
    }

    /// Adds servers of the config. Those with the name of an injected one are left out.
    pub(crate) fn with_host_servers(
        mut self,
        servers: impl IntoIterator<Item = HostMcpServer>,
    ) -> InjectedMcpServers {
        let is_free = |server: &HostMcpServer| self.names().all(|name| name != server.name());
        self.on_host = servers.into_iter().filter(is_free).collect();
        self
    }

    /// Returns the servers that run outside of the agent's sandbox.
    pub(crate) fn host_servers(&self) -> &[HostMcpServer] {
        &self.on_host
    }

    /// Returns the number of the server on the host with this name.
    pub(super) fn host_server(&self, name: &str) -> Option<usize> {
        self.on_host.iter().position(|server| server.name() == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.servers.iter().map(InjectedMcpServer::name)
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = &InjectedMcpServer> {
        self.servers.iter()
    }

    /// Answers one JSON-RPC message for the server of this name.
    ///
    /// A message that needs no answer gets the empty result with which claude's control protocol
    /// acknowledges it. Calls may overlap; dropping the future cancels the call.
    pub(crate) async fn handle(&self, server: &str, message: Json) -> Json {
        // The ID is kept before the message is consumed, because an error names it too.
        let id = message.get("id").cloned();
        if let Some(index) = self.host_server(server) {
            let reply = self.on_host[index].handle(&message).await;
            return reply.unwrap_or_else(|| json!({ "jsonrpc": "2.0", "result": {} }));
        }
        let Some(server) = self.servers.iter().find(|known| known.name() == server) else {
            let text = format!("there is no server `{server}` in this run");
            return error_response(id, ErrorData::invalid_request(text, None));
        };
        match serde_json::from_value(message) {
            Ok(ClientJsonRpcMessage::Request(request)) => {
                // The handler shares its state, so a clone is cheap.
                answer_request(server.clone(), ClientJsonRpcMessage::Request(request))
                    .await
                    .unwrap_or_else(|| {
                        error_response(
                            id,
                            ErrorData::internal_error("the request got no answer", None),
                        )
                    })
            }
            // A notification gets no reply in JSON-RPC, but the control protocol waits for one.
            Ok(_) => json!({ "jsonrpc": "2.0", "result": {} }),
            Err(error) => error_response(id, ErrorData::invalid_request(error.to_string(), None)),
        }
    }
}

/// Serves one request without keeping state.
async fn answer_request(server: InjectedMcpServer, request: ClientJsonRpcMessage) -> Option<Json> {
    let (transport, mut replies) = OneshotTransport::<RoleServer>::new(request);
    // Claude uses this protocol version in process; it states the version only in `initialize`.
    let peer =
        InitializeRequestParams::default().with_protocol_version(ProtocolVersion::V_2025_11_25);
    let _serving = serve_directly(server, transport, Some(peer));
    // Notifications of the server have no receiver here and are skipped.
    while let Some(reply) = replies.recv().await {
        if matches!(reply, ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)) {
            return serde_json::to_value(reply).ok();
        }
    }
    None
}

fn error_response(id: Option<Json>, error: ErrorData) -> Json {
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

/// One server as an rmcp handler, with its tools.
#[derive(Debug, Clone)]
pub(super) enum InjectedMcpServer {
    Files(Arc<FileSender>),
    Fleet(FleetTools),
}

impl InjectedMcpServer {
    pub(super) fn name(&self) -> &'static str {
        match self {
            InjectedMcpServer::Files(_) => file_tools::SERVER,
            InjectedMcpServer::Fleet(_) => fleet_tools::SERVER,
        }
    }

    async fn dispatch_call(&self, call: CallToolRequestParams, key: String) -> ToolCallOutcome {
        let arguments = call.arguments.unwrap_or_default();
        match self {
            InjectedMcpServer::Files(files) => files.call(arguments).await,
            InjectedMcpServer::Fleet(fleet) => fleet.call(&call.name, key, arguments).await,
        }
    }

    fn tools(&self) -> Vec<Tool> {
        match self {
            InjectedMcpServer::Files(_) => file_tools::tools(),
            InjectedMcpServer::Fleet(fleet) => fleet.tools(),
        }
    }
}

impl ServerHandler for InjectedMcpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(self.name(), env!("CARGO_PKG_VERSION")))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools().into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let InjectedMcpServer::Fleet(fleet) = self
            && let Some(why) = fleet.withheld_reason(&call.name)
        {
            return Ok(CallToolResult::error(vec![ContentBlock::text(why)]).into());
        }
        if self.get_tool(&call.name).is_none() {
            let text = format!("the server `{}` has no tool `{}`", self.name(), call.name);
            return Err(ErrorData::invalid_params(text, None));
        }
        let server = self.clone();
        let key = call_key(context.meta.get(TOOL_USE_ID).and_then(Json::as_str));
        let result = match catch_panic(async move { server.dispatch_call(call, key).await }).await {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}

/// Returns a key for a call: claude's own ID, so that a repeated call is recognized.
fn call_key(tool_use: Option<&str>) -> String {
    let is_plain = |id: &&str| {
        // The key goes to the fleet, so text of the agent must be harmless and short.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=TOOL_USE_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(plain)
    };
    tool_use.filter(is_plain).map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}

/// Runs a tool and turns a panic into a failure, because the agent would otherwise wait forever.
async fn catch_panic(
    work: impl Future<Output = ToolCallOutcome> + Send + 'static,
) -> ToolCallOutcome {
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    let done = tasks.join_next().await.expect("one task was spawned");
    done.unwrap_or_else(|error| {
        tracing::error!(%error, "an injected tool failed");
        Err("heeler itself failed in this tool, which is not your fault; go on without it if \
             you can, and say in your answer what is left open"
            .to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_goes_by_the_name_that_claude_gives_it_if_that_can_be_one() {
        assert_eq!(call_key(Some("toolu_01-a")), "toolu_01-a");
        let long = "x".repeat(TOOL_USE_ID_BYTES_MAX + 1);
        for other in [None, Some(""), Some("a b"), Some("a\n"), Some("é"), Some(long.as_str())] {
            assert!(Uuid::try_parse(&call_key(other)).is_ok(), "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_tool_that_panics_fails_instead_of_never_answering() {
        let answered = catch_panic(async { Ok("done".to_owned()) }).await;
        assert_eq!(answered, Ok("done".to_owned()));
        let panics = async {
            tokio::task::yield_now().await;
            panic!("a tool of ours has a fault")
        };
        let failed = catch_panic(panics).await.unwrap_err();
        assert!(failed.starts_with("heeler itself failed"), "{failed}");
    }
}
