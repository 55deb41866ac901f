//! Every page and action of the dashboard, in a browser: light and dark, on a desk and on a phone.

use std::time::Instant;

use heeler_testkit::WAIT_MAX;
use serde_json::json;

use crate::browser::{Browser, Look, NOWHERE, Site, with_browser};
use crate::fleet::Fleet;

/// Agents that do something of everything; what `evil` says and is called tries to act.
const FLEET: &str = r##"
fleet: {name: pages}
web: {port: auto}
agents:
  - name: writer
    description: Writes the weekly report, and a lot of words about it that do not fit into one line of a table.
    runtime: scripted
    budget: {day: 5, total: 100}
    default_prompt: Write.
    schedules:
      hourly: {type: interval, interval: 1h, prompt: Write the report.}
      nightly: {type: cron, cron: "0 3 * * *", prompt: Tidy up.}
      never: {type: cron, cron: "0 4 * * *", enabled: false, prompt: Never.}
    script:
      - think: What do I know?
      - run: echo one; echo two
        description: Counts
      - cost: 0.25
      - say: |
          ## Report
          All is **well**: `3` things done, see [the site](https://example.com/).

          | what | how much |
          |---|---|
          | tulips | 12 |
  - name: failer
    description: Fails, always.
    runtime: scripted
    default_prompt: Fail.
    script: [{cost: 0.02}, {error: 529, message: The API has too much to do.}]
  - name: asker
    description: Asks before it acts.
    runtime: scripted
    default_prompt: Act.
    approvals: interactive
    script:
      - run: rm -r build
        ask_permission: true
      - say: Done.
  - name: worker
    description: Works for long.
    runtime: scripted
    default_prompt: Work.
    instances: {max_concurrent: 1}
    script: [{say: I count the sheep.}, {sleep: 1h}]
  - name: changer
    description: Changes the config of its fleet.
    runtime: scripted
    default_prompt: Change.
    script: [{run: "echo '  - {name: <b>added</b>, runtime: command, command: ls}' >> heeler.yaml"}]
  - name: evil
    description: "<script>window.acted=1</script><img src=x onerror='window.acted=1'>"
    runtime: scripted
    default_prompt: "<img src=x onerror='window.acted=1'>"
    schedules:
      daily: {type: cron, cron: "0 5 * * *", prompt: "<svg onload=window.acted=1>"}
    script:
      - tool: "<svg onload=window.acted=1>"
        input: {file_path: "/tmp/\"><script>window.acted=1</script>"}
        result: "<svg><script>window.acted=1</script></svg>"
      - say: |
          <script>window.acted=1</script> <img src=x onerror=window.acted=1>
          [click](javascript:window.acted=1) ![pic](https://example.com/x.png) <svg onload=window.acted=1>
          <a href="javascript:window.acted=1">link</a> [data](data:text/html,<script>window.acted=1</script>)
"##;

/// The pages there are, and the names of their pictures.
const PAGES: [(&str, &str); 13] = [
    ("/", "overview"),
    ("/agents", "agents"),
    ("/agents/writer", "agent"),
    ("/agents/evil", "agent-evil"),
    ("/jobs", "jobs"),
    ("/jobs?status=failed&agent=failer", "jobs-failed"),
    ("/schedules", "schedules"),
    ("/search?q=report", "search"),
    ("/settings", "settings"),
    ("/costs", "costs"),
    ("/config", "config"),
    ("/notices", "notices"),
    (NOWHERE, "not-found"),
];

/// A site at which something of everything has happened.
fn site() -> Site {
    let fleet = Fleet::empty();
    fleet.write("heeler.yaml", FLEET);
    let site = Site::start(fleet);
    for agent in ["writer", "evil"] {
        site.fleet.run(&["trigger", agent, "-q"]).ok();
    }
    site.fleet.run(&["trigger", "failer", "-q"]).fails(1);
    for agent in ["asker", "worker", "worker"] {
        site.fleet.run(&["trigger", agent, "--detach"]).ok();
    }
    wait(&site, &["approvals", "list", "--json"], |found| found["total"] == 1);
    wait(&site, &["jobs", "--json"], |found| {
        let jobs = found["jobs"].as_array().unwrap();
        jobs.iter().filter(|job| job["status"] == "running").count() == 2
    });
    site
}

#[track_caller]
fn wait(site: &Site, command: &[&str], is_so: impl Fn(&serde_json::Value) -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let found = site.fleet.json(command);
        if is_so(&found) {
            return;
        }
        assert!(Instant::now() < deadline, "{command:?}: {found}");
        std::thread::yield_now();
    }
}

#[test]
fn every_page_is_sound_wide_and_narrow_in_the_light_and_in_the_dark() {
    let site = site();
    let jobs = site.fleet.json(&["jobs", "--json"]);
    let of = |agent: &str| {
        let jobs = jobs["jobs"].as_array().unwrap();
        jobs.iter().find(|job| job["agent"] == agent).unwrap()["id"].as_str().unwrap().to_owned()
    };
    let comparison = format!("/jobs/{}/compare?with={}", of("writer"), of("evil"));
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        for (path, name) in PAGES {
            browser.check_everywhere(path, name).await;
        }
        browser.check_everywhere(&comparison, "job-comparison").await;
        browser.page.delete_all_cookies().await.unwrap();
        browser.check_everywhere("/jobs", "login").await;
    });
}

#[test]
fn people_start_steer_and_let_in_by_clicks() {
    let site = site();
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        people_start_switch_and_steer_by_clicks(&site, browser).await;
        a_job_is_asked_for_in_words(&site, browser).await;
        tokens_are_made_shown_once_and_revoked(browser).await;
        an_agent_is_made_changed_and_removed_by_clicks(&site, browser).await;
        a_workflow_is_made_drawn_and_removed_by_clicks(&site, browser).await;
        // The last, since they change the fleet.
        a_change_by_an_agent_is_loaded_by_a_click(&site, browser).await;
        a_refusal_is_shown_in_its_own_words(&site, browser).await;
    });
}

async fn people_start_switch_and_steer_by_clicks(site: &Site, browser: &Browser) {
    browser.visit("/agents/writer").await;
    browser.click("button[aria-label='nightly is enabled']").await;
    browser.wait_for("button[aria-label='nightly is enabled'][aria-checked=false]", "off").await;
    let schedules = site.fleet.json(&["schedule", "list", "writer", "--json"]);
    let nightly =
        schedules["schedules"].as_array().unwrap().iter().find(|it| it["name"] == "nightly");
    assert_eq!(nightly.unwrap()["enabled"], false);

    let before =
        site.fleet.json(&["jobs", "--agent", "writer", "--json"])["total"].as_i64().unwrap();
    browser.click("button[aria-label='Run now: hourly']").await;
    browser.wait_for("#toasts .toast", "").await;
    wait(site, &["jobs", "--agent", "writer", "--json"], |jobs| jobs["total"] == before + 1);

    browser.click("button[data-action$='/disable'].danger").await;
    browser.wait_for("#confirm[open]", "Disable writer?").await;
    browser.click("#confirm button[value=no]").await;
    assert_eq!(agent(site, "writer")["enabled"], true, "nobody agreed");
    browser.click("button[data-action$='/disable'].danger").await;
    browser.click("#confirm button[value=yes]").await;
    browser.wait_for("#head", "Enable").await;
    assert_eq!(agent(site, "writer")["enabled"], false);
    browser.click("#head button[data-action$='/enable']").await;
    browser.wait_for("#head", "Disable").await;
    browser.is_quiet("actions").await;
}

#[test]
fn what_agents_are_called_told_and_say_cannot_act_on_any_page() {
    let site = site();
    let first = |command: &[&str], list: &str, key: &str| {
        site.fleet.json(command)[list][0][key].as_str().unwrap().to_owned()
    };
    let job = first(&["jobs", "--agent", "evil", "--json"], "jobs", "id");
    let session = first(&["session", "list", "--agent", "evil", "--json"], "sessions", "id");
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        for path in [
            "/".to_owned(),
            "/agents".to_owned(),
            "/agents/evil".to_owned(),
            "/jobs?agent=evil".to_owned(),
            format!("/jobs/{job}"),
            "/sessions".to_owned(),
            format!("/sessions/{session}"),
            "/schedules".to_owned(),
            "/search?q=window.acted".to_owned(),
            "/search?q=%3Cscript%3Ewindow.acted%3D1%3C/script%3E".to_owned(),
            // The last, since its complaint stays in the log.
            "/jobs?agent=%22%3E%3Cscript%3Ewindow.acted%3D1%3C/script%3E".to_owned(),
        ] {
            browser.visit(&path).await;
            browser.wait_for("main h1", "").await;
            browser.is_inert(&path).await;
            // Of an agent that is not there a browser says by itself that it was not found.
            if !path.contains("agent=%22") {
                browser.is_quiet(&path).await;
            }
        }
    });
}

fn agent(site: &Site, name: &str) -> serde_json::Value {
    let agents = site.fleet.json(&["agent", "list", "--json"]);
    let found = agents["agents"].as_array().unwrap().iter().find(|it| it["name"] == name);
    found.unwrap().clone()
}

async fn a_job_is_asked_for_in_words(site: &Site, browser: &Browser) {
    browser.look(Look::PHONE).await;
    browser.visit("/agents/writer").await;
    browser.type_into("#prompt", "Write about <tulips>.").await;
    browser.click("form[data-action='POST /api/v1/jobs'] button").await;
    browser
        .wait(
            "a job's page".to_owned(),
            "return location.pathname.startsWith('/jobs/job-')".to_owned(),
        )
        .await;
    let id = browser.script("return location.pathname.split('/').pop()").await;
    let job = site.fleet.json(&["job", id.as_str().unwrap(), "--json"]);
    assert_eq!(job["job"]["prompt"], "Write about <tulips>.");
    browser.look(Look::DESKTOP).await;
}

async fn an_agent_is_made_changed_and_removed_by_clicks(site: &Site, browser: &Browser) {
    browser.visit("/config?new=1").await;
    browser.type_into("#a-name", "helper").await;
    browser.type_into("#a-prompt", "Help.").await;
    browser.wait_for("#config-state", "No errors.").await;
    browser.wait_for("#config-diff", "path: agents/helper.yaml").await;
    browser.check("config-new").await;
    browser.click("#config-save").await;
    browser.wait_for("#confirm[open]", "Add the agent helper?").await;
    browser.click("#confirm button[value=yes]").await;
    browser.wait_for("#toasts .toast", "Saved and loaded.").await;
    browser.wait_for("#config-state", "No changes.").await;
    assert_eq!(agent(site, "helper")["enabled"], true);
    assert!(site.fleet.read("agents/helper.yaml").contains("  Help.\n"));

    browser.script("const it = document.getElementById('config-text'); it.value += 'bogus: 1\\n'; it.dispatchEvent(new Event('input', {bubbles: true}))").await;
    browser.wait_for("#config-faults", "bogus").await;
    browser.wait_for("#config-save:disabled", "Save").await;
    browser.check("config-fault").await;
    browser.script("const it = document.getElementById('config-text'); it.value = it.value.replace('bogus: 1', 'description: \"<b>Helps</b>\"'); it.dispatchEvent(new Event('input', {bubbles: true}))").await;
    browser.wait_for("#config-diff .added", "<b>Helps</b>").await;
    browser.click("#config-save:not(:disabled)").await;
    browser.click("#confirm[open] button[value=yes]").await;
    browser.wait_for("#config-state", "No changes.").await;
    assert_eq!(agent(site, "helper")["description"], "<b>Helps</b>");
    a_form_changes_single_values_and_keeps_comments(site, browser).await;
    browser.click("#config-remove").await;
    browser.click("#confirm[open] button[value=yes]").await;
    browser.wait_for("#config-path", "agents/NAME.yaml").await;
    assert!(!site.fleet.file("agents/helper.yaml").exists());
    browser.is_quiet("config").await;
}

/// Continues with the file of the agent `helper`.
async fn a_form_changes_single_values_and_keeps_comments(site: &Site, browser: &Browser) {
    let before = site.fleet.read("agents/helper.yaml");
    browser.script("const it = document.getElementById('config-text'); it.value = '# Mine.\\n' + it.value; it.dispatchEvent(new Event('input', {bubbles: true}))").await;
    browser.wait_for("#config-diff .added", "# Mine.").await;
    browser.script("const it = document.getElementById('f-budget-job'); it.value = '1.5'; it.dispatchEvent(new Event('change'))").await;
    browser.wait_for("#config-diff", "job: 1.5").await;
    browser.script("document.querySelectorAll('#config-field-list details').forEach((it) => it.open = true)").await;
    browser.type_into("#n-schedules-name", "nightly").await;
    browser.type_into("#n-schedules-what", "0 3 * * *").await;
    browser.script("document.querySelector('#n-schedules-what').closest('details').querySelector('button').click()").await;
    browser.wait_for("#config-diff", "cron: \"0 3 * * *\"").await;
    browser.wait_for("#config-field-list", "Schedule nightly").await;
    browser.wait_for("#config-state", "No errors.").await;
    browser.check("config-form").await;
    browser.look(Look::PHONE).await;
    browser.look(Look::DESKTOP).await;
    browser.click("#config-save:not(:disabled)").await;
    browser.click("#confirm[open] button[value=yes]").await;
    browser.wait_for("#config-state", "No changes.").await;
    let after = site.fleet.read("agents/helper.yaml");
    let added = "budget:\n  job: 1.5\nschedules:\n  nightly:\n    cron: \"0 3 * * *\"\n";
    assert_eq!(after, format!("# Mine.\n{before}{added}"));
    assert_eq!(agent(site, "helper")["budget"]["jobUsd"], 1.5);
    assert_eq!(agent(site, "helper")["schedules"][0], "nightly");
}

async fn a_workflow_is_made_drawn_and_removed_by_clicks(site: &Site, browser: &Browser) {
    browser.visit("/config?new=workflow").await;
    browser.type_into("#w-name", "sweep").await;
    browser.type_into("#w-agent", "helper-of-flows").await;
    browser.wait_for("#config-faults", "helper-of-flows").await;
    browser.wait_for("#config-save:disabled", "Save").await;
    browser.script("const it = document.getElementById('w-agent'); it.value = 'writer'; it.dispatchEvent(new Event('input', {bubbles: true}))").await;
    browser.wait_for("#config-state", "No errors.").await;
    browser.wait_for("#config-graph svg", "work").await;
    browser.click("#config-save:not(:disabled)").await;
    browser.wait_for("#confirm[open]", "Add the workflow sweep?").await;
    browser.click("#confirm button[value=yes]").await;
    browser.wait_for("#config-state", "No changes.").await;
    browser.wait_for("#config-field-list", "Phase work").await;
    browser.script("document.querySelectorAll('#config-field-list details').forEach((it) => it.open = true)").await;
    browser.type_into("#n-phases-name", "polish").await;
    browser.type_into("#n-phases-what", "Polish it.").await;
    browser.script("document.querySelector('#n-phases-what').closest('details').querySelector('button').click()").await;
    browser.wait_for("#config-graph svg", "polish").await;
    browser.check("config-workflow").await;
    browser.click("#config-save:not(:disabled)").await;
    browser.click("#confirm[open] button[value=yes]").await;
    browser.wait_for("#config-state", "No changes.").await;
    let found = site.fleet.json(&["workflow", "show", "sweep", "--json"]);
    assert_eq!(found["workflow"]["phases"][1]["name"], "polish", "{found}");
    browser.click("#config-remove").await;
    browser.wait_for("#confirm[open]", "Remove the workflow sweep").await;
    browser.click("#confirm button[value=yes]").await;
    browser.wait_for("#config-path", "agents/NAME.yaml").await;
    assert!(!site.fleet.file("workflows/sweep.yaml").exists());
    browser.is_quiet("config-workflow").await;
}

async fn a_change_by_an_agent_is_loaded_by_a_click(site: &Site, browser: &Browser) {
    browser.visit("/").await;
    site.fleet.run(&["trigger", "changer", "-q"]).ok();
    browser.visit("/").await;
    // The page shows the line as text, and the jobs that may have written it.
    browser.wait_for("pre.code", "- {name: <b>added</b>, runtime: command").await;
    let change = site.fleet.json(&["status", "--json"])["configChange"].clone();
    let job = change["jobs"][0].as_str().unwrap().to_owned();
    browser.wait_for(&format!("a[href='/jobs/{job}']"), "").await;
    browser.check("overview-config-change").await;
    // A name that an agent may have; the page follows the file.
    let config = site.fleet.read("heeler.yaml");
    let name = "added-by-an-agent";
    site.fleet.write("heeler.yaml", &config.replace("<b>added</b>", name));
    browser.visit("/").await;
    browser.wait_for("pre.code", name).await;
    browser.click("button[data-action$='/accept-config']").await;
    browser.wait_for("#confirm[open]", "Load this change?").await;
    browser.click("#confirm button[value=yes]").await;
    browser.wait_for("#toasts .toast", "The change was loaded.").await;
    wait(site, &["status", "--json"], |status| status["configChange"].is_null());
    site.fleet.run(&["trigger", name, "-q"]).ok();
}

async fn a_refusal_is_shown_in_its_own_words(site: &Site, browser: &Browser) {
    browser.visit("/agents/writer").await;
    browser.wait_for("h1", "writer").await;
    site.fleet.write("heeler.yaml", &FLEET.replace("name: writer", "name: author"));
    // Jobs of this page may still run.
    site.fleet.run(&["reload", "--accept", "--yes"]).ok();
    browser.click("button[aria-label='Run now: hourly']").await;
    browser.wait_for("#toasts [role=alert]", "writer").await;
}

async fn tokens_are_made_shown_once_and_revoked(browser: &Browser) {
    browser.visit("/settings").await;
    browser.type_into("#t-name", "ci").await;
    browser.click("#tokens form button").await;
    browser.wait_for("#new-token-value", "heeler_").await;
    browser.wait_for("#token-list", "ci").await;
    browser.check("settings-token").await;
    browser.click("button[aria-label='Revoke ci']").await;
    browser.click("#confirm button[value=yes]").await;
    browser.wait_for("#token-list tr", "revoked").await;
}

#[test]
fn pages_follow_the_fleet_keys_and_the_choice_of_colours_and_are_small() {
    let site = site();
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        the_overview_follows_the_fleet_and_keeps_the_focus(&site, browser).await;
        the_overview_with_all_its_files_is_at_most_100_kilobytes(browser).await;
        the_keyboard_leads_everywhere(browser).await;
        the_palette_finds_pages_agents_and_commands(&site, browser).await;
        a_phone_shows_questions_first_and_has_room_for_fingers(browser).await;
        colours_are_kept_and_there_before_anything_is_painted(browser).await;
    });
}

async fn the_keyboard_leads_everywhere(browser: &Browser) {
    browser.press("gj").await;
    browser.wait_for("main h1", "Jobs").await;
    browser.press("j").await;
    let is_in_row = "return document.activeElement.closest('[data-row]') !== null";
    browser.wait("a row with the focus".to_owned(), is_in_row.to_owned()).await;
    browser.press("?").await;
    browser.wait_for("#keys[open]", "Keyboard").await;
    browser.check("keys").await;
    browser.click("#keys-on").await;
    browser.click("#keys button").await;
    browser.press("ga").await;
    browser.wait_for("main h1", "Jobs").await;
    browser.script("localStorage.removeItem('heeler-keys')").await;
    browser.press("/").await;
    browser.press("tulips\u{E007}").await;
    browser.wait_for("main h1", "Search").await;
    browser.wait_for("mark", "tulips").await;
    let skip = "document.querySelector('.skip').focus(); document.activeElement.click(); return document.activeElement.id";
    assert_eq!(browser.script(skip).await, "main");
}

async fn the_palette_finds_pages_agents_and_commands(site: &Site, browser: &Browser) {
    let keys = "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, bubbles: true, cancelable: true}))";
    browser.visit("/jobs").await;
    browser.script(keys).await;
    browser.wait_for("#palette[open] li[aria-selected=true]", "Overview").await;
    browser.type_into("#palette-text", "writer").await;
    browser.wait_for("#palette li[aria-selected=true]", "writer").await;
    browser.check("palette").await;
    browser.press("\u{E007}").await;
    browser.wait_for("main h1", "writer").await;
    browser.script(keys).await;
    browser.type_into("#palette-text", "run writer/nightly").await;
    browser.wait_for("#palette li[aria-selected=true]", "Run writer/nightly now").await;
    let before =
        site.fleet.json(&["jobs", "--agent", "writer", "--json"])["total"].as_i64().unwrap();
    browser.press("\u{E007}").await;
    browser.click("#confirm[open] button[value=yes]").await;
    wait(site, &["jobs", "--agent", "writer", "--json"], |jobs| jobs["total"] == before + 1);
    browser.visit("/jobs").await;
    browser.script(keys).await;
    browser.type_into("#palette-text", "tulips <b>").await;
    browser
        .wait_for("#palette li[aria-selected=true]", "Search transcripts for “tulips <b>”")
        .await;
    browser.is_quiet("palette").await;
    browser.press("\u{E00C}").await;
}

async fn a_phone_shows_questions_first_and_has_room_for_fingers(browser: &Browser) {
    browser.look(Look::PHONE).await;
    browser.visit("/").await;
    browser.wait_for("#needs-you", "1 question waits for you").await;
    let tops = "const top = (id) => document.querySelector(id).getBoundingClientRect().top;
        return [top('#needs-you'), top('#stats'), top('#attention'), top('#work'), innerHeight]";
    let tops: Vec<f64> = serde_json::from_value(browser.script(tops).await).unwrap();
    assert!(tops[0] < tops[1] && tops[2] < tops[3] && tops[0] < tops[4], "{tops:?}");
    for path in ["/", "/approvals", "/agents/writer", "/jobs"] {
        browser.visit(path).await;
        let small = "return [...document.querySelectorAll('.button, nav a, select, input:not([type=checkbox]):not([type=radio])')]
            .filter((one) => one.offsetParent && one.getBoundingClientRect().height < 43.5)
            .map((one) => [one.className, one.textContent, one.getBoundingClientRect().height])";
        assert_eq!(browser.script(small).await, json!([]), "{path}");
    }
    let manifest = "const link = document.querySelector('link[rel=manifest]'); return fetch(link.href).then((reply) => reply.json()).then((it) => [it.name, it.display, it.start_url])";
    assert_eq!(browser.script(manifest).await, json!(["Heeler", "standalone", "/"]));
    browser.look(Look::DESKTOP).await;
}

async fn colours_are_kept_and_there_before_anything_is_painted(browser: &Browser) {
    let background = "return getComputedStyle(document.body).backgroundColor";
    let light = browser.script(background).await;
    browser.click("#theme").await;
    browser.click("#theme").await;
    let dark = browser.script(background).await;
    assert_ne!(light, dark);
    browser.visit("/jobs").await;
    assert_eq!(browser.script(background).await, dark);
    assert_eq!(browser.script("return document.querySelector('#theme').dataset.now").await, "dark");
    // A blocking script in the head runs before there is a body to paint.
    let place = "const it = document.querySelector('script[src*=theme]'); return [it.parentElement.localName, it.defer, it.async, it.type]";
    assert_eq!(browser.script(place).await, json!(["head", false, false, ""]));
}

async fn the_overview_follows_the_fleet_and_keeps_the_focus(site: &Site, browser: &Browser) {
    browser.wait_for("#work", "I count the sheep.").await;
    browser.wait_for("#live", "Live").await;
    browser.script("document.querySelector('#attention a[href*=\"/jobs/\"]').focus()").await;
    let link = browser.script("return document.activeElement.getAttribute('href')").await;
    site.fleet.run(&["trigger", "failer", "-q"]).fails(1);
    browser
        .wait(
            "two failures".to_owned(),
            "return document.querySelectorAll('#attention .status[data-s=failed]').length === 2"
                .to_owned(),
        )
        .await;
    assert_eq!(browser.script("return document.activeElement.getAttribute('href')").await, link);
    browser.is_quiet("overview").await;
}

async fn the_overview_with_all_its_files_is_at_most_100_kilobytes(browser: &Browser) {
    browser.visit("/").await;
    browser.wait_for("#live", "Live").await;
    let sizes = "const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
        return all.filter((one) => !one.name.includes('/stream')).map((one) => [new URL(one.name).pathname, one.decodedBodySize])";
    let sizes = browser.script(sizes).await;
    let pairs: Vec<(String, f64)> = serde_json::from_value(sizes).unwrap();
    // A page that was fetched again for its regions counts once.
    let seen: std::collections::BTreeMap<String, f64> = pairs.into_iter().collect();
    let total: f64 = seen.values().sum();
    assert!(total <= 100_000.0, "{total}: {seen:?}");
    assert!(seen.keys().any(|name| name.ends_with("style.css")), "{seen:?}");
}
