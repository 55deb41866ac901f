//! SOCKS5 with host names, as far as the proxy needs it: no login, `CONNECT` only.

use std::net::{Ipv4Addr, Ipv6Addr};

use heeler_config::RequestHost;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::decision::DenialReason;
use crate::gate::{ConnectFailure, EgressGate};
use crate::meter::ActivityMeter;
use crate::tunnel::EgressTunnel;

/// First byte of a connection that speaks SOCKS5.
pub(crate) const VERSION: u8 = 5;

const NO_LOGIN: u8 = 0;
const NO_METHOD: u8 = 0xff;
const COMMAND_CONNECT: u8 = 1;
const ADDRESS_V4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_V6: u8 = 4;

const REPLY_DONE: u8 = 0;
const REPLY_DENIED: u8 = 2;
const REPLY_NO_HOST: u8 = 4;
const REPLY_REFUSED: u8 = 5;
const REPLY_EXPIRED: u8 = 6;
const REPLY_NO_COMMAND: u8 = 7;
const REPLY_NO_ADDRESS: u8 = 8;

/// Serves a connection whose first byte was [`VERSION`].
pub(crate) async fn serve_socks(mut agent: UnixStream, gate: &EgressGate, meter: &ActivityMeter) {
    let request = timeout(gate.limits.head_time_max, read_request(&mut agent)).await;
    let target = match request {
        Ok(Ok(Ok(target))) => target,
        Ok(Ok(Err(reply))) => return send_reply(&mut agent, reply).await,
        // Broken, or too slow.
        Ok(Err(_)) | Err(_) => return,
    };
    let (text, port) = target;
    let Ok(host) = text.parse::<RequestHost>() else {
        // The name is the agent's text, so it is not repeated.
        gate.report("(malformed)", port, Some(DenialReason::MalformedHost)).await;
        return send_reply(&mut agent, REPLY_DENIED).await;
    };
    match gate.connect(&host, port, meter).await {
        Ok(upstream) => {
            send_reply(&mut agent, REPLY_DONE).await;
            EgressTunnel { host, port, upstream }.serve(&agent, Vec::new(), gate, meter).await;
        }
        Err(failure) => {
            let reply = match failure {
                ConnectFailure::Denied(_) => REPLY_DENIED,
                ConnectFailure::Unresolved => REPLY_NO_HOST,
                ConnectFailure::Unreachable(_) => REPLY_REFUSED,
                ConnectFailure::TimedOut => REPLY_EXPIRED,
            };
            send_reply(&mut agent, reply).await;
        }
    }
}

/// Reads the greeting and the request. The inner error is the reply to a request that is not
/// supported.
async fn read_request(agent: &mut UnixStream) -> std::io::Result<Result<(String, u16), u8>> {
    let count = agent.read_u8().await?;
    let mut methods = vec![0; count.into()];
    agent.read_exact(&mut methods).await?;
    if !methods.contains(&NO_LOGIN) {
        agent.write_all(&[VERSION, NO_METHOD]).await?;
        return Err(std::io::ErrorKind::Unsupported.into());
    }
    agent.write_all(&[VERSION, NO_LOGIN]).await?;
    let mut head = [0; 4];
    agent.read_exact(&mut head).await?;
    let [version, command, _, kind] = head;
    if version != VERSION {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let host = match kind {
        ADDRESS_V4 => Ipv4Addr::from(agent.read_u32().await?).to_string(),
        ADDRESS_V6 => Ipv6Addr::from(agent.read_u128().await?).to_string(),
        ADDRESS_NAME => {
            let size = agent.read_u8().await?;
            let mut name = vec![0; size.into()];
            agent.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => return Ok(Err(REPLY_NO_ADDRESS)),
    };
    let port = agent.read_u16().await?;
    match command {
        COMMAND_CONNECT => Ok(Ok((host, port))),
        // UDP and listening sockets.
        _ => Ok(Err(REPLY_NO_COMMAND)),
    }
}

async fn send_reply(agent: &mut UnixStream, reply: u8) {
    // The address of the proxy's end is nobody's business, so it is 0.0.0.0:0. An agent that has left
    // needs no reply.
    drop(agent.write_all(&[VERSION, reply, 0, ADDRESS_V4, 0, 0, 0, 0, 0, 0]).await);
}
