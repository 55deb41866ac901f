//! `heeler doctor --footprint`: everything of ours on this machine, and how to be rid of it.

use std::io::{self, IsTerminal as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::LockFile;
use heeler_workspace::SnapshotStore;
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, OutputTable};

/// Where a unit of systemd's may be: of the user, and of the machine.
const UNITS: [(&str, &str); 2] =
    [("home", ".config/systemd/user/heeler.service"), ("", "/etc/systemd/system/heeler.service")];

/// One thing of ours.
struct FootprintItem {
    what: &'static str,
    path: Utf8PathBuf,
    bytes: u64,
    /// What else to know of it.
    remark: Option<String>,
    /// Whether `--remove` takes it: a part of another item goes with that.
    is_removed: bool,
}

/// Lists everything of ours; with `remove`, takes it away after asking.
pub(super) fn run(place: &CommandContext, remove: bool, yes: bool, is_json: bool) -> CommandResult {
    let items = items(place)?;
    if !remove {
        return match is_json {
            true => Ok(output::print_json(&to_json(&items))?),
            false => print(&items),
        };
    }
    refuse_in_use(place)?;
    if !is_json {
        print(&items)?;
    }
    if !yes {
        confirm()?;
    }
    let mut removed = Vec::new();
    // The state directory first: without it nothing of ours starts again.
    for item in items.into_iter().filter(|item| item.is_removed) {
        remove_path(&item.path)?;
        removed.push(item);
    }
    match is_json {
        true => Ok(output::print_json(&json!({ "removed": to_json(&removed)["items"] }))?),
        false => {
            let count = output::pluralize(removed.len() as u64, "place");
            Ok(output::print_line(format!(
                "removed {count}; the config and what agents made stay"
            ))?)
        }
    }
}

fn items(place: &CommandContext) -> CommandResult<Vec<FootprintItem>> {
    let mut items = Vec::new();
    let mut add = |what, path: &Utf8Path, remark: Option<&str>, is_removed| {
        if path.symlink_metadata().is_ok() {
            let (path, bytes, remark) = (path.to_owned(), size(path), remark.map(str::to_owned));
            items.push(FootprintItem { what, path, bytes, remark, is_removed });
        }
    };
    add("state", &place.state_dir, None, true);
    let (workspaces, worktrees) =
        (place.state_dir.join("workspaces"), place.state_dir.join("worktrees"));
    add("repositories", &workspaces, Some("part of the state"), false);
    for worktree in worktrees.read_dir_utf8().into_iter().flatten().flatten() {
        add("worktree", worktree.path(), Some("part of the state; a fork's files"), false);
    }
    // One that was made elsewhere is known to its repository.
    for key in SnapshotStore::keys(&workspaces).unwrap_or_default() {
        let snapshots = SnapshotStore::open_key(&workspaces, &key);
        for at in snapshots.and_then(|it| it.worktrees()).unwrap_or_default() {
            if !at.starts_with(&place.state_dir) {
                add("worktree", &at, Some("elsewhere: not removed"), false);
            }
        }
    }
    if let Some(home) = &place.home {
        let remark = "of all your fleets: session locks, what scripted agents remember";
        add("home", home, Some(remark), true);
    }
    if let Some(file) = daemon::read_daemon_file(place)?
        && let Some(folder) = file.socket.parent()
    {
        add("sockets", folder, Some("of all your fleets"), true);
    }
    for (base, unit) in UNITS {
        let home = place.env.get("HOME").filter(|_| base == "home");
        let path = home.map_or(Utf8PathBuf::from(unit), |home| Utf8Path::new(home).join(unit));
        let remark = "disable it first: systemctl disable --now heeler";
        add("unit", &path, Some(remark), true);
    }
    Ok(items)
}

fn print(items: &[FootprintItem]) -> CommandResult {
    if items.is_empty() {
        return Ok(output::print_line(
            "nothing of Heeler's is on this machine, as seen from here",
        )?);
    }
    let mut lines = OutputTable::new(&["WHAT", "SIZE", "PATH", "REMARK"], &["PATH", "REMARK"]);
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

/// Refuses while something of ours lives: a daemon, or a run that has a session.
fn refuse_in_use(place: &CommandContext) -> CommandResult {
    let in_use = |who: String, hint: &str| {
        let message = format!("Heeler is in use: {who}");
        Err(CommandFailure::message(FailureCode::Refused, message).hint(hint.to_owned()))
    };
    if let Some(holder) = daemon::find_writer(place)? {
        return in_use(holder, "heeler stop");
    }
    let Some(home) = &place.home else { return Ok(()) };
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
        let message = "removing all jobs, sessions, snapshots and forks' files cannot be undone";
        return Err(CommandFailure::message(FailureCode::Refused, message)
            .hint("heeler backup keeps them; --yes removes them"));
    }
    let question = "Remove all this for good? Jobs, sessions, snapshots and the files of forks go.";
    match output::confirm(question, false)? {
        true => Ok(()),
        false => Err(CommandFailure::message(FailureCode::Refused, "nothing was changed")),
    }
}

fn remove_path(path: &Utf8Path) -> CommandResult {
    let gone = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match gone {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let message = format!("cannot remove {path}: {error}");
            Err(CommandFailure::message(FailureCode::Failed, message))
        }
        _ => Ok(()),
    }
}

/// Sums up what is below a path; no link is followed.
fn size(path: &Utf8Path) -> u64 {
    let mut bytes = 0;
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
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
