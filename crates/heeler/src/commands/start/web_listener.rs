//! Binds the address of the dashboard and the API.
//!
//! A taken port is an error that names its process, unless the config allows the next free port.
//! Start at [`listen`].

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{WebConfig, WebOrigin, WebPort};
use heeler_engine::has_remote_access;
use heeler_server::{PortHolder, WebEndpoint, port_holder};
use heeler_store::StoreReader;

use super::start_failure::DaemonStartFailure;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, FailureCode};
use crate::output;
use crate::process_env;

/// First port that `auto` tries.
const PORT_FIRST: u16 = 7878;

/// Number of ports that `auto` tries.
const PORTS_MAX: u16 = 100;

/// Time for an earlier daemon of the fleet to release the port while it ends.
const ENDING_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Characters of a command line that are shown for the process that holds a port.
const COMMAND_CHARS_MAX: usize = 80;

/// A bound listener, and its address.
pub(super) struct WebListener {
    pub(super) listener: TcpListener,
    pub(super) reach: WebEndpoint,
}

/// Binds as configured; returns `None` if the web server is disabled.
pub(super) fn listen(
    context: &CommandContext,
    web: &WebConfig,
    reader: Option<&StoreReader>,
) -> Result<Option<WebListener>, DaemonStartFailure> {
    if !web.enabled {
        return Ok(None);
    }
    let ports = match web.port {
        WebPort::Fixed(port) => port.get()..=port.get(),
        WebPort::Auto => PORT_FIRST..=PORT_FIRST + PORTS_MAX - 1,
    };
    let first = *ports.start();
    // Checked before the port is bound: it must not be reachable for a moment either.
    require_authentication(&addresses(&web.host, first)?, &web.host, reader)?;
    for port in ports {
        match bind(context, &addresses(&web.host, port)?)? {
            Some(listener) => {
                // tokio requires it of a listener that it takes over.
                listener.set_nonblocking(true)?;
                let origins = web.origins.iter().map(WebOrigin::as_str).map(str::to_owned);
                let (host, origins) = (web.host.clone(), origins.collect());
                return Ok(Some(WebListener {
                    listener,
                    reach: WebEndpoint { host, port, origins },
                }));
            }
            // Another program has this port; the next one may be free.
            None if web.port == WebPort::Auto => {}
            None => break,
        }
    }
    Err(DaemonStartFailure::Failed(port_taken_failure(&web.host, first)))
}

/// Resolves a host and a port, IPv4 addresses first.
fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, CommandFailure> {
    // The config writes an IPv6 address as in a URL; the resolver wants it bare.
    let bare = host.trim_matches(['[', ']']);
    let unknown = |why: String| {
        let message = format!("cannot listen on `{host}` (`web.host`): {why}");
        CommandFailure::message(FailureCode::Usage, message)
            .hint("web: {host: 127.0.0.1} in the config")
    };
    let found = (bare, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let mut found: Vec<SocketAddr> = found.collect();
    // Only the first one is bound, and the order of the resolver varies between machines.
    found.sort_by_key(SocketAddr::is_ipv6);
    if found.is_empty() { Err(unknown("it has no address".to_owned())) } else { Ok(found) }
}

/// Refuses a non-loopback address while no password or token exists.
fn require_authentication(
    addresses: &[SocketAddr],
    host: &str,
    reader: Option<&StoreReader>,
) -> Result<(), DaemonStartFailure> {
    // Only the first address is bound below.
    if addresses.iter().take(1).all(|address| address.ip().is_loopback()) {
        return Ok(());
    }
    // Without a login no one could use it from outside, and it would only be open to attacks.
    let is_let_in = match reader {
        Some(reader) => {
            has_remote_access(reader, process_env::now()).map_err(CommandFailure::from)?
        }
        None => false,
    };
    if is_let_in {
        return Ok(());
    }
    let message = format!(
        "`web.host: {host}` is reachable from other machines, but no password or token is set"
    );
    let hint =
        "heeler password set, or heeler token create NAME --scope read; or web: {host: 127.0.0.1}";
    Err(DaemonStartFailure::Failed(
        CommandFailure::message(FailureCode::Refused, message).hint(hint),
    ))
}

/// Binds the first address; returns `None` if it is taken.
fn bind(
    context: &CommandContext,
    addresses: &[SocketAddr],
) -> Result<Option<TcpListener>, DaemonStartFailure> {
    let Some(address) = addresses.first() else { return Ok(None) };
    let deadline = Instant::now() + ENDING_WAIT;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                // Most likely the running daemon of this fleet holds the port.
                if let Some(writer) = daemon::find_writer(context)? {
                    return Err(DaemonStartFailure::Held(writer));
                }
                let holder = port_holder(address.port());
                // A daemon releases the state lock before its port, so it is no writer then.
                let is_ending =
                    holder.is_some_and(|holder| belongs_to_fleet(&holder, &context.state_dir));
                if !is_ending || Instant::now() >= deadline {
                    return Ok(None);
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(error) => {
                let message = format!("cannot listen on {address} (`web` in the config): {error}");
                let hint = "change `web: {host, port}` in the config, or use heeler start --no-web";
                return Err(DaemonStartFailure::Failed(
                    CommandFailure::message(FailureCode::Failed, message).hint(hint),
                ));
            }
        }
    }
}

/// Returns true if a process is a daemon of this fleet.
fn belongs_to_fleet(holder: &PortHolder, state_dir: &Utf8Path) -> bool {
    let real = |path: &Utf8Path| path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
    fleet_of(holder).is_some_and(|fleet| {
        // Only a background daemon names its state directory; others are identified by their
        // working directory.
        real(&fleet) == real(state_dir) || real(&fleet).join(".heeler") == real(state_dir)
    })
}

/// Returns a daemon's state directory, or else its working directory.
fn fleet_of(holder: &PortHolder) -> Option<Utf8PathBuf> {
    let mut arguments = holder.arguments.iter();
    // A heuristic is enough: it decides only about waiting and about a message.
    let program = Utf8Path::new(arguments.next()?).file_name()?;
    if !program.starts_with("heeler") || !arguments.any(|argument| argument == "start") {
        return None;
    }
    let mut named = holder.arguments.iter().skip_while(|it| *it != "--state-dir").skip(1);
    let started = || {
        let folder = std::fs::read_link(format!("/proc/{}/cwd", holder.pid)).ok()?;
        Utf8PathBuf::from_path_buf(folder).ok()
    };
    named.next().map(Utf8PathBuf::from).or_else(started)
}

/// Returns a failure that names the process that holds the port.
fn port_taken_failure(host: &str, port: u16) -> CommandFailure {
    let who = port_holder(port).map(|holder| match fleet_of(&holder) {
        Some(fleet) => format!(" by process {}, the heeler daemon of {fleet}", holder.pid),
        None => {
            let command = output::one_line(&holder.arguments.join(" "));
            let command: String = command.chars().take(COMMAND_CHARS_MAX).collect();
            format!(" by process {} ({command})", holder.pid)
        }
    });
    // Processes of other users are not visible.
    let who = who.unwrap_or_else(|| " by a process of another user".to_owned());
    let message = format!("port {port} of {host} is taken{who}");
    CommandFailure::message(FailureCode::Refused, message).hint(
        "web: {port: auto} in the config uses the next free port, web: {port: N} another one; \
         heeler start --no-web serves no dashboard",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(arguments: &[&str]) -> PortHolder {
        let arguments = arguments.iter().map(|&it| it.to_owned()).collect();
        PortHolder { pid: std::process::id(), arguments }
    }

    #[test]
    fn a_daemon_is_told_by_its_command_line_or_by_where_it_was_started() {
        let state = "/f/.heeler";
        let named = holder(&["/usr/bin/heeler", "start", "--in-background", "--state-dir", state]);
        assert_eq!(fleet_of(&named).unwrap(), state);
        assert!(
            belongs_to_fleet(&named, Utf8Path::new(state))
                && !belongs_to_fleet(&named, Utf8Path::new("/g/.heeler"))
        );
        let here = std::env::current_dir().unwrap();
        assert_eq!(fleet_of(&holder(&["heeler", "start"])).unwrap(), here.to_str().unwrap());
        for other in [&["node", "start"][..], &["heeler", "status"], &[""]] {
            assert_eq!(fleet_of(&holder(other)), None);
        }
    }

    #[test]
    fn names_of_this_machine_have_addresses() {
        let first = |host: &str| addresses(host, 80).map(|all| all[0].to_string());
        assert_eq!(first("127.0.0.1").ok().unwrap(), "127.0.0.1:80");
        assert_eq!(first("[::1]").ok().unwrap(), "[::1]:80");
        assert_eq!(first("::").ok().unwrap(), "[::]:80");
    }
}
