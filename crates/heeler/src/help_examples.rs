//! Examples in help pages, for the commands that have none in their own text. A test requires one on
//! every page. Start at [`add_examples`].

/// Examples by command.
const EXAMPLES: [(&str, &[&str]); 34] = [
    ("heeler", &["heeler init", "heeler trigger greeter", "heeler status"]),
    ("heeler start", &["heeler start", "heeler start -d && heeler open"]),
    ("heeler stop", &["heeler stop", "heeler stop --timeout 10m", "heeler stop --keep-jobs"]),
    ("heeler restart", &["heeler restart"]),
    ("heeler reload", &["heeler reload", "heeler reload --accept"]),
    ("heeler workflow list", &["heeler workflow list", "heeler workflow list --json"]),
    ("heeler agent list", &["heeler agent list", "heeler agent list --json"]),
    ("heeler open", &["heeler open", "heeler open --print"]),
    ("heeler token list", &["heeler token list"]),
    ("heeler password remove", &["heeler password remove ann"]),
    ("heeler password list", &["heeler password list"]),
    (
        "heeler jobs",
        &["heeler jobs", "heeler jobs -a coder -S failed --since 24h", "heeler jobs -n 100 --json"],
    ),
    ("heeler jobs show", &["heeler jobs show job-2026-11-15-k3v9q1", "heeler jobs show k3v9q1"]),
    ("heeler jobs logs", &["heeler jobs logs k3v9q1", "heeler jobs logs k3v9q1 -f"]),
    ("heeler logs", &["heeler logs coder -n 50", "heeler logs -f", "heeler logs --daemon"]),
    (
        "heeler session",
        &["heeler session list", "heeler session show 918bb4cf", "heeler session fork 918bb4cf"],
    ),
    (
        "heeler search",
        &["heeler search 'connection refused'", "heeler search -e 'TODO|FIXME' -a coder"],
    ),
    ("heeler init", &["heeler init", "heeler init ~/fleet"]),
    (
        "heeler init agent",
        &["heeler init agent coder", "heeler init agent coder --permission-mode acceptEdits"],
    ),
    ("heeler trust", &["heeler trust", "heeler trust --yes ~/clone", "heeler trust --list"]),
    ("heeler config", &["heeler config validate", "heeler config edit coder"]),
    ("heeler config validate", &["heeler config validate", "heeler config validate -c ~/fleet"]),
    ("heeler config show", &["heeler config show", "heeler config show --json | jq .agents"]),
    ("heeler config schema", &["heeler config schema > heeler.schema.json"]),
    ("heeler config edit", &["heeler config edit", "heeler config edit coder"]),
    (
        "heeler import",
        &["heeler import lastlight ~/lastlight/state", "heeler import herdctl ~/project"],
    ),
    ("heeler doctor", &["heeler doctor", "heeler doctor --fix", "heeler doctor agents"]),
    ("heeler image", &["heeler image build"]),
    ("heeler backup", &["heeler backup fleet.tar.gz"]),
    ("heeler restore", &["heeler restore fleet.tar.gz"]),
    ("heeler migrate", &["heeler migrate store --to sqlite"]),
    ("heeler demo", &["heeler demo", "heeler demo --serve"]),
    ("heeler man", &["heeler man ~/.local/share/man/man1"]),
    ("heeler version", &["heeler version", "heeler version --json"]),
];

/// Adds the examples in front of the text after each command's options.
pub(crate) fn add_examples(command: clap::Command) -> clap::Command {
    let name = command.get_name().to_owned();
    add_below(command, &name)
}

fn add_below(mut command: clap::Command, path: &str) -> clap::Command {
    if let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == path) {
        let word = if examples.len() == 1 { "Example" } else { "Examples" };
        let lines: String = examples.iter().map(|line| format!("  {line}\n")).collect();
        let rest = command.get_after_help().map(|text| format!("\n{text}")).unwrap_or_default();
        command = command.after_help(format!("{word}:\n{lines}{rest}").trim_end().to_owned());
    }
    let path = path.to_owned();
    command.mut_subcommands(move |sub| {
        let path = format!("{path} {}", sub.get_name());
        add_below(sub, &path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &clap::Command, path: &str, known: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert_eq!(help.matches("Example").count(), 1, "`{path}` has no example, or two: {help}");
        known.push(path.to_owned());
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            if sub.get_name() != "help" {
                check(sub, &format!("{path} {}", sub.get_name()), known);
            }
        }
    }

    #[test]
    fn every_help_page_has_one_block_of_examples() {
        let mut known = Vec::new();
        check(&crate::command(), "heeler", &mut known);
        for (path, _) in EXAMPLES {
            assert!(known.iter().any(|it| it == path), "there is no command `{path}`");
        }
    }

    /// Examples are copied and pasted, so their commands and options must exist.
    #[test]
    fn every_example_can_be_parsed() {
        for line in EXAMPLES.iter().flat_map(|(_, lines)| *lines) {
            for part in line.split(" && ").map(|it| it.split([';', '|', '>']).next().unwrap_or(it))
            {
                let words = part.trim().replace('\'', "");
                let words: Vec<&str> = match words.starts_with("heeler search") {
                    // The pattern of this example contains the sign of a pipe.
                    true => continue,
                    false => words.split_whitespace().collect(),
                };
                let parsed = crate::command().try_get_matches_from(&words);
                assert!(
                    parsed.is_ok(),
                    "{line}: {}",
                    parsed.err().map_or_else(String::new, |it| it.to_string())
                );
            }
        }
    }
}
