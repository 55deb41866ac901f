//! Attacks of a sandboxed agent on its network: hosts that are not listed, addresses, and the
//! credentials of its API.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use heeler_testkit::{
    MessagesApi, ModelScript, ModelScriptStep, TEST_IMAGE, TEST_VOLUME, TestEngine, claude,
};
use serde_json::{Value as Json, json};

use crate::fleet::{Fleet, Ran};

/// Credential of the API, which the agent must not see.
const KEY: &str = "sk-ant-network-4711";

/// A fleet with one sandboxed agent, which has these keys.
fn fleet(keys: &Json) -> Fleet {
    let fleet = Fleet::new();
    let mut agent = json!({
        "name": "victim", "claude_path": claude(), "working_directory": "work",
        "setting_sources": [], "allowed_tools": ["Bash"],
        "sandbox": {"network": {"allow": ["listed.invalid"]}},
    });
    for (key, value) in keys.as_object().unwrap() {
        agent[key] = value.clone();
    }
    std::fs::create_dir(fleet.file("work")).unwrap();
    fleet.write("heeler.yaml", &json!({"agents": [agent]}).to_string());
    fleet
}

fn trigger(fleet: &Fleet, api: &MessagesApi, prompt: &str) -> Ran {
    let mut command: Command = fleet.command(&["trigger", "victim", "--prompt", prompt]);
    command.env("ANTHROPIC_BASE_URL", api.url()).env("ANTHROPIC_API_KEY", KEY);
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    command.env("CLAUDE_CODE_MAX_RETRIES", "1");
    Ran::from(command.output().unwrap())
}

/// Returns the last job, with all of its fields.
fn last_job(fleet: &Fleet) -> Json {
    let id = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].clone();
    fleet.json(&["jobs", "show", id.as_str().unwrap(), "--json"])["job"].clone()
}

/// Returns the rows of the last job about its network.
fn network_rows(fleet: &Fleet) -> Vec<String> {
    let id = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].clone();
    let rows = fleet.read(&format!(".heeler/jobs/{}.jsonl", id.as_str().unwrap()));
    let rows = rows.lines().map(|row| serde_json::from_str::<Json>(row).unwrap());
    let rows = rows.filter(|row| row["subtype"] == "network");
    rows.map(|row| row["content"].as_str().unwrap().to_owned()).collect()
}

/// Files of the agent's working directory that have the credential in them.
fn files_with_the_key(fleet: &Fleet) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(fleet.file("work")).unwrap().map(|file| file.unwrap().path());
    let has_key = |file: &std::path::PathBuf| {
        std::fs::read(file)
            .is_ok_and(|bytes| bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes()))
    };
    files.filter(has_key).collect()
}

#[test]
fn claude_reaches_its_api_without_a_key_and_no_other_host() {
    for runtime in ["sdk", "cli"] {
        let fleet = fleet(&json!({"runtime": runtime}));
        let api = MessagesApi::start();
        let attack = "curl -sS -m 30 https://evil.invalid/ > denied 2>&1; \
            curl -sS -m 30 http://169.254.169.254/latest/ > metadata 2>&1; \
            curl -sS -m 5 --noproxy '*' https://1.1.1.1/ > direct 2>&1; \
            env > env; cat /proc/*/environ > environ 2>/dev/null; cat /proc/*/cmdline > args 2>/dev/null; true";
        let script = ModelScript::new().tool("Bash", json!({"command": attack})).text("Done.");
        let said = trigger(&fleet, &api, &format!("Please. {script}"));
        assert!(said.ok().contains("Done."), "{runtime}");
        let requests = api.messages();
        assert_eq!(requests.len(), 2, "{runtime}");
        assert!(
            requests.iter().all(|request| request.header("x-api-key") == Some(KEY)),
            "{requests:?}"
        );
        assert!(fleet.read("work/denied").contains("403"), "{}", fleet.read("work/denied"));
        assert!(
            fleet.read("work/metadata").contains("IP address"),
            "{}",
            fleet.read("work/metadata")
        );
        assert!(fleet.read("work/direct").contains("curl: ("), "{}", fleet.read("work/direct"));
        assert!(
            fleet.read("work/env").contains("ANTHROPIC_API_KEY="),
            "{}",
            fleet.read("work/env")
        );
        assert_eq!(files_with_the_key(&fleet), Vec::<std::path::PathBuf>::new(), "{runtime}");
        let rows = network_rows(&fleet);
        assert!(
            rows.iter().any(|row| row.starts_with("denied evil.invalid:443: ")
                && row.contains("sandbox.network.allow")),
            "{rows:?}"
        );
        assert!(rows.iter().any(|row| row.starts_with("denied 169.254.169.254:80: ")), "{rows:?}");
    }
}

/// Calls the API as a program would that reports no cost.
fn call_api(count: u32) -> String {
    let usage = json!({"input_tokens": 1000, "output_tokens": 1000});
    let reply = ModelScriptStep { usage: Some(usage), ..ModelScriptStep::text("Hi.") };
    let script = ModelScript::new().step(reply).to_string();
    let body = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 100,
        "messages": [{"role": "user", "content": script}],
    });
    format!(
        "for call in $(seq {count}); do curl -s -o reply.$call -w '%{{http_code}}\\n' -H 'content-type: application/json' \
         -H \"x-api-key: $ANTHROPIC_API_KEY\" -d '{body}' $ANTHROPIC_BASE_URL/v1/messages; done"
    )
}

#[test]
fn tokens_that_an_agent_does_not_report_are_counted() {
    let fleet =
        fleet(&json!({"runtime": "command", "command": call_api(2), "allowed_tools": null}));
    let api = MessagesApi::start();
    let said = trigger(&fleet, &api, "go");
    assert_eq!(said.ok().matches("200").count(), 2);
    assert!(api.messages().iter().all(|request| request.header("x-api-key") == Some(KEY)));
    let job = last_job(&fleet);
    assert!(job["costUsd"].as_f64().is_some_and(|usd| usd > 0.0), "{job:#}");
    assert_eq!(files_with_the_key(&fleet), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_budget_holds_against_an_agent_that_reports_nothing() {
    let keys = json!({
        "runtime": "command", "command": call_api(3), "allowed_tools": null,
        "budget": {"job": 0.01},
    });
    let fleet = fleet(&keys);
    let api = MessagesApi::start();
    let said = trigger(&fleet, &api, "go");
    let codes: Vec<String> = said.ok().lines().map(str::to_owned).collect();
    assert_eq!(codes, ["200", "403", "403"]);
    assert_eq!(api.messages().len(), 1);
    assert!(fleet.read("work/reply.2").contains("the run has spent its budget"));
}

#[test]
fn an_agent_cannot_use_the_proxy_of_another_run() {
    let api = MessagesApi::start();
    let call = call_api(1);
    let fleet = fleet(&json!({
        "runtime": "command", "allowed_tools": null,
        "command": format!("touch ready; until test -e over; do sleep 0.05; done; {call}"),
    }));
    let mut config: Json = serde_json::from_str(&fleet.read("heeler.yaml")).unwrap();
    let attack = "until test -e work/ready; do sleep 0.05; done; \
        socket=$(ls heeler-*/*.d/e); test -S \"$socket\" || exit 1; \
        curl -sS --unix-socket \"$socket\" -H 'content-type: application/json' -d '{}' \
        -H 'x-api-key: none' http://127.0.0.1:3128/v1/messages > stolen 2>&1; echo $? > code; \
        touch work/over";
    let attacker = json!({"name": "attacker", "runtime": "command", "command": attack});
    config["agents"].as_array_mut().unwrap().push(attacker);
    fleet.write("heeler.yaml", &config.to_string());
    let mut command = fleet.command(&["trigger", "victim", "--detach", "-q"]);
    command.env("ANTHROPIC_BASE_URL", api.url()).env("ANTHROPIC_API_KEY", KEY);
    Ran::from(command.output().unwrap()).ok();
    fleet.run(&["trigger", "attacker"]).ok();
    assert_ne!(fleet.read("code"), "0\n", "{}", fleet.read("stolen"));
    let job = crate::trigger::wait_for("the victim", || {
        let jobs = fleet.jobs();
        jobs.into_iter().find(|job| job.head.agent == "victim" && job.head.status.is_final())
    });
    assert_eq!(job.head.status, heeler_model::JobStatus::Completed);
    // The one call is that of the victim.
    let calls = api.messages();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].body["model"], "claude-sonnet-4-5");
}

#[test]
fn a_local_server_is_reached_only_if_it_is_listed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let count = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nlocal").unwrap();
        // The first connection is that of the agent with the listed address.
        String::from_utf8_lossy(&request[..count]).into_owned()
    });
    let command = format!("curl -sS -x $http_proxy --noproxy '' http://{address}/");
    let api = MessagesApi::start();
    let keys = json!({"runtime": "command", "command": command, "allowed_tools": null});
    let denied = fleet(&keys);
    assert!(trigger(&denied, &api, "go").ok().contains("an IP address is not allowed"));
    let mut keys = keys;
    keys["sandbox"] = json!({"network": {"allow_local": [address.to_string()]}});
    let allowed = fleet(&keys);
    assert!(trigger(&allowed, &api, "go").ok().contains("local"));
    assert!(server.join().unwrap().starts_with("GET / HTTP/1.1"));
    assert_eq!(network_rows(&allowed), [format!("allowed {address}")]);
}

/// Tries to reach a local service by a listed name that leads to it, and another TLS host in the
/// tunnel of a listed one. The arguments are the ports of the two services.
const DECEIVE: &str = r#"
import socket, ssl, sys
service, listed = sys.argv[1], sys.argv[2]
def tunnel(target):
    client = socket.create_connection(('127.0.0.1', 3128), 60)
    client.sendall(f'CONNECT {target} HTTP/1.1\r\nhost: x\r\n\r\n'.encode())
    return client, client.recv(4096)
def hello(name):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    it = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    try: it.do_handshake()
    except ssl.SSLWantReadError: pass
    return outgoing.read()
client, reply = tunnel('rebind.test:' + service)
print('REBIND', reply.split(b'\r')[0].decode())
def socks(host, port):
    client = socket.create_connection(('127.0.0.1', 3128), 60)
    client.sendall(b'\5\1\0')
    assert client.recv(2) == b'\5\0'
    kind = b'\1' + socket.inet_aton(host) if host[0].isdigit() else b'\3' + bytes([len(host)]) + host.encode()
    client.sendall(b'\5\1\0' + kind + int(port).to_bytes(2, 'big'))
    return client.recv(10)[1:2]
for host, port in (('rebind.test', service), ('127.0.0.1', service), ('localhost', service), ('localhost', listed)):
    print('SOCKS', host, port == listed, socks(host, port) == b'\0')
for name in ('evil.invalid', 'localhost'):
    client, reply = tunnel('localhost:' + listed)
    assert b' 200' in reply, reply
    client.sendall(hello(name))
    try: answer = client.recv(100)
    except OSError: answer = b''
    print('SNI', name, answer.decode())
"#;

/// The file of names leads a listed name to this machine, as an answer of DNS can.
fn a_listed_name_leads_to_no_other_host(keys: &str, dotenv: &str) {
    let (service, listed) = (listen(), listen());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let (service_port, listed_port) = (port(&service), port(&listed));
    let fleet = Fleet::new();
    std::fs::create_dir(fleet.file("work")).unwrap();
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: victim\n    runtime: command\n    working_directory: work\n    \
             command: 'exec python3 deceive.py {service_port} {listed_port}'\n    {keys}\n    \
             sandbox: {{network: {{allow: ['rebind.test:{service_port}'], \
             allow_local: ['localhost:{listed_port}']}}}}\n"
        ),
    );
    fleet.write("work/deceive.py", DECEIVE);
    fleet.write(".env", dotenv);
    // The proxy asks for whole names only, which end with a dot.
    fleet.write("hosts", "127.0.0.1 localhost rebind.test.\n");
    let answers = std::thread::spawn(move || {
        loop {
            let (mut client, _) = listed.accept().unwrap();
            let mut hello = [0; 4096];
            // The proxy connects before it has seen the name, and then closes the connection.
            let count = client.read(&mut hello).unwrap_or(0);
            if count > 0 {
                client.write_all(b"reached").unwrap();
                return String::from_utf8_lossy(&hello[..count]).into_owned();
            }
        }
    });
    // The names are replaced for this command and the daemon that it starts.
    let script = "mount --bind \"$1\" /etc/hosts && exec \"$0\" trigger victim";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(fleet.program()).arg(fleet.file("hosts"));
    let wanted = fleet.command(&[]);
    command.env_clear().current_dir(fleet.path());
    command.envs(wanted.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = Ran::from(command.output().unwrap()).ok();
    assert!(said.contains("REBIND HTTP/1.1 403"), "{said}");
    for refused in ["rebind.test", "127.0.0.1", "localhost"] {
        assert!(said.contains(&format!("SOCKS {refused} False False")), "{said}");
    }
    assert!(said.contains("SOCKS localhost True True"), "{said}");
    assert!(said.contains("SNI localhost reached"), "the tunnel itself works: {said}");
    assert!(!said.contains("SNI evil.invalid reached"), "{said}");
    // The first bytes that arrived are those with the name of the tunnel.
    let hello = answers.join().unwrap();
    assert!(hello.contains("localhost") && !hello.contains("evil"), "{hello}");
    service.set_nonblocking(true).unwrap();
    assert!(service.accept().is_err(), "the service was reached");
    fleet.run(&["stop", "--force", "-q"]);
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn a_listed_name_leads_to_no_other_host_from_a_sandbox() {
    a_listed_name_leads_to_no_other_host("", "");
}

#[test]
fn a_listed_name_leads_to_no_other_host_from_a_container() {
    let engine = TestEngine::start();
    let keys =
        format!("docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}']}}");
    a_listed_name_leads_to_no_other_host(&keys, &engine.dotenv());
}
