//! Services of a fleet with several hosts while the leader changes: webhooks, chat links, schedules, budgets
//! and parked credentials.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use heeler_engine::{CommandReply, DaemonCommand, DaemonStatus};
use heeler_model::{JobId, JobStatus};
use heeler_store::DaemonFile;
use heeler_testkit::{FakeTelegram, PostgresCluster};
use rustix::process::{Pid, Signal};

use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::in_seconds;
use crate::host_runs::{send, stop, trigger, wait_for_runs};
use crate::hosts::{cluster, wait_for_leader};
use crate::processes::signal_if;
use crate::telegram::{ANN, TOKEN, texts, wait_for_posts, wait_until_posted};
use crate::trigger::wait_for;

/// Seconds without a sign of life after which a host is shown as away.
const SILENCE_MAX_SECONDS: i64 = 10;

fn herd(cluster: &PostgresCluster, agents: &str) -> Herd {
    Herd::of(&format!(
        "store: {}\nweb: {{enabled: false}}\nagents:\n{agents}",
        cluster.url("fleet")
    ))
}

#[track_caller]
fn status(herd: &Herd, life: &mut Life) -> DaemonStatus {
    match send(herd, life, &DaemonCommand::Status, None) {
        CommandReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Delivers a webhook to a host until it is accepted; returns the job.
#[track_caller]
fn deliver(herd: &Herd, delivery: &str) -> JobId {
    let body = "{\"issue\": 7}";
    wait_for("an accepted delivery", || {
        let file = DaemonFile::read(&herd.dir()).ok().flatten()?;
        let mut stream = UnixStream::connect(&file.socket).ok()?;
        let request = format!(
            "POST /hooks/worker/push HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\n\
             heeler-delivery: {delivery}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        // The host changes its role just now, or no host leads.
        let job = reply.split("\"job\":\"").nth(1)?.split('"').next()?;
        job.parse().ok()
    })
}

#[test]
fn every_host_receives_webhooks_and_each_delivery_has_one_job() {
    let agents = "  - {name: worker, runtime: scripted, script: [{say: hi}],
     schedules: {push: {type: webhook, overlap: queue, fields: {number: issue}}}}\n";
    let cluster = cluster();
    let (first, second) = (herd(&cluster, agents), herd(&cluster, agents));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    let job = deliver(&second, "d-1");
    assert_eq!(deliver(&first, "d-1"), job, "the sender repeats it to another host");
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    // The next leader knows the delivery too.
    alpha.kill();
    wait_for_leader(&second, "beta");
    assert_eq!(deliver(&second, "d-1"), job);
    let (alpha, _) = first.begin(&[]);
    let other = deliver(&first, "d-2");
    assert_ne!(other, job);
    assert_eq!(deliver(&second, "d-2"), other);
    assert_eq!(first.ends(&other).head.status, JobStatus::Completed);
    assert_eq!(first.jobs().len(), 2);
    stop(&first, alpha);
    stop(&second, beta);
}

#[test]
fn a_chat_link_has_one_holder_which_changes_with_the_leader() {
    let telegram = FakeTelegram::start(TOKEN);
    let agents = format!(
        "  - name: coder
    runtime: scripted
    script: [{{say: 'Did {{prompt}}.'}}]
    chat: {{telegram: {{bot_token_env: BOT_TOKEN, api_url: '{}', dm: {{allowlist: [{ANN}]}},
      output: {{progress_indicator: false, typing_indicator: false}}}}}}\n",
        telegram.url()
    );
    let cluster = cluster();
    let [first, second] = [(); 2].map(|()| {
        let mut herd = herd(&cluster, &agents);
        herd.env.push(("BOT_TOKEN", TOKEN.into()));
        herd
    });
    let (alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    // A post whose result is not on record is made again by the next holder.
    let answered = |herd: &Herd, count: usize| {
        wait_for_posts(&telegram, count);
        wait_until_posted(herd);
        telegram.wait_until_confirmed();
    };
    telegram.say(ANN, "the first");
    answered(&first, 1);

    // The leader is paused past its lease. The link of the next one answers.
    let pid = Pid::from_child(&alpha.child);
    assert!(signal_if(pid, Signal::STOP, || true));
    wait_for_leader(&second, "beta");
    telegram.say(ANN, "the second");
    answered(&second, 2);
    // The old leader returns, and gives its link up.
    assert!(signal_if(pid, Signal::CONT, || true));
    wait_for("the old leader stands by", || {
        let hosts = second.reader().hosts().unwrap();
        let old = hosts.into_iter().find(|host| host.name == "alpha")?;
        (old.state == heeler_store::HostState::Standby && old.is_alive).then_some(())
    });
    telegram.say(ANN, "the third");
    answered(&second, 3);

    // The leader dies.
    beta.kill();
    wait_for_leader(&first, "alpha");
    telegram.say(ANN, "the fourth");
    answered(&first, 4);
    let posts = telegram.posts();
    let expected = ["the first", "the second", "the third", "the fourth"];
    assert_eq!(texts(&posts), expected.map(|text| format!("Did {text}.")));
    let hosts = |job: &JobId| first.reader().runs_of_job(job).unwrap()[0].host.clone();
    let mut jobs = first.jobs();
    jobs.sort_by_key(|job| job.started_at);
    let hosts: Vec<String> = jobs.iter().map(|job| hosts(&job.id)).collect();
    assert_eq!(hosts, ["alpha", "beta", "beta", "alpha"], "each message has one job");
    stop(&first, alpha);
}

#[test]
fn due_times_budgets_and_parked_credentials_are_exact_across_a_change_of_the_leader() {
    let reset = in_seconds(48 * 3600);
    let agents = format!(
        "  - {{name: ticker, runtime: scripted, script: [{{say: Done.}}],
     schedules: {{all: {{interval: 1s, prompt: Tick., missed: run_all, overlap: queue}}}}}}
  - {{name: spender, runtime: scripted, budget: {{day: 1, job: 0.4}},
     script: [{{run: 'echo $HEELER_RUN >> ran; read line < gate'}}, {{cost: 0.25}}, {{say: Done.}}]}}
  - {{name: limited, runtime: scripted, env: {{ANTHROPIC_API_KEY: shared-key-0001}},
     script: [{{error: rate_limit, message: 'Usage limit reached, resets at {reset}'}}]}}\n"
    );
    let cluster = cluster();
    let (mut first, second) = (herd(&cluster, &agents), herd(&cluster, &agents));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    let limited = trigger(&first, &mut alpha, "limited");
    let parked = wait_for("the limit", || status(&first, &mut alpha).parked.pop());
    assert_eq!(parked.until, reset);
    let spender = trigger(&first, &mut alpha, "spender");
    wait_for_runs(&first, 1);
    let budget = |herd: &Herd, life: &mut Life| {
        let budgets = status(herd, life).budgets;
        let own = budgets.into_iter().find(|budget| budget.whose == "spender").unwrap();
        (own.day_spent, own.reserved)
    };
    assert_eq!(budget(&first, &mut alpha), (0, 400_000));
    wait_for("a due time", || first.jobs().iter().any(|job| job.agent == "ticker").then_some(()));

    alpha.kill();
    wait_for_leader(&second, "beta");
    assert_eq!(budget(&second, &mut beta), (0, 400_000), "the run continues");
    assert_eq!(status(&second, &mut beta).parked[0].until, reset);
    let waiting = trigger(&second, &mut beta, "limited");
    let count = second.jobs().len();
    wait_for("due times of the next leader", || (second.jobs().len() >= count + 3).then_some(()));
    // The host returns and reports the end of its run.
    let (alpha, _) = first.begin(&[]);
    first.let_through(1);
    assert_eq!(second.ends(&spender).head.status, JobStatus::Completed);
    assert_eq!(budget(&second, &mut beta), (250_000, 0), "it is counted once");
    for job in [&limited, &waiting] {
        assert!(!second.job(job).head.status.is_final(), "it waits for the reset");
    }
    let runs = |job: &JobId| second.reader().runs_of_job(job).unwrap().len();
    assert_eq!((runs(&limited), runs(&waiting)), (1, 0));
    stop(&first, alpha);
    beta.kill();
    heeler_testkit::wait_for_transactions(cluster.socket_folder(), "fleet");
    second.check_schedule("ticker", "all");
}

#[test]
fn a_host_without_a_sign_of_life_is_shown_as_away_and_its_runs_as_its_own() {
    let agents = "  - {name: there, host: beta, runtime: scripted,
     script: [{run: 'echo $HEELER_RUN >> ran; read line < gate'}]}\n";
    let cluster = cluster();
    let (first, mut second) = (herd(&cluster, agents), herd(&cluster, agents));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    let job = trigger(&first, &mut alpha, "there");
    wait_for_runs(&second, 1);
    beta.kill();
    wait_for("beta is away", || {
        let hosts = first.reader().hosts().unwrap();
        let host = hosts.into_iter().find(|host| host.name == "beta").unwrap();
        // The time is rounded. Both are by the clock of the database, so a slow test changes nothing.
        let (seen, is_alive) = (host.seen_seconds_ago, host.is_alive);
        assert!(is_alive || seen >= SILENCE_MAX_SECONDS, "{seen} s ago");
        assert!(!is_alive || seen <= SILENCE_MAX_SECONDS, "{seen} s ago");
        assert_eq!(host.runs, 1);
        (!is_alive).then_some(())
    });
    assert_eq!(first.job(&job).head.status, JobStatus::Running, "nobody knows that it has ended");
    let run = &first.reader().runs_of_job(&job).unwrap()[0];
    assert_eq!((run.host.as_str(), run.committed), ("beta", false));
    second.let_through(1);
    let (beta, _) = second.begin(&[]);
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    stop(&second, beta);
    stop(&first, alpha);
}
