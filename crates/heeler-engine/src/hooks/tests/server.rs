//! An HTTP server that sends prepared responses and records its requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// A recorded request.
#[derive(Debug, Clone)]
pub(super) struct RecordedHookRequest {
    /// `POST /path`.
    pub(super) line: String,
    /// Header names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl RecordedHookRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A server on this machine.
pub(super) struct HookTestServer {
    pub(super) port: u16,
    asked: Arc<Mutex<Vec<RecordedHookRequest>>>,
}

impl HookTestServer {
    /// Sends these responses in order, and then repeats the last one. A response is a status,
    /// optional header lines, and optionally an empty line and a body. An empty one is never sent.
    pub(super) fn start(answers: &[&str]) -> HookTestServer {
        HookTestServer::new(answers, None)
    }

    /// The same, but each response waits until the sender is used.
    pub(super) fn gated(answers: &[&str]) -> (HookTestServer, Sender<()>) {
        let (open, gate) = channel();
        (HookTestServer::new(answers, Some(gate)), open)
    }

    fn new(answers: &[&str], gate: Option<Receiver<()>>) -> HookTestServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (known, answers) = (asked.clone(), answers.iter().map(|it| (*it).to_owned()));
        let answers: Vec<String> = answers.collect();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for (count, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let Some(request) = read(&stream) else { continue };
                known.lock().unwrap().push(request);
                // After the test the remaining responses are not needed.
                let _open = gate.as_ref().map(|gate| gate.recv());
                let answer = answers.get(count).or(answers.last()).unwrap();
                if answer.is_empty() {
                    held.push(stream);
                    continue;
                }
                let (head, body) = answer.split_once("\n\n").unwrap_or((answer, ""));
                let head = head.replace('\n', "\r\n");
                let length = body.len();
                // The client may have disconnected.
                drop(write!(
                    stream,
                    "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                ));
            }
        });
        HookTestServer { port, asked }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn asked(&self) -> Vec<RecordedHookRequest> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<RecordedHookRequest> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let split = |line: &String| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers: Vec<(String, String)> = lines[1..].iter().map(split).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    let line = lines[0].trim_end_matches(" HTTP/1.1").to_owned();
    Some(RecordedHookRequest { line, headers, body: String::from_utf8(body).unwrap() })
}
