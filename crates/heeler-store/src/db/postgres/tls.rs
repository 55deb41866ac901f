//! TLS to a PostgreSQL server, by the libraries that the rest of Heeler uses. The certificate is always
//! verified. Start at [`connector`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use heeler_config::{StoreHost, StoreUrl};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::db::postgres_error::PostgresError;

/// Makes the TLS side of a connection.
#[derive(Clone)]
pub(super) struct PostgresTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// Returns the connector for the host of a URL.
pub(super) fn connector(url: &StoreUrl) -> Result<PostgresTls, PostgresError> {
    let StoreHost::Name(host) = &url.host else {
        return Err(PostgresError::Unusable("a unix socket has no TLS".to_owned()));
    };
    let unusable = |why: String| PostgresError::Unusable(format!("cannot use TLS: {why}"));
    let name = ServerName::try_from(host.clone()).map_err(|error| unusable(error.to_string()))?;
    let roots = match &url.ca_file {
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        Some(path) => {
            let of_file = |why: String| unusable(format!("{path}: {why}"));
            let mut roots = RootCertStore::empty();
            let certificates = CertificateDer::pem_file_iter(path.as_std_path())
                .map_err(|error| of_file(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| of_file(error.to_string()))?;
                roots.add(certificate).map_err(|error| of_file(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(of_file("it holds no certificate".to_owned()));
            }
            roots
        }
    };
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(PostgresTls { connector: TlsConnector::from(Arc::new(config)), name })
}

impl MakeTlsConnect<Socket> for PostgresTls {
    type Stream = PostgresTlsStream;
    type TlsConnect = PostgresTls;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> io::Result<PostgresTls> {
        Ok(self.clone())
    }
}

impl TlsConnect<Socket> for PostgresTls {
    type Stream = PostgresTlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PostgresTlsStream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, socket).await?;
            Ok(PostgresTlsStream(Box::new(stream)))
        })
    }
}

/// An encrypted connection.
pub(super) struct PostgresTlsStream(Box<RustlsStream<Socket>>);

impl TlsStream for PostgresTlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate is verified by its name, so a server in the middle is refused before.
        ChannelBinding::none()
    }
}

impl AsyncRead for PostgresTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PostgresTlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
