//! The script of a scripted agent, inline or in a file of its own. What a step may be is
//! [`crate::script`]'s; here its faults get their place.

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value as Json;

use super::fault::Faults;
use super::reader::{Dialect, Pos, Reader};
use super::shape::Shape;
use super::value::{Value, expected};
use super::yaml::{self, Kind, Node};
use crate::script::{self, Part};

/// What a scripted agent does, as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Script {
    /// A file with a list of steps.
    File(Utf8PathBuf),
    /// The steps, checked.
    Steps(Vec<Json>),
}

impl Script {
    /// Returns the steps; none of a file, which the loader reads.
    pub(crate) fn steps(&self) -> Vec<Json> {
        match self {
            Script::File(_) => Vec::new(),
            Script::Steps(steps) => steps.clone(),
        }
    }
}

impl Value for Script {
    fn shape() -> Shape {
        Shape::OneOf(vec![Shape::Text, Shape::List(Box::new(Shape::Any))])
    }
    fn read(node: &Node, reader: &mut Reader) -> Option<Script> {
        match &node.kind {
            Kind::List(_) => read_steps(node, reader).map(Script::Steps),
            Kind::Scalar(_) => Utf8PathBuf::read(node, reader).map(Script::File),
            _ => expected(reader, node, "a list of steps or the path of a file"),
        }
    }
    fn show(&self) -> Json {
        match self {
            Script::File(path) => path.show(),
            Script::Steps(steps) => steps.show(),
        }
    }
}

/// Reads the text of a script file; on failure every fault is returned. Nothing in it stands for a
/// variable: commands have their own.
pub fn steps_of_file(path: &Utf8Path, text: &str) -> Result<Vec<Json>, Faults> {
    let mut reader = Reader::new(Dialect::Heeler, None);
    let source = reader.add_source(path, text.to_owned());
    of_source(source, &mut reader).ok_or_else(|| reader.finish().0)
}

/// Reads the steps of a script file.
pub(crate) fn of_source(source: usize, reader: &mut Reader) -> Option<Vec<Json>> {
    let tree = yaml::parse(source, reader)?;
    match &tree.kind {
        Kind::List(_) => read_steps(&tree, reader),
        _ => expected(reader, &tree, "a list of steps"),
    }
}

/// Reads a list of steps; each fault is shown at the step or key that has it.
fn read_steps(node: &Node, reader: &mut Reader) -> Option<Vec<Json>> {
    if matches!(&node.kind, Kind::List(items) if items.is_empty()) {
        return expected(reader, node, "at least one step");
    }
    let steps = Vec::<Json>::read(node, reader)?;
    let Err(faults) = script::Script::check(&steps) else { return Some(steps) };
    for fault in faults {
        reader.error(place_of(node, &fault.path), fault.to_string());
    }
    None
}

/// Finds the place of a fault; where the way ends early, the last place on it.
fn place_of(node: &Node, path: &[Part]) -> Pos {
    let Some((first, rest)) = path.split_first() else { return node.at };
    let within = match (first, &node.kind) {
        (Part::Item(number), Kind::List(items)) => items.get(*number),
        (Part::Key(key), Kind::Map(entries)) => {
            match entries.iter().find(|(name, _)| name.text == *key) {
                Some((name, _)) if rest.is_empty() => return name.at,
                found => found.map(|(_, value)| value),
            }
        }
        _ => None,
    };
    within.map_or(node.at, |within| place_of(within, rest))
}
