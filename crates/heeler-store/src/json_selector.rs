//! Reads selected fields of a large JSON document without building values for the rest.
//!
//! Transcript rows may hold megabytes of text of which a list needs one word. Start at
//! [`parse_selected`].

use std::fmt;

use serde::de::{
    Deserialize as _, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess,
};
use serde::de::{Error, Visitor};
use serde_json::{Map, Value as Json};

/// Selects the parts of a value to keep. A value of another kind than selected is reduced to an
/// empty string, list or object of its kind.
#[derive(Debug)]
pub(crate) enum JsonSelector {
    /// A string or a number.
    Scalar,
    All,
    /// These fields of an object.
    Fields(&'static [(&'static str, JsonSelector)]),
    /// This selection of each item of a list.
    Items(&'static JsonSelector),
}

/// Parses the selected parts of a document; `None` if it is not JSON.
pub(crate) fn parse_selected(text: &[u8], keep: &JsonSelector) -> Option<Json> {
    let mut document = serde_json::Deserializer::from_slice(text);
    let value = keep.deserialize(&mut document).ok()?;
    // Text after the document would mean that two lines were glued together.
    document.end().ok()?;
    Some(value)
}

impl<'de> DeserializeSeed<'de> for &JsonSelector {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Json, D::Error> {
        match self {
            JsonSelector::All => Json::deserialize(from),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for &JsonSelector {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::from(if matches!(self, JsonSelector::Scalar) { text } else { "" }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        match self {
            JsonSelector::Items(keep) => {
                while let Some(item) = list.next_element_seed(*keep)? {
                    items.push(item);
                }
            }
            // Skipped items are still checked to be JSON.
            _ => while list.next_element::<IgnoredAny>()?.is_some() {},
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let fields: &[(&str, JsonSelector)] =
            if let JsonSelector::Fields(fields) = self { fields } else { &[] };
        let mut selected = Map::new();
        while let Some(field) = object.next_key_seed(FieldNameSeed(fields))? {
            match field {
                Some((name, keep)) => {
                    selected.insert((*name).to_owned(), object.next_value_seed(keep)?);
                }
                None => {
                    // The value is skipped without being built, which is the point of this module.
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(selected.into())
    }
}

/// Finds a field by name without copying the name.
struct FieldNameSeed<'f>(&'f [(&'static str, JsonSelector)]);

impl<'de, 'f> DeserializeSeed<'de> for FieldNameSeed<'f> {
    type Value = Option<&'f (&'static str, JsonSelector)>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'f> Visitor<'_> for FieldNameSeed<'f> {
    type Value = Option<&'f (&'static str, JsonSelector)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(name, _)| *name == text))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BLOCK: JsonSelector = JsonSelector::Fields(&[("type", JsonSelector::Scalar)]);
    const ROW: JsonSelector = JsonSelector::Fields(&[
        ("type", JsonSelector::Scalar),
        ("text", JsonSelector::Fields(&[])),
        ("all", JsonSelector::All),
        ("content", JsonSelector::Items(&BLOCK)),
    ]);

    #[track_caller]
    fn check(text: &str, expected: Option<Json>) {
        assert_eq!(parse_selected(text.as_bytes(), &ROW), expected, "{text}");
    }

    #[test]
    fn only_what_is_asked_for_is_kept() {
        check(
            r#"{"type":"a","x":[{"type":1}],"text":"long","all":{"b":[1,2.5,null]},
               "content":[{"type":"t","text":"long"},{"text":1},3,"s"]}"#,
            Some(json!({"type": "a", "text": "", "all": {"b": [1, 2.5, null]},
                "content": [{"type": "t"}, {}, 3, ""]})),
        );
        check(
            r#"{"ty\u0070e":{"a":1},"content":"a text","text":["x"]}"#,
            Some(json!({"type": {}, "content": "", "text": []})),
        );
        check(r#"{"type":"first","type":-1}"#, Some(json!({"type": -1})));
    }

    #[test]
    fn what_is_not_json_is_nothing() {
        for text in ["", "{", r#"{"a":1"#, r#"{"a":1} x"#, r#"{"content":[1,}"#] {
            check(text, None);
        }
        check("[1]", Some(json!([])));
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = format!("{{\"x\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        check(&deep, Some(json!({})));
        let deep = deep.replacen('x', "text", 1);
        check(&deep, Some(json!({"text": []})));
        check(&deep.replacen("text", "all", 1), None);
    }
}
