//! The programs of a hook, found beside the config and not in the agent's working directory.
//!
//! An agent that may write files could otherwise replace the program that runs after its job. Start
//! at [`resolve_programs`].

use camino::Utf8Path;
use heeler_config::{hook_programs, quote_shell_word};

/// Variable that names the directory of the file that defines the hook.
pub(super) const CONFIG_FOLDER_VARIABLE: &str = "HEELER_CONFIG_DIR";

/// Returns the command with absolute paths of the programs that it names by relative paths. Fails
/// with the reason and the remedy if one exists only in the working directory.
pub(super) fn resolve_programs(
    command: &str,
    folder: &Utf8Path,
    working_directory: &Utf8Path,
) -> Result<String, String> {
    let mut resolved = command.to_owned();
    // From the last to the first, so that earlier positions stay valid.
    for program in hook_programs(command).into_iter().rev() {
        let path = Utf8Path::new(&program.path);
        if path.is_absolute() {
            continue;
        }
        let (beside, planted) = (folder.join(path), working_directory.join(path));
        match program.range {
            Some(range) if beside.is_file() => {
                resolved.replace_range(range, &quote_shell_word(beside.as_str()));
            }
            // A word inside another text cannot be replaced, so it would be the agent's file.
            None if planted.is_file() && is_same_file(&beside, &planted) => {}
            _ if planted.is_file() => {
                let why = match beside.is_file() {
                    true => "is inside a quoted text, so it would not be found beside the config",
                    false => "is not beside the config",
                };
                return Err(format!(
                    "{path} {why}, in {folder}, but in the agent's working directory, where the \
                     agent may write it: move it to {folder}, or name it by its absolute path"
                ));
            }
            _ => {}
        }
    }
    Ok(resolved)
}

fn is_same_file(one: &Utf8Path, other: &Utf8Path) -> bool {
    let real = |path: &Utf8Path| path.canonicalize_utf8().ok();
    real(one).is_some_and(|one| real(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_program_is_the_one_beside_the_config() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        let (folder, work) = (root.join("it's"), root.join("work"));
        for path in ["it's", "work"] {
            std::fs::create_dir(root.join(path)).unwrap();
        }
        for file in [folder.join("a.sh"), work.join("a.sh"), work.join("b.sh")] {
            std::fs::write(file, "").unwrap();
        }
        let resolve = |command: &str| resolve_programs(command, &folder, &work);
        let quoted = quote_shell_word(folder.join("./a.sh").as_str());
        assert_eq!(resolve("./a.sh x && sh ./a.sh").unwrap(), format!("{quoted} x && sh {quoted}"));
        for unchanged in ["jq . > a.sh", "/bin/true", "./missing.sh", "make"] {
            assert_eq!(resolve(unchanged).unwrap(), unchanged);
        }
        for refused in ["./b.sh", "true; sh b.sh", "timeout 9 sh -e b.sh", "sh -c './b.sh'"] {
            let why = resolve(refused).unwrap_err();
            assert!(why.contains("b.sh is not beside the config"), "{why}");
        }
        let why = resolve("bash -c './a.sh'").unwrap_err();
        assert!(why.contains("./a.sh is inside a quoted text"), "{why}");
        let own = resolve_programs("bash -c './a.sh'", &folder, &folder).unwrap();
        assert_eq!(own, "bash -c './a.sh'", "the agent works beside the config");
    }
}
