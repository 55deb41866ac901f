//! Doctor check of the machines of a fleet with several hosts: signs of life, versions and clocks.
//!
//! Start at [`examine`].

use std::time::Duration;

use super::finding::{Finding, FindingArea, FindingSeverity};
use crate::db::StateDatabase;
use crate::file_archive::ArchiveFault;
use crate::host_records::{HostRecord, HostState};

/// Difference of a host's clock from that of the database at which it is reported.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(5);

/// Reports hosts that are away, have another version, or a wrong clock, and files that the archive lacks or
/// that a host could not take from it.
pub(crate) fn examine(db: &StateDatabase, findings: &mut Vec<Finding>) {
    match db.hosts() {
        Ok(hosts) => findings.extend(check(&hosts)),
        Err(error) => findings.push(
            Finding::new(FindingSeverity::Warning, FindingArea::Hosts, "hosts", error.to_string())
                .with_remedy("check the server"),
        ),
    }
    match db.archive_faults(None) {
        Ok(faults) => findings.extend(faults.iter().map(archive_fault)),
        Err(error) => findings.push(
            Finding::new(
                FindingSeverity::Warning,
                FindingArea::Hosts,
                "archive",
                error.to_string(),
            )
            .with_remedy("check the server"),
        ),
    }
}

fn archive_fault(fault: &ArchiveFault) -> Finding {
    let ArchiveFault { host, path, reason } = fault;
    let problem = format!("the file archive has a fault at {path}: {reason}");
    let remedy = "hosts that have the file keep it; copy it from one of them to hosts that lack it";
    Finding::new(FindingSeverity::Warning, FindingArea::Hosts, host, problem).with_remedy(remedy)
}

fn check(hosts: &[HostRecord]) -> Vec<Finding> {
    // A host that was stopped is as it should be.
    let started: Vec<&HostRecord> =
        hosts.iter().filter(|host| host.state != HostState::Stopped).collect();
    let alive = || started.iter().copied().filter(|host| host.is_alive);
    let reference = alive().find(|host| host.is_leader).or_else(|| alive().next());
    let mut findings = Vec::new();
    for host in started.iter().copied().filter(|host| !host.is_alive) {
        findings.push(silence(host));
    }
    for host in alive() {
        findings.extend(reference.and_then(|reference| version(host, reference)));
        findings.extend(clock(host));
    }
    findings
}

fn warning(host: &HostRecord, problem: String) -> Finding {
    Finding::new(FindingSeverity::Warning, FindingArea::Hosts, &host.name, problem)
}

fn silence(host: &HostRecord) -> Finding {
    let (name, seconds) = (&host.name, host.seen_seconds_ago);
    let left = match host.runs {
        0 => "removes it".to_owned(),
        runs => format!("ends its runs ({runs})"),
    };
    let verb = if host.runs == 0 { "remove" } else { "lost" };
    let remedy = format!(
        "start its daemon, or check its network; if the machine does not return, \
         `heeler host {verb} {name}` {left}"
    );
    warning(host, format!("has given no sign of life for {seconds} s")).with_remedy(remedy)
}

fn version(host: &HostRecord, reference: &HostRecord) -> Option<Finding> {
    let (own, other) = (&host.version, &reference.version);
    (own != other).then(|| {
        warning(host, format!("has version {own}, and host `{}` has {other}", reference.name))
            .with_remedy("install the same release on all hosts, and restart them")
    })
}

fn clock(host: &HostRecord) -> Option<Finding> {
    let ahead = host.clock_ahead_ms?;
    let difference = Duration::from_millis(ahead.unsigned_abs());
    (difference > CLOCK_DIFFERENCE_MAX).then(|| {
        let side = if ahead > 0 { "ahead of" } else { "behind" };
        let seconds = difference.as_secs_f64();
        let problem = format!("has a clock that is {seconds:.1} s {side} that of the database");
        let remedy = "synchronize its clock (NTP); schedules use the clock of the host that leads";
        warning(host, problem).with_remedy(remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> HostRecord {
        HostRecord {
            name: name.to_owned(),
            state: HostState::Standby,
            is_alive: true,
            is_leader: false,
            seen_seconds_ago: 0,
            machine: "build-1".to_owned(),
            version: "1.0.0".to_owned(),
            pid: 1,
            url: None,
            started_at: String::new(),
            runs: 0,
            labels: Vec::new(),
            max_concurrent: None,
            drained_by: None,
            clock_ahead_ms: Some(0),
            lease_left_ms: None,
        }
    }

    fn texts(hosts: &[HostRecord]) -> Vec<String> {
        let text = |finding: Finding| {
            assert_eq!(finding.severity, FindingSeverity::Warning);
            format!("{} {}: {}", finding.subject, finding.problem, finding.remedy)
        };
        check(hosts).into_iter().map(text).collect()
    }

    #[test]
    fn sound_hosts_and_stopped_ones_are_not_reported() {
        let limit = i64::try_from(CLOCK_DIFFERENCE_MAX.as_millis()).unwrap();
        let stopped = HostRecord {
            state: HostState::Stopped,
            is_alive: false,
            version: "0.9.0".to_owned(),
            clock_ahead_ms: Some(limit * 10),
            ..host("gamma")
        };
        let late = HostRecord { clock_ahead_ms: Some(-limit), ..host("beta") };
        let unknown = HostRecord { clock_ahead_ms: None, ..host("delta") };
        assert_eq!(texts(&[host("alpha"), late, stopped, unknown]), Vec::<String>::new());
        assert_eq!(texts(&[]), Vec::<String>::new());
    }

    #[test]
    fn hosts_that_are_away_differ_or_have_a_wrong_clock_are_reported_with_the_cure() {
        let leader = HostRecord { is_leader: true, version: "1.1.0".to_owned(), ..host("beta") };
        let away = HostRecord { is_alive: false, seen_seconds_ago: 77, runs: 2, ..host("gamma") };
        let unused = HostRecord { runs: 0, name: "delta".to_owned(), ..away.clone() };
        let wrong = HostRecord { clock_ahead_ms: Some(-5_001), ..leader.clone() };
        let found = texts(&[host("alpha"), leader, away, unused]);
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].starts_with("gamma has given no sign of life for 77 s"), "{found:#?}");
        assert!(found[0].contains("`heeler host lost gamma` ends its runs (2)"), "{found:#?}");
        assert!(found[1].contains("`heeler host remove delta` removes it"), "{found:#?}");
        assert!(found[2].contains("has version 1.0.0, and host `beta` has 1.1.0"), "{found:#?}");
        let found = texts(&[wrong]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains("5.0 s behind that of the database"), "{found:#?}");
        assert!(found[0].contains("synchronize its clock"), "{found:#?}");
    }
}
