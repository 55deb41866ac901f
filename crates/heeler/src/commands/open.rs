//! `heeler open`: a browser that is logged in.

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_engine::DaemonMode;
use heeler_transcript::{OsDisk, replace_file};
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "The link logs one browser in, once, within five minutes. Whoever has it may do everything: give it to
nobody. Where no browser can be opened it is printed. An agent's own processes are refused.
Exit codes: 0 opened or printed, 3 no daemon serves a dashboard.";

/// What opens a page, in the order in which they are tried.
const BROWSER_OPENERS: [&str; 3] = ["xdg-open", "open", "wslview"];

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
pub(crate) fn run(global: &GlobalArgs, args: &OpenArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let mut client = daemon::connect_required(&place)?;
    // One that ends when it is idle may do so between the two looks.
    let file =
        daemon::read_daemon_file(&place)?.filter(|file| file.pid == client.daemon_info().pid);
    let file = file.ok_or_else(|| daemon::no_daemon(&place))?;
    if file.url.is_none() {
        return Err(not_served(file.mode));
    }
    let url = client.create_login_link()?.url;
    if args.json {
        return Ok(output::print_json(&json!({ "url": url }))?);
    }
    if !args.print && open_browser(&place, &write_redirect_page(&place, &url)?) {
        output::print_note("opened in your browser; heeler open --print prints the link instead")?;
        return Ok(());
    }
    output::print_line(url)?;
    output::print_note("it logs one browser in, once, within five minutes")?;
    Ok(())
}

/// Writes a page that leads to a link and returns where it is: arguments of a process are everybody's to
/// read, and the link lets in whoever comes first.
fn write_redirect_page(place: &CommandContext, url: &str) -> CommandResult<Utf8PathBuf> {
    let page = format!(
        "<!doctype html><meta charset=utf-8><title>Heeler</title>\
         <meta http-equiv=refresh content=\"0;url={url}\"><a href=\"{url}\">Go on</a>\n"
    );
    let path = place.socket_dir()?.join("open.html");
    replace_file(&OsDisk, &path, page.as_bytes()).map_err(anyhow::Error::from)?;
    Ok(path)
}

fn not_served(mode: DaemonMode) -> CommandFailure {
    let (message, hint) = match mode {
        DaemonMode::UntilIdle => {
            ("the daemon that runs ends when it is idle and serves no dashboard", "heeler start -d")
        }
        DaemonMode::Permanent => (
            "the daemon that runs serves no dashboard",
            "web: {enabled: true} in the config, then heeler restart",
        ),
    };
    CommandFailure::message(FailureCode::NoDaemon, message).hint(hint)
}

/// Has a browser open a page; says whether one was found. Nobody can be asked to open one where
/// there is no screen.
#[expect(clippy::disallowed_methods, reason = "the user's browser")]
fn open_browser(place: &CommandContext, page: &Utf8Path) -> bool {
    let is_set = |name: &str| place.env.get(name).is_some_and(|value| !value.is_empty());
    let browser = place.env.get("BROWSER").filter(|browser| !browser.is_empty());
    let has_screen = cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    if browser.is_none() && !has_screen {
        return false;
    }
    let openers = browser.map(String::as_str).into_iter().chain(BROWSER_OPENERS);
    openers.into_iter().any(|opener| {
        let mut command = Command::new(opener);
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
