//! Programs that execute a program or script which their arguments name. Start at [`find_rule`].

/// How a program finds what it executes.
#[derive(Debug)]
pub(super) struct ProgramRule {
    names: &'static [&'static str],
    /// Options whose value is the next word.
    valued: &'static [&'static str],
    /// Options before a text that a shell executes.
    texts: &'static [&'static str],
    /// Options before code of the interpreter itself, or before the name of a module.
    codes: &'static [&'static str],
    /// Words before the script that name no file.
    pub(super) subcommands: &'static [&'static str],
    /// Number of own arguments before the executed program.
    pub(super) arguments: usize,
    pub(super) then: NextWord,
}

/// Meaning of the first word after the options and own arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextWord {
    Program,
    Script,
}

const WRAPPER: ProgramRule = ProgramRule {
    names: &[],
    valued: &[],
    texts: &[],
    codes: &[],
    subcommands: &[],
    arguments: 0,
    then: NextWord::Program,
};

const INTERPRETER: ProgramRule = ProgramRule { then: NextWord::Script, ..WRAPPER };

static RULES: &[ProgramRule] = &[
    ProgramRule {
        names: &["ash", "bash", "dash", "fish", "ksh", "sh", "zsh"],
        valued: &["-o", "-O", "+o", "+O", "--rcfile", "--init-file"],
        texts: &["-c"],
        ..INTERPRETER
    },
    ProgramRule { names: &[".", "source", "lua", "awk", "gawk"], valued: &["-f"], ..INTERPRETER },
    ProgramRule {
        names: &["python", "python2", "python3", "pypy3"],
        valued: &["-W", "-X"],
        codes: &["-c", "-m"],
        ..INTERPRETER
    },
    ProgramRule {
        names: &["node", "nodejs", "tsx", "ts-node"],
        valued: &["-r", "--require", "--import", "--loader", "-C", "--conditions"],
        codes: &["-e", "-p", "--eval", "--print"],
        ..INTERPRETER
    },
    ProgramRule {
        names: &["bun", "deno"],
        valued: &["-r", "--preload", "-c", "--config"],
        codes: &["-e", "--eval"],
        subcommands: &["run"],
        ..INTERPRETER
    },
    ProgramRule { names: &["perl"], valued: &["-I"], codes: &["-e", "-E"], ..INTERPRETER },
    ProgramRule { names: &["ruby"], valued: &["-I", "-r"], codes: &["-e"], ..INTERPRETER },
    ProgramRule { names: &["php"], valued: &["-c", "-d", "-f"], codes: &["-r"], ..INTERPRETER },
    ProgramRule {
        names: &["builtin", "busybox", "command", "nohup", "setsid", "unshare", "catchsegv"],
        ..WRAPPER
    },
    ProgramRule {
        names: &["timeout"],
        valued: &["-s", "--signal", "-k", "--kill-after"],
        arguments: 1,
        ..WRAPPER
    },
    ProgramRule { names: &["nice"], valued: &["-n", "--adjustment"], ..WRAPPER },
    ProgramRule { names: &["ionice"], valued: &["-c", "--class", "-n", "--classdata"], ..WRAPPER },
    ProgramRule {
        names: &["env"],
        valued: &["-u", "--unset", "-C", "--chdir"],
        texts: &["-S", "--split-string"],
        ..WRAPPER
    },
    ProgramRule {
        names: &["doas", "sudo"],
        valued: &[
            "-C", "-D", "-R", "-T", "-U", "-g", "-h", "-p", "-r", "-t", "-u", "--chdir",
            "--chroot", "--group", "--host", "--prompt", "--user",
        ],
        ..WRAPPER
    },
    ProgramRule {
        names: &["runuser", "su"],
        valued: &["-u", "-g", "-G", "-s", "--user", "--shell"],
        texts: &["-c", "--command"],
        ..WRAPPER
    },
    ProgramRule {
        names: &["stdbuf"],
        valued: &["-i", "-o", "-e", "--input", "--output", "--error"],
        ..WRAPPER
    },
    ProgramRule { names: &["time"], valued: &["-o", "-f", "--output", "--format"], ..WRAPPER },
    ProgramRule { names: &["exec"], valued: &["-a"], ..WRAPPER },
    ProgramRule {
        names: &["xargs"],
        valued: &[
            "-E",
            "-I",
            "-L",
            "-P",
            "-a",
            "-d",
            "-n",
            "-s",
            "--arg-file",
            "--delimiter",
            "--max-args",
            "--max-procs",
        ],
        ..WRAPPER
    },
    ProgramRule {
        names: &["flock"],
        valued: &["-E", "-w", "--conflict-exit-code", "--timeout"],
        texts: &["-c", "--command"],
        arguments: 1,
        ..WRAPPER
    },
    ProgramRule { names: &["chroot", "chrt", "taskset"], arguments: 1, ..WRAPPER },
    ProgramRule { names: &["eval"], ..WRAPPER },
    ProgramRule { names: &["strace"], valued: &["-e", "-o", "-p", "-s", "-u"], ..WRAPPER },
    ProgramRule { names: &["watch"], valued: &["-n", "--interval"], ..WRAPPER },
    ProgramRule {
        names: &["systemd-run"],
        valued: &["-E", "-M", "-p", "-u", "--property", "--setenv", "--unit"],
        ..WRAPPER
    },
];

/// Returns the rule of a program, by its name without folder.
pub(super) fn find_rule(name: &str) -> Option<&'static ProgramRule> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

impl ProgramRule {
    /// Returns true if the next word is the value of this option.
    pub(super) fn has_value(&self, option: &str) -> bool {
        let last = letters(option).and_then(|letters| letters.chars().next_back());
        self.valued.contains(&option) || last.is_some_and(|last| has_letter(self.valued, last))
    }

    /// Returns true if the next word is a text that a shell executes.
    pub(super) fn is_text_option(&self, option: &str) -> bool {
        is_among(self.texts, option)
    }

    /// Returns true if the next word is no file.
    pub(super) fn is_code_option(&self, option: &str) -> bool {
        is_among(self.codes, option)
    }
}

/// Returns true for an option of the list, alone or together with others as in `-lc`.
fn is_among(list: &[&str], option: &str) -> bool {
    let letters = letters(option).unwrap_or_default();
    list.contains(&option) || letters.chars().any(|letter| has_letter(list, letter))
}

fn has_letter(list: &[&str], letter: char) -> bool {
    list.iter().any(|it| letters(it).is_some_and(|it| it.chars().eq([letter])))
}

/// Returns the letters of short options: `euo` of `-euo`.
fn letters(option: &str) -> Option<&str> {
    let letters = option.strip_prefix(['-', '+'])?;
    (!letters.is_empty() && letters.bytes().all(|b| b.is_ascii_alphabetic())).then_some(letters)
}
