//! What a run says and how it ends: every capture of the real agent, any bytes at all, and the
//! forms of the runner protocol.
//!
//! Expected files are updated by `UPDATE_EXPECT=1 cargo test -p heeler-model --test run`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod any_bytes;
mod captures;
mod protocol;
