//! YAML parser that produces a tree of nodes with source positions.
//!
//! The tree keeps scalars as written: the key that reads a scalar decides if it is a number or a
//! duration. Aliases and merge keys are expanded here, within limits. Duplicate keys, tags, keys
//! that are not scalars and additional documents are rejected here. Start at [`parse`].

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::reader::{ConfigReader, SourceSpan};

/// Largest config file, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum nesting depth of lists and maps.
pub const DEPTH_MAX: usize = 64;
/// Maximum number of nodes in one file after aliases are expanded.
pub const NODES_MAX: usize = 100_000;
/// Limit on the text that the aliases of one file may repeat, and on the text of its values after
/// variables are substituted, in bytes.
pub const TEXT_BYTES_MAX: usize = 4 * FILE_BYTES_MAX;

/// Value with its source position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct YamlNode {
    pub(crate) at: SourceSpan,
    pub(crate) kind: YamlKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum YamlKind {
    /// Empty, or the word `null`.
    Null,
    Scalar(YamlScalar),
    List(Vec<YamlNode>),
    Map(Vec<(YamlKey, YamlNode)>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct YamlScalar {
    pub(crate) text: String,
    /// Not quoted, so it may be a number or a boolean.
    pub(crate) plain: bool,
    /// Text before variables were substituted, if it contained any.
    pub(crate) template: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct YamlKey {
    pub(crate) text: String,
    pub(crate) at: SourceSpan,
}

impl YamlNode {
    /// Returns the value of a map key.
    pub(crate) fn get(&self, key: &str) -> Option<&YamlNode> {
        // Duplicate keys are a fault, so the first entry is the only one.
        self.entries().iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
    }

    pub(crate) fn entries(&self) -> &[(YamlKey, YamlNode)] {
        match &self.kind {
            YamlKind::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        self.kind == YamlKind::Null
    }

    /// Describes the value for messages. A value from the environment may be secret, so it is named
    /// by its variable and never shown.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            YamlKind::Null => "nothing".to_owned(),
            YamlKind::Scalar(YamlScalar { template: Some(template), .. }) => {
                // One line is enough to recognize the setting, and faults have a line each.
                format!("the value of `{}`", template.lines().next().unwrap_or_default())
            }
            YamlKind::Scalar(YamlScalar { text, .. }) if text.chars().count() > 40 => {
                format!("`{}…`", text.chars().take(40).collect::<String>())
            }
            YamlKind::Scalar(YamlScalar { text, .. }) => format!("`{text}`"),
            YamlKind::List(items) if items.is_empty() => "an empty list".to_owned(),
            YamlKind::List(_) => "a list".to_owned(),
            YamlKind::Map(_) => "a map".to_owned(),
        }
    }
}

/// Parses one file. Returns `None` if faults were reported that leave no usable tree.
pub(crate) fn parse(file: usize, reader: &mut ConfigReader) -> Option<YamlNode> {
    let source = reader.source(file);
    let start = SourceSpan { file, start: 0, end: 0 };
    // Checked before parsing, which takes several times the size in memory.
    if source.text.len() > FILE_BYTES_MAX {
        let message = format!("the file is larger than {FILE_BYTES_MAX} bytes");
        reader.error(start, message).expected("a smaller file");
        return None;
    }
    // Unknown aliases are reported below, with their position.
    let options = granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: DEPTH_MAX,
        block_nesting_limit: DEPTH_MAX,
    };
    let parser = Parser::new_from_str_with_options(&source.text, options);
    let mut builder = YamlTreeBuilder {
        file,
        parser,
        reader,
        anchors: HashMap::new(),
        nodes_left: NODES_MAX,
        text_left: TEXT_BYTES_MAX,
        depth: 0,
        failed: false,
    };
    let root = builder.parse_stream();
    let failed = builder.failed;
    // A tree with a fatal fault lacks parts; reading it would report false faults.
    root.filter(|_| !failed)
        .or_else(|| (!failed).then_some(YamlNode { at: start, kind: YamlKind::Null }))
}

struct YamlTreeBuilder<'a, 'r> {
    file: usize,
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    reader: &'r mut ConfigReader,
    anchors: HashMap<usize, YamlNode>,
    nodes_left: usize,
    text_left: usize,
    depth: usize,
    /// Set by a fault that makes the tree unusable.
    failed: bool,
}

impl<'a> YamlTreeBuilder<'a, '_> {
    /// Parses the only document. An empty file gives `None` without a fault.
    fn parse_stream(&mut self) -> Option<YamlNode> {
        let mut root = None;
        while let Some((event, span)) = self.next_event() {
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    let at = self.source_span(span);
                    self.report_fatal(at, "a second document starts here".to_owned())
                        .help("a config file holds one document: remove the `---`");
                    return None;
                }
                Event::DocumentStart(..) => {
                    let (event, span) = self.next_event()?;
                    root = Some(self.build_node(event, span)?);
                }
                _ => break,
            }
        }
        root
    }

    fn next_event(&mut self) -> Option<(Event<'a>, Span)> {
        match self.parser.next()? {
            Ok(next) => Some(next),
            Err(error) => {
                let mark = *error.marker();
                // The parser may not know the position, for example at the end of the file.
                let start = mark.byte_offset().unwrap_or(0);
                let at = SourceSpan { file: self.file, start, end: start + 1 };
                let message = format!("not valid YAML: {}", error.info());
                // The most common mistake, which the parser's message does not explain.
                let tab = error.info().contains("tab");
                let fault = self.report_fatal(at, message);
                if tab {
                    fault.help("indent with spaces: YAML allows no tabs there");
                }
                None
            }
        }
    }

    fn source_span(&self, span: Span) -> SourceSpan {
        let range = span.byte_range().unwrap_or(0..0);
        SourceSpan { file: self.file, start: range.start, end: range.end }
    }

    fn report_fatal(&mut self, at: SourceSpan, message: String) -> &mut crate::fault::ConfigFault {
        self.failed = true;
        self.reader.error(at, message)
    }

    fn build_node(&mut self, event: Event<'a>, span: Span) -> Option<YamlNode> {
        let at = self.source_span(span);
        // Counted before the node is built, so a bomb of aliases ends early.
        self.consume_budget(at, TreeSize { nodes: 1, text: 0 })?;
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = self.plain_by_tag(at, style == ScalarStyle::Plain, tag.as_deref())?;
                (scalar_kind(text.into_owned(), plain), anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.plain_by_tag(at, true, tag.as_deref())?;
                (YamlKind::List(self.build_list()?), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.plain_by_tag(at, true, tag.as_deref())?;
                (YamlKind::Map(self.build_map()?), anchor)
            }
            Event::Alias(id) => return self.resolve_alias(at, id),
            Event::UnresolvedAlias(name) => {
                self.report_fatal(at, format!("there is no anchor `&{name}` before this alias"));
                // A value stands in, so that the rest of the file is still checked.
                return Some(YamlNode { at, kind: YamlKind::Null });
            }
            _ => {
                self.report_fatal(at, "not valid YAML: a value was expected here".to_owned());
                return None;
            }
        };
        let node = YamlNode { at: self.narrow_span(at, &kind), kind };
        if anchor != 0 {
            // Nodes count when an alias uses them. Text also counts here, because the copy is kept.
            self.consume_budget(at, TreeSize { nodes: 0, ..tree_size(&node) })?;
            self.anchors.insert(anchor, node.clone());
        }
        Some(node)
    }

    /// Returns the span of a collection's first key or item, because its own span may be empty.
    fn narrow_span(&self, at: SourceSpan, kind: &YamlKind) -> SourceSpan {
        match kind {
            YamlKind::Map(entries) => entries.first().map_or(at, |(key, _)| key.at),
            YamlKind::List(items) => items.first().map_or(at, |item| item.at),
            _ => at,
        }
    }

    fn consume_budget(&mut self, at: SourceSpan, size: TreeSize) -> Option<()> {
        let left = (self.nodes_left.checked_sub(size.nodes), self.text_left.checked_sub(size.text));
        let message = match left {
            (Some(nodes), Some(text)) => {
                (self.nodes_left, self.text_left) = (nodes, text);
                return Some(());
            }
            (None, _) => format!("the file has more than {NODES_MAX} values"),
            (_, None) => format!("the file has more than {TEXT_BYTES_MAX} bytes of text"),
        };
        self.report_fatal(at, message).help("aliases count as often as they are used");
        None
    }

    fn resolve_alias(&mut self, at: SourceSpan, id: usize) -> Option<YamlNode> {
        // The anchor is stored when its node is complete, so within it there is none.
        let Some(target) = self.anchors.get(&id) else {
            self.report_fatal(at, "an alias inside its own anchor".to_owned());
            return None;
        };
        // The copy is as deep as its target, which the parser's own limit does not see.
        let (size, depth) = (tree_size(target), tree_depth(target));
        if self.depth + depth > DEPTH_MAX {
            let message = format!("lists and maps are nested deeper than {DEPTH_MAX}");
            self.report_fatal(at, message);
            return None;
        }
        // Before the copy: nested aliases grow exponentially.
        self.consume_budget(at, size)?;
        self.anchors.get(&id).cloned()
    }

    fn build_list(&mut self) -> Option<Vec<YamlNode>> {
        let mut items = Vec::new();
        self.depth += 1;
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => break,
                (event, span) => items.push(self.build_node(event, span)?),
            }
        }
        self.depth -= 1;
        Some(items)
    }

    fn build_map(&mut self) -> Option<Vec<(YamlKey, YamlNode)>> {
        let mut entries: Vec<(YamlKey, YamlNode)> = Vec::new();
        // A map of its own, because a search of the entries would be quadratic.
        let mut known: HashMap<String, SourceSpan> = HashMap::new();
        // Merged last, since keys of the map win wherever `<<` stands.
        let mut merged: Vec<YamlNode> = Vec::new();
        self.depth += 1;
        loop {
            let key = match self.next_event()? {
                (Event::MappingEnd, _) => break,
                (event, span) => self.build_node(event, span)?,
            };
            let (event, span) = self.next_event()?;
            // The value is read even if the key is invalid, to find the faults within it.
            let value = self.build_node(event, span)?;
            match key.kind {
                // A quoted `<<` is an ordinary key.
                YamlKind::Scalar(YamlScalar { text, plain: true, .. }) if text == "<<" => {
                    merged.push(value);
                }
                YamlKind::Scalar(YamlScalar { text, .. }) => {
                    // Not fatal, so that all duplicates are reported at once.
                    if let Some(first) = known.insert(text.clone(), key.at) {
                        self.report_duplicate_key(&text, key.at, first);
                    }
                    entries.push((YamlKey { text, at: key.at }, value));
                }
                _ => {
                    self.report_fatal(key.at, "this key is not a plain word".to_owned());
                }
            }
        }
        self.depth -= 1;
        for value in merged {
            self.merge_entries(&mut entries, &mut known, value);
        }
        Some(entries)
    }

    fn report_duplicate_key(&mut self, text: &str, at: SourceSpan, first: SourceSpan) {
        let source = self.reader.source(self.file);
        let line = source.text[..first.start].matches('\n').count() + 1;
        self.reader
            .error(at, format!("the key `{text}` is here twice"))
            .expected(format!("it is already on line {line}"));
    }

    /// Adds the entries of `<<`; keys of the map itself take precedence.
    fn merge_entries(
        &mut self,
        entries: &mut Vec<(YamlKey, YamlNode)>,
        known: &mut HashMap<String, SourceSpan>,
        value: YamlNode,
    ) {
        match value.kind {
            YamlKind::Map(more) => {
                for (key, value) in more {
                    // The first of several merged maps wins, as YAML defines it.
                    if !known.contains_key(&key.text) {
                        known.insert(key.text.clone(), key.at);
                        entries.push((key, value));
                    }
                }
            }
            YamlKind::List(maps) if maps.iter().all(|map| matches!(map.kind, YamlKind::Map(_))) => {
                for map in maps {
                    self.merge_entries(entries, known, map);
                }
            }
            _ => {
                self.report_fatal(value.at, "`<<` takes a map or a list of maps".to_owned());
            }
        }
    }

    /// Returns true if the value is untyped text. `!!str` makes it a string; other tags are
    /// rejected.
    fn plain_by_tag(&mut self, at: SourceSpan, plain: bool, tag: Option<&Tag>) -> Option<bool> {
        match tag {
            None => Some(plain),
            Some(tag) if tag.is_yaml_core_schema_tag("str") => Some(false),
            // The other core tags, such as `!!int`, say what the reader finds out anyway.
            Some(tag) if tag.core_suffix().is_some() => Some(plain),
            Some(tag) => {
                self.report_fatal(at, format!("the tag `{tag}` is not supported"))
                    .help("remove it: config uses no tags");
                None
            }
        }
    }
}

/// Number of values and keys in a tree, and the bytes of their text.
#[derive(Debug, Clone, Copy)]
struct TreeSize {
    nodes: usize,
    text: usize,
}

fn tree_size(node: &YamlNode) -> TreeSize {
    let own = TreeSize { nodes: 1, text: 0 };
    let add =
        |a: TreeSize, b: TreeSize| TreeSize { nodes: a.nodes + b.nodes, text: a.text + b.text };
    match &node.kind {
        YamlKind::Null => own,
        YamlKind::Scalar(scalar) => TreeSize { text: scalar.text.len(), ..own },
        YamlKind::List(items) => items.iter().map(tree_size).fold(own, add),
        YamlKind::Map(entries) => {
            // Keys are values of their own in the count, as they take as much memory.
            let key = |key: &YamlKey| TreeSize { nodes: 1, text: key.text.len() };
            entries.iter().map(|(name, value)| add(key(name), tree_size(value))).fold(own, add)
        }
    }
}

/// Estimates the memory size of a tree, in bytes.
pub(crate) fn estimate_bytes(node: &YamlNode) -> usize {
    let TreeSize { nodes, text } = tree_size(node);
    nodes * size_of::<YamlNode>() + text
}

fn tree_depth(node: &YamlNode) -> usize {
    match &node.kind {
        YamlKind::Null | YamlKind::Scalar(_) => 0,
        YamlKind::List(items) => 1 + items.iter().map(tree_depth).max().unwrap_or(0),
        YamlKind::Map(entries) => 1 + entries.iter().map(|(_, v)| tree_depth(v)).max().unwrap_or(0),
    }
}

fn scalar_kind(text: String, plain: bool) -> YamlKind {
    match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" if plain => YamlKind::Null,
        _ => YamlKind::Scalar(YamlScalar { text, plain, template: None }),
    }
}

/// Merges `top` over `base`: maps key by key, everything else is replaced. A null in `top` is kept
/// and hides the value in `base`.
pub(crate) fn merge_trees(base: YamlNode, top: YamlNode) -> YamlNode {
    let YamlNode { at, kind } = top;
    match (base.kind, kind) {
        (YamlKind::Map(mut entries), YamlKind::Map(more)) => {
            for (key, value) in more {
                match entries.iter().position(|(known, _)| known.text == key.text) {
                    Some(place) => {
                        // The old value is moved out, so that a deep merge copies nothing.
                        let below = std::mem::replace(&mut entries[place].1.kind, YamlKind::Null);
                        // The position is that of the override, which is what a person must change.
                        let below = YamlNode { at: value.at, kind: below };
                        entries[place] = (key, merge_trees(below, value));
                    }
                    None => entries.push((key, value)),
                }
            }
            YamlNode { at, kind: YamlKind::Map(entries) }
        }
        (_, kind) => YamlNode { at, kind },
    }
}
