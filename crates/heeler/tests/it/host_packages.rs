//! The shipped files for a fleet with several hosts: three hosts by `compose.yaml`, and a unit of systemd.

use heeler_testkit::PostgresCluster;
use serde_json::Value as Json;

use crate::daemon_kills::Herd;
use crate::host_runs::stop;
use crate::hosts::{failure_of, json_of, wait_for_leader};
use crate::trigger::wait_for;

/// The hosts of `compose.yaml`.
const HOSTS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Address of the records in `compose-fleet.yaml`.
const STORE: &str = "postgres://heeler@/heeler?host=/var/run/postgresql";

fn shipped(name: &str) -> String {
    let path = format!("{}/../../packaging/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn words(list: &Json) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Returns the commands of `heeler` in the comments of a file, from this word on.
fn commands_after(text: &str, word: &str) -> Vec<Vec<String>> {
    let comments = text.lines().filter_map(|line| line.strip_prefix('#'));
    let commands = comments.filter_map(|line| line.split_once(word)).map(|(_, command)| command);
    commands.map(|command| command.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Returns the options of a command, without their values.
fn options(command: &[String]) -> impl Iterator<Item = &String> {
    command.iter().filter(|word| word.starts_with("--"))
}

#[test]
fn the_hosts_of_the_shipped_compose_file_start_and_share_their_jobs() {
    let text = shipped("compose.yaml");
    // The anchors of YAML are resolved by the parser, except the merge of a service.
    let compose: Json = serde_saphyr::from_str(&text).unwrap();
    let services = compose["services"].as_object().unwrap();
    let mut names: Vec<&str> = services.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["alpha", "beta", "gamma", "postgres"]);
    let volumes = compose["volumes"].as_object().unwrap();
    for service in services.values() {
        for mount in words(&service["volumes"]) {
            let source = mount.split(':').next().unwrap();
            let is_shipped = source.strip_prefix("./").is_some_and(|it| !shipped(it).is_empty());
            assert!(is_shipped || volumes.contains_key(source), "{mount}");
        }
    }
    let arguments = services["postgres"]["environment"]["POSTGRES_INITDB_ARGS"].as_str().unwrap();
    assert!(arguments.contains("--encoding=UTF8 --locale=C"), "{arguments}");

    // The commands of the services, with the records on another server and the fleet in another folder.
    let cluster = PostgresCluster::start();
    cluster.create_database("heeler");
    let config = shipped("compose-fleet.yaml");
    assert!(config.contains(STORE));
    let config = config.replace(STORE, &cluster.url("heeler"));
    let herds = HOSTS.map(|_| Herd::of(&format!("{config}\nweb: {{enabled: false}}\n")));
    let mut lives = Vec::new();
    for (name, herd) in HOSTS.iter().zip(&herds) {
        let command = words(&services[*name]["command"]);
        let file = herd.fleet.file("heeler.yaml").into_os_string().into_string().unwrap();
        let command: Vec<String> =
            command.iter().map(|word| word.replace("/fleet/heeler.yaml", &file)).collect();
        assert_eq!(command[0], "start", "the entry point of the image is heeler");
        let words: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        lives.push(herd.begin(&words).0);
        wait_for_leader(herd, "alpha");
    }
    let inside = commands_after(&text, " exec ");
    assert!(inside.len() >= 3, "{inside:?}");
    for command in &inside {
        let at = HOSTS.iter().position(|name| *name == command[0]).unwrap();
        assert_eq!(command[1], "heeler");
        wait_for(&command.join(" "), || {
            let output = herds[at].command(&command[2]).args(&command[3..]).output().unwrap();
            output.status.success().then_some(())
        });
    }
    let listed = json_of(&herds[1], &["host", "list"]);
    let listed: Vec<_> = listed["hosts"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(listed, HOSTS);
    for agent in ["anywhere", "on-gpu", "leader"] {
        wait_for(agent, || {
            let output = herds[2].command("trigger").args([agent, "-q"]).output().unwrap();
            output.status.success().then_some(())
        });
    }
    let jobs = json_of(&herds[0], &["jobs", "--host", "gamma"]);
    assert!(jobs.to_string().contains("on-gpu"), "{jobs}");
    for (herd, life) in herds.iter().zip(lives).rev() {
        stop(herd, life);
    }
}

#[test]
fn the_shipped_unit_of_a_host_starts_a_host_and_lets_jobs_run_on() {
    let unit = shipped("heeler-host.service");
    let value = |key: &str| {
        let own = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        own.unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    for (key, expected) in [
        ("KillMode", "process"),
        ("Delegate", "yes"),
        ("OOMPolicy", "continue"),
        ("Restart", "on-failure"),
        ("RuntimeDirectoryPreserve", "yes"),
        ("XDG_RUNTIME_DIR", "/run/heeler"),
    ] {
        let key = if key == "XDG_RUNTIME_DIR" { "Environment=XDG_RUNTIME_DIR" } else { key };
        assert_eq!(value(key), expected, "{key}");
    }
    // It is refused with a code that ends the restarts, so only a start that can succeed is repeated.
    let herd = Herd::of("agents: []\n");
    let (code, text) = failure_of(&herd, &["start", "--host", "alpha"]);
    assert!(
        value("RestartPreventExitStatus").split(' ').any(|it| it == code.to_string()),
        "{text}"
    );
    let start = value("ExecStart");
    let start: Vec<String> = start.split(' ').map(str::to_owned).collect();
    assert_eq!(start[1], "start");
    let help = herd.command("start").arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for option in options(&start) {
        assert!(help.contains(option), "{option}");
    }
    assert!(start.ends_with(&["--host".to_owned(), "${HEELER_HOST_NAME}".to_owned()]));
    // The commands of the installation: `sudo -u heeler heeler trust /srv/fleet`.
    let commands = commands_after(&unit, " -u heeler heeler ");
    assert_eq!(commands.len(), 1, "{commands:?}");
    let help = herd.command(&commands[0][0]).arg("--help").output().unwrap();
    assert!(help.status.success(), "{commands:?}");
}
