//! Descriptions of config values, from which the JSON schema, the reference page and the renaming
//! of aliases are derived. [`section!`] declares a struct and its description together.

use crate::reader::{ConfigReader, SourceSpan};
use crate::text::did_you_mean;
use crate::value::{ConfigValue, report_expected};
use crate::yaml::{YamlKey, YamlKind, YamlNode};
use crate::{ConfigDialect, yaml};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ValueShape {
    Text,
    Bool,
    Int {
        min: i64,
        max: i64,
    },
    Words(Vec<&'static str>),
    /// Text of a validated format.
    Format {
        what: &'static str,
        example: &'static str,
        pattern: Option<&'static str>,
    },
    List(Box<ValueShape>),
    Map(Box<ValueShape>),
    Section(ConfigSection),
    OneOf(Vec<ValueShape>),
    Any,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigSection {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) keys: Vec<KeyInfo>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeyInfo {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) shape: ValueShape,
    pub(crate) default: Option<&'static str>,
    pub(crate) required: bool,
}

impl ConfigSection {
    /// Returns the section without some of its keys, under another name.
    pub(crate) fn without_keys(mut self, name: &'static str, keys: &[&str]) -> ConfigSection {
        self.name = name;
        self.keys.retain(|key| !keys.contains(&key.name));
        self
    }

    pub(crate) fn key(&self, name: &str) -> Option<&KeyInfo> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// Declares a struct that is read from a map. Its doc comments are the user documentation of the
/// keys. `as` gives a key that is not a Rust identifier, `alias` gives other spellings, and `=` the
/// default as YAML.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $name:ident ($title:literal) {
            $(
                $(#[doc = $doc:literal])+
                $field:ident $(as $key:literal)? $(alias $alias:literal)* : $ty:ty $(= $default:literal)?,
            )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name { $( $(#[doc = $doc])+ $vis $field: $ty, )* }

        impl $name {
            const KEYS: &[&str] = &[$($crate::shape::section!(@key $field $($key)?)),*];

            pub(crate) fn section() -> $crate::shape::ConfigSection {
                $crate::shape::ConfigSection {
                    name: $title,
                    about: concat!($($about, "\n"),+),
                    keys: vec![$({
                        let default = $crate::shape::section!(@default $($default)?);
                        $crate::shape::KeyInfo {
                            name: $crate::shape::section!(@key $field $($key)?),
                            about: concat!($($doc, "\n"),+),
                            aliases: &[$($alias),*],
                            shape: <$ty as $crate::value::ConfigValue>::shape(),
                            default,
                            required: default.is_none()
                                && <$ty as $crate::value::ConfigValue>::absent().is_none(),
                        }
                    }),*],
                }
            }
        }

        impl $crate::value::ConfigValue for $name {
            fn shape() -> $crate::shape::ValueShape {
                $crate::shape::ValueShape::Section($name::section())
            }
            fn read(
                node: &$crate::yaml::YamlNode,
                reader: &mut $crate::reader::ConfigReader,
            ) -> Option<$name> {
                $crate::shape::check_keys(node, $title, $name::KEYS, reader)?;
                // All fields are read before the first `?`, so that all faults are reported.
                $(
                    let $field: Option<$ty> = $crate::shape::read_key(
                        node,
                        $crate::shape::section!(@key $field $($key)?),
                        $crate::shape::section!(@default $($default)?),
                        reader,
                    );
                )*
                Some($name { $($field: $field?,)* })
            }
            fn show(&self) -> serde_json::Value {
                let mut map = serde_json::Map::new();
                $(
                    let shown = $crate::value::ConfigValue::show(&self.$field);
                    if !shown.is_null() {
                        let key = $crate::shape::section!(@key $field $($key)?);
                        map.insert(key.to_owned(), shown);
                    }
                )*
                serde_json::Value::Object(map)
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    (@default) => { None };
    (@default $default:literal) => { Some($default) };
}
pub(crate) use section;

/// Checks that a node is a map with known keys only.
pub(crate) fn check_keys(
    node: &YamlNode,
    title: &str,
    known: &[&'static str],
    reader: &mut ConfigReader,
) -> Option<()> {
    let YamlKind::Map(entries) = &node.kind else {
        return report_expected(reader, node, "a map");
    };
    for (key, _) in entries {
        if !known.contains(&key.text.as_str()) {
            report_unknown_key(key, title, known, reader);
        }
    }
    Some(())
}

fn report_unknown_key(
    key: &YamlKey,
    title: &str,
    known: &[&'static str],
    reader: &mut ConfigReader,
) {
    let message = format!("unknown key `{}` in {title}", key.text);
    let near = did_you_mean(&key.text, known.iter().copied());
    let fault = match reader.dialect {
        // A misspelt key is a setting without effect, which is worse than a refusal.
        ConfigDialect::Heeler => reader.error(key.at, message),
        // A herdctl project is read without changes, whatever its files contain.
        ConfigDialect::Herdctl => reader.warn(key.at, message),
    };
    match near {
        Some(near) => fault.expected(format!("did you mean `{near}`?")),
        None => fault.help(format!("known keys: {}", known.join(", "))),
    };
}

/// Reads the value of a key or its default, or reports that the key is missing. After a fault the
/// default is used, so that reading continues.
pub(crate) fn read_key<T: ConfigValue>(
    node: &YamlNode,
    key: &'static str,
    default: Option<&'static str>,
    reader: &mut ConfigReader,
) -> Option<T> {
    let written = node.get(key).filter(|value| !value.is_null());
    let read = written.and_then(|value| T::read(value, reader));
    // A faulty key gets its default, so that the rest of the section is still read.
    let value = read.or_else(|| default.map_or_else(T::absent, read_default));
    // A key with a fault was reported already.
    if value.is_none() && written.is_none() {
        let message = format!("the key `{key}` is missing");
        reader.error(node.at, message).expected(format!("`{key}` belongs here"));
    }
    value
}

/// Returns a default as JSON, for the schema.
pub(crate) fn default_json(default: &str) -> serde_json::Value {
    read_default(default).unwrap_or_default()
}

/// Parses a default. Positions refer to a separate reader and are never reported: a test parses
/// every default.
pub(crate) fn read_default<T: ConfigValue>(default: &str) -> Option<T> {
    let mut reader = ConfigReader::new(ConfigDialect::Heeler, None);
    let file = reader.add_source("<default>".into(), default.to_owned());
    let node = yaml::parse(file, &mut reader)?;
    T::read(&node, &mut reader)
}

/// Renames aliases to the main key names, recursively, so that merging sees one name.
pub(crate) fn canonicalize_keys(
    node: &mut YamlNode,
    shape: &ValueShape,
    reader: &mut ConfigReader,
) {
    match (shape, &mut node.kind) {
        (ValueShape::Section(section), YamlKind::Map(entries)) => {
            rename_aliases(entries, section, reader);
            for (key, value) in entries {
                if let Some(info) = section.key(&key.text) {
                    canonicalize_keys(value, &info.shape, reader);
                }
            }
        }
        (ValueShape::Map(shape), YamlKind::Map(entries)) => {
            entries.iter_mut().for_each(|(_, value)| canonicalize_keys(value, shape, reader));
        }
        (ValueShape::List(shape), YamlKind::List(items)) => {
            items.iter_mut().for_each(|item| canonicalize_keys(item, shape, reader));
        }
        (ValueShape::OneOf(shapes), _) => {
            // The forms differ in kind, so at most one of them fits the node.
            shapes.iter().for_each(|shape| canonicalize_keys(node, shape, reader));
        }
        _ => {}
    }
}

fn rename_aliases(
    entries: &mut [(YamlKey, YamlNode)],
    section: &ConfigSection,
    reader: &mut ConfigReader,
) {
    for info in section.keys.iter().filter(|info| !info.aliases.is_empty()) {
        let has_name = entries.iter().any(|(key, _)| key.text == info.name);
        for (key, _) in entries.iter_mut().filter(|(key, _)| info.aliases.contains(&&*key.text)) {
            if has_name {
                reject_alias_conflict(key.at, &key.text, info.name, reader);
            }
            // Renamed even in a conflict, so that the alias is not reported as unknown too.
            key.text = info.name.to_owned();
        }
    }
}

pub(crate) fn reject_alias_conflict(
    at: SourceSpan,
    alias: &str,
    name: &str,
    reader: &mut ConfigReader,
) {
    let message = format!("`{alias}` and `{name}` are the same key");
    reader.error(at, message).expected("keep one of them");
}
