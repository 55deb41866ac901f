//! Tunnels of `CONNECT` and SOCKS5: the check of their first bytes, and their transfer.

use heeler_config::{HostName, RequestHost};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::client_hello::{HELLO_BYTES_MAX, HelloFinding, inspect_hello};
use crate::decision::DenialReason;
use crate::gate::EgressGate;
use crate::meter::ActivityMeter;
use crate::relay::{RelaySocket as _, pump, write_all};

/// Ports at which a tunnel must carry TLS: without it, the host that the agent talks to could not be
/// checked.
const TLS_PORTS: [u16; 2] = [80, 443];

/// Bytes that are read at once while the first message is awaited.
const READ_BYTES: usize = 4 << 10;

/// A connected tunnel.
pub(crate) struct EgressTunnel {
    pub(crate) host: RequestHost,
    pub(crate) port: u16,
    pub(crate) upstream: TcpStream,
}

/// End of a tunnel before its transfer is complete.
enum TunnelEnd {
    Denied(DenialReason),
    /// A connection broke, or nothing was sent in time.
    Broken,
}

impl EgressTunnel {
    /// Serves the tunnel to its end. `first` are bytes that the agent has sent already.
    pub(crate) async fn serve(
        self,
        agent: &UnixStream,
        first: Vec<u8>,
        gate: &EgressGate,
        meter: &ActivityMeter,
    ) {
        let upload = async {
            let checked = self.check_first_bytes(agent, first, gate).await?;
            meter.record();
            write_all(&self.upstream, &checked).await.map_err(|_| TunnelEnd::Broken)?;
            pump(agent, &self.upstream, meter).await.map_err(|_| TunnelEnd::Broken)
        };
        // Both at once: some servers speak first.
        let download =
            async { pump(&self.upstream, agent, meter).await.map_err(|_| TunnelEnd::Broken) };
        if let Err(TunnelEnd::Denied(reason)) = tokio::try_join!(upload, download) {
            gate.report(&self.host.to_string(), self.port, Some(reason)).await;
        }
    }

    /// Returns the first bytes for the host, once they are known to be allowed.
    async fn check_first_bytes(
        &self,
        agent: &UnixStream,
        mut bytes: Vec<u8>,
        gate: &EgressGate,
    ) -> Result<Vec<u8>, TunnelEnd> {
        let needs_tls = TLS_PORTS.contains(&self.port);
        // At other ports the server may speak first, and the agent may be silent for long.
        let mut limit = if needs_tls { Some(gate.limits.hello_time_max) } else { None };
        loop {
            match inspect_hello(&bytes) {
                HelloFinding::Incomplete if bytes.len() > 2 * HELLO_BYTES_MAX => {
                    return Err(TunnelEnd::Denied(DenialReason::MalformedHello));
                }
                HelloFinding::Incomplete => {}
                finding => return self.judge(finding, needs_tls).map(|()| bytes),
            }
            if !bytes.is_empty() {
                limit = Some(gate.limits.hello_time_max);
            }
            let read = read_more(agent, &mut bytes);
            let count = match limit {
                Some(limit) => timeout(limit, read).await.map_err(|_| TunnelEnd::Broken)?,
                None => read.await,
            };
            match count {
                // It may only listen to what the server says.
                Ok(0) if bytes.is_empty() && !needs_tls => return Ok(bytes),
                // The agent has closed; an unfinished hello is not sent on.
                Ok(0) | Err(_) => return Err(TunnelEnd::Broken),
                Ok(_) => {}
            }
        }
    }

    fn judge(&self, finding: HelloFinding, needs_tls: bool) -> Result<(), TunnelEnd> {
        let denial = match finding {
            HelloFinding::ServerName(name) if self.is_host(&name) => return Ok(()),
            HelloFinding::ServerName(name) => DenialReason::ServerName(name.to_string()),
            HelloFinding::NotTls if !needs_tls => return Ok(()),
            HelloFinding::NotTls => DenialReason::NoTls,
            // TLS to an address names no server. Only listed local addresses get here.
            HelloFinding::NoServerName if matches!(self.host, RequestHost::Ip(_)) => return Ok(()),
            HelloFinding::NoServerName => DenialReason::NoServerName,
            HelloFinding::Encrypted => DenialReason::HiddenServerName,
            HelloFinding::Malformed | HelloFinding::Incomplete => DenialReason::MalformedHello,
        };
        Err(TunnelEnd::Denied(denial))
    }

    fn is_host(&self, name: &HostName) -> bool {
        matches!(&self.host, RequestHost::Name(host) if host == name)
    }
}

async fn read_more(agent: &UnixStream, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut buffer = [0; READ_BYTES];
    let read = || Ok(rustix::io::read(agent, &mut buffer[..])?);
    let count = agent.when_ready(Interest::READABLE, read).await?;
    bytes.extend_from_slice(&buffer[..count]);
    Ok(count)
}
