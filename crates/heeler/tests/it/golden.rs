//! Generated documents are golden files: a change of the command line shows in review.

use std::fmt::Write as _;

/// Compares with a file of the repository, or writes it when `cargo xtask docs` asks.
#[track_caller]
fn golden(path: &str, text: &str) {
    let file = crate::tidy::root().join(path);
    if std::env::var_os("HEELER_UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, text).unwrap();
        return;
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(there == text, "{path} is out of date: run `cargo xtask docs`");
}

#[test]
fn golden_command_line_reference() {
    let mut command = heeler::command();
    command.build();
    let mut text = String::from(
        "# Command line\n\nGenerated from the program by `cargo xtask docs`; `heeler help COMMAND` says the same.\n\n\
         Every read takes `--json`: stdout is then JSON and nothing else. Exit codes: 0 ok, 1 the job or check failed, \
         2 usage or config, 3 no daemon where one is needed, 4 not found, 5 refused (busy, locked, not allowed), \
         70 our bug, 130 interrupted.\n",
    );
    section(&command, "heeler", &mut text);
    golden("docs/cli.md", &text);
}

fn section(command: &clap::Command, name: &str, text: &mut String) {
    let help = command.clone().term_width(100).bin_name(name).render_long_help();
    let lines: Vec<String> = help.to_string().lines().map(|l| l.trim_end().to_owned()).collect();
    write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()).unwrap();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        if sub.get_name() != "help" {
            section(sub, &format!("{name} {}", sub.get_name()), text);
        }
    }
}
