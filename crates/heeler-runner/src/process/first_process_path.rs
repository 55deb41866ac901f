//! The program that is the first process of sandboxes and containers. Start at
//! [`find_first_process`].

use camino::{Utf8Path, Utf8PathBuf};

/// Name of the static program that is the first process, beside the program of the runner.
const STATIC_PROGRAM: &str = "heeler-inside-static";

/// Returns the place of the static program: beside the program of the runner.
pub(super) fn static_program(program: &Utf8Path) -> Utf8PathBuf {
    program.with_file_name(STATIC_PROGRAM)
}

/// Returns the program that is the first process of containers, which is beside this one. It uses no
/// library, because an image may have none.
pub fn find_first_process(program: &Utf8Path) -> Result<Utf8PathBuf, String> {
    let path = static_program(program);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "{path} is missing, which is the first process of containers: install Heeler \
             completely (in a source tree: `cargo xtask inside`)"
        )),
    }
}

/// First process of a sandbox.
pub(super) struct SandboxFirstProcess {
    pub(super) program: Utf8PathBuf,
    pub(super) args: &'static [&'static str],
}

impl SandboxFirstProcess {
    /// Returns the static program, which is small and starts fast, or else the program of the runner.
    pub(super) fn find(program: &Utf8Path) -> SandboxFirstProcess {
        match find_first_process(program) {
            Ok(program) => SandboxFirstProcess { program, args: &[] },
            Err(_) => SandboxFirstProcess { program: program.to_owned(), args: &["inside"] },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_static_program_is_the_first_process_where_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let program = Utf8Path::from_path(temp.path()).unwrap().join("heeler");
        let first = SandboxFirstProcess::find(&program);
        assert_eq!((&first.program, first.args), (&program, &["inside"][..]));
        std::fs::write(static_program(&program), "").unwrap();
        let first = SandboxFirstProcess::find(&program);
        assert_eq!((first.program, first.args), (static_program(&program), &[][..]));
    }
}
