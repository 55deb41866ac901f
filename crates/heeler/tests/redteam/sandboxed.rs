//! The attacks of the other files, from inside a sandbox and a container, by an agent that knows every path, process
//! and secret that it would have to find out first.
//!
//! One job tries everything, beside a daemon, an agent with an open question, and an honest agent
//! with a record. It says when each attack begins: an attack that did not begin proves nothing. The
//! test then compares the outside with what it was before.

use std::collections::BTreeMap;

use heeler_testkit::{TEST_IMAGE, TEST_VOLUME, TestEngine};
use serde_json::{Value as Json, json};

use crate::fleet::Fleet;
use crate::trigger::{scripted, wait_for};

/// Files that decide what runs.
const CONTROL_FILES: [&str; 5] =
    ["heeler.yaml", "agents/other.yaml", "workflows/build.yaml", ".env", "hooks/tell.sh"];

/// Value of `.env` that only people may read.
const SETTING: &str = "q7Zk-setting-77aP2";

/// Names of the attacks, in the order in which they begin. The files that have them outside of a
/// sandbox: `results`, `config_changes`, `secrets`, `authority`, `sockets`, `delegation`, `writer`.
const ATTACKS: [&str; 26] = [
    "forge a result",
    "forge a row of its session",
    "rewrite a transcript",
    "remove the records",
    "change the database",
    "hide that it was started",
    "plant a run",
    "change what runs",
    "add a workflow",
    "read what only people may read",
    "find a token on disk",
    "find the capability of another run",
    "read the memory of the daemon",
    "kill the runner, the daemon and another run",
    "answer the question of another run",
    "use the sockets of its run",
    "pose as a runner",
    "pose as the daemon",
    "call the daemon",
    "start another agent",
    "start another agent as another run",
    "confirm a change",
    "make a token",
    "start the daemon",
    "start the daemon without the variables of the run",
    "write the records by commands",
];

/// Tries each attack of [`ATTACKS`], and prints when it begins and whether it gained something.
const SCRIPT: &str = r#"
import glob, json, os, signal, socket, sqlite3, subprocess, sys
if open('/proc/1/comm').read().strip() != json.load(open('known.json'))['first']:
    print('GAINED there is no sandbox')
    sys.exit(1)
known = json.load(open('known.json'))
state, heeler = known['state'], os.path.abspath('bin/heeler')
own = state + '/runs/' + os.environ['HEELER_RUN']
def attack(name):
    def run(body):
        print('BEGUN', name, flush=True)
        try: gained = body()
        except (OSError, sqlite3.Error, subprocess.SubprocessError): gained = None
        if gained: print('GAINED', name, str(gained)[:300], flush=True)
    return run
def write(path, text, mode='w'):
    # What is written into an empty directory in memory is no gain. The test compares the real files.
    existed = os.path.exists(path)
    with open(path, mode) as file: file.write(text)
    return 'wrote ' + path if existed else None
def command(*args, env=None):
    ran = subprocess.run([heeler, *args], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, timeout=60)
    return ran.stdout + ran.stderr if ran.returncode == 0 else None
def connect(path):
    client = socket.socket(socket.AF_UNIX); client.settimeout(10); client.connect(path)
    return client

@attack('forge a result')
def _():
    forged = {'protocol': 1, 'run': os.environ['HEELER_RUN'], 'job': known['job'], 'end': 'finished',
              'exit_reason': 'success', 'summary': 'forged', 'cost': {'usd': 0.0, 'usage': {}}}
    os.makedirs(own, exist_ok=True)
    return write(own + '/result.json', json.dumps(forged))
@attack('forge a row of its session')
def _(): return write(known['log'], '{"type":"result","result":"forged"}\n', 'a')
@attack('rewrite a transcript')
def _():
    text = open(known['transcript']).read()
    return write(known['transcript'], text.replace('Hello', 'Bye'))
@attack('remove the records')
def _(): return [os.remove(path) for path in glob.glob(state + '/*')]
@attack('change the database')
def _():
    database = sqlite3.connect('file:' + state + '/heeler.db?mode=rw', uri=True)
    database.execute("UPDATE executions SET status = 'completed', cost_usd = -3.0")
    return database.commit() or 'changed'
@attack('hide that it was started')
def _(): return os.remove(own + '/started.json') or 'removed'
@attack('plant a run')
def _():
    open(own + '/spec.json').close()
    return os.rename(own, own[:-1] + '0') or 'planted'
@attack('change what runs')
def _():
    changed = []
    for path in known['control']:
        try: open(path, 'a').write('\n# changed'); changed.append(path)
        except OSError: pass
        try: os.rename('attack.py', path); changed.append(path)
        except OSError: pass
    return changed
@attack('add a workflow')
def _(): return open('workflows/new.yaml', 'w').write('name: new\n')
@attack('read what only people may read')
def _():
    found = []
    for path in ('.env', state + '/heeler.db', known['transcript']):
        try: found.append(open(path, 'rb').read())
        except OSError: pass
    return b''.join(found)
@attack('find a token on disk')
def _():
    found = subprocess.run(['grep', '-rlaE', 'heeler_[0-9a-f]{64}', '.', state], capture_output=True)
    return found.stdout
@attack('find the capability of another run')
def _():
    found = b''
    for path in glob.glob('/proc/[0-9]*/environ'):
        try: found += open(path, 'rb').read()
        except OSError: pass
    return known['capability'].encode() in found
@attack('read the memory of the daemon')
def _(): return [open('/proc/%d/mem' % pid, 'rb') for pid in known['pids']]
@attack('kill the runner, the daemon and another run')
def _(): return [os.kill(pid, signal.SIGKILL) for pid in known['pids']]
@attack('answer the question of another run')
def _():
    client = connect(known['control_socket'])
    answer = {'behavior': 'allow', 'input': {'command': 'echo owned > did'}}
    line = {'protocol': 1, 'id': 1, 'op': 'answer', 'ask': known['ask'], 'answer': answer, 'by': 'ann'}
    client.sendall((json.dumps(line) + '\n').encode())
    return client.recv(65536)
@attack('use the sockets of its run')
def _():
    # By the socket of its runner, the first process got the arguments and secrets of the agent. The
    # proxy serves the first process only.
    gained = b''
    for path in glob.glob('/.heeler/*') + glob.glob('/run/heeler/*'):
        try:
            client = connect(path)
            client.sendall(b'CONNECT example.invalid:443 HTTP/1.1\r\n\r\n')
            reply = client.recv(65536)
            # A refusal of the proxy of this run is what every program of the agent gets.
            if not reply.startswith(b'HTTP/1.1 403'): gained += reply
        except OSError: pass
        try: gained += b'replaced' if os.rename('attack.py', path) is None else b''
        except OSError: pass
    return gained
@attack('pose as a runner')
def _():
    started = own + '/started.json'
    record = json.load(open(started)); record['socket'] = os.path.abspath('fake.sock')
    return write(started, json.dumps(record))
@attack('pose as the daemon')
def _(): return os.rename(known['socket'], known['socket'] + '.real') or 'moved'
@attack('call the daemon')
def _():
    client = connect(known['socket'])
    client.sendall(b'GET /internal/hello HTTP/1.1\r\nhost: heeler\r\nconnection: close\r\n\r\n')
    return client.recv(65536)
attack('start another agent')(lambda: command('trigger', 'other', '--detach'))
@attack('start another agent as another run')
def _(): return command('trigger', 'other', '--detach', env={**os.environ, 'HEELER_RUN_TOKEN': known['capability']})
attack('confirm a change')(lambda: command('reload', '--accept', '--yes'))
attack('make a token')(lambda: command('token', 'create', 'mine', '--scope', 'admin'))
attack('start the daemon')(lambda: command('start', '--detach') or command('restart'))
@attack('start the daemon without the variables of the run')
def _():
    # It may run one in the empty directory that it sees. Nothing of that is outside.
    bare = {'HOME': os.environ['HOME'], 'PATH': os.environ['PATH'], 'HEELER_TRUST': 'all', 'HEELER_NO_WEB': '1'}
    for args in (['start', '--detach'], ['token', 'create', 'mine', '--scope', 'admin'], ['trigger', 'other', '-q'], ['stop', '--force']):
        command(*args, env=bare)
@attack('write the records by commands')
def _(): return command('doctor', '--rebuild', '--yes') or command('restore', '--yes', 'saved.tar.gz')
print('finished')
"#;

/// Place in which the attacks run.
struct AttackPlace {
    /// Keys of the agent.
    keys: String,
    /// Lines of the fleet's `.env`.
    dotenv: String,
    /// Name of the first process.
    first: &'static str,
}

/// Configures a fleet with the agent `hostile` in this place, and its victims.
fn configure(fleet: &Fleet, place: &AttackPlace) {
    let hostile = format!(
        "runtime: command\ncommand: 'exec python3 attack.py'\n{}\n\
         hooks: {{after_run: [{{type: shell, command: ./hooks/tell.sh}}]}}",
        place.keys
    );
    let steps = "{run: 'echo $HEELER_RUN_TOKEN > stolen.new; mv stolen.new stolen'}, \
                 {run: 'echo done > did', ask_permission: true}, {say: Went on.}";
    let victim = format!("approvals: interactive\n{}", scripted(steps));
    let honest = scripted("{cost: 0.25}, {say: Hello.}");
    fleet.configure(&[("hostile", &hostile), ("victim", &victim), ("honest", &honest)]);
    let config = fleet.read("heeler.yaml") + "  - path: agents/other.yaml\n";
    fleet.write("heeler.yaml", &config);
    fleet.write("agents/other.yaml", "name: other\nruntime: command\ncommand: echo other\n");
    let phases = "phases:\n  - {name: a, type: bash, command: 'true'}\n";
    fleet.write("workflows/build.yaml", &format!("name: build\nagent: other\n{phases}"));
    fleet.write(".env", &format!("SETTING='{SETTING}'\n{}", place.dotenv));
    fleet.write("hooks/tell.sh", "#!/bin/sh\necho told >> told\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(fleet.file("hooks/tell.sh"), mode).unwrap();
    fleet.write("attack.py", SCRIPT);
}

/// Content of the files that the attacks would change, and what the fleet has on record.
#[derive(Debug, PartialEq)]
struct OutsideView {
    files: BTreeMap<String, Option<String>>,
    honest: Json,
    tokens: Json,
    spent: Json,
}

fn view(fleet: &Fleet, honest: &str) -> OutsideView {
    let more = ["workflows/new.yaml", "evil-ran"];
    let transcript = format!(".heeler/jobs/{honest}.jsonl");
    let names = CONTROL_FILES.iter().copied().chain(more).chain([transcript.as_str()]);
    let content = |name: &str| std::fs::read_to_string(fleet.file(name)).ok();
    OutsideView {
        files: names.map(|name| (name.to_owned(), content(name))).collect(),
        honest: fleet.json(&["jobs", "show", honest, "--json"])["job"].clone(),
        tokens: fleet.json(&["token", "list", "--json"])["tokens"].clone(),
        spent: fleet.json(&["costs", "--json"])["totalUsd"].clone(),
    }
}

/// Everything that an agent without a sandbox could find out.
fn knowledge(fleet: &Fleet, honest: &str, victim: &str) -> Json {
    let list = fleet.json(&["approvals", "list", "--json"]);
    let daemon: Json = serde_json::from_str(&fleet.read(".heeler/daemon.json")).unwrap();
    let read = |file: std::path::PathBuf| {
        serde_json::from_str::<Json>(&std::fs::read_to_string(file).ok()?).ok()
    };
    let mut runs = std::fs::read_dir(fleet.file(".heeler/runs")).unwrap().flatten();
    let of_victim = runs
        .find(|run| read(run.path().join("spec.json")).is_some_and(|spec| spec["job"] == victim));
    let started = read(of_victim.expect("the victim runs").path().join("started.json")).unwrap();
    json!({
        "state": fleet.file(".heeler"), "job": honest, "control": CONTROL_FILES,
        "transcript": fleet.file(&format!(".heeler/jobs/{honest}.jsonl")),
        "log": started["session_log"], "socket": daemon["socket"],
        "capability": fleet.read("stolen").trim(), "ask": list["approvals"][0]["id"],
        "control_socket": started["socket"], "pids": [daemon["pid"], started["pid"]],
    })
}

fn no_attack_gains_anything_from_inside_a_sandbox(like: &Fleet) {
    let first = like.first_process();
    let place = AttackPlace { keys: "sandbox: true".to_owned(), dotenv: String::new(), first };
    attack_from(&place, &like.another());
}

#[test]
fn no_attack_gains_anything_from_inside_a_container() {
    let engine = TestEngine::start();
    let place = AttackPlace {
        keys: format!(
            "docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}']}}"
        ),
        dotenv: engine.dotenv(),
        first: ".heeler-inside",
    };
    attack_from(&place, &Fleet::new());
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
}

/// Waits for containers of other runs, and poses as their first process.
const POSE: &str = r#"
import glob, os, socket, sys, time
sockets, got = sys.argv[1], b''
open('waits', 'w').close()
while not os.path.exists('enough'):
    for path in glob.glob(sockets + '/*.[dk]/r'):
        client = socket.socket(socket.AF_UNIX); client.settimeout(0.2)
        try:
            client.connect(path)
            open('posed', 'w').close()
            got += client.recv(65536)
        except OSError: pass
    time.sleep(0.001)
print('GOT', got)
"#;

#[test]
fn no_other_process_poses_as_the_first_process_of_a_container() {
    let engine = TestEngine::start();
    let fleet = Fleet::new();
    let docker = format!(
        "runtime: command\ncommand: 'echo $DEPLOY_TOKEN | wc -c > length'\n\
         secrets: [DEPLOY_TOKEN]\nworking_directory: boxed\n\
         docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}']}}"
    );
    let honest = scripted("{say: Hello.}");
    fleet.write("boxed/here", "");
    fleet.configure(&[("boxed", &docker), ("honest", &honest)]);
    fleet.write(".env", &format!("DEPLOY_TOKEN='{SETTING}'\n{}", engine.dotenv()));
    fleet.run(&["start", "--detach"]).ok();
    fleet.run(&["trigger", "honest", "-q"]).ok();
    let mut runs = std::fs::read_dir(fleet.file(".heeler/runs")).unwrap().flatten();
    let started = std::fs::read_to_string(runs.next().unwrap().path().join("started.json"));
    let started: Json = serde_json::from_str(&started.unwrap()).unwrap();
    let socket = camino::Utf8PathBuf::from(started["socket"].as_str().unwrap());
    fleet.write("pose.py", POSE);
    let hostile =
        format!("runtime: command\ncommand: 'exec python3 pose.py {}'\n", socket.parent().unwrap());
    fleet.run(&["stop", "-q"]);
    fleet.configure(&[("boxed", &docker), ("hostile", &hostile)]);
    fleet.run(&["start", "--detach"]).ok();
    fleet.run(&["trigger", "hostile", "--detach", "-q"]).ok();
    wait_for("the attacker", || fleet.file("waits").exists().then_some(()));
    // It must have connected at least once, or the test proves nothing.
    wait_for("an attack", || {
        fleet.run(&["trigger", "boxed", "-q"]).ok();
        let length = fleet.read("boxed/length");
        assert_eq!(length.trim(), (SETTING.len() + 1).to_string(), "the real one got the secret");
        fleet.file("posed").exists().then_some(())
    });
    fleet.write("enough", "");
    let said = wait_for("the attacker's end", || {
        let jobs = fleet.jobs();
        let job = jobs.iter().find(|job| job.head.agent == "hostile")?;
        let id = job.head.id.to_string();
        job.head.status.is_final().then(|| fleet.run(&["jobs", "logs", &id]).ok())
    });
    assert!(said.contains("GOT b''"), "{said}");
    fleet.run(&["stop", "--force", "-q"]);
}

fn attack_from(place: &AttackPlace, fleet: &Fleet) {
    configure(fleet, place);
    fleet.run(&["start", "--detach"]).ok();
    fleet.run(&["trigger", "honest", "-q"]).ok();
    let honest = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    fleet.run(&["trigger", "victim", "--detach", "-q"]).ok();
    let asked = wait_for("a question", || {
        fleet.json(&["approvals", "list", "--json"])["approvals"].get(0).cloned()
    });
    let victim = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    fleet.run(&["backup", "saved.tar.gz"]).ok();
    let mut known = knowledge(fleet, &honest, &victim);
    known["first"] = json!(place.first);
    assert!(known["capability"].as_str().unwrap().starts_with("heeler-run."), "{known:#}");
    fleet.write("known.json", &known.to_string());
    fleet.run(&["token", "create", "viewer", "--scope", "read"]).ok();
    let before = view(fleet, &honest);
    assert_eq!(before.spent, json!(0.25));

    let said = fleet.run(&["trigger", "hostile", "-q"]).ok();
    let begun: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("BEGUN ")).collect();
    assert_eq!(begun, ATTACKS, "{said}");
    assert!(said.contains("finished") && !said.contains("GAINED"), "{said}");
    assert!(!said.contains(SETTING), "{said}");

    assert_eq!(view(fleet, &honest), before);
    assert_eq!(fleet.json(&["status", "--json"])["configChange"], Json::Null);
    assert!(fleet.jobs().iter().all(|job| job.head.agent != "other"), "another agent was started");
    let daemon: Json = serde_json::from_str(&fleet.read(".heeler/daemon.json")).unwrap();
    assert_eq!(daemon["pid"], known["pids"][0], "the daemon still lives");
    wait_for("the hook of the config", || fleet.file("told").exists().then_some(()));
    // Views of the last job may not be published yet.
    wait_for("an examination without findings", || {
        (fleet.run(&["doctor"]).code == Some(0)).then_some(())
    });
    // The question waits for a person, whose answer counts.
    let id = asked["id"].as_str().unwrap();
    let shown = fleet.json(&["approvals", "show", id, "--json"])["approval"].clone();
    assert_eq!(shown["status"], "pending", "{shown}");
    fleet.run(&["approvals", "approve", id]).ok();
    wait_for("the victim's work", || fleet.file("did").exists().then_some(()));
    assert_eq!(fleet.read("did"), "done\n");
    fleet.run(&["stop", "--force", "-q"]);
}

attacks![no_attack_gains_anything_from_inside_a_sandbox];
