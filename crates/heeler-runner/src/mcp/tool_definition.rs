//! Definition of an injected tool: its input, and its reply to the agent.

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

/// Reply of a tool to the agent: its result, or the reason for its failure.
pub(super) type ToolCallOutcome = Result<String, String>;

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
