//! HTTP connections of the agent: tunnels, requests with an absolute URL, and calls of the API.
//!
//! Each request is judged by itself, also on a connection that is kept open. It is parsed and written
//! anew, on a connection of its own, so no second request can hide in its body. Start at
//! [`serve_http`].

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use heeler_config::RequestHost;
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, client, server};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::task::AbortOnDropHandle;

use crate::body::{ProxyBody, text_body};
use crate::decision::DenialReason;
use crate::gate::EgressGate;
use crate::git_route::GIT_PATH;
use crate::meter::{ActivityMeter, AgentStream};
use crate::passing::{denied, failed, pass_reply, rewrite, unavailable};
use crate::server::ProxyContext;
use crate::tunnel::EgressTunnel;
use crate::upstream::UpstreamConnection;

/// Smallest buffer that the HTTP library accepts, in bytes.
const BUFFER_BYTES_MIN: usize = 8 << 10;

/// State of one connection of the agent.
struct HttpConnection {
    context: Arc<ProxyContext>,
    meter: ActivityMeter,
    /// Tunnel that begins when the reply to `CONNECT` has been sent.
    tunnel: Mutex<Option<(OnUpgrade, EgressTunnel)>>,
    /// Connection to the API, kept for the next call.
    api: tokio::sync::Mutex<Option<UpstreamConnection>>,
}

/// Serves one connection of the agent to its end.
pub(crate) async fn serve_http(
    agent: AgentStream,
    context: &Arc<ProxyContext>,
    meter: &ActivityMeter,
) {
    let connection = Arc::new(HttpConnection {
        context: Arc::clone(context),
        meter: meter.clone(),
        tunnel: Mutex::default(),
        api: tokio::sync::Mutex::default(),
    });
    let limits = &context.gate.limits;
    let service = hyper::service::service_fn(|request| {
        let connection = Arc::clone(&connection);
        async move { Ok::<_, Infallible>(connection.respond(request).await) }
    });
    let served = server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time_max)
        .max_header_size(limits.head_bytes_max)
        .max_buf_size(limits.head_bytes_max.max(BUFFER_BYTES_MIN))
        .serve_connection(TokioIo::new(agent), service)
        .with_upgrades();
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection of the agent ended with an error");
    }
    let tunnel = connection.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((upgrade, tunnel)) = tunnel else { return };
    let Ok(upgraded) = upgrade.await else { return };
    // The connection was made from this type above.
    let Ok(parts) = upgraded.downcast::<TokioIo<AgentStream>>() else { return };
    let stream = parts.io.into_inner().stream;
    tunnel.serve(&stream, parts.read_buf.to_vec(), &context.gate, meter).await;
}

impl HttpConnection {
    async fn respond(&self, request: Request<Incoming>) -> Response<ProxyBody> {
        if request.method() == Method::CONNECT {
            return self.open_tunnel(request).await;
        }
        match request.uri().scheme_str() {
            // A client that sends even the calls of its own API through the proxy.
            Some("http") if self.is_own_address(request.uri()) => self.call_route(request).await,
            Some("http") => self.forward(request).await,
            Some(_) => denied(&DenialReason::Scheme, ""),
            None => self.call_route(request).await,
        }
    }

    async fn open_tunnel(&self, mut request: Request<Incoming>) -> Response<ProxyBody> {
        let target = request.uri().authority().map(|authority| parse_target(authority, None));
        let Some(Some((host, port))) = target else {
            return self.malformed().await;
        };
        match self.gate().connect(&host, port, &self.meter).await {
            Ok(upstream) => {
                let upgrade = hyper::upgrade::on(&mut request);
                let tunnel = EgressTunnel { host, port, upstream };
                let mut slot = self.tunnel.lock().unwrap_or_else(PoisonError::into_inner);
                *slot = Some((upgrade, tunnel));
                Response::new(text_body(String::new()))
            }
            Err(failure) => failed(&failure, &format!("{host}:{port}")),
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> Response<ProxyBody> {
        let target = request.uri().authority().map(|authority| parse_target(authority, Some(80)));
        let Some(Some((host, port))) = target else {
            return self.malformed().await;
        };
        let name = format!("{host}:{port}");
        // Servers decide by this header, so it must be the host that was judged.
        if !is_host_header(request.headers(), &host, port) {
            let denial = DenialReason::HostHeader;
            self.gate().report(&host.to_string(), port, Some(denial.clone())).await;
            return denied(&denial, &name);
        }
        let upstream = match self.gate().connect(&host, port, &self.meter).await {
            Ok(upstream) => upstream,
            Err(failure) => return failed(&failure, &name),
        };
        let handshake = client::conn::http1::Builder::new()
            .max_buf_size(self.gate().limits.head_bytes_max.max(BUFFER_BYTES_MIN))
            .handshake::<_, ProxyBody>(TokioIo::new(upstream))
            .await;
        let Ok((mut sender, driver)) = handshake else {
            return unavailable(StatusCode::BAD_GATEWAY, &name, "the connection broke");
        };
        let driver = AbortOnDropHandle::new(tokio::spawn(async move { drop(driver.await) }));
        let host_header = match port {
            80 => host.to_string(),
            _ => name.clone(),
        };
        let path = request.uri().path_and_query().cloned();
        let Some(request) = rewrite(request, path, &host_header, &self.meter) else {
            return self.malformed().await;
        };
        match sender.send_request(request).await {
            Ok(reply) => pass_reply(reply, &self.meter, |body| body.driver = Some(driver)),
            Err(error) => {
                tracing::debug!(%error, %name, "a request could not be forwarded");
                unavailable(StatusCode::BAD_GATEWAY, &name, "the host gave no valid reply")
            }
        }
    }

    /// Serves a call to an address of the proxy itself.
    async fn call_route(&self, request: Request<Incoming>) -> Response<ProxyBody> {
        match &self.context.git {
            Some(git) if request.uri().path().starts_with(GIT_PATH) => {
                git.call(request, self.gate(), &self.meter).await
            }
            _ => self.call_api(request).await,
        }
    }

    async fn call_api(&self, request: Request<Incoming>) -> Response<ProxyBody> {
        let Some(route) = &self.context.api else {
            return denied(&DenialReason::NoApiRoute, "API");
        };
        let mut kept = self.api.lock().await;
        route.call(request, &mut kept, self.gate(), &self.meter).await
    }

    /// Returns true for the address under which the agent reaches this proxy.
    fn is_own_address(&self, uri: &Uri) -> bool {
        let target = uri.authority().and_then(|authority| parse_target(authority, Some(80)));
        target.is_some_and(|(host, port)| {
            host == RequestHost::Ip(Ipv4Addr::LOCALHOST.into())
                && Some(port) == self.context.own_port
        })
    }

    async fn malformed(&self) -> Response<ProxyBody> {
        // The name is the agent's text, so it is not repeated.
        self.gate().report("(malformed)", 0, Some(DenialReason::MalformedHost)).await;
        denied(&DenialReason::MalformedHost, "the request")
    }

    fn gate(&self) -> &EgressGate {
        &self.context.gate
    }
}

/// Returns the host and port of a request; `None` if a server could read another host.
fn parse_target(authority: &Authority, default_port: Option<u16>) -> Option<(RequestHost, u16)> {
    let host = authority.host();
    let port = match authority.as_str().strip_prefix(host)? {
        "" => default_port?,
        port => port
            .strip_prefix(':')
            .filter(|port| port.bytes().all(|b| b.is_ascii_digit()))?
            .parse()
            .ok()?,
    };
    // Port 0 stands for any port in some programs.
    Some((host.parse().ok()?, port)).filter(|_| port != 0)
}

/// Returns true if the request has at most one header `Host`, which names the host.
fn is_host_header(headers: &HeaderMap, host: &RequestHost, port: u16) -> bool {
    let mut values = headers.get_all(HOST).iter();
    let (first, second) = (values.next(), values.next());
    let is_same = |value: &HeaderValue| {
        let authority = Authority::try_from(value.as_bytes()).ok();
        authority.and_then(|authority| parse_target(&authority, Some(80)))
            == Some((host.clone(), port))
    };
    second.is_none() && first.is_none_or(is_same)
}
