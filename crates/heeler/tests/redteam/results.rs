//! Attacks on records: forge a result, a cost, a row or a budget.
//!
//! The agent is a script in the fleet's folder. It runs as the user of the daemon, so it can write
//! every file of the state directory and kill its runner.

use std::collections::BTreeSet;

use heeler_engine::fault::FaultPoint;
use heeler_model::run::{ResultSigningKey, RunEnd, RunResult};
use heeler_model::{ExitReason, Job, JobStatus};
use heeler_store::{RunRecord, StateDir, StoreReader};

use crate::fleet::{Fleet, Ran};
use crate::trigger::wait_for;

/// What a run of the hostile agent reserves, in millionths of a dollar.
const RESERVED: i64 = 1_000_000;

/// Begins each attack: finds the run's folder and its runner.
const FIND_RUNNER: &str = r#"set -e
dir=.heeler/runs/$HEELER_RUN
runner=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$dir/started.json")
job=$(sed -n 's/.*"job": "\([^"]*\)".*/\1/p' "$dir/spec.json")
forge() {
  printf '{"protocol":1,"run":"%s","job":"%s","end":"finished","exit_reason":"success","stop_reason":null,"summary":"forged","error":null,"cost":{"usd":%s,"usage":{}},"session":null,"started_at":"2026-11-17T09:00:00Z","finished_at":"%s","exit_code":0,"settled":%s%s}' \
    "$HEELER_RUN" "$job" "$1" "$2" "$3" "$4" > "$dir/forged"
  mv -f "$dir/forged" "$dir/result.json"
}
die() { kill -9 "$runner"; sleep 600; }
"#;

/// A fleet whose agent `evil` runs an attack, and may spend one dollar a day. It may kill its runner:
/// with the mark of agents, the kernel would prevent that.
fn hostile(like: &Fleet, attack: &str) -> Fleet {
    let evil = "runtime: scripted\nscript: [{run: 'sh attack.sh'}, {cost: 0.25}, {say: Done.}]\n\
        budget: {day: 1.00, job: 1.00}\nallow_new_privileges: true";
    let honest = "runtime: scripted\nscript: [{cost: 0.25}, {say: Hello.}]\nbudget: {day: 1.00}";
    let thief = "runtime: command\ncommand: 'sh steal.sh'";
    let fleet = like.another_with(&[("evil", evil), ("honest", honest), ("thief", thief)]);
    fleet.write("attack.sh", &format!("{FIND_RUNNER}{attack}"));
    fleet
}

/// Runs the agent, and returns its job once that has ended.
#[track_caller]
fn run_agent(fleet: &Fleet, agent: &str) -> Job {
    let before = fleet.jobs().len();
    let Ran { stdout, stderr, .. } = fleet.run(&["trigger", agent, "-p", "Go."]);
    println!("{agent}: {stdout}{stderr}");
    wait_for("the job's end", || {
        let jobs = fleet.jobs();
        let job = jobs.iter().find(|job| job.head.status.is_final() && job.head.agent == agent)?;
        (jobs.len() > before).then(|| job.clone())
    })
}

fn reader(fleet: &Fleet) -> StoreReader {
    StoreReader::open(&StateDir::open(&fleet.state_dir()).unwrap()).unwrap()
}

fn runs(fleet: &Fleet, job: &Job) -> Vec<RunRecord> {
    reader(fleet).runs_of_job(&job.head.id).unwrap()
}

fn last_result(fleet: &Fleet, job: &Job) -> RunResult {
    let run = runs(fleet, job).pop().unwrap();
    reader(fleet).run_result(run.id).unwrap().unwrap()
}

fn spent(fleet: &Fleet, agent: &str) -> i64 {
    let spent = reader(fleet).total_spend_by_agent().unwrap();
    spent.into_iter().find(|(name, _)| name == agent).map_or(0, |(_, micros)| micros)
}

fn doctor(fleet: &Fleet) -> String {
    let Ran { stdout, stderr, .. } = fleet.run(&["doctor"]);
    format!("{stdout}{stderr}")
}

/// Checks that the run counts as interrupted with its whole reservation, and that the day's budget
/// allows no second one.
#[track_caller]
fn gains_nothing(fleet: &Fleet, job: &Job) {
    assert_eq!(job.head.status, JobStatus::Failed, "{job:#?}");
    assert_ne!(job.head.exit_reason, Some(ExitReason::Success));
    assert_ne!(job.head.summary.as_deref(), Some("forged"));
    let runs = runs(fleet, job);
    assert!(runs.iter().all(|run| run.committed), "{runs:#?}");
    assert!(spent(fleet, "evil") >= RESERVED, "{}", spent(fleet, "evil"));
    fleet.write("attack.sh", "touch ran-again");
    let again = fleet.run(&["trigger", "evil", "--detach"]);
    let all_said = format!("{}{}", again.stdout, again.stderr);
    assert!(!fleet.file("ran-again").exists(), "{all_said}");
    assert!(all_said.contains("budget"), "{all_said}");
}

fn an_agent_cannot_forge_its_result_and_kill_its_runner(like: &Fleet) {
    let fleet = hostile(like, "forge 0.0 2026-11-17T09:00:01Z null; die");
    let job = run_agent(&fleet, "evil");
    assert!(job.error.as_ref().unwrap().contains("was refused"), "{:?}", job.error);
    gains_nothing(&fleet, &job);
    let said = doctor(&fleet);
    assert!(said.contains("has a result that was refused"), "{said}");
    let log = fleet.read(".heeler/logs/heeler.log");
    assert!(log.contains("a result was refused"), "{log}");
}

fn an_agent_cannot_forge_an_impossible_result(like: &Fleet) {
    for forged in [
        // It ended before it started; it brings money back; it says that settling wrote it.
        "forge 0.0 2026-11-17T08:00:00Z null",
        "forge -5.0 2026-11-17T09:00:01Z null",
        r#"forge 0.0 2026-11-17T09:00:01Z '{"processes_ended":0,"rows_completed":0}'"#,
        r#"forge 0.0 2026-11-17T09:00:01Z null ',"signature":"00"'"#,
    ] {
        let fleet = hostile(like, &format!("{forged}; die"));
        let job = run_agent(&fleet, "evil");
        gains_nothing(&fleet, &job);
        let said = doctor(&fleet);
        assert!(said.contains("has a result that was refused"), "{forged}: {said}");
    }
}

fn an_agent_cannot_use_the_signed_result_of_another_run(like: &Fleet) {
    let fleet =
        hostile(like, "cp -f .heeler/runs/$(cat other)/result.json \"$dir/result.json\"; die");
    let honest = run_agent(&fleet, "honest");
    assert_eq!(honest.head.status, JobStatus::Completed);
    let other = runs(&fleet, &honest).pop().unwrap();
    assert!(other.result_key.is_some(), "every run has a key");
    fleet.write("other", &other.id.to_string());
    let job = run_agent(&fleet, "evil");
    gains_nothing(&fleet, &job);
}

fn only_a_person_replaces_the_reservation_of_a_dead_run(like: &Fleet) {
    let fleet = hostile(like, "die");
    let job = run_agent(&fleet, "evil");
    let id = job.head.id.as_str();
    assert_eq!((job.head.cost_usd, spent(&fleet, "evil")), (None, RESERVED));
    let shown = fleet.run(&["jobs", "show", id]).ok();
    assert!(shown.contains(&format!("heeler costs set {id} USD")), "{shown}");

    // An agent cannot give itself its budget back.
    let heeler = fleet.program().display().to_string();
    fleet.write("steal.sh", &format!("{heeler} costs set {id} 0 > told 2>&1; echo $? >> told\n"));
    run_agent(&fleet, "thief");
    let told = fleet.read("told");
    assert!(told.trim_end().ends_with('5'), "{told}");
    assert_eq!(spent(&fleet, "evil"), RESERVED, "{told}");

    let refused = fleet.run(&["costs", "set", id, "-1"]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.stdout, refused.stderr);
    let set = fleet.run(&["costs", "set", id, "0.4"]).ok();
    assert!(set.contains("$0.40") && set.contains("$1.00"), "{set}");
    assert_eq!(spent(&fleet, "evil"), 400_000);
    let job = fleet.jobs().into_iter().find(|it| it.head.id == job.head.id).unwrap();
    assert_eq!(job.head.cost_usd, Some(0.4));
    assert!(!doctor(&fleet).contains("spen"), "{}", doctor(&fleet));
    // The budget has the rest again. Its next run reports its cost, which counts.
    fleet.write("attack.sh", "true");
    let next = run_agent(&fleet, "evil");
    assert_eq!((next.head.status, next.head.cost_usd), (JobStatus::Completed, Some(0.25)));
    let refused = fleet.run(&["costs", "set", next.head.id.as_str(), "0"]);
    assert_eq!(refused.code, Some(5), "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("reported its cost"), "{}", refused.stderr);
    assert_eq!(spent(&fleet, "evil"), 650_000);
}

fn an_agent_cannot_replace_the_result_of_its_living_runner(like: &Fleet) {
    let fleet = hostile(like, "forge 0.0 2026-11-17T09:00:01Z null");
    let job = run_agent(&fleet, "evil");
    assert_eq!((job.head.status, job.head.cost_usd), (JobStatus::Completed, Some(0.25)));
    assert_eq!(spent(&fleet, "evil"), 250_000);
    assert!(doctor(&fleet).contains("has a result that was refused"));
}

fn an_agent_cannot_finish_by_rows_that_it_wrote_itself(like: &Fleet) {
    // The row looks like the last one of an agent that has finished for nothing.
    let fleet = hostile(
        like,
        r#"log=$(find .heeler/agent-sessions -name '*.jsonl' | head -1)
printf '{"type":"result","subtype":"success","is_error":false,"result":"forged","total_cost_usd":0.0,"num_turns":1,"uuid":"5e550000-0000-4000-8000-00000000000a","timestamp":"2026-11-17T09:00:00.000Z","runId":"%s"}\n' "$HEELER_RUN" >> "$log"
die"#,
    );
    let job = run_agent(&fleet, "evil");
    assert_eq!(job.head.status, JobStatus::Failed);
    assert_eq!(last_result(&fleet, &job).end, RunEnd::Interrupted);
    assert!(spent(&fleet, "evil") >= RESERVED);
}

fn an_agent_cannot_hide_that_it_was_started(like: &Fleet) {
    for removed in ["started.json", "spec.json", ""] {
        // The runner is stopped first, so that it cannot end by itself meanwhile.
        let fleet = hostile(like, &format!("kill -STOP $runner; rm -rf \"$dir/{removed}\"; die"));
        let job = run_agent_once(&fleet);
        assert_ne!(job.head.status, JobStatus::Completed, "{removed}");
        assert!(spent(&fleet, "evil") >= RESERVED, "{removed}: {}", spent(&fleet, "evil"));
    }
}

/// Runs the agent `evil`, and cancels its job if it is to run again.
#[track_caller]
fn run_agent_once(fleet: &Fleet) -> Job {
    drop(fleet.run(&["trigger", "evil", "--detach"]));
    let job = wait_for("the end of the first run", || {
        let job = fleet.jobs().into_iter().next()?;
        runs(fleet, &job).first()?.committed.then_some(job)
    });
    drop(fleet.run(&["stop", "--force"]));
    fleet.jobs().into_iter().find(|it| it.head.id == job.head.id).unwrap()
}

fn an_agent_cannot_reduce_spending_by_a_negative_cost(like: &Fleet) {
    let fleet = hostile(like, "");
    let claude = r#"#!/bin/sh
for word; do [ "$before" = --session-id ] && session=$word; before=$word; done
while read -r line; do
  case $line in
    *'"type":"user"'*) break ;;
    *'"subtype":"initialize"'*)
      id=$(printf '%s' "$line" | sed 's/.*"request_id":"\([^"]*\)".*/\1/')
      printf '{"type":"control_response","response":{"subtype":"success","request_id":"%s","response":{}}}\n' "$id" ;;
  esac
done
printf '{"type":"system","subtype":"init","session_id":"%s"}\n' "$session"
printf '{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"Hi."}]},"session_id":"%s"}\n' "$session"
printf '{"type":"result","subtype":"success","is_error":false,"result":"Hi.","total_cost_usd":-5.0,"num_turns":1,"usage":{"output_tokens":-9},"session_id":"%s"}\n' "$session"
while read -r line; do :; done
"#;
    fleet.write("claude.sh", claude);
    let path = fleet.file("claude.sh");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let config = format!(
        "agents:\n  - name: evil\n    runtime: sdk\n    claude_path: {}\n    \
         budget: {{day: 1.00, job: 1.00}}\n",
        path.display()
    );
    fleet.write("heeler.yaml", &config);
    let job = run_agent(&fleet, "evil");
    assert_eq!(job.head.cost_usd, None, "{job:#?}");
    assert!(job.usage.output_tokens.is_none_or(|tokens| tokens >= 0), "{:?}", job.usage);
    assert_eq!(spent(&fleet, "evil"), RESERVED);
}

fn an_agent_cannot_rewrite_history_unnoticed(like: &Fleet) {
    for (attack, found) in [
        ("sed -i s/Hello/Bye.../ \"$log\"", "was changed after its run had ended"),
        ("sed -i '$d' \"$log\"", "was changed after its run had ended"),
        ("echo '{\"type\":\"system\"}' >> \"$log\"", "has rows that none of its runs wrote"),
    ] {
        let fleet = hostile(like, &format!("log=.heeler/jobs/$(cat other).jsonl; {attack}"));
        let honest = run_agent(&fleet, "honest");
        fleet.write("other", honest.head.id.as_str());
        let sound = doctor(&fleet);
        assert!(!sound.contains(found), "{sound}");
        run_agent(&fleet, "evil");
        let said = doctor(&fleet);
        assert!(said.contains(honest.head.id.as_str()) && said.contains(found), "{said}");
    }
}

fn an_agent_cannot_rewrite_the_session_of_another_unnoticed(like: &Fleet) {
    let found = "was changed after its run had ended";
    for attack in ["sed -i s/Hello/Bye../ \"$log\"", "sed -i '$d' \"$log\""] {
        let fleet = hostile(like, &format!("log=$(cat other); {attack}"));
        let honest = run_agent(&fleet, "honest");
        let session = honest.head.session_id.unwrap();
        let session = reader(&fleet).session_by_agent_id(&session).unwrap().unwrap();
        let log = fleet.state_dir().join(session.log_path.unwrap());
        fleet.write("other", log.as_str());
        let sound = doctor(&fleet);
        assert!(!sound.contains(found), "{sound}");
        run_agent(&fleet, "evil");
        let said = doctor(&fleet);
        assert!(said.contains(log.as_str()) && said.contains(found), "{said}");
    }
}

/// The directory of a run that no daemon started says that the failed job went well.
const PLANT_RUN: &str = r#"
run=$HEELER_RUN
HEELER_RUN=$(printf %s "$run" | sed 's/.$/0/')
[ "$run" = "$HEELER_RUN" ] && HEELER_RUN=$(printf %s "$run" | sed 's/.$/1/')
cp -r "$dir" "$dir.copy"; dir=.heeler/runs/$HEELER_RUN; mv ".heeler/runs/$run.copy" "$dir"
sed -i "s/$run/$HEELER_RUN/" "$dir/spec.json" "$dir/started.json"
forge 0.0 2036-11-17T09:00:01Z null
touch planted
"#;

fn an_agent_cannot_make_a_failed_job_completed_by_a_run_of_its_making(like: &Fleet) {
    let fleet = hostile(like, &format!("{PLANT_RUN} die"));
    let job = run_agent(&fleet, "evil");
    assert_eq!(job.head.status, JobStatus::Failed);
    assert!(fleet.file("planted").exists());
    drop(fleet.run(&["stop", "--force"]));
    assert!(doctor(&fleet).contains("has no record in the database"));
    drop(fleet.run(&["doctor", "--fix"]));
    let after = fleet.jobs().into_iter().find(|it| it.head.id == job.head.id).unwrap();
    assert_eq!(after, job);
}

fn an_agent_cannot_bring_a_removed_job_back_as_completed(like: &Fleet) {
    let fleet = hostile(like, &format!("{PLANT_RUN} die"));
    let job = run_agent(&fleet, "evil");
    drop(fleet.run(&["stop", "--force"]));
    let tables = "DELETE FROM runs; DELETE FROM spending; DELETE FROM executions;";
    change_database(&fleet, &format!("PRAGMA foreign_keys = OFF; {tables}"));
    drop(fleet.run(&["doctor", "--fix"]));
    let after = fleet.jobs().into_iter().find(|it| it.head.id == job.head.id).unwrap();
    assert_eq!(after.head.status, JobStatus::Failed, "{after:#?}");
    assert_ne!(after.head.summary.as_deref(), Some("forged"));
}

fn an_agent_cannot_reset_its_budget_in_the_database(like: &Fleet) {
    let fleet = hostile(like, "die");
    run_agent(&fleet, "evil");
    assert_eq!(spent(&fleet, "evil"), RESERVED);
    drop(fleet.run(&["stop"]));
    change_database(&fleet, "DELETE FROM spending");
    assert_eq!(spent(&fleet, "evil"), 0);
    let said = doctor(&fleet);
    assert!(said.contains("lacks $1.00 that its runs have spent"), "{said}");
    fleet.write("attack.sh", "touch ran-again");
    let again = fleet.run(&["trigger", "evil", "--detach"]);
    assert!(!fleet.file("ran-again").exists());
    let all_said = format!("{}{}", again.stdout, again.stderr);
    assert!(all_said.contains("budget"), "{all_said}");
    drop(fleet.run(&["start", "--detach"]));
    let shown = fleet.run(&["status"]).stdout;
    drop(fleet.run(&["stop", "--force"]));
    assert!(shown.contains("$1.00 that evil has spent was removed from the database"), "{shown}");
}

fn an_agent_cannot_make_a_failed_job_completed_unnoticed(like: &Fleet) {
    let fleet = hostile(like, "die");
    let job = run_agent(&fleet, "evil");
    drop(fleet.run(&["stop"]));
    change_database(&fleet, "UPDATE executions SET status = 'completed', cost_usd = -3.0");
    let said = doctor(&fleet);
    assert!(said.contains(job.head.id.as_str()), "{said}");
    assert!(said.contains("is completed, but its last run did not succeed"), "{said}");
    assert!(said.contains("has times, costs or counts that cannot be true"), "{said}");
}

/// Does what an agent does with sqlite3.
fn change_database(fleet: &Fleet, sql: &str) {
    let path = fleet.file(".heeler/heeler.db");
    wait_for("the database", || {
        let database = rusqlite::Connection::open(&path).ok()?;
        database.execute_batch(sql).ok()
    });
}

fn an_agent_cannot_remove_its_records_unnoticed(like: &Fleet) {
    let fleet = hostile(like, "die");
    let job = run_agent(&fleet, "evil");
    let run = runs(&fleet, &job).pop().unwrap();
    drop(fleet.run(&["stop"]));
    let tables = "DELETE FROM runs; DELETE FROM spending; DELETE FROM executions;";
    change_database(&fleet, &format!("PRAGMA foreign_keys = OFF; {tables}"));
    let said = doctor(&fleet);
    assert!(said.contains(&run.id.to_string()), "{said}");
    assert!(said.contains("has no record in the database"), "{said}");
    assert!(said.contains("belongs to no job or session"), "{said}");
}

fn an_agent_cannot_continue_the_session_of_another_by_its_death(like: &Fleet) {
    for forged in ["started.json", "*.json"] {
        let fleet = hostile(
            like,
            &format!(
                r#"own=$(sed -n 's/.*"session": "\([^"]*\)".*/\1/p' "$dir/started.json")
sed -i "s/$own/$(cat other)/g" "$dir"/{forged}; die"#
            ),
        );
        is_the_session_of_the_other_left_alone(&fleet);
    }
}

#[track_caller]
fn is_the_session_of_the_other_left_alone(fleet: &Fleet) {
    let honest = run_agent(fleet, "honest");
    let session = honest.head.session_id.unwrap();
    fleet.write("other", session.as_str());
    let before = reader(fleet).session_by_agent_id(&session).unwrap().unwrap();
    let job = run_agent(fleet, "evil");
    assert_ne!(job.head.session_id, Some(session.clone()));
    let after = reader(fleet).session_by_agent_id(&session).unwrap().unwrap();
    assert_eq!((after.agent, after.job_count), (before.agent, before.job_count));
}

fn an_agent_cannot_keep_its_run_from_being_settled(like: &Fleet) {
    let fleet = hostile(
        like,
        r#"for n in '' -2 -3 -4 -5 -6 -7 -8; do mkdir -p "$dir/result.json.refused$n/x"; done
mkdir -p "$dir/result.json/x"; die"#,
    );
    let job = run_agent(&fleet, "evil");
    gains_nothing(&fleet, &job);
}

fn an_agent_cannot_escape_its_cancel_by_a_forged_result(like: &Fleet) {
    let fleet = hostile(like, "forge 0.0 2026-11-17T09:00:01Z null; touch forged; sleep 600");
    drop(fleet.run(&["trigger", "evil", "--detach"]));
    wait_for("the forged result", || fleet.file("forged").exists().then_some(()));
    let job = fleet.jobs().remove(0);
    drop(fleet.run(&["jobs", "cancel", job.head.id.as_str()]));
    let job = fleet.wait_until_ended();
    assert_eq!(job.head.status, JobStatus::Cancelled, "{job:#?}");
}

fn an_agent_cannot_find_the_key_of_its_runner(like: &Fleet) {
    let fleet = hostile(
        like,
        r#"{ tr '\0' '\n' < /proc/$runner/cmdline; tr '\0' '\n' < /proc/$runner/environ || true
env; cat /proc/self/environ; timeout 1 cat /proc/$runner/fd/0 || true
find .heeler -type f -size -2000k -exec cat {} +; } > found 2>&1 || true"#,
    );
    let job = run_agent(&fleet, "evil");
    let key = runs(&fleet, &job).pop().unwrap().result_key.unwrap();
    let found = std::fs::read(fleet.file("found")).unwrap();
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let words = found.split(|byte| !is_digit(byte)).filter(|word| word.len() >= 64);
    let texts: BTreeSet<String> = words
        .flat_map(|word| word.windows(64))
        .map(|text| String::from_utf8(text.to_vec()).unwrap())
        .collect();
    let digits = key.to_string().chars().take(64).collect::<String>();
    assert!(texts.contains(&digits), "the agent reads the public key in the database");
    for text in texts {
        let private = ResultSigningKey::try_from(text).unwrap();
        assert_ne!(private.public_key(), key, "the agent found the key of its runner");
    }
}

/// The daemon dies between the refusal of a forged result and the record of the run's end.
fn a_forged_result_is_not_believed_by_the_next_daemon(like: &Fleet) {
    for point in [FaultPoint::ResultRefused, FaultPoint::RunSettled, FaultPoint::RunEnded] {
        let fleet = hostile(like, "forge 0.0 2026-11-17T09:00:01Z null; die");
        let mut daemon = fleet.start(&["start", "--fault", point.name()]);
        // Without it, the command would start a daemon of its own.
        wait_for("the daemon", || fleet.file(".heeler/daemon.json").exists().then_some(()));
        fleet.run(&["trigger", "evil", "--detach"]).ok();
        wait_for(point.name(), || daemon.try_wait().unwrap());
        drop(fleet.run(&["start", "-d"]));
        let job = wait_for("the job's end", || {
            fleet.jobs().into_iter().next().filter(|job| job.head.status.is_final())
        });
        gains_nothing(&fleet, &job);
        drop(fleet.run(&["stop", "--force"]));
    }
}

/// Replaces the spec of each new run, as soon as it is there, until the file `over` exists.
const SWAP_SPECS: &str = r#"
import json, os, time
runs = '.heeler/runs'
known = set(os.listdir(runs))
open('ready', 'w').close()
while not os.path.exists('over'):
    for name in os.listdir(runs):
        path = f'{runs}/{name}/spec.json'
        if name in known or not os.path.exists(path):
            continue
        known.add(name)
        spec = json.load(open(path))
        spec['limits'] = {}
        spec['working_directory'] = os.path.abspath('other')
        spec['session']['start'] = {'kind': 'resume', 'id': open('session').read()}
        json.dump(spec, open('spec', 'w'))
        os.rename('spec', path)
        open('swapped', 'w').close()
"#;

fn an_agent_cannot_change_the_limits_folder_or_session_of_another_run(like: &Fleet) {
    let scripted =
        |steps: &str, more: &str| format!("runtime: scripted\nscript: [{steps}]\n{more}");
    let friend = scripted("{say: 'Turn {turn}.'}", "session: {mode: persistent}");
    let victim = scripted(
        "{run: 'pwd > ../where'}, {cost: 0.90}, {say: 'Turn {turn}.'}",
        "working_directory: own\nbudget: {day: 5.00, job: 0.10}",
    );
    let evil = "runtime: command\ncommand: 'exec python3 attack.py'";
    let fleet = like.another_with(&[("friend", &friend), ("victim", &victim), ("evil", evil)]);
    fleet.write("attack.py", SWAP_SPECS);
    fleet.write("own/file", "");
    fleet.write("other/file", "");
    fleet.run(&["start", "-d"]).ok();
    let session = run_agent(&fleet, "friend").head.session_id.unwrap();
    fleet.write("session", session.as_str());
    fleet.run(&["trigger", "evil", "--detach", "-q"]).ok();
    wait_for("the attack", || fleet.file("ready").exists().then_some(()));
    let job = run_agent(&fleet, "victim");
    wait_for("the swap", || fleet.file("swapped").exists().then_some(()));
    fleet.write("over", "");
    assert!(fleet.read("where").ends_with("/own\n"), "{}", fleet.read("where"));
    assert_eq!(job.head.status, JobStatus::Failed, "it is over its budget");
    assert_ne!(job.head.session_id, Some(session), "the session is another agent's");
    fleet.run(&["stop", "--force", "-q"]).ok();
}

/// Gives each new run a time limit of a millisecond, as soon as its spec is there, until the file
/// `over` exists.
const SHORTEN_LIMITS: &str = r#"
import json, os
runs = '.heeler/runs'
known = set(os.listdir(runs))
open('ready', 'w').close()
while not os.path.exists('over'):
    for name in os.listdir(runs):
        path = f'{runs}/{name}/spec.json'
        if name in known or not os.path.exists(path):
            continue
        known.add(name)
        spec = json.load(open(path))
        spec['limits'] = {'timeout_ms': 1}
        json.dump(spec, open('spec', 'w'))
        os.rename('spec', path)
        open('swapped', 'w').close()
"#;

fn an_agent_cannot_have_another_run_ended_by_a_forged_time_limit(like: &Fleet) {
    let victim = "runtime: command\ncommand: 'until [ -e enough ]; do sleep 0.1; done'";
    let evil = "runtime: command\ncommand: 'exec python3 attack.py'";
    let fleet = like.another_with(&[("victim", victim), ("evil", evil)]);
    fleet.write("attack.py", SHORTEN_LIMITS);
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["trigger", "evil", "--detach", "-q"]).ok();
    wait_for("the attack", || fleet.file("ready").exists().then_some(()));
    fleet.run(&["trigger", "victim", "--detach", "-q"]).ok();
    wait_for("the swap", || fleet.file("swapped").exists().then_some(()));
    let refused = "the spec of a run is not used";
    wait_for("a look of the daemon at the run", || {
        fleet.read(".heeler/logs/heeler.log").contains(refused).then_some(())
    });
    fleet.write("enough", "");
    let job = wait_for("the victim's end", || {
        let jobs = fleet.jobs();
        jobs.into_iter().find(|job| job.head.agent == "victim" && job.head.status.is_final())
    });
    assert_eq!(job.head.status, JobStatus::Completed, "{job:#?}");
    fleet.write("over", "");
    fleet.run(&["stop", "--force", "-q"]).ok();
}

fn an_agent_cannot_have_a_hook_skipped_by_a_forged_result(like: &Fleet) {
    // The run ends after the command has its reply. Without one, the command would do the work of the
    // dead daemon, with its hook.
    let honest = "runtime: command\ncommand: 'until [ -e go ]; do sleep 0.1; done'\n\
        hooks: {after_run: [{type: shell, command: 'echo done >> audited'}]}";
    let fleet = like.another_with(&[("honest", honest)]);
    let mut daemon = fleet.start(&["start", "--fault", FaultPoint::BeforeHooks.name()]);
    wait_for("the daemon", || fleet.file(".heeler/daemon.json").exists().then_some(()));
    fleet.run(&["trigger", "honest", "--detach"]).ok();
    fleet.write("go", "");
    wait_for("its death", || daemon.try_wait().unwrap());
    // The agent reads the event in the database, and writes what a runner would have left.
    let (event, job) = {
        let effect = reader(&fleet).pending_effects(9).unwrap().remove(0);
        (effect.id, effect.key)
    };
    let run = "01a1dfca-0116-7791-af55-b1c86b7c7fe1";
    let forged = serde_json::json!({"protocol": 1, "run": run, "job": job, "end": "finished",
        "exit_reason": "success", "stop_reason": null, "summary": null, "error": null,
        "cost": {"usd": 0.0, "usage": {}}, "session": null,
        "started_at": "2026-11-17T09:00:00Z", "finished_at": "2026-11-17T09:00:01Z",
        "exit_code": 0, "settled": null});
    fleet.write(&format!(".heeler/hooks/{event}/runs/{run}/result.json"), &forged.to_string());
    drop(fleet.run(&["start", "-d"]));
    let audited = wait_for("the hook", || {
        std::fs::read_to_string(fleet.file("audited")).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(audited, "done\n");
    wait_for("its record", || reader(&fleet).pending_effects(9).unwrap().is_empty().then_some(()));
    let log = fleet.read(".heeler/logs/heeler.log");
    assert!(log.contains("a result of a hook was refused"), "{log}");
    drop(fleet.run(&["stop", "--force"]));
}

attacks![
    an_agent_cannot_have_another_run_ended_by_a_forged_time_limit,
    an_agent_cannot_have_a_hook_skipped_by_a_forged_result,
    an_agent_cannot_change_the_limits_folder_or_session_of_another_run,
    an_agent_cannot_forge_its_result_and_kill_its_runner,
    an_agent_cannot_forge_an_impossible_result,
    an_agent_cannot_use_the_signed_result_of_another_run,
    an_agent_cannot_replace_the_result_of_its_living_runner,
    only_a_person_replaces_the_reservation_of_a_dead_run,
    an_agent_cannot_finish_by_rows_that_it_wrote_itself,
    an_agent_cannot_hide_that_it_was_started,
    an_agent_cannot_reduce_spending_by_a_negative_cost,
    an_agent_cannot_rewrite_history_unnoticed,
    an_agent_cannot_rewrite_the_session_of_another_unnoticed,
    an_agent_cannot_make_a_failed_job_completed_by_a_run_of_its_making,
    an_agent_cannot_bring_a_removed_job_back_as_completed,
    an_agent_cannot_reset_its_budget_in_the_database,
    an_agent_cannot_make_a_failed_job_completed_unnoticed,
    an_agent_cannot_remove_its_records_unnoticed,
    an_agent_cannot_continue_the_session_of_another_by_its_death,
    an_agent_cannot_keep_its_run_from_being_settled,
    an_agent_cannot_escape_its_cancel_by_a_forged_result,
    an_agent_cannot_find_the_key_of_its_runner,
    a_forged_result_is_not_believed_by_the_next_daemon,
];
