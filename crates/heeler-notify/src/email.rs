//! Notices by mail.
//!
//! Start at [`send_mail`].

use std::fmt;
use std::time::{Duration, SystemTime};

use heeler_config::{SmtpConfig, SmtpSecurity};
use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters};
use lettre::{Message, SmtpTransport, Transport as _};
use ring::digest::{SHA256, digest};

use crate::notice::PersonNotice;
use crate::notice_error::NoticeSendError;

/// Time limit of one step of the protocol.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// A mail server with the password of its account.
#[derive(Clone)]
pub struct SmtpServer {
    pub config: SmtpConfig,
    pub password: Option<String>,
    /// Authorities of the server's certificate. `None` means the public ones.
    pub authorities: Option<MailAuthorities>,
}

/// Certificates of authorities. No others count then.
#[derive(Debug, Clone)]
pub struct MailAuthorities(Certificate);

impl MailAuthorities {
    /// Reads certificates in PEM form; fails with the reason.
    pub fn parse(pem: &[u8]) -> Result<MailAuthorities, String> {
        // A text without a certificate is valid PEM.
        const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
        if !pem.windows(BEGIN.len()).any(|part| part == BEGIN) {
            return Err("it holds no certificate".to_owned());
        }
        let invalid = |_| "it holds an invalid certificate".to_owned();
        let authorities = MailAuthorities(Certificate::from_pem(pem).map_err(invalid)?);
        // The content of the certificates is read only here.
        tls_parameters("localhost", Some(&authorities)).map_err(invalid)?;
        Ok(authorities)
    }
}

fn tls_parameters(
    host: &str,
    authorities: Option<&MailAuthorities>,
) -> Result<TlsParameters, lettre::transport::smtp::Error> {
    let builder = TlsParameters::builder(host.to_owned());
    let builder = match authorities {
        None => builder.certificate_store(CertificateStore::WebpkiRoots),
        Some(MailAuthorities(certificate)) => builder
            .certificate_store(CertificateStore::None)
            .add_root_certificate(certificate.clone()),
    };
    builder.build()
}

impl fmt::Debug for SmtpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SmtpServer({}:{})", self.config.host, self.config.port)
    }
}

/// Sends a notice by mail. `id` decides the ID of the message, so a repeated one can be recognized.
pub(crate) fn send_mail(
    server: &SmtpServer,
    to: &[String],
    id: &str,
    notice: &PersonNotice,
) -> Result<(), NoticeSendError> {
    let message = compose(server, to, id, notice)?;
    let SmtpConfig { host, .. } = &server.config;
    let transport = connect(server)?;
    match transport.send(&message) {
        Ok(_) => Ok(()),
        // The text of a server may repeat the address, but not the password.
        Err(error) if error.is_permanent() => {
            Err(NoticeSendError::permanent(format!("{host} refused the mail: {error}")))
        }
        Err(error) => {
            Err(NoticeSendError::transient(format!("cannot send mail by {host}: {error}")))
        }
    }
}

fn connect(server: &SmtpServer) -> Result<SmtpTransport, NoticeSendError> {
    let SmtpServer { config, password, authorities } = server;
    let parameters = || {
        tls_parameters(&config.host, authorities.as_ref()).map_err(|error| {
            NoticeSendError::permanent(format!("cannot use {}: {error}", config.host))
        })
    };
    let tls = match config.security {
        SmtpSecurity::Tls => Tls::Wrapper(parameters()?),
        // It fails if the server does not offer TLS, before anything is sent.
        SmtpSecurity::StartTls => Tls::Required(parameters()?),
        // The config allows it only for this machine.
        SmtpSecurity::None => Tls::None,
    };
    let builder = SmtpTransport::builder_dangerous(&config.host).tls(tls);
    let builder = builder.port(config.port).timeout(Some(STEP_TIMEOUT));
    Ok(match (&config.user, password) {
        (Some(user), Some(password)) => {
            builder.credentials(Credentials::new(user.clone(), password.clone())).build()
        }
        _ => builder.build(),
    })
}

fn compose(
    server: &SmtpServer,
    to: &[String],
    id: &str,
    notice: &PersonNotice,
) -> Result<Message, NoticeSendError> {
    let from: Mailbox = server.config.from.parse().map_err(|error| {
        NoticeSendError::permanent(format!("`{}` is not a sender: {error}", server.config.from))
    })?;
    let domain = from.email.domain().to_owned();
    let at = SystemTime::UNIX_EPOCH
        + Duration::from_secs(u64::try_from(notice.at.as_second()).unwrap_or_default());
    let thread = message_id(&notice.subject, &domain);
    let own = match notice.is_closing {
        true => message_id(id, &domain),
        // The first message of a subject has the ID that the closing one refers to.
        false => thread.clone(),
    };
    let mut builder = Message::builder()
        .from(from)
        .date(at)
        .message_id(Some(own))
        .subject(format!("[Heeler] {}", heeler_config::reveal_line(&notice.title)))
        .header(ContentType::TEXT_PLAIN);
    if notice.is_closing {
        builder = builder.in_reply_to(thread.clone()).references(thread);
    }
    for address in to {
        let mailbox = address.parse::<Mailbox>().map_err(|error| {
            NoticeSendError::permanent(format!("`{address}` is not a receiver: {error}"))
        })?;
        builder = builder.to(mailbox);
    }
    builder
        .body(notice.body())
        .map_err(|error| NoticeSendError::permanent(format!("cannot compose a mail: {error}")))
}

/// Returns the ID of the message about a subject.
fn message_id(subject: &str, domain: &str) -> String {
    let hash = digest(&SHA256, subject.as_bytes());
    let hex: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("<{hex}@{domain}>")
}

#[cfg(test)]
mod tests {
    use heeler_config::NotifyEvent;
    use heeler_testkit::{FakeSmtp, SmtpEncryption, TestCertificates};

    use super::*;

    fn server(
        smtp: &FakeSmtp,
        security: SmtpSecurity,
        authorities: Option<&TestCertificates>,
    ) -> SmtpServer {
        let config = SmtpConfig {
            host: "127.0.0.1".to_owned(),
            port: smtp.port(),
            security,
            ca_file: None,
            user: Some("fleet".to_owned()),
            password_env: Some("MAIL_PASSWORD".to_owned()),
            from: "heeler@fleet.example".to_owned(),
        };
        let pem = authorities.map(|it| std::fs::read(it.ca_file()).unwrap());
        let authorities = pem.map(|pem| MailAuthorities::parse(&pem).unwrap());
        SmtpServer { config, password: Some("canary-password".to_owned()), authorities }
    }

    fn send(server: &SmtpServer) -> Result<(), NoticeSendError> {
        let notice = PersonNotice {
            event: NotifyEvent::Failed,
            agent: None,
            title: "A job failed".to_owned(),
            text: "Look at it.".to_owned(),
            quote: None,
            link: None,
            page: None,
            is_closing: false,
            subject: "job 1".to_owned(),
            at: "2026-01-05T12:00:00Z".parse().unwrap(),
        };
        send_mail(server, &["ann@example.com".to_owned()], "1", &notice)
    }

    const WAYS: [(SmtpEncryption, SmtpSecurity); 2] = [
        (SmtpEncryption::StartTls, SmtpSecurity::StartTls),
        (SmtpEncryption::Implicit, SmtpSecurity::Tls),
    ];

    #[test]
    fn mail_is_sent_to_a_server_with_an_own_authority() {
        let certificates = TestCertificates::create("IP:127.0.0.1");
        for (encryption, security) in WAYS {
            let smtp = FakeSmtp::start_encrypted(encryption, &certificates);
            send(&server(&smtp, security, Some(&certificates))).unwrap();
            let mail = &smtp.wait_for(1)[0];
            assert!(mail.is_encrypted, "{mail:?}");
            assert_eq!(mail.receivers, ["ann@example.com"]);
            assert!(mail.login.as_ref().unwrap().starts_with("PLAIN "), "{mail:?}");
        }
    }

    #[test]
    fn nothing_is_sent_to_a_server_with_another_authority_or_name() {
        let certificates = TestCertificates::create("IP:127.0.0.1");
        let others = TestCertificates::create("IP:127.0.0.1");
        let of_other_name = TestCertificates::create("DNS:mail.example");
        let cases = [
            (&certificates, None, "UnknownIssuer"),
            (&certificates, Some(&others), "BadSignature"),
            (&of_other_name, Some(&of_other_name), "not valid for name"),
        ];
        for (encryption, security) in WAYS {
            for (own, authorities, reason) in cases {
                let smtp = FakeSmtp::start_encrypted(encryption, own);
                let error = send(&server(&smtp, security, authorities)).unwrap_err().to_string();
                assert!(error.contains(reason), "{encryption:?}: {error}");
                assert!(!error.contains("canary-password"), "{error}");
                let commands = smtp.commands();
                assert!(
                    commands.iter().all(|it| matches!(it.as_str(), "EHLO" | "STARTTLS" | "QUIT")),
                    "{commands:?}"
                );
            }
        }
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let parse = |text: &str| MailAuthorities::parse(text.as_bytes()).unwrap_err();
        assert_eq!(parse(""), "it holds no certificate");
        assert_eq!(parse("-----BEGIN PRIVATE KEY-----"), "it holds no certificate");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(parse(broken), "it holds an invalid certificate");
        assert_eq!(parse("-----BEGIN CERTIFICATE-----\nAA"), "it holds an invalid certificate");
    }
}
