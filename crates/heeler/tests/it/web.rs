//! A daemon on the network: where it listens, and who it lets in.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};

use crate::fleet::{Fleet, Ran};
use crate::trigger::{fleet, scripted, wait_for};

/// A fleet that serves its dashboard, and is stopped with the test.
pub(crate) struct Served(pub(crate) Fleet);

impl Drop for Served {
    fn drop(&mut self) {
        // There may be none.
        self.0.run(&["stop", "--force", "-q"]);
    }
}

impl Served {
    pub(crate) fn new(web: &str) -> Served {
        Served::with(web, "{say: Done.}")
    }

    fn with(web: &str, steps: &str) -> Served {
        let fleet = fleet(&[("quick", &scripted(steps))]);
        let text = fleet.read("heeler.yaml");
        // Most tests here use the token of the file.
        let web = web.replacen('{', "{token_file: true, ", 1);
        fleet.write("heeler.yaml", &format!("web: {web}\n{text}"));
        Served(fleet)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.command(args);
        command.env_remove("HEELER_NO_WEB").env("USER", "ann");
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    /// Starts a daemon and returns where it listens.
    #[track_caller]
    pub(crate) fn start(&self) -> String {
        let told: Json = serde_json::from_str(&self.run(&["start", "-d", "--json"]).ok()).unwrap();
        told["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned()
    }

    fn token(&self) -> String {
        self.0.read(".heeler/api-token").trim().to_owned()
    }
}

/// Sends a request and returns the reply's code, head and body.
#[track_caller]
pub(crate) fn send(
    address: &str,
    line: &str,
    headers: &[&str],
    body: &str,
) -> (u16, String, String) {
    try_send(address, line, headers, body).expect("the daemon replies")
}

/// The same, of a daemon that may die over it.
pub(crate) fn try_send(
    address: &str,
    line: &str,
    headers: &[&str],
    body: &str,
) -> Option<(u16, String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Some((code, head.to_owned(), body.to_owned()))
}

/// The path of a login link, whose host is a name of the fleet's own.
#[track_caller]
pub(crate) fn link_path(link: &str, address: &str) -> String {
    let port = address.rsplit_once(':').unwrap().1;
    let (host, path) = link.trim().split_once(&format!(".localhost:{port}/")).unwrap();
    assert!(host.starts_with("http://heeler-"), "{link}");
    format!("/{path}")
}

pub(crate) fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

/// Asks for the jobs, and returns the code.
#[track_caller]
pub(crate) fn list(address: &str, token: &str) -> u16 {
    send(address, "GET /api/v1/jobs", &[&bearer(token)], "").0
}

#[test]
fn the_first_start_makes_a_token_for_the_user_alone_that_works_and_is_kept() {
    let served = Served::new("{port: auto}");
    let address = served.start();
    let token = served.token();
    let mode = served.0.file(".heeler/api-token").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(list(&address, &token), 200);
    assert_eq!(list(&address, "wrong"), 401);
    assert_eq!(send(&address, "GET /api/v1/jobs", &[], "").0, 401);
    let status: Json = serde_json::from_str(&served.run(&["status", "--json"]).ok()).unwrap();
    assert_eq!(status["daemon"]["url"], format!("http://{address}"));
    assert!(served.run(&["status"]).ok().contains(&format!("dashboard: http://{address} ")));
    served.run(&["restart"]).ok();
    assert_eq!(served.token(), token);
    // Whoever loses it, or gives it away, removes the file.
    std::fs::remove_file(served.0.file(".heeler/api-token")).unwrap();
    served.run(&["stop"]).ok();
    let address = served.start();
    assert_ne!(served.token(), token);
    assert_eq!((list(&address, &served.token()), list(&address, &token)), (200, 401));
    let log = served.0.read(".heeler/logs/heeler.log");
    assert!(!log.contains(&token) && !log.contains(&served.token()));
}

#[test]
fn a_daemon_killed_before_it_has_written_its_token_leaves_none_that_counts() {
    let served = Served::new("{port: auto}");
    let dying = served.command(&["start", "--fault", "before-api-token"]).output().unwrap();
    assert!(!dying.status.success());
    assert!(!served.0.file(".heeler/api-token").exists());
    let address = served.start();
    assert_eq!(list(&address, &served.token()), 200);
    let tokens: Json =
        serde_json::from_str(&served.run(&["token", "list", "--json"]).ok()).unwrap();
    let counting = tokens["tokens"].as_array().unwrap().iter();
    let counting = counting.filter(|it| it["name"] == "api-token" && it["revokedAt"].is_null());
    assert_eq!(counting.count(), 1, "{tokens:#}");
}

#[test]
fn a_restart_keeps_the_port() {
    let served = Served::new("{port: auto}");
    let address = served.start();
    for _ in 0..3 {
        // Somebody keeps a connection open.
        let _open = TcpStream::connect(&address).unwrap();
        served.run(&["restart"]).ok();
        let status: Json = serde_json::from_str(&served.run(&["status", "--json"]).ok()).unwrap();
        assert_eq!(status["daemon"]["url"], format!("http://{address}"));
    }
}

#[test]
fn a_taken_port_is_an_error_that_names_who_has_it_and_leaves_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let served = Served::new(&format!("{{port: {port}}}"));
    for args in [&["start"][..], &["start", "-d"]] {
        let said = served.run(args).fails(5);
        assert!(said.contains(&format!("port {port} of 127.0.0.1 is taken by process ")), "{said}");
        assert!(said.contains(&std::process::id().to_string()), "{said}");
        assert!(said.contains("web: {port: auto}"), "{said}");
        for name in ["daemon.json", "api-token", "heeler.db"] {
            assert!(!served.0.file(&format!(".heeler/{name}")).exists(), "{name}");
        }
    }
    assert!(served.run(&["status"]).ok().contains("no daemon"));
    served.run(&["start", "-d", "--no-web"]).ok();
    let said = served.run(&["open"]).fails(3);
    assert!(said.contains("serves no dashboard"), "{said}");
    served.run(&["stop"]).ok();
    drop(taken);
    assert!(served.start().ends_with(&format!(":{port}")));
}

#[test]
fn another_fleet_of_ours_on_the_port_is_named_and_auto_takes_the_next() {
    let first = Served::new("{port: auto}");
    let address = first.start();
    let (_, port) = address.rsplit_once(':').unwrap();
    let second = Served::new(&format!("{{port: {port}}}"));
    let said = second.run(&["start", "-d"]).fails(5);
    let state_dir = first.0.state_dir().canonicalize_utf8().unwrap();
    assert!(said.contains(&format!("the heeler daemon of {state_dir}")), "{said}");
    // `auto` is the default, so a second fleet on a machine just works.
    let third = Served::new("{}");
    assert_ne!(third.start(), address);
}

#[test]
fn a_second_daemon_of_the_same_fleet_is_told_of_the_first_not_of_its_port() {
    let served = Served::new("{port: auto}");
    let address = served.start();
    let (_, port) = address.rsplit_once(':').unwrap();
    let text = served.0.read("heeler.yaml").replace("auto", port);
    served.0.write("heeler.yaml", &text);
    let said = served.run(&["start"]).fails(5);
    assert!(said.contains("is in use by `heeler start`"), "{said}");
    let said = served.run(&["reload"]).ok();
    assert!(said.contains("heeler restart"), "{said}");
}

#[test]
fn beyond_this_machine_it_listens_only_once_somebody_can_say_who_they_are() {
    let served = Served::new("{port: auto, host: 0.0.0.0}");
    let said = served.run(&["start", "-d"]).fails(5);
    assert!(said.contains("no password or token is set"), "{said}");
    assert!(said.contains("heeler password set"), "{said}");
    served.run(&["token", "create", "ci", "--scope", "read"]).ok();
    assert!(served.start().starts_with("127.0.0.1:"));
}

#[test]
fn tokens_are_made_used_listed_and_revoked() {
    let served = Served::new("{port: auto}");
    let address = served.start();
    let made = served.run(&["token", "create", "ci", "--scope", "operate", "--expires", "30d"]);
    let token = made.ok().trim().to_owned();
    assert!(token.starts_with("heeler_") && token.len() == 71, "{token}");
    assert_eq!(list(&address, &token), 200);
    let trigger = send(&address, "POST /api/v1/jobs", &[&bearer(&token)], r#"{"agent":"quick"}"#);
    assert!((200..300).contains(&trigger.0), "{trigger:?}");
    let stop = r#"{"jobs":"keep"}"#;
    assert_eq!(send(&address, "POST /api/v1/daemon/stop", &[&bearer(&token)], stop).0, 403);
    let again = served.run(&["token", "create", "ci", "--scope", "read"]).fails(5);
    assert!(again.contains("token ci already exists"), "{again}");
    assert!(
        served
            .run(&["token", "create", "api-token", "--scope", "read"])
            .fails(5)
            .contains("is reserved for the daemon")
    );
    assert!(
        served.run(&["token", "create", "x y", "--scope", "read"]).fails(2).contains("not a name")
    );
    let listed: Json =
        serde_json::from_str(&served.run(&["token", "list", "--json"]).ok()).unwrap();
    let ci = listed["tokens"].as_array().unwrap().iter().find(|it| it["name"] == "ci").unwrap();
    assert_eq!((&ci["status"], &ci["scope"]), (&json!("active"), &json!("operate")));
    assert_eq!(ci["createdBy"], heeler_process::login_name(rustix::process::geteuid().as_raw()));
    assert!(ci["usedAt"].is_string() && ci["expiresAt"].is_string(), "{ci}");
    assert!(!listed.to_string().contains(&token));
    served.run(&["token", "revoke", "ci"]).ok();
    assert_eq!(list(&address, &token), 401);
    assert!(served.run(&["token", "list"]).ok().contains("revoked"));
    assert!(served.run(&["token", "revoke", "nobody"]).fails(4).contains("there is no token"));
    served.run(&["token", "create", "ci", "--scope", "read"]).ok();
}

#[test]
fn a_link_logs_one_browser_in_which_may_then_do_what_its_pages_prove() {
    // The cookie belongs to a port. Daemons of other tests take the first free one from 7878 on.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let served = Served::new(&format!("{{port: {port}}}"));
    let address = served.start();
    let link = served.run(&["open", "--print"]).ok();
    let path = link_path(&link, &address);
    let (code, head, _) = send(&address, &format!("GET {path}"), &[], "");
    assert_eq!(code, 200, "{head}");
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
    assert_eq!(send(&address, &format!("GET {path}"), &[], "").0, 403, "it counts once");
    let (code, _, page) = send(&address, "GET /", &[&cookie, "accept: text/html"], "");
    assert_eq!(code, 200, "{page}");
    let (_, csrf) = page.split_once("name=\"csrf\" content=\"").unwrap();
    let csrf = format!("x-heeler-csrf: {}", csrf.split('"').next().unwrap());
    let job = r#"{"agent":"quick"}"#;
    assert_eq!(send(&address, "POST /api/v1/jobs", &[&cookie], job).0, 403);
    let evil = "origin: http://127.0.0.1:1";
    assert_eq!(send(&address, "POST /api/v1/jobs", &[&cookie, &csrf, evil], job).0, 403);
    let origin = format!("origin: http://{address}");
    let (code, ..) = send(&address, "POST /api/v1/jobs", &[&cookie, &csrf, &origin], job);
    assert!((200..300).contains(&code), "{code}");
    // Also with the next daemon.
    served.run(&["restart"]).ok();
    assert_eq!(send(&address, "GET /", &[&cookie, "accept: text/html"], "").0, 200);
    served.run(&["token", "revoke", "--logins"]).ok();
    assert_eq!(send(&address, "GET /", &[&cookie, "accept: text/html"], "").0, 303);
}

#[test]
fn a_password_is_set_from_a_pipe_lets_in_and_can_be_taken_away() {
    let served = Served::new("{port: auto}");
    let address = served.start();
    let set = |password: &str| {
        let mut command = served.command(&["password", "set", "--scope", "read"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
        Ran::from(child.wait_with_output().unwrap())
    };
    assert!(set("short\n").fails(2).contains("at least 10 characters"));
    assert_eq!(set("correct horse\n").ok(), "ann has a password, scope read\n");
    let log_in = || {
        let form = "content-type: application/x-www-form-urlencoded";
        let (code, head, _) =
            send(&address, "POST /login", &[form], "user=ann&password=correct+horse");
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        (code, cookie.map(|it| format!("cookie: {}", it.split(';').next().unwrap())))
    };
    let (code, cookie) = log_in();
    assert_eq!(code, 303);
    let list = |cookie: &str| send(&address, "GET /api/v1/jobs", &[cookie], "").0;
    let cookie = cookie.unwrap();
    assert_eq!(list(&cookie), 200);
    let people: Json =
        serde_json::from_str(&served.run(&["password", "list", "--json"]).ok()).unwrap();
    assert_eq!(people["people"][0]["name"], "ann");
    assert!(!people.to_string().contains("argon2"), "{people}");
    assert_eq!(set("battery staple").ok(), "ann has another password, scope read\n");
    assert_eq!(list(&cookie), 401, "another password logs out");
    assert_eq!(log_in().0, 401);
    served.run(&["password", "remove", "ann"]).ok();
    assert!(served.run(&["password", "remove", "ann"]).fails(4).contains("has no password"));
    let log = served.0.read(".heeler/logs/heeler.log");
    assert!(!log.contains("argon2") && !log.contains("correct"), "{log}");
}

#[test]
fn an_agent_that_finds_a_token_looks_and_does_not_steer() {
    // It tries by the network what it may not by the command line, and to get in by a link.
    let heeler = env!("CARGO_BIN_EXE_heeler");
    let ask = |line: &str, file: &str| {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/$(cat port) && \
             printf \"{line} HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\nconnection: close\\r\\n\
             authorization: Bearer $(cat .heeler/api-token)\\r\\ncontent-length: 0\\r\\n\\r\\n\" >&3 && \
             cat <&3 > {file}"
        )
    };
    let script = format!(
        "{}\n{}\n{heeler} open --print > link 2>&1; echo $? > link.code\n\
         {heeler} token create mine --scope admin > made 2>&1; echo $? > made.code\necho > done\n",
        ask("GET /api/v1/jobs", "looked"),
        ask("POST /api/v1/daemon/reload", "steered"),
    );
    let served = Served::with("{port: auto}", "{run: 'bash try.sh'}, {say: Tried.}");
    served.0.write("try.sh", &script);
    let address = served.start();
    served.0.write("port", address.rsplit_once(':').unwrap().1);
    served.run(&["trigger", "quick"]).ok();
    wait_for("the agent", || served.0.file("done").exists().then_some(()));
    assert!(served.0.read("looked").starts_with("HTTP/1.1 200 "), "{}", served.0.read("looked"));
    let steered = served.0.read("steered");
    assert!(steered.starts_with("HTTP/1.1 403 "), "{steered}");
    assert!(steered.contains("neither a person nor a run"), "{steered}");
    assert_eq!(served.0.read("link.code"), "5\n", "{}", served.0.read("link"));
    assert_eq!(served.0.read("made.code"), "5\n", "{}", served.0.read("made"));
    // The same token in a person's hand.
    let token = bearer(&served.token());
    assert_eq!(send(&address, "POST /api/v1/daemon/reload", &[&token], "").0, 200);
}

#[test]
fn commands_without_a_daemon_serve_nothing() {
    let served = Served::new("{port: auto}");
    served.run(&["trigger", "quick"]).ok();
    assert!(!served.0.file(".heeler/api-token").exists());
    let told = served.run(&["open"]).fails(3);
    assert!(told.contains("heeler start"), "{told}");
}
