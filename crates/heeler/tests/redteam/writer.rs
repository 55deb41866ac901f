//! Attacks on the position of the writer: an agent that starts the daemon of a fleet, or replaces its
//! records, while no daemon runs. Such a daemon would be a descendant of the agent and could not tell
//! the agent from a person.

use std::path::Path;

use super::authority::LEAVE_GROUP;
use crate::fleet::Fleet;
use crate::trigger::{scripted, wait_for};

/// Exit code of a command that is refused.
const REFUSED: &str = "5";

/// Exit code of a command that finds no daemon and starts none.
const NO_DAEMON: &str = "3";

/// Begins each attack: waits until no daemon runs, and defines `try`, which runs a command with an
/// empty environment and notes its exit code.
const WAIT_FOR_GO: &str = r#"
mkdir -m 700 -p private
echo $$ > pid.new; mv pid.new pid
until test -e go; do test -e over && exit; sleep 0.01; done
try() {
  env -i HOME="$HOME" PATH="$PATH" HEELER_TRUST=all HEELER_NO_WEB=1 \
    XDG_RUNTIME_DIR="$PWD/private" timeout 20 "$@" >> said 2>&1 < /dev/null
  echo "$? $*" >> codes
}
"#;

/// A fleet that ends with the test.
struct Conquered<'f>(&'f Fleet);

impl Drop for Conquered<'_> {
    fn drop(&mut self) {
        // A process that an attack left waits for this file, and then ends.
        self.0.write("over", "");
        self.0.run(&["stop", "--force", "-q"]);
    }
}

impl std::ops::Deref for Conquered<'_> {
    type Target = Fleet;
    fn deref(&self) -> &Fleet {
        self.0
    }
}

/// A fleet whose agent `hostile` runs `attack` once the file `go` exists. The daemon is dead, and
/// the agent lives. In the attack, `heeler` is the program.
fn conquered<'f>(fleet: &'f Fleet, attack: &str) -> Conquered<'f> {
    begin(fleet, attack, "exec sh attack.sh");
    fleet.kill("start");
    Conquered(fleet)
}

fn begin(fleet: &Fleet, attack: &str, command: &str) {
    let hostile = format!("runtime: command\ncommand: '{command}'");
    fleet.configure(&[("hostile", &hostile), ("other", &scripted("{say: Hello.}"))]);
    let program = fleet.program().display().to_string();
    let attack = attack.replace("heeler ", &format!("{program} "));
    fleet.write("attack.sh", &format!("{WAIT_FOR_GO}{attack}\necho > finished\n"));
    fleet.run(&["start", "--detach"]).ok();
    fleet.run(&["trigger", "hostile", "--detach", "-q"]).ok();
    wait_for("the agent", || fleet.file("pid").exists().then_some(()));
}

impl Conquered<'_> {
    /// Lets the attack begin, waits for its end, and returns the exit codes and what was said.
    #[track_caller]
    fn attack(&self) -> (Vec<String>, String) {
        self.write("go", "");
        wait_for("the attack's end", || self.file("finished").exists().then_some(()));
        let said = self.read("said");
        let codes = self.read("codes");
        (codes.lines().map(str::to_owned).collect(), said)
    }

    /// Asserts that every command of the attack was refused, that no daemon runs, and that a person
    /// can start one that knows nothing of the attack.
    #[track_caller]
    fn gains_nothing(&self) {
        let (codes, said) = self.attack();
        let is_refused = |line: &String| {
            line.split(' ').next().is_some_and(|code| [REFUSED, NO_DAEMON].contains(&code))
        };
        assert!(!codes.is_empty() && codes.iter().all(is_refused), "{codes:#?}\n{said}");
        assert!(said.contains("a process of a run") || said.contains("no_new_privs"), "{said}");
        assert_eq!(self.processes("start"), Vec::<i32>::new(), "{codes:#?}\n{said}");
        self.run(&["start", "--detach"]).ok();
        let tokens = self.json(&["token", "list", "--json"])["tokens"].to_string();
        assert!(!tokens.contains("mine"), "{tokens}");
        assert!(self.jobs().iter().all(|job| job.head.agent != "other"));
        self.run(&["trigger", "other", "-q"]).ok();
    }
}

fn an_agent_cannot_start_the_daemon_of_its_own_fleet(fleet: &Fleet) {
    let fleet = conquered(
        fleet,
        "try heeler start --detach\ntry heeler start\ntry heeler start --until-idle\n\
         try heeler start --in-background --state-dir .heeler\n\
         try heeler trigger other --detach\ntry heeler token create mine --scope admin\n\
         try heeler restart",
    );
    fleet.gains_nothing();
}

fn an_agent_cannot_start_the_daemon_with_the_capability_of_its_run(fleet: &Fleet) {
    let fleet = conquered(
        fleet,
        "heeler trigger other --detach >> said 2>&1 < /dev/null; echo \"$? trigger\" >> codes",
    );
    fleet.gains_nothing();
}

fn an_agent_cannot_write_the_records_of_its_fleet_by_commands(fleet: &Fleet) {
    begin(
        fleet,
        "try heeler restore --yes saved.tar.gz\ntry heeler doctor --rebuild --yes",
        "exec sh attack.sh",
    );
    fleet.run(&["backup", "saved.tar.gz"]).ok();
    fleet.kill("start");
    Conquered(fleet).gains_nothing();
}

fn an_agent_cannot_restore_a_backup_beside_the_daemon(fleet: &Fleet) {
    begin(fleet, "try heeler restore --yes saved.tar.gz", "exec sh attack.sh");
    let fleet = Conquered(fleet);
    fleet.run(&["backup", "saved.tar.gz"]).ok();
    fleet.run(&["trigger", "other", "-q"]).ok();
    let (codes, said) = fleet.attack();
    assert!(codes[0].starts_with(REFUSED), "{codes:?} {said}");
    let jobs = fleet.jobs();
    assert!(jobs.iter().any(|job| job.head.agent == "other"), "the backup has no such job");
}

fn an_agent_cannot_start_the_daemon_in_namespaces_of_its_own(fleet: &Fleet) {
    let fleet = conquered(
        fleet,
        "try unshare -Urpf --mount-proc heeler start\n\
         echo NoNewPrivs: 1 > marked; echo 0 0 4294967295 > map\n\
         try unshare -Urm sh -c 'mount --bind marked /proc/1/status; \
         mount --bind map /proc/$$/uid_map; exec heeler start'\n\
         try unshare -Ur heeler start",
    );
    fleet.gains_nothing();
}

fn an_agent_that_outlived_its_runner_cannot_start_the_daemon(fleet: &Fleet) {
    let leave = format!(
        "env -i HOME=\"$HOME\" PATH=\"$PATH\" setsid sh -c '({LEAVE_GROUP}; exec sh attack.sh) &' \
         > /dev/null 2>&1 < /dev/null\nexec sleep 300\n"
    );
    fleet.write("leave.sh", &leave);
    let attack = "try heeler start\ntry heeler token create mine --scope admin";
    begin(fleet, attack, "exec sh leave.sh");
    fleet.kill("start");
    let fleet = Conquered(fleet);
    fleet.kill("runner");
    let pid = fleet.read("pid").trim().to_owned();
    // Nobody settles the run, because there is no daemon.
    assert!(Path::new(&format!("/proc/{pid}")).exists(), "it has to survive");
    fleet.gains_nothing();
}

fn an_agent_cannot_start_the_daemon_of_a_fleet_that_is_older_than_its_run(fleet: &Fleet) {
    fleet.write("neighbour/heeler.yaml", "agents: []\n");
    fleet.run(&["-c", "neighbour", "token", "create", "first", "--scope", "read"]).ok();
    fleet.run(&["-c", "neighbour", "stop"]);
    let fleet = conquered(
        fleet,
        "cd neighbour\ntry() { env -i HOME=\"$HOME\" PATH=\"$PATH\" HEELER_TRUST=all \
         timeout 20 \"$@\" >> ../said 2>&1 < /dev/null; echo \"$? $*\" >> ../codes; }\n\
         try heeler start --no-web\ntry heeler token create mine --scope admin\ncd ..",
    );
    fleet.gains_nothing();
    let tokens = fleet.run(&["-c", "neighbour", "token", "list"]).ok();
    assert!(tokens.contains("first") && !tokens.contains("mine"), "{tokens}");
}

/// Developers of Heeler run its tests in an agent.
fn an_agent_may_run_a_fleet_that_it_made_itself(fleet: &Fleet) {
    let fleet = conquered(
        fleet,
        "mkdir made; cd made\ntry() { env -i HOME=\"$HOME\" PATH=\"$PATH\" HEELER_TRUST=all \
         HEELER_NO_WEB=1 \"$@\" >> ../said 2>&1 < /dev/null; echo \"$? $*\" >> ../codes; }\n\
         try heeler init\ntry heeler trigger greeter -q\ntry heeler start --detach\n\
         try heeler trigger greeter -q\ntry heeler doctor\ntry heeler stop\ncd ..",
    );
    let (codes, said) = fleet.attack();
    assert_eq!(codes.len(), 6);
    // The views of the last jobs may not be published yet, which `doctor` reports.
    let is_expected = |line: &String| line.starts_with("0 ") || line.ends_with(" doctor");
    assert!(codes.iter().all(is_expected), "{codes:#?}\n{said}");
    // People learn that the mark says nothing in such a fleet.
    assert!(said.contains("no_new_privs"), "{said}");
}

attacks![
    an_agent_cannot_start_the_daemon_of_its_own_fleet,
    an_agent_cannot_start_the_daemon_with_the_capability_of_its_run,
    an_agent_cannot_write_the_records_of_its_fleet_by_commands,
    an_agent_cannot_restore_a_backup_beside_the_daemon,
    an_agent_cannot_start_the_daemon_in_namespaces_of_its_own,
    an_agent_that_outlived_its_runner_cannot_start_the_daemon,
    an_agent_cannot_start_the_daemon_of_a_fleet_that_is_older_than_its_run,
    an_agent_may_run_a_fleet_that_it_made_itself,
];
