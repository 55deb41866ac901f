//! `heeler open`: a browser that is logged in.

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_engine::DaemonMode;
use heeler_transcript::{OsDisk, replace_file};
use serde_json::json;

use crate::cli::Global;
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::output;
use crate::place::Place;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "The link logs one browser in, once, within five minutes. Whoever has it may do everything: give it to
nobody. Where no browser can be opened it is printed. An agent's own processes are refused.
Exit codes: 0 opened or printed, 3 no daemon serves a dashboard.";

/// What opens a page, in the order in which they are tried.
const OPENERS: [&str; 3] = ["xdg-open", "open", "wslview"];

/// Arguments of `open`.
#[derive(Args)]
pub(crate) struct OpenArgs {
    /// Print the link, and open nothing
    #[arg(long)]
    print: bool,
    /// Print the link as JSON, and open nothing
    #[arg(long)]
    pub(crate) json: bool,
}

/// Opens the dashboard.
pub(crate) fn run(global: &Global, args: &OpenArgs) -> Outcome {
    let place = Place::find(global)?;
    let mut client = daemon::require(&place)?;
    // One that ends when it is idle may do so between the two looks.
    let file = daemon::file(&place)?.filter(|file| file.pid == client.hello().pid);
    let file = file.ok_or_else(|| daemon::no_daemon(&place))?;
    if file.url.is_none() {
        return Err(not_served(file.mode));
    }
    let url = client.link()?.url;
    if args.json {
        return Ok(output::json(&json!({ "url": url }))?);
    }
    if !args.print && opens(&place, &way(&place, &url)?) {
        output::note("opened in your browser; heeler open --print prints the link instead")?;
        return Ok(());
    }
    output::line(url)?;
    output::note("it logs one browser in, once, within five minutes")?;
    Ok(())
}

/// Writes a page that leads to a link and returns where it is: arguments of a process are everybody's to
/// read, and the link lets in whoever comes first.
fn way(place: &Place, url: &str) -> Outcome<Utf8PathBuf> {
    let page = format!(
        "<!doctype html><meta charset=utf-8><title>Heeler</title>\
         <meta http-equiv=refresh content=\"0;url={url}\"><a href=\"{url}\">Go on</a>\n"
    );
    let path = place.sockets()?.join("open.html");
    replace_file(&OsDisk, &path, page.as_bytes()).map_err(anyhow::Error::from)?;
    Ok(path)
}

fn not_served(mode: DaemonMode) -> Failure {
    let (message, hint) = match mode {
        DaemonMode::UntilIdle => {
            ("the daemon that runs ends when it is idle and serves no dashboard", "heeler start -d")
        }
        DaemonMode::Permanent => (
            "the daemon that runs serves no dashboard",
            "web: {enabled: true} in the config, then heeler restart",
        ),
    };
    Failure::message(Code::NoDaemon, message).hint(hint)
}

/// Has a browser open a page; says whether one was found. Nobody can be asked to open one where
/// there is no screen.
#[expect(clippy::disallowed_methods, reason = "the user's browser")]
fn opens(place: &Place, page: &Utf8Path) -> bool {
    let is_set = |name: &str| place.env.get(name).is_some_and(|value| !value.is_empty());
    let browser = place.env.get("BROWSER").filter(|browser| !browser.is_empty());
    let has_screen = cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    if browser.is_none() && !has_screen {
        return false;
    }
    let openers = browser.map(String::as_str).into_iter().chain(OPENERS);
    openers.into_iter().any(|opener| {
        let mut command = Command::new(opener);
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
