//! Telemetry of ended runs: counts for Prometheus, and spans for an OpenTelemetry collector.
//!
//! Spans are sent as OTLP over HTTP in JSON, with the gen_ai conventions. That is one small
//! document and one POST, so it is implemented here: the OpenTelemetry crates would add a runtime,
//! an HTTP client and protobuf. A separate thread reads and sends; spans it cannot keep up with are
//! dropped and counted, and no run ever waits for it. Spans contain no prompts, output or secrets.
//! Start at [`start_telemetry`].

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use heeler_config::TelemetryConfig;
use heeler_engine::FleetMonitor;
use heeler_model::{RunId, error_chain};
use heeler_query::FleetReader;
use heeler_query::metrics::EndedRun;
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use crate::metrics::ServerMetrics;

/// Most ended runs that wait to be processed.
const ENDED_MAX: usize = 1024;

/// Most spans that wait for an unresponsive collector.
pub(crate) const SPANS_MAX: usize = 2048;

/// Spans per request.
const BATCH: usize = 128;

/// Time for which spans are collected before they are sent.
const SEND_INTERVAL: Duration = Duration::from_secs(1);

/// Wait after a collector did not accept spans.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Time limit of a request to the collector.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts to observe a daemon, in a thread that ends with it.
pub fn start_telemetry(
    outlook: &FleetMonitor,
    records: FleetReader,
    metrics: Arc<ServerMetrics>,
    version: &str,
) -> io::Result<()> {
    let (tell, ended) = sync_channel(ENDED_MAX);
    let counted = Arc::clone(&metrics);
    outlook.on_commit(move |change| {
        counted.record_commit(change.duration);
        for run in &change.ended_runs {
            // A commit must never wait for telemetry.
            if let Err(TrySendError::Full(_)) = tell.try_send(*run) {
                counted.spans_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let mut observer = TelemetryExporter {
        outlook: outlook.clone(),
        records,
        metrics,
        version: version.to_owned(),
        spans: VecDeque::new(),
        send_at: None,
    };
    std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || observer.run(&ended))?;
    Ok(())
}

struct TelemetryExporter {
    outlook: FleetMonitor,
    records: FleetReader,
    metrics: Arc<ServerMetrics>,
    version: String,
    spans: VecDeque<Json>,
    send_at: Option<Instant>,
}

impl TelemetryExporter {
    fn run(&mut self, ended: &Receiver<RunId>) {
        loop {
            let wait = self.send_at.map(|at| at.saturating_duration_since(Instant::now()));
            // Without spans nothing is due, so the time only has to be long.
            match ended.recv_timeout(wait.unwrap_or(Duration::from_secs(3600))) {
                Ok(run) => self.record_run(run),
                Err(RecvTimeoutError::Timeout) => self.send(),
                Err(RecvTimeoutError::Disconnected) => return self.send(),
            }
            // A steady flow of runs must not postpone the sending.
            if self.send_at.is_some_and(|at| at <= Instant::now()) {
                self.send();
            }
        }
    }

    fn config(&self) -> Option<TelemetryConfig> {
        self.outlook.setup().loaded.fleets.first().and_then(|fleet| fleet.telemetry.clone())
    }

    fn record_run(&mut self, run: RunId) {
        let ended = match self.records.ended_run(run) {
            Ok(Some(ended)) => ended,
            Ok(None) => return,
            Err(error) => {
                return tracing::warn!(reason = error_chain(&error), "cannot read an ended run");
            }
        };
        self.metrics.record_run(&ended);
        if self.config().is_none() {
            return;
        }
        let setup = self.outlook.setup();
        let model = setup.agent(&ended.agent).and_then(|agent| agent.model.clone());
        self.spans.extend(run_spans(&ended, model.as_deref()));
        while self.spans.len() > SPANS_MAX {
            self.spans.pop_front();
            self.metrics.spans_lost.fetch_add(1, Ordering::Relaxed);
        }
        self.send_at.get_or_insert_with(|| Instant::now() + SEND_INTERVAL);
    }

    fn send(&mut self) {
        self.send_at = None;
        // A reload has turned telemetry off.
        let Some(config) = self.config() else { return self.spans.clear() };
        while !self.spans.is_empty() {
            // The spans stay in the queue until the collector has accepted them.
            let batch: Vec<Json> = self.spans.iter().take(BATCH).cloned().collect();
            let count = batch.len();
            match post_spans(&config, &otlp_document(&config, &self.version, batch)) {
                Ok(()) => drop(self.spans.drain(..count)),
                Err(SpanExportError::Refused(code)) => {
                    // A retry would be refused again.
                    tracing::warn!(code, "the collector refused {count} spans");
                    self.metrics.spans_lost.fetch_add(count as u64, Ordering::Relaxed);
                    self.spans.drain(..count);
                }
                Err(SpanExportError::Retryable(why)) => {
                    tracing::warn!(
                        why,
                        "the collector accepts no spans now; they are sent again later"
                    );
                    self.send_at = Some(Instant::now() + RETRY_INTERVAL);
                    return;
                }
            }
        }
    }
}

/// Reason for which spans were not accepted.
enum SpanExportError {
    /// Permanent, with this status code.
    Refused(u16),
    /// Temporary.
    Retryable(String),
}

fn post_spans(config: &TelemetryConfig, document: &Json) -> Result<(), SpanExportError> {
    // A redirect would take the secret headers to another host, so none is followed.
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(SEND_TIMEOUT))
        .http_status_as_error(false)
        .max_redirects(0)
        .build()
        .into();
    let mut request =
        agent.post(traces_url(config.endpoint.expose())).content_type("application/json");
    for (name, value) in &config.headers {
        request = request.header(name, value.expose());
    }
    // The error may contain the URL with a password, so only its kind is logged.
    let later = |error: ureq::Error| SpanExportError::Retryable(describe_error(&error));
    let response = request.send(document.to_string().as_bytes()).map_err(later)?;
    match response.status().as_u16() {
        200..=299 => Ok(()),
        // For these codes the OTLP specification asks for a retry.
        code @ (429 | 502 | 503 | 504) => Err(SpanExportError::Retryable(format!("status {code}"))),
        code => Err(SpanExportError::Refused(code)),
    }
}

fn describe_error(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.kind().to_string(),
        ureq::Error::Timeout(_) => "no response".to_owned(),
        ureq::Error::HostNotFound => "unknown host".to_owned(),
        ureq::Error::ConnectionFailed => "connection failed".to_owned(),
        _ => "request failed".to_owned(),
    }
}

/// Returns the URL for traces: `/v1/traces` is appended to an endpoint without a path.
fn traces_url(endpoint: &str) -> String {
    let path = endpoint.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    match path {
        Some((_, path)) if !path.is_empty() => endpoint.to_owned(),
        _ => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
    }
}

fn otlp_document(config: &TelemetryConfig, version: &str, spans: Vec<Json>) -> Json {
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            string_attribute("service.name", &config.service_name),
            string_attribute("service.version", version),
        ] },
        "scopeSpans": [{ "scope": { "name": "heeler", "version": version }, "spans": spans }],
    }] })
}

/// Returns the spans of an ended run: its own, and the job's if the job has ended too.
fn run_spans(run: &EndedRun, model: Option<&str>) -> Vec<Json> {
    // The IDs are derived, so that runs which different daemons report are in one trace.
    let trace = hash_id(run.workflow_run.as_deref().unwrap_or(&run.job), 16);
    let job_span = hash_id(&format!("job {}", run.job), 8);
    // Kind 3 is a client span and kind 1 an internal one; status code 2 is an error.
    let mut of_run = json!({
        "traceId": trace,
        "spanId": hash_id(&format!("run {}", run.run), 8),
        "parentSpanId": job_span,
        "name": format!("invoke_agent {}", run.agent),
        "kind": 3,
        "startTimeUnixNano": unix_nanos(run.started_at),
        "endTimeUnixNano": unix_nanos(run.finished_at),
        "attributes": run_attributes(run, model),
    });
    if let Some(error) = run.error {
        of_run["status"] = json!({ "code": 2, "message": error });
    }
    let mut spans = vec![of_run];
    // The last run of a job reports the job too.
    if let Some(finished) = run.job_finished_at.filter(|_| run.status.is_final()) {
        let mut of_job = json!({
            "traceId": trace,
            "spanId": job_span,
            "name": format!("job {}", run.agent),
            "kind": 1,
            "startTimeUnixNano": unix_nanos(run.asked_at),
            "endTimeUnixNano": unix_nanos(finished),
            "attributes": job_attributes(run),
        });
        if run.status == heeler_model::JobStatus::Failed {
            of_job["status"] = json!({ "code": 2 });
        }
        spans.push(of_job);
    }
    spans
}

fn run_attributes(run: &EndedRun, model: Option<&str>) -> Vec<Json> {
    let usage = &run.usage;
    let mut all = job_attributes(run);
    all.push(string_attribute("heeler.run.id", &run.run.to_string()));
    all.push(string_attribute("gen_ai.operation.name", "invoke_agent"));
    all.push(string_attribute("gen_ai.agent.name", &run.agent));
    let used = usage.per_model.keys().next().map(String::as_str);
    if used.is_some() || model.is_some() {
        // Both names are in use; the second is newer.
        all.push(string_attribute("gen_ai.system", "anthropic"));
        all.push(string_attribute("gen_ai.provider.name", "anthropic"));
    }
    all.extend(model.or(used).map(|model| string_attribute("gen_ai.request.model", model)));
    all.extend(used.map(|model| string_attribute("gen_ai.response.model", model)));
    all.extend(
        run.session.as_ref().map(|session| string_attribute("gen_ai.conversation.id", session)),
    );
    let finish = run.stop_reason.as_ref();
    all.extend(finish.map(|reason| {
        json!({ "key": "gen_ai.response.finish_reasons",
            "value": { "arrayValue": { "values": [{ "stringValue": reason }] } } })
    }));
    for (key, count) in [
        ("gen_ai.usage.input_tokens", usage.input_tokens),
        ("gen_ai.usage.output_tokens", usage.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", usage.cache_read_input_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", usage.cache_creation_input_tokens),
        ("heeler.turns", usage.num_turns),
    ] {
        // OTLP JSON encodes 64-bit numbers as strings.
        all.extend(
            count.map(|count| json!({ "key": key, "value": { "intValue": count.to_string() } })),
        );
    }
    let cost = run.cost_usd;
    all.extend(
        cost.map(|usd| json!({ "key": "heeler.cost_usd", "value": { "doubleValue": usd } })),
    );
    all.extend(run.error.map(|error| string_attribute("error.type", error)));
    all.push(string_attribute("heeler.exit_reason", run.exit_reason));
    all
}

fn job_attributes(run: &EndedRun) -> Vec<Json> {
    let mut all = vec![
        string_attribute("heeler.job.id", &run.job),
        string_attribute("heeler.agent", &run.agent),
        string_attribute("heeler.trigger", &run.trigger),
        string_attribute("heeler.status", run.status.as_str()),
    ];
    all.extend(run.schedule.as_ref().map(|schedule| string_attribute("heeler.schedule", schedule)));
    all.extend(run.workflow_run.as_ref().map(|id| string_attribute("heeler.workflow_run.id", id)));
    all
}

fn string_attribute(key: &str, value: &str) -> Json {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn unix_nanos(at: Timestamp) -> String {
    at.as_nanosecond().to_string()
}

fn hash_id(text: &str, bytes: usize) -> String {
    Sha256::digest(text)[..bytes].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_path_is_that_of_a_collector() {
        for (endpoint, expected) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("https://x.y/otlp/v1/traces", "https://x.y/otlp/v1/traces"),
        ] {
            assert_eq!(traces_url(endpoint), expected);
        }
    }
}
