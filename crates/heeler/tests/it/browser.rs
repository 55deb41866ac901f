//! A real browser at the dashboard of a real daemon.
//!
//! A [`Site`] is a fleet with a daemon that serves it, a [`Browser`] is Debian's chromium behind its
//! driver. [`Browser::validate`] is what every page must stand: nothing goes wrong in it, it does
//! nothing that the policy forbids, axe finds no fault, and nothing in it can act. What it looks like
//! is kept under `target/screenshots`. Start at [`Site::start`].

use std::cell::Cell;
use std::io::{BufRead as _, BufReader};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heeler_testkit::WAIT_MAX;
use serde_json::{Value as Json, json};
use thirtyfour::prelude::*;

use crate::fleet::Fleet;
use crate::trigger::rest_after_look;

/// How often it is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(15);

/// A page that is not there: a browser complains of it by itself.
pub(crate) const NOWHERE: &str = "/nowhere";

/// What finds elements that could act, wherever they come from: all of ours are in files of ours.
const INERT: &str = r#"
const found = [];
const own = (url) => new URL(url, location.href).origin === location.origin;
for (const element of document.querySelectorAll('*')) {
  const name = element.localName;
  if (name === 'script' && !(element.getAttribute('src') ?? '').startsWith('/assets/')) found.push(element.outerHTML);
  if (['iframe', 'object', 'embed', 'base', 'foreignobject', 'style'].includes(name)) found.push(element.outerHTML);
  if (name === 'img' && !own(element.src)) found.push(element.outerHTML);
  for (const { name: key, value } of element.attributes) {
    if (key.startsWith('on') || key === 'style') found.push(`${key}=${value}`);
    if (/^\s*(javascript|data|vbscript):/i.test(value) && /^(href|src|action|formaction|xlink:href)$/.test(key)) found.push(`${key}=${value}`);
  }
  if (name === 'a' && !own(element.href) && !/noopener/.test(element.rel)) found.push(element.outerHTML);
}
if (window.acted) found.push('a script of an agent was run');
return found;
"#;

/// Finds controls that are too small for a finger. Links in a sentence are as high as its line.
const SMALL_CONTROLS: &str = r#"
const found = [];
for (const element of document.querySelectorAll('button, .button, select, input, textarea, summary, nav a')) {
  const box = (element.closest('label') ?? element).getBoundingClientRect();
  const shown = element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && box.width > 1;
  if (shown && box.height < 43.5) found.push(`${box.height} px: ${element.outerHTML.slice(0, 200)}`);
}
return found;
"#;

/// A fleet whose daemon serves the dashboard.
pub(crate) struct Site {
    pub(crate) fleet: Fleet,
    daemon: Child,
}

impl Drop for Site {
    fn drop(&mut self) {
        // The jobs end with it.
        drop(self.fleet.command(&["stop", "--force"]).output());
        drop(self.daemon.kill());
        drop(self.daemon.wait());
    }
}

impl Site {
    /// Starts the daemon of a fleet whose config listens on a free port.
    pub(crate) fn start(fleet: Fleet) -> Site {
        let daemon = start_daemon(&fleet, &[]);
        Site { fleet, daemon }
    }

    /// The same for a host of a fleet with several.
    pub(crate) fn start_host(fleet: Fleet, name: &str) -> Site {
        let daemon = start_daemon(&fleet, &["--host", name]);
        Site { fleet, daemon }
    }

    /// Kills the daemon, so that it can do nothing about it.
    pub(crate) fn crash(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    /// Starts another daemon for the fleet.
    pub(crate) fn start_again(&mut self) {
        self.daemon = start_daemon(&self.fleet, &[]);
    }

    /// Returns a link that logs in, once.
    pub(crate) fn link(&self) -> String {
        let said = self.fleet.run(&["open", "--print"]).ok();
        let link = said.split_whitespace().find(|word| word.starts_with("http://"));
        link.unwrap_or_else(|| panic!("no link in {said}")).to_owned()
    }

    /// Returns the address of the dashboard.
    pub(crate) fn url(&self) -> String {
        let link = self.link();
        link.split("/login").next().unwrap().to_owned()
    }
}

fn start_daemon(fleet: &Fleet, args: &[&str]) -> Child {
    let log = std::fs::File::create(fleet.file("daemon.log")).unwrap();
    let mut command = fleet.command(&["start"]);
    command.args(args);
    command.env_remove("HEELER_NO_WEB");
    let daemon = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let begun = Instant::now();
        if fleet.run(&["open", "--print"]).code == Some(0) {
            break;
        }
        assert!(Instant::now() < deadline, "{}", fleet.read("daemon.log"));
        rest_after_look(begun.elapsed());
    }
    daemon
}

/// How a page is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) dark: bool,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Look {
    pub(crate) const DESKTOP: Look = Look { dark: false, width: 1440, height: 900 };
    pub(crate) const PHONE: Look = Look { dark: false, width: 360, height: 800 };
    pub(crate) const TABLET: Look = Look { dark: false, width: 768, height: 1024 };
    pub(crate) const WALL: Look = Look { dark: false, width: 3840, height: 2160 };

    pub(crate) fn dark(self) -> Look {
        Look { dark: true, ..self }
    }

    fn name(self) -> String {
        format!("{}-{}", self.width, if self.dark { "dark" } else { "light" })
    }
}

/// Chromium, driven.
pub(crate) struct Browser {
    /// Never dropped: that would wait for a reply that nobody is left to hear, if a test fails.
    pub(crate) page: ManuallyDrop<WebDriver>,
    url: String,
    look: Cell<Look>,
    /// What pages are checked with; it is put into each of them.
    axe: String,
    _driver: Driver,
    profile: tempfile::TempDir,
}

/// The driver's process, which ends with the test, however that ends.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs what a test does with a browser that is logged in, and ends both.
pub(crate) fn with_browser(site: &Site, look: Look, test: impl AsyncFnOnce(&Browser)) {
    let opened = Opened::new(site, look);
    opened.run(test);
    opened.close();
}

/// A browser that is logged in, for tests that do something to the site between two looks.
pub(crate) struct Opened {
    runtime: tokio::runtime::Runtime,
    browser: Browser,
}

impl Opened {
    pub(crate) fn new(site: &Site, look: Look) -> Opened {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let browser = runtime.block_on(async {
            let browser = Browser::start(site, look).await;
            browser.page.goto(site.link()).await.unwrap();
            browser.wait_for("main h1", "Overview").await;
            browser
        });
        Opened { runtime, browser }
    }

    /// Runs a part of a test.
    pub(crate) fn run(&self, part: impl AsyncFnOnce(&Browser)) {
        self.runtime.block_on(part(&self.browser));
    }

    /// Ends the browser. One that a failing test leaves ends with its driver.
    pub(crate) fn close(self) {
        drop(self.runtime.block_on(WebDriver::clone(&self.browser.page).quit()));
    }
}

impl Browser {
    async fn start(site: &Site, look: Look) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let (driver, port) = start_driver(&profile);
        let mut wanted = DesiredCapabilities::chrome();
        for arg in [
            "--headless=new",
            // A container's root may have no sandbox; the only pages are ours.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
            "--force-device-scale-factor=1",
        ] {
            wanted.add_arg(arg).unwrap();
        }
        wanted.add_arg(&format!("--user-data-dir={}", profile.path().display())).unwrap();
        wanted.set("goog:loggingPrefs", json!({ "browser": "ALL" })).unwrap();
        let page = WebDriver::new(format!("http://127.0.0.1:{port}"), wanted).await.unwrap();
        page.set_script_timeout(WAIT_MAX).await.unwrap();
        let axe = heeler_testkit::axe();
        let page = ManuallyDrop::new(page);
        let (url, seen) = (site.url(), Cell::new(look));
        let browser = Browser { page, url, look: seen, axe, _driver: driver, profile };
        browser.look(look).await;
        browser
    }

    /// Sends a command of the DevTools protocol to the page.
    pub(crate) async fn devtools(&self, command: &str, params: Json) {
        self.page.cdp().send_raw(command, params).await.unwrap();
    }

    /// Returns the port at which the browser itself speaks the DevTools protocol.
    pub(crate) fn devtools_port(&self) -> u16 {
        let file = self.profile.path().join("DevToolsActivePort");
        std::fs::read_to_string(file).unwrap().lines().next().unwrap().parse().unwrap()
    }

    /// Looks at pages in another way from now on.
    pub(crate) async fn look(&self, look: Look) {
        self.look.set(look);
        let Look { dark, width, height } = look;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Lets pages run no script from now on; those of tests still do.
    pub(crate) async fn without_script(&self, is_so: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({ "value": is_so })).await;
    }

    /// Goes to a page.
    pub(crate) async fn visit(&self, path: &str) {
        self.page.goto(format!("{}{path}", self.url)).await.unwrap();
    }

    /// Runs a script and returns what it returns.
    pub(crate) async fn script(&self, script: &str) -> Json {
        self.page.execute(script, Vec::new()).await.unwrap().json().clone()
    }

    /// Waits for an element whose text contains something.
    #[track_caller]
    pub(crate) fn wait_for<'b>(
        &'b self,
        selector: &'b str,
        text: &'b str,
    ) -> impl Future<Output = ()> + 'b {
        let script = format!(
            "return [...document.querySelectorAll({})].some((it) => it.textContent.includes({}))",
            json!(selector),
            json!(text)
        );
        self.wait(format!("`{text}` in `{selector}`"), script)
    }

    /// Waits until a script returns true.
    pub(crate) async fn wait(&self, what: String, script: String) {
        let deadline = Instant::now() + WAIT_MAX;
        while self.script(&script).await != true {
            if Instant::now() >= deadline {
                self.keep("failed").await;
                panic!("no {what} in {}", self.page.source().await.unwrap());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Clicks the first element that a selector finds. A region may be replaced, or something pass
    /// over it, between the look and the click: then it is looked for again.
    pub(crate) async fn click(&self, selector: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let clicked = match self.page.find(By::Css(selector)).await {
                Ok(found) => found.click().await,
                Err(error) => Err(error),
            };
            let Err(error) = clicked else { return };
            assert!(Instant::now() < deadline, "cannot click `{selector}`: {error}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Types into the first element that a selector finds.
    pub(crate) async fn type_into(&self, selector: &str, text: &str) {
        self.page.find(By::Css(selector)).await.unwrap().send_keys(text).await.unwrap();
    }

    /// Presses keys where the focus is.
    pub(crate) async fn press(&self, keys: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        // A live update may replace the element between the two requests.
        while let Err(error) = self.page.active_element().await.unwrap().send_keys(keys).await {
            assert!(Instant::now() < deadline, "cannot press keys: {error}");
        }
    }

    /// Checks a page on a desk, a phone, a tablet and a wall. For a desk and a phone it is loaded and
    /// checked completely, its colours also in the dark; the other two check its width.
    pub(crate) async fn check_everywhere(&self, path: &str, name: &str) {
        for look in [Look::DESKTOP, Look::PHONE] {
            self.look(look).await;
            self.visit(path).await;
            self.wait_for("h1", "").await;
            self.check(name).await;
            self.look(look.dark()).await;
            self.keep(name).await;
            self.finds_no_fault(name, &json!({ "type": "rule", "values": ["color-contrast"] }))
                .await;
        }
        self.look(Look::TABLET).await;
        self.fits(name).await;
        self.keep(name).await;
        // A picture of this size takes a second: the overview has to do.
        self.look(Look::WALL).await;
        self.fits(name).await;
        if name == "overview" {
            self.keep(name).await;
        }
    }

    /// Checks that a page fits on each screen; the phone's picture is kept.
    pub(crate) async fn fits_everywhere(&self, path: &str, name: &str) {
        self.visit(path).await;
        self.wait_for("h1", "").await;
        for look in [Look::DESKTOP, Look::WALL, Look::TABLET, Look::PHONE] {
            self.look(look).await;
            self.fits(name).await;
        }
        self.keep(name).await;
    }

    /// Checks the page that is shown, and keeps what it looks like under a name.
    pub(crate) async fn check(&self, name: &str) {
        self.keep(name).await;
        self.is_inert(name).await;
        self.fits(name).await;
        self.suits_fingers(name).await;
        self.finds_no_fault(name, &json!(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"])).await;
        self.is_quiet(name).await;
    }

    /// Checks that the page need not be scrolled sideways. The width that is wanted counts: what is
    /// too wide makes the window of a phone wider.
    async fn fits(&self, name: &str) {
        let look = self.look.get();
        let width = self.script("return document.documentElement.scrollWidth").await;
        assert!(width.as_u64().unwrap() <= u64::from(look.width), "{name}, {look:?}: {width} wide");
    }

    /// Checks that all controls of a phone are at least 44 pixels high.
    async fn suits_fingers(&self, name: &str) {
        let look = self.look.get();
        if look.width <= Look::TABLET.width {
            assert_eq!(self.script(SMALL_CONTROLS).await, json!([]), "{name}, {look:?}");
        }
    }

    /// Checks that nothing in the page can act but files of ours.
    pub(crate) async fn is_inert(&self, name: &str) {
        assert_eq!(self.script(INERT).await, json!([]), "{name}");
    }

    /// Checks that nothing was complained about: no error, no breach of the policy.
    pub(crate) async fn is_quiet(&self, name: &str) {
        let log = self.page.browser_log().await.unwrap();
        let mut bad: Vec<_> = log.iter().filter(|entry| entry.level == "SEVERE").collect();
        bad.retain(|entry| !entry.message.contains(NOWHERE));
        assert!(bad.is_empty(), "{name}: {bad:?}");
    }

    /// Checks that axe finds no fault by some of its rules.
    async fn finds_no_fault(&self, name: &str, rules: &Json) {
        if self.script("return typeof axe === 'undefined'").await == true {
            self.page.execute(self.axe.as_str(), Vec::new()).await.unwrap();
        }
        let run = r#"
            const [only, done] = arguments;
            axe.run(document, { runOnly: only, resultTypes: ['violations'] }).then(
              (found) => done(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html + ' ' + node.failureSummary).join(' | ')}`)),
              (error) => done([String(error)]));
        "#;
        let found = self.page.execute_async(run, vec![rules.clone()]).await.unwrap();
        assert_eq!(found.json(), &json!([]), "{name}, {:?}", self.look.get());
    }

    /// Keeps what the page looks like.
    pub(crate) async fn keep(&self, name: &str) {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("{name}-{}.png", self.look.get().name()));
        self.page.screenshot(&file).await.unwrap();
    }
}

/// Starts the driver on a free port and returns that.
fn start_driver(profile: &tempfile::TempDir) -> (Driver, u16) {
    let mut command = Command::new("chromedriver");
    // What it and the browser leave goes with the test.
    command.arg("--port=0").env("TMPDIR", profile.path()).env("HOME", profile.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let started = command.spawn().unwrap_or_else(|error| {
        panic!(
            "chromedriver cannot be started ({error}): run `cargo xtask setup`, which installs it"
        )
    });
    let mut driver = Driver(started);
    let mut lines = BufReader::new(driver.0.stdout.take().unwrap()).lines();
    let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
        // It names the port that it was given first.
        let said = line.strip_prefix("ChromeDriver was started successfully on port ")?;
        said.trim_end_matches('.').parse().ok()
    });
    // Nobody may wait for somebody to read what it says.
    std::thread::spawn(move || lines.for_each(drop));
    (driver, port.unwrap())
}
