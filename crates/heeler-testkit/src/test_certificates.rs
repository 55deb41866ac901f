//! Certificates of test servers: an authority that no client knows, and a certificate that it signed.
//!
//! Start at [`TestCertificates`].

use std::process::Command;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, crypto};
use tempfile::TempDir;

/// An authority with the certificate of one server; dropping it deletes the files.
#[derive(Debug)]
pub struct TestCertificates {
    folder: TempDir,
}

impl TestCertificates {
    /// Makes an authority and the certificate of a server, for a name such as `IP:127.0.0.1`.
    #[expect(clippy::disallowed_methods, reason = "a program of a test, not of a fleet")]
    pub fn create(name: &str) -> TestCertificates {
        let folder = tempfile::Builder::new().prefix("heeler-tls-").tempdir().unwrap();
        let certificates = TestCertificates { folder };
        make_certificates(certificates.folder(), name, |program| Command::new(program));
        certificates
    }

    fn folder(&self) -> &Utf8Path {
        Utf8Path::from_path(self.folder.path()).unwrap()
    }

    /// Returns the certificate of the authority.
    pub fn ca_file(&self) -> Utf8PathBuf {
        self.folder().join("authority.crt")
    }

    /// Returns the settings of a server that has the certificate.
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        let file = |name: &str| self.folder().join(name).into_std_path_buf();
        let certificate = CertificateDer::from_pem_file(file("server.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Arc::new(config)
    }
}

/// Writes the authority (`authority.crt`) and the certificate and key of the server (`server.crt`,
/// `server.key`) to a folder.
pub(crate) fn make_certificates(folder: &Utf8Path, name: &str, program: impl Fn(&str) -> Command) {
    let new = |name: &str, more: &[&str]| {
        let (key, certificate) = (format!("{folder}/{name}.key"), format!("{folder}/{name}.crt"));
        let made = program("openssl")
            .args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", &format!("/CN={name}")])
            .args(["-keyout", &key, "-out", &certificate])
            .args(more)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    new("authority", &[]);
    let (authority, key) = (format!("{folder}/authority.crt"), format!("{folder}/authority.key"));
    let name = format!("subjectAltName={name}");
    let kind = "basicConstraints=critical,CA:FALSE";
    new("server", &["-CA", &authority, "-CAkey", &key, "-addext", &name, "-addext", kind]);
}
