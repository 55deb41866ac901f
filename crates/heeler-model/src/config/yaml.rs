//! YAML text to a tree of nodes that know where they stand.
//!
//! The tree keeps scalars as written: what is a number or a duration is decided by the key that
//! reads it. Aliases and merge keys are expanded here, under a budget; duplicate keys, tags, keys
//! that are not words and further documents are refused here. Start at [`parse`].

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::reader::{Pos, Reader};

/// The largest config file, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// The deepest nesting of lists and maps.
pub const DEPTH_MAX: usize = 64;
/// The most nodes in one file once its aliases are expanded.
pub const NODES_MAX: usize = 100_000;
/// The most text that the aliases of one file may repeat, and that its values may hold once their
/// variables are put in, in bytes.
pub const TEXT_BYTES_MAX: usize = 4 * FILE_BYTES_MAX;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: Pos,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// Nothing, or the word `null`.
    Null,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Not quoted, so it may be a number or a boolean.
    pub(crate) plain: bool,
    /// The text before variables were put in, if it named any.
    pub(crate) template: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) at: Pos,
}

impl Node {
    /// Returns the value of a key of a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
    }

    pub(crate) fn entries(&self) -> &[(Key, Node)] {
        match &self.kind {
            Kind::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// Says whether two nodes hold the same, wherever they stand.
    pub(crate) fn same_content(&self, other: &Node) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::List(a), Kind::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same_content(b))
            }
            (Kind::Map(a), Kind::Map(b)) => {
                let same = |((ka, va), (kb, vb)): (&(Key, Node), &(Key, Node))| {
                    ka.text == kb.text && va.same_content(vb)
                };
                a.len() == b.len() && a.iter().zip(b).all(same)
            }
            (a, b) => a == b,
        }
    }

    /// Names what is here, for messages. A value from the environment may be a secret: it is
    /// named as written, never shown.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".to_owned(),
            Kind::Scalar(Scalar { template: Some(template), .. }) => {
                format!("the value of `{}`", template.lines().next().unwrap_or_default())
            }
            Kind::Scalar(Scalar { text, .. }) if text.chars().count() > 40 => {
                format!("`{}…`", text.chars().take(40).collect::<String>())
            }
            Kind::Scalar(Scalar { text, .. }) => format!("`{text}`"),
            Kind::List(items) if items.is_empty() => "an empty list".to_owned(),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        }
    }
}

/// Parses one file. `None` means that faults were reported and there is no tree to go on with.
pub(crate) fn parse(file: usize, reader: &mut Reader) -> Option<Node> {
    let source = reader.source(file);
    let start = Pos { file, start: 0, end: 0 };
    if source.text.len() > FILE_BYTES_MAX {
        let message = format!("the file is larger than {FILE_BYTES_MAX} bytes");
        reader.error(start, message).expected("a smaller file");
        return None;
    }
    let options = granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: DEPTH_MAX,
        block_nesting_limit: DEPTH_MAX,
    };
    let parser = Parser::new_from_str_with_options(&source.text, options);
    let mut builder = Builder {
        file,
        parser,
        reader,
        anchors: HashMap::new(),
        nodes_left: NODES_MAX,
        text_left: TEXT_BYTES_MAX,
        depth: 0,
        failed: false,
    };
    let root = builder.stream();
    let failed = builder.failed;
    root.filter(|_| !failed).or_else(|| (!failed).then_some(Node { at: start, kind: Kind::Null }))
}

struct Builder<'a, 'r> {
    file: usize,
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    reader: &'r mut Reader,
    anchors: HashMap<usize, Node>,
    nodes_left: usize,
    text_left: usize,
    depth: usize,
    /// A fault was found that makes the tree useless.
    failed: bool,
}

impl<'a> Builder<'a, '_> {
    /// Reads the only document. An empty file gives `None` without a fault.
    fn stream(&mut self) -> Option<Node> {
        let mut root = None;
        while let Some((event, span)) = self.next() {
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    let at = self.pos(span);
                    self.fatal(at, "a second document starts here".to_owned())
                        .help("a config file holds one document: remove the `---`");
                    return None;
                }
                Event::DocumentStart(..) => {
                    let (event, span) = self.next()?;
                    root = Some(self.node(event, span)?);
                }
                _ => break,
            }
        }
        root
    }

    fn next(&mut self) -> Option<(Event<'a>, Span)> {
        match self.parser.next()? {
            Ok(next) => Some(next),
            Err(error) => {
                let mark = *error.marker();
                let start = mark.byte_offset().unwrap_or(0);
                let at = Pos { file: self.file, start, end: start + 1 };
                let message = format!("not valid YAML: {}", error.info());
                let tab = error.info().contains("tab");
                let fault = self.fatal(at, message);
                if tab {
                    fault.help("indent with spaces: YAML allows no tabs there");
                }
                None
            }
        }
    }

    fn pos(&self, span: Span) -> Pos {
        let range = span.byte_range().unwrap_or(0..0);
        Pos { file: self.file, start: range.start, end: range.end }
    }

    fn fatal(&mut self, at: Pos, message: String) -> &mut super::fault::Fault {
        self.failed = true;
        self.reader.error(at, message)
    }

    fn node(&mut self, event: Event<'a>, span: Span) -> Option<Node> {
        let at = self.pos(span);
        self.spend(at, Size { nodes: 1, text: 0 })?;
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = self.plain_by_tag(at, style == ScalarStyle::Plain, tag.as_deref())?;
                (scalar(text.into_owned(), plain), anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.plain_by_tag(at, true, tag.as_deref())?;
                (Kind::List(self.list()?), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.plain_by_tag(at, true, tag.as_deref())?;
                (Kind::Map(self.map()?), anchor)
            }
            Event::Alias(id) => return self.alias(at, id),
            Event::UnresolvedAlias(name) => {
                self.fatal(at, format!("there is no anchor `&{name}` before this alias"));
                return Some(Node { at, kind: Kind::Null });
            }
            _ => {
                self.fatal(at, "not valid YAML: a value was expected here".to_owned());
                return None;
            }
        };
        let node = Node { at: self.narrow(at, &kind), kind };
        if anchor != 0 {
            // Its nodes are paid for by those who use it, its text also by being kept.
            self.spend(at, Size { nodes: 0, ..size(&node) })?;
            self.anchors.insert(anchor, node.clone());
        }
        Some(node)
    }

    /// A collection is marked at its first key or item: its own span may be empty.
    fn narrow(&self, at: Pos, kind: &Kind) -> Pos {
        match kind {
            Kind::Map(entries) => entries.first().map_or(at, |(key, _)| key.at),
            Kind::List(items) => items.first().map_or(at, |item| item.at),
            _ => at,
        }
    }

    fn spend(&mut self, at: Pos, size: Size) -> Option<()> {
        let left = (self.nodes_left.checked_sub(size.nodes), self.text_left.checked_sub(size.text));
        let message = match left {
            (Some(nodes), Some(text)) => {
                (self.nodes_left, self.text_left) = (nodes, text);
                return Some(());
            }
            (None, _) => format!("the file has more than {NODES_MAX} values"),
            (_, None) => format!("the file has more than {TEXT_BYTES_MAX} bytes of text"),
        };
        self.fatal(at, message).help("aliases count as often as they are used");
        None
    }

    fn alias(&mut self, at: Pos, id: usize) -> Option<Node> {
        let Some(target) = self.anchors.get(&id) else {
            self.fatal(at, "an alias inside its own anchor".to_owned());
            return None;
        };
        let (size, depth) = (size(target), depth(target));
        if self.depth + depth > DEPTH_MAX {
            let message = format!("lists and maps are nested deeper than {DEPTH_MAX}");
            self.fatal(at, message);
            return None;
        }
        self.spend(at, size)?;
        self.anchors.get(&id).cloned()
    }

    fn list(&mut self) -> Option<Vec<Node>> {
        let mut items = Vec::new();
        self.depth += 1;
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => break,
                (event, span) => items.push(self.node(event, span)?),
            }
        }
        self.depth -= 1;
        Some(items)
    }

    fn map(&mut self) -> Option<Vec<(Key, Node)>> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut known: HashMap<String, Pos> = HashMap::new();
        let mut merged: Vec<Node> = Vec::new();
        self.depth += 1;
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, _) => break,
                (event, span) => self.node(event, span)?,
            };
            let (event, span) = self.next()?;
            let value = self.node(event, span)?;
            match key.kind {
                Kind::Scalar(Scalar { text, plain: true, .. }) if text == "<<" => {
                    merged.push(value);
                }
                Kind::Scalar(Scalar { text, .. }) => {
                    if let Some(first) = known.insert(text.clone(), key.at) {
                        self.refuse_duplicate(&text, key.at, first);
                    }
                    entries.push((Key { text, at: key.at }, value));
                }
                _ => {
                    self.fatal(key.at, "this key is not a word".to_owned());
                }
            }
        }
        self.depth -= 1;
        for value in merged {
            self.merge_key(&mut entries, &mut known, value);
        }
        Some(entries)
    }

    fn refuse_duplicate(&mut self, text: &str, at: Pos, first: Pos) {
        let source = self.reader.source(self.file);
        let line = source.text[..first.start].matches('\n').count() + 1;
        self.reader
            .error(at, format!("the key `{text}` is here twice"))
            .expected(format!("it is already on line {line}"));
    }

    /// Adds what `<<` brings; keys that the map has itself win.
    fn merge_key(
        &mut self,
        entries: &mut Vec<(Key, Node)>,
        known: &mut HashMap<String, Pos>,
        value: Node,
    ) {
        match value.kind {
            Kind::Map(more) => {
                for (key, value) in more {
                    if !known.contains_key(&key.text) {
                        known.insert(key.text.clone(), key.at);
                        entries.push((key, value));
                    }
                }
            }
            Kind::List(maps) if maps.iter().all(|map| matches!(map.kind, Kind::Map(_))) => {
                for map in maps {
                    self.merge_key(entries, known, map);
                }
            }
            _ => {
                self.fatal(value.at, "`<<` takes a map or a list of maps".to_owned());
            }
        }
    }

    /// Says whether the value is untyped text. `!!str` makes it a string; other tags are refused.
    fn plain_by_tag(&mut self, at: Pos, plain: bool, tag: Option<&Tag>) -> Option<bool> {
        match tag {
            None => Some(plain),
            Some(tag) if tag.is_yaml_core_schema_tag("str") => Some(false),
            Some(tag) if tag.core_suffix().is_some() => Some(plain),
            Some(tag) => {
                self.fatal(at, format!("the tag `{tag}` means nothing here"))
                    .help("remove it: config has no tags of its own");
                None
            }
        }
    }
}

/// What a tree holds: values and keys, and the bytes of their text.
#[derive(Debug, Clone, Copy)]
struct Size {
    nodes: usize,
    text: usize,
}

fn size(node: &Node) -> Size {
    let own = Size { nodes: 1, text: 0 };
    let add = |a: Size, b: Size| Size { nodes: a.nodes + b.nodes, text: a.text + b.text };
    match &node.kind {
        Kind::Null => own,
        Kind::Scalar(scalar) => Size { text: scalar.text.len(), ..own },
        Kind::List(items) => items.iter().map(size).fold(own, add),
        Kind::Map(entries) => {
            let key = |key: &Key| Size { nodes: 1, text: key.text.len() };
            entries.iter().map(|(name, value)| add(key(name), size(value))).fold(own, add)
        }
    }
}

/// Estimates the memory that a tree takes, in bytes.
pub(crate) fn weight(node: &Node) -> usize {
    let Size { nodes, text } = size(node);
    nodes * size_of::<Node>() + text
}

fn depth(node: &Node) -> usize {
    match &node.kind {
        Kind::Null | Kind::Scalar(_) => 0,
        Kind::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Kind::Map(entries) => 1 + entries.iter().map(|(_, v)| depth(v)).max().unwrap_or(0),
    }
}

fn scalar(text: String, plain: bool) -> Kind {
    match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" if plain => Kind::Null,
        _ => Kind::Scalar(Scalar { text, plain, template: None }),
    }
}
