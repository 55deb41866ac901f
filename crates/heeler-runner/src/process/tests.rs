//! Real processes. Each test is a process of its own (nextest): claiming a tree claims the process.

use std::time::Duration;

use heeler_testkit::WAIT_MAX;
use heeler_transcript::{LockFile, LockHolder};
use jiff::Timestamp;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::ChildStdout;

use super::*;

/// With a control group where we may make one, and without.
const CLAIMS: [fn(RunId) -> ProcessTree; 2] = [ProcessTree::claim, claim_alone];

/// Claims a tree as on a machine where no control group can be made.
fn claim_alone(run: RunId) -> ProcessTree {
    ProcessTree::claim_with(run, None)
}

fn run_id() -> RunId {
    RunId::mint(Timestamp::UNIX_EPOCH, std::array::from_fn(|_| fastrand::u8(..)))
}

fn sh(script: &str) -> LaunchSpec {
    let args = vec![LaunchArg::Text("-c".to_owned()), LaunchArg::Text(script.to_owned())];
    LaunchSpec { program: "/bin/sh".into(), args, env: Vec::new() }
}

fn path() -> IndexMap<String, String> {
    IndexMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())])
}

/// Starts a script of the shell in `/`.
fn start(tree: &ProcessTree, script: &str) -> AgentProcess {
    let place = SpawnContext {
        cwd: Utf8Path::new("/"),
        env: &path(),
        inherit: &[],
        secrets: &SecretRedactor::new(&[]),
    };
    tree.spawn(&sh(script), &place).unwrap()
}

fn lines(agent: &mut AgentProcess) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(agent.stdout.take().unwrap()).lines()
}

/// Reads the numbers of so many processes: each has said its own when it was ready.
async fn pids(lines: &mut Lines<BufReader<ChildStdout>>, count: usize) -> Vec<Pid> {
    let mut pids = Vec::new();
    while pids.len() < count {
        let line = lines.next_line().await.unwrap().expect("the process says its number");
        pids.push(Pid::from_raw(line.trim().parse().unwrap()).unwrap());
    }
    pids
}

fn is_there(pid: Pid) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// Waits until something holds, and fails when it does not come to that.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn output(agent: &mut AgentProcess) -> String {
    let mut text = String::new();
    agent.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn an_agent_gets_its_folder_and_exactly_its_environment_with_the_marker() {
    let run = run_id();
    let tree = ProcessTree::claim(run);
    let folder = tempfile::tempdir().unwrap();
    let cwd = Utf8Path::from_path(folder.path()).unwrap().canonicalize_utf8().unwrap();
    let mut env = path();
    env.insert("GIVEN".to_owned(), "by brief".to_owned());
    env.insert("BOTH".to_owned(), "brief".to_owned());
    let mut launch = sh("pwd; exec env");
    launch.env = vec![("BOTH".to_owned(), "launch".to_owned())];
    let place =
        SpawnContext { cwd: &cwd, env: &env, inherit: &[], secrets: &SecretRedactor::new(&[]) };
    let mut agent = tree.spawn(&launch, &place).unwrap();
    let said = output(&mut agent).await;
    let mut said: Vec<&str> = said.lines().collect();
    assert_eq!(said.remove(0), cwd.as_str());
    // The shell adds its own.
    said.retain(|line| {
        !["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|own| line.starts_with(own))
    });
    said.sort_unstable();
    let marker = format!("HEELER_RUN={run}");
    assert_eq!(said, ["BOTH=launch", "GIVEN=by brief", &marker, "PATH=/usr/bin:/bin"]);
    assert!(agent.wait().await.success());
    assert_eq!(tree.terminate().await, TerminationReport::default());
}

#[tokio::test]
async fn a_file_argument_is_read_from_its_path_and_cannot_be_changed() {
    let tree = ProcessTree::claim(run_id());
    let mut launch = sh(r#"cat "$0" "$0"; { echo x > "$0"; } 2>/dev/null || echo sealed"#);
    launch.args.push(LaunchArg::File(b"secret\n".to_vec()));
    let place = SpawnContext {
        cwd: Utf8Path::new("/"),
        env: &path(),
        inherit: &[],
        secrets: &SecretRedactor::new(&[]),
    };
    let mut agent = tree.spawn(&launch, &place).unwrap();
    assert!(
        !std::fs::read_to_string(format!("/proc/{}/cmdline", agent.pid))
            .unwrap()
            .contains("secret")
    );
    assert_eq!(output(&mut agent).await, "secret\nsecret\nsealed\n");
    assert_eq!(format!("{:?}", LaunchArg::File(b"secret".to_vec())), "File(6 bytes)");
    tree.terminate().await;
}

#[tokio::test]
async fn a_lock_that_an_agent_inherits_is_free_when_both_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let file = Utf8Path::from_path(folder.path()).unwrap().join("lock");
    let holder = LockHolder::this_process("test", Timestamp::UNIX_EPOCH);
    let lock = LockFile::acquire(&file, &holder, Duration::ZERO).unwrap();
    let tree = ProcessTree::claim(run_id());
    let inherit = [lock.fd()];
    let place = SpawnContext {
        cwd: Utf8Path::new("/"),
        env: &path(),
        inherit: &inherit,
        secrets: &SecretRedactor::new(&[]),
    };
    let mut agent = tree.spawn(&sh("cat; exit 3"), &place).unwrap();
    drop(lock);
    assert!(LockFile::probe(&file).unwrap().is_some(), "the agent holds it");
    drop(agent.stdin.take());
    assert_eq!(agent.wait().await.code(), Some(3));
    assert!(LockFile::probe(&file).unwrap().is_none());
}

#[tokio::test]
async fn an_agent_leads_its_own_session_and_is_the_first_to_go_when_memory_runs_out() {
    let tree = ProcessTree::claim(run_id());
    let mut agent = start(&tree, "cat /proc/self/oom_score_adj; cat");
    assert_eq!(rustix::process::getsid(Some(agent.pid)).unwrap(), agent.pid);
    let score = lines(&mut agent).next_line().await.unwrap().unwrap();
    assert_eq!(score, oom_score());
    assert!(score.parse::<i32>().unwrap() >= OOM_SCORE_INCREASE, "{score}");
    tree.terminate().await;
}

#[tokio::test]
async fn an_agent_gets_sigterm_when_the_thread_that_started_it_ends() {
    let (told, mut tell) = tokio::sync::mpsc::channel(1);
    let runner = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let tree = claim_alone(run_id());
            let script =
                "trap 'echo terminated; exit 0' TERM; echo ready; while :; do read x; done";
            let mut agent = start(&tree, script);
            let mut lines = lines(&mut agent);
            assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
            let stdout = lines.into_inner().into_inner().into_owned_fd().unwrap();
            told.send((stdout, agent.stdin.take().unwrap().into_owned_fd().unwrap()))
                .await
                .unwrap();
        });
    });
    let (stdout, _stdin) = tell.recv().await.unwrap();
    runner.join().unwrap();
    let mut said = String::new();
    let mut stdout = tokio::net::unix::pipe::Receiver::from_owned_fd(stdout).unwrap();
    stdout.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "terminated\n");
}

#[tokio::test]
async fn a_pipe_that_nobody_reads_ends_an_agent_as_it_would_in_a_shell() {
    let tree = ProcessTree::claim(run_id());
    // This process ignores the signal.
    let mut agent = start(&tree, "grep SigIgn /proc/self/status");
    let told = output(&mut agent).await;
    let ignored = u64::from_str_radix(told.split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(ignored & (1 << (Signal::PIPE.as_raw() - 1)), 0, "{told}");
    tree.terminate().await;
}

#[tokio::test]
async fn waiting_can_be_given_up_and_taken_up_again() {
    let tree = ProcessTree::claim(run_id());
    let mut agent = start(&tree, "cat; exit 7");
    for _ in 0..3 {
        tokio::select! {
            biased;
            status = agent.wait() => panic!("it has not ended: {status}"),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(agent.stdin.take());
    assert_eq!(agent.wait().await.code(), Some(7));
    assert_eq!(agent.wait().await.code(), Some(7), "it is remembered");
    agent.signal(Signal::KILL);
}

#[tokio::test]
async fn a_signal_reaches_the_agent_alone() {
    let tree = ProcessTree::claim(run_id());
    let script = "sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' & read x; :";
    let mut agent = start(&tree, script);
    let child = pids(&mut lines(&mut agent), 1).await[0];
    agent.signal(Signal::TERM);
    let status = agent.wait().await;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    assert!(is_there(child));
    assert_eq!(tree.terminate().await.processes, 1);
    assert!(!is_there(child));
}

#[tokio::test]
async fn orphans_that_end_during_the_run_are_reaped() {
    let tree = ProcessTree::claim(run_id());
    let script = "(setsid sh -c 'echo $$; exec sleep 1000' & ) ; exec cat";
    let mut agent = start(&tree, script);
    let orphan = pids(&mut lines(&mut agent), 1).await[0];
    let us = rustix::process::getpid();
    let parent = || {
        let stat = std::fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap_or_default();
        stat.split(' ').nth(3).and_then(|text| text.parse().ok()).and_then(Pid::from_raw)
    };
    until("the orphan is adopted", || parent() == Some(us)).await;
    rustix::process::kill_process(orphan, Signal::KILL).unwrap();
    tokio::select! {
        status = agent.wait() => panic!("the agent runs on: {status}"),
        () = until("the orphan is reaped", || !is_there(orphan)) => {}
    }
    tree.terminate().await;
}

#[tokio::test]
async fn a_start_that_fails_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = Utf8Path::from_path(folder.path()).unwrap();
    let file = |name: &str, text: &str, mode| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = cwd.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let tree = ProcessTree::claim(run_id());
    let refused = |program: &Utf8Path, cwd: &Utf8Path, args: Vec<LaunchArg>| {
        let launch = LaunchSpec { program: program.to_owned(), args, env: Vec::new() };
        let place =
            SpawnContext { cwd, env: &path(), inherit: &[], secrets: &SecretRedactor::new(&[]) };
        tree.spawn(&launch, &place).unwrap_err()
    };
    let missing = refused(&cwd.join("none"), cwd, Vec::new());
    assert!(matches!(missing, AgentSpawnError::NotFound { .. }), "{missing}");
    let missing = refused("heeler-no-such-program".into(), cwd, Vec::new());
    let expected = "cannot start heeler-no-such-program: there is no such program; install it, or set its path";
    assert_eq!(missing.to_string(), expected);
    let script = file("script", "#!/no/such/interpreter\n", 0o700);
    let interpreter = refused(&script, cwd, Vec::new());
    assert!(matches!(interpreter, AgentSpawnError::NoInterpreter { .. }), "{interpreter}");
    let plain = refused(&file("plain", "text", 0o600), cwd, Vec::new());
    assert!(matches!(plain, AgentSpawnError::NotExecutable { .. }), "{plain}");
    let nowhere = refused("/bin/sh".into(), &cwd.join("none"), Vec::new());
    assert!(matches!(nowhere, AgentSpawnError::Folder { .. }), "{nowhere}");
    let large = vec![LaunchArg::Text("x".repeat(1 << 20))];
    let large = refused("/bin/sh".into(), cwd, large);
    assert!(matches!(large, AgentSpawnError::TooLarge { .. }), "{large}");
    assert_eq!(tree.terminate().await, TerminationReport::default());
}

/// Lets a script start its processes, each of which says its number, and ends them.
async fn check_ends(script: &str, count: usize) {
    for claim in CLAIMS {
        let tree = claim(run_id());
        let mut agent = start(&tree, script);
        let found = pids(&mut lines(&mut agent), count).await;
        let ended = tree.terminate().await;
        assert_eq!(ended.survivors, Vec::<String>::new(), "{tree:?}");
        assert!(ended.processes >= count as u64, "{tree:?}: {ended:?}");
        let status = agent.wait().await;
        for pid in found {
            assert!(!is_there(pid), "{tree:?}: {pid} has survived, the agent ended with {status}");
        }
        if let Some(path) = tree.cgroup() {
            assert!(!path.exists(), "{path}");
        }
        assert_eq!(
            tree.terminate().await,
            TerminationReport::default(),
            "{tree:?}: nothing is left to end"
        );
    }
}

#[tokio::test]
async fn a_daemon_that_ignores_sigterm_and_clears_its_environment_does_not_survive() {
    let daemon = "trap \"\" TERM HUP INT; echo $$; exec sleep 1000";
    let script = format!("(setsid env -i /bin/sh -c '{daemon}' & ) ; echo $$; exec sleep 1000");
    check_ends(&script, 2).await;
}

#[tokio::test]
async fn every_process_of_a_tree_is_known_as_one_whatever_it_sheds() {
    for claim in CLAIMS {
        let tree = claim(run_id());
        let script = "echo $$; setsid env -i /bin/sh -c '(echo $$; exec sleep 60) & exec sleep 60' & \
                      (exec env -i sh -c 'echo $$; exec sleep 60' &) ; exec sleep 60";
        let mut agent = start(&tree, script);
        for pid in pids(&mut lines(&mut agent), 3).await {
            assert!(tree.contains(pid), "{tree:?}");
        }
        let us = rustix::process::getpid();
        assert!(!tree.contains(us) && !tree.contains(Pid::INIT));
        assert!(rustix::process::getppid().is_none_or(|parent| !tree.contains(parent)));
        assert!(tree.contains(Pid::from_raw(i32::MAX).unwrap()), "one that is gone cannot tell");
        tree.terminate().await;
    }
}

#[tokio::test]
async fn daemons_of_daemons_do_not_survive_the_end_of_the_agent() {
    let inner = r#"(setsid env -i /bin/sh -c "echo \$\$; exec sleep 1000" & )"#;
    let script =
        format!("(setsid env -i /bin/sh -c '{inner}; echo $$; exec sleep 1000' & ) ; exit 0");
    check_ends(&script, 2).await;
}

#[tokio::test]
async fn stopped_processes_do_not_survive() {
    check_ends("sh -c 'echo $$; kill -STOP $$; sleep 1000' & echo $$; wait", 2).await;
}

#[tokio::test]
async fn a_fork_bomb_is_ended_while_it_forks() {
    // Each process starts two more, eight generations deep, and none ends by itself.
    let bomb = r#"bomb() { if [ "$1" -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi; wait; sleep 1000; }
                  echo $$; bomb 8"#;
    for claim in CLAIMS {
        let run = run_id();
        let tree = claim(run);
        let mut agent = start(&tree, bomb);
        pids(&mut lines(&mut agent), 1).await;
        let ended = tree.terminate().await;
        assert_eq!(ended.survivors, Vec::<String>::new(), "{tree:?}");
        assert!(ended.processes >= 1);
        assert_eq!(
            RunProcessScanner::for_dead_run(run, None).kill_all(),
            TerminationReport::default(),
            "{tree:?}"
        );
        assert_eq!(tree.terminate().await, TerminationReport::default());
    }
}

#[tokio::test]
async fn zombies_are_reaped_and_not_counted() {
    for claim in CLAIMS {
        let tree = claim(run_id());
        // The shell becomes a program that does not reap, and only then its child ends.
        let script = "(until grep -q sleep /proc/$$/comm; do :; done) & echo $!; exec sleep 1000";
        let mut agent = start(&tree, script);
        let zombie = pids(&mut lines(&mut agent), 1).await[0];
        let state = || std::fs::read_to_string(format!("/proc/{zombie}/stat")).unwrap_or_default();
        until("it is a zombie", || state().contains(") Z ")).await;
        assert_eq!(
            tree.terminate().await,
            TerminationReport { processes: 1, survivors: Vec::new() }
        );
        agent.wait().await;
        assert!(!is_there(zombie));
    }
}

#[tokio::test]
async fn the_dead_leave_a_control_group_or_a_marker_by_which_their_processes_are_found() {
    let run = run_id();
    let tree = ProcessTree::claim(run);
    let script = "(setsid env -i /bin/sh -c 'echo $$; exec sleep 1000' & ) ; \
                  (setsid sh -c 'echo $$; exec sleep 1000' & ) ; exit 0";
    let mut agent = start(&tree, script);
    let found = pids(&mut lines(&mut agent), 2).await;
    agent.wait().await;
    // As whoever settles the run sees them: they are not its children.
    assert_eq!(
        RunProcessScanner::for_dead_run(run, None).kill_all().processes,
        1,
        "the one that kept its environment"
    );
    let cgroup = RunCgroup::find(run, tree.cgroup());
    assert_eq!(cgroup.is_some(), tree.cgroup().is_some());
    let expected = u64::from(cgroup.is_some());
    assert_eq!(
        RunProcessScanner::for_dead_run(run, cgroup).kill_all().processes,
        expected,
        "the other one"
    );
    tree.terminate().await;
    assert!(!found.into_iter().any(is_there));
}

#[tokio::test]
async fn a_second_agent_of_a_run_gets_its_control_group_again() {
    let tree = ProcessTree::claim(run_id());
    for _ in 0..2 {
        let mut agent = start(&tree, "echo $$; exec sleep 1000");
        let pid = pids(&mut lines(&mut agent), 1).await[0];
        if let Some(path) = tree.cgroup() {
            let members = std::fs::read_to_string(path.join("cgroup.procs")).unwrap();
            assert_eq!(members, format!("{pid}\n"));
        }
        assert_eq!(tree.terminate().await.processes, 1);
        agent.wait().await;
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the test prepares the command itself")]
async fn an_agent_that_is_killed_before_it_executes_its_program_does_not_hang_its_runner() {
    let (reported_pid, pid_report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let mut command = Command::new("sleep");
    // It ends at the first step, as if it were killed there; its PID is never reported.
    let end = move || -> io::Result<()> {
        let _open = &pid_report;
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?;
        Ok(())
    };
    #[expect(unsafe_code, reason = "the closure makes one system call")]
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(end)
    };
    let refused = AgentProcess::start(&mut command, reported_pid, &Arc::default()).unwrap_err();
    assert!(refused.to_string().contains("killed while it was being started"), "{refused}");
    // The run then ends as one whose agent was killed later, not as one that cannot be started.
    let (env, secrets) = (path(), SecretRedactor::new(&[]));
    let place =
        SpawnContext { cwd: Utf8Path::new("/"), env: &env, inherit: &[], secrets: &secrets };
    let spawned = classify_spawn_error(refused, &sh("true"), &place);
    assert!(matches!(spawned, AgentSpawnError::Killed { .. }), "{spawned}");
}

/// A kernel or a container may refuse to create processes in a control group.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the test prepares the command itself")]
async fn an_agent_that_cannot_be_created_in_its_control_group_joins_it() {
    let Ok(cgroup) = RunCgroup::create(run_id()) else { return };
    let mut entry = cgroup.open_entry().unwrap();
    entry.folder = std::fs::File::open("/").unwrap().into();
    let (reported_pid, pid_report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let setup = PreExecSetup {
        parent: rustix::process::getpid(),
        group: Some(entry),
        pid_report,
        oom_score: oom_score(),
        inherited: Vec::new(),
        confinement: None,
    };
    let mut command = Command::new("sleep");
    command.arg("1000");
    setup.attach(&mut command);
    let mut agent = AgentProcess::start(&mut command, reported_pid, &Arc::default()).unwrap();
    assert_eq!(cgroup.processes(), [agent.pid]);
    cgroup.kill().unwrap();
    agent.wait().await;
    cgroup.remove_when_empty();
}

#[tokio::test]
async fn processes_of_other_runs_are_left_alone() {
    let tree = ProcessTree::claim(run_id());
    let mut agent = start(&tree, "exec cat");
    assert_eq!(
        RunProcessScanner::for_dead_run(run_id(), None).kill_all(),
        TerminationReport::default()
    );
    drop(agent.stdin.take());
    assert!(agent.wait().await.success());
    tree.terminate().await;
}

#[test]
fn a_group_that_is_not_the_runs_is_not_taken_for_it() {
    let (run, other) = (run_id(), run_id());
    let folder = tempfile::tempdir().unwrap();
    let posing = Utf8Path::from_path(folder.path()).unwrap().join(format!("heeler-{run}"));
    std::fs::create_dir(&posing).unwrap();
    std::fs::write(posing.join("cgroup.procs"), "1\n").unwrap();
    assert!(RunCgroup::find(run, Some(&posing)).is_none(), "it is no control group");
    // Where we may make one.
    if let Ok(cgroup) = RunCgroup::create(other) {
        assert!(RunCgroup::find(run, Some(cgroup.path())).is_none(), "it is another run's");
        assert!(RunCgroup::find(other, None).is_some());
        cgroup.remove();
        assert!(RunCgroup::find(other, Some(cgroup.path())).is_none(), "it is gone");
    }
}

#[test]
fn a_secret_is_no_argument_and_the_key_that_holds_it_is_named() {
    let (tree, secrets) =
        (ProcessTree::claim(run_id()), SecretRedactor::new(&["hunter2hunter2".to_owned()]));
    let place =
        SpawnContext { cwd: Utf8Path::new("/"), env: &path(), inherit: &[], secrets: &secrets };
    let refused = |program: &str, arg: LaunchArg| {
        let args = vec![LaunchArg::Text("-p".to_owned()), arg];
        let launch = LaunchSpec { program: program.into(), args, env: Vec::new() };
        tree.spawn(&launch, &place).unwrap_err().to_string()
    };
    let said = refused("/bin/true", LaunchArg::ConfigText("model", "x-hunter2hunter2".to_owned()));
    assert_eq!(
        said,
        "cannot start /bin/true: the secret in `model` would be visible to every user of this \
         machine; remove it"
    );
    let said = refused("/bin/true", LaunchArg::Text("hunter2hunter2".to_owned()));
    assert!(said.contains("the secret in one of its arguments"), "{said}");
    let said = refused("/hunter2hunter2", LaunchArg::File(Vec::new()));
    assert!(said.contains("the secret in its path"), "{said}");
}
