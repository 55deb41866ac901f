//! The decision about each request: rules, answers of people, resolution and the check of addresses.
//!
//! A name is resolved once for each request, and the connection goes to an address that was checked. No
//! later answer of DNS counts for it. Start at [`EgressGate::connect`].

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_config::{AddressClass, EgressRules, HostVerdict, RequestHost, classify_address};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::decision::{DenialReason, EgressDecision, EgressEvent, EgressQuestion, GrantScope};
use crate::limits::EgressLimits;
use crate::meter::ActivityMeter;
use crate::network::EgressNetwork;

/// Decides about requests. Shared by all connections of a run.
pub(crate) struct EgressGate {
    rules: EgressRules,
    /// False if no person is asked about hosts that are not listed.
    asks: bool,
    network: Arc<dyn EgressNetwork>,
    pub(crate) limits: EgressLimits,
    events: mpsc::Sender<EgressEvent>,
    state: Mutex<GateState>,
}

#[derive(Default)]
struct GateState {
    /// Decisions that were reported. Their number is limited.
    reported: HashSet<(String, u16, Option<DenialReason>)>,
    is_full: bool,
    /// Questions that are open, or whose answer counts for later requests.
    questions: HashMap<(RequestHost, u16), watch::Receiver<Option<GrantScope>>>,
    asked_count: usize,
}

impl GateState {
    fn is_reported(&self, key: &(String, u16, Option<DenialReason>)) -> bool {
        self.is_full || self.reported.contains(key)
    }
}

/// Reason that a request was not connected.
#[derive(Debug)]
pub(crate) enum ConnectFailure {
    Denied(DenialReason),
    /// The name has no address.
    Unresolved,
    Unreachable(io::Error),
    TimedOut,
}

impl From<DenialReason> for ConnectFailure {
    fn from(reason: DenialReason) -> ConnectFailure {
        ConnectFailure::Denied(reason)
    }
}

impl EgressGate {
    pub(crate) fn new(
        rules: EgressRules,
        asks: bool,
        network: Arc<dyn EgressNetwork>,
        limits: EgressLimits,
        events: mpsc::Sender<EgressEvent>,
    ) -> EgressGate {
        EgressGate { rules, asks, network, limits, events, state: Mutex::default() }
    }

    /// Connects to a host if the rules or a person allow it. Reports the decision.
    pub(crate) async fn connect(
        &self,
        host: &RequestHost,
        port: u16,
        meter: &ActivityMeter,
    ) -> Result<TcpStream, ConnectFailure> {
        let connected = self.try_connect(host, port, meter).await;
        match &connected {
            Ok(_) => self.report(&host.to_string(), port, None).await,
            Err(ConnectFailure::Denied(reason)) => {
                self.report(&host.to_string(), port, Some(reason.clone())).await;
            }
            // The decision was to allow it.
            Err(_) => self.report(&host.to_string(), port, None).await,
        }
        connected
    }

    async fn try_connect(
        &self,
        host: &RequestHost,
        port: u16,
        meter: &ActivityMeter,
    ) -> Result<TcpStream, ConnectFailure> {
        let may_be_local = match self.rules.judge(host, port) {
            HostVerdict::Public => false,
            HostVerdict::Local => true,
            HostVerdict::IpLiteral => return Err(DenialReason::IpLiteral.into()),
            HostVerdict::UnlistedHost => {
                self.ask((host, port), DenialReason::UnlistedHost, meter).await?;
                false
            }
            HostVerdict::UnlistedPort => {
                self.ask((host, port), DenialReason::UnlistedPort, meter).await?;
                false
            }
        };
        let addresses = self.resolve(host, port).await?;
        let checked = check_addresses(&addresses, may_be_local)?;
        self.dial(&checked).await
    }

    /// Connects to a host of the person's own config, whatever its address. Nothing is reported.
    pub(crate) async fn connect_trusted(
        &self,
        host: &RequestHost,
        port: u16,
    ) -> Result<TcpStream, ConnectFailure> {
        let addresses = self.resolve(host, port).await?;
        self.dial(&addresses).await
    }

    async fn resolve(
        &self,
        host: &RequestHost,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ConnectFailure> {
        let ips = match host {
            RequestHost::Ip(ip) => vec![*ip],
            RequestHost::Name(name) => {
                let found = timeout(self.limits.connect_time_max, self.network.resolve(name)).await;
                found.map_err(|_| ConnectFailure::TimedOut)?.map_err(|error| {
                    tracing::debug!(%name, %error, "a host could not be resolved");
                    ConnectFailure::Unresolved
                })?
            }
        };
        match ips.is_empty() {
            true => Err(ConnectFailure::Unresolved),
            false => Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()),
        }
    }

    /// Connects to the first address that answers, within one time limit for all of them.
    async fn dial(&self, addresses: &[SocketAddr]) -> Result<TcpStream, ConnectFailure> {
        let attempts = async {
            let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
            // An address that does not answer must not use up the time of the others.
            let share =
                self.limits.connect_time_max / u32::try_from(addresses.len().max(1)).unwrap_or(1);
            for address in addresses {
                match timeout(share, self.network.connect(*address)).await {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => last = error,
                    Err(_) => last = io::ErrorKind::TimedOut.into(),
                }
            }
            Err(last)
        };
        match attempts.await {
            Ok(stream) => Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(ConnectFailure::TimedOut),
            Err(error) => Err(ConnectFailure::Unreachable(error)),
        }
    }

    /// Asks a person about a host that the rules deny. Requests for the same host share a question. It
    /// outlives the connection: a client that gives up and tries again finds the answer.
    async fn ask(
        &self,
        (host, port): (&RequestHost, u16),
        denial: DenialReason,
        meter: &ActivityMeter,
    ) -> Result<(), ConnectFailure> {
        if !self.asks {
            return Err(denial.into());
        }
        // A person may take longer than a silent connection may last.
        let _waiting = meter.hold();
        let key = (host.clone(), port);
        // Reserved first, so that a connection that ends here leaves no question that nobody sees.
        let Ok(room) = self.events.reserve().await else { return Err(denial.into()) };
        let mut answer = {
            let mut state = self.state();
            match state.questions.get(&key) {
                Some(answer) => answer.clone(),
                None if state.asked_count == self.limits.questions_max => return Err(denial.into()),
                None => {
                    state.asked_count += 1;
                    let (reply, answer) = watch::channel(None);
                    state.questions.insert(key.clone(), answer.clone());
                    room.send(EgressEvent::Question(EgressQuestion {
                        host: host.clone(),
                        port,
                        reply,
                    }));
                    answer
                }
            }
        };
        // A runner that drops the question has denied it; the entry stays, so it is not asked again.
        let scope = answer.wait_for(Option::is_some).await.ok().and_then(|scope| *scope);
        match scope {
            Some(GrantScope::Once) => {
                // The next request asks again.
                self.state().questions.remove(&key);
                Ok(())
            }
            Some(GrantScope::Run) => Ok(()),
            Some(GrantScope::Denied) => Err(DenialReason::DeniedByPerson.into()),
            None => Err(denial.into()),
        }
    }

    /// Reports a decision, unless the same one was reported before.
    pub(crate) async fn report(&self, host: &str, port: u16, denial: Option<DenialReason>) {
        // The server name of a tunnel is the agent's text, so it does not make a new decision.
        let reason = match &denial {
            Some(DenialReason::ServerName(_)) => Some(DenialReason::ServerName(String::new())),
            other => other.clone(),
        };
        let key = (host.to_owned(), port, reason);
        if self.state().is_reported(&key) {
            return;
        }
        // A runner that has ended records nothing more.
        let Ok(room) = self.events.reserve().await else { return };
        let mut state = self.state();
        if state.is_reported(&key) {
            return;
        }
        if state.reported.len() >= self.limits.decisions_max {
            state.is_full = true;
            room.send(EgressEvent::DecisionsOmitted);
        } else {
            state.reported.insert(key);
            room.send(EgressEvent::Decision(EgressDecision {
                host: host.to_owned(),
                port,
                denial,
            }));
        }
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        // No code that holds the lock panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the addresses that may be connected to, or the reason that none may.
fn check_addresses(
    addresses: &[SocketAddr],
    may_be_local: bool,
) -> Result<Vec<SocketAddr>, DenialReason> {
    let mut denial = DenialReason::LocalAddress;
    let mut may_connect = |ip: IpAddr| match classify_address(ip) {
        AddressClass::Public => true,
        AddressClass::Local => may_be_local,
        AddressClass::Refused(what) => {
            denial = DenialReason::RefusedAddress(what);
            false
        }
    };
    let checked: Vec<SocketAddr> =
        addresses.iter().copied().filter(|address| may_connect(address.ip())).collect();
    match checked.is_empty() {
        true => Err(denial),
        false => Ok(checked),
    }
}
