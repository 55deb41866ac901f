//! Metrics of the machines of a fleet with several hosts. Any of them shows all.
//!
//! Start at [`write_hosts`].

use heeler_query::hosts::HostSummary;

use super::{PrometheusText, SERIES_MAX};

/// Name, description and value of a metric. A host without a value has no sample.
type HostMetric = (&'static str, &'static str, fn(&HostSummary) -> Option<f64>);

const HOST_METRICS: [HostMetric; 8] = [
    ("heeler_host_up", "1 if a host gives signs of life.", |host| Some(number(host.is_alive))),
    ("heeler_host_leader", "1 if a host leads the fleet.", |host| Some(number(host.is_leader))),
    ("heeler_host_drained", "1 if a host gets no new runs.", |host| {
        Some(number(host.drained_by.is_some()))
    }),
    ("heeler_host_runs", "Runs of a host without a recorded result.", |host| {
        Some(host.runs as f64)
    }),
    ("heeler_host_runs_max", "Most runs of a host at once, if it has a limit.", |host| {
        host.max_concurrent.map(f64::from)
    }),
    ("heeler_host_seen_age_seconds", "Time since the last sign of life of a host.", |host| {
        Some(host.seen_seconds_ago as f64)
    }),
    ("heeler_host_lease_seconds", "Time until the lead ends unless it is renewed.", |host| {
        host.lease_left_ms.map(|ms| ms as f64 / 1000.0)
    }),
    ("heeler_host_clock_ahead_seconds", "Clock of a host minus that of the database.", |host| {
        host.clock_ahead_ms.map(|ms| ms as f64 / 1000.0)
    }),
];

/// Writes the metrics of all hosts; nothing for a fleet with one machine.
pub(super) fn write_hosts(page: &mut PrometheusText, hosts: &[HostSummary]) {
    let hosts = &hosts[..hosts.len().min(SERIES_MAX)];
    if hosts.is_empty() {
        return;
    }
    for (name, about, value) in HOST_METRICS {
        page.write_header(name, "gauge", about);
        for host in hosts {
            if let Some(value) = value(host) {
                page.write_sample(name, &[("host", &host.name)], value);
            }
        }
    }
    let name = "heeler_host_info";
    page.write_header(name, "gauge", "1, with the version and machine of a host.");
    for host in hosts {
        let labels = [
            ("host", host.name.as_str()),
            ("version", host.version.as_str()),
            ("machine", host.machine.as_str()),
        ];
        page.write_sample(name, &labels, 1.0);
    }
}

fn number(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostSummary {
        HostSummary {
            name: "alpha".to_owned(),
            role: "leader".to_owned(),
            is_alive: true,
            is_leader: true,
            seen_seconds_ago: 2,
            runs: 3,
            max_concurrent: Some(4),
            labels: Vec::new(),
            drained_by: None,
            clock_ahead_ms: Some(-1_500),
            lease_left_ms: Some(2_250),
            clock: String::new(),
            machine: "build \"1\"".to_owned(),
            version: "1.0.0".to_owned(),
            started_at: String::new(),
            url: None,
        }
    }

    #[test]
    fn each_host_has_a_sample_of_what_is_known_of_it() {
        let other = HostSummary {
            name: "beta".to_owned(),
            is_alive: false,
            is_leader: false,
            max_concurrent: None,
            drained_by: Some("me".to_owned()),
            clock_ahead_ms: None,
            lease_left_ms: None,
            ..host()
        };
        let mut page = PrometheusText::default();
        write_hosts(&mut page, &[host(), other]);
        let samples: Vec<&str> = page.0.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "heeler_host_up{host=\"alpha\"} 1",
            "heeler_host_up{host=\"beta\"} 0",
            "heeler_host_leader{host=\"alpha\"} 1",
            "heeler_host_leader{host=\"beta\"} 0",
            "heeler_host_drained{host=\"alpha\"} 0",
            "heeler_host_drained{host=\"beta\"} 1",
            "heeler_host_runs{host=\"alpha\"} 3",
            "heeler_host_runs{host=\"beta\"} 3",
            "heeler_host_runs_max{host=\"alpha\"} 4",
            "heeler_host_seen_age_seconds{host=\"alpha\"} 2",
            "heeler_host_seen_age_seconds{host=\"beta\"} 2",
            "heeler_host_lease_seconds{host=\"alpha\"} 2.25",
            "heeler_host_clock_ahead_seconds{host=\"alpha\"} -1.5",
            "heeler_host_info{host=\"alpha\",version=\"1.0.0\",machine=\"build \\\"1\\\"\"} 1",
            "heeler_host_info{host=\"beta\",version=\"1.0.0\",machine=\"build \\\"1\\\"\"} 1",
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn one_machine_has_no_metrics_of_hosts_and_many_are_limited() {
        let mut page = PrometheusText::default();
        write_hosts(&mut page, &[]);
        assert_eq!(page.0, "");
        write_hosts(&mut page, &vec![host(); SERIES_MAX + 5]);
        let up = page.0.lines().filter(|line| line.starts_with("heeler_host_up{")).count();
        assert_eq!(up, SERIES_MAX);
    }
}
