//! A proxy with a network that the tests control, and servers that record what reaches them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heeler_config::{EgressRules, HostName};
use heeler_egress::{
    AgentPeerCheck, ApiRoute, EgressEvent, EgressLimits, EgressNetwork, EgressOptions, EgressProxy,
    GitRoute, NetworkFuture,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longest wait for something that must happen.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// A public address, which leads to the test's server.
pub(crate) const PUBLIC: &str = "8.8.4.4";

/// Waits for something that must happen.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(WAIT_MAX, what).await.expect("it happens in time")
}

/// Answers of DNS, and connections that all lead to one server.
#[derive(Default)]
pub(crate) struct FakeNetwork {
    /// Answers by name; the last one is repeated.
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    server: Option<SocketAddr>,
    pub(crate) resolved: Mutex<Vec<String>>,
    pub(crate) dialed: Mutex<Vec<SocketAddr>>,
}

impl FakeNetwork {
    pub(crate) fn answer(&self, host: &str, answers: &[&[&str]]) {
        let parse = |ips: &&[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let answers = answers.iter().map(parse).collect();
        self.answers.lock().unwrap().insert(host.to_owned(), answers);
    }

    pub(crate) fn dialed(&self) -> Vec<String> {
        self.dialed.lock().unwrap().iter().map(SocketAddr::to_string).collect()
    }
}

impl EgressNetwork for FakeNetwork {
    fn resolve<'n>(&'n self, host: &'n HostName) -> NetworkFuture<'n, Vec<IpAddr>> {
        self.resolved.lock().unwrap().push(host.to_string());
        let mut answers = self.answers.lock().unwrap();
        let found = match answers.get_mut(host.as_str()) {
            Some(answers) if answers.len() > 1 => answers.pop_front(),
            Some(answers) => answers.front().cloned(),
            None => Some(vec![PUBLIC.parse().unwrap()]),
        };
        Box::pin(async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }

    fn connect(&self, address: SocketAddr) -> NetworkFuture<'_, TcpStream> {
        self.dialed.lock().unwrap().push(address);
        Box::pin(async move {
            match self.server {
                Some(server) => TcpStream::connect(server).await,
                // An address that never answers.
                None => std::future::pending().await,
            }
        })
    }
}

/// Settings of a test's proxy.
pub(crate) struct ProxySetup {
    pub(crate) is_agent: AgentPeerCheck,
    pub(crate) rules: EgressRules,
    pub(crate) asks: bool,
    pub(crate) api: Option<ApiRoute>,
    pub(crate) git: Option<GitRoute>,
    pub(crate) limits: EgressLimits,
    pub(crate) server: Option<SocketAddr>,
}

pub(crate) struct ProxyFixture {
    _dir: TempDir,
    socket: std::path::PathBuf,
    pub(crate) network: Arc<FakeNetwork>,
    pub(crate) events: mpsc::Receiver<EgressEvent>,
    _proxy: EgressProxy,
}

/// Returns rules that allow these hosts.
pub(crate) fn rules(allow: &[&str], ports: &[u16], local: &[&str]) -> EgressRules {
    EgressRules {
        allow: allow.iter().map(|host| host.parse().unwrap()).collect(),
        presets: Vec::new(),
        ports: ports.iter().map(|port| (*port).try_into().unwrap()).collect(),
        allow_local: local.iter().map(|address| address.parse().unwrap()).collect(),
    }
}

impl ProxySetup {
    /// Allows `a.example` at the usual ports.
    pub(crate) fn new(server: Option<SocketAddr>) -> ProxySetup {
        ProxySetup {
            is_agent: Arc::new(|_| true),
            rules: rules(&["a.example", "*.b.example"], &[80, 443], &[]),
            asks: false,
            api: None,
            git: None,
            limits: EgressLimits::default(),
            server,
        }
    }

    pub(crate) fn start(self) -> ProxyFixture {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("egress.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let network = Arc::new(FakeNetwork { server: self.server, ..FakeNetwork::default() });
        let (sender, events) = mpsc::channel(64);
        let options = EgressOptions {
            is_agent: self.is_agent,
            rules: self.rules,
            asks: self.asks,
            api: self.api,
            git: self.git,
            forwarded: Vec::new(),
            own_port: Some(3128),
            limits: self.limits,
            network: Arc::clone(&network) as Arc<dyn EgressNetwork>,
            events: sender,
        };
        let proxy = EgressProxy::start(listener, options).unwrap();
        ProxyFixture { _dir: dir, socket, network, events, _proxy: proxy }
    }
}

impl ProxyFixture {
    pub(crate) async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.unwrap()
    }

    /// Sends bytes on a new connection and returns the first reply.
    pub(crate) async fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The proxy may close before it has read everything.
        drop(stream.write_all(request).await);
        read_reply(&mut stream).await
    }

    /// Opens a tunnel by `CONNECT` and returns it with the status of the reply.
    pub(crate) async fn tunnel(&self, target: &str) -> (UnixStream, String) {
        let mut stream = self.connect().await;
        let request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
        (stream, status)
    }

    /// Returns the next decision as text.
    pub(crate) async fn decision(&mut self) -> String {
        match soon(self.events.recv()).await {
            Some(EgressEvent::Decision(decision)) => {
                let verdict = decision.denial.map_or("allowed".to_owned(), |why| why.to_string());
                format!("{}:{} {verdict}", decision.host, decision.port)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Reads until the other side closes.
pub(crate) async fn read_all(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    // A reset after the last byte is an end too.
    drop(soon(stream.read_to_end(&mut bytes)).await);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the head of a message.
pub(crate) async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match soon(stream.read_u8()).await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Reads a reply with a body of known length.
pub(crate) async fn read_reply(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let head = read_head(stream).await;
    let length = head.to_lowercase();
    let length = length.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.unwrap_or("0").parse().unwrap()];
    soon(stream.read_exact(&mut body)).await.unwrap();
    head + &String::from_utf8(body).unwrap()
}

/// A server that answers each connection with a fixed text after the first bytes, and records all that
/// it receives.
pub(crate) struct RecordingServer {
    pub(crate) address: SocketAddr,
    received: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl RecordingServer {
    pub(crate) async fn start(reply: &'static str) -> RecordingServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut bytes = vec![0; 64 << 10];
                    let mut count = 0;
                    // The whole head, if it is one.
                    while let Ok(more @ 1..) = stream.read(&mut bytes[count..]).await {
                        count += more;
                        if count > 4
                            && (bytes[0] == 22
                                || bytes[..count].windows(4).any(|end| end == b"\r\n\r\n"))
                        {
                            break;
                        }
                    }
                    bytes.truncate(count);
                    drop(stream.write_all(reply.as_bytes()).await);
                    drop(stream.shutdown().await);
                    drop(stream.read_to_end(&mut bytes).await);
                    drop(sender.send(bytes));
                });
            }
        });
        RecordingServer { address, received }
    }

    /// Returns all that the next finished connection has sent.
    pub(crate) async fn received(&mut self) -> Vec<u8> {
        soon(self.received.recv()).await.unwrap()
    }
}

/// Returns the first message of a TLS client for this server.
pub(crate) fn client_hello(name: Option<&str>, is_encrypted: bool) -> Vec<u8> {
    let vector = |content: &[u8]| {
        [&u16::try_from(content.len()).unwrap().to_be_bytes()[..], content].concat()
    };
    let mut extensions = [&[0, 43][..], &vector(&[2, 3, 4])].concat();
    if let Some(name) = name {
        let list = vector(&[&[0][..], &vector(name.as_bytes())].concat());
        extensions = [&extensions[..], &[0, 0], &vector(&list)].concat();
    }
    if is_encrypted {
        extensions = [&extensions[..], &[0xfe, 0x0d], &vector(&[1; 50])].concat();
    }
    let body =
        [&[3, 3][..], &[7; 32], &[0], &vector(&[0x13, 1]), &[1, 0], &vector(&extensions)].concat();
    let size = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1], &size[1..], &body].concat();
    [&[22, 3, 1][..], &vector(&message)].concat()
}
