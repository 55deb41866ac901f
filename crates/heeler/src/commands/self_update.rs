//! `heeler self-update --check`: asks whether there is a newer release, and names the command that
//! installs it.
//!
//! Nothing is asked unless a person runs this command, and nothing is installed: the program came from
//! a package manager or a script, which knows how to replace it. Start at [`run`].

mod install_method;

use std::cmp::Ordering;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use self::install_method::InstallMethod;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;
use crate::process_env;

/// Help footer of `self-update`.
pub(crate) const ABOUT: &str = "Examples:
  heeler self-update --check
  heeler self-update --check --json | jq .newer

Sends one request to GitHub, with no data of yours; HEELER_RELEASES_URL names another place. Installs
nothing: it prints the command to run.
Exit codes: 0 asked (whether there is a newer release or not), 1 the releases cannot be read.";

/// Address of the newest release.
const RELEASES_URL: &str = "https://api.github.com/repos/heeler/heeler/releases/latest";
/// Variable with another address.
const RELEASES_VARIABLE: &str = "HEELER_RELEASES_URL";
/// Time until the whole reply must have arrived.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest reply that is read.
const REPLY_BYTES_MAX: u64 = 1 << 20;
/// Longest version that is accepted.
const VERSION_BYTES_MAX: usize = 40;

/// Arguments of `self-update`.
#[derive(Args)]
pub(crate) struct SelfUpdateArgs {
    /// Ask whether there is a newer release
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Version of a release: `1.2.3`, or `1.2.3-rc.1` before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReleaseVersion {
    numbers: [u64; 3],
    preview: Option<String>,
}

impl ReleaseVersion {
    /// Parses a version or the tag of a release. Anything else is refused, because the text is printed
    /// as a part of a command.
    fn parse(text: &str) -> Option<ReleaseVersion> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-');
        if text.len() > VERSION_BYTES_MAX || !text.chars().all(is_plain) {
            return None;
        }
        let (numbers, preview) = match text.split_once('-') {
            Some((numbers, preview)) => (numbers, Some(preview.to_owned())),
            None => (text, None),
        };
        let numbers = numbers.split('.').map(|number| number.parse().ok());
        let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
        let preview_is_named = preview.as_deref().is_none_or(|preview| !preview.is_empty());
        let numbers = numbers.try_into().ok().filter(|_| preview_is_named)?;
        Some(ReleaseVersion { numbers, preview })
    }

    fn is_newer_than(&self, other: &ReleaseVersion) -> bool {
        match self.numbers.cmp(&other.numbers) {
            Ordering::Equal => match (&self.preview, &other.preview) {
                // A release comes after its previews.
                (None, Some(_)) => true,
                (Some(own), Some(other)) => own > other,
                (_, None) => false,
            },
            order => order == Ordering::Greater,
        }
    }
}

impl std::fmt::Display for ReleaseVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        self.preview.iter().try_for_each(|preview| write!(f, "-{preview}"))
    }
}

/// Result of the check, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseCheck {
    version: String,
    latest: String,
    newer: bool,
    /// How this program was installed.
    installed: &'static str,
    /// Command that installs the newest release.
    upgrade: String,
}

/// Runs `self-update`.
pub(crate) fn run(args: &SelfUpdateArgs) -> CommandResult {
    if !args.check {
        let message = "heeler does not replace itself";
        return Err(CommandFailure::message(FailureCode::Usage, message).hint(
            "heeler self-update --check tells whether there is a newer release, and the command for it",
        ));
    }
    let env = process_env::environment();
    let url = env.get(RELEASES_VARIABLE).filter(|url| !url.is_empty());
    let latest = fetch_latest(url.map_or(RELEASES_URL, String::as_str))?;
    let own = env!("CARGO_PKG_VERSION");
    let newer = ReleaseVersion::parse(own).is_none_or(|own| latest.is_newer_than(&own));
    let method = InstallMethod::find(&process_env::program()?, &|path| path.exists());
    let check = ReleaseCheck {
        version: own.to_owned(),
        latest: latest.to_string(),
        newer,
        installed: method.name(),
        upgrade: method.upgrade_command(&latest),
    };
    if args.json {
        return Ok(output::print_json(&check)?);
    }
    if !newer {
        return Ok(output::print_line(format!("heeler {own} is the newest release"))?);
    }
    output::print_line(format!("heeler {latest} is available; this is {own}"))?;
    output::print_command("upgrade", Some(&check.upgrade))?;
    Ok(output::print_note("then: heeler restart (jobs continue)")?)
}

/// Asks for the newest release.
fn fetch_latest(url: &str) -> CommandResult<ReleaseVersion> {
    let failed = |why: String| {
        let message = format!("cannot read the newest release from {url}: {why}");
        CommandFailure::message(FailureCode::Failed, message)
    };
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .timeout_global(Some(REPLY_TIMEOUT))
            .http_status_as_error(false)
            .user_agent(concat!("heeler/", env!("CARGO_PKG_VERSION")))
            .build(),
    );
    let request = agent.get(url).header("accept", "application/json");
    let mut response = request.call().map_err(|error| {
        let why = match error {
            ureq::Error::Timeout(_) => "it did not answer in time".to_owned(),
            ureq::Error::HostNotFound => {
                "its host is not found; is this machine online?".to_owned()
            }
            error => error.to_string(),
        };
        failed(why)
    })?;
    let status = response.status().as_u16();
    if !(200..300).contains(&status) {
        return Err(failed(format!("it answered {status}")));
    }
    let body = response.body_mut().with_config().limit(REPLY_BYTES_MAX).read_to_vec();
    let body = body.map_err(|error| failed(error.to_string()))?;
    let release: serde_json::Value =
        serde_json::from_slice(&body).map_err(|_| failed("the reply is no JSON".to_owned()))?;
    let tag = release["tag_name"].as_str().unwrap_or_default();
    ReleaseVersion::parse(tag)
        .ok_or_else(|| failed("the reply names no version (`tag_name`)".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ReleaseVersion {
        ReleaseVersion::parse(text).unwrap()
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let order = ["0.1.0-rc.1", "0.1.0-rc.2", "0.1.0", "0.2.0-beta", "0.2.0", "0.10.0", "1.0.0"];
        for (at, older) in order.iter().enumerate() {
            assert!(!version(older).is_newer_than(&version(older)), "{older}");
            for newer in &order[at + 1..] {
                assert!(version(newer).is_newer_than(&version(older)), "{newer} {older}");
                assert!(!version(older).is_newer_than(&version(newer)), "{newer} {older}");
            }
        }
        assert_eq!(version("v1.2.3-rc.1").to_string(), "1.2.3-rc.1");
    }

    #[test]
    fn what_is_no_version_is_refused() {
        let long = format!("1.2.3-{}", "x".repeat(VERSION_BYTES_MAX));
        for text in
            ["", "1.2", "1.2.3.4", "1.2.x", "1.2.3; rm -rf ~", "1.2.3-", "1.2.3-\u{1b}", &long]
        {
            assert_eq!(ReleaseVersion::parse(text), None, "{text:?}");
        }
    }
}
