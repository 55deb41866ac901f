//! Finds circles of source files: files of one crate that need each other.
//!
//! A file needs the file that defines a name it uses. A name that a module only re-exports counts
//! for the file that defines it. Start at [`circles`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::source::SourceFile;

/// Re-exports that are followed to find a definition. Longer chains end at the last module.
const REEXPORT_DEPTH_MAX: usize = 8;

/// Path of a module from the root of its crate. The crate's own root is empty.
type ModulePath = Vec<String>;

/// One module file: the names that it imports, and the paths that its code uses.
struct ModuleFile {
    path: String,
    /// Names of its own functions, types and constants.
    definitions: BTreeSet<String>,
    /// Local name, then the path that it stands for. Imports and re-exports.
    imports: Vec<(String, Vec<String>)>,
    /// Every path in the code, imports included, relative to the file's module.
    uses: Vec<Vec<String>>,
}

/// Files of one crate that need each other, with the imports that tie them.
pub(crate) struct ImportCircle {
    pub(crate) files: Vec<String>,
    /// `file -> file: names`.
    pub(crate) edges: Vec<String>,
}

/// Returns every circle of more than one file, the largest first.
pub(crate) fn circles(files: &[SourceFile]) -> Vec<ImportCircle> {
    let mut crates: BTreeMap<String, BTreeMap<ModulePath, ModuleFile>> = BTreeMap::new();
    for file in files {
        if let Some((name, module)) = module_of(&file.path.to_string_lossy()) {
            crates.entry(name).or_default().insert(module, read_module(file));
        }
    }
    let mut found: Vec<ImportCircle> = crates.values().flat_map(circles_of_crate).collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.files.len()));
    found
}

/// Returns the crate and the module of a file such as `crates/heeler/src/chat/mod.rs`.
fn module_of(path: &str) -> Option<(String, ModulePath)> {
    let rest = path.strip_prefix("crates/")?;
    let (name, rest) = rest.split_once("/src/")?;
    let mut module: ModulePath = rest.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        module.pop();
    }
    Some((name.to_owned(), module))
}

fn read_module(file: &SourceFile) -> ModuleFile {
    let mut module = ModuleFile {
        path: file.path.to_string_lossy().into_owned(),
        definitions: BTreeSet::new(),
        imports: Vec::new(),
        uses: Vec::new(),
    };
    let mut tokens = Vec::new();
    for line in file.shipped_lines() {
        let of_line = line_tokens(line);
        // Items of the module itself are not indented; methods are.
        if !line.starts_with(' ') {
            module.definitions.extend(defined_name(&of_line));
        }
        tokens.extend(of_line);
    }
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" {
            // A re-export (`pub use`, `pub(crate) use`) needs nothing itself.
            let reexport = at > 0 && matches!(tokens[at - 1].as_str(), "pub" | ")");
            let used = module.uses.len();
            at = read_use_tree(&tokens, at + 1, &[], &mut module);
            module.uses.truncate(if reexport { used } else { module.uses.len() });
        } else if is_name(&tokens[at]) {
            let mut path = vec![tokens[at].clone()];
            while tokens.get(at + 1).is_some_and(|token| token == "::")
                && tokens.get(at + 2).is_some_and(|token| is_name(token))
            {
                path.push(tokens[at + 2].clone());
                at += 2;
            }
            module.uses.push(path);
            at += 1;
        } else {
            at += 1;
        }
    }
    module
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the name that a line defines.
fn defined_name(tokens: &[String]) -> Option<String> {
    let keywords = ["fn", "struct", "enum", "trait", "type", "const", "static"];
    let is_keyword = |token: &String| keywords.contains(&token.as_str());
    let names = tokens.iter().skip_while(|token| !is_keyword(token));
    names.skip_while(|token| is_keyword(token)).find(|token| is_name(token)).cloned()
}

/// Returns the names, `::` and punctuation of a line, without comments and texts.
fn line_tokens(line: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") {
            break;
        }
        let length = if first == '"' {
            closing_quote(rest)
        } else if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        if first != '"' && !first.is_whitespace() {
            tokens.push(rest[..length].to_owned());
        }
        rest = &rest[length..];
    }
    tokens
}

/// Returns the length of the text that starts at the quote, as far as this line has it.
fn closing_quote(rest: &str) -> usize {
    let mut escaped = false;
    for (index, c) in rest.char_indices().skip(1) {
        match c {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return index + 1,
            _ => escaped = false,
        }
    }
    rest.len()
}

/// Reads one tree of a `use` item and returns the position after it.
fn read_use_tree(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    module: &mut ModuleFile,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("::") => at += 1,
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    at = read_use_tree(tokens, at, &path, module);
                    at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                }
                return at + 1;
            }
            Some("self") if !path.is_empty() => at += 1,
            Some("as") => {
                add_import(module, &path, tokens.get(at + 1));
                return at + 2;
            }
            Some(name) if is_name(name) => {
                path.push(name.to_owned());
                at += 1;
            }
            Some("*") => return at + 1,
            _ => {
                add_import(module, &path, path.last());
                return at;
            }
        }
    }
}

fn add_import(module: &mut ModuleFile, path: &[String], name: Option<&String>) {
    if let Some(name) = name {
        module.imports.push((name.clone(), path.to_vec()));
    }
    module.uses.push(path.to_vec());
}

fn circles_of_crate(modules: &BTreeMap<ModulePath, ModuleFile>) -> Vec<ImportCircle> {
    let order: Vec<&ModulePath> = modules.keys().collect();
    let index: HashMap<&ModulePath, usize> =
        order.iter().enumerate().map(|(index, path)| (*path, index)).collect();
    let mut edges: Vec<BTreeMap<usize, BTreeSet<String>>> = vec![BTreeMap::new(); order.len()];
    for (from, path) in order.iter().enumerate() {
        for used in &modules[*path].uses {
            let Some((target, name)) = resolve(modules, path, used, 0) else { continue };
            let to = index[&target];
            if to != from {
                edges[from].entry(to).or_default().insert(name);
            }
        }
    }
    let reach: Vec<BTreeSet<usize>> =
        (0..order.len()).map(|from| reachable(&edges, from)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for from in 0..order.len() {
        let members: Vec<usize> =
            reach[from].iter().copied().filter(|to| reach[*to].contains(&from)).collect();
        // Every member of a circle finds the same circle.
        if members.len() < 2 || !seen.insert(members.clone()) {
            continue;
        }
        let name = |index: usize| modules[order[index]].path.clone();
        let ties = members.iter().flat_map(|from| {
            let inside = edges[*from].iter().filter(|(to, _)| members.contains(to));
            inside.map(|(to, names)| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("{} -> {}: {}", name(*from), name(*to), names.join(", "))
            })
        });
        found.push(ImportCircle {
            files: members.iter().map(|index| name(*index)).collect(),
            edges: ties.collect(),
        });
    }
    found
}

fn reachable(edges: &[BTreeMap<usize, BTreeSet<String>>], from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        open.extend(edges[at].keys().filter(|to| found.insert(**to)));
    }
    found
}

/// Returns the module that defines the path's name, and the name.
fn resolve(
    modules: &BTreeMap<ModulePath, ModuleFile>,
    from: &ModulePath,
    path: &[String],
    depth: usize,
) -> Option<(ModulePath, String)> {
    let (mut module, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (from.clone(), &path[1..]),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            (from[..from.len().checked_sub(ups)?].to_vec(), &path[ups..])
        }
        first => {
            // The name of a child module, or of an import.
            let mut child = from.clone();
            child.push(first.to_owned());
            if path.len() > 1 && modules.contains_key(&child) {
                (child, &path[1..])
            } else {
                let imports = &modules.get(from)?.imports;
                let (_, target) = imports.iter().find(|(name, _)| name == first)?;
                // An import that names itself would be followed forever.
                if depth >= REEXPORT_DEPTH_MAX || target.first()? == first {
                    return None;
                }
                let mut whole = target.clone();
                whole.extend_from_slice(&path[1..]);
                return resolve(modules, from, &whole, depth + 1);
            }
        }
    };
    while let Some(part) = rest.first() {
        let mut child = module.clone();
        child.push(part.clone());
        if !modules.contains_key(&child) {
            break;
        }
        module = child;
        rest = &rest[1..];
    }
    // The name of a module alone ties nothing: the names that are used from it do.
    let name = rest.first()?.clone();
    let ModuleFile { definitions, imports, .. } = modules.get(&module)?;
    // A function may have the name of an imported macro: the definition counts.
    let reexport = imports.iter().find(|(local, _)| *local == name && !definitions.contains(&name));
    match reexport.filter(|_| depth < REEXPORT_DEPTH_MAX) {
        Some((_, target)) => {
            let mut whole = target.clone();
            whole.extend_from_slice(&rest[1..]);
            let definition = resolve(modules, &module, &whole, depth + 1);
            // A name of another crate is defined by neither file.
            definition.filter(|(target, _)| target != from)
        }
        None => Some((module, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::circles;
    use crate::source::SourceFile;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn files_that_need_each_other_are_a_circle() {
        let found = circles(&[
            file("crates/a/src/lib.rs", "mod one;\nmod two;\npub use one::One;\n"),
            file("crates/a/src/one.rs", "use crate::two::{self, Two};\nstruct One(Two);\n"),
            file("crates/a/src/two.rs", "struct Two;\nfn f(one: crate::One) {}\n"),
            file("crates/a/src/three.rs", "use crate::one::One;\n"),
        ]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].files, ["crates/a/src/one.rs", "crates/a/src/two.rs"]);
        assert_eq!(
            found[0].edges,
            [
                "crates/a/src/one.rs -> crates/a/src/two.rs: Two",
                "crates/a/src/two.rs -> crates/a/src/one.rs: One"
            ]
        );
    }

    #[test]
    fn a_function_with_the_name_of_an_imported_macro_ties_its_file() {
        let found = circles(&[
            file("crates/a/src/api.rs", "mod jobs;\nstruct Api;\nfn f() { jobs::routes() }\n"),
            file(
                "crates/a/src/api/jobs.rs",
                "use macros::routes;\nuse super::Api;\nfn routes() -> Api { routes!() }\n",
            ),
        ]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_child_that_uses_its_parents_type_is_tied_only_if_the_parent_uses_it_too() {
        let child = file("crates/a/src/job/end.rs", "use super::Job;\npub fn end(job: Job) {}\n");
        let alone = file("crates/a/src/job.rs", "mod end;\npub struct Job;\n// end::end\n");
        assert!(circles(&[child, alone]).is_empty());
        let child = file("crates/a/src/job/end.rs", "use super::Job;\npub fn end(job: Job) {}\n");
        let both = file("crates/a/src/job.rs", "mod end;\nfn f() { end::end(Job) }\n");
        assert_eq!(circles(&[child, both]).len(), 1);
    }
}
