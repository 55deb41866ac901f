//! The real claude, run by `heeler runner` against the fake Messages API.
//!
//! Each test asserts the rows, the result and what the model was sent. Claude takes seconds to start,
//! so one run shows several things. Snapshots are written again by one process alone:
//! `UPDATE_EXPECT=1 cargo test -p heeler --test it -- --test-threads=1 claude::`.

mod chat;
mod contained;
mod daemon;
mod ends;
mod handed_over;
mod isolated;
mod kept;
mod moved;
mod outside;
mod permissions;
mod sandboxed;
mod servers;
mod sessions;
mod trigger;
mod work;
mod workers;

use camino::Utf8PathBuf;
use expect_test::Expect;
use heeler_config::RuntimeType::{self, Cli, Sdk};
use heeler_model::ExitReason;
use heeler_model::run::{ErrorClass, RunEnd as Ended};
use heeler_testkit::ModelScript;
use rustix::process::Pid;
use serde_json::{Value as Json, json};

use crate::rig::{End, Plan, Rig, wait};

const BOTH: [RuntimeType; 2] = [Sdk, Cli];

impl Rig {
    fn script(&self, runtime: RuntimeType, script: &ModelScript) -> Plan {
        self.plan(runtime, &format!("Please. {script}"))
    }

    /// A file in the agent's working directory.
    fn work(&self, name: &str) -> Utf8PathBuf {
        self.path("work").join(name)
    }

    /// A call of `Write`.
    fn write(&self, name: &str, content: &str) -> (&'static str, Json) {
        ("Write", json!({"file_path": self.work(name), "content": content}))
    }

    /// A call of `Bash` that tells who runs it and never ends by itself.
    fn endless(&self) -> (&'static str, Json) {
        let (pids, temp) = (self.work("pids"), self.work("pids.tmp"));
        let command =
            format!("echo $$ $CLAUDE_PID > {temp}; mv {temp} {pids}; exec tail -f /dev/null");
        ("Bash", json!({"command": command}))
    }

    /// The processes of [`FeedTestRig::endless`] once they run: the command and claude.
    #[track_caller]
    fn pids(&self) -> [Pid; 2] {
        let text = wait("the tool", || std::fs::read_to_string(self.work("pids")).ok());
        let mut pids = text.split_whitespace().map(|pid| pid.parse().unwrap());
        [(); 2].map(|()| Pid::from_raw(pids.next().unwrap()).unwrap())
    }
}

#[track_caller]
fn succeeded(end: &End) {
    let result = &end.result;
    assert_eq!(result.exit_reason, ExitReason::Success, "{result:#?} {:#?}", end.rows);
    assert_eq!((result.end, &result.error), (Ended::Finished, &None));
}

#[track_caller]
fn failed(end: &End, class: ErrorClass, reason: ExitReason) {
    let error = end.result.error.as_ref().map(|error| error.class);
    let seen = (end.result.end, error, end.result.exit_reason);
    assert_eq!(seen, (Ended::Finished, Some(class), reason), "{:#?} {:#?}", end.result, end.rows);
}

#[track_caller]
fn gone(pid: Pid) {
    // Of an orphan that was killed, an entry stays until whoever adopted it looks.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    assert!(stat.map_or(true, |stat| stat.contains(") Z ")), "{pid:?} still runs");
}

/// Both runtimes show the same rows.
#[track_caller]
fn alike(shown: &[String; 2], expected: &Expect) {
    assert_eq!(shown[0], shown[1]);
    expected.assert_eq(&shown[0]);
}

/// What the tools said, with whether they succeeded.
fn tool_results(end: &End) -> Vec<(String, bool)> {
    let is_tool = |row: &&Json| row["type"] == "tool_result" && row["subtype"].is_null();
    let said = |row: &Json| {
        let text = row["result"].as_str().or(row["error"].as_str()).unwrap_or_default();
        (text.to_owned(), row["success"] == true)
    };
    end.rows.iter().filter(is_tool).map(said).collect()
}

/// The conversation of the last request.
#[track_caller]
fn told(end: &End) -> String {
    end.sent.last().expect("the model was asked").history().join("\n")
}
