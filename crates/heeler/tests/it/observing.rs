//! Figures and spans of a real daemon.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};

use camino::Utf8Path;
use heeler_engine::{DaemonCommand, StopMode};
use heeler_testkit::WAIT_MAX;
use serde_json::Value as Json;

use crate::daemon_kills::Herd;
use crate::live::{socket, trigger};

/// A collector that takes everything.
fn collector() -> (SocketAddr, Receiver<(String, Json)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let line = line.trim_end().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
                head.push_str(&line);
                head.push('\n');
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let reply = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.get_mut().write_all(reply.as_bytes()).unwrap();
            if tell.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (address, told)
}

fn get(socket: &Utf8Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

fn attribute<'j>(span: &'j Json, key: &str) -> &'j Json {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key}: {span}"))["value"]
}

#[test]
fn a_run_is_told_to_a_collector_and_counted_for_prometheus() {
    let (address, told) = collector();
    let mut herd = Herd::of(&format!(
        "metrics: true\ntelemetry:\n  endpoint: http://{address}\n  headers: {{x-key: '${{OTLP_KEY}}'}}\n  \
         service_name: herd\nagents:\n  - name: worker\n    runtime: scripted\n    \
         script: [{{cost: 0.01}}, {{say: a word of nobody else}}]\n"
    ));
    herd.env = vec![("OTLP_KEY", "key-of-the-collector".to_owned())];
    let (mut life, mut client) = herd.begin(&[]);
    let job = trigger(&mut client, "worker");
    let (head, document) = told.recv_timeout(WAIT_MAX).unwrap();
    assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
    assert!(head.contains("x-key: key-of-the-collector"), "{head}");
    assert!(!document.to_string().contains("nobody else"), "{document}");
    let spans = &document["resourceSpans"][0];
    assert_eq!(spans["resource"]["attributes"][0]["value"]["stringValue"], "herd");
    let spans = spans["scopeSpans"][0]["spans"].as_array().unwrap();
    let [run, of_job] = &spans[..] else { panic!("{document}") };
    assert_eq!(
        (&run["name"], &of_job["name"]),
        (&"invoke_agent worker".into(), &"job worker".into())
    );
    assert_eq!(run["parentSpanId"], of_job["spanId"]);
    assert_eq!(run["traceId"], of_job["traceId"]);
    assert_eq!(run["traceId"].as_str().unwrap().len(), 32);
    assert_eq!(attribute(run, "gen_ai.agent.name")["stringValue"], "worker");
    assert_eq!(attribute(run, "gen_ai.operation.name")["stringValue"], "invoke_agent");
    assert_eq!(attribute(run, "heeler.job.id")["stringValue"], job.to_string());
    assert_eq!(attribute(of_job, "heeler.status")["stringValue"], "completed");
    // The run was counted before it was told.
    let socket = socket(&herd);
    drop(get(&socket, "/metrics"));
    let page = get(&socket, "/metrics");
    assert!(page.starts_with("HTTP/1.0 200"), "{page}");
    for line in [
        "heeler_runs_total{agent=\"worker\",exit_reason=\"success\"} 1",
        "heeler_jobs{agent=\"worker\",status=\"completed\"} 1",
        "heeler_cost_usd_total{agent=\"worker\"} 0.01",
        "heeler_http_requests_total{method=\"GET\",route=\"/metrics\",code=\"200\"} 1",
        "heeler_queue_length 0",
        "heeler_spans_lost_total 0",
    ] {
        assert!(page.lines().any(|found| found == line), "no {line}: {page}");
    }
    client.send_command(&DaemonCommand::Stop(StopMode::KeepJobs), None).unwrap();
    life.ended();
}

#[test]
fn figures_are_not_served_unless_the_config_says_so() {
    let herd = Herd::of("agents:\n  - {name: worker, runtime: scripted, script: [{say: hi}]}\n");
    let (mut life, mut client) = herd.begin(&[]);
    let page = get(&socket(&herd), "/metrics");
    assert!(page.starts_with("HTTP/1.0 404"), "{page}");
    assert!(page.contains("metrics: true"), "{page}");
    client.send_command(&DaemonCommand::Stop(StopMode::KeepJobs), None).unwrap();
    life.ended();
}
