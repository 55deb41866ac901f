//! Generated documents are golden files: a change of the command line shows in review.
//!
//! `cargo xtask docs` writes them again.

use std::fmt::Write as _;

#[test]
fn the_command_line_reference_is_up_to_date() {
    let mut command = heeler::command();
    command.build();
    let mut text = String::from(
        "# Command line\n\nGenerated from the program by `cargo xtask docs`; `heeler help COMMAND` says the same.\n\n\
         Every read takes `--json`: stdout is then JSON and nothing else. Exit codes: 0 ok, 1 the job or check failed, \
         2 usage or config, 3 no daemon where one is needed, 4 not found, 5 refused (busy, locked, not allowed), \
         70 internal error, 130 interrupted.\n",
    );
    section(&command, "heeler", &mut text);
    expect_test::expect_file!["../../../../docs/cli.md"].assert_eq(&text);
}

fn section(command: &clap::Command, name: &str, text: &mut String) {
    // Options that every command takes are told once, at the top.
    let is_root = !name.contains(' ');
    let own = command.clone().mut_args(|arg| {
        let told = arg.is_global_set() && !is_root;
        let hidden = arg.is_hide_set() || told;
        arg.hide(hidden)
    });
    let help = own.term_width(100).bin_name(name).render_long_help();
    let lines: Vec<String> = help.to_string().lines().map(|l| l.trim_end().to_owned()).collect();
    write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()).unwrap();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        if sub.get_name() != "help" {
            section(sub, &format!("{name} {}", sub.get_name()), text);
        }
    }
}
