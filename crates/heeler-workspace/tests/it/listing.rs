//! The cached list of files: git is asked again whenever its answer may differ.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};

use crate::scene::{Scene, items, names};

/// Waits until everything below a folder is old enough: a snapshot keeps no list of names that are
/// new, and the time of the last change of a file's state cannot be set.
fn settle(folder: &Utf8Path) {
    let newest = newest_change(folder);
    // Two seconds, by the rule of the cache, and one for the precision of the clock.
    let until = newest + Duration::from_secs(3);
    while let Ok(left) = until.duration_since(SystemTime::now()) {
        std::thread::sleep(left);
    }
}

fn newest_change(folder: &Utf8Path) -> SystemTime {
    use std::os::unix::fs::MetadataExt as _;
    let stat = fs::symlink_metadata(folder).unwrap();
    let seconds = u64::try_from(stat.ctime()).unwrap();
    let own = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds + 1);
    let below = || folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    match stat.is_dir() {
        true => below().map(|path| newest_change(&path)).fold(own, SystemTime::max),
        false => own,
    }
}

/// A repository with files of all kinds that git lists or leaves out, and its cached list.
fn settled_scene() -> Scene {
    let scene = Scene::new();
    scene.write(".gitignore", "*.log\n/build/\n");
    scene.write("src/.gitignore", "*.tmp\n!kept.tmp\n");
    for file in ["src/a.rs", "src/b.tmp", "src/kept.tmp", "a.log", "build/out", "build/deep/out"] {
        scene.write(file, file);
    }
    // Not ignored itself: all that is in it is.
    scene.write("notes/a.log", "1");
    scene.write("notes/deep/b.log", "1");
    fs::create_dir_all(scene.repo.join("hollow/deep")).unwrap();
    settle(&scene.repo);
    scene.take("s/0");
    assert!(list_of(&scene).is_file(), "the list is kept");
    scene
}

/// Returns the file with the cached list.
fn list_of(scene: &Scene) -> Utf8PathBuf {
    // Lock files are beside the repository.
    let entries = scene.dir.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    let cache = entries.map(|entry| entry.join("cache")).find(|cache| cache.is_dir()).unwrap();
    let mut lists = cache.read_dir_utf8().unwrap().map(|entry| entry.unwrap());
    let list = lists.find(|it| it.file_name().ends_with(".list"));
    list.map_or(cache.join("none"), |list| list.into_path())
}

/// Returns the files that git lists in a repository.
const LISTED: [&str; 5] = [".gitignore", "README", "src/.gitignore", "src/a.rs", "src/kept.tmp"];

/// Takes a snapshot and compares its files: those that are listed at first, with these and without those.
#[track_caller]
fn check(scene: &Scene, what: &str, with: &[&str], without: &[&str]) {
    let taken = scene.take(&format!("s/{:x}", fastrand::u64(..)));
    let kept = LISTED.iter().filter(|it| !without.contains(it));
    let mut expected: Vec<String> = kept.chain(with).map(|it| (*it).to_owned()).collect();
    expected.sort();
    assert_eq!(names(&scene.restored(&taken)), expected, "{what}");
}

#[test]
fn every_new_or_missing_name_is_seen_with_the_cached_list() {
    let scene = settled_scene();
    // After each change everything is as before, so that the same list holds again.
    for file in ["new", "src/new", "other/new", "hollow/deep/new", "notes/deep/new", "notes/new"] {
        scene.write(file, "new");
        check(&scene, file, &[file], &[]);
        fs::remove_file(scene.repo.join(file)).unwrap();
        drop(fs::remove_dir(scene.repo.join("other")));
        check(&scene, "as before", &[], &[]);
    }
    fs::remove_file(scene.repo.join("src/kept.tmp")).unwrap();
    check(&scene, "a listed file is gone", &[], &["src/kept.tmp"]);
    scene.write("src/kept.tmp", "again");
    check(&scene, "it is back", &[], &[]);
    for file in ["build/more/out", "b.log", "src/c.tmp", "hollow/x.log"] {
        scene.write(file, "noise");
        check(&scene, file, &[], &[]);
        fs::remove_file(scene.repo.join(file)).unwrap();
    }
}

#[test]
fn every_change_of_the_rules_is_seen_with_the_cached_list() {
    // Each has a list of its own, because a file with rules does not get its old state back.
    let rules_gone: fn(&Scene) = |scene| {
        scene.write(".gitignore", "/build/\n");
        check(scene, "a rule is gone", &["a.log", "notes/a.log", "notes/deep/b.log"], &[]);
    };
    let rules_added: fn(&Scene) = |scene| {
        scene.write("src/deep/.gitignore", "*\n");
        scene.write("src/deep/hidden", "1");
        check(scene, "a new file with rules", &[], &[]);
        scene.write("src/deep/.gitignore", "hidden\n");
        check(scene, "it does not hide itself", &["src/deep/.gitignore"], &[]);
    };
    let rules_of_repository: fn(&Scene) = |scene| {
        scene.write(".git/info/exclude", "a.rs\n");
        check(scene, "a rule of the repository", &[], &["src/a.rs"]);
    };
    let staged: fn(&Scene) = |scene| {
        scene.git(&["add", "-f", "build/out"]);
        check(scene, "a file of an ignored folder is staged", &["build/out"], &[]);
    };
    std::thread::scope(|scope| {
        for change in [rules_gone, rules_added, rules_of_repository, staged] {
            scope.spawn(move || change(&settled_scene()));
        }
    });
}

#[test]
fn a_path_that_becomes_another_kind_is_seen_with_the_cached_list() {
    let scene = settled_scene();
    fs::remove_file(scene.repo.join("src/a.rs")).unwrap();
    scene.write("src/a.rs/inner", "a folder now");
    let found = names(&scene.restored(&scene.take("s/1")));
    assert!(found.contains(&"src/a.rs/inner".to_owned()), "{found:?}");
    settle(&scene.repo);
    scene.take("s/2");
    fs::remove_dir_all(scene.repo.join("src/a.rs")).unwrap();
    symlink("b.tmp", scene.repo.join("src/a.rs")).unwrap();
    let found = scene.restored(&scene.take("s/3"));
    assert_eq!(found.get(&b"src/a.rs"[..]), items(&scene.repo).get(&b"src/a.rs"[..]));
    // A repository of its own appears in a listed folder, and goes again.
    settle(&scene.repo);
    scene.take("s/4");
    scene.write("src/.git/HEAD", "ref: refs/heads/main\n");
    let nested = scene.take("s/5");
    assert!(format!("{:?}", nested.omissions).contains("NestedRepository"), "{nested:?}");
    fs::remove_dir_all(scene.repo.join("src/.git")).unwrap();
    let found = names(&scene.restored(&scene.take("s/6")));
    assert!(found.contains(&"src/kept.tmp".to_owned()), "{found:?}");
}

#[test]
fn git_does_not_run_while_nothing_changes_that_its_list_depends_on() {
    let scene = settled_scene();
    let (list, before) = (list_of(&scene), fs::read(list_of(&scene)).unwrap());
    let stamp = |path: &Utf8Path| fs::metadata(path).unwrap().modified().unwrap();
    let written = stamp(&list);
    scene.write("src/a.rs", "changed");
    scene.write("build/deep/another", "noise");
    let taken = scene.take("s/1");
    let restored = scene.restored(&taken);
    assert_eq!(restored.get(&b"src/a.rs"[..]), items(&scene.repo).get(&b"src/a.rs"[..]));
    assert_eq!((stamp(&list), fs::read(&list).unwrap()), (written, before), "git was asked");
    // A damaged list is no list.
    fs::write(&list, "damaged").unwrap();
    scene.write("src/new.rs", "1");
    let found = names(&scene.restored(&scene.take("s/2")));
    assert!(found.contains(&"src/new.rs".to_owned()), "{found:?}");
}
