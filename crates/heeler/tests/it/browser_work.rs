//! A job, sessions, workflows, runs and approvals on the dashboard, in a browser.

use std::io::Write as _;
use std::process::Command;

use heeler_testkit::ProofSettings;
use serde_json::{Value as Json, json};

use crate::browser::{Browser, Look, Site, with_browser};
use crate::fleet::Fleet;
use crate::trigger::wait_for;

/// Agents that work, talk, ask and hang; `evil` tries to act wherever it is shown.
const FLEET: &str = r##"
fleet: {name: work}
web: {port: auto}
agents:
  - name: coder
    runtime: scripted
    default_prompt: Code.
    working_directory: work
    session: {mode: persistent}
    script:
      - run: 'echo "line $SCRIPT_TURN <b>not bold</b>" >> notes.txt'
      - cost: 0.02
      - say: "Turn {turn} of **many**. Before: {remembered}."
  - name: counter
    runtime: scripted
    default_prompt: Count.
    script: [{repeat: 400, do: [{say: "Number {n}."}]}]
  - name: slow
    runtime: scripted
    default_prompt: Be slow.
    script:
      - repeat: 30
        do: [{say: "Old news {n}."}]
      - run: 'while ! test -e go; do sleep 0.05; done; echo went'
        description: Waits for a file
      - say: "The slow words come in pieces."
        chunks: 4
        delay: 20ms
  - name: asker
    runtime: scripted
    approvals: interactive
    default_prompt: Ask.
    script:
      - run: echo asked > did
        ask_permission: true
      - say: "It gave {output}."
  - name: quizzer
    runtime: scripted
    approvals: interactive
    default_prompt: Quiz.
    script:
      - question: Which colour should it have?
        header: Colour
        options: [red, blue]
      - say: "{answer} it is."
  - name: failer
    runtime: scripted
    default_prompt: Fail.
    script:
      - when: {session: resumed}
        do: [{say: Well again.}]
        else: [{error: 529, message: The API has too much to do.}]
  - name: evil
    runtime: scripted
    approvals: interactive
    working_directory: evil
    default_prompt: "<img src=x onerror='window.acted=1'>"
    script:
      - write: "<img src=x onerror=acted=1>.txt"
        text: "<script>window.acted=1</script>"
      - tool: "<svg onload=window.acted=1>"
        input: {file_path: "/tmp/\"><script>window.acted=1</script>"}
        result: "<svg><script>window.acted=1</script></svg>"
      - say: |
          <script>window.acted=1</script> <img src=x onerror=window.acted=1>
          [click](javascript:window.acted=1) ![pic](https://example.com/x.png) <svg onload=window.acted=1>
      - run: "echo '<script>window.acted=1</script>'"
        description: "<img src=x onerror='window.acted=1'>"
        ask_permission: true
"##;

const SHIP: &str = "
name: ship
description: Makes and **ships**
agent: coder
inputs:
  what: {description: What to ship}
  hurry: {type: boolean, default: false}
phases:
  - {name: plan, type: bash, command: 'echo planned'}
  - {name: build, type: bash, command: 'echo built', depends_on: [plan]}
  - {name: test, type: bash, command: 'echo tested', depends_on: [plan]}
  - name: pack
    type: bash
    command: 'echo \"packed {{ what }} <script>window.acted=1</script>\"'
    depends_on: [build, test]
    approval_gate: {name: may-ship, message: 'Ship {{ what }}? <img src=x onerror=window.acted=1>'}
  - {name: send, type: bash, command: 'test -e ready && echo sent', depends_on: [pack]}
";

impl Fleet {
    #[track_caller]
    fn commit_in(&self, folder: &str) {
        self.write(&format!("{folder}/README"), "first\n");
        for args in
            [&["init", "-q", "-b", "trunk"][..], &["add", "."], &["commit", "-q", "-m", "1"]]
        {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(args);
            let done = git.current_dir(self.file(folder)).output().unwrap();
            assert!(done.status.success(), "{done:#?}");
        }
    }

    /// Starts a job and returns its id.
    #[track_caller]
    fn asks_for(&self, agent: &str) -> String {
        self.run(&["trigger", agent, "--detach", "-q"]).ok().trim().to_owned()
    }

    #[track_caller]
    fn newest(&self, agent: &str) -> Json {
        self.json(&["jobs", "--agent", agent, "--json"])["jobs"][0].take()
    }

    #[track_caller]
    fn session_of(&self, agent: &str) -> String {
        let list = self.json(&["session", "list", "--agent", agent, "--json"]);
        list["sessions"][0]["id"].as_str().unwrap().to_owned()
    }
}

fn site() -> Site {
    let fleet = Fleet::empty();
    fleet.write("heeler.yaml", FLEET);
    fleet.write("workflows/ship.yaml", SHIP);
    fleet.commit_in("work");
    fleet.commit_in("evil");
    Site::start(fleet)
}

/// Waits for what somebody is asked by an agent or at a gate.
#[track_caller]
fn asked(site: &Site, gate: &str) -> Json {
    wait_for(gate, || {
        let list = site.fleet.json(&["approvals", "list", "--json"]);
        list["approvals"].as_array().unwrap().iter().find(|it| it["gate"] == gate).cloned()
    })
}

fn id_of(value: &Json) -> String {
    value["id"].as_str().unwrap().to_owned()
}

/// A site with something on each page, and the pages.
fn full_site() -> (Site, Vec<(String, &'static str)>) {
    let site = site();
    let fleet = &site.fleet;
    for _ in 0..3 {
        fleet.run(&["trigger", "coder", "-q"]).ok();
    }
    fleet.run(&["trigger", "counter", "-q"]).ok();
    fleet.run(&["trigger", "failer", "-q"]).fails(1);
    let session = fleet.session_of("coder");
    fleet.run(&["session", "fork", &session, "--at-message", "3", "-q"]).ok();
    let run = fleet.run(&["workflow", "run", "ship", "-i", "what=tulips", "--detach", "-q"]).ok();
    let run = run.trim().to_owned();
    let gate = asked(&site, "may-ship");
    for agent in ["quizzer", "evil", "slow"] {
        fleet.asks_for(agent);
    }
    asked(&site, "AskUserQuestion");
    asked(&site, "Bash");
    let job = |agent: &str| format!("/jobs/{}", id_of(&fleet.newest(agent)));
    let evil = fleet.session_of("evil");
    let pages = vec![
        (job("coder"), "job"),
        (job("failer"), "job-failed"),
        (job("counter"), "job-long"),
        (job("slow"), "job-running"),
        (job("evil"), "job-evil"),
        ("/sessions".to_owned(), "sessions"),
        ("/sessions?view=list&agent=coder".to_owned(), "sessions-list"),
        (format!("/sessions/{session}"), "session"),
        (format!("/sessions/{evil}"), "session-evil"),
        (format!("/sessions/{session}/diff"), "diff"),
        (format!("/sessions/{session}/diff?from=3&to=6"), "diff-between"),
        ("/workflows".to_owned(), "workflows"),
        ("/workflows/ship".to_owned(), "workflow"),
        ("/runs".to_owned(), "runs"),
        (format!("/runs/{run}"), "run"),
        ("/approvals".to_owned(), "approvals"),
        (format!("/approvals/{}", id_of(&gate)), "approval"),
    ];
    (site, pages)
}

#[test]
fn every_page_of_work_is_sound_wide_and_narrow_in_the_light_and_in_the_dark() {
    let (site, pages) = full_site();
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        for (path, name) in &pages {
            browser.check_everywhere(path, name).await;
        }
    });
}

/// Where the reader of a transcript is: how far from its end, and how many rows there are.
const WHERE: &str = "const box = document.querySelector('[data-rows]');
    return [box.scrollHeight - box.scrollTop - box.clientHeight < 48, box.querySelectorAll('.entry').length]";

#[test]
fn a_transcript_shows_its_end_and_what_is_older_when_it_is_scrolled_to() {
    let site = site();
    site.fleet.run(&["trigger", "counter", "-q"]).ok();
    let job = id_of(&site.fleet.newest("counter"));
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.visit(&format!("/jobs/{job}")).await;
        browser.wait_for(".entry", "Number 400.").await;
        browser.wait("the end".to_owned(), format!("{WHERE}[0]")).await;
        let count = browser.script(WHERE).await[1].as_u64().unwrap();
        assert!(count < 100, "{count} rows were sent at once");
        let to_the_start = "document.querySelector('[data-rows]').scrollTop = 0;
            return [...document.querySelectorAll('.entry')].some((it) => it.textContent.includes('Number 1.'))";
        browser.wait("start".to_owned(), to_the_start.to_owned()).await;
        let numbers = browser.script("return [...document.querySelectorAll('.entry[data-number]')].map((it) => Number(it.dataset.number))").await;
        let numbers: Vec<u64> = serde_json::from_value(numbers).unwrap();
        assert!(numbers.is_sorted_by(|a, b| a < b), "each row once, in order: {numbers:?}");
        browser.wait_for("[data-end]:not([hidden])", "Jump to the end").await;
        browser.click("[data-end]").await;
        browser.wait("the end".to_owned(), format!("{WHERE}[0]")).await;
        // A row far above is found by its address.
        browser.visit("/jobs").await;
        browser.visit(&format!("/jobs/{job}#row-20")).await;
        browser
            .wait(
                "the row".to_owned(),
                "return document.getElementById('row-20') !== null".to_owned(),
            )
            .await;
        browser.is_quiet("transcript").await;
    });
}

/// How many megabytes the transcript has at most.
const MEGABYTES_MAX: u64 = 1_000;

/// How many megabytes it has in CI.
const MEGABYTES_IN_CI: u64 = 100;

/// How many rows a page keeps at most, as `transcript.js` has it.
const KEPT_MAX: u64 = 1_500;

#[test]
fn proof_a_transcript_of_up_to_a_gigabyte_begins_at_its_end_at_once() {
    let rows = ProofSettings::new(MEGABYTES_IN_CI).rounds.min(MEGABYTES_MAX) * 1_000;
    let site = site();
    site.fleet.run(&["trigger", "failer", "-q"]).fails(1);
    let job = id_of(&site.fleet.newest("failer"));
    let words = "x".repeat(1_000);
    let log = site.fleet.file(&format!(".heeler/jobs/{job}.jsonl"));
    let mut log = std::io::BufWriter::new(std::fs::File::options().append(true).open(log).unwrap());
    for number in 0..rows {
        writeln!(log, r#"{{"type":"assistant","content":"Row {number}. {words}"}}"#).unwrap();
    }
    log.flush().unwrap();
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.visit(&format!("/jobs/{job}")).await;
        let last = format!("Row {}.", rows - 1);
        browser.wait_for(".entry", &last).await;
        // The script of the page jumps to the end when it has loaded, so scroll more than once.
        let early = format!("Row {}.", rows - 100);
        let up = format!(
            "document.querySelector('[data-rows]').scrollTop = 0;
             return [...document.querySelectorAll('.entry')].some((it) => it.textContent.includes('{early}'))"
        );
        browser.wait(early, up).await;
        let count = browser.script(WHERE).await[1].as_u64().unwrap();
        assert!(count < 500, "{count} rows for a look at the end");
        // Whoever scrolls up for long has no more in the page than it keeps.
        let far = format!("Row {}.", rows - 1 - 2 * KEPT_MAX);
        let up = format!(
            "document.querySelector('[data-rows]').scrollTop = 0;
             window.most = Math.max(window.most ?? 0, document.querySelectorAll('.entry').length);
             return document.querySelector('.entry').textContent.includes('{far}')
               || [...document.querySelectorAll('.entry')].some((it) => it.textContent.includes('{far}'))"
        );
        browser.wait(far.clone(), up).await;
        let most = browser.script("return window.most").await.as_u64().unwrap();
        assert!(most <= KEPT_MAX + 60, "{most} rows in the page");
        let middle = rows / 2;
        browser.visit("/jobs").await;
        browser.visit(&format!("/jobs/{job}#row-{middle}")).await;
        let is_there = format!("return document.getElementById('row-{middle}') !== null");
        browser.wait("the row".to_owned(), is_there).await;
        browser.click("[data-end]").await;
        browser.wait_for(".entry", &last).await;
    });
}

#[test]
fn a_job_is_followed_to_its_end_steered_and_forked() {
    let site = site();
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        what_a_running_job_says_is_shown_as_it_comes_and_its_end_without_a_reload(&site, browser)
            .await;
        std::fs::remove_file(site.fleet.file("go")).unwrap();
        a_running_agent_gets_a_message_from_its_page(&site, browser).await;
        a_job_is_ended_resumed_run_again_and_forked_by_clicks(&site, browser).await;
    });
}

async fn what_a_running_job_says_is_shown_as_it_comes_and_its_end_without_a_reload(
    site: &Site,
    browser: &Browser,
) {
    let job = site.fleet.asks_for("slow");
    browser.visit(&format!("/jobs/{job}")).await;
    browser.wait_for(".entry", "Waits for a file").await;
    browser.wait_for("#head .status", "running").await;
    browser.script("window.same = true").await;
    // The script of the page jumps to the end when it has loaded, so scroll more than once.
    let up = "document.querySelector('[data-rows]').scrollTop = 0;
              return document.querySelector('[data-end]:not([hidden])') !== null";
    browser.wait("the button that jumps to the end".to_owned(), up.to_owned()).await;
    site.fleet.write("go", "");
    browser.wait_for(".entry", "The slow words come in pieces.").await;
    browser.wait_for("[data-end]", "new").await;
    let place = browser.script("return document.querySelector('[data-rows]').scrollTop").await;
    assert_eq!(place, 0, "who has scrolled up is left alone");
    browser.click("[data-end]").await;
    browser.wait_for("#head .status", "completed").await;
    browser.wait_for("[data-told]", "ended").await;
    let rows = "return [document.querySelector('[data-row-count]').textContent, Number([...document.querySelectorAll('.entry[data-number]')].at(-1).dataset.number) + 1]";
    let rows = browser.script(rows).await;
    let (told, last) = (rows[0].as_str().unwrap(), rows[1].as_u64().unwrap());
    assert!(last > 32 && told == format!("{last} rows"), "{rows}");
    browser.wait_for(".entry header .took", "s").await;
    assert_eq!(browser.script("return window.same").await, true, "no reload");
    browser.check("job-ended").await;
}

async fn a_running_agent_gets_a_message_from_its_page(site: &Site, browser: &Browser) {
    let job = site.fleet.asks_for("slow");
    browser.visit(&format!("/jobs/{job}")).await;
    browser.wait_for(".entry", "Waits for a file").await;
    browser.wait_for("#steer h2", "Message to the agent").await;
    browser.check_everywhere(&format!("/jobs/{job}"), "job-steered").await;
    browser.wait_for(".entry", "Waits for a file").await;
    browser.type_into("#steer-text", "Please <b>hurry</b>.").await;
    browser.click("#steer button.primary").await;
    browser.wait_for("#toasts .toast", "The agent has your message.").await;
    browser.wait_for(".entry", "Please <b>hurry</b>.").await;
    site.fleet.write("go", "");
    browser.wait_for("#head .status", "completed").await;
    browser
        .wait(
            "no box".to_owned(),
            "return document.querySelector('#steer form') === null".to_owned(),
        )
        .await;
    browser.is_quiet("steering").await;
    std::fs::remove_file(site.fleet.file("go")).unwrap();
}

async fn a_job_is_ended_resumed_run_again_and_forked_by_clicks(site: &Site, browser: &Browser) {
    let job = site.fleet.asks_for("slow");
    browser.visit(&format!("/jobs/{job}")).await;
    browser.wait_for("#head .status", "running").await;
    browser.click("button[data-action$='/cancel']").await;
    browser.wait_for("#confirm[open]", "Cancel this job?").await;
    browser.click("#confirm button[value=no]").await;
    browser.click("button[data-action$='/cancel']").await;
    browser.click("#confirm button[value=yes]").await;
    browser.wait_for("#head .status", "cancelled").await;
    assert_eq!(site.fleet.newest("slow")["status"], "cancelled");
    site.fleet.write("go", "");
    browser.click("button[data-action$='/resume']").await;
    browser.wait_for("#head .status", "completed").await;
    browser.wait_for(".entry", "The slow words come in pieces.").await;
    browser.click("button[data-action$='/retry']").await;
    browser.wait("another job".to_owned(), format!("return location.pathname.startsWith('/jobs/') && !location.pathname.endsWith('{job}')")).await;
    browser.wait_for("#head .status", "completed").await;
    browser.click("button[data-action$='/fork']").await;
    browser
        .wait(
            "a session".to_owned(),
            "return location.pathname.startsWith('/sessions/')".to_owned(),
        )
        .await;
    browser.wait_for("dt", "Forked from").await;
    browser.is_quiet("job actions").await;
}

#[test]
fn people_talk_to_an_agent_in_its_session_and_fork_it_at_a_message() {
    let site = site();
    site.fleet.run(&["trigger", "coder", "-q", "-p", "First."]).ok();
    let session = site.fleet.session_of("coder");
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.visit(&format!("/sessions/{session}")).await;
        browser.wait_for(".entry", "Turn 1 of many.").await;
        browser.script("window.same = true").await;
        browser.type_into("#say", "And then <b>?").await;
        browser.click("form[data-talk] button").await;
        browser.wait_for(".entry", "And then <b>?").await;
        browser.wait_for(".entry", "Turn 2 of many. Before: First").await;
        // When the job has ended its rows are messages like the others.
        browser.wait_for("[data-page] .entry", "Turn 2 of many.").await;
        browser.wait("messages".to_owned(), "return document.querySelector('.below') === null && document.querySelectorAll('[data-page] .entry').length === 6".to_owned()).await;
        assert_eq!(browser.script("return window.same").await, true, "no reload");
        browser.wait_for(".entry .no-fork", "No fork here").await;
        browser.check("session-talked").await;
        browser.click("[aria-label='Fork from here, after message 3']").await;
        browser.wait("the fork".to_owned(), format!("return location.pathname.startsWith('/sessions/') && !location.pathname.endsWith('{session}')")).await;
        browser.wait_for("dd", "after message 3").await;
        browser.type_into("#say", "On from the first.").await;
        browser.click("form[data-talk] button").await;
        browser.wait_for(".entry", "Turn 2 of many. Before: First").await;
        browser.is_quiet("talk").await;
    });
    let tree = site.fleet.json(&["session", "list", "--json"]);
    assert_eq!(tree["total"], 2);
}

#[test]
fn changes_of_files_between_messages_are_shown_with_the_numbers_of_lines() {
    let site = site();
    for _ in 0..3 {
        site.fleet.run(&["trigger", "coder", "-q"]).ok();
    }
    let session = site.fleet.session_of("coder");
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        let added = "return [...document.querySelectorAll('tr.add')].map((it) => it.innerText.replace(/\\s+/g, ' ').trim())";
        browser.visit(&format!("/sessions/{session}/diff")).await;
        browser.wait_for("details.file summary", "notes.txt").await;
        let lines = |from: u32, to: u32| {
            json!(
                (from..=to)
                    .map(|turn| format!("{turn} + line {turn} <b>not bold</b>"))
                    .collect::<Vec<_>>()
            )
        };
        assert_eq!(browser.script(added).await, lines(1, 3));
        browser.visit(&format!("/sessions/{session}/diff?from=3&to=6")).await;
        assert_eq!(browser.script(added).await, lines(2, 2));
        browser.visit(&format!("/sessions/{session}/diff?from=x")).await;
        browser.wait_for("main", "invalid digit").await;
    });
}

#[test]
fn without_script_a_transcript_is_read_page_by_page() {
    let site = site();
    site.fleet.run(&["trigger", "counter", "-q"]).ok();
    let job = id_of(&site.fleet.newest("counter"));
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.without_script(true).await;
        browser.visit(&format!("/jobs/{job}")).await;
        browser.wait_for(".entry", "Number 400.").await;
        let mut pages = 1;
        while browser
            .script("return document.querySelector('[data-older]:not([hidden])') !== null")
            .await
            == true
        {
            browser.click("[data-older]").await;
            pages += 1;
            assert!(pages < 20, "it has no beginning");
            browser
                .wait("another page".to_owned(), "return location.search !== ''".to_owned())
                .await;
        }
        browser.wait_for(".entry", "Number 1.").await;
        assert!(pages > 5, "{pages} pages");
        browser.click(".no-script a").await;
        browser.wait_for(".entry", "Number 400.").await;
    });
}

#[test]
fn a_workflow_is_run_switched_answered_retried_and_ended_by_clicks() {
    let site = site();
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.visit("/workflows").await;
        browser.click("a[href='/workflows/ship']").await;
        browser.wait_for(".graph svg a", "pack").await;
        browser.click("button[data-action$='/disable']").await;
        browser.wait_for("#head .status", "disabled").await;
        browser.click("button[data-action$='/enable']").await;
        browser.wait_for("#head .status", "enabled").await;
        browser.type_into("#input-0", "tulips").await;
        browser.click("form[data-under] .primary").await;
        browser
            .wait("a run".to_owned(), "return location.pathname.startsWith('/runs/')".to_owned())
            .await;
        browser.wait_for("#asks h3", "may-ship").await;
        browser.wait_for("#graph .node[data-s=asking]", "pack").await;
        browser.script("window.same = true").await;
        browser.type_into("#asks textarea[name=text]", "go ahead").await;
        browser.click("#asks button[value=approve]").await;
        browser.wait_for("#graph .node[data-s=failed]", "send").await;
        browser.wait_for("#head .status", "failed").await;
        assert_eq!(browser.script("return window.same").await, true, "no reload");
        browser.check("run-failed").await;
        let past = site.fleet.json(&["approvals", "list", "--all", "--json"]);
        assert_eq!(past["approvals"][0]["status"], "approved");
        site.fleet.write("ready", "");
        site.fleet.write("work/ready", "");
        browser.click("button[data-action$='/retry']").await;
        browser.wait_for("#head .status", "succeeded").await;
        browser.visit("/workflows/ship").await;
        browser.type_into("#input-0", "roses").await;
        browser.click("form[data-under] .primary").await;
        browser.wait_for("#asks h3", "may-ship").await;
        browser.click("button[data-action$='/cancel']").await;
        browser.click("#confirm button[value=yes]").await;
        browser.wait_for("#head .status", "cancelled").await;
        browser.is_quiet("workflow").await;
    });
}

#[test]
fn what_agents_ask_is_answered_in_the_inbox() {
    let site = site();
    let count = ".count:not([hidden]) > [data-count=approvals]";
    with_browser(&site, Look::DESKTOP, async |browser: &Browser| {
        browser.visit("/approvals").await;
        browser.wait_for("#waiting", "Nothing to answer").await;
        site.fleet.asks_for("asker");
        // It comes by itself, and the navigation counts it.
        browser.wait_for("#waiting h3", "Allow Bash?").await;
        browser.wait_for(count, "1").await;
        browser.click("#waiting details summary").await;
        let field = "textarea[name=input]";
        browser.script(&format!("document.querySelector('{field}').value = '{{oops'")).await;
        browser.click("#waiting button[value=approve]").await;
        browser.wait_for(".toast-wrong", "no JSON").await;
        browser.script(&format!("document.querySelector('{field}').value = '{{\"command\": \"echo changed > did\"}}'")).await;
        browser.click("#waiting button[value=approve]").await;
        browser.wait_for("#waiting", "Nothing to answer").await;
        browser.wait_for("#past", "approved").await;
        site.fleet.wait_until_said("It gave");
        assert_eq!(site.fleet.read("did"), "changed\n");

        site.fleet.asks_for("asker");
        browser.wait_for("#waiting h3", "Allow Bash?").await;
        // The answer is to the request that the page shows, and counts for no other one.
        let shown = "const form = document.querySelector('#waiting form[data-shown]'); \
                     [form.dataset.shown, window.shown] = ['0'.repeat(64), form.dataset.shown]";
        browser.script(shown).await;
        browser.click("#waiting button[value=approve]").await;
        browser.wait_for(".toast-wrong", "the request changed").await;
        // The refusal is in the browser's log, as it should be; reading the log empties it.
        browser.page.browser_log().await.unwrap();
        let shown =
            "document.querySelector('#waiting form[data-shown]').dataset.shown = window.shown";
        browser.script(shown).await;
        browser.type_into("#waiting textarea[name=text]", "not on a Sunday").await;
        browser.click("#waiting button[value=reject]").await;
        browser.wait_for("#past", "rejected").await;
        site.fleet.wait_until_said("not on a Sunday");

        let quiz = site.fleet.asks_for("quizzer");
        browser.wait_for("#waiting legend", "Which colour").await;
        // It is answered where the job is looked at, too.
        browser.visit(&format!("/jobs/{quiz}")).await;
        browser.click("#asks button[value=reply]").await;
        browser.wait_for(".toast-wrong", "without an answer").await;
        browser.click("#asks input[value='2']").await;
        browser.click("#asks button[value=reply]").await;
        browser.wait_for(".entry", "blue it is.").await;
        browser
            .wait(
                "no question".to_owned(),
                "return document.querySelector('#asks h3') === null".to_owned(),
            )
            .await;
        browser.visit("/approvals?status=rejected").await;
        browser.wait_for("#past", "rejected").await;
        browser.check("approvals-history").await;
    });
}
