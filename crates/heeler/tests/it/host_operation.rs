//! Operation of a fleet with several hosts: the page of hosts, drained hosts, metrics and `doctor`.
//!
//! Either host may lead at any time, because a slow machine can pause the leader. So no test depends on
//! the host that leads.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use heeler_store::DaemonFile;
use serde_json::Value as Json;

use crate::browser::{Browser, Look, Site, with_browser};
use crate::daemon_kills::Herd;
use crate::fleet::Fleet;
use crate::hosts::cluster;
use crate::trigger::wait_for;

const AGENTS: &str = "agents:
  - {name: brief, host: beta, runtime: scripted, script: [{say: Done there.}]}
";

/// Sends a request to the socket of a host's daemon; returns the code and the body, once there is a reply.
#[track_caller]
fn request(herd: &Herd, line: &str) -> (u16, String) {
    wait_for(line, || {
        let file = DaemonFile::read(&herd.dir()).ok().flatten()?;
        let mut stream = UnixStream::connect(&file.socket).ok()?;
        let head = "host: heeler\r\nconnection: close\r\ncontent-length: 0\r\n";
        stream.write_all(format!("{line} HTTP/1.0\r\n{head}\r\n").as_bytes()).ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        let (head, body) = reply.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        // The host changes its role just now, or no host leads.
        (code != 503).then(|| (code, body.to_owned()))
    })
}

/// Returns the person who drained a host, as a command shows it.
fn drained_by(fleet: &Fleet, host: &str) -> Json {
    fleet.json(&["host", "show", host, "--json"])["host"]["drainedBy"].clone()
}

#[test]
fn people_drain_a_host_by_clicks_and_see_the_jobs_of_each() {
    let cluster = cluster();
    let url = cluster.url("fleet");
    let fleet = Fleet::empty();
    fleet.write("heeler.yaml", &format!("store: {url}\nweb: {{port: auto}}\n{AGENTS}"));
    let site = Site::start_host(fleet, "alpha");
    let second = Herd::of(&format!("store: {url}\nweb: {{enabled: false}}\n{AGENTS}"));
    let (beta, _) = second.begin(&["--host", "beta", "--label", "gpu", "--max-concurrent", "4"]);
    wait_for("a job on beta", || {
        let ran = site.fleet.run(&["trigger", "brief", "-q"]);
        (ran.code == Some(0)).then_some(())
    });
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.check_everywhere("/hosts", "hosts").await;
        browser.look(Look::DESKTOP).await;
        browser.visit("/hosts").await;
        browser.wait_for("#hosts dl.facts", "unless renewed").await;
        browser.click("button[data-action$='/hosts/beta/drain']").await;
        browser.wait_for("#confirm[open]", "Drain host beta?").await;
        browser.click("#confirm button[value=no]").await;
        assert_eq!(drained_by(&site.fleet, "beta"), Json::Null, "the person did not agree");
        browser.click("button[data-action$='/hosts/beta/drain']").await;
        browser.click("#confirm button[value=yes]").await;
        browser.wait_for("#hosts .line .muted", ", drained").await;
        assert!(drained_by(&site.fleet, "beta").is_string());
        browser.click("button[data-action$='/hosts/beta/undo-drain']").await;
        browser.wait_for("button[data-action$='/hosts/beta/drain']", "Drain").await;
        assert_eq!(drained_by(&site.fleet, "beta"), Json::Null);

        // The load of a host leads to its jobs.
        browser.click("#hosts a[href='/jobs?host=beta']").await;
        browser.wait_for("#list td", "beta").await;
        browser.wait_for("#f-host option:checked", "beta").await;
        browser.visit("/jobs?host=alpha").await;
        browser.wait_for("#list", "No matching jobs").await;
        browser.is_quiet("hosts").await;
    });
    crate::host_runs::stop(&second, beta);
}

#[test]
fn every_host_drains_shows_metrics_and_examines_all() {
    let cluster = cluster();
    let config = format!(
        "store: {}\nmetrics: true\nweb: {{enabled: false}}\n{AGENTS}",
        cluster.url("fleet")
    );
    let (first, second) = (Herd::of(&config), Herd::of(&config));
    let (alpha, _) = first.begin(&["--host", "alpha"]);
    let (mut beta, _) = second.begin(&["--host", "beta", "--max-concurrent", "4"]);
    for (herd, host) in [(&first, "beta"), (&second, "beta"), (&second, "alpha")] {
        let (code, body) = request(herd, &format!("POST /api/v1/hosts/{host}/drain"));
        assert!(code == 200 && body.contains("gets no new runs"), "{code}: {body}");
        assert!(drained_by(&herd.fleet, host).is_string());
        let (code, body) = request(herd, &format!("POST /api/v1/hosts/{host}/undo-drain"));
        assert!(code == 200 && body.contains("gets new runs again"), "{code}: {body}");
        assert_eq!(drained_by(&herd.fleet, host), Json::Null);
    }
    let (code, body) = request(&first, "POST /api/v1/hosts/gamma/drain");
    assert!(code == 404 && body.contains("no host `gamma`"), "{code}: {body}");
    let (code, body) = request(&first, "GET /api/v1/jobs?host=gamma");
    assert!(code == 404 && body.contains("no host `gamma`"), "{code}: {body}");
    let (code, body) = request(&first, "GET /api/v1/jobs?host=beta");
    assert!(code == 200 && body.contains("\"total\":0"), "{code}: {body}");

    // Each host shows the metrics of both.
    for herd in [&first, &second] {
        wait_for("the metrics of both hosts", || {
            let (code, page) = request(herd, "GET /metrics");
            assert_eq!(code, 200, "{page}");
            let known = [
                "heeler_host_up{host=\"alpha\"} 1",
                "heeler_host_up{host=\"beta\"} 1",
                "heeler_host_runs_max{host=\"beta\"} 4",
                "heeler_host_clock_ahead_seconds{host=\"beta\"} ",
                "heeler_host_lease_seconds{host=\"",
            ];
            known.iter().all(|line| page.contains(line)).then_some(())
        });
    }

    let problems = |herd: &Herd| -> Vec<Json> {
        let found: Json =
            serde_json::from_str(&herd.fleet.run(&["doctor", "--json"]).stdout).unwrap();
        let found = found["findings"].as_array().unwrap().clone();
        found.into_iter().filter(|finding| finding["area"] == "hosts").collect()
    };
    wait_for("sound hosts", || problems(&first).is_empty().then_some(()));
    cluster.query("fleet", "UPDATE hosts SET version = '0.0.1' WHERE name = 'beta'");
    let found = wait_for("another version", || problems(&first).into_iter().next());
    assert!(found["problem"].as_str().unwrap().contains("0.0.1"), "{found}");
    beta.kill();
    let found = wait_for("a silent host", || {
        problems(&first)
            .into_iter()
            .find(|it| it["problem"].as_str().unwrap().contains("sign of life"))
    });
    assert_eq!(found["subject"], "beta", "{found}");
    assert!(found["cure"].as_str().unwrap().contains("heeler host remove beta"), "{found}");
    crate::host_runs::stop(&first, alpha);
}
