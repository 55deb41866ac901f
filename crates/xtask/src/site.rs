//! The documentation as a web site, built by mdBook.
//!
//! The pages keep their places of the repository, so their links work in both. The contents come from
//! the list in README.md. Start at [`build`].

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::packages::tool_cache;
use crate::shell::run;

const MDBOOK_VERSION: &str = "0.5.4";

/// The front page, with the list of all pages.
const FRONT_PAGE: &str = "README.md";

/// Heading of that list.
const LIST_HEADING: &str = "## Documentation";

/// Folder of the design notes, which are pages below the architecture.
const DESIGN_FOLDER: &str = "docs/design";
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Files that pages show or link to, besides pages.
const OTHER_FILES: [&str; 7] = [
    "docs/images",
    "docs/schema",
    "docs/openapi.json",
    "packaging/compose-fleet.yaml",
    "packaging/compose.yaml",
    "packaging/heeler-host.service",
    "packaging/heeler.service",
];

/// Settings of mdBook. Nothing is loaded from other servers.
const BOOK: &str = r#"[book]
title = "Heeler"
description = "Runs fleets of coding agents and never loses their work."
language = "en"

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
no-section-label = true

[output.html.search]
limit-results = 20
use-boolean-and = true
"#;

/// A group of pages in the list, such as "Use".
struct PageGroup {
    name: String,
    /// Title and path of each page.
    pages: Vec<(String, String)>,
}

/// Builds the site in `target/site`.
pub(crate) fn build() -> Result<()> {
    let source = PathBuf::from("target/site-source");
    if source.exists() {
        std::fs::remove_dir_all(&source)?;
    }
    let groups = page_groups(&std::fs::read_to_string(FRONT_PAGE)?)?;
    let designs = design_pages(Path::new("."))?;
    let listed = groups.iter().flat_map(|group| &group.pages).map(|(_, path)| path);
    let front = [FRONT_PAGE.to_owned()];
    for path in front.iter().chain(listed).chain(designs.iter().map(|(_, path)| path)) {
        copy(Path::new(path), &source.join("src").join(path))?;
    }
    for path in OTHER_FILES {
        copy(Path::new(path), &source.join("src").join(path))?;
    }
    std::fs::write(source.join("src/SUMMARY.md"), summary(&groups, &designs))?;
    std::fs::write(source.join("book.toml"), BOOK)?;
    let program = install_mdbook()?;
    let program = program.to_str().context("the cache's path is not text")?;
    // mdBook takes the folder relative to the book.
    run(&[program, "build", "target/site-source", "--dest-dir", "../site"], &[])?;
    eprintln!("xtask: the site is target/site/index.html");
    Ok(())
}

/// Installs mdBook into the cache, unless it is there, and returns its path.
fn install_mdbook() -> Result<PathBuf> {
    let root = tool_cache()?.join(format!("mdbook-{MDBOOK_VERSION}"));
    let program = root.join("bin/mdbook");
    if !program.is_file() {
        let root = root.to_str().context("the cache's path is not text")?;
        let tool = ["cargo", "install", "--locked", "mdbook", "--version", MDBOOK_VERSION];
        let options = ["--no-default-features", "--features", "search", "--root", root];
        run(&[&tool[..], &options].concat(), &[])?;
    }
    Ok(program)
}

/// Copies a file or a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let problem = || format!("cannot copy {}", from.display());
    if from.is_dir() {
        for entry in std::fs::read_dir(from).with_context(problem)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    std::fs::create_dir_all(to.parent().context("a copy has a folder")?)?;
    std::fs::copy(from, to).with_context(problem)?;
    Ok(())
}

/// Returns the pages that the front page lists, by group: `- Use: [Install](docs/install.md) · …`.
fn page_groups(front_page: &str) -> Result<Vec<PageGroup>> {
    let (_, list) =
        front_page.split_once(LIST_HEADING).context("README.md has no list of pages")?;
    let mut groups = Vec::new();
    for line in list.lines().filter_map(|line| line.strip_prefix("- ")) {
        let (name, _) = line.split_once(['[', ':']).context("a group of pages has no name")?;
        let pages: Vec<(String, String)> =
            links(line).map(|link| (link.text, link.target)).collect();
        groups.push(PageGroup { name: name.trim().to_owned(), pages });
    }
    if groups.is_empty() {
        bail!("README.md lists no page");
    }
    Ok(groups)
}

/// Returns title and path of the design notes, in order.
fn design_pages(root: &Path) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(root.join(DESIGN_FOLDER))? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path())?;
        let title = text.lines().find_map(|line| line.strip_prefix("# "));
        let title = title.with_context(|| format!("{} has no title", entry.path().display()))?;
        let name = entry.file_name();
        pages.push((title.to_owned(), format!("{DESIGN_FOLDER}/{}", name.to_string_lossy())));
    }
    pages.sort_by(|one, other| one.1.cmp(&other.1));
    Ok(pages)
}

/// Returns mdBook's table of contents.
fn summary(groups: &[PageGroup], designs: &[(String, String)]) -> String {
    let mut text = format!("# Summary\n\n[Heeler]({FRONT_PAGE})\n");
    for group in groups {
        write!(text, "\n# {}\n\n", group.name).expect("a string takes all");
        for (title, path) in &group.pages {
            writeln!(text, "- [{title}]({path})").expect("a string takes all");
            let notes = designs.iter().filter(|_| path == ARCHITECTURE);
            for (title, path) in notes {
                writeln!(text, "  - [{title}]({path})").expect("a string takes all");
            }
        }
    }
    text
}

/// A link of a page.
struct PageLink {
    text: String,
    target: String,
}

/// Returns the links and images of a text, without those in code.
fn links(text: &str) -> impl Iterator<Item = PageLink> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.starts_with("    ") {
            continue;
        }
        // Every second part is between backticks.
        for prose in line.split('`').step_by(2) {
            let mut rest = prose;
            while let Some((before, after)) = rest.split_once("](") {
                let Some((target, after)) = after.split_once(')') else { break };
                let text = before.rsplit('[').next().unwrap_or_default();
                found.push(PageLink { text: text.to_owned(), target: target.to_owned() });
                rest = after;
            }
        }
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::shell::workspace_root;

    /// Returns the anchors of a page: its own, and those that GitHub and mdBook make of its headings.
    fn anchors(text: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut is_code = false;
        for line in text.lines() {
            if line.starts_with("```") {
                is_code = !is_code;
            }
            let own = line.split_once("<a id=\"").and_then(|(_, rest)| rest.split_once('"'));
            found.extend(own.filter(|_| !is_code).map(|(id, _)| id.to_owned()));
            let heading = line.trim_start_matches('#');
            if is_code || !line.starts_with('#') || !heading.starts_with(' ') {
                continue;
            }
            let is_kept =
                |letter: &char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | ' ');
            let slug: String = heading.trim().to_lowercase().chars().filter(is_kept).collect();
            found.insert(slug.replace(' ', "-"));
        }
        found
    }

    /// Returns the paths of all pages of the repository, relative to its root.
    fn pages(root: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for folder in ["", "docs", DESIGN_FOLDER] {
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let path = Path::new(folder).join(entry.unwrap().file_name());
                found.extend((path.extension().is_some_and(|it| it == "md")).then_some(path));
            }
        }
        assert!(found.len() > 50, "{found:?}");
        found
    }

    #[test]
    fn every_page_is_in_the_list_of_the_front_page() {
        let root = workspace_root().unwrap();
        let groups = page_groups(&std::fs::read_to_string(root.join(FRONT_PAGE)).unwrap()).unwrap();
        let listed: BTreeSet<&str> =
            groups.iter().flat_map(|group| &group.pages).map(|(_, path)| path.as_str()).collect();
        let is_listed = |path: &PathBuf| {
            let text = path.to_str().unwrap();
            text == FRONT_PAGE || text.starts_with(DESIGN_FOLDER) || listed.contains(text)
        };
        let missing: Vec<PathBuf> =
            pages(&root).into_iter().filter(|path| !is_listed(path)).collect();
        assert!(missing.is_empty(), "add them to the list in README.md: {missing:?}");
    }

    #[test]
    fn every_link_of_a_page_has_a_target() {
        let root = workspace_root().unwrap();
        let mut broken = Vec::new();
        for path in pages(&root) {
            let text = std::fs::read_to_string(root.join(&path)).unwrap();
            for PageLink { target, .. } in links(&text) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
                let to = match file {
                    "" => path.clone(),
                    file => path.parent().unwrap().join(file),
                };
                let to = root.join(to);
                let has_anchor = || {
                    let text = std::fs::read_to_string(&to).unwrap_or_default();
                    anchor.is_empty() || anchors(&text).contains(anchor)
                };
                if !to.exists() || !has_anchor() {
                    broken.push(format!("{}: {target}", path.display()));
                }
            }
        }
        assert!(broken.is_empty(), "{broken:#?}");
    }

    /// Returns the help of a command, from the page of the command line.
    fn command_help<'p>(cli: &'p str, command: &str) -> Option<&'p str> {
        let (_, help) = cli.split_once(&format!("\n## {command}\n"))?;
        Some(help.split("\n## ").next().unwrap_or_default())
    }

    /// A page that compares tools must not promise what the program does not have.
    #[test]
    fn every_command_of_the_comparison_exists() {
        let root = workspace_root().unwrap();
        let page = |name: &str| std::fs::read_to_string(root.join("docs").join(name)).unwrap();
        let (cli, chat) = (page("cli.md"), page("chat.md"));
        let (mut missing, mut found) = (Vec::new(), 0);
        for row in page("compared.md").lines().filter(|line| line.starts_with('|')) {
            let (_, ours) = row[1..].split_once('|').unwrap();
            for code in ours.split('`').skip(1).step_by(2) {
                let (name, options) = code.split_once(" --").unwrap_or((code, ""));
                let is_there = if name.starts_with("heeler ") {
                    command_help(&cli, name).is_some_and(|help| {
                        let mut options = options.split(" --").filter(|it| !it.is_empty());
                        options.all(|option| help.contains(&format!("--{option}")))
                    })
                } else if let Some(option) = code.strip_prefix("--") {
                    cli.contains(&format!("--{option}"))
                } else if code.starts_with('/') && code.len() > 1 && !code.contains("ID") {
                    chat.contains(code) || page("dashboard.md").contains(code)
                } else {
                    continue;
                };
                found += 1;
                if !is_there {
                    missing.push(code.to_owned());
                }
            }
        }
        assert!(found > 40, "the search finds {found}");
        assert!(missing.is_empty(), "{missing:#?}");
    }

    /// Start of the addresses of the front page, as programs print them.
    const FRONT_PAGE_URL: &str = "https://github.com/heeler/heeler#";

    /// Returns the files of `packaging` and the release workflow, with their texts.
    fn packaging_files(root: &Path) -> Vec<(PathBuf, String)> {
        let mut paths = vec![PathBuf::from(".github/workflows/release.yml")];
        for entry in std::fs::read_dir(root.join("packaging")).unwrap() {
            paths.push(Path::new("packaging").join(entry.unwrap().file_name()));
        }
        assert!(paths.len() > 4, "{paths:?}");
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(root.join(&path)).unwrap();
            (path, text)
        };
        paths.into_iter().map(read).collect()
    }

    #[test]
    fn every_place_that_packaging_names_exists() {
        let root = workspace_root().unwrap();
        let front_page = anchors(&std::fs::read_to_string(root.join(FRONT_PAGE)).unwrap());
        let is_end = |letter: char| !(letter.is_alphanumeric() || matches!(letter, '-' | '_'));
        let is_path_end = |letter: char| is_end(letter) && !matches!(letter, '/' | '.');
        let (mut broken, mut found) = (Vec::new(), 0);
        for (path, text) in packaging_files(&root) {
            for (at, start) in text.match_indices(FRONT_PAGE_URL) {
                let anchor = text[at + start.len()..].split(is_end).next().unwrap_or_default();
                found += 1;
                if !front_page.contains(anchor) {
                    broken.push(format!("{}: {start}{anchor}", path.display()));
                }
            }
            for (at, _) in text.match_indices("docs/") {
                let page = text[at..].split(is_path_end).next().unwrap_or_default();
                let page = page.trim_end_matches('.');
                found += 1;
                if !root.join(page).exists() {
                    broken.push(format!("{}: {page}", path.display()));
                }
            }
        }
        assert!(found > 2, "the search finds nothing");
        assert!(broken.is_empty(), "{broken:#?}");
        assert!(front_page.contains("install"), "other sites link to it");
    }

    #[test]
    fn the_contents_follow_the_list_of_the_front_page() {
        let readme = "# Heeler\n\n## Documentation\n- Begin: [Tutorial](docs/tutorial.md) · [More](docs/more.md)\n\
            - Coming from [herdctl](docs/herdctl.md)\n- Project: [Architecture](ARCHITECTURE.md)\n";
        let designs = [("Store".to_owned(), "docs/design/001-store.md".to_owned())];
        let summary = summary(&page_groups(readme).unwrap(), &designs);
        assert_eq!(
            summary,
            "# Summary\n\n[Heeler](README.md)\n\n# Begin\n\n- [Tutorial](docs/tutorial.md)\n\
             - [More](docs/more.md)\n\n# Coming from\n\n- [herdctl](docs/herdctl.md)\n\n# Project\n\n\
             - [Architecture](ARCHITECTURE.md)\n  - [Store](docs/design/001-store.md)\n"
        );
    }

    #[test]
    fn links_in_code_are_no_links() {
        let text = "a [b](c.md#d) and `[e](f)`, ![g](h.png)\n```\n[i](j)\n```\n    [k](l)\n";
        let found: Vec<String> = links(text).map(|link| link.target).collect();
        assert_eq!(found, ["c.md#d", "h.png"]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let found = anchors(
            "# `heeler start`: the daemon\n## Who may talk, and who\n<a id=\"own\"></a>Text\n```\n# no\n```\n",
        );
        let expected = ["heeler-start-the-daemon", "own", "who-may-talk-and-who"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
