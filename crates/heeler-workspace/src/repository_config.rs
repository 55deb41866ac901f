//! Text of git configs: that of Heeler's repositories, and the few settings that are taken from a
//! user's. It only builds and parses text. Start at [`repository_config`].

use crate::object_id::ObjectFormat;

/// Settings of a user's repository that make `git status` and `git commit` behave the same in
/// Heeler's worktrees. None of them names a program.
pub(crate) const COPIED_SETTINGS: [&str; 9] = [
    "user.name",
    "user.email",
    "core.autocrlf",
    "core.eol",
    "core.safecrlf",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.symlinks",
    "core.quotepath",
];

/// Attributes that prevent any conversion of files to or from a work tree. They take precedence
/// over `.gitattributes`.
pub(crate) const ATTRIBUTES: &str =
    "* -text !eol !crlf -ident !filter !working-tree-encoding !diff !merge\n";

/// Config that makes git accept the missing objects of a partial clone. The named remote does not
/// exist, and no remote is contacted.
pub(crate) const PARTIAL_CLONE_CONFIG: &str =
    "[extensions]\n\tpartialClone = origin\n[remote \"origin\"]\n\tpromisor = true\n";

/// Returns Heeler's git config: only the required settings, and no automatic garbage collection.
pub(crate) fn repository_config(format: ObjectFormat, is_precious: bool) -> String {
    let bare = if is_precious { "\tbare = true\n\tlogAllRefUpdates = true\n" } else { "" };
    // Objects of a snapshot must be on disk before its name is.
    let sync = if is_precious { "" } else { "\tfsync = objects\n\tfsyncMethod = batch\n" };
    // A `git gc` in a worktree does not know Heeler's snapshots, so it must keep all objects.
    let precious = if is_precious { "\tpreciousObjects = true\n" } else { "" };
    let object_format = match format {
        ObjectFormat::Sha1 => String::new(),
        ObjectFormat::Sha256 => format!("\tobjectFormat = {}\n", format.name()),
    };
    format!(
        "[core]\n\trepositoryformatversion = 1\n\tfilemode = true\n\tsharedRepository = 0600\n{bare}{sync}\
         [extensions]\n{precious}{object_format}\
         [gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
    )
}

/// Returns the hash algorithm of a repository from the text of its config.
pub(crate) fn parse_object_format(config: &str) -> ObjectFormat {
    let mut section = String::new();
    for line in config.lines().map(|line| line.trim().to_ascii_lowercase()) {
        if line.starts_with('[') {
            section = line;
        } else if let Some((name, value)) = line.split_once('=')
            && section.starts_with("[extensions]")
            && name.trim() == "objectformat"
        {
            let is_sha256 = value.trim().trim_matches('"') == "sha256";
            return if is_sha256 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 };
        }
    }
    ObjectFormat::Sha1
}
