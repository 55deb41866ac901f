//! Key `host` of an agent: the host that executes its jobs, by name or by labels. Start at
//! [`HostChoice`].

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::id_syntax::text_id;
use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::store_url::StoreUrl;
use crate::value::{ConfigValue, SpannedValue, parse_text, word_value};
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};
use crate::{IdParseError, LocalName};

/// Longest label.
const LABEL_LEN_MAX: usize = 63;

/// Word that stands for no labels on the command line.
pub const NO_LABELS: &str = "none";

text_id! {
    /// A property of a host: `gpu`, or `os=linux`.
    HostLabel, "a label", check_label
}

fn check_label(text: &str) -> Result<(), &'static str> {
    let is_part = |part: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_allowed)
    };
    if text.len() > LABEL_LEN_MAX {
        return Err("it is longer than 63 characters");
    }
    if text == NO_LABELS {
        return Err("`none` stands for no labels");
    }
    let (key, value) = text.split_once('=').unwrap_or((text, "1"));
    match is_part(key) && is_part(value) {
        true => Ok(()),
        false => Err("write `KEY` or `KEY=VALUE`, with letters, digits, `.`, `-` and `_`"),
    }
}

impl ConfigValue for HostLabel {
    fn shape() -> ValueShape {
        let pattern = Some("^[a-zA-Z0-9][a-zA-Z0-9._-]*(=[a-zA-Z0-9][a-zA-Z0-9._-]*)?$");
        ValueShape::Format { what: "a label", example: "`os=linux`", pattern }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<HostLabel> {
        let parse =
            |text: &str| text.parse().map_err(|error: IdParseError| error.reason.to_owned());
        parse_text(node, reader, ("a label", "`os=linux`"), parse)
    }
    fn show(&self) -> Json {
        json!(self.as_str())
    }
}

words! {
    /// Order in which hosts with room are used.
    pub enum PlacementOrder ("placement") {
        /// The host with the fewest runs first.
        Spread = "spread",
        /// The host with the most runs first.
        Pack = "pack",
    }
}

word_value!(PlacementOrder);

words! {
    /// What happens to an agent if its host loses contact with the fleet's database.
    pub enum PartitionPolicy ("partition policy") {
        /// It works on. Its run stays with its host.
        Keep = "keep",
        /// It is ended, and its job may continue on another host.
        Stop = "stop",
    }
}

word_value!(PartitionPolicy);

section! {
    /// Hosts that may execute an agent's jobs.
    pub(crate) struct HostSelectionKeys ("host") {
        /// Labels that the host must have, as `heeler start --label` gave them. Without labels every
        /// host is possible.
        labels: Vec<HostLabel>,
        /// Choice between several such hosts: `spread` takes the one with the fewest runs, `pack`
        /// the one with the most runs that has room.
        placement: PlacementOrder = "spread",
    }
}

/// Choice of the host that executes an agent's jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostChoice {
    /// The host with this name.
    Named(LocalName),
    /// A host with all these labels.
    Labels { labels: Vec<HostLabel>, order: PlacementOrder },
}

impl fmt::Display for HostChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostChoice::Named(name) => write!(f, "host `{name}`"),
            HostChoice::Labels { labels, .. } if labels.is_empty() => f.write_str("any host"),
            HostChoice::Labels { labels, .. } => {
                let labels: Vec<&str> = labels.iter().map(HostLabel::as_str).collect();
                write!(f, "a host with {}", labels.join(", "))
            }
        }
    }
}

impl ConfigValue for HostChoice {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![LocalName::shape(), HostSelectionKeys::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<HostChoice> {
        if !matches!(node.kind, YamlKind::Map(_)) {
            return LocalName::read(node, reader).map(HostChoice::Named);
        }
        let keys = HostSelectionKeys::read(node, reader)?;
        Some(HostChoice::Labels { labels: keys.labels, order: keys.placement })
    }
    fn show(&self) -> Json {
        match self {
            HostChoice::Named(name) => name.show(),
            HostChoice::Labels { labels, order } => {
                HostSelectionKeys { labels: labels.clone(), placement: *order }.show()
            }
        }
    }
}

/// Refuses `host` of agents in a fleet that has one machine only.
pub(crate) fn check_host_choices(
    written: &[SpannedValue<HostChoice>],
    store: Option<&StoreUrl>,
    reader: &mut ConfigReader,
) {
    if store.is_some() {
        return;
    }
    for host in written {
        let message = format!("{} cannot be used: this fleet has one machine", host.value);
        reader
            .error(host.at, message)
            .expected("set `store` to a PostgreSQL server, or remove `host`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_word_or_a_pair() {
        let check = |text: &str| text.parse::<HostLabel>().map_err(|error| error.reason);
        for good in ["gpu", "os=linux", "cuda=12.4", "a-b_c.d=1"] {
            assert_eq!(check(good).as_ref().map(HostLabel::as_str), Ok(good));
        }
        for bad in ["", "=x", "x=", "a=b=c", "a b", "a,b", "-a", "ä", "a='"] {
            let form = "write `KEY` or `KEY=VALUE`, with letters, digits, `.`, `-` and `_`";
            assert_eq!(check(bad), Err(form), "{bad}");
        }
        assert_eq!(check(&"x".repeat(64)), Err("it is longer than 63 characters"));
        assert_eq!(check("none"), Err("`none` stands for no labels"));
    }
}
