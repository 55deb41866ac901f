//! The host of a run in a fleet with several hosts, and the reason for it.
//!
//! A pure function of the agent's setting, of the place of the session's files and of the hosts on
//! record. Only the leader decides. Start at [`place_run`].

use std::fmt;
use std::num::NonZeroU32;

use heeler_config::{HostChoice, HostLabel, PlacementOrder};

/// A host that may execute a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCandidate {
    pub name: String,
    /// True if it gave a sign of life lately.
    pub is_alive: bool,
    /// True if a person drained it: it gets no new runs.
    pub is_drained: bool,
    /// True if it decides.
    pub is_leader: bool,
    pub labels: Vec<HostLabel>,
    /// Runs without a recorded result.
    pub runs: u32,
    /// Most runs at once.
    pub max_concurrent: Option<NonZeroU32>,
}

/// Place of the files of the session that a run continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPlace {
    pub host: String,
    /// True if the caller named the session, so no other one will do.
    pub is_required: bool,
}

/// The host of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPlacement {
    pub host: String,
    /// Reason, as a sentence without its subject.
    pub reason: String,
}

/// Reason why a host gets no run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostObstacle {
    Away,
    Drained,
    Full { limit: NonZeroU32 },
}

impl fmt::Display for HostObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostObstacle::Away => f.write_str("is away"),
            HostObstacle::Drained => f.write_str("is drained"),
            HostObstacle::Full { limit } => {
                write!(f, "has reached its limit of {limit} concurrent runs")
            }
        }
    }
}

impl HostCandidate {
    fn obstacle(&self) -> Option<HostObstacle> {
        if self.is_drained {
            return Some(HostObstacle::Drained);
        }
        // The host that decides lives, even if its sign of life is late.
        if !(self.is_alive || self.is_leader) {
            return Some(HostObstacle::Away);
        }
        let limit = self.max_concurrent.filter(|limit| self.runs >= limit.get())?;
        Some(HostObstacle::Full { limit })
    }

    fn has_labels(&self, labels: &[HostLabel]) -> bool {
        labels.iter().all(|label| self.labels.contains(label))
    }
}

/// Chooses the host of a run of an agent. The error is the reason for which the job waits.
///
/// `choice` is the agent's setting `host`; `None` stands for the host that leads. A session that
/// continues keeps its host, as long as that host is on record: its files are nowhere else. If the
/// host is drained or lacks a label, a session that the caller did not name is left behind.
pub fn place_run(
    agent: &str,
    choice: Option<&HostChoice>,
    session: Option<&SessionPlace>,
    hosts: &[HostCandidate],
) -> Result<RunPlacement, String> {
    match choice {
        None => on_leader(agent, hosts),
        Some(HostChoice::Named(name)) => on_named_host(agent, name.as_str(), hosts),
        Some(HostChoice::Labels { labels, order }) => {
            match on_session_host(agent, labels, session, hosts) {
                Some(placed) => placed,
                None => on_labelled_host(agent, labels, *order, hosts),
            }
        }
    }
}

fn on_leader(agent: &str, hosts: &[HostCandidate]) -> Result<RunPlacement, String> {
    let Some(leader) = hosts.iter().find(|host| host.is_leader) else {
        return Err(format!("{agent} works on the host that leads, which is not on record"));
    };
    let host = &leader.name;
    let undo = |obstacle| match obstacle {
        HostObstacle::Drained => {
            format!(
                "; heeler stop on `{host}` lets another host lead, or heeler host drain {host} --undo"
            )
        }
        _ => String::new(),
    };
    match leader.obstacle() {
        None => {
            let reason = format!("{agent} has no `host`, so the host that leads executes its jobs");
            Ok(RunPlacement { host: host.clone(), reason })
        }
        Some(it) => {
            Err(format!("{agent} works on the host that leads, and `{host}` {it}{}", undo(it)))
        }
    }
}

fn on_named_host(agent: &str, name: &str, hosts: &[HostCandidate]) -> Result<RunPlacement, String> {
    let Some(host) = hosts.iter().find(|host| host.name == name) else {
        return Err(format!(
            "{agent} works on host `{name}`, which is not on record: heeler start --host {name}"
        ));
    };
    match host.obstacle() {
        None => {
            let reason = format!("{agent} has `host: {name}`");
            Ok(RunPlacement { host: host.name.clone(), reason })
        }
        Some(obstacle) => Err(format!("{agent} works on host `{name}`, which {obstacle}")),
    }
}

/// Places a run on the host of its session. Returns `None` if the session does not decide.
fn on_session_host(
    agent: &str,
    labels: &[HostLabel],
    session: Option<&SessionPlace>,
    hosts: &[HostCandidate],
) -> Option<Result<RunPlacement, String>> {
    let session = session?;
    let host = hosts.iter().find(|host| host.name == session.host)?;
    let name = &host.name;
    let obstacle = host.obstacle();
    let is_left = obstacle == Some(HostObstacle::Drained) || !host.has_labels(labels);
    if is_left && !session.is_required {
        return None;
    }
    Some(match obstacle {
        None => {
            let reason = format!("the files of its session are on `{name}`");
            Ok(RunPlacement { host: name.clone(), reason })
        }
        Some(obstacle) => {
            let cure = match (obstacle, session.is_required) {
                (HostObstacle::Away, false) => {
                    format!(
                        "; if it does not return, heeler host remove {name} lets {agent} begin a new session"
                    )
                }
                _ => String::new(),
            };
            Err(format!("the session of {agent} is on host `{name}`, which {obstacle}{cure}"))
        }
    })
}

fn on_labelled_host(
    agent: &str,
    labels: &[HostLabel],
    order: PlacementOrder,
    hosts: &[HostCandidate],
) -> Result<RunPlacement, String> {
    let suitable: Vec<&HostCandidate> =
        hosts.iter().filter(|host| host.has_labels(labels)).collect();
    let named = match labels {
        [] => String::new(),
        labels => {
            let labels: Vec<&str> = labels.iter().map(HostLabel::as_str).collect();
            format!(" with {}", labels.join(", "))
        }
    };
    if suitable.is_empty() {
        let cure = match labels.first() {
            Some(label) => format!("heeler start --label {label}"),
            None => "heeler start --host NAME".to_owned(),
        };
        return Err(format!("{agent} works on a host{named}, and none is on record: {cure}"));
    }
    let free = suitable.iter().filter(|host| host.obstacle().is_none());
    // Names decide between equal hosts, so that the choice can be foretold.
    let best = match order {
        PlacementOrder::Spread => free.clone().min_by_key(|host| (host.runs, host.name.as_str())),
        PlacementOrder::Pack => {
            free.clone().min_by_key(|host| (std::cmp::Reverse(host.runs), host.name.as_str()))
        }
    };
    let Some(best) = best else {
        let all: Vec<String> = suitable
            .iter()
            .filter_map(|host| Some(format!("`{}` {}", host.name, host.obstacle()?)))
            .collect();
        return Err(format!("{agent} works on a host{named}, and {}", all.join(", ")));
    };
    let reason = match (free.count(), order) {
        (1, _) => format!("it is the only host{named} that has room"),
        (count, PlacementOrder::Spread) => {
            format!("it has the fewest runs ({}) of {count} hosts{named}", best.runs)
        }
        (count, PlacementOrder::Pack) => {
            format!("it has the most runs ({}) of {count} hosts{named} that have room", best.runs)
        }
    };
    Ok(RunPlacement { host: best.name.clone(), reason })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(text: &str) -> HostCandidate {
        // NAME RUNS[/LIMIT] [leader|away|drained|LABEL]…
        let mut words = text.split(' ');
        let name = words.next().unwrap().to_owned();
        let load = words.next().unwrap();
        let (runs, limit) = load.split_once('/').unwrap_or((load, "0"));
        let mut host = HostCandidate {
            name,
            is_alive: true,
            is_drained: false,
            is_leader: false,
            labels: Vec::new(),
            runs: runs.parse().unwrap(),
            max_concurrent: NonZeroU32::new(limit.parse().unwrap()),
        };
        for word in words {
            match word {
                "leader" => host.is_leader = true,
                "away" => host.is_alive = false,
                "drained" => host.is_drained = true,
                label => host.labels.push(label.parse().unwrap()),
            }
        }
        host
    }

    fn labels(text: &str, order: PlacementOrder) -> Option<HostChoice> {
        let labels = text.split_whitespace().map(|label| label.parse().unwrap()).collect();
        Some(HostChoice::Labels { labels, order })
    }

    fn named(name: &str) -> Option<HostChoice> {
        Some(HostChoice::Named(name.parse().unwrap()))
    }

    #[track_caller]
    fn check(
        choice: Option<HostChoice>,
        session: Option<(&str, bool)>,
        hosts: &[&str],
        expected: &str,
    ) {
        let hosts: Vec<HostCandidate> = hosts.iter().map(|text| host(text)).collect();
        let session =
            session.map(|(host, is_required)| SessionPlace { host: host.to_owned(), is_required });
        let placed = place_run("a", choice.as_ref(), session.as_ref(), &hosts);
        let text = match placed {
            Ok(RunPlacement { host, reason }) => format!("{host}: {reason}"),
            Err(why) => format!("waits: {why}"),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn an_agent_without_a_host_works_on_the_leader() {
        let why = "a has no `host`, so the host that leads executes its jobs";
        check(None, None, &["x 9 leader", "y 0"], &format!("x: {why}"));
        // Its sign of life may be late; it decides, so it lives.
        check(None, None, &["x 9 leader away"], &format!("x: {why}"));
        check(
            None,
            None,
            &["x 2/2 leader", "y 0"],
            "waits: a works on the host that leads, and `x` has reached its limit of 2 concurrent runs",
        );
        check(
            None,
            None,
            &["x 0 leader drained", "y 0"],
            "waits: a works on the host that leads, and `x` is drained; heeler stop on `x` lets another \
             host lead, or heeler host drain x --undo",
        );
    }

    #[test]
    fn a_named_host_is_used_or_waited_for() {
        check(named("y"), None, &["x 0 leader", "y 5"], "y: a has `host: y`");
        check(
            named("z"),
            None,
            &["x 0 leader"],
            "waits: a works on host `z`, which is not on record: heeler start --host z",
        );
        check(named("y"), None, &["y 0 away"], "waits: a works on host `y`, which is away");
        check(named("y"), None, &["y 0 drained"], "waits: a works on host `y`, which is drained");
        check(
            named("y"),
            None,
            &["y 1/1"],
            "waits: a works on host `y`, which has reached its limit of 1 concurrent runs",
        );
    }

    #[test]
    fn labels_choose_by_load() {
        let spread = |text: &str| labels(text, PlacementOrder::Spread);
        let pack = |text: &str| labels(text, PlacementOrder::Pack);
        let three = ["x 3 leader gpu", "y 1 gpu os=linux", "z 0 os=linux"];
        check(spread("gpu"), None, &three, "y: it has the fewest runs (1) of 2 hosts with gpu");
        check(
            pack("gpu"),
            None,
            &three,
            "x: it has the most runs (3) of 2 hosts with gpu that have room",
        );
        check(spread(""), None, &three, "z: it has the fewest runs (0) of 3 hosts");
        check(
            spread("gpu os=linux"),
            None,
            &three,
            "y: it is the only host with gpu, os=linux that has room",
        );
        // A full host, one that is away and one that is drained get nothing.
        let busy = ["w 1/1 gpu", "x 0 gpu away", "y 0 gpu drained", "z 7 gpu"];
        check(spread("gpu"), None, &busy, "z: it is the only host with gpu that has room");
        check(pack("gpu"), None, &busy, "z: it is the only host with gpu that has room");
        check(
            spread("gpu"),
            None,
            &busy[..3],
            "waits: a works on a host with gpu, and `w` has reached its limit of 1 concurrent runs, \
             `x` is away, `y` is drained",
        );
        check(
            spread("tpu"),
            None,
            &busy,
            "waits: a works on a host with tpu, and none is on record: heeler start --label tpu",
        );
        check(
            spread(""),
            None,
            &[],
            "waits: a works on a host, and none is on record: heeler start --host NAME",
        );
        // Names decide between equal hosts.
        check(spread(""), None, &["b 1", "a 1"], "a: it has the fewest runs (1) of 2 hosts");
    }

    #[test]
    fn a_session_keeps_its_host() {
        let any = || labels("gpu", PlacementOrder::Spread);
        let usual = |host| Some((host, false));
        let given = |host| Some((host, true));
        let two = ["x 0 gpu", "y 5 gpu"];
        check(any(), usual("y"), &two, "y: the files of its session are on `y`");
        // A host that is not on record any more has no files.
        check(any(), usual("gone"), &two, "x: it has the fewest runs (0) of 2 hosts with gpu");
        check(
            any(),
            usual("y"),
            &["x 0 gpu", "y 5/5 gpu"],
            "waits: the session of a is on host `y`, which has reached its limit of 5 concurrent runs",
        );
        check(
            any(),
            usual("y"),
            &["x 0 gpu", "y 5 gpu away"],
            "waits: the session of a is on host `y`, which is away; if it does not return, heeler host \
             remove y lets a begin a new session",
        );
        let drained = ["x 0 gpu", "y 5 gpu drained"];
        check(any(), usual("y"), &drained, "x: it is the only host with gpu that has room");
        check(
            any(),
            given("y"),
            &drained,
            "waits: the session of a is on host `y`, which is drained",
        );
        let unlabelled = ["x 0 gpu", "y 5"];
        check(any(), usual("y"), &unlabelled, "x: it is the only host with gpu that has room");
        check(any(), given("y"), &unlabelled, "y: the files of its session are on `y`");
    }

    fn any_host() -> impl Strategy<Value = HostCandidate> {
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        (0..4_u8, flags, 0..4_u32, 0..4_u32).prop_map(|(name, flags, runs, limit)| {
            let (is_alive, is_drained, is_leader, has_label) = flags;
            let label = || "gpu".parse().unwrap();
            HostCandidate {
                name: format!("h{name}"),
                is_alive,
                is_drained,
                is_leader,
                labels: has_label.then(label).into_iter().collect(),
                runs,
                max_concurrent: NonZeroU32::new(limit),
            }
        })
    }

    proptest! {
        #[test]
        fn no_run_is_placed_on_a_host_that_is_drained_full_or_away(
            hosts in prop::collection::vec(any_host(), 0..5),
            session in prop::option::of((0..5_u8, any::<bool>())),
            choice in 0..5_u8,
        ) {
            let mut hosts = hosts;
            hosts.sort_by(|one, other| one.name.cmp(&other.name));
            hosts.dedup_by(|one, other| one.name == other.name);
            let choice = match choice {
                0 => None,
                1 => named("h1"),
                2 => labels("", PlacementOrder::Spread),
                3 => labels("gpu", PlacementOrder::Spread),
                _ => labels("gpu", PlacementOrder::Pack),
            };
            let session = session
                .map(|(host, is_required)| SessionPlace { host: format!("h{host}"), is_required });
            if let Ok(placed) = place_run("a", choice.as_ref(), session.as_ref(), &hosts) {
                let host = hosts.iter().find(|host| host.name == placed.host).unwrap();
                prop_assert!(!host.is_drained && (host.is_alive || host.is_leader));
                prop_assert!(host.max_concurrent.is_none_or(|limit| host.runs < limit.get()));
            }
        }
    }
}
