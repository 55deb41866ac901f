//! Script of a scripted agent, inline or in its own file. [`crate::script`] defines the steps; this
//! module adds source positions to their faults.

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value as Json;

use crate::fault::ConfigFaults;
use crate::reader::{ConfigDialect, ConfigReader, SourceSpan};
use crate::script::{self, ScriptPathSegment};
use crate::shape::ValueShape;
use crate::value::{ConfigValue, report_expected};
use crate::yaml::{self, YamlKind, YamlNode};

/// Script as written in the config.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ScriptSource {
    /// File that holds a list of steps.
    File(Utf8PathBuf),
    /// Checked steps.
    Steps(Vec<Json>),
}

impl ScriptSource {
    /// Returns the steps; empty for a file, which the loader reads.
    pub(crate) fn steps(&self) -> Vec<Json> {
        match self {
            ScriptSource::File(_) => Vec::new(),
            ScriptSource::Steps(steps) => steps.clone(),
        }
    }
}

impl ConfigValue for ScriptSource {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![ValueShape::Text, ValueShape::List(Box::new(ValueShape::Any))])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ScriptSource> {
        match &node.kind {
            YamlKind::List(_) => read_steps(node, reader).map(ScriptSource::Steps),
            // Text is a path, because a script is always a list.
            YamlKind::Scalar(_) => Utf8PathBuf::read(node, reader).map(ScriptSource::File),
            _ => report_expected(reader, node, "a list of steps or the path of a file"),
        }
    }
    fn show(&self) -> Json {
        match self {
            ScriptSource::File(path) => path.show(),
            ScriptSource::Steps(steps) => steps.show(),
        }
    }
}

/// Parses the text of a script file, or returns every fault. Variables are not substituted:
/// commands use `$` themselves.
pub fn parse_script_file(path: &Utf8Path, text: &str) -> Result<Vec<Json>, ConfigFaults> {
    let mut reader = ConfigReader::new(ConfigDialect::Heeler, None);
    let source = reader.add_source(path, text.to_owned());
    parse_script_source(source, &mut reader).ok_or_else(|| reader.finish().0)
}

/// Parses the steps of a loaded script file.
pub(crate) fn parse_script_source(source: usize, reader: &mut ConfigReader) -> Option<Vec<Json>> {
    let tree = yaml::parse(source, reader)?;
    match &tree.kind {
        YamlKind::List(_) => read_steps(&tree, reader),
        _ => report_expected(reader, &tree, "a list of steps"),
    }
}

/// Reads a list of steps. Each fault is shown at its step or key.
fn read_steps(node: &YamlNode, reader: &mut ConfigReader) -> Option<Vec<Json>> {
    if matches!(&node.kind, YamlKind::List(items) if items.is_empty()) {
        return report_expected(reader, node, "at least one step");
    }
    // Steps are untyped here; their own checker gives better messages than a shape.
    let steps = Vec::<Json>::read(node, reader)?;
    let Err(faults) = script::AgentScript::check(&steps) else { return Some(steps) };
    for fault in faults {
        reader.error(fault_span(node, &fault.path), fault.to_string());
    }
    None
}

/// Returns the position of a fault, or of its nearest existing ancestor.
fn fault_span(node: &YamlNode, path: &[ScriptPathSegment]) -> SourceSpan {
    let Some((first, rest)) = path.split_first() else { return node.at };
    let within = match (first, &node.kind) {
        (ScriptPathSegment::Item(number), YamlKind::List(items)) => items.get(*number),
        (ScriptPathSegment::Key(key), YamlKind::Map(entries)) => {
            match entries.iter().find(|(name, _)| name.text == *key) {
                // A fault about a key is shown at the key, not at its value.
                Some((name, _)) if rest.is_empty() => return name.at,
                found => found.map(|(_, value)| value),
            }
        }
        _ => None,
    };
    within.map_or(node.at, |within| fault_span(within, rest))
}
