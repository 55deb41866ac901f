//! Inputs of a workflow run, checked against the workflow's definition.
//!
//! Start at [`resolve_inputs`].

use serde_json::{Map, Value as Json};
use thiserror::Error;

use super::definition::{Workflow, WorkflowInput, WorkflowInputType};
use crate::did_you_mean;

/// Largest inputs of a run, as JSON, in bytes.
pub const INPUT_BYTES_MAX: usize = 256 << 10;

/// All errors in the inputs of a run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("; "))]
pub struct WorkflowInputError(pub Vec<String>);

/// Returns the inputs of a run: the given values, with defaults for the rest.
///
/// Text is converted to the input's type, so that values can come from a command line. A workflow
/// without declared inputs accepts any.
pub fn resolve_inputs(
    workflow: &Workflow,
    given: Map<String, Json>,
) -> Result<Map<String, Json>, WorkflowInputError> {
    let size = serde_json::to_string(&given).map_or(0, |json| json.len());
    if size > INPUT_BYTES_MAX {
        let message = format!("the inputs have {size} bytes; the limit is {INPUT_BYTES_MAX}");
        return Err(WorkflowInputError(vec![message + ": pass the path of a file instead"]));
    }
    if workflow.inputs.is_empty() {
        return Ok(given);
    }
    let unknown = given.keys().filter(|name| !workflow.inputs.contains_key(*name));
    let mut faults: Vec<String> =
        unknown.map(|name| unknown_input_message(workflow, name)).collect();
    let mut all = Map::new();
    for (name, input) in &workflow.inputs {
        match input_value(name, input, given.get(name)) {
            Ok(value) => drop(all.insert(name.clone(), value)),
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => Ok(all),
        false => Err(WorkflowInputError(faults)),
    }
}

fn unknown_input_message(workflow: &Workflow, name: &str) -> String {
    let known = workflow.inputs.keys().map(String::as_str);
    match did_you_mean(name, known.clone()) {
        Some(near) => format!("there is no input `{name}`; did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = known.collect();
            format!("there is no input `{name}`; there are: {}", known.join(", "))
        }
    }
}

fn input_value(name: &str, input: &WorkflowInput, given: Option<&Json>) -> Result<Json, String> {
    let Some(given) = given.filter(|value| !value.is_null()) else {
        return input.default.clone().ok_or_else(|| format!("`{name}` must be given"));
    };
    let value = coerce_value(input.kind, given)
        .ok_or_else(|| format!("`{name}` must be a {}, but {given} is not", input.kind))?;
    if !input.options.is_empty() && !input.options.contains(&value) {
        let options: Vec<String> = input.options.iter().map(Json::to_string).collect();
        return Err(format!("`{name}` is one of {}; {given} is not", options.join(", ")));
    }
    Ok(value)
}

/// Converts a value to an input type. Returns `None` if it does not fit.
pub(super) fn coerce_value(kind: WorkflowInputType, value: &Json) -> Option<Json> {
    match (kind, value) {
        (WorkflowInputType::String, Json::String(_))
        | (WorkflowInputType::Number, Json::Number(_))
        | (WorkflowInputType::Boolean, Json::Bool(_))
        | (WorkflowInputType::List, Json::Array(_)) => Some(value.clone()),
        (WorkflowInputType::String, Json::Number(_) | Json::Bool(_)) => {
            Some(Json::from(value.to_string()))
        }
        (WorkflowInputType::Number, Json::String(text)) => {
            let number = serde_json::from_str(text.trim()).ok();
            number.filter(Json::is_number)
        }
        (WorkflowInputType::Boolean, Json::String(text)) => match text.trim() {
            "true" | "yes" => Some(Json::Bool(true)),
            "false" | "no" => Some(Json::Bool(false)),
            _ => None,
        },
        (WorkflowInputType::List, Json::String(text)) if text.trim_start().starts_with('[') => {
            serde_json::from_str(text).ok()
        }
        (WorkflowInputType::List, Json::String(text)) => {
            let items = text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
            Some(items.map(Json::from).collect())
        }
        _ => None,
    }
}
