//! Servers to which the proxy itself connects, with credentials that the agent does not have.

use std::sync::Arc;

use heeler_config::RequestHost;
use hyper::{Response, StatusCode, client};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use crate::body::ProxyBody;
use crate::gate::EgressGate;
use crate::passing::{failed, unavailable};

/// Reason that calls of the API, or of git, cannot be forwarded.
#[derive(Debug, Error)]
pub enum ApiRouteError {
    #[error("the address `{0}` is not one of http or https with a host")]
    Address(String),
    #[error("the additional certificates are not valid PEM: {0}")]
    Certificates(String),
    #[error("TLS cannot be set up")]
    Tls(#[source] tokio_rustls::rustls::Error),
}

/// Server of a configured address.
pub(crate) struct UpstreamServer {
    /// `None` for plain http.
    tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(crate) host: RequestHost,
    pub(crate) port: u16,
    /// Value of the header `Host`.
    pub(crate) authority: String,
}

/// Connection to a server.
pub(crate) struct UpstreamConnection {
    pub(crate) sender: client::conn::http1::SendRequest<ProxyBody>,
    pub(crate) driver: AbortOnDropHandle<()>,
}

impl UpstreamServer {
    /// Returns the server of an address. `extra_roots` are certificates in PEM, besides those of
    /// public authorities.
    pub(crate) fn new(url: &Url, extra_roots: Option<&[u8]>) -> Result<Self, ApiRouteError> {
        let address = || ApiRouteError::Address(url.to_string());
        let text = url.host_str().ok_or_else(address)?;
        let host: RequestHost = text.parse().map_err(|_| address())?;
        let port = url.port_or_known_default().ok_or_else(address)?;
        let tls = match url.scheme() {
            "http" => None,
            "https" => {
                let bare = text.trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(bare).map_err(|_| address())?;
                Some((tls_connector(extra_roots)?, name))
            }
            _ => return Err(address()),
        };
        let authority = url.port().map_or_else(|| text.to_owned(), |port| format!("{text}:{port}"));
        Ok(UpstreamServer { tls, host, port, authority })
    }

    /// Connects to the server. `name` stands for it in error replies.
    pub(crate) async fn connect(
        &self,
        gate: &EgressGate,
        name: &str,
    ) -> Result<UpstreamConnection, Box<Response<ProxyBody>>> {
        let broken = |reason: &str| Box::new(unavailable(StatusCode::BAD_GATEWAY, name, reason));
        let connected = gate.connect_trusted(&self.host, self.port).await;
        let stream = connected.map_err(|failure| Box::new(failed(&failure, name)))?;
        match &self.tls {
            None => handshake(TokioIo::new(stream)).await,
            Some((connector, server)) => {
                let secured = tokio::time::timeout(
                    gate.limits.connect_time_max,
                    connector.connect(server.clone(), stream),
                );
                let secured = secured.await.map_err(|_| broken("TLS took too long"))?;
                let secured = secured.map_err(|error| broken(&format!("TLS failed: {error}")))?;
                handshake(TokioIo::new(secured)).await
            }
        }
        .ok_or_else(|| broken("the connection broke"))
    }
}

async fn handshake<T>(io: T) -> Option<UpstreamConnection>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, driver) = client::conn::http1::handshake(io).await.ok()?;
    let driver = AbortOnDropHandle::new(tokio::spawn(async move { drop(driver.await) }));
    Some(UpstreamConnection { sender, driver })
}

fn tls_connector(extra_roots: Option<&[u8]>) -> Result<TlsConnector, ApiRouteError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in CertificateDer::pem_slice_iter(extra_roots.unwrap_or_default()) {
        let certificate =
            certificate.map_err(|error| ApiRouteError::Certificates(error.to_string()))?;
        roots.add(certificate).map_err(|error| ApiRouteError::Certificates(error.to_string()))?;
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ApiRouteError::Tls)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
