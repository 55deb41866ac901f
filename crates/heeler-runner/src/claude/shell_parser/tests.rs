//! How shell lines are cut into commands, judged by tables and by real shells.

#![expect(clippy::disallowed_methods, reason = "real shells judge the reading of lines")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use heeler_testkit::ProofSettings;

use super::simple_commands;

#[track_caller]
fn check(line: &str, commands: &[&str]) {
    let commands: Vec<String> = commands.iter().map(|command| (*command).to_owned()).collect();
    assert_eq!(simple_commands(line), Some(commands), "{line:?}");
}

#[test]
fn a_line_is_cut_where_the_shell_cuts_it() {
    check("git status", &["git status"]);
    check("git add . && git commit -m x; git push", &["git add .", "git commit -m x", "git push"]);
    check("a | b || c & d\ne", &["a", "b", "c", "d", "e"]);
    check("a |& b", &["a", "b"]);
    check("", &[]);
}

#[test]
fn what_is_quoted_cuts_nothing() {
    check("git log --format='%h; %s'", &["git log --format='%h; %s'"]);
    check(r#"git commit -m "a && b""#, &[r#"git commit -m "a && b""#]);
    check(r"git log a\;b", &[r"git log a\;b"]);
    check("git add \\\n  x", &["git add   x"]);
    check("git log a#b", &["git log a#b"]);
    check("git log $HEAD ${HEAD} $", &["git log $HEAD ${HEAD} $"]);
}

#[test]
fn a_message_in_a_quoted_here_document_is_text() {
    let message = "git commit -m \"$(cat <<'EOF'\nIt's `done` (really); rm -rf /\n\nEOF\n)\"";
    check(message, &["git commit -m \"$\""]);
    assert_eq!(simple_commands("git x \"$(cat <<'EOF'\n$(leak)\nEOF"), None);
    assert_eq!(simple_commands("git x \"$(cat <<EOF\n$(leak)\nEOF\n)\""), None);
    assert_eq!(simple_commands("git x \"$(cat <<'EOF' ; leak\nEOF\n)\""), None);
    assert_eq!(simple_commands("git x \"$(cat <<'EOF'\nEOF\nleak)\""), None);
    // More might follow only in the reading of another shell.
    assert_eq!(simple_commands("git x \"$(cat <<'EOF'\nx\nEOF\n)\" && git y"), None);
    assert_eq!(simple_commands("git x \"\"$(cat <<'EOF'\nx\nEOF\n)\""), None);
}

/// Inside of `$(…)`, bash ends a here-document also there.
#[test]
fn a_line_that_only_begins_like_the_end_of_a_document_may_be_its_end() {
    for end in ["EOF )\"", "EOF)", "EOFx", "\tEOF )", "  EOF"] {
        let line = format!("git x \"$(cat <<'EOF'\nhello\n{end}; leak; \"\nEOF\n)\"");
        assert_eq!(simple_commands(&line), None, "{line:?}");
    }
}

#[test]
fn only_what_parts_words_for_a_shell_is_a_blank() {
    check("\t git  x\t\n", &["git  x"]);
    for odd in ['\u{a0}', '\u{2003}', '\u{3000}', '\u{85}', '\u{2028}', '\u{c}', '\u{b}'] {
        assert_eq!(simple_commands(&format!("git{odd}x")), None, "{odd:?}");
        assert_eq!(simple_commands(&format!("git x;{odd}git x")), None, "{odd:?}");
    }
}

/// The shell's own commands that take names of variables or calculate run what is in a subscript,
/// wherever it comes from.
#[test]
fn commands_that_calculate_are_understood_with_plain_words_only() {
    check("test -f 'my file' && [ a_b -eq 1 ]", &["test -f 'my file'", "[ a_b -eq 1 ]"]);
    check("printf '%s\\n' done", &["printf '%s\\n' done"]);
    let lines = [
        "test -v 'a[$(leak)]'",
        "[ -v 'a[$(leak)]' ]",
        "[[ 'a[$(leak)]' -eq 1 ]]",
        "printf -v 'a[$(leak)]' x",
        "printf -\"v\"PATH /tmp",
        "\\test \"-\"v a",
        "git 'a[$(leak)]'; test -v \"$_\"",
        "git 'a[$(leak)]'; [[ _ -eq 1 ]]",
        "git 'a[$(leak)]'; let 1+_",
        "test *",
        "test -{v,x} a",
        "unset 'a[`leak`]'",
        "declare 'a[$(leak)]=1'",
    ];
    for line in lines {
        assert_eq!(simple_commands(line), None, "{line:?}");
    }
}

#[test]
fn only_redirections_that_write_no_file_are_understood() {
    check("npm test 2>&1", &["npm test"]);
    check("npm test >/dev/null 2>&1 | tail", &["npm test", "tail"]);
    check("npm test &> /dev/null; b", &["npm test", "b"]);
    check("npm test 2>>/dev/null", &["npm test"]);
    for line in ["git log > x", "git log >> ~/.bashrc", "git log >|x", "git log &>x", "git log >&x"]
    {
        assert_eq!(simple_commands(line), None, "{line:?}");
    }
    for line in ["git log >/dev/null/x", "git log 2>$X", "git log >'/dev/null'x", "git log >"] {
        assert_eq!(simple_commands(line), None, "{line:?}");
    }
}

#[test]
fn what_may_run_more_than_it_shows_is_not_understood() {
    let lines = [
        "git log $(leak)",
        "git log `leak`",
        "git log \"$(leak)\"",
        "git log \"`leak`\"",
        "git log <(leak)",
        "(leak)",
        "git() { leak; }",
        "git log $'a\\' ; git x ' ; leak '",
        "git log # it's\nleak # '",
        "# git\nleak",
        "git log ${x:-$(leak)}",
        "git log ${ leak; }",
        "git log $[1+1]",
        "git log <x",
        "git <<EOF\nx\nEOF",
        "git 'open",
        "git \"open",
        "git \\",
        "git\u{0}log",
        "git \r leak",
        "git *(e:'leak':)",
    ];
    for line in lines {
        assert_eq!(simple_commands(line), None, "{line:?}");
    }
}

const BEGINNINGS: [&str; 3] = ["git ", "git -m \"$(cat <<'EOF'\nx", "git 'a[$(leak)]'; test "];

const PIECES: [&str; 72] = [
    "git",
    "git ",
    "leak",
    "leak ",
    " ",
    "\n",
    ";",
    "&",
    "|",
    "'",
    "\"",
    "\\",
    "$",
    "`",
    "(",
    ")",
    "{",
    "}",
    "#",
    "<",
    ">",
    "!",
    "=",
    "a",
    "$(",
    "${",
    "$'",
    "\\\n",
    "<<",
    "EOF",
    "\nEOF\n",
    "$(cat <<'EOF'\n",
    "\nEOF\n)",
    ">/dev/null",
    "2>&1",
    "&>",
    "[",
    "]",
    "*",
    "~",
    ":",
    "git git",
    "{a,b}",
    "if ",
    "then ",
    "fi",
    "do ",
    "case ",
    "eval ",
    "exec ",
    "$a",
    "$1",
    "-",
    "\\'",
    "; git ",
    "; leak ",
    "\nEOF )\"; leak; git \"$(cat <<'EOF'\n",
    "\nEOF )\"",
    "\nEOF\n)\"",
    "\"$(cat <<'EOF'\n",
    "\nEOF)",
    "\u{a0}",
    "\u{2003}",
    "test ",
    "; test -v ",
    "[[ ",
    " -eq 1 ]]",
    "printf -v ",
    "'a[$(leak)]'",
    "; [[ _",
    "\"$_\"",
    "_",
];

/// Every line of commands that are all `git`, or of the shell, is given to real shells in which `git` does
/// nothing and `leak` tells: it must never tell.
#[test]
fn proof_no_shell_runs_what_was_not_seen() {
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    stub(&dir.path().join("git"), "#!/bin/sh\nexit 0\n");
    stub(&dir.path().join("leak"), &format!("#!/bin/sh\n: > '{}'\n", told.display()));
    let shells = ["/bin/sh", "/bin/bash", "/bin/zsh"];
    let shells: Vec<&str> = shells.into_iter().filter(|shell| Path::new(shell).exists()).collect();
    let proof = ProofSettings::new(25_000);
    let mut run = 0;
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let count = random.usize(1..12);
        let pieces: String = (0..count).map(|_| PIECES[random.usize(..PIECES.len())]).collect();
        let begin = BEGINNINGS[random.usize(..BEGINNINGS.len())];
        let line = format!("{begin}{pieces}");
        let names = ["git", "test", "[[", "printf"];
        let listed = |command: &String| names.contains(&command.split(' ').next().unwrap());
        let seen = simple_commands(&line).is_some_and(|commands| commands.iter().all(listed));
        if !seen || !line.contains("leak") {
            continue;
        }
        run += 1;
        for shell in &shells {
            let mut shell = Command::new(shell);
            shell.arg("-c").arg(&line).env_clear().env("PATH", dir.path()).current_dir(dir.path());
            shell
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            let seed = proof.seed;
            assert!(!told.exists(), "{shell:?} told, round {round}, HEELER_PROOF_SEED={seed}");
        }
    }
    assert!(run > proof.rounds / 1000, "only {run} lines were run");
}

fn stub(path: &Path, script: &str) {
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
