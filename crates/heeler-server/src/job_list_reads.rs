//! Reads of job lists for the API. Start at [`JobListReads`].

use std::sync::Arc;

use heeler_model::redact::SecretRedactor;
use heeler_query::JobListSnapshot;
use heeler_query::jobs::JobListQuery;

use crate::api::etag::TaggedResponse;
use crate::batched_reads::{BatchedReads, ReadBatch};
use crate::problem::ProblemDetails;
use crate::reply_redaction::redact_json_reply;
use crate::server_state::{ServerState, SharedServerState};

/// Fewest threads that read pages at the same time.
const READERS_MIN: usize = 2;

/// Most threads that read pages at the same time: as many as database readers are kept open.
const READERS_MAX: usize = 8;

/// Most threads that count jobs at the same time.
const COUNTERS_MAX: usize = 2;

/// Initial buffer size: enough for most pages.
const PAGE_CAPACITY_BYTES: usize = 8 << 10;

/// Reply to a list request, redacted and complete.
pub(crate) type JobListReply = Result<TaggedResponse, ProblemDetails>;

/// Requests for job lists that wait for a reader.
#[derive(Debug)]
pub struct JobListReads {
    /// Lists whose total is a counter.
    pages: Arc<BatchedReads<JobListQuery, JobListReply>>,
    /// Lists whose total must be counted, which takes longer than a page. Others do not wait for it.
    counted: Arc<BatchedReads<JobListQuery, JobListReply>>,
}

impl Default for JobListReads {
    fn default() -> JobListReads {
        let cores = std::thread::available_parallelism().map_or(READERS_MIN, |it| it.get());
        JobListReads {
            pages: Arc::new(BatchedReads::new(cores.clamp(READERS_MIN, READERS_MAX))),
            counted: Arc::new(BatchedReads::new(COUNTERS_MAX)),
        }
    }
}

/// Returns the reply to a list request.
pub(crate) async fn read_job_list(app: &SharedServerState, query: JobListQuery) -> JobListReply {
    let reads = match query.since {
        Some(_) => &app.job_lists.counted,
        None => &app.job_lists.pages,
    };
    let owned = Arc::clone(app);
    let reply = reads.read(query, move |batch| read_pages(&owned, batch)).await;
    reply.unwrap_or_else(|| {
        Err(ProblemDetails::internal_error("internal error of heeler; see its log"))
    })
}

fn read_pages(app: &ServerState, mut batch: ReadBatch<JobListQuery, JobListReply>) {
    let redactor = app.reply_redactor.for_setup(&app.fleet_monitor.setup());
    let read = app.records.with_job_lists(|lists| {
        while let Some((query, waiters)) = batch.pop_front() {
            if waiters.is_abandoned() {
                continue;
            }
            waiters.reply(read_page(lists, &query, &redactor));
        }
    });
    if let Err(error) = read {
        let problem = ProblemDetails::from(error);
        for (_, waiters) in batch {
            waiters.reply(Err(problem.clone()));
        }
    }
}

/// Reads and redacts a page. Its tag is the one of what is sent.
fn read_page(
    lists: &mut JobListSnapshot<'_>,
    query: &JobListQuery,
    redactor: &SecretRedactor,
) -> JobListReply {
    let mut json = Vec::with_capacity(PAGE_CAPACITY_BYTES);
    lists.write_page(query, &mut json)?;
    Ok(TaggedResponse::redacted_json(redact_json_reply(redactor, json.into())))
}
