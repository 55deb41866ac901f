//! A view's content as a tree, and how it is laid over what is in the file.

use serde_json::{Map, Value};

/// A part of a view.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    /// Ours: replaces what is there.
    Leaf(Value),
    /// Keys of ours in our order; keys that we do not know follow in theirs.
    Map(Vec<(String, Node)>),
    /// The same, and left out when it comes out empty.
    MapUnlessEmpty(Vec<(String, Node)>),
    /// A key of ours that does not apply now.
    Absent,
}

impl Node {
    /// A leaf that is `null` where there is nothing.
    pub(crate) fn nullable(value: Option<impl Into<Value>>) -> Node {
        Node::Leaf(value.map_or(Value::Null, Into::into))
    }

    /// A leaf that is left out where there is nothing.
    pub(crate) fn optional(value: Option<impl Into<Value>>) -> Node {
        value.map_or(Node::Absent, |value| Node::Leaf(value.into()))
    }

    /// Lays the tree over what was found in the file.
    pub(crate) fn over(self, found: Option<Value>) -> Option<Value> {
        match self {
            Node::Absent => None,
            Node::Leaf(value) => Some(value),
            Node::Map(entries) => Some(Value::Object(merge(entries, found))),
            Node::MapUnlessEmpty(entries) => {
                let merged = merge(entries, found);
                (!merged.is_empty()).then_some(Value::Object(merged))
            }
        }
    }
}

fn merge(entries: Vec<(String, Node)>, found: Option<Value>) -> Map<String, Value> {
    let mut found = match found {
        Some(Value::Object(found)) => found,
        _ => Map::new(),
    };
    let mut merged = Map::new();
    for (key, node) in entries {
        if let Some(value) = node.over(found.shift_remove(&key)) {
            merged.insert(key, value);
        }
    }
    merged.extend(found);
    merged
}

/// How a view is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Yaml,
    Json,
}

impl Format {
    pub(crate) fn of(path: &str) -> Format {
        if path.ends_with(".json") { Format::Json } else { Format::Yaml }
    }

    /// Reads a file; whatever is not a map is refused.
    pub(crate) fn parse(self, bytes: &[u8]) -> Result<Value, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let value: Value = match self {
            Format::Json => serde_json::from_str(text).map_err(|error| error.to_string())?,
            Format::Yaml => {
                // `yes` is a word since YAML 1.2, and herdctl writes it as one.
                let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
                serde_saphyr::from_str_with_options(text, options)
                    .map_err(|error| error.to_string())?
            }
        };
        if value.is_object() { Ok(value) } else { Err("it is not a map".to_owned()) }
    }

    pub(crate) fn write(self, value: &Value) -> Result<String, String> {
        match self {
            Format::Json => serde_json::to_string_pretty(value)
                .map(|text| text + "\n")
                .map_err(|error| error.to_string()),
            Format::Yaml => {
                // Lines are not folded: `grep` and people read them as they were said.
                let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
                serde_saphyr::to_string_with_options(value, options)
                    .map_err(|error| error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    fn leaf(value: impl Into<Value>) -> Node {
        Node::Leaf(value.into())
    }

    #[test]
    fn keys_that_we_do_not_know_survive_at_every_depth() {
        let found = json!({
            "x": 1, "known": "old",
            "map": {"theirs": true, "gone": 2, "ours": 0}, "y": [1]
        });
        let node = Node::Map(vec![
            ("known".to_owned(), leaf("new")),
            (
                "map".to_owned(),
                Node::Map(vec![("ours".to_owned(), leaf(7)), ("gone".to_owned(), Node::Absent)]),
            ),
            ("empty".to_owned(), Node::MapUnlessEmpty(vec![])),
        ]);
        let merged = node.over(Some(found)).unwrap();
        assert_eq!(
            merged.to_string(),
            r#"{"known":"new","map":{"ours":7,"theirs":true},"x":1,"y":[1]}"#
        );
    }

    #[test]
    fn text_comes_back_from_yaml_as_it_was() {
        for text in [
            "",
            " ",
            "\n",
            "a\n",
            "a\n\n",
            "\na",
            "  a\nb",
            "a: b",
            "- a",
            "yes",
            "null",
            "~",
            "12:30",
            "1e3",
            "0x1F",
            "2024-01-19",
            "#no",
            "a #b",
            "'",
            "\"",
            "\\",
            "\t",
            "a\tb\nc",
            "é…\u{7f}",
            "a\r\nb",
            "x\u{85}y",
            "x\u{2028}y\nz",
            "a  \nb",
            "trailing ",
            "\u{feff}bom",
            "%x",
            "@x",
            "`x",
            "| x\ny",
            "---\nx",
            "...\n",
            "a\u{0}b\nc",
        ] {
            let value = json!({ "prompt": text, "nested": {"list": [text]} });
            let yaml = Format::Yaml.write(&value).unwrap();
            assert_eq!(Format::Yaml.parse(yaml.as_bytes()).as_ref(), Ok(&value), "{yaml}");
        }
        let long = "word ".repeat(80);
        let yaml = Format::Yaml.write(&json!({ "summary": long })).unwrap();
        assert_eq!(yaml.lines().count(), 1, "{yaml}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_comes_back_from_yaml(key in "[a-z]{1,8}", text in ".*|(.*\\n){1,4}.*", flat in "[ -~]*") {
            let value = json!({ key: {"text": text, "flat": flat} });
            let yaml = Format::Yaml.write(&value).unwrap();
            proptest::prop_assert_eq!(Format::Yaml.parse(yaml.as_bytes()), Ok(value), "{}", yaml);
        }
    }

    #[test]
    fn words_that_older_yaml_took_for_booleans_stay_words() {
        let found = Format::Yaml.parse(b"a: yes\nb: off\nc: true\nd: 1\n").unwrap();
        assert_eq!(found, json!({"a": "yes", "b": "off", "c": true, "d": 1}));
    }

    #[test]
    fn prompts_are_blocks_and_times_are_text() {
        let value =
            json!({"prompt": "Analyze.\nReport.\n", "at": "2024-01-19T09:00:00.000Z", "end": null});
        expect![[r#"
            prompt: |
              Analyze.
              Report.
            at: "2024-01-19T09:00:00.000Z"
            end: null
        "#]]
        .assert_eq(&Format::Yaml.write(&value).unwrap());
    }
}
