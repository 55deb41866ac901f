//! Notices by mail.
//!
//! Start at [`send_mail`].

use std::fmt;
use std::time::{Duration, SystemTime};

use heeler_config::{SmtpConfig, SmtpSecurity};
use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::SmtpTransportBuilder;
use lettre::transport::smtp::authentication::Credentials;
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
    let SmtpServer { config, password } = server;
    let wrong = |error| NoticeSendError::permanent(format!("cannot use {}: {error}", config.host));
    let builder: SmtpTransportBuilder = match config.security {
        SmtpSecurity::Tls => SmtpTransport::relay(&config.host).map_err(wrong)?,
        // It fails if the server does not offer TLS, before anything is sent.
        SmtpSecurity::StartTls => SmtpTransport::starttls_relay(&config.host).map_err(wrong)?,
        // The config allows it only for this machine.
        SmtpSecurity::None => SmtpTransport::builder_dangerous(&config.host),
    };
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
