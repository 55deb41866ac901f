//! Tests of a run's network.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;

struct ServiceFixture {
    _dir: tempfile::TempDir,
    socket: Utf8PathBuf,
    service: EgressService,
    notes: mpsc::Receiver<ToolNote>,
    questions: mpsc::Receiver<ToolQuestion>,
}

fn start(attendance: QuestionPolicy) -> ServiceFixture {
    start_with(attendance, &EgressConfig::default())
}

fn start_with(attendance: QuestionPolicy, network: &EgressConfig) -> ServiceFixture {
    let env = [("ANTHROPIC_API_KEY", "sk-secret"), ("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")];
    start_agent(attendance, network, (RuntimeType::Sdk, ""), &env)
}

/// Starts the network of an agent with this runtime, program and environment.
fn start_agent(
    attendance: QuestionPolicy,
    network: &EgressConfig,
    (runtime, program): (RuntimeType, &str),
    env: &[(&str, &str)],
) -> ServiceFixture {
    let dir = tempfile::tempdir().unwrap();
    let socket = Utf8Path::from_path(dir.path()).unwrap().join("e");
    let (note_sender, notes) = mpsc::channel(4);
    let (question_sender, questions) = mpsc::channel(4);
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let service = EgressService::start(EgressSetup {
        socket: &socket,
        network,
        credentials: Some(CredentialMode::Proxied),
        git: &[],
        forward: Vec::new(),
        runtime,
        program,
        rates: None,
        env: &env,
        budget_usd: None,
        attendance,
        agent: "coder",
        notes: note_sender,
        questions: question_sender,
        container: ContainerPid::default(),
    });
    ServiceFixture { _dir: dir, socket, service: service.unwrap(), notes, questions }
}

async fn request(socket: Utf8PathBuf) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(b"CONNECT pypi.invalid:443 HTTP/1.1\r\n\r\n").await.unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).await.unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test]
async fn a_denial_in_an_unattended_run_is_a_row_with_the_cure() {
    let mut fixture = start(QuestionPolicy::Nobody);
    assert_eq!(request(fixture.socket.clone()).await, "HTTP/1.1 403");
    let note = fixture.notes.recv().await.unwrap();
    assert_eq!((note.subtype(), note.fields()["host"].as_str()), ("network", Some("pypi.invalid")));
    assert_eq!(
        note.content(),
        "denied pypi.invalid:443: the host is not listed; to allow it, add it to `sandbox.network.allow`"
    );
    assert!(fixture.questions.try_recv().is_err());
}

#[tokio::test]
async fn a_denial_in_an_attended_run_is_a_question_first() {
    for (answer, status) in [
        (NetworkGrantChoice::Session, "HTTP/1.1 502"),
        (NetworkGrantChoice::Always, "HTTP/1.1 502"),
        (NetworkGrantChoice::Once, "HTTP/1.1 502"),
        (NetworkGrantChoice::Deny, "HTTP/1.1 403"),
    ] {
        let mut fixture = start(QuestionPolicy::Person { timeout_ms: 60_000 });
        let waiting = tokio::spawn(request(fixture.socket.clone()));
        let asked = fixture.questions.recv().await.unwrap();
        let ToolQuestion { tool, input, network_host, reply } = asked;
        assert_eq!(tool, "network");
        assert_eq!(network_host.as_deref(), Some("pypi.invalid:443"));
        let text = input["questions"][0]["question"].as_str().unwrap();
        assert!(text.contains("pypi.invalid (port 443)"), "{text}");
        let input = question::fill_answers(&input, answer.label()).unwrap();
        reply.send(QuestionAnswer::Allow { input: Some(input) }).unwrap();
        // The name has no address, so an allowed request fails later.
        assert_eq!(waiting.await.unwrap(), status, "{answer:?}");
        let note = fixture.notes.recv().await.unwrap();
        assert_eq!(
            note.content().starts_with("denied"),
            answer == NetworkGrantChoice::Deny,
            "{}",
            note.content()
        );
    }
}

#[tokio::test]
async fn a_question_without_an_answer_is_a_denial() {
    let mut fixture = start(QuestionPolicy::Person { timeout_ms: 60_000 });
    let waiting = tokio::spawn(request(fixture.socket.clone()));
    drop(fixture.questions.recv().await.unwrap());
    assert_eq!(waiting.await.unwrap(), "HTTP/1.1 403");
    assert!(fixture.notes.recv().await.unwrap().content().contains("not listed"));
}

#[tokio::test]
async fn the_agents_environment_has_no_credential() {
    let mut fixture = start(QuestionPolicy::Nobody);
    let variables = fixture.service.variables();
    assert!(variables.iter().all(|(_, value)| !value.contains("secret")));
    let value = |name: &str| {
        variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    assert_eq!(value("ANTHROPIC_BASE_URL").as_deref(), Some("http://127.0.0.1:3128"));
    assert_eq!(value("https_proxy").as_deref(), Some("http://127.0.0.1:3128"));
    assert!(value("ANTHROPIC_API_KEY").is_some_and(|key| key != "sk-secret"));
    assert_eq!(fixture.service.finish().cost_usd(), 0.0);
    assert!(UnixStream::connect(&fixture.socket).await.is_err());
}

#[tokio::test]
async fn each_program_finds_the_proxy_by_its_own_variables() {
    let goose = [("GOOSE_PROVIDER", "google"), ("GOOGLE_API_KEY", "sk-secret")];
    for (agent, env, key, base) in [
        (
            (RuntimeType::Codex, "codex"),
            &[("CODEX_API_KEY", "sk-secret")][..],
            "CODEX_API_KEY",
            "OPENAI_BASE_URL",
        ),
        (
            (RuntimeType::Qwen, "qwen"),
            &[("OPENAI_API_KEY", "sk-secret")],
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
        ),
        (
            (RuntimeType::Acp, "gemini"),
            &[("GEMINI_API_KEY", "sk-secret")],
            "GEMINI_API_KEY",
            "GOOGLE_GEMINI_BASE_URL",
        ),
        ((RuntimeType::Acp, "goose"), &goose, "GOOGLE_API_KEY", "GOOGLE_HOST"),
    ] {
        let fixture = start_agent(QuestionPolicy::Nobody, &EgressConfig::default(), agent, env);
        let variables: IndexMap<&str, &str> = fixture
            .service
            .variables()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(variables.get(base), Some(&PROXY_URL), "{agent:?}");
        assert!(variables.contains_key(key), "{agent:?}");
        assert!(variables.values().all(|value| !value.contains("secret")), "{agent:?}");
        assert_eq!(fixture.service.api_base(), Some(PROXY_URL), "{agent:?}");
    }
    assert_eq!(PROXY_URL, format!("http://127.0.0.1:{PROXY_PORT}"));
}

#[test]
fn a_text_that_is_no_choice_allows_nothing() {
    let answer = |text: &str, keeps_grants| {
        let input = Some(json!({ "answers": { "q": text } }));
        grant_scope(&QuestionAnswer::Allow { input }, keeps_grants)
    };
    assert_eq!(answer("yes, but only on Mondays", true), Some(GrantScope::Denied));
    assert_eq!(answer("Allow once", true), Some(GrantScope::Once));
    assert_eq!(answer("Allow always", true), Some(GrantScope::Run));
    assert_eq!(answer("Allow always", false), Some(GrantScope::Denied), "it was not offered");
    let unchanged = QuestionAnswer::Allow { input: None };
    assert_eq!(grant_scope(&unchanged, true), Some(GrantScope::Once));
}

#[tokio::test]
async fn a_config_without_a_network_offers_no_permission_for_later() {
    for (network, expected) in [
        (EgressConfig::None, ["Allow once", "Allow for this run", "Deny"].as_slice()),
        (
            EgressConfig::default(),
            &["Allow once", "Allow for this session", "Allow always", "Deny"],
        ),
    ] {
        let mut fixture = start_with(QuestionPolicy::Person { timeout_ms: 60_000 }, &network);
        let waiting = tokio::spawn(request(fixture.socket.clone()));
        let asked = fixture.questions.recv().await.unwrap();
        let options = asked.input["questions"][0]["options"].as_array().unwrap();
        let labels: Vec<&str> = options.iter().map(|it| it["label"].as_str().unwrap()).collect();
        assert_eq!(labels, expected);
        assert_eq!(asked.network_host.is_some(), network != EgressConfig::None);
        drop(asked);
        assert_eq!(waiting.await.unwrap(), "HTTP/1.1 403");
    }
}
