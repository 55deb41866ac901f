//! A view's content as a tree, and how it is merged into the existing file.
//!
//! Start at [`ViewNode`].

use serde_json::{Map, Value};

/// A node of a view.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ViewNode {
    /// A value of Heeler, which replaces the existing one.
    Leaf(Value),
    /// Heeler's keys in their order; unknown keys follow in the order of the file.
    Map(Vec<(String, ViewNode)>),
    /// Like [`ViewNode::Map`], but omitted if the merged result is empty.
    MapUnlessEmpty(Vec<(String, ViewNode)>),
    /// A key of Heeler that does not apply now.
    Absent,
}

impl ViewNode {
    /// Returns a leaf that is `null` without a value.
    pub(crate) fn nullable(value: Option<impl Into<Value>>) -> ViewNode {
        ViewNode::Leaf(value.map_or(Value::Null, Into::into))
    }

    /// Returns a leaf that is omitted without a value.
    pub(crate) fn optional(value: Option<impl Into<Value>>) -> ViewNode {
        value.map_or(ViewNode::Absent, |value| ViewNode::Leaf(value.into()))
    }

    /// Merges the tree into the content of the file.
    pub(crate) fn merge_over(self, found: Option<Value>) -> Option<Value> {
        match self {
            ViewNode::Absent => None,
            ViewNode::Leaf(value) => Some(value),
            ViewNode::Map(entries) => Some(Value::Object(merge(entries, found))),
            ViewNode::MapUnlessEmpty(entries) => {
                let merged = merge(entries, found);
                (!merged.is_empty()).then_some(Value::Object(merged))
            }
        }
    }
}

fn merge(entries: Vec<(String, ViewNode)>, found: Option<Value>) -> Map<String, Value> {
    let mut found = match found {
        Some(Value::Object(found)) => found,
        _ => Map::new(),
    };
    let mut merged = Map::new();
    for (key, node) in entries {
        // Removed from the file's map, so that only unknown keys remain in it.
        if let Some(value) = node.merge_over(found.shift_remove(&key)) {
            merged.insert(key, value);
        }
    }
    // Unknown keys of other programs survive every rewrite.
    merged.extend(found);
    merged
}

/// File format of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ViewFormat {
    Yaml,
    Json,
}

impl ViewFormat {
    pub(crate) fn from_path(path: &str) -> ViewFormat {
        if path.ends_with(".json") { ViewFormat::Json } else { ViewFormat::Yaml }
    }

    /// Parses a file; anything but a map is rejected.
    pub(crate) fn parse(self, bytes: &[u8]) -> Result<Value, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let value: Value = match self {
            ViewFormat::Json => serde_json::from_str(text).map_err(|error| error.to_string())?,
            ViewFormat::Yaml => {
                // `yes` is a string in YAML 1.2, and herdctl writes it unquoted.
                let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
                serde_saphyr::from_str_with_options(text, options)
                    .map_err(|error| error.to_string())?
            }
        };
        // A list or a plain text has no keys to merge into.
        if value.is_object() { Ok(value) } else { Err("it is not a map".to_owned()) }
    }

    pub(crate) fn write(self, value: &Value) -> Result<String, String> {
        match self {
            ViewFormat::Json => serde_json::to_string_pretty(value)
                .map(|text| text + "\n")
                .map_err(|error| error.to_string()),
            ViewFormat::Yaml => {
                // Lines are not folded, so that `grep` and people find the original text.
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

    fn leaf(value: impl Into<Value>) -> ViewNode {
        ViewNode::Leaf(value.into())
    }

    #[test]
    fn keys_that_we_do_not_know_survive_at_every_depth() {
        let found = json!({
            "x": 1, "known": "old",
            "map": {"theirs": true, "gone": 2, "ours": 0}, "y": [1]
        });
        let node = ViewNode::Map(vec![
            ("known".to_owned(), leaf("new")),
            (
                "map".to_owned(),
                ViewNode::Map(vec![
                    ("ours".to_owned(), leaf(7)),
                    ("gone".to_owned(), ViewNode::Absent),
                ]),
            ),
            ("empty".to_owned(), ViewNode::MapUnlessEmpty(vec![])),
        ]);
        let merged = node.merge_over(Some(found)).unwrap();
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
            let yaml = ViewFormat::Yaml.write(&value).unwrap();
            assert_eq!(ViewFormat::Yaml.parse(yaml.as_bytes()).as_ref(), Ok(&value), "{yaml}");
        }
        let long = "word ".repeat(80);
        let yaml = ViewFormat::Yaml.write(&json!({ "summary": long })).unwrap();
        assert_eq!(yaml.lines().count(), 1, "{yaml}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_comes_back_from_yaml(key in "[a-z]{1,8}", text in ".*|(.*\\n){1,4}.*", flat in "[ -~]*") {
            let value = json!({ key: {"text": text, "flat": flat} });
            let yaml = ViewFormat::Yaml.write(&value).unwrap();
            proptest::prop_assert_eq!(ViewFormat::Yaml.parse(yaml.as_bytes()), Ok(value), "{}", yaml);
        }
    }

    #[test]
    fn words_that_older_yaml_took_for_booleans_stay_words() {
        let found = ViewFormat::Yaml.parse(b"a: yes\nb: off\nc: true\nd: 1\n").unwrap();
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
        .assert_eq(&ViewFormat::Yaml.write(&value).unwrap());
    }
}
