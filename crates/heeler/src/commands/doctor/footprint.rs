//! `heeler doctor --footprint`: lists and removes everything that Heeler stores on this machine.
//! Start at [`run`].

use std::io::{self, IsTerminal as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::LockFile;
use heeler_workspace::SnapshotStore;
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, OutputTable};

/// Possible systemd units: the user's and the system's.
const UNITS: [(&str, &str); 2] =
    [("home", ".config/systemd/user/heeler.service"), ("", "/etc/systemd/system/heeler.service")];

/// A file or folder of Heeler's.
struct FootprintItem {
    what: &'static str,
    path: Utf8PathBuf,
    bytes: u64,
    /// Additional remark for the user.
    remark: Option<String>,
    /// True if `--remove` deletes it directly; a part of another item is deleted with that item.
    is_removed: bool,
}

/// Lists all items; with `remove`, deletes them after confirmation.
pub(super) fn run(
    context: &CommandContext,
    remove: bool,
    yes: bool,
    is_json: bool,
) -> CommandResult {
    let items = items(context)?;
    if !remove {
        return match is_json {
            true => Ok(output::print_json(&to_json(&items))?),
            false => print(&items),
        };
    }
    // Checked before the question, so that no one confirms in vain.
    refuse_in_use(context)?;
    if !is_json {
        print(&items)?;
    }
    if !yes {
        confirm()?;
    }
    let mut removed = Vec::new();
    // The state directory comes first: without it, no Heeler process can start again.
    for item in items.into_iter().filter(|item| item.is_removed) {
        remove_path(&item.path)?;
        removed.push(item);
    }
    match is_json {
        true => Ok(output::print_json(&json!({ "removed": to_json(&removed)["items"] }))?),
        false => {
            let count = output::pluralize(removed.len() as u64, "place");
            Ok(output::print_line(format!(
                "removed {count}; the config and the agents' work are kept"
            ))?)
        }
    }
}

fn items(context: &CommandContext) -> CommandResult<Vec<FootprintItem>> {
    let mut items = Vec::new();
    let mut add = |what, path: &Utf8Path, remark: Option<&str>, is_removed| {
        // A dangling link is listed too, because it would be left behind.
        if path.symlink_metadata().is_ok() {
            let (path, bytes, remark) = (path.to_owned(), size(path), remark.map(str::to_owned));
            items.push(FootprintItem { what, path, bytes, remark, is_removed });
        }
    };
    add("state", &context.state_dir, None, true);
    let (workspaces, worktrees) =
        (context.state_dir.join("workspaces"), context.state_dir.join("worktrees"));
    add("repositories", &workspaces, Some("part of the state"), false);
    // A folder that does not exist has no entries; an unreadable one cannot be listed.
    for worktree in worktrees.read_dir_utf8().into_iter().flatten().flatten() {
        add("worktree", worktree.path(), Some("part of the state; files of a fork"), false);
    }
    // Worktrees outside the state directory are listed by their repositories.
    for key in SnapshotStore::keys(&workspaces).unwrap_or_default() {
        let snapshots = SnapshotStore::open_key(&workspaces, &key);
        for at in snapshots.and_then(|it| it.worktrees()).unwrap_or_default() {
            // The others are listed above.
            if !at.starts_with(&context.state_dir) {
                add("worktree", &at, Some("outside the state; not removed"), false);
            }
        }
    }
    if let Some(home) = &context.home {
        let remark = "shared by all your fleets: session locks, memory of scripted agents";
        add("home", home, Some(remark), true);
    }
    // The folder of sockets depends on the daemon's environment, so its file is asked.
    if let Some(file) = daemon::read_daemon_file(context)?
        && let Some(folder) = file.socket.parent()
    {
        add("sockets", folder, Some("shared by all your fleets"), true);
    }
    for (base, unit) in UNITS {
        let home = context.env.get("HOME");
        let path = match (base, home) {
            ("home", Some(home)) => Utf8Path::new(home).join(unit),
            // Without a home, the path would be relative to the working directory.
            ("home", None) => continue,
            _ => Utf8PathBuf::from(unit),
        };
        let remark = "disable it first: systemctl disable --now heeler";
        add("unit", &path, Some(remark), true);
    }
    Ok(items)
}

fn print(items: &[FootprintItem]) -> CommandResult {
    if items.is_empty() {
        return Ok(output::print_line("no files of Heeler found on this machine")?);
    }
    let mut lines = OutputTable::new(&["KIND", "SIZE", "PATH", "REMARK"], &["PATH", "REMARK"]);
    for item in items {
        lines.push(vec![
            item.what.into(),
            output::format_size(item.bytes).into(),
            item.path.as_str().into(),
            item.remark.as_deref().unwrap_or_default().into(),
        ]);
    }
    Ok(lines.print()?)
}

fn to_json(items: &[FootprintItem]) -> Value {
    let item = |item: &FootprintItem| {
        json!({
            "what": item.what, "path": item.path, "bytes": item.bytes, "remark": item.remark,
        })
    };
    json!({ "items": items.iter().map(item).collect::<Vec<_>>(), "total": items.len() })
}

/// Refuses removal while a daemon or a run with a session is alive.
fn refuse_in_use(context: &CommandContext) -> CommandResult {
    let in_use = |who: String, hint: &str| {
        let message = format!("Heeler is in use: {who}");
        Err(CommandFailure::message(FailureCode::Refused, message).hint(hint.to_owned()))
    };
    if let Some(holder) = daemon::find_writer(context)? {
        return in_use(holder, "heeler stop");
    }
    // Runs outlive their daemon, so a free state lock does not mean that no agent works.
    let Some(home) = &context.home else { return Ok(()) };
    for lock in home.join("locks").read_dir_utf8().into_iter().flatten().flatten() {
        if let Ok(Some(held)) = LockFile::probe(lock.path()) {
            let holder = held.holder.map_or("a run".to_owned(), |holder| holder.to_string());
            return in_use(holder, "wait for it, or heeler jobs cancel");
        }
    }
    Ok(())
}

fn confirm() -> CommandResult {
    if !std::io::stdin().is_terminal() {
        let message = "removing all jobs, sessions, snapshots and files of forks cannot be undone";
        return Err(CommandFailure::message(FailureCode::Refused, message)
            .hint("heeler backup keeps them; --yes removes them"));
    }
    let question = "Delete all jobs, sessions, snapshots and files of forks permanently?";
    match output::confirm(question, false)? {
        true => Ok(()),
        false => Err(CommandFailure::message(FailureCode::Refused, "nothing was changed")),
    }
}

fn remove_path(path: &Utf8Path) -> CommandResult {
    let gone = match path.symlink_metadata() {
        // A link is removed itself, never the folder to which it leads.
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match gone {
        // An item may lie inside another one that was removed before it.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let message = format!("cannot remove {path}: {error}");
            Err(CommandFailure::message(FailureCode::Failed, message))
        }
        _ => Ok(()),
    }
}

/// Returns the total size below a path, without following links.
fn size(path: &Utf8Path) -> u64 {
    let mut bytes = 0;
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        // Files of a live fleet come and go while they are counted.
        let Ok(found) = path.symlink_metadata() else { continue };
        match found.is_dir() {
            true => {
                let entries = path.read_dir_utf8().into_iter().flatten().flatten();
                left.extend(entries.map(|entry| entry.into_path()));
            }
            false => bytes += found.len(),
        }
    }
    bytes
}
