//! The injected MCP servers, defined once for every transport.
//!
//! rmcp implements the protocol; the tools are in [`super::file_tools`] and [`super::fleet_tools`].
//! No state is kept between two requests, so every request is served on its own, by the same
//! handler in process and over HTTP. Start at [`InjectedMcpServers`].

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::redact::SecretRedactor;
use heeler_model::run::QuestionAnswer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientJsonRpcMessage, ContentBlock,
    Implementation, InitializeRequestParams, JsonObject, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ServerCapabilities, ServerConfig, ServerJsonRpcMessage, Tool, ToolAnnotations,
};
use rmcp::schemars::JsonSchema;
use rmcp::service::{RequestContext, serve_directly};
use rmcp::transport::OneshotTransport;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::file_tools::FileSender;
use super::fleet_client::{AsyncFleetClient, FleetClient};
use super::fleet_tools::FleetTools;
use super::{file_tools, fleet_tools};

/// Limit on notes, and on questions, that wait for the event loop; a tool with a further one waits.
const NOTES_MAX: usize = 16;
/// Metadata key of claude's tool call ID.
const TOOL_USE_ID: &str = "claudecode/toolUseId";
const TOOL_USE_ID_BYTES_MAX: usize = 128;
/// Length limit of the text in a note.
const MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// Record of a tool, which the event loop writes as a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ToolNote {
    /// The agent reported progress.
    Progress {
        /// Text of the agent.
        message: String,
        /// From 0 to 100, if the agent reported it.
        percent: Option<u8>,
    },
    /// The agent sent a file; the copy is on disk.
    FileSent {
        /// Path of the copy.
        path: Utf8PathBuf,
        /// Name for people.
        name: String,
        bytes: u64,
        /// Accompanying message.
        message: Option<String>,
    },
    /// The agent added tasks to the conversation's list.
    TasksAdded {
        /// Texts of the tasks.
        tasks: Vec<String>,
    },
    /// The agent marked a task of the conversation as done.
    TaskFinished {
        /// Task number, from 1.
        number: usize,
        /// Beginning of the task's text: the list may have changed when this note is processed.
        text: String,
    },
}

impl ToolNote {
    /// Returns the subtype of the row.
    pub(crate) fn subtype(&self) -> &'static str {
        match self {
            ToolNote::Progress { .. } => "progress",
            ToolNote::FileSent { .. } => "file_sent",
            ToolNote::TasksAdded { .. } => "tasks_added",
            ToolNote::TaskFinished { .. } => "task_finished",
        }
    }

    /// Returns the additional fields of the row.
    pub(crate) fn fields(&self) -> Json {
        match self {
            ToolNote::Progress { .. } => json!({}),
            ToolNote::FileSent { path, name, bytes, .. } => {
                json!({ "name": name, "bytes": bytes, "path": path })
            }
            ToolNote::TasksAdded { tasks } => json!({ "tasks": tasks }),
            ToolNote::TaskFinished { number, text } => {
                json!({ "number": number, "description": text })
            }
        }
    }

    /// Returns the text of the row.
    pub(crate) fn content(&self) -> String {
        match self {
            ToolNote::Progress { message, percent: None } => message.clone(),
            ToolNote::Progress { message, percent: Some(percent) } => {
                format!("{percent} %: {message}")
            }
            ToolNote::FileSent { path, name, bytes, message } => {
                let message = message.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
                format!("{name} ({bytes} bytes) is in {path}{message}")
            }
            ToolNote::TasksAdded { tasks } => format!("added to the tasks: {}", tasks.join("; ")),
            ToolNote::TaskFinished { number, .. } => format!("task {number} is done"),
        }
    }
}

/// Question of a tool to people. The event loop handles it like a question of the agent.
#[derive(Debug)]
pub(crate) struct ToolQuestion {
    /// Question in claude's format.
    pub(crate) input: Json,
    /// Receives the answer; dropped if there will be none.
    pub(crate) reply: oneshot::Sender<QuestionAnswer>,
}

/// Receivers of the tools' notes and questions, for the event loop.
#[derive(Debug)]
pub(crate) struct ToolChannels {
    pub(crate) notes: mpsc::Receiver<ToolNote>,
    pub(crate) questions: mpsc::Receiver<ToolQuestion>,
}

/// The injected servers of a run.
#[derive(Debug, Clone)]
pub(crate) struct InjectedMcpServers {
    servers: Arc<[InjectedMcpServer]>,
}

impl InjectedMcpServers {
    /// Returns the servers of a run, and the receivers of their notes and questions.
    ///
    /// The file sender exists only if there is a directory for files; `door` is the connection to
    /// the fleet.
    pub(crate) fn new(
        working_directory: &Utf8Path,
        send_files_to: Option<&Utf8Path>,
        secrets: &SecretRedactor,
        door: Option<Arc<dyn FleetClient>>,
    ) -> (InjectedMcpServers, ToolChannels) {
        let (notes, noted) = mpsc::channel(NOTES_MAX);
        let (inquiries, inquired) = mpsc::channel(NOTES_MAX);
        let files = send_files_to
            .map(|folder| FileSender::new(working_directory, folder, secrets, notes.clone()))
            .map(|sender| InjectedMcpServer::Files(Arc::new(sender)));
        let fleet = InjectedMcpServer::Fleet(FleetTools::new(
            notes,
            inquiries,
            AsyncFleetClient::new(door),
        ));
        let from_tools = ToolChannels { notes: noted, questions: inquired };
        (InjectedMcpServers { servers: files.into_iter().chain([fleet]).collect() }, from_tools)
    }

    pub(crate) fn none() -> InjectedMcpServers {
        InjectedMcpServers { servers: Arc::new([]) }
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
        let id = message.get("id").cloned();
        let Some(server) = self.servers.iter().find(|known| known.name() == server) else {
            let text = format!("there is no server `{server}` in this run");
            return error_response(id, ErrorData::invalid_request(text, None));
        };
        match serde_json::from_value(message) {
            Ok(ClientJsonRpcMessage::Request(request)) => {
                answer_request(server.clone(), ClientJsonRpcMessage::Request(request))
                    .await
                    .unwrap_or_else(|| {
                        error_response(
                            id,
                            ErrorData::internal_error("the request got no answer", None),
                        )
                    })
            }
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
            InjectedMcpServer::Fleet(_) => fleet_tools::tools(),
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
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=TOOL_USE_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(plain)
    };
    tool_use.filter(is_plain).map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}

/// Reply of a tool to the agent: its result, or the reason for its failure.
pub(super) type ToolCallOutcome = Result<String, String>;

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

/// Defines a tool with input `T`; the agent reads the doc comments of the fields.
pub(super) fn define_tool<T: JsonSchema + 'static>(
    name: &'static str,
    description: &'static str,
) -> Tool {
    let schema = rmcp::handler::server::tool::schema_for_input::<T>();
    Tool::new(name, description, schema.expect("the input is a struct, so its schema is an object"))
}

/// Marks a tool as one that changes nothing in the working directory, so that it is available in
/// plan mode.
pub(super) fn mark_read_only(tool: Tool) -> Tool {
    tool.with_annotations(ToolAnnotations::new().read_only(true))
}

pub(super) fn parse_input<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, String> {
    serde_json::from_value(Json::Object(arguments))
        .map_err(|error| format!("invalid input for this tool: {error}"))
}

/// Refuses a text that is too long for a note.
pub(super) fn check_message(message: &str) -> Result<(), String> {
    let bytes = message.len();
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    Err(format!("the message has {bytes} bytes; at most {MESSAGE_BYTES_MAX} are taken: shorten it"))
}

/// Sends a note to the event loop.
pub(super) async fn send_note(
    notes: &mpsc::Sender<ToolNote>,
    note: ToolNote,
) -> Result<(), String> {
    notes.send(note).await.map_err(|_| "the run is ending and records nothing more".to_owned())
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
