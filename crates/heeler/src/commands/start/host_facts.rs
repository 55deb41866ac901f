//! Facts of this daemon for the other hosts of the fleet. Start at [`host_facts`].

use clap::Args;
use heeler_config::{HostLabel, NO_LABELS};
use heeler_store::{HOST_LABELS_MAX, HostFacts, StateDir};

use super::web_listener::WebListener;
use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// Variable with the effect of `--label`, for the background process.
const LABELS: &str = "HEELER_HOST_LABELS";

/// Variable with the effect of `--max-concurrent`, for the background process.
const MAX_CONCURRENT: &str = "HEELER_HOST_MAX_CONCURRENT";

/// Options of `start` for a host of a fleet.
#[derive(Args)]
pub(super) struct HostOptionArgs {
    /// Label of this host, for agents with `host: {labels: …}`; `none` removes all; repeatable
    #[arg(long = "label", value_name = "LABEL", env = LABELS, hide_env = true, value_delimiter = ',')]
    labels: Vec<String>,
    /// Most runs at once on this host; 0 removes the limit
    #[arg(long, value_name = "NUMBER", env = MAX_CONCURRENT, hide_env = true)]
    max_concurrent: Option<u32>,
}

impl HostOptionArgs {
    /// Returns the variables that pass the options to the background process.
    pub(super) fn variables(&self) -> [(&'static str, Option<String>); 2] {
        let labels = Some(self.labels.join(",")).filter(|labels| !labels.is_empty());
        [(LABELS, labels), (MAX_CONCURRENT, self.max_concurrent.map(|limit| limit.to_string()))]
    }
}

/// Returns the facts of this daemon for other hosts; `None` for a fleet with one machine.
pub(super) fn host_facts(
    dir: &StateDir,
    web: Option<&WebListener>,
    args: &HostOptionArgs,
    version: &str,
) -> CommandResult<Option<HostFacts>> {
    let labels = parse_labels(&args.labels)?;
    if dir.host().is_none() {
        return match labels.is_some() || args.max_concurrent.is_some() {
            true => {
                let message =
                    "`--label` and `--max-concurrent` need a host of a fleet on PostgreSQL";
                let failure = CommandFailure::message(FailureCode::Usage, message);
                Err(failure.hint("heeler start --host NAME; see docs/hosts.md"))
            }
            false => Ok(None),
        };
    }
    Ok(Some(HostFacts {
        version: version.to_owned(),
        pid: std::process::id(),
        url: web.map(|web| web.reach.url()),
        labels,
        max_concurrent: args.max_concurrent,
    }))
}

/// Returns the labels of the command line; `None` if it has none.
fn parse_labels(written: &[String]) -> CommandResult<Option<Vec<HostLabel>>> {
    let refuse = |message: String| CommandFailure::message(FailureCode::Usage, message);
    match written {
        [] => return Ok(None),
        [word] if word == NO_LABELS => return Ok(Some(Vec::new())),
        _ => {}
    }
    let mut labels = Vec::new();
    for text in written {
        let label: HostLabel = text.parse().map_err(|error| refuse(format!("{error}")))?;
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    match labels.len() <= HOST_LABELS_MAX {
        true => Ok(Some(labels)),
        false => Err(refuse(format!("a host has at most {HOST_LABELS_MAX} labels"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Vec<String>>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let labels = parse_labels(&words).map_err(|failure| format!("{failure:?}"))?;
        Ok(labels.map(|labels| labels.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn labels_are_kept_replaced_or_removed() {
        assert_eq!(parse(&[]), Ok(None));
        assert_eq!(parse(&["none"]), Ok(Some(Vec::new())));
        let two = vec!["gpu".to_owned(), "os=linux".to_owned()];
        assert_eq!(parse(&["gpu", "os=linux", "gpu"]), Ok(Some(two)));
        assert!(parse(&["none", "gpu"]).unwrap_err().contains("stands for no labels"));
        assert!(parse(&["a b"]).unwrap_err().contains("is not a label"));
        let many: Vec<String> = (0..=HOST_LABELS_MAX).map(|number| format!("l{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(parse(&many).unwrap_err().contains("at most 32 labels"));
        assert!(parse(&many[1..]).is_ok());
    }
}
