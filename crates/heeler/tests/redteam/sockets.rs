//! Attacks on sockets: an agent that poses as a runner or as the daemon, uses up connections, or
//! reaches the daemon where it is not recognized.

use serde_json::Value as Json;

use crate::fleet::Fleet;
use crate::trigger::wait_for;

/// Listens on a socket of its own in place of the runner of each run named in its arguments, and
/// replies that all is done.
const FAKE_RUNNER: &str = r#"
import json, os, socket, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind('fake.sock')
listener.listen()
for run in sys.argv[1:]:
    path = f'.heeler/runs/{run}/started.json'
    started = json.load(open(path))
    started['socket'] = os.path.abspath('fake.sock')
    json.dump(started, open(path, 'w'))
open('ready', 'w').close()
def serve(client):
    for line in client.makefile():
        request = json.loads(line)
        reply = {'protocol': request['protocol'], 'id': request['id'], 'reply': 'done'}
        client.sendall((json.dumps(reply) + '\n').encode())
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Takes the place of the daemon's socket, and replies to each request as the real one replied to
/// a greeting. Requests are written to the file `heard`.
const FAKE_DAEMON: &str = r#"
import json, os, socket, threading
path = json.load(open('.heeler/daemon.json'))['socket']
os.rename(path, path + '.real')
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
real = socket.socket(socket.AF_UNIX)
real.connect(path + '.real')
real.sendall(b'GET /internal/hello HTTP/1.1\r\nhost: heeler\r\nconnection: close\r\n\r\n')
hello = b''
while data := real.recv(65536): hello += data
open('ready', 'w').close()
def serve(client):
    while request := client.recv(65536):
        open('heard', 'ab').write(request)
        client.sendall(hello)
while not os.path.exists('over'):
    listener.settimeout(0.2)
    try: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    except TimeoutError: pass
os.rename(path + '.real', path)
"#;

/// Answers the open question of its own run on its runner's socket.
const OWN_ANSWER: &str = r#"
import glob, json, os, socket, time
run = os.environ['HEELER_RUN']
while not (asks := glob.glob(f'.heeler/runs/{run}/asks/*.json')): time.sleep(0.02)
ask = os.path.basename(asks[0]).removesuffix('.json')
client = socket.socket(socket.AF_UNIX)
client.connect(json.load(open(f'.heeler/runs/{run}/started.json'))['socket'])
answer = {'behavior': 'allow', 'input': {'command': 'echo owned > did'}}
request = {'protocol': 1, 'id': 1, 'op': 'answer', 'ask': ask, 'answer': answer, 'by': 'ann'}
client.sendall((json.dumps(request) + '\n').encode())
open('reply.new', 'w').write(client.recv(65536).decode())
os.rename('reply.new', 'reply')
"#;

/// Keeps more connections to the daemon open than people may have, until the test is over.
const MANY_CONNECTIONS: &str = r#"
import json, os, socket, time
path = json.load(open('.heeler/daemon.json'))['socket']
clients = []
for _ in range(300):
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    try: client.sendall(b'GET /internal/hello HTTP/1.1\r\nhost: heeler\r\n\r\n')
    except OSError: pass
    clients.append(client)
open('ready', 'w').close()
while not os.path.exists('over'): time.sleep(0.05)
"#;

/// Calls a webhook on the daemon's unix socket, with the right signature.
const SIGNED_CALL: &str = r#"
import hashlib, hmac, json, socket
body = b'{}'
secret = open('.env').read().strip().split('=')[1].encode()
signature = hmac.new(secret, body, hashlib.sha256).hexdigest()
client = socket.socket(socket.AF_UNIX)
client.connect(json.load(open('.heeler/daemon.json'))['socket'])
head = (f'POST /hooks/victim/push HTTP/1.1\r\nhost: heeler\r\nheeler-delivery: 1\r\n'
        f'x-hub-signature-256: sha256={signature}\r\ncontent-type: application/json\r\n'
        f'connection: close\r\ncontent-length: {len(body)}\r\n\r\n')
client.sendall(head.encode() + body)
reply = b''
while data := client.recv(65536): reply += data
print(reply.decode())
"#;

/// Writes a config whose agents have these keys, and starts a daemon that stays.
fn start(fleet: &Fleet, agents: &[(&str, &str)]) {
    let list = |(name, keys): &(&str, &str)| {
        format!("  - name: {name}\n    {}\n", keys.trim().replace('\n', "\n    "))
    };
    let agents: String = agents.iter().map(list).collect();
    fleet.write("heeler.yaml", &format!("agents:\n{agents}"));
    fleet.run(&["start", "-d", "-q"]).ok();
}

fn stop(fleet: &Fleet) {
    fleet.write("over", "");
    fleet.run(&["stop", "--force", "-q"]).ok();
}

/// Triggers an agent and returns its job once it runs.
fn trigger(fleet: &Fleet, agent: &str) -> String {
    let job = fleet.json(&["trigger", agent, "--detach", "--json"])["job"].clone();
    let id = job.as_str().or_else(|| job["id"].as_str()).unwrap().to_owned();
    wait_for("the run", || (status(fleet, &id) == "running").then_some(()));
    id
}

fn shown(fleet: &Fleet, job: &str) -> Json {
    fleet.json(&["jobs", "show", job, "--json"])["job"].clone()
}

fn status(fleet: &Fleet, job: &str) -> String {
    shown(fleet, job)["status"].as_str().unwrap_or_default().to_owned()
}

fn wait_for_file(fleet: &Fleet, name: &str) {
    wait_for(name, || fleet.file(name).exists().then_some(()));
}

/// An agent that runs a Python script of the test.
fn hostile(script: &str, keys: &str) -> String {
    format!("runtime: command\ncommand: 'exec python3 {script}'\n{keys}")
}

/// The agent replaces its runner's socket by its own, so that it cannot be cancelled.
fn an_agent_cannot_receive_its_own_cancellation(fleet: &Fleet) {
    fleet.write("fake.py", FAKE_RUNNER);
    let command = "runtime: command\ncommand: 'exec python3 fake.py $HEELER_RUN'";
    start(fleet, &[("hostile", command)]);
    let job = trigger(fleet, "hostile");
    wait_for_file(fleet, "ready");
    fleet.run(&["cancel", &job]).ok();
    wait_for("the end of the job", || (status(fleet, &job) == "cancelled").then_some(()));
    stop(fleet);
}

/// The agent removes its runner's start file, so that it cannot be cancelled.
fn an_agent_cannot_hide_its_runner_from_a_cancellation(fleet: &Fleet) {
    let command = "runtime: command\ncommand: 'rm .heeler/runs/$HEELER_RUN/started.json; \
                   touch ready; exec sleep 600'";
    start(fleet, &[("hostile", command)]);
    let job = trigger(fleet, "hostile");
    wait_for_file(fleet, "ready");
    fleet.run(&["cancel", &job, "--now"]).ok();
    wait_for("the end of the job", || (status(fleet, &job) == "cancelled").then_some(()));
    stop(fleet);
}

/// The agent may cancel its child, and makes the daemon take another run for the child.
fn an_agent_cannot_have_the_daemon_cancel_another_run(fleet: &Fleet) {
    let program = fleet.program();
    fleet.write(
        "attack.sh",
        &format!(
            "H={}\n$H trigger kid --detach -q\n\
             while [ ! -e kid-run ] || [ ! -e victim-run ]; do sleep 0.05; done\n\
             cp .heeler/runs/$(cat victim-run)/started.json .heeler/runs/$(cat kid-run)/started.json\n\
             $H cancel $(cat kid-job) --now; touch ready\n",
            program.display()
        ),
    );
    let waits = |name: &str| {
        format!(
            "runtime: command\ncommand: 'echo $HEELER_JOB > {name}-job; echo $HEELER_RUN > \
             {name}-run; while [ ! -e over ]; do sleep 0.05; done'"
        )
    };
    let hostile = "runtime: command\ncommand: 'exec sh attack.sh'\nspawn: {agents: [kid]}";
    start(fleet, &[("victim", &waits("victim")), ("kid", &waits("kid")), ("hostile", hostile)]);
    let victim = trigger(fleet, "victim");
    fleet.run(&["trigger", "hostile", "-q"]).ok();
    wait_for_file(fleet, "ready");
    assert_eq!(status(fleet, &victim), "running");
    fleet.write("over", "");
    wait_for("the end of the victim", || (status(fleet, &victim) == "completed").then_some(()));
    stop(fleet);
}

/// An agent without the mark of agents answers its own question.
fn an_agent_that_may_gain_privileges_cannot_answer_itself(fleet: &Fleet) {
    fleet.write("answer.py", OWN_ANSWER);
    // A program with Heeler's name counts as Heeler, and runs beside the question.
    let script = "{run: 'cp /usr/bin/python3 heelerpy; ./heelerpy answer.py > out 2>&1 & true'}, \
                  {run: 'echo done > did', ask_permission: true}";
    let keys = format!(
        "approvals: interactive\nallow_new_privileges: true\nruntime: scripted\nscript: [{script}]"
    );
    start(fleet, &[("hostile", &keys)]);
    let job = trigger(fleet, "hostile");
    wait_for_file(fleet, "reply");
    let reply = fleet.read("reply");
    assert!(reply.contains("refused"), "{reply}");
    assert!(!fleet.file("did").exists());
    fleet.run(&["cancel", &job, "--now"]).ok();
    stop(fleet);
}

/// A person's command meets a socket that an agent serves in place of the daemon.
fn an_agent_cannot_pose_as_the_daemon(fleet: &Fleet) {
    fleet.write("fake.py", FAKE_DAEMON);
    start(fleet, &[("hostile", &hostile("fake.py", ""))]);
    trigger(fleet, "hostile");
    wait_for_file(fleet, "ready");
    let refused = fleet.run(&["token", "create", "mine", "--scope", "read"]);
    assert_ne!(refused.code, Some(0), "{}", refused.stdout);
    assert!(refused.stderr.contains("agent"), "{}", refused.stderr);
    assert!(!fleet.file("heard").exists(), "nothing was sent: {}", fleet.read("heard"));
    fleet.write("over", "");
    wait_for("the real daemon", || {
        fleet.run(&["status", "-q"]).stdout.contains("hostile").then_some(())
    });
    stop(fleet);
}

/// An agent opens as many connections as it can.
fn an_agent_cannot_lock_people_out_of_the_socket(fleet: &Fleet) {
    fleet.write("many.py", MANY_CONNECTIONS);
    start(fleet, &[("hostile", &hostile("many.py", ""))]);
    let job = trigger(fleet, "hostile");
    wait_for_file(fleet, "ready");
    fleet.run(&["token", "create", "mine", "--scope", "read"]).ok();
    // The agent still holds them.
    assert_eq!(status(fleet, &job), "running");
    fleet.run(&["cancel", &job, "--now"]).ok();
    stop(fleet);
}

/// An agent that found the secret of a webhook calls it on the daemon's own socket.
fn an_agent_cannot_start_another_by_a_webhook_on_the_socket(fleet: &Fleet) {
    fleet.write("call.py", SIGNED_CALL);
    fleet.write(".env", "HOOK_SECRET=signs-the-calls-1\n");
    let victim = "runtime: command\ncommand: 'touch did'\nschedules:\n  push: {type: webhook, \
                  secret_env: HOOK_SECRET}";
    start(fleet, &[("victim", victim), ("hostile", &hostile("call.py", ""))]);
    let said = fleet.run(&["trigger", "hostile", "-q"]).stdout;
    assert!(said.contains("HTTP/1.1 403"), "{said}");
    let jobs = fleet.json(&["jobs", "--agent", "victim", "--json"]);
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(0), "{jobs}");
    stop(fleet);
}

/// Sends a command to the internal interface with a token, as a program of the user does.
const INTERNAL_COMMAND: &str = r#"
import json, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(json.load(open('.heeler/daemon.json'))['socket'])
head = (f'POST /internal/command HTTP/1.1\r\nhost: heeler\r\nauthorization: Bearer {sys.argv[1]}\r\n'
        f'content-type: application/json\r\nconnection: close\r\ncontent-length: 2\r\n\r\n')
client.sendall(head.encode() + b'{}')
reply = b''
while data := client.recv(65536): reply += data
print(reply.decode())
"#;

#[test]
fn a_token_gives_no_more_on_the_socket_than_its_scope() {
    let fleet = Fleet::new();
    fleet.write("call.py", INTERNAL_COMMAND);
    fleet.run(&["start", "-d", "-q"]).ok();
    let call = |scope: &str| {
        let token = fleet.run(&["token", "create", scope, "--scope", scope]).ok();
        let mut python = std::process::Command::new("python3");
        let said = python.args(["call.py", token.trim()]).current_dir(fleet.path()).output();
        String::from_utf8(said.unwrap().stdout).unwrap()
    };
    for scope in ["read", "operate"] {
        let said = call(scope);
        assert!(said.contains("does not have the scope `admin`"), "{said}");
    }
    let said = call("admin");
    assert!(said.contains("HTTP/1.1 4") && !said.contains("scope"), "it is not a command: {said}");
    stop(&fleet);
}

attacks![
    an_agent_cannot_receive_its_own_cancellation,
    an_agent_cannot_hide_its_runner_from_a_cancellation,
    an_agent_cannot_have_the_daemon_cancel_another_run,
    an_agent_that_may_gain_privileges_cannot_answer_itself,
    an_agent_cannot_pose_as_the_daemon,
    an_agent_cannot_lock_people_out_of_the_socket,
    an_agent_cannot_start_another_by_a_webhook_on_the_socket,
];
