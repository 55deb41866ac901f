//! The network of a sandboxed run: the egress proxy, its rows and its questions.
//!
//! The proxy runs in this process, outside of the sandbox, on a socket that is mounted inside. Its
//! decisions become rows of the run. A host that is not listed becomes a question to the person who
//! attends the run. Start at [`EgressService`].

mod credentials;
mod git;
mod spending;

use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{CredentialMode, EgressConfig, LocalAddress, RuntimeType};
use heeler_egress::{
    ApiRoute, ApiRouteError, EgressDecision, EgressEvent, EgressLimits, EgressOptions, EgressProxy,
    EgressQuestion, EgressStartError, ForwardedAddress, GitRoute, GrantScope, ModelRates,
    SystemNetwork, UsageLedger,
};
use heeler_model::run::{GitAccessSpec, QuestionAnswer, QuestionPolicy};
use heeler_model::{NetworkGrantChoice, question};
use heeler_process::SocketPeerProcess;
use indexmap::IndexMap;
use serde_json::{Value as Json, json};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::mcp::{ToolNote, ToolQuestion};
pub(crate) use credentials::CredentialError;
use credentials::{ApiAccess, CredentialOwner, find_api_access};
pub(crate) use git::GitAccessError;
pub(crate) use spending::raise_cost;

/// Loopback port inside of the sandbox that leads to the proxy.
pub(crate) const PROXY_PORT: u16 = 3128;

/// Address of the proxy for an agent.
const PROXY_URL: &str = "http://127.0.0.1:3128";

/// Most generations between the first process of a sandbox and its runner.
const SANDBOX_DEPTH_MAX: usize = 4;

/// Limit on events that wait for the event loop; connections with further ones wait.
const EVENTS_MAX: usize = 16;

/// Tool that a question about a host is shown for.
const NETWORK_TOOL: &str = "network";

/// Inputs of a run's network.
pub(crate) struct EgressSetup<'s> {
    /// Path of the socket, in a folder that only this user can enter.
    pub(crate) socket: &'s Utf8Path,
    pub(crate) network: &'s EgressConfig,
    /// `None` proxies what can be proxied for long.
    pub(crate) credentials: Option<CredentialMode>,
    pub(crate) git: &'s [GitAccessSpec],
    /// Local addresses at ports of the agent, and their sockets.
    pub(crate) forward: Vec<(LocalAddress, Utf8PathBuf)>,
    pub(crate) runtime: RuntimeType,
    /// Name that the run records for the agent's program; empty for Claude.
    pub(crate) program: &'s str,
    /// Prices of the agent's model, if the config or Heeler knows them.
    pub(crate) rates: Option<ModelRates>,
    /// Environment of the agent, with credentials.
    pub(crate) env: &'s IndexMap<String, String>,
    pub(crate) budget_usd: Option<f64>,
    pub(crate) attendance: QuestionPolicy,
    /// Name of the agent.
    pub(crate) agent: &'s str,
    pub(crate) notes: mpsc::Sender<ToolNote>,
    pub(crate) questions: mpsc::Sender<ToolQuestion>,
    /// The first process of the agent's container, if it has one.
    pub(crate) container: ContainerPid,
}

/// Reason that a run has no network and must not start.
#[derive(Debug, Error)]
pub(crate) enum EgressServiceError {
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    #[error(transparent)]
    Git(#[from] GitAccessError),
    #[error("the API or a git remote of the agent cannot be reached through the proxy")]
    Route(#[from] ApiRouteError),
    #[error("cannot read the certificates in {path} (NODE_EXTRA_CA_CERTS)")]
    Certificates { path: String, source: std::io::Error },
    #[error("cannot listen on the socket {path} of the egress proxy")]
    Socket { path: Utf8PathBuf, source: std::io::Error },
    #[error(transparent)]
    Start(#[from] EgressStartError),
}

/// PID of the first process of a container, which is no descendant of the runner; 0 if there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContainerPid(Arc<AtomicU32>);

impl ContainerPid {
    pub(crate) fn set(&self, pid: u32) {
        self.0.store(pid, Ordering::Release);
    }

    /// Forgets the process. Its PID may be reused once it has ended.
    pub(crate) fn clear(&self) {
        self.set(0);
    }

    fn is(&self, pid: u32) -> bool {
        pid != 0 && self.0.load(Ordering::Acquire) == pid
    }
}

/// Network of a run. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct EgressService {
    proxy: Option<EgressProxy>,
    ledger: UsageLedger,
    variables: Vec<(String, String)>,
    is_proxied: bool,
    _events: AbortOnDropHandle<()>,
}

impl EgressService {
    /// Starts the proxy on its socket.
    pub(crate) fn start(setup: EgressSetup<'_>) -> Result<EgressService, EgressServiceError> {
        let ledger = UsageLedger::with_limit(setup.budget_usd);
        if let Some(rates) = setup.rates {
            ledger.set_rates(rates);
        }
        let owner = CredentialOwner { runtime: setup.runtime, program: setup.program };
        let access = find_api_access(setup.credentials, setup.env, owner)?;
        let extra_roots = extra_roots(setup.env)?;
        let api = access.as_ref().map(|access| {
            let credentials = access.credentials.clone();
            ApiRoute::new(&access.base, credentials, extra_roots.as_deref(), ledger.clone())
                .map(|route| route.with_protocol(access.protocol))
        });
        let api = api.transpose()?;
        let remotes = git::find_git_access(setup.git, setup.env)?;
        let git = match remotes.is_empty() {
            true => None,
            false => Some(GitRoute::new(&remotes, extra_roots.as_deref())?),
        };
        let listener = listen(setup.socket)?;
        let mut rules = setup.network.rules();
        let mut forwarded = Vec::new();
        for (address, socket) in setup.forward {
            rules.allow_local.push(address.clone());
            forwarded.push(ForwardedAddress { listener: listen(&socket)?, address });
        }
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let known = setup.container;
        let options = EgressOptions {
            is_agent: Arc::new(move |connection| is_first_process(connection, &known)),
            rules,
            asks: matches!(setup.attendance, QuestionPolicy::Person { .. }),
            api,
            git,
            forwarded,
            own_port: Some(PROXY_PORT),
            limits: EgressLimits::default(),
            network: Arc::new(SystemNetwork),
            events: sender,
        };
        let proxy = EgressProxy::start(listener, options)?;
        let questioner = NetworkQuestioner {
            questions: setup.questions,
            agent: setup.agent.to_owned(),
            // A config without a network is meant so. A permission for later would undo it silently.
            keeps_grants: matches!(setup.network, EgressConfig::Allow(_)),
        };
        let events = tokio::spawn(pass_events(events, setup.notes, questioner));
        Ok(EgressService {
            proxy: Some(proxy),
            ledger,
            variables: [agent_variables(access.as_ref()), git::git_variables(&remotes, setup.env)]
                .concat(),
            is_proxied: access.is_some(),
            _events: AbortOnDropHandle::new(events),
        })
    }

    /// Returns the variables that replace those of the agent's environment.
    pub(crate) fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// Returns true if the agent must not have its API credentials.
    pub(crate) fn is_proxied(&self) -> bool {
        self.is_proxied
    }

    /// Returns the address at which the agent reaches its API, if the proxy adds the credentials.
    pub(crate) fn api_base(&self) -> Option<&'static str> {
        self.is_proxied.then_some(PROXY_URL)
    }

    /// Ends all connections and returns the use of the API, which is complete then.
    pub(crate) fn finish(&mut self) -> &UsageLedger {
        drop(self.proxy.take());
        &self.ledger
    }
}

/// Listens on a socket that only this user can connect to.
fn listen(path: &Utf8Path) -> Result<UnixListener, EgressServiceError> {
    let failed = |source| EgressServiceError::Socket { path: path.to_owned(), source };
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Returns true if a connection comes from the first process of this run's sandbox or container,
/// which forwards those of the agent.
pub(crate) fn is_first_process(connection: BorrowedFd<'_>, container: &ContainerPid) -> bool {
    SocketPeerProcess::of(connection)
        .is_ok_and(|peer| peer.is_near_descendant(SANDBOX_DEPTH_MAX) || container.is(peer.pid))
}

/// Returns additional certificates in PEM. Companies that inspect TLS give Claude theirs in this way.
fn extra_roots(env: &IndexMap<String, String>) -> Result<Option<Vec<u8>>, EgressServiceError> {
    match env.get("NODE_EXTRA_CA_CERTS").filter(|path| !path.is_empty()) {
        None => Ok(None),
        Some(path) => std::fs::read(path)
            .map(Some)
            .map_err(|source| EgressServiceError::Certificates { path: path.clone(), source }),
    }
}

/// Returns the variables by which the programs of the agent find the proxy.
fn agent_variables(access: Option<&ApiAccess>) -> Vec<(String, String)> {
    let proxy = PROXY_URL.to_owned();
    let mut variables = Vec::new();
    // Programs differ in the case that they read. `ALL_PROXY` is no SOCKS address, because some
    // programs cannot start with one.
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        variables.push((name.to_owned(), proxy.clone()));
        variables.push((name.to_lowercase(), proxy.clone()));
    }
    for name in ["NO_PROXY", "no_proxy"] {
        variables.push((name.to_owned(), "localhost,127.0.0.1,::1".to_owned()));
    }
    // Node.js ignores the variables above without this one.
    variables.push(("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned()));
    if let Some(access) = access {
        variables.push((access.base_url_variable.to_owned(), proxy));
        variables.extend(access.placeholders());
    }
    variables
}

/// Turns the events of the proxy into rows and questions, until the proxy ends.
async fn pass_events(
    mut events: mpsc::Receiver<EgressEvent>,
    notes: mpsc::Sender<ToolNote>,
    questioner: NetworkQuestioner,
) {
    let mut open = JoinSet::new();
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            Some(_) = open.join_next() => continue,
        };
        match event {
            None => return,
            Some(EgressEvent::Question(asked)) => {
                open.spawn(questioner.clone().ask(asked));
            }
            Some(event) => {
                // An event loop that has ended records nothing more.
                drop(notes.send(egress_note(event)).await);
            }
        }
    }
}

fn egress_note(event: EgressEvent) -> ToolNote {
    match event {
        EgressEvent::Decision(EgressDecision { host, port, denial }) => ToolNote::NetworkDecision {
            host,
            port,
            denial: denial.map(|denial| denial.to_string()),
        },
        EgressEvent::DecisionsOmitted | EgressEvent::Question(_) => ToolNote::NetworkOmitted,
    }
}

/// Asks people about hosts.
#[derive(Debug, Clone)]
struct NetworkQuestioner {
    questions: mpsc::Sender<ToolQuestion>,
    agent: String,
    /// True if a permission may count for later runs.
    keeps_grants: bool,
}

impl NetworkQuestioner {
    async fn ask(self, asked: EgressQuestion) {
        let (reply, answered) = oneshot::channel();
        let input = self.question_input(&asked);
        let network_host = self.keeps_grants.then(|| format!("{}:{}", asked.host, asked.port));
        let question = ToolQuestion { tool: NETWORK_TOOL, input, network_host, reply };
        if self.questions.send(question).await.is_err() {
            return;
        }
        // Without an answer the question is dropped, which denies the host.
        if let Ok(answer) = answered.await
            && let Some(scope) = grant_scope(&answer, self.keeps_grants)
        {
            asked.reply.send_replace(Some(scope));
        }
    }

    fn question_input(&self, EgressQuestion { host, port, .. }: &EgressQuestion) -> Json {
        let agent = &self.agent;
        let options = NetworkGrantChoice::ALL.into_iter().filter_map(|choice| {
            let description = match choice {
                NetworkGrantChoice::Once => "this connection only".to_owned(),
                NetworkGrantChoice::Run if !self.keeps_grants => "until the run ends".to_owned(),
                NetworkGrantChoice::Session if self.keeps_grants => {
                    "in this run and later runs of its session".to_owned()
                }
                NetworkGrantChoice::Always if self.keeps_grants => format!(
                    "in every run of {agent}; kept in the state directory (heeler.db), shown by \
                     `heeler agent show {agent}`, removed by `heeler agent forget-hosts {agent}`"
                ),
                NetworkGrantChoice::Deny => "also later in this run".to_owned(),
                _ => return None,
            };
            Some(json!({ "label": choice.label(), "description": description }))
        });
        let question = json!({
            "question": format!("The agent wants to reach {host} (port {port}), which its network list lacks. Allow it?"),
            "header": "Network",
            "multiSelect": false,
            "options": options.collect::<Vec<Json>>(),
        });
        json!({ "questions": [question] })
    }
}

/// Returns the scope that a person chose; `None` if no person answered.
fn grant_scope(answer: &QuestionAnswer, keeps_grants: bool) -> Option<GrantScope> {
    match answer {
        // A permission without a choice is the smallest one.
        QuestionAnswer::Allow { input: None }
        | QuestionAnswer::AllowSession
        | QuestionAnswer::AllowAlways => Some(GrantScope::Once),
        QuestionAnswer::Allow { input: Some(input) } => {
            let Some(text) = question::format_answers(input) else { return Some(GrantScope::Once) };
            Some(match NetworkGrantChoice::from_label(&text) {
                Some(NetworkGrantChoice::Once) => GrantScope::Once,
                Some(NetworkGrantChoice::Run) => GrantScope::Run,
                Some(NetworkGrantChoice::Session | NetworkGrantChoice::Always) if keeps_grants => {
                    GrantScope::Run
                }
                // A text of one's own is no permission, and neither is a choice that was not offered.
                _ => GrantScope::Denied,
            })
        }
        QuestionAnswer::Deny { .. } => Some(GrantScope::Denied),
    }
}

#[cfg(test)]
mod tests;
