//! Random edits against a simple model: every snapshot gives back exactly the files of its moment.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use heeler_testkit::ProofSettings;
use heeler_workspace::{RestoreMode, RestoredFileAction};

use crate::scene::{Items, Scene, items, name, now, odd};

const NAMES: [&[u8]; 12] = [
    b"a",
    b"b",
    b"dir",
    b"dir/a",
    b"dir/b",
    b"dir/sub",
    b"dir/sub/c",
    b"x\xffy",
    b"sp ace",
    b"new\nline",
    b"ignored-not",
    b"deep/er/still/d",
];

const STEPS: usize = 12;

#[test]
fn proof_each_snapshot_gives_back_the_files_of_its_moment() {
    let proof = ProofSettings::new(12);
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let scene = Scene::new();
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let mut taken = Vec::new();
        for step in 0..STEPS {
            for _ in 0..random.usize(0..6) {
                edit(&scene, &mut random);
            }
            let snapshot = scene
                .open()
                .take(&scene.tree(), &name(&format!("s/{step}")), "", now())
                .unwrap_or_else(|error| panic!("{context}, step {step}: {error}"));
            taken.push((snapshot, items(&scene.repo)));
        }
        if random.bool() {
            scene.open().prune(now()).unwrap();
        }
        for (step, (snapshot, wanted)) in taken.iter().enumerate() {
            let restored = scene.restored(snapshot);
            assert!(
                restored == *wanted,
                "{context}, step {step}: {}",
                difference(&restored, wanted)
            );
        }
    }
}

#[test]
fn proof_each_state_can_be_restored_in_place_and_taken_back() {
    let proof = ProofSettings::new(12);
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let scene = Scene::new();
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let mut taken = Vec::new();
        for step in 0..STEPS {
            for _ in 0..random.usize(0..6) {
                edit(&scene, &mut random);
            }
            taken.push((scene.take(&format!("s/{step}")), items(&scene.repo)));
        }
        for step in 0..STEPS {
            // An agent's work since the last restoration.
            if random.bool() {
                edit(&scene, &mut random);
            }
            let before = items(&scene.repo);
            let (snapshot, wanted) = random.choice(&taken).unwrap();
            let undo = name(&format!("undo/{step}"));
            let restore = |to| {
                let mode = RestoreMode::Restore(&undo);
                let done = scene.open().restore(&scene.tree(), to, mode, now());
                done.unwrap_or_else(|error| panic!("{context}, step {step}: {error}"))
            };
            let done = restore(&snapshot.commit);
            let kept = |file: &&_| {
                matches!(
                    file,
                    &&heeler_workspace::RestoredFile { action: RestoredFileAction::Kept(_), .. }
                )
            };
            assert_eq!(done.files.iter().find(kept), None, "{context}, step {step}");
            let found = items(&scene.repo);
            assert!(found == *wanted, "{context}, step {step}: {}", difference(&found, wanted));
            if random.bool() {
                restore(&done.before.commit);
                let found = items(&scene.repo);
                assert!(found == before, "{context}, step {step}: {}", difference(&found, &before));
            }
        }
    }
}

fn difference(found: &Items, wanted: &Items) -> String {
    let missing: Vec<_> =
        wanted.iter().filter(|(path, item)| found.get(*path) != Some(item)).collect();
    let extra: Vec<_> = found.keys().filter(|path| !wanted.contains_key(*path)).collect();
    format!("missing or other {missing:?}, too many {extra:?}")
}

/// Makes one random change; what is in the way goes.
fn edit(scene: &Scene, random: &mut fastrand::Rng) {
    let path = scene.repo.as_std_path().join(odd(random.choice(NAMES).unwrap()));
    match random.u8(0..10) {
        0..=2 => {
            clear(scene, &path);
            fs::write(&path, content(random)).unwrap();
        }
        3 | 4 => {
            // The same size, and often the same instant.
            if let Ok(bytes) = fs::read(&path) {
                let other: Vec<u8> = bytes.iter().map(|_| random.alphanumeric() as u8).collect();
                fs::write(&path, other).unwrap();
            }
        }
        5 => {
            clear(scene, &path);
        }
        6 => {
            let to = scene.repo.as_std_path().join(odd(random.choice(NAMES).unwrap()));
            if path.is_file() && !to.starts_with(&path) && !path.starts_with(&to) {
                clear(scene, &to);
                if path.is_file() {
                    fs::rename(&path, &to).unwrap();
                }
            }
        }
        7 => {
            let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
            if is_file {
                let mode = if random.bool() { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        8 => {
            clear(scene, &path);
            symlink(odd(random.choice(NAMES).unwrap()), &path).unwrap();
        }
        _ => stage(scene, random),
    }
}

/// What the agent's own git does to the index and the history.
fn stage(scene: &Scene, random: &mut fastrand::Rng) {
    match random.u8(0..4) {
        0 => drop(scene.git(&["add", "-A"])),
        1 => {
            scene.git(&["add", "-A"]);
            scene.git(&["commit", "-qm", "turn", "--allow-empty"]);
        }
        2 => drop(scene.git(&["status"])),
        _ => drop(scene.git(&["gc", "-q"])),
    }
}

fn content(random: &mut fastrand::Rng) -> Vec<u8> {
    let ends = [&b"\n"[..], b"\r\n", b"\0"];
    let end = random.choice(ends).unwrap();
    (0..random.usize(0..5)).flat_map(|_| [&[random.u8(b'a'..=b'z')], end].concat()).collect()
}

/// Makes way for a path: its folders are folders, and nothing has its name.
fn clear(scene: &Scene, path: &PathBuf) {
    let parents: Vec<_> = path.ancestors().skip(1).take_while(|up| *up != scene.repo).collect();
    for parent in parents.into_iter().rev() {
        if fs::symlink_metadata(parent).is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(parent).unwrap();
        }
        if !parent.is_dir() {
            fs::create_dir(parent).unwrap();
        }
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

#[test]
fn proof_many_at_once_take_their_turns_and_none_fails() {
    let proof = ProofSettings::new(6);
    let scene = Scene::new();
    let fork = scene.fork(&scene.take("first"));
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (scene, fork, proof) = (&scene, &fork, &proof);
            scope.spawn(move || {
                let tree = if worker % 2 == 0 { scene.tree() } else { fork.clone() };
                for turn in 0..proof.rounds {
                    let file = tree.top.join(format!("by-{worker}"));
                    fs::write(&file, format!("{turn}")).unwrap();
                    let snapshots = scene.open();
                    let this = name(&format!("{worker}/{turn}"));
                    let snapshot = snapshots.take(&tree, &this, "", now()).unwrap();
                    if worker == 3 {
                        snapshots.prune(now()).unwrap();
                    }
                    let restored = scene.restored(&snapshot);
                    let mine = restored[format!("by-{worker}").as_bytes()].clone();
                    let wanted = crate::scene::Item::File(turn.to_string().into(), false);
                    assert_eq!(mine, wanted);
                }
            });
        }
    });
    assert_eq!(scene.open().list(None).unwrap().len() as u64, 4 * proof.rounds + 1);
}
