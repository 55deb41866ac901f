//! `cargo xtask measure`: figures about the code base, in one table.
//!
//! Names and prose are goals of the project, so their figures are made by a script that anyone can
//! repeat. Start at [`print_table`].

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;

use crate::imports::circles;
use crate::shell::workspace_root;
use crate::source::{SourceFile, TypeDefinition, is_one_word, sources};

/// Words that make a reader guess at the subject of a sentence.
const RIDDLE_WORDS: [&str; 9] =
    ["what", "whatever", "whoever", "whose", "whom", "nobody", "somebody", "anybody", "everybody"];

/// Prints every figure next to its goal.
pub(crate) fn print_table() -> Result<()> {
    let files = sources()?;
    println!("{:<58} {:>9}  goal", "figure", "now");
    print_sizes(&files);
    print_names(&files);
    print_largest_circle(&files);
    print_comments(&files);
    print_documents()?;
    print_binary()
}

fn print_row(figure: &str, value: f64, unit: &str, goal: &str) {
    println!("{figure:<58} {:>9}  {goal}", format!("{value:.1}{unit}"));
}

fn print_sizes(files: &[SourceFile]) {
    let mut lengths: Vec<usize> = files.iter().map(|file| file.shipped_lines().count()).collect();
    lengths.sort_unstable();
    let total: usize = lengths.iter().sum();
    print_row("lines of code and comments, thousands", total as f64 / 1000.0, "", "");
    for (name, share) in [("median", 0.5), ("90th percentile", 0.9), ("longest", 1.0)] {
        let index = ((lengths.len() - 1) as f64 * share) as usize;
        print_row(&format!("lines of a file, {name}"), lengths[index] as f64, "", "");
    }
}

/// Returns the definitions with a name that another definition has too.
pub(crate) fn shared_names(files: &[SourceFile]) -> Vec<TypeDefinition> {
    let types: Vec<TypeDefinition> = files.iter().flat_map(SourceFile::type_definitions).collect();
    let mut count: HashMap<String, usize> = HashMap::new();
    for definition in &types {
        *count.entry(definition.name.clone()).or_default() += 1;
    }
    types.into_iter().filter(|definition| count[&definition.name] > 1).collect()
}

fn print_names(files: &[SourceFile]) {
    let types: Vec<TypeDefinition> = files.iter().flat_map(SourceFile::type_definitions).collect();
    let share = |part: usize| part as f64 * 100.0 / types.len() as f64;
    print_row("types", types.len() as f64, "", "");
    print_row("types that share their name", share(shared_names(files).len()), " %", "< 4 %");
    let one_word = types.iter().filter(|definition| is_one_word(&definition.name)).count();
    print_row("type names of one word", share(one_word), " %", "< 15 %");
}

fn print_largest_circle(files: &[SourceFile]) {
    let largest = circles(files).first().map_or(1, |circle| circle.files.len());
    print_row("files of the largest circle of imports", largest as f64, "", "<= 3");
}

/// Prints every circle of imports.
pub(crate) fn print_circles() -> Result<()> {
    for circle in circles(&sources()?) {
        println!("{} files", circle.files.len());
        for edge in circle.edges {
            println!("  {edge}");
        }
    }
    Ok(())
}

fn print_comments(files: &[SourceFile]) {
    let comments: Vec<String> = files.iter().flat_map(SourceFile::doc_comments).collect();
    let share = |part: usize| part as f64 * 100.0 / comments.len() as f64;
    print_row("riddle words per 1,000 words of doc comments", riddles(&comments), "", "< 3");
    let starts = ["what", "how", "whether", "where", "who", "whose", "which", "why"];
    let indirect = comments.iter().filter(|comment| {
        let first = comment.split_whitespace().next().unwrap_or_default().to_lowercase();
        starts.contains(&first.as_str())
    });
    print_row(
        "doc comments that begin with what, how, whether ...",
        share(indirect.count()),
        " %",
        "",
    );
    let short = comments.iter().filter(|comment| comment.split_whitespace().count() <= 3);
    print_row("doc comments of three words or fewer", share(short.count()), " %", "");
    let lines = || files.iter().flat_map(SourceFile::shipped_lines).map(str::trim_start);
    let plain = lines().filter(|line| line.starts_with("// ")).count();
    print_row(
        "plain comments, share of lines",
        plain as f64 * 100.0 / lines().count() as f64,
        " %",
        "3-7 %",
    );
}

fn print_documents() -> Result<()> {
    let root = workspace_root()?;
    let mut texts = Vec::new();
    for directory in [root.clone(), root.join("docs"), root.join("docs/design")] {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                texts.push((path.clone(), std::fs::read_to_string(path)?));
            }
        }
    }
    texts.sort();
    let all: Vec<String> = texts.iter().map(|(_, text)| text.clone()).collect();
    print_row("riddle words per 1,000 words of documents", riddles(&all), "", "< 3");
    for (path, text) in &texts {
        let rate = riddles(std::slice::from_ref(text));
        if rate >= 3.0 {
            let name = path.strip_prefix(&root)?.display().to_string();
            print_row(&format!("  {name}"), rate, "", "< 3");
        }
    }
    let openapi = std::fs::read_to_string(root.join("docs/openapi.json"))?;
    print_row(
        "riddle words per 1,000 words of the OpenAPI document",
        riddles(&[openapi]),
        "",
        "< 3",
    );
    Ok(())
}

fn print_binary() -> Result<()> {
    let binary = workspace_root()?.join("target/release/heeler");
    match text_size(&binary)? {
        Some(bytes) => {
            print_row("release binary, machine code", bytes as f64 / 1e6, " MB", "<= 20 MB");
        }
        None => println!("release binary: not built (cargo build --release)"),
    }
    Ok(())
}

/// Returns the size of an ELF file's machine code: its section `.text`.
fn text_size(binary: &Path) -> Result<Option<u64>> {
    if !binary.is_file() {
        return Ok(None);
    }
    let output = std::process::Command::new("size").arg("-A").arg(binary).output()?;
    let sections = String::from_utf8_lossy(&output.stdout).into_owned();
    let section = sections.lines().find_map(|line| line.strip_prefix(".text "));
    let figure = section.and_then(|line| line.split_whitespace().next());
    Ok(figure.and_then(|figure| figure.parse().ok()))
}

/// Returns the number of riddle words per 1,000 words. Words are runs of letters; code is included.
fn riddles(texts: &[String]) -> f64 {
    let (mut words, mut riddles) = (0_usize, 0_usize);
    for text in texts {
        for word in text.split(|c: char| !c.is_alphabetic() && c != '\'') {
            words += usize::from(!word.is_empty());
            riddles += usize::from(RIDDLE_WORDS.contains(&word.to_lowercase().as_str()));
        }
    }
    riddles as f64 * 1000.0 / words.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::riddles;

    #[test]
    fn riddle_words_are_counted_whatever_their_case() {
        assert!((riddles(&["What nobody sees is four".to_owned()]) - 400.0).abs() < 0.1);
    }
}
