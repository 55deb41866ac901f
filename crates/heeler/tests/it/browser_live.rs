//! A page that is left open, keys alone, and fleets with odd things in them, in a browser.

use std::net::{Ipv4Addr, TcpListener};

use serde_json::json;

use crate::browser::{Browser, Look, Site, with_browser};
use crate::fleet::Fleet;

/// How many keys a walk through a page may take.
const KEYS_MAX: usize = 250;

/// What a person can use in a page that is shown; of a group of choices one has the focus.
const USABLE: &str = "return [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex=\"0\"]')]
    .filter((it) => !it.disabled && it.type !== 'hidden' && it.type !== 'radio' && it.checkVisibility({ visibilityProperty: true }) && !it.closest('dialog'))";

/// What notes which elements had the focus, and which of them did not show it.
const WATCH: &str = "window.had = new Set(); window.unseen = [];
    document.activeElement.blur();
    document.addEventListener('focusin', ({ target }) => {
      had.add(target);
      const shown = [target, ...target.querySelectorAll('rect')].some((it) => {
        const { outlineStyle, outlineWidth, strokeWidth, stroke } = getComputedStyle(it);
        return (outlineStyle !== 'none' && outlineWidth !== '0px') || (it.localName === 'rect' && parseFloat(strokeWidth) >= 3 && stroke !== 'none');
      });
      if (!shown && target.id !== 'main') unseen.push(target.outerHTML.slice(0, 160));
    });";

const TAB: &str = "\u{E004}";
const ENTER: &str = "\u{E007}";
const ESCAPE: &str = "\u{E00C}";

/// Returns a port that nobody has now and that is given to nobody who asks for any.
fn port() -> u16 {
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (first..first + 100).find(is_free).unwrap()
}

const TALKER: &str = "
  - name: talker
    runtime: scripted
    default_prompt: Talk.
    session: {mode: persistent}
    script: [{say: 'Turn {turn} of **many**.'}]
";

const WORKER: &str = "
  - name: worker
    runtime: scripted
    default_prompt: Work.
    script: [{say: I count the sheep.}, {sleep: 1h}]
  - name: failer
    runtime: scripted
    default_prompt: Fail.
    script: [{error: 529, message: The API has too much to do.}]
";

#[test]
fn a_page_outlives_its_daemon_and_keeps_what_was_typed() {
    let fleet = Fleet::empty();
    let port = port();
    let head = format!("fleet: {{name: live}}\nweb: {{port: {port}}}\nagents:");
    fleet.write("heeler.yaml", &format!("{head}{TALKER}{WORKER}"));
    let mut site = Site::start(fleet);
    site.fleet.run(&["trigger", "talker", "-q"]).ok();
    let list = site.fleet.json(&["session", "list", "--agent", "talker", "--json"]);
    let session = list["sessions"][0]["id"].as_str().unwrap().to_owned();
    let browser = crate::browser::Opened::new(&site, Look::DESKTOP);
    browser.run(async |browser: &Browser| {
        browser.wait_for("#live", "Live").await;
        browser.script("window.same = true").await;
        site.fleet.run(&["trigger", "worker", "--detach", "-q"]).ok();
        browser.wait_for("#work", "I count the sheep.").await;
        site.fleet.run(&["trigger", "failer", "-q"]).fails(1);
        browser.wait_for("#attention", "too much to do").await;
    });
    site.crash();
    browser.run(async |browser: &Browser| {
        browser.wait_for("#live[data-state=lost]", "Connection lost").await;
    });
    site.start_again();
    browser.run(async |browser: &Browser| {
        browser.wait_for("#live[data-state=live]", "Live").await;
        site.fleet.run(&["trigger", "failer", "-q"]).fails(1);
        let failed =
            "return document.querySelectorAll('#attention .status[data-s=failed]').length === 2";
        browser.wait("two failures".to_owned(), failed.to_owned()).await;
        assert_eq!(browser.script("return window.same").await, true, "no reload");

        browser.visit(&format!("/sessions/{session}")).await;
        browser.wait_for("#live", "Live").await;
        browser.script("window.same = true").await;
        browser.type_into("#say", "What I am about to say").await;
    });
    site.crash();
    browser.run(async |browser: &Browser| {
        browser.wait_for("#live[data-state=lost]", "Connection lost").await;
        // Whoever sends it now is told, and has it still.
        browser.click("form[data-talk] button").await;
        browser.wait_for(".toast-wrong", "does not answer").await;
    });
    site.start_again();
    browser.run(async |browser: &Browser| {
        browser.wait_for("#live[data-state=live]", "Live").await;
        let typed = "return [window.same, document.querySelector('#say').value]";
        assert_eq!(browser.script(typed).await, json!([true, "What I am about to say"]));
        browser.click("form[data-talk] button").await;
        browser.wait_for(".entry", "Turn 2 of many.").await;
    });
    browser.close();
}

#[test]
fn everything_is_reached_and_seen_by_keys_alone() {
    let fleet = Fleet::empty();
    let head = "fleet: {name: keys}\nweb: {port: auto}\nagents:";
    fleet.write("heeler.yaml", &format!("{head}{TALKER}{WORKER}"));
    fleet.write("workflows/ship.yaml", GATED);
    let site = Site::start(fleet);
    site.fleet.run(&["trigger", "talker", "-q"]).ok();
    site.fleet.run(&["trigger", "failer", "-q"]).fails(1);
    site.fleet.run(&["workflow", "run", "ship", "--until-asked", "-q"]).ok();
    let work = site.fleet.run(&["trigger", "worker", "--detach", "-q"]).ok();
    let job = format!("/jobs/{}", work.trim());
    let session = site.fleet.json(&["session", "list", "--agent", "talker", "--json"]);
    let session = format!("/sessions/{}", session["sessions"][0]["id"].as_str().unwrap());
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        for path in [
            "/",
            "/agents",
            "/agents/worker",
            "/jobs",
            &job,
            "/sessions",
            &session,
            "/workflows",
            "/workflows/ship",
            "/runs",
            "/approvals",
            "/schedules",
            "/search?q=Turn",
            "/settings",
        ] {
            browser.visit(path).await;
            browser.wait_for("#live", "Live").await;
            walk(browser, path).await;
        }
        a_dialog_keeps_the_focus_and_gives_it_back(browser, &job).await;
    });
}

/// Walks through a page by Tab: everything that can be used gets the focus and shows it.
async fn walk(browser: &Browser, path: &str) {
    let count = browser.script(&format!("{USABLE}.length")).await.as_u64().unwrap() as usize;
    assert!(count < KEYS_MAX, "{path}: {count} things to use");
    browser.script(WATCH).await;
    browser.press(&TAB.repeat(count + 10)).await;
    let missed = browser
        .script(&format!(
            "{USABLE}.filter((it) => !had.has(it)).map((it) => it.outerHTML.slice(0, 160))"
        ))
        .await;
    assert_eq!(missed, json!([]), "{path}: not reached");
    assert_eq!(browser.script("return unseen").await, json!([]), "{path}: the focus is not seen");
}

async fn a_dialog_keeps_the_focus_and_gives_it_back(browser: &Browser, job: &str) {
    browser.visit(job).await;
    browser.wait_for("#live", "Live").await;
    let cancel = "button[data-action$='/cancel']";
    browser.script(&format!("document.querySelector(\"{cancel}\").focus()")).await;
    browser.press(ENTER).await;
    browser.wait_for("#confirm[open]", "Cancel this job?").await;
    let outside =
        "const at = document.activeElement; return at !== document.body && !at.closest('dialog')";
    for _ in 0..5 {
        assert_eq!(browser.script(outside).await, false, "the focus left the dialog");
        browser.press(TAB).await;
    }
    browser.press(ESCAPE).await;
    let is_back = format!("return document.activeElement.matches(\"{cancel}\")");
    browser.wait("the focus where it was".to_owned(), is_back).await;
    browser.wait_for("#head .status", "running").await;
}

const GATED: &str = "
name: ship
agent: talker
inputs: {what: {default: tulips}}
phases:
  - {name: pack, type: bash, command: 'echo packed', approval_gate: {name: may-ship, message: 'Ship?'}}
";

/// A name as long as names may be, and words without a blank.
const ODD: &str = "
  - name: a-very-long-agent-name-that-goes-on-and-on-and-never-wants-to-stop-anywhere
    description: ein_wort_das_sehr_lang_ist_und_nicht_umbrochen_werden_kann_weil_es_keine_leerzeichen_hat_und_sonst_nichts
    runtime: scripted
    default_prompt: Write.
    schedules:
      minutely: {type: interval, interval: 1m, prompt: Write.}
    script: [{say: \"## Done\\n\\nAll is **well**: `3` things.\"}]
";

#[test]
fn faults_changes_past_agents_and_long_names_have_their_place() {
    let fleet = Fleet::empty();
    let head = "fleet: {name: odd}\nweb: {port: auto}\nagents:";
    fleet.write("heeler.yaml", &format!("{head}{TALKER}{WORKER}{ODD}"));
    fleet.write("workflows/ship.yaml", GATED);
    fleet.write("workflows/broken.yaml", "name: broken\nphases: [{name: plan, typ: bash}]\n");
    let cron = "kind: cron\nname: nightly\nschedule: '0 3 * * *'\nworkflow: ship\n";
    fleet.write("workflows/nightly.yaml", cron);
    let site = Site::start(fleet);
    let long = "a-very-long-agent-name-that-goes-on-and-on-and-never-wants-to-stop-anywhere";
    site.fleet.run(&["trigger", long, "-q"]).ok();
    site.fleet.run(&["trigger", "failer", "-q"]).fails(1);
    site.fleet.run(&["schedule", "set", "talker", "nightly", "15 5 * * *"]).ok();
    site.fleet.write("heeler.yaml", &format!("{head}{TALKER}{ODD}"));
    site.fleet.run(&["reload"]).ok();
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.visit("/workflows").await;
        browser.wait_for("#faulty", "unknown key typ").await;
        browser.wait_for("#list td", "15 5 * * *").await;
        browser.visit("/schedules").await;
        browser.wait_for(".lane", "15 5 * * *").await;
        browser.wait_for("#coming li", "05:15:00").await;
        browser.visit("/jobs").await;
        browser.wait_for("td.did", "Done · All is well: 3 things.").await;
        browser.visit("/agents").await;
        browser.click("#past a[href='/agents/failer']").await;
        browser.wait_for(".banner", "no longer in the config").await;
        browser.wait_for("#jobs td", "too much to do").await;
        let agent = format!("/agents/{long}");
        for (path, name) in [
            ("/", "overview-odd"),
            ("/agents", "agents-odd"),
            (agent.as_str(), "agent-odd"),
            ("/agents/failer", "agent-past"),
            ("/jobs", "jobs-odd"),
            ("/schedules", "schedules-odd"),
            ("/workflows", "workflows-odd"),
            ("/search?q=well", "search-odd"),
        ] {
            browser.fits_everywhere(path, name).await;
        }
    });
}
