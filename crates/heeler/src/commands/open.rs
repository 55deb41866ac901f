//! `heeler open`: opens the dashboard in a browser that is logged in. Start at [`run`].

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_engine::DaemonMode;
use heeler_transcript::{OsDisk, replace_file};
use serde_json::json;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;

/// Help footer of `open`.
pub(crate) const ABOUT: &str = "The link logs one browser in, once, within five minutes. It grants full access: do not share it. If no
browser can be opened, the link is printed. Processes of an agent cannot use this command.
Exit codes: 0 opened or printed, 3 no daemon serves a dashboard.";

/// Programs that open a page, in the order in which they are tried.
const BROWSER_OPENERS: [&str; 3] = ["xdg-open", "open", "wslview"];

/// Arguments of `open`.
#[derive(Args)]
pub(crate) struct OpenArgs {
    /// Print the link instead of opening it
    #[arg(long)]
    print: bool,
    /// Print the link as JSON instead of opening it
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `open`.
pub(crate) fn run(global: &GlobalArgs, args: &OpenArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let mut client = daemon::connect_required(&context)?;
    // Checked before a link is made: a link that leads nowhere would stay valid.
    let info = client.daemon_info();
    if info.url.is_none() {
        return Err(not_served(info.mode.unwrap_or(DaemonMode::Permanent)));
    }
    let url = client.create_login_link()?.url;
    if args.json {
        return Ok(output::print_json(&json!({ "url": url }))?);
    }
    if !args.print && open_browser(&context, &write_redirect_page(&context, &url)?) {
        output::print_note("opened in your browser; heeler open --print prints the link instead")?;
        return Ok(());
    }
    output::print_line(url)?;
    output::print_note("this link logs one browser in, once, within five minutes")?;
    Ok(())
}

/// Writes a page that redirects to a link, and returns its path. The link must not be a process
/// argument: every user can read those, and the link admits the first browser that uses it.
fn write_redirect_page(context: &CommandContext, url: &str) -> CommandResult<Utf8PathBuf> {
    let page = format!(
        "<!doctype html><meta charset=utf-8><title>Heeler</title>\
         <meta http-equiv=refresh content=\"0;url={url}\"><a href=\"{url}\">Continue</a>\n"
    );
    // Only the user can enter this folder. The page is replaced by the next call.
    let path = context.socket_dir()?.join("open.html");
    replace_file(&OsDisk, &path, page.as_bytes()).map_err(anyhow::Error::from)?;
    Ok(path)
}

fn not_served(mode: DaemonMode) -> CommandFailure {
    let (message, hint) = match mode {
        DaemonMode::UntilIdle => {
            ("the running daemon is temporary and serves no dashboard", "heeler start -d")
        }
        DaemonMode::Permanent => (
            "the running daemon serves no dashboard",
            "web: {enabled: true} in the config, then heeler restart",
        ),
    };
    CommandFailure::message(FailureCode::NoDaemon, message).hint(hint)
}

/// Opens a page in a browser; returns false if none was found or there is no screen.
#[expect(clippy::disallowed_methods, reason = "the user's browser")]
fn open_browser(context: &CommandContext, page: &Utf8Path) -> bool {
    let is_set = |name: &str| context.env.get(name).is_some_and(|value| !value.is_empty());
    let browser = context.env.get("BROWSER").filter(|browser| !browser.is_empty());
    // On a server without a screen, xdg-open would start a text browser in this terminal.
    let has_screen = cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    if browser.is_none() && !has_screen {
        return false;
    }
    let openers = browser.map(String::as_str).into_iter().chain(BROWSER_OPENERS);
    openers.into_iter().any(|opener| {
        let mut command = Command::new(opener);
        // Browsers write warnings to the terminal, which say nothing about the dashboard.
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
