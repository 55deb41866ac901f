//! Attacks from inside a sandbox: on files, processes, the kernel and the network outside of it.
//!
//! One job tries everything and prints what succeeds. The test also looks at the outside, because an
//! attack may deceive itself about private copies.

use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use crate::fleet::Fleet;
use crate::trigger::wait_for;

/// Content of files that no sandboxed agent may read.
const CANARY: &str = "canary-8821-of-the-host";

/// Tries to leave the sandbox, and prints a line for each attempt that succeeds. The arguments are
/// TCP port, UDP port and abstract socket of the host.
const ATTACK: &str = r#"
import ctypes, errno, os, socket, subprocess, sys
tcp, udp, abstract = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name):
    def run(attack):
        try: result = attack()
        except (OSError, subprocess.CalledProcessError): return
        if result: print('ESCAPED', name, str(result)[:200], flush=True)
    return run
def read(path): return open(path, 'rb').read()
def overwrite(path):
    with open(path, 'a') as file: file.write('forged')
    return path

@attempt('read a key of the person')
def _(): return b'canary' in read('home/.ssh/id_ed25519')
@attempt('read a key through a link')
def _():
    os.symlink(os.path.abspath('home/.ssh'), 'link'); return b'canary' in read('link/id_ed25519')
@attempt('list the state directory')
def _(): return os.listdir('.heeler')
@attempt('read the .env of the fleet')
def _(): return b'canary' in read('.env')
@attempt('read the folder of another agent')
def _(): return b'canary' in read(sys.argv[4] + '/notes')
@attempt('write the system')
def _(): return overwrite('/etc/heeler-attack')
@attempt('write the home directory of root')
def _(): return overwrite('/root/heeler-attack')
@attempt('write the config')
def _(): return overwrite('heeler.yaml')
@attempt('replace the config')
def _(): os.rename('attack.py', 'heeler.yaml'); return True
@attempt('move the config')
def _(): os.rename('heeler.yaml', 'old.yaml'); return True
@attempt('write a hook of git')
def _(): return overwrite('.git/hooks/pre-commit')
@attempt('write the config of git')
def _(): return overwrite('.git/config')
@attempt('replace the config of git')
def _(): open('c', 'w').close(); os.rename('c', '.git/config'); return True
@attempt('move the git directory aside')
def _(): os.rename('.git', 'git-old'); return True
@attempt('move the hooks aside')
def _(): os.rename('.git/hooks', '.git/old'); return True
for path in ('/proc/1/mem', '/proc/1/environ'):
    attempt('read ' + path)(lambda: read(path))
attempt('write the memory of the first process')(lambda: open('/proc/1/mem', 'r+b') and True)
attempt('follow the root of the first process')(lambda: os.listdir('/proc/1/root/'))
attempt('list the files of the first process')(lambda: os.listdir('/proc/1/fd'))
attempt('kill the first process')(lambda: os.kill(1, 9))
@attempt('see a runner')
def _():
    seen = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try: line = read('/proc/' + pid + '/cmdline').split(b'\0')
        except OSError: continue
        if b'runner' in line or b'start' in line: seen.append(line)
    return seen
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/overcommit_memory', '/sys/kernel',
             '/proc/sysrq-trigger', '/sys/fs/cgroup', '/boot', '/usr'):
    attempt('write ' + path)(lambda: os.access(path, os.W_OK))
attempt('see a disk')(lambda: [it for it in os.listdir('/dev') if it[:2] in ('sd', 'vd', 'nv', 'lo', 'dm')])
def call(name, number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print('ESCAPED call', name, os.strerror(ctypes.get_errno()), flush=True)
if os.uname().machine == 'x86_64':
    call('ptrace', 101, 16, 1, 0, 0)
    call('process_vm_readv', 310, 1, 0, 0, 0, 0, 0)
    call('io_uring_setup', 425, 1, 0)
    call('userfaultfd', 323, 1)
    call('keyctl', 250, 0, -3, 0)
    call('request_key', 249, 0, 0, 0, 0)
    call('remount', 165, b'none', b'/', b'', 32, b'')
    call('pivot_root', 155, b'/', b'/')
    call('unshare', 272, 0x10000000)
    call('clone of a namespace', 56, 0x10020000 | 17, 0, 0, 0, 0)
    call('clone3', 435, 0, 0)
    call('setns', 308, 0, 0)
    call('bpf', 321, 0, 0, 0)
attempt('make a namespace')(lambda: subprocess.check_call(['unshare', '-Ur', 'true'], stderr=subprocess.DEVNULL) == 0)
status = dict(line.split(':\t', 1) for line in open('/proc/self/status') if ':\t' in line)
if status['NoNewPrivs'].strip() != '1': print('ESCAPED no_new_privs')
for name in ('CapEff', 'CapPrm', 'CapBnd', 'CapAmb', 'CapInh'):
    if int(status[name], 16): print('ESCAPED', name, status[name])
if os.getuid(): attempt('become root')(lambda: os.setuid(0) is None)
def connect(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind); s.settimeout(2); s.connect(address); return True
attempt('connect to a port of the host')(lambda: connect(socket.AF_INET, ('127.0.0.1', tcp)))
attempt('connect by IPv6')(lambda: connect(socket.AF_INET6, ('::1', tcp)))
attempt('connect to an address')(lambda: connect(socket.AF_INET, ('1.1.1.1', 53)))
attempt('connect to the metadata address')(lambda: connect(socket.AF_INET, ('169.254.169.254', 80)))
attempt('send UDP')(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53)))
attempt('connect to an abstract socket')(lambda: connect(socket.AF_UNIX, '\0' + abstract))
attempt('connect to a socket of the host')(lambda: connect(socket.AF_UNIX, sys.argv[5]))
attempt('use vsock')(lambda: socket.socket(40, socket.SOCK_STREAM))
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', udp))
except OSError: pass
attempt('see an interface')(lambda: [n for _, n in socket.if_nameindex() if n != 'lo'])

# What an agent must be able to do.
with open('made', 'w') as file: file.write('made')
with open('/tmp/scratch', 'w') as file: file.write('x')
subprocess.check_call(['git', 'add', 'made'])
subprocess.check_call(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'made'])
assert b'root' in read('/etc/passwd')
assert subprocess.check_output(['sh', '-c', 'echo $HEELER_RUN']).strip()
print('finished')
sys.exit(3)
"#;

/// A fleet with a sandboxed agent that works in the fleet's own directory, and with another agent.
fn sandboxed(like: &Fleet, command: &str, other: &Fleet) -> Fleet {
    let fleet = like.another();
    let hostile = format!(
        "  - name: hostile\n    runtime: command\n    sandbox: true\n    command: '{command}'\n"
    );
    let other = format!(
        "  - name: other\n    runtime: command\n    command: date\n    working_directory: {}\n",
        other.path().display()
    );
    fleet.write("heeler.yaml", &format!("agents:\n{hostile}{other}"));
    fleet.write(".env", &format!("DEPLOY={CANARY}\n"));
    fleet.write("home/.ssh/id_ed25519", CANARY);
    let mut git = fleet.as_user(Command::new("git"));
    git.args(["init", "-q"]).current_dir(fleet.path()).env("HOME", fleet.file("home"));
    assert!(git.status().unwrap().success());
    fleet
}

fn nothing_leaves_a_sandbox(like: &Fleet) {
    let other = like.another();
    other.write("notes", CANARY);
    let (tcp, udp) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let name = format!("heeler-test-{}", fastrand::u64(..));
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let socket = other.file("host.sock");
    let _socket = UnixListener::bind(&socket).unwrap();
    let port = |address: std::net::SocketAddr| address.port();
    let command = format!(
        "exec python3 attack.py {} {} {name} {} {}",
        port(tcp.local_addr().unwrap()),
        port(udp.local_addr().unwrap()),
        other.path().display(),
        socket.display(),
    );
    let fleet = sandboxed(like, &command, &other);
    fleet.write("attack.py", ATTACK);
    let (config, hooks) = (fleet.read("heeler.yaml"), list(&fleet, ".git/hooks"));
    let git_config = fleet.read(".git/config");
    let ran = fleet.run(&["trigger", "hostile"]);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("finished"), "{said}");
    assert!(!said.contains("ESCAPED"), "{said}");
    assert!(said.contains("exited with code 3"), "the exit code of the agent is told: {said}");
    assert_eq!(fleet.read("heeler.yaml"), config);
    assert_eq!((fleet.read(".git/config"), list(&fleet, ".git/hooks")), (git_config, hooks));
    assert_eq!(fleet.read("made"), "made", "the working directory is the real one");
    assert!(!fleet.file("git-old").exists() && !fleet.file("old.yaml").exists());
    tcp.set_nonblocking(true).unwrap();
    assert!(tcp.accept().is_err(), "a connection came through");
    udp.set_nonblocking(true).unwrap();
    assert!(udp.recv(&mut [0; 8]).is_err(), "a datagram came through");
    fleet.run(&["stop", "-q"]);
}

fn list(fleet: &Fleet, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fleet.file(folder)).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// PIDs of processes with this text in their command line.
fn processes_with(text: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        let mut line = Vec::new();
        let file = std::fs::File::open(format!("/proc/{pid}/cmdline"));
        let _read = file.and_then(|mut file| file.read_to_end(&mut line));
        String::from_utf8_lossy(&line).contains(text)
    })
    .collect()
}

/// A process that detaches from everything, in three ways, and waits.
const DETACHED: &str = r#"
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve('/bin/sleep', ['sleep', sys.argv[1]], {})
        os._exit(0)
open('ready', 'w').close()
time.sleep(600)
"#;

fn nothing_of_a_sandbox_outlives_its_runner(like: &Fleet) {
    for kills_daemon in [false, true] {
        let other = like.another();
        let mark = format!("600.{}", fastrand::u32(1_000_000_000..));
        let fleet = sandboxed(like, &format!("exec python3 detach.py {mark}"), &other);
        fleet.write("detach.py", DETACHED);
        fleet.run(&["start", "--detach"]).ok();
        fleet.run(&["trigger", "hostile", "--detach", "-q"]).ok();
        wait_for("the agent", || fleet.file("ready").exists().then_some(()));
        wait_for("its children", || (processes_with(&mark).len() >= 4).then_some(()));
        if kills_daemon {
            fleet.kill("start");
        }
        fleet.kill("runner");
        wait_for("the end of all its processes", || processes_with(&mark).is_empty().then_some(()));
        // The job is on record as interrupted, whoever finds it.
        fleet.run(&["start", "--detach"]);
        let status = || {
            let jobs = fleet.json(&["jobs", "--json"]);
            let job = &jobs["jobs"][0];
            (job["status"] != "running" && job["status"] != "pending").then(|| job.clone())
        };
        let job = wait_for("the end of the job", status);
        assert_eq!(job["agent"], "hostile", "{job}");
        fleet.run(&["stop", "--force", "-q"]);
    }
}

#[test]
fn an_agent_is_refused_where_no_sandbox_can_be_made() {
    let like = Fleet::empty();
    let fleet = sandboxed(&like, "echo > ran", &like.another());
    let mut command = Command::new("unshare");
    // The limit holds for namespaces below the new one only.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" trigger hostile";
    command.args(["-Ur", "sh", "-c", script]).arg(fleet.program());
    let wanted = fleet.command(&[]);
    let variables = wanted.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.env_clear().envs(variables).current_dir(fleet.path());
    let ran = crate::fleet::Ran::from(command.output().unwrap());
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_ne!(ran.code, Some(0), "{said}");
    assert!(said.contains("sudo sysctl -w user.max_user_namespaces=15000"), "{said}");
    assert!(said.contains("`sandbox: off`"), "{said}");
    assert!(!fleet.file("ran").exists(), "it ran without its sandbox: {said}");
}

attacks! {
    nothing_leaves_a_sandbox,
    nothing_of_a_sandbox_outlives_its_runner,
}
