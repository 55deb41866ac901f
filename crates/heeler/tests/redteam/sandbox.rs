//! Attacks from inside a sandbox: on files, processes, the kernel and the network outside of it.
//!
//! One job tries everything and prints what succeeds. The test also looks at the outside, because an
//! attack may deceive itself about private copies.

use std::ffi::OsStr;
use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use heeler_testkit::{PodmanEngine, TEST_IMAGE, TEST_VOLUME, TestEngine};

use crate::fleet::{Fleet, Ran};
use crate::trigger::wait_for;

/// Content of files that no sandboxed agent may read.
const CANARY: &str = "canary-8821-of-the-host";

/// Tries to leave the sandbox, and prints a line for each attempt that succeeds. The arguments are
/// TCP port, UDP port and abstract socket of the host, the folder of another agent, a socket of the
/// host, the name of the first process, and a TCP port of the host's IPv6.
const ATTACK: &str = r#"
import ctypes, errno, os, socket, subprocess, sys
# Outside of a sandbox some of these attacks would damage the machine.
CONTAINER = sys.argv[6] == '.heeler-inside'
if open('/proc/1/comm').read().strip() != sys.argv[6]:
    print('ESCAPED: there is no sandbox')
    sys.exit(1)
tcp, udp, abstract, tcp6 = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[7])
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
@attempt('read the state of another fleet')
def _(): return b'canary' in read('neighbour/.heeler/heeler.db')
@attempt('list the state of another fleet')
def _(): return os.listdir('neighbour/.heeler')
# A container has a system of its own.
if not CONTAINER:
    attempt('write the system')(lambda: overwrite('/etc/heeler-attack'))
    attempt('write the home directory of root')(lambda: overwrite('/root/heeler-attack'))
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
attempt('follow a file of the first process')(lambda: os.readlink('/proc/1/fd/0'))
@attempt('use a directory that was open outside')
def _():
    with os.scandir('/proc/self/fd') as entries: numbers = [int(entry.name) for entry in entries]
    for number in filter(lambda number: number > 2, numbers):
        try: return os.listdir(number)
        except OSError: pass
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
# An unknown machine ends the script, and so fails the test.
MACHINE = ('x86_64', 'aarch64').index(os.uname().machine)
def numbered(name, numbers, *args): call(name, numbers[MACHINE], *args)
numbered('ptrace', (101, 117), 16, 1, 0, 0)
numbered('process_vm_readv', (310, 270), 1, 0, 0, 0, 0, 0)
numbered('io_uring_setup', (425, 425), 1, 0)
numbered('userfaultfd', (323, 282), 1)
numbered('keyctl', (250, 219), 0, -3, 0)
numbered('request_key', (249, 218), 0, 0, 0, 0)
numbered('remount', (165, 40), b'none', b'/', b'', 32, b'')
numbered('pivot_root', (155, 41), b'/', b'/')
numbered('unshare', (272, 97), 0x10000000)
numbered('clone of a namespace', (56, 220), 0x10020000 | 17, 0, 0, 0, 0)
numbered('clone3', (435, 435), 0, 0)
numbered('setns', (308, 268), 0, 0)
numbered('add_key', (248, 217), b'user', b'k', b'v', 1, -3)
numbered('io_uring_enter', (426, 426), 0, 0, 0, 0, 0)
numbered('move_mount', (429, 429), -1, b'', -1, b'', 4)
numbered('open_by_handle_at', (304, 265), -100, 0, 0)
numbered('pidfd_getfd', (438, 438), 0, 0, 0)
numbered('bpf', (321, 280), 0, 0, 0)
attempt('make a namespace')(lambda: subprocess.check_call(['unshare', '-Ur', 'true'], stderr=subprocess.DEVNULL) == 0)
status = dict(line.split(':\t', 1) for line in open('/proc/self/status') if ':\t' in line)
if status['NoNewPrivs'].strip() != '1': print('ESCAPED no_new_privs')
for name in ('CapEff', 'CapPrm', 'CapBnd', 'CapAmb', 'CapInh'):
    if int(status[name], 16): print('ESCAPED', name, status[name])
@attempt('gain privileges by a setuid program')
def _():
    # `chmod u+s` on a copy, and the programs of the system.
    subprocess.check_call(['cp', '/usr/bin/id', 'suid'])
    os.chmod('suid', 0o6755)
    return os.getuid() and '0' in subprocess.check_output(['./suid', '-u'], text=True).split()
@attempt('leave a core file')
def _():
    child = os.fork()
    if child == 0:
        try: __import__('resource').setrlimit(4, (1 << 20, 1 << 20))
        except ValueError: pass
        os.chdir('/tmp'); os.abort()
    _, status = os.waitpid(child, 0)
    return os.WCOREDUMP(status) or [it for it in os.listdir('/tmp') if 'core' in it]
attempt('follow the root of another process')(lambda: [os.listdir('/proc/%s/root/..' % it)
    for it in os.listdir('/proc') if it.isdigit() and os.path.exists('/proc/%s/root/etc/shadow' % it)
    and open('/proc/%s/root/etc/shadow' % it).read()])
if os.getuid(): attempt('become root')(lambda: os.setuid(0) is None)
def connect(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind); s.settimeout(2); s.connect(address); return True
attempt('connect to a port of the host')(lambda: connect(socket.AF_INET, ('127.0.0.1', tcp)))
attempt('connect by IPv6')(lambda: connect(socket.AF_INET6, ('::1', tcp6)))
attempt('connect to an address')(lambda: connect(socket.AF_INET, ('1.1.1.1', 53)))
attempt('connect to the metadata address')(lambda: connect(socket.AF_INET, ('169.254.169.254', 80)))
attempt('send UDP')(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53)))
attempt('connect to an abstract socket')(lambda: connect(socket.AF_UNIX, '\0' + abstract))
attempt('connect to a socket of the host')(lambda: connect(socket.AF_UNIX, sys.argv[5]))
attempt('use vsock')(lambda: socket.socket(40, socket.SOCK_STREAM))
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', udp))
except OSError: pass
for address in ('2606:4700:4700::1111', 'fd00:ec2::254', 'fe80::1'):
    attempt('connect to ' + address)(lambda: connect(socket.AF_INET6, (address, 53)))
attempt('resolve a name')(lambda: socket.getaddrinfo('example.com', 80))
# Through the proxy of the run: addresses of the host in every spelling, and its names.
def tunnel(host, port, begin='CONNECT %s HTTP/1.1\r\nhost: x\r\n\r\n'):
    client = socket.create_connection(('127.0.0.1', 3128), 30)
    client.sendall((begin % (host + ':' + str(port))).encode())
    reply = client.recv(4096).decode()
    return reply if ' 200' in reply.split('\n')[0] else proxied.append(reply)
proxied = []
targets = ('127.0.0.1', 'localhost', '127.1', '2130706433', '0x7f000001', '0177.0.0.1', '[::1]',
           '[::ffff:127.0.0.1]', '0.0.0.0', '169.254.169.254', '[fd00:ec2::254]', 'evil.invalid',
           'metadata.google.internal', 'api.anthropic.com.evil.invalid')
for target in targets:
    attempt('tunnel to ' + target)(lambda: tunnel(target, tcp))
    attempt('get from ' + target)(lambda: tunnel(target, tcp, 'GET http://%s/ HTTP/1.1\r\nhost: x\r\n\r\n'))
if len(proxied) != 2 * len(targets): print('ESCAPED: the proxy did not answer', len(proxied))
@attempt('send another name than that of the tunnel')
def _():
    client = socket.create_connection(('127.0.0.1', 3128), 30)
    # Allowed by the list. A machine without a network refuses it as well.
    client.sendall(b'CONNECT api.anthropic.com:443 HTTP/1.1\r\nhost: x\r\n\r\n')
    if b' 200' not in client.recv(4096): return
    import ssl
    context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(client, server_hostname='evil.invalid').version()
attempt('see an interface')(lambda: [n for _, n in socket.if_nameindex() if n != 'lo'])

# Commands of Heeler say why they cannot work.
for folder in () if CONTAINER else ('.', '/'):
    told = subprocess.run([os.path.abspath('bin/heeler'), 'jobs'], cwd=folder, capture_output=True, text=True)
    print('TOLD', told.returncode, told.stderr.replace('\n', ' '), told.stdout, flush=True)

# What an agent must be able to do.
with open('made', 'w') as file: file.write('made')
with open('/tmp/scratch', 'w') as file: file.write('x')
subprocess.check_call(['git', 'add', 'made'])
subprocess.check_call(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'made'])
assert CONTAINER or b'root' in read('/etc/passwd')
assert subprocess.check_output(['sh', '-c', 'echo $HEELER_RUN']).strip()
print('finished')
sys.exit(3)
"#;

/// Isolation from which the attacks start.
struct EscapePlace {
    /// Keys of the agent.
    keys: String,
    /// Lines of the fleet's `.env`.
    dotenv: String,
    /// Name of the first process.
    first: &'static str,
}

impl EscapePlace {
    fn sandbox(like: &Fleet) -> EscapePlace {
        let first = like.first_process();
        EscapePlace { keys: "sandbox: true".to_owned(), dotenv: String::new(), first }
    }

    /// A container of the engine that this `.env` names.
    fn container(dotenv: String) -> EscapePlace {
        let keys =
            format!("docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}']}}");
        EscapePlace { keys, dotenv, first: ".heeler-inside" }
    }
}

/// A fleet with a sandboxed agent that works in the fleet's own directory, and with another agent.
fn sandboxed(like: &Fleet, command: &str, other: &Fleet) -> Fleet {
    isolated(&EscapePlace::sandbox(like), like, command, other)
}

/// Like [`sandboxed`], with this isolation.
fn isolated(place: &EscapePlace, like: &Fleet, command: &str, other: &Fleet) -> Fleet {
    let fleet = like.another();
    let hostile = format!(
        "  - name: hostile\n    runtime: command\n    {}\n    command: '{command}'\n",
        place.keys
    );
    let other = format!(
        "  - name: other\n    runtime: command\n    command: date\n    working_directory: {}\n",
        other.path().display()
    );
    fleet.write("heeler.yaml", &format!("agents:\n{hostile}{other}"));
    fleet.write(".env", &format!("DEPLOY={CANARY}\n{}", place.dotenv));
    fleet.write("home/.ssh/id_ed25519", CANARY);
    let mut git = fleet.as_user(Command::new("git"));
    git.args(["init", "-q"]).current_dir(fleet.path()).env("HOME", fleet.file("home"));
    assert!(git.status().unwrap().success());
    fleet
}

fn nothing_leaves_a_sandbox(like: &Fleet) {
    let said = attack_from(&EscapePlace::sandbox(like), like);
    for hidden in ["the state directory", "no heeler.yaml is visible in /"] {
        let told = said.lines().filter(|line| line.starts_with("TOLD 5 "));
        let told: Vec<&str> = told.filter(|line| line.contains(hidden)).collect();
        assert_eq!(told.len(), 1, "{said}");
        assert!(told[0].contains("in the sandbox of this run"), "{said}");
    }
}

#[test]
fn nothing_leaves_a_container() {
    let engine = TestEngine::start();
    attack_from(&EscapePlace::container(engine.dotenv()), &Fleet::new());
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
}

#[test]
fn nothing_leaves_a_container_of_podman() {
    let engine = PodmanEngine::start();
    attack_from(&EscapePlace::container(engine.dotenv()), &Fleet::new());
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
}

/// Attacks from inside an isolation, and checks the outside. Returns what the agent printed.
fn attack_from(place: &EscapePlace, like: &Fleet) -> String {
    let other = like.another();
    other.write("notes", CANARY);
    let (tcp, udp) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let tcp6 = listen_by_ipv6();
    let name = format!("heeler-test-{}", fastrand::u64(..));
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let socket = other.file("host.sock");
    let _socket = UnixListener::bind(&socket).unwrap();
    let port = |address: std::net::SocketAddr| address.port();
    let command = format!(
        "exec python3 attack.py {} {} {name} {} {} {} {}",
        port(tcp.local_addr().unwrap()),
        port(udp.local_addr().unwrap()),
        other.path().display(),
        socket.display(),
        place.first,
        tcp6.as_ref().map_or(1, |it| port(it.local_addr().unwrap())),
    );
    let fleet = isolated(place, like, &command, &other);
    // Another fleet that the person uses. The agent may read everything else in that folder.
    fleet.write("neighbour/heeler.yaml", "agents: []\n");
    fleet.write("neighbour/.heeler/heeler.db", CANARY);
    let mut trust = fleet.command(&["trust", "--yes"]);
    trust.current_dir(fleet.file("neighbour")).env_remove("HEELER_TRUST");
    Ran::from(trust.output().unwrap()).ok();
    fleet.write("attack.py", ATTACK);
    let (config, hooks) = (fleet.read("heeler.yaml"), list(&fleet, ".git/hooks"));
    let git_config = fleet.read(".git/config");
    // Whoever starts the fleet may pass on descriptors, here of the root directory.
    let wanted = fleet.command(&[]);
    let mut command = fleet.as_user(Command::new("sh"));
    command.args(["-c", "exec \"$0\" trigger hostile 9< /"]).arg(fleet.program());
    command.env_clear().envs(variables(&wanted)).current_dir(fleet.path());
    let ran = Ran::from(command.output().unwrap());
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("finished"), "{said}");
    assert!(!said.contains("ESCAPED"), "{said}");
    assert!(said.contains("exited with code 3"), "the exit code of the agent is told: {said}");
    assert_eq!(fleet.read("heeler.yaml"), config);
    assert_eq!((fleet.read(".git/config"), list(&fleet, ".git/hooks")), (git_config, hooks));
    assert_eq!(fleet.read("made"), "made", "the working directory is the real one");
    assert!(!fleet.file("git-old").exists() && !fleet.file("old.yaml").exists());
    for listener in [Some(tcp), tcp6].into_iter().flatten() {
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "a connection came through");
    }
    udp.set_nonblocking(true).unwrap();
    assert!(udp.recv(&mut [0; 8]).is_err(), "a datagram came through");
    fleet.run(&["stop", "-q"]);
    said
}

/// Listens on the host's IPv6; `None` on a machine without one.
fn listen_by_ipv6() -> Option<TcpListener> {
    let addresses = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let has_loopback = addresses.contains("00000000000000000000000000000001");
    has_loopback.then(|| TcpListener::bind("[::1]:0").unwrap())
}

/// Returns the environment that a command sets.
fn variables(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    command.get_envs().filter_map(|(name, value)| Some((name, value?)))
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

/// Another process replaces a directory that the config lets the agent write by a link to a hidden
/// one, and back, again and again, while runs begin.
fn no_link_that_is_swapped_in_is_mounted(like: &Fleet) {
    no_swapped_link_is_mounted(like, "", "");
}

#[test]
fn no_link_that_is_swapped_in_is_mounted_in_a_container() {
    let engine = TestEngine::start();
    let keys =
        format!("docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}']}}");
    no_swapped_link_is_mounted(&Fleet::new(), &keys, &engine.dotenv());
}

fn no_swapped_link_is_mounted(like: &Fleet, keys: &str, dotenv: &str) {
    const RUNS: usize = 6;
    let fleet = like.another();
    let command = "cat cache/id_ed25519; echo forged > cache/forged; echo begun";
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: hostile\n    runtime: command\n    command: '{command}'\n    \
             sandbox: {{write: [cache]}}\n    {keys}\n"
        ),
    );
    fleet.write(".env", dotenv);
    fleet.write("home/.ssh/id_ed25519", CANARY);
    fleet.write("cache/keep", "");
    fleet.run(&["start", "--detach"]).ok();
    let (cache, aside) = (fleet.file("cache"), fleet.file("aside"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let swapper = threads.spawn(|| {
            let mut swaps = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                std::fs::rename(&cache, &aside).unwrap();
                std::os::unix::fs::symlink("home/.ssh", &cache).unwrap();
                std::thread::yield_now();
                std::fs::remove_file(&cache).unwrap();
                std::fs::rename(&aside, &cache).unwrap();
                swaps += 1;
            }
            swaps
        });
        for _ in 0..RUNS {
            let ran = fleet.run(&["trigger", "hostile"]);
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(!said.contains(CANARY), "{said}");
            assert!(said.contains("begun") || said.contains("in its "), "{said}");
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(swapper.join().unwrap() > 0);
    });
    assert_eq!(list(&fleet, "home/.ssh"), ["id_ed25519"]);
    // Without the swaps, the agent runs.
    assert!(fleet.run(&["trigger", "hostile", "-q"]).stdout.contains("begun"));
    fleet.run(&["stop", "--force", "-q"]);
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
    command.env_clear().envs(variables(&wanted)).current_dir(fleet.path());
    let ran = Ran::from(command.output().unwrap());
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_ne!(ran.code, Some(0), "{said}");
    assert!(said.contains("sudo sysctl -w user.max_user_namespaces=15000"), "{said}");
    assert!(said.contains("`sandbox: off`"), "{said}");
    assert!(!fleet.file("ran").exists(), "it ran without its sandbox: {said}");
}

attacks! {
    nothing_leaves_a_sandbox,
    nothing_of_a_sandbox_outlives_its_runner,
    no_link_that_is_swapped_in_is_mounted,
}
