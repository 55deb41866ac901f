//! Nothing that an agent wrote into a repository runs, or changes what is stored.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use camino::Utf8Path;
use heeler_workspace::{DiffTarget, SnapshotStore, WorkTree};

use crate::scene::{Scene, git, items, listing, name, now};

const HOOKS: [&str; 8] = [
    "pre-commit",
    "post-checkout",
    "post-index-change",
    "reference-transaction",
    "post-commit",
    "fsmonitor-watchman",
    "pre-auto-gc",
    "post-rewrite",
];

/// Plants what would leave `ran` behind if git ran any of it.
fn plant(git_dir: &Utf8Path, ran: &Utf8Path) {
    fs::create_dir_all(git_dir.join("hooks")).unwrap();
    let trap = git_dir.join("hooks/trap");
    fs::write(&trap, format!("#!/bin/sh\necho \"$0 $*\" >> {ran}\ncat\n")).unwrap();
    fs::set_permissions(&trap, fs::Permissions::from_mode(0o755)).unwrap();
    for hook in HOOKS {
        fs::copy(&trap, git_dir.join("hooks").join(hook)).unwrap();
    }
    let more = format!(
        "[core]\n\tfsmonitor = {trap}\n\thooksPath = {git_dir}/hooks\n\tpager = {trap}\n\teditor = {trap}\n\
         \tsshCommand = {trap}\n\tattributesFile = {git_dir}/attributes\n\talternateRefsCommand = {trap}\n\
         \tautocrlf = true\n\
         [filter \"evil\"]\n\tclean = {trap}\n\tsmudge = {trap}\n\tprocess = {trap}\n\trequired = true\n\
         [diff \"evil\"]\n\tcommand = {trap}\n\ttextconv = {trap}\n[diff]\n\texternal = {trap}\n\
         [merge \"evil\"]\n\tdriver = {trap}\n[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = {trap}\n\
         [uploadpack]\n\tpackObjectsHook = {trap}\n[include]\n\tpath = {git_dir}/more\n\
         [alias]\n\tls-files = !{trap}\n\tfast-import = !{trap}\n"
    );
    let path = git_dir.join("config");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config + &more).unwrap();
    fs::write(git_dir.join("more"), format!("[core]\n\tfsmonitor = {trap}\n\tworktree = /\n"))
        .unwrap();
    fs::create_dir_all(git_dir.join("info")).unwrap();
    fs::write(git_dir.join("info/attributes"), "* filter=evil diff=evil merge=evil ident\n")
        .unwrap();
    fs::write(git_dir.join("attributes"), "* filter=evil text\n").unwrap();
}

#[test]
fn nothing_planted_in_the_users_repository_runs_or_changes_a_byte() {
    let scene = Scene::new();
    let ran = scene.root.join("ran");
    scene.write(".gitattributes", "* filter=evil diff=evil text eol=lf ident\n");
    scene.write("crlf", "$Id$\r\nx\r\n");
    let wanted = items(&scene.repo);
    plant(&scene.tree().git_dir, &ran);
    let before = listing(&scene.repo.join(".git"));
    let first = scene.take("1");
    // A planted repository is opened for the first time, and again.
    assert_eq!(items(&scene.fork(&first).top), wanted);
    scene.write("crlf", "$Id$\r\ny\r\n");
    let diff = scene.open().diff(&first.commit, DiffTarget::Now(&scene.tree()), now()).unwrap();
    assert!(String::from_utf8_lossy(&diff.patch).contains("+y\r\n"));
    scene.open().export(&[(name("1"), first.commit)], &mut Vec::new()).unwrap();
    scene.open().prune(now()).unwrap();
    assert!(!ran.exists(), "{}", fs::read_to_string(&ran).unwrap());
    assert_eq!(listing(&scene.repo.join(".git")), before);
}

#[test]
fn nothing_planted_in_our_own_repository_through_a_fork_runs_either() {
    let scene = Scene::new();
    let ran = scene.root.join("ran");
    let fork = scene.fork(&scene.take("1"));
    plant(&fork.common_dir, &ran);
    fs::write(fork.top.join("crlf"), "$Id$\r\nx\r\n").unwrap();
    fs::write(fork.top.join(".gitattributes"), "* filter=evil ident\n").unwrap();
    let snapshots = SnapshotStore::open(&scene.dir, &fork).unwrap();
    let snapshot = snapshots.take(&fork, &name("2"), "", now()).unwrap();
    let again = snapshots.add_worktree(&snapshot.commit, &scene.root.join("again")).unwrap();
    assert_eq!(items(&again.top), items(&fork.top));
    snapshots.diff(&snapshot.commit, DiffTarget::Now(&fork), now()).unwrap();
    snapshots.prune(now()).unwrap();
    assert!(!ran.exists(), "{}", fs::read_to_string(&ran).unwrap());
}

#[test]
fn the_settings_that_a_fork_takes_over_name_no_program() {
    let scene = Scene::new();
    let ran = scene.root.join("ran");
    scene.git(&["config", "user.name", "Ann \"the\" \\ Agent"]);
    scene.git(&["config", "user.email", "ann@example.org"]);
    plant(&scene.tree().git_dir, &ran);
    let fork = scene.fork(&scene.take("1"));
    let config = fs::read_to_string(fork.common_dir.join("config")).unwrap();
    assert!(!config.contains("trap"), "{config}");
    assert_eq!(git(&fork.top, &["config", "user.name"]), "Ann \"the\" \\ Agent");
    assert_eq!(git(&fork.top, &["config", "user.email"]), "ann@example.org");
    assert_eq!(git(&fork.top, &["config", "core.autocrlf"]), "true");
    git(&fork.top, &["commit", "-q", "--allow-empty", "-m", "as Ann"]);
}

#[test]
fn pipes_links_and_folders_in_place_of_files_do_not_hang_or_lead_away() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let scene = Scene::new();
    let outside = scene.root.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "1").unwrap();
    scene.write("dir/secret", "2");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "second"]);
    fs::remove_dir_all(scene.repo.join("dir")).unwrap();
    std::os::unix::fs::symlink(&outside, scene.repo.join("dir")).unwrap();
    fs::remove_file(scene.repo.join("README")).unwrap();
    let pipe = scene.repo.join("README");
    mknodat(CWD, pipe.as_std_path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let info = scene.tree().common_dir.join("info");
    fs::remove_dir_all(&info).unwrap();
    fs::create_dir(&info).unwrap();
    let snapshot = scene.take("1");
    let restored = scene.restored(&snapshot);
    assert_eq!(restored.keys().collect::<Vec<_>>(), [&b"dir".to_vec()]);
    mknodat(CWD, info.join("exclude").as_std_path(), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let tree = scene.tree();
    assert!(scene.open().take(&tree, &name("2"), "", now()).is_err(), "and it does not wait");
}

#[test]
fn a_repository_of_ours_that_leads_elsewhere_is_not_used() {
    let scene = Scene::new();
    let snapshot = scene.take("1");
    let key = scene.open().key().to_owned();
    let root = scene.dir.join(&key);
    for name in
        ["", "repo.git", "repo.git/objects", "repo.git/objects/pack", "refs", "packs", "kept"]
    {
        let path = if name.is_empty() { root.clone() } else { root.join(name) };
        let outside = scene.root.join("outside");
        fs::rename(&path, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &path).unwrap();
        let before = listing(&outside);
        let error = SnapshotStore::open_key(&scene.dir, &key).unwrap_err();
        assert!(error.to_string().contains("is a symbolic link"), "{name}: {error}");
        SnapshotStore::open(&scene.dir, &scene.tree()).unwrap_err();
        assert_eq!(listing(&outside), before, "{name}");
        fs::remove_file(&path).unwrap();
        fs::rename(&outside, &path).unwrap();
    }
    scene.restored(&snapshot);
}

#[test]
fn the_state_directory_is_never_recorded_into_itself() {
    let scene = Scene::new();
    let dir = scene.repo.join(".heeler [x]/workspaces");
    let open = || SnapshotStore::open(&dir, &scene.tree()).unwrap();
    for turn in 0..3 {
        let snapshot = open().take(&scene.tree(), &name(&format!("{turn}")), "", now()).unwrap();
        let at = scene.root.join(format!("fork{turn}"));
        let fork = open().add_worktree(&snapshot.commit, &at).unwrap();
        assert_eq!(crate::scene::names(&items(&fork.top)), ["README"]);
    }
    scene.write(".heeler [x]/heeler.db", "1");
    scene.write("beside", "2");
    let state = scene.repo.join(".heeler [x]");
    let snapshots = open().excluding(&[state]);
    let snapshot = snapshots.take(&scene.tree(), &name("last"), "", now()).unwrap();
    let fork = open().add_worktree(&snapshot.commit, &scene.root.join("last")).unwrap();
    assert_eq!(crate::scene::names(&items(&fork.top)), ["README", "beside"]);
    assert_eq!(WorkTree::find(&dir).unwrap().unwrap(), scene.tree());
}
