//! Clones of repositories that are made for the test.

use std::collections::BTreeSet;
use std::sync::Barrier;

use heeler_config::load;
use tempfile::TempDir;

use super::*;

struct CheckoutFixture {
    root: Utf8PathBuf,
    env: BTreeMap<String, String>,
    _folder: TempDir,
}

impl CheckoutFixture {
    /// A bare repository `origin.git` with two commits on `main` and one more on `side`.
    fn new() -> CheckoutFixture {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap().canonicalize_utf8().unwrap();
        let mut env = BTreeMap::from([("HOME".to_owned(), root.to_string())]);
        let path = std::env::vars().find(|(name, _)| name == "PATH");
        env.extend(path);
        let rig = CheckoutFixture { root, env, _folder: folder };
        rig.git(&["init", "-q", "-b", "main", "seed"]);
        for text in ["one", "two"] {
            fs::write(rig.root.join("seed/file"), text).unwrap();
            rig.git(&["-C", "seed", "add", "."]);
            rig.git(&["-C", "seed", "commit", "-q", "-m", text]);
        }
        rig.git(&["-C", "seed", "branch", "side"]);
        rig.git(&["clone", "-q", "--bare", "seed", "origin.git"]);
        rig
    }

    #[expect(clippy::disallowed_methods, reason = "makes repositories for the test")]
    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@localhost"])
            .args(args)
            .current_dir(&self.root)
            .envs(&self.env)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn agent(&self, keys: &str) -> AgentConfig {
        let file = self.root.join("heeler.yaml");
        let yaml = format!("agents: [{{name: a, {}}}]", keys.replace("ROOT", self.root.as_str()));
        let loaded = load(&file, &|_: &Utf8Path| Ok(yaml.clone()), &self.env);
        loaded.unwrap_or_else(|faults| panic!("{faults:?}")).agents.remove(0)
    }

    fn make(&self, keys: &str) -> Result<(), CheckoutError> {
        ensure_checkout(&self.agent(keys), &self.env, Timestamp::UNIX_EPOCH)
    }

    fn names(&self, folder: &str) -> BTreeSet<String> {
        let entries = self.root.join(folder).read_dir_utf8().unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_owned()).collect()
    }
}

const ORIGIN: &str = "repo: 'file://ROOT/origin.git', working_directory: work/repo";

#[test]
fn a_missing_working_directory_is_cloned() {
    let rig = CheckoutFixture::new();
    rig.make(ORIGIN).unwrap();
    assert_eq!(fs::read_to_string(rig.root.join("work/repo/file")).unwrap(), "two");
    assert_eq!(rig.git(&["-C", "work/repo", "rev-list", "--count", "HEAD"]), "1\n");
    assert_eq!(
        rig.names("work"),
        BTreeSet::from([".repo.heeler-clone.lock".to_owned(), "repo".to_owned()])
    );
}

#[test]
fn branch_and_depth_are_as_the_config_says() {
    let rig = CheckoutFixture::new();
    let keys = "repo: 'file://ROOT/origin.git', \
                working_directory: {root: r, clone_depth: 9, default_branch: side}";
    rig.make(keys).unwrap();
    assert_eq!(rig.git(&["-C", "r", "rev-list", "--count", "HEAD"]), "2\n");
    assert_eq!(rig.git(&["-C", "r", "branch", "--show-current"]), "side\n");
    // A path is a repository too.
    rig.make("repo: ./origin.git, working_directory: s").unwrap();
    assert_eq!(rig.git(&["-C", "s", "branch", "--show-current"]), "main\n");
}

#[test]
fn what_is_there_or_not_wanted_is_left_alone() {
    let rig = CheckoutFixture::new();
    fs::create_dir_all(rig.root.join("work/repo")).unwrap();
    rig.make(ORIGIN).unwrap();
    assert_eq!(rig.names("work/repo"), BTreeSet::new());
    rig.make("repo: ./origin.git, working_directory: {root: r, auto_clone: false}").unwrap();
    rig.make("working_directory: r").unwrap();
    std::os::unix::fs::symlink("nowhere", rig.root.join("link")).unwrap();
    rig.make("repo: ./origin.git, working_directory: link").unwrap();
    assert!(is_missing(&rig.root.join("r")) && is_missing(&rig.root.join("nowhere")));
}

#[test]
fn a_failed_clone_leaves_nothing_and_tells_what_git_said() {
    let rig = CheckoutFixture::new();
    let error = rig.make("repo: ./none.git, working_directory: work/repo").unwrap_err().to_string();
    let start = format!("git cannot clone {0}/none.git to {0}/work/repo: fatal: ", rig.root);
    assert!(error.starts_with(&start), "{error}");
    assert!(is_missing(&rig.root.join("work/repo")));
    assert_eq!(rig.names("work"), BTreeSet::from([".repo.heeler-clone.lock".to_owned()]));
    let keys = "repo: ./origin.git, working_directory: {root: r, default_branch: none}";
    let error = rig.make(keys).unwrap_err().to_string();
    assert!(error.contains("Remote branch none not found"), "{error}");
}

#[test]
fn what_a_killed_clone_left_is_swept() {
    let rig = CheckoutFixture::new();
    for name in [
        ".repo.heeler-clone.00112233445566ff",
        ".repo.heeler-clone.mine",
        ".other.heeler-clone.0011223344556677",
    ] {
        fs::create_dir_all(rig.root.join("work").join(name).join("work/.git")).unwrap();
    }
    rig.make(ORIGIN).unwrap();
    let names = [
        ".other.heeler-clone.0011223344556677",
        ".repo.heeler-clone.lock",
        ".repo.heeler-clone.mine",
        "repo",
    ];
    assert_eq!(rig.names("work"), names.map(str::to_owned).into());
}

#[test]
fn of_two_that_want_it_one_clones_and_the_other_waits() {
    let rig = CheckoutFixture::new();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                rig.make(ORIGIN).unwrap();
                assert_eq!(fs::read_to_string(rig.root.join("work/repo/file")).unwrap(), "two");
            });
        }
    });
}

/// Replaces git with a program.
fn play_git(rig: &mut CheckoutFixture, script: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::create_dir(rig.root.join("bin")).unwrap();
    let program = rig.root.join("bin/git");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", rig.root.join("bin"), rig.env["PATH"]);
    rig.env.insert("PATH".to_owned(), path);
}

#[test]
fn a_token_reaches_git_by_its_environment_alone() {
    let mut rig = CheckoutFixture::new();
    // It calls the helper as git does, and prints everything it received.
    let script = "echo \"args: $*\" >&2; eval \"$(printf %s \"$GIT_CONFIG_VALUE_1\" | cut -c2-) get\" >&2; exit 1";
    play_git(&mut rig, script);
    rig.env.insert("TOKEN".to_owned(), "tok/en-12345678".to_owned());
    let keys = "repo: 'https://someone-else:${TOKEN}@example.invalid/x.git', working_directory: r";
    // A token with a slash is no part of an address unless it is encoded.
    rig.env.insert("TOKEN".to_owned(), "tok%2Fen-12345678".to_owned());
    let error = rig.make(keys).unwrap_err().to_string();
    assert!(
        error.contains("args: clone --quiet --depth=1 -- https://example.invalid/x.git "),
        "{error}"
    );
    assert!(error.contains("; username=") && error.contains("; password="), "{error}");
    assert!(!error.contains("12345678") && !error.contains("someone-else"), "{error}");
}

#[test]
fn real_git_asks_our_helper() {
    let rig = CheckoutFixture::new();
    let agent =
        rig.agent("repo: 'https://me:s%20ecret@example.invalid/x.git', working_directory: r");
    let clone = RepositoryClone {
        path: &agent.working_directory,
        repo: agent.repo.as_ref().unwrap(),
        options: None,
        env: &rig.env,
        time: CLONE_TIME_MAX,
        lock: clone_lock_name(&agent.working_directory),
    };
    fs::write(rig.root.join("ask"), "protocol=https\nhost=example.invalid\n\n").unwrap();
    #[expect(clippy::disallowed_methods, reason = "asks git what it would send")]
    let output = Command::new("git")
        .args(["credential", "fill"])
        .env_clear()
        .envs(clone.environment())
        .stdin(File::open(rig.root.join("ask")).unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("username=me\npassword=s ecret\n"), "{said}");
}

#[test]
fn a_git_that_does_not_end_is_killed_with_all_that_it_started() {
    let mut rig = CheckoutFixture::new();
    let pid = rig.root.join("pid");
    // The child outlives git; both are in one process group.
    play_git(&mut rig, &format!("sleep 1000 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"));
    let agent = rig.agent(ORIGIN);
    let clone = |time| RepositoryClone {
        path: &agent.working_directory,
        repo: agent.repo.as_ref().unwrap(),
        options: None,
        env: &rig.env,
        time,
        lock: clone_lock_name(&agent.working_directory),
    };
    let mut time = Duration::from_millis(50);
    // On a slow machine it is killed before it has started.
    while is_missing(&pid) {
        let error = clone(time).run_clone(Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(matches!(error, CheckoutError::Slow { .. }), "{error}");
        time *= 2;
    }
    let child: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let state = || fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    while !state().is_empty() && !state().contains(") Z ") {
        std::thread::yield_now();
    }
    assert!(is_missing(&agent.working_directory));
}

#[test]
fn without_git_one_is_told_what_to_do() {
    let mut rig = CheckoutFixture::new();
    rig.env.insert("PATH".to_owned(), rig.root.join("empty").into_string());
    let error = rig.make(ORIGIN).unwrap_err().to_string();
    assert!(error.contains("install git, or make "), "{error}");
}
