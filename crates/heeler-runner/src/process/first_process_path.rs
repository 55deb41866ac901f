//! The program that is the first process of containers. Start at [`find_first_process`].

use camino::{Utf8Path, Utf8PathBuf};

/// Name of the static program that is the first process, beside the program of the runner.
const STATIC_PROGRAM: &str = "heeler-inside-static";

/// Returns the program that is the first process of containers, which is beside this one. It uses no
/// library, because an image may have none.
pub fn find_first_process(program: &Utf8Path) -> Result<Utf8PathBuf, String> {
    let path = program.with_file_name(STATIC_PROGRAM);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "{path} is missing, which is the first process of containers: install Heeler \
             completely (in a source tree: `cargo xtask inside`)"
        )),
    }
}
