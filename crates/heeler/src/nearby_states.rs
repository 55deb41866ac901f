//! State directories of fleets in a folder and in the folders above it. Agents of these fleets may
//! write the folder. Start at [`nearby_states`].

use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use crate::context::CONFIG_NAMES;

/// State directory of a fleet.
#[derive(Debug)]
pub(crate) struct NearbyState {
    pub(crate) path: Utf8PathBuf,
    /// Folder of the fleet.
    pub(crate) folder: Utf8PathBuf,
}

impl NearbyState {
    /// Returns the config file of the fleet, unless it was removed or replaced by one of another name.
    pub(crate) fn config(&self) -> Option<Utf8PathBuf> {
        let names = CONFIG_NAMES.into_iter().filter(|(_, state)| self.path.ends_with(state));
        names.map(|(name, _)| self.folder.join(name)).find(|file| file.is_file())
    }
}

/// Lists the state directories in a folder and in the folders above it, nearest first.
pub(crate) fn nearby_states(folder: &Utf8Path) -> impl Iterator<Item = NearbyState> {
    folder.ancestors().flat_map(states_in)
}

/// Lists the state directories in a folder. Those of other users do not count: anyone can put one
/// into a folder that is writable by all.
pub(crate) fn states_in(folder: &Utf8Path) -> Vec<NearbyState> {
    let owners = [rustix::process::geteuid().as_raw(), 0];
    let mut names: Vec<&str> = CONFIG_NAMES.map(|(_, state)| state).into();
    names.dedup();
    let paths = names.into_iter().map(|name| folder.join(name));
    let is_ours = |path: &Utf8PathBuf| {
        path.join("heeler.db").is_file()
            && path.metadata().is_ok_and(|found| owners.contains(&found.uid()))
    };
    let state = |path: Utf8PathBuf| NearbyState { path, folder: folder.to_owned() };
    paths.filter(is_ours).map(state).collect()
}
