//! Names that people chose.

/// Longest name of a person, in characters.
const NAME_CHARS_MAX: usize = 64;

/// Returns a name on one line and without characters that could imitate others; `id` if nothing is
/// left.
pub fn person_name(name: &str, id: &str) -> String {
    let is_shown =
        |c: &char| !c.is_control() && !heeler_config::is_hidden_char(*c) && !"[]".contains(*c);
    let name: String = name.chars().filter(is_shown).take(NAME_CHARS_MAX).collect();
    match name.trim() {
        "" => id.to_owned(),
        name => name.to_owned(),
    }
}
