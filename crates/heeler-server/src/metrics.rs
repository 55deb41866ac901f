//! Prometheus metrics: counters kept while the daemon runs, and figures read on request.
//!
//! The text format is simple, so it is written here; a client library would keep a second copy of
//! data that the database counts. Start at [`ServerMetrics`].

mod endpoint;
mod host_metrics;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use heeler_engine::DaemonStatus;
use heeler_model::daemon_status::ChatLinkState;
use heeler_query::metrics::{EndedRun, FleetMetrics};
use jiff::Timestamp;

pub(crate) use endpoint::router;

/// Upper bounds of histogram buckets, in seconds.
const COMMIT_BOUNDS: [f64; 8] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];
const REQUEST_BOUNDS: [f64; 7] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];
const RUN_BOUNDS: [f64; 8] = [1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0];

/// Most series per metric; further label values become `other`.
const SERIES_MAX: usize = 2000;

/// Counters of the server.
#[derive(Debug, Default)]
pub struct ServerMetrics {
    counters: Mutex<MetricCounters>,
    /// Number of spans that were not exported.
    pub(crate) spans_lost: AtomicU64,
}

#[derive(Debug, Default)]
struct MetricCounters {
    commits: DurationHistogram,
    /// By method, route and status code.
    requests: BTreeMap<[String; 3], u64>,
    request_times: DurationHistogram,
    /// By agent and exit reason.
    runs: BTreeMap<[String; 2], u64>,
    run_times: DurationHistogram,
    /// By agent and kind of token.
    tokens: BTreeMap<[String; 2], u64>,
}

#[derive(Debug, Default)]
struct DurationHistogram {
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl DurationHistogram {
    fn add(&mut self, bounds: &[f64], took: Duration) {
        // The default value has no buckets yet.
        self.counts.resize(bounds.len(), 0);
        let seconds = took.as_secs_f64();
        if let Some(at) = bounds.iter().position(|bound| seconds <= *bound) {
            self.counts[at] += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

/// Methods that are counted separately.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

fn increment<const N: usize>(counts: &mut BTreeMap<[String; N], u64>, key: [&str; N], by: u64) {
    let key = key.map(str::to_owned);
    let is_full = counts.len() >= SERIES_MAX && !counts.contains_key(&key);
    let key = if is_full { key.map(|_| "other".to_owned()) } else { key };
    *counts.entry(key).or_default() += by;
}

impl ServerMetrics {
    fn lock(&self) -> MutexGuard<'_, MetricCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record_commit(&self, took: Duration) {
        self.lock().commits.add(&COMMIT_BOUNDS, took);
    }

    /// Counts an ended run.
    pub(crate) fn record_run(&self, run: &EndedRun) {
        let mut counters = self.lock();
        increment(&mut counters.runs, [&run.agent, run.exit_reason], 1);
        let took = run.finished_at.duration_since(run.started_at);
        // A clock that was set back makes the duration negative, which counts as zero.
        counters.run_times.add(&RUN_BOUNDS, Duration::try_from(took).unwrap_or_default());
        let usage = &run.usage;
        for (kind, tokens) in [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_input_tokens),
            ("cache_creation", usage.cache_creation_input_tokens),
        ] {
            let tokens = tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0);
            increment(&mut counters.tokens, [&run.agent, kind], tokens);
        }
    }

    /// Counts a request that was answered.
    pub(crate) fn record_request(&self, measured: &MeasuredRequest, code: StatusCode) {
        // Clients may send arbitrary methods.
        let method =
            METHODS.into_iter().find(|it| *it == measured.method.as_str()).unwrap_or("other");
        // A path without a route is chosen by the client, so it is no label.
        let route = measured.route.as_ref().map_or("other", MatchedPath::as_str);
        let took = measured.started_at.elapsed();
        let mut counters = self.lock();
        increment(&mut counters.requests, [method, route, code.as_str()], 1);
        counters.request_times.add(&REQUEST_BOUNDS, took);
    }

    fn render(
        &self,
        now: Timestamp,
        figures: &FleetMetrics,
        status: &DaemonStatus,
        streams: usize,
    ) -> String {
        let mut page = PrometheusText::default();
        page.write_header("heeler_jobs", "gauge", "Recorded jobs.");
        for ((agent, status), count) in &figures.jobs {
            page.write_sample(
                "heeler_jobs",
                &[("agent", agent), ("status", status)],
                *count as f64,
            );
        }
        page.write_gauge("heeler_jobs_running", "Running jobs.", status.running.len() as f64);
        page.write_gauge("heeler_queue_length", "Waiting jobs.", figures.waiting.len() as f64);
        let oldest = figures.waiting.iter().min().map_or(0.0, |since| seconds_since(now, *since));
        page.write_gauge(
            "heeler_queue_age_seconds",
            "Waiting time of the oldest waiting job.",
            oldest,
        );
        let due = status.schedules.iter().filter(|schedule| schedule.enabled);
        let lag = due.filter_map(|schedule| schedule.next).map(|next| seconds_since(now, next));
        let lag = lag.fold(0.0, f64::max);
        page.write_gauge("heeler_schedule_lag_seconds", "Delay of the most overdue schedule.", lag);
        page.write_gauge(
            "heeler_approvals_pending",
            "Unanswered questions.",
            figures.approvals as f64,
        );
        page.write_gauge(
            "heeler_faults",
            "Functions of the daemon that fail at present.",
            status.faults.len() as f64,
        );
        host_metrics::write_hosts(&mut page, &figures.hosts);
        write_chat_links(&mut page, now, status);
        page.write_gauge("heeler_live_streams", "Open live streams.", streams as f64);
        page.write_gauge(
            "heeler_start_time_seconds",
            "Start time of the daemon.",
            status.since.as_second() as f64,
        );
        page.write_header("heeler_cost_usd_total", "counter", "Cost of agents in US dollars.");
        for (agent, micros) in &figures.spent {
            page.write_sample("heeler_cost_usd_total", &[("agent", agent)], *micros as f64 / 1e6);
        }
        self.write_counters(&mut page);
        page.0
    }

    fn write_counters(&self, page: &mut PrometheusText) {
        let counters = self.lock();
        page.write_header(
            "heeler_runs_total",
            "counter",
            "Runs that ended since the daemon started.",
        );
        for ([agent, reason], count) in &counters.runs {
            page.write_sample(
                "heeler_runs_total",
                &[("agent", agent), ("exit_reason", reason)],
                *count as f64,
            );
        }
        page.write_header(
            "heeler_tokens_total",
            "counter",
            "Tokens of runs that ended since the daemon started.",
        );
        for ([agent, kind], count) in &counters.tokens {
            page.write_sample(
                "heeler_tokens_total",
                &[("agent", agent), ("kind", kind)],
                *count as f64,
            );
        }
        page.write_header("heeler_http_requests_total", "counter", "Answered HTTP requests.");
        for ([method, route, code], count) in &counters.requests {
            let labels = [("method", method.as_str()), ("route", route), ("code", code)];
            page.write_sample("heeler_http_requests_total", &labels, *count as f64);
        }
        let about = "Duration of runs.";
        page.write_histogram(
            "heeler_run_duration_seconds",
            about,
            &RUN_BOUNDS,
            &counters.run_times,
        );
        let about = "Duration of commits of the state to disk.";
        page.write_histogram(
            "heeler_commit_duration_seconds",
            about,
            &COMMIT_BOUNDS,
            &counters.commits,
        );
        let about = "Time until replies began.";
        page.write_histogram(
            "heeler_http_request_duration_seconds",
            about,
            &REQUEST_BOUNDS,
            &counters.request_times,
        );
        page.write_header("heeler_spans_lost_total", "counter", "Spans that were not exported.");
        page.write_sample(
            "heeler_spans_lost_total",
            &[],
            self.spans_lost.load(Ordering::Relaxed) as f64,
        );
    }
}

/// Writes the state of the connections to chat platforms.
fn write_chat_links(page: &mut PrometheusText, now: Timestamp, status: &DaemonStatus) {
    page.write_header("heeler_chat_connected", "gauge", "1 if a chat platform is connected.");
    for link in &status.chats {
        let labels = [("platform", link.platform.as_str()), ("account", &link.account)];
        let is_connected = link.state == ChatLinkState::Connected;
        page.write_sample("heeler_chat_connected", &labels, if is_connected { 1.0 } else { 0.0 });
    }
    let name = "heeler_chat_rate_limits_total";
    page.write_header(name, "counter", "Calls that a chat platform refused because of its limits.");
    for link in &status.chats {
        let labels = [("platform", link.platform.as_str()), ("account", &link.account)];
        page.write_sample(name, &labels, link.rate_limits as f64);
    }
    let name = "heeler_chat_record_seconds";
    page.write_header(name, "gauge", "Time from the receipt of the last event to its commit.");
    for link in &status.chats {
        let labels = [("platform", link.platform.as_str()), ("account", &link.account)];
        if let Some(ms) = link.record_ms {
            page.write_sample(name, &labels, ms as f64 / 1000.0);
        }
    }
    let name = "heeler_chat_last_event_age_seconds";
    page.write_header(name, "gauge", "Time since the last event of a chat platform.");
    for link in &status.chats {
        let labels = [("platform", link.platform.as_str()), ("account", &link.account)];
        if let Some(at) = link.last_event_at {
            page.write_sample(name, &labels, seconds_since(now, at));
        }
    }
}

/// Returns the seconds since a time; 0 if it is in the future.
fn seconds_since(now: Timestamp, at: Timestamp) -> f64 {
    now.duration_since(at).as_secs_f64().max(0.0)
}

/// Text in the Prometheus format.
#[derive(Default)]
struct PrometheusText(String);

impl PrometheusText {
    fn write_header(&mut self, name: &str, kind: &str, about: &str) {
        self.0.push_str(&format!("# HELP {name} {about}\n# TYPE {name} {kind}\n"));
    }

    fn write_gauge(&mut self, name: &str, about: &str, value: f64) {
        self.write_header(name, "gauge", about);
        self.write_sample(name, &[], value);
    }

    fn write_sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        let mut open = '{';
        for (label, text) in labels {
            self.0.push(open);
            self.0.push_str(&format!("{label}=\"{}\"", escape_label(text)));
            open = ',';
        }
        self.0.push_str(if labels.is_empty() { "" } else { "}" });
        self.0.push_str(&format!(" {value}\n"));
    }

    fn write_histogram(
        &mut self,
        name: &str,
        about: &str,
        bounds: &[f64],
        histogram: &DurationHistogram,
    ) {
        self.write_header(name, "histogram", about);
        let bucket = format!("{name}_bucket");
        // In this format each bucket includes the smaller ones.
        let mut below = 0;
        for (at, bound) in bounds.iter().enumerate() {
            below += histogram.counts.get(at).unwrap_or(&0);
            self.write_sample(&bucket, &[("le", &bound.to_string())], below as f64);
        }
        self.write_sample(&bucket, &[("le", "+Inf")], histogram.count as f64);
        self.write_sample(&format!("{name}_sum"), &[], histogram.sum);
        self.write_sample(&format!("{name}_count"), &[], histogram.count as f64);
    }
}

fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Method, route and start time of a request.
pub(crate) struct MeasuredRequest {
    method: Method,
    route: Option<MatchedPath>,
    started_at: tokio::time::Instant,
}

impl MeasuredRequest {
    pub(crate) fn from_request(request: &Request) -> MeasuredRequest {
        MeasuredRequest {
            method: request.method().clone(),
            route: request.extensions().get().cloned(),
            started_at: tokio::time::Instant::now(),
        }
    }
}

/// Counts a request by its route.
pub(crate) async fn count_request(
    State(metrics): State<Arc<ServerMetrics>>,
    request: Request,
    next: Next,
) -> Response {
    let measured = MeasuredRequest::from_request(&request);
    let response = next.run(request).await;
    metrics.record_request(&measured, response.status());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prometheus_reads_is_escaped_and_counts_add_up() {
        let mut page = PrometheusText::default();
        page.write_sample("a", &[("x", "\"\\\n"), ("y", "ü")], 1.5);
        assert_eq!(page.0, "a{x=\"\\\"\\\\\\n\",y=\"ü\"} 1.5\n");
        let mut histogram = DurationHistogram::default();
        for millis in [500, 1000, 1500, 9000] {
            histogram.add(&[1.0, 2.0], Duration::from_millis(millis));
        }
        let mut page = PrometheusText::default();
        page.write_histogram("h", "About.", &[1.0, 2.0], &histogram);
        let lines: Vec<&str> = page.0.lines().skip(2).collect();
        let expected = [
            "h_bucket{le=\"1\"} 2",
            "h_bucket{le=\"2\"} 3",
            "h_bucket{le=\"+Inf\"} 4",
            "h_sum 12",
            "h_count 4",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_is_no_method_is_not_kept() {
        let metrics = ServerMetrics::default();
        for method in ["GET", "X1", "X2"] {
            let request =
                Request::builder().method(method).body(axum::body::Body::empty()).unwrap();
            metrics.record_request(&MeasuredRequest::from_request(&request), StatusCode::OK);
        }
        assert_eq!(metrics.lock().requests.len(), 2);
    }

    #[test]
    fn no_more_series_are_kept_than_there_may_be() {
        let mut counts = BTreeMap::new();
        for number in 0..SERIES_MAX + 10 {
            increment(&mut counts, [&number.to_string(), "200"], 1);
        }
        assert_eq!(counts.len(), SERIES_MAX + 1);
        assert_eq!(counts[&["other".to_owned(), "other".to_owned()]], 10);
    }
}
