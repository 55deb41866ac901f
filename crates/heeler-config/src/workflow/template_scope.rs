//! Values that a template or an expression can name.
//!
//! Start at [`TemplateScope`].

use std::collections::BTreeSet;
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::Value;
use minijinja::value::Serde;
use serde_json::{Map, Value as Json};

use super::template_value::PhaseOutputValue;
use super::translate::TemplateSlot;

/// Names that hold several values. They take precedence over the inputs of a run.
pub(super) const NAMESPACES: [&str; 5] =
    ["inputs", "context", "scratch", "outputs", "phaseOutputs"];

/// Name, followed by keys within its value.
pub(super) type ValuePath = Vec<String>;

/// Values that are visible in templates.
#[derive(Debug, Clone, Copy)]
pub struct TemplateScope<'s> {
    /// Inputs of the run. Each key is a name, and `inputs` holds all of them.
    pub context: &'s Json,
    /// Data that phases share, as `scratch`.
    pub scratch: &'s Map<String, Json>,
    /// Outputs of phases by phase name and `output_var`, as `outputs.NAME`, `NAME.output`, `NAME`
    /// and `${NAME.output}`.
    pub outputs: &'s IndexMap<String, Arc<str>>,
    /// Results of loops by `output_var`, such as `{approved, cycles}`. They hide the output's text,
    /// except for `${NAME.output}`.
    pub loop_results: &'s IndexMap<String, Json>,
    /// Additional names, which take precedence over all others.
    pub extra_names: &'s [(&'s str, Json)],
}

impl TemplateScope<'_> {
    /// Prepares the named values and no others: a run may have ten thousand outputs.
    pub(super) fn values(&self, names: &[ValuePath], slots: &[TemplateSlot]) -> Value {
        let heads: BTreeSet<&str> = names.iter().map(|path| path[0].as_str()).collect();
        let mut values: Vec<(String, Value)> = Vec::new();
        for head in heads {
            let uses = names.iter().filter(|path| path[0] == head);
            let within: Vec<Option<&str>> =
                uses.map(|path| path.get(1).map(String::as_str)).collect();
            if let Some(value) = self.root_value(head, &within) {
                values.push((head.to_owned(), value));
            }
        }
        for (number, slot) in slots.iter().enumerate() {
            values.extend(self.slot_value(slot).map(|value| (format!("_slot{number}"), value)));
        }
        map_of(values)
    }

    fn root_value(&self, head: &str, within: &[Option<&str>]) -> Option<Value> {
        // An additional name hides the namespace, as it hides any other name.
        let is_holder =
            NAMESPACES.contains(&head) && !self.extra_names.iter().any(|(name, _)| *name == head);
        // Only the parts that are named, since all outputs together may be large.
        if is_holder && within.iter().all(Option::is_some) {
            let value = |name: &str| self.find(&[head, name]).map(|value| (name.to_owned(), value));
            return Some(map_of(within.iter().flatten().filter_map(|name| value(name))));
        }
        let value = self.find(&[head])?;
        // A context value of the same name is not an output, even if a phase has that name.
        let is_output = !is_holder && self.root_json(head).is_none();
        let wants_output = within.contains(&Some("output"));
        match is_output && wants_output {
            // The value must work as text and as a map with `output`.
            true => Some(Value::from_object(PhaseOutputValue(value))),
            false => Some(value),
        }
    }

    /// Returns the value at a path.
    pub(super) fn find(&self, path: &[&str]) -> Option<Value> {
        let (head, rest) = path.split_first()?;
        if let Some(json) = self.root_json(head) {
            return json_at_path(json, rest).map(|json| Value::from(Serde(json)));
        }
        match (*head, rest) {
            ("scratch", []) => Some(Value::from(Serde(self.scratch))),
            ("scratch", [key, rest @ ..]) => {
                let json = json_at_path(self.scratch.get(*key)?, rest)?;
                Some(Value::from(Serde(json)))
            }
            ("outputs" | "phaseOutputs", []) => {
                let outputs = self.outputs.iter();
                Some(map_of(outputs.map(|(name, text)| (name.clone(), Value::from(text)))))
            }
            ("outputs" | "phaseOutputs", [name, rest @ ..]) => match self.loop_results.get(*name) {
                Some(json) => json_at_path(json, rest).map(|json| Value::from(Serde(json))),
                None => self.output(name, rest),
            },
            (name, rest) => self.output(name, rest).or_else(|| checkout_file(name, rest)),
        }
    }

    /// Returns the JSON value of a name: an additional name, or one of the run's context.
    fn root_json(&self, head: &str) -> Option<&Json> {
        let more = self.extra_names.iter().find(|(name, _)| *name == head).map(|(_, json)| json);
        match head {
            _ if more.is_some() => more,
            "inputs" | "context" => Some(self.context),
            // A key of the context must not replace a namespace.
            _ if NAMESPACES.contains(&head) => None,
            // Inputs first, as in Last Light.
            _ => self.context.get(head).or_else(|| self.loop_results.get(head)),
        }
    }

    fn output(&self, name: &str, rest: &[&str]) -> Option<Value> {
        let text = self.outputs.get(name)?;
        // An output is text and has no parts of its own.
        matches!(rest, [] | ["output"]).then(|| Value::from(text))
    }

    fn slot_value(&self, slot: &TemplateSlot) -> Option<Value> {
        let text = |name: &str| self.find(&[name])?.as_str().map(str::to_owned);
        match slot {
            TemplateSlot::Path(path) => {
                self.find(&path.iter().map(String::as_str).collect::<Vec<_>>())
            }
            TemplateSlot::Output(name) => self.output(name, &[]),
            TemplateSlot::BranchUrl(file) => {
                let url = || {
                    let (owner, repo) = (text("owner")?, text("repo")?);
                    Some(format!(
                        "https://github.com/{owner}/{repo}/blob/{}/{file}",
                        text("branch")?
                    ))
                };
                // Without a repository the name of the file is still useful to a reader.
                Some(Value::from(url().unwrap_or_else(|| file.clone())))
            }
            TemplateSlot::ArtifactUrl(file) => {
                let base = text("artifactsUrl").filter(|base| !base.is_empty());
                let url = base.map(|base| format!("{}/{file}", base.trim_end_matches('/')));
                Some(Value::from(url.unwrap_or_else(|| file.clone())))
            }
        }
    }
}

/// Returns the path of a file in the checkout that Last Light's prompts name, unless the run has such
/// an input. The agent writes the file for itself.
fn checkout_file(name: &str, rest: &[&str]) -> Option<Value> {
    let path = match name {
        "verifyScript" => ".git/lastlight-verify.sh",
        "notesFile" => ".git/lastlight-notes",
        _ => return None,
    };
    rest.is_empty().then(|| Value::from(path))
}

fn map_of(values: impl IntoIterator<Item = (String, Value)>) -> Value {
    let values = values.into_iter().map(|(name, value)| (Value::from(name), value));
    Value::from_object(values.collect::<IndexMap<Value, Value>>())
}

fn json_at_path<'j>(json: &'j Json, path: &[&str]) -> Option<&'j Json> {
    path.iter().try_fold(json, |at, key| match at {
        Json::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => at.get(key),
    })
}
