//! Every state that a power loss may leave, created in a directory.
//!
//! Synced data are present. Of the changes of a file since its last sync, any prefix may be
//! present: the last write may be torn, may have its length but NULs for data, or may be
//! present while an earlier one is NULs. Of the names changed in a directory since its last
//! sync, any prefix may be present. Start at `SimDisk::crashes`.

use std::collections::{BTreeMap, HashSet};

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::{DiskOperation, FileId, SimDisk};

/// Writes up to this length are torn at every byte, longer ones at a few.
const TORN_EVERYWHERE_MAX: usize = 12;

/// The state after a power loss.
#[derive(Debug)]
pub struct CrashState {
    /// A directory with the remaining content of the recorded one. It is removed after the visit.
    pub root: Utf8PathBuf,
    /// The marks that were made before the power loss.
    pub marks: Vec<u64>,
    /// Number of operations before the power loss.
    pub after: usize,
}

/// The names of all directories (`None`) and files, and the files' content.
type CrashFileTree = BTreeMap<Utf8PathBuf, Option<Vec<u8>>>;

impl SimDisk {
    /// Visits every legal state after a power loss at any recorded moment; returns their number.
    ///
    /// A state that can occur at several moments is visited with the marks of the last one.
    pub fn crashes(&self, visit: &mut dyn FnMut(&CrashState)) -> usize {
        let ops = self.ops();
        let mut seen = HashSet::new();
        for after in (0..=ops.len()).rev() {
            let happened = &ops[..after];
            let mark = |op: &DiskOperation| {
                if let DiskOperation::Mark(mark) = op { Some(*mark) } else { None }
            };
            let marks: Vec<u64> = happened.iter().filter_map(mark).collect();
            for tree in self.trees(happened) {
                if seen.contains(&tree) {
                    continue;
                }
                let temp = tempfile::tempdir().unwrap();
                let root = Utf8PathBuf::try_from(temp.path().to_owned()).unwrap();
                write_tree(&root, &tree);
                visit(&CrashState { root, marks: marks.clone(), after });
                seen.insert(tree);
            }
        }
        seen.len()
    }

    fn trees(&self, happened: &[DiskOperation]) -> Vec<CrashFileTree> {
        let mut trees = Vec::new();
        for names in self.name_states(happened) {
            let mut partial = vec![CrashFileTree::new()];
            for (path, file) in names {
                let contents = match file {
                    None => vec![None],
                    Some(file) => self.contents(happened, file).into_iter().map(Some).collect(),
                };
                let extended = partial.iter().flat_map(|tree| {
                    contents.iter().map(|content| {
                        let mut tree = tree.clone();
                        tree.insert(path.clone(), content.clone());
                        tree
                    })
                });
                partial = extended.collect();
            }
            trees.append(&mut partial);
        }
        trees
    }

    /// Returns every legal set of names: for each directory, any prefix of its unsynced changes.
    fn name_states(
        &self,
        happened: &[DiskOperation],
    ) -> Vec<BTreeMap<Utf8PathBuf, Option<FileId>>> {
        let mut folders: Vec<Utf8PathBuf> = happened.iter().filter_map(folder_of).collect();
        folders.sort();
        folders.dedup();
        let files = self.initial.files.iter().enumerate();
        let mut start: BTreeMap<_, _> =
            files.map(|(file, (path, _))| (path.clone(), Some(file))).collect();
        start.extend(self.initial.folders.iter().map(|path| (path.clone(), None)));
        let mut states = vec![start];
        // A parent sorts before its entries, so a directory exists before its names do.
        for folder in folders {
            let is_sync = |op: &DiskOperation| matches!(op, DiskOperation::SyncFolder { path } if *path == folder);
            let synced = happened.iter().rposition(is_sync).unwrap_or(0);
            let changes = happened.iter().enumerate();
            let changes: Vec<_> =
                changes.filter(|(_, op)| folder_of(op).as_ref() == Some(&folder)).collect();
            let durable = changes.iter().filter(|(at, _)| *at < synced).count();
            let extended = states.iter().flat_map(|state| {
                (durable..=changes.len()).map(|done| {
                    let mut state = state.clone();
                    changes[..done].iter().for_each(|(_, op)| rename(&mut state, op));
                    state
                })
            });
            states = extended.collect();
        }
        // A missing directory has no names.
        for state in &mut states {
            let names: HashSet<_> = state.keys().cloned().collect();
            state.retain(|path, _| path.ancestors().skip(1).all(|a| a == "" || names.contains(a)));
        }
        states
    }

    /// Returns every legal content of a file.
    fn contents(&self, happened: &[DiskOperation], file: FileId) -> Vec<Vec<u8>> {
        let of_file = |op: &&DiskOperation| {
            matches!(op, DiskOperation::Write { file: f, .. } | DiskOperation::Truncate { file: f, .. }
                | DiskOperation::Sync { file: f } if *f == file)
        };
        let ops: Vec<&DiskOperation> = happened.iter().filter(of_file).collect();
        let synced =
            ops.iter().rposition(|op| matches!(op, DiskOperation::Sync { .. })).unwrap_or(0);
        let mut content = self.initial.files.get(file).map_or_else(Vec::new, |(_, c)| c.clone());
        ops[..synced].iter().for_each(|op| apply_operation(&mut content, op));
        let mut contents = vec![content.clone()];
        let unsynced = &ops[synced..];
        for (at, op) in unsynced.iter().enumerate() {
            if let DiskOperation::Write { bytes, .. } = op {
                contents.extend(torn_contents(&content, bytes));
                contents.extend(with_hole(&content, bytes.len(), &unsynced[at..]));
            }
            apply_operation(&mut content, op);
            contents.push(content.clone());
        }
        contents.sort();
        contents.dedup();
        contents
    }
}

/// Returns the directory in which the operation changes names.
fn folder_of(op: &DiskOperation) -> Option<Utf8PathBuf> {
    match op {
        DiskOperation::Create { path, .. }
        | DiskOperation::CreateFolder { path }
        | DiskOperation::Remove { path }
        | DiskOperation::Rename { to: path, .. } => path.parent().map(Utf8Path::to_owned),
        _ => None,
    }
}

fn rename(names: &mut BTreeMap<Utf8PathBuf, Option<FileId>>, op: &DiskOperation) {
    match op {
        DiskOperation::Create { file, path } => drop(names.insert(path.clone(), Some(*file))),
        DiskOperation::CreateFolder { path } => drop(names.insert(path.clone(), None)),
        DiskOperation::Remove { path } => drop(names.remove(path)),
        DiskOperation::Rename { from, to } => {
            let file = names.remove(from).expect("what is renamed was there");
            names.insert(to.clone(), file);
        }
        _ => {}
    }
}

fn apply_operation(content: &mut Vec<u8>, op: &DiskOperation) {
    match op {
        DiskOperation::Write { bytes, .. } => content.extend_from_slice(bytes),
        DiskOperation::Truncate { len, .. } => content.truncate(usize::try_from(*len).unwrap()),
        _ => {}
    }
}

/// Returns the file with a part of the write, and with NULs in place of the rest.
fn torn_contents(content: &[u8], bytes: &[u8]) -> Vec<Vec<u8>> {
    let len = bytes.len();
    let cuts: Vec<usize> = match len {
        0..=TORN_EVERYWHERE_MAX => (0..len).collect(),
        _ => vec![0, 1, len / 2, len - 1],
    };
    let cut_off = cuts.iter().map(|&cut| [content, &bytes[..cut]].concat());
    let nul_filled =
        cuts.iter().map(|&cut| [content, &bytes[..cut], &vec![0; len - cut][..]].concat());
    cut_off.chain(nul_filled).collect()
}

/// Returns the file with NULs in place of the write and with all later operations applied.
fn with_hole(content: &[u8], len: usize, ops: &[&DiskOperation]) -> Vec<Vec<u8>> {
    let mut holed = [content, &vec![0; len][..]].concat();
    let mut states = Vec::new();
    for op in &ops[1..] {
        apply_operation(&mut holed, op);
        states.push(holed.clone());
    }
    states
}

fn write_tree(root: &Utf8Path, tree: &CrashFileTree) {
    for (path, content) in tree {
        match content {
            None => std::fs::create_dir(root.join(path)).unwrap(),
            Some(bytes) => std::fs::write(root.join(path), bytes).unwrap(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use heeler_transcript::DiskBackend as _;

    use super::*;

    fn disk() -> (tempfile::TempDir, Utf8PathBuf, SimDisk) {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::try_from(temp.path().to_owned()).unwrap();
        std::fs::write(root.join("old"), "0").unwrap();
        let disk = SimDisk::new(&root);
        (temp, root, disk)
    }

    /// Returns every state as the files' names and contents, with NULs shown as `_`.
    fn states(disk: &SimDisk) -> BTreeSet<String> {
        let mut states = BTreeSet::new();
        disk.crashes(&mut |crash| {
            let mut names: Vec<_> = crash
                .root
                .read_dir_utf8()
                .unwrap()
                .map(|entry| entry.unwrap().into_path())
                .collect();
            names.sort();
            let show = |path: &Utf8PathBuf| {
                let text = std::fs::read_to_string(path).unwrap_or_default().replace('\0', "_");
                format!("{}={text}", path.file_name().unwrap())
            };
            states.insert(names.iter().map(show).collect::<Vec<_>>().join(" "));
        });
        states
    }

    fn set(states: &[&str]) -> BTreeSet<String> {
        states.iter().map(|&state| state.to_owned()).collect()
    }

    #[test]
    fn unsynced_writes_may_be_lost_torn_or_filled_with_nuls() {
        let (_temp, root, disk) = disk();
        let file = std::fs::OpenOptions::new().append(true).open(root.join("old")).unwrap();
        disk.write(&file, b"ab").unwrap();
        disk.write(&file, b"c").unwrap();
        let expected = [
            "old=0", "old=0a", "old=0ab", "old=0abc", "old=0__", "old=0a_", "old=0ab_", "old=0__c",
        ];
        assert_eq!(states(&disk), set(&expected));
    }

    #[test]
    fn synced_writes_stay() {
        let (_temp, root, disk) = disk();
        let file = std::fs::OpenOptions::new().append(true).open(root.join("old")).unwrap();
        disk.write(&file, b"a").unwrap();
        disk.sync(&file).unwrap();
        disk.mark(7);
        disk.crashes(&mut |crash| {
            if crash.marks == [7] {
                assert_eq!(std::fs::read(crash.root.join("old")).unwrap(), b"0a");
            }
        });
        disk.truncate(&file, 0).unwrap();
        assert_eq!(states(&disk), set(&["old=", "old=0", "old=0_", "old=0a"]));
    }

    #[test]
    fn unsynced_names_may_be_lost_from_the_last_on() {
        let (_temp, root, disk) = disk();
        drop(disk.create(&root.join("new")).unwrap());
        disk.rename(&root.join("new"), &root.join("old")).unwrap();
        assert_eq!(states(&disk), set(&["old=0", "new= old=0", "old="]));
        disk.sync_folder(&root).unwrap();
        disk.mark(1);
        disk.crashes(&mut |crash| {
            if crash.marks == [1] {
                assert_eq!(std::fs::read(crash.root.join("old")).unwrap(), b"");
            }
        });
    }

    #[test]
    fn what_is_in_a_lost_folder_is_lost() {
        let (_temp, root, disk) = disk();
        disk.create_folder(&root.join("folder")).unwrap();
        let file = disk.create(&root.join("folder/file")).unwrap();
        disk.sync(&file).unwrap();
        disk.sync_folder(&root.join("folder")).unwrap();
        assert_eq!(states(&disk), set(&["old=0", "folder= old=0"]));
    }
}
