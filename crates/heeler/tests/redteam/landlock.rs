//! Attacks of an agent whose files Landlock limits (`sandbox: {level: landlock}`), on what that level
//! promises to hold. It holds for users without privileges only.

use std::process::Command;

use crate::fleet::{Fleet, Ran};

/// Content of files that the agent may not read.
const CANARY: &str = "canary-4410-of-the-host";

/// Tries everything that the level prevents, and prints a line for each attempt that succeeds.
const ATTACK: &str = r#"
import os, signal, subprocess, sys
def attempt(name):
    def run(attack):
        try: result = attack()
        except (OSError, subprocess.CalledProcessError): return
        if result: print('ESCAPED', name, str(result)[:200], flush=True)
    return run
def read(path): return b'canary' in open(path, 'rb').read()
def overwrite(path):
    with open(path, 'a') as file: file.write('forged')
    return path
attempt('read a key')(lambda: read('../home/.ssh/id_ed25519'))
attempt('read the .env of the fleet')(lambda: read('../.env'))
attempt('read the folder of another agent')(lambda: read('../other/notes'))
attempt('read a denied file')(lambda: read('../denied'))
attempt('read the database')(lambda: open('../.heeler/heeler.db', 'rb').read(16))
@attempt('read a key through a link')
def _(): os.symlink('../home/.ssh/id_ed25519', 'link'); return read('link')
@attempt('read a key through a hard link')
def _(): os.link('../home/.ssh/id_ed25519', 'hard'); return read('hard')
@attempt('move a key')
def _(): os.rename('../home/.ssh', 'ssh'); return read('ssh/id_ed25519')
attempt('write the config')(lambda: overwrite('../heeler.yaml'))
attempt('empty the config')(lambda: os.truncate('../heeler.yaml', 0) is None)
attempt('replace the config')(lambda: os.replace('own', '../heeler.yaml') is None)
attempt('remove the config')(lambda: os.remove('../heeler.yaml') is None)
attempt('write a start file of the shell')(lambda: overwrite('../home/.bashrc'))
attempt('make a file in the home directory')(lambda: overwrite('../home/.profile'))
attempt('write the result')(lambda: overwrite('../.heeler/runs/' + os.environ['HEELER_RUN'] + '/result.json'))
attempt('write the shared folder of temporary files')(lambda: overwrite('/tmp/heeler-attack'))
attempt('kill the runner')(lambda: os.kill(os.getppid(), signal.SIGKILL) is None)
attempt('read the memory of the runner')(lambda: open('/proc/%d/environ' % os.getppid(), 'rb').read())
attempt('change the mounts')(lambda: subprocess.check_call(
    ['unshare', '-Urm', 'mount', '-t', 'tmpfs', 'none', '/mnt'], stderr=subprocess.DEVNULL) == 0)
attempt('gain privileges')(lambda: 'NoNewPrivs:\t0' in open('/proc/self/status').read())

# What an agent must be able to do.
overwrite('made')
assert open('../notes').read() and os.listdir('..')
with open(os.environ['TMPDIR'] + '/scratch', 'w') as file: file.write('x')
subprocess.check_call(['git', 'add', 'made'])
subprocess.check_call(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'made'])
subprocess.check_call('echo x > /dev/null', shell=True)
print('finished')
"#;

fn limited(like: &Fleet, keys: &str) -> Fleet {
    let fleet = like.another();
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: hostile\n    runtime: command\n    command: exec python3 attack.py\n    \
             working_directory: work\n    sandbox: {{level: landlock{keys}}}\n  \
             - {{name: other, runtime: command, command: date, working_directory: other}}\n"
        ),
    );
    for hidden in [".env", "home/.ssh/id_ed25519", "other/notes", "denied"] {
        fleet.write(hidden, &format!("DEPLOY={CANARY}\n"));
    }
    for (name, text) in [("notes", "text"), ("home/.bashrc", ""), ("work/own", "")] {
        fleet.write(name, text);
    }
    fleet.write("work/attack.py", ATTACK);
    let mut git = fleet.as_user(Command::new("git"));
    git.args(["init", "-q"]).current_dir(fleet.file("work")).env("HOME", fleet.file("home"));
    assert!(git.status().unwrap().success());
    fleet
}

#[test]
fn an_agent_under_landlock_uses_only_the_files_that_it_may() {
    let fleet = limited(&Fleet::unprivileged(), ", deny_read: [denied]");
    let config = fleet.read("heeler.yaml");
    let Ran { code, stdout, stderr } = fleet.run(&["trigger", "hostile"]);
    let said = format!("{stdout}{stderr}");
    assert!(said.contains("finished") && !said.contains("ESCAPED"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fleet.read("heeler.yaml"), config);
    assert_eq!(fleet.read("work/made"), "forged", "the working directory is the real one");
    fleet.run(&["stop", "-q"]);
}

#[test]
fn an_agent_is_refused_where_landlock_does_not_hold() {
    // The state directory is in the working directory, where nothing can be hidden.
    let fleet = limited(&Fleet::unprivileged(), ", write: [.]");
    let Ran { code, stdout, stderr } = fleet.run(&["trigger", "hostile"]);
    let said = format!("{stdout}{stderr}");
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("Landlock cannot hide"), "{said}");
    assert!(!fleet.file("work/made").exists(), "{said}");
    fleet.run(&["stop", "-q"]);
    if rustix::process::geteuid().is_root() {
        let fleet = limited(&Fleet::new(), "");
        let Ran { stdout, stderr, .. } = fleet.run(&["trigger", "hostile"]);
        let said = format!("{stdout}{stderr}");
        assert!(said.contains("Landlock does not hold an agent of root"), "{said}");
        assert!(!fleet.file("work/made").exists(), "{said}");
        fleet.run(&["stop", "-q"]);
    }
}
