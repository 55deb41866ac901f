//! What a run says and how it ends: every capture of the real agent, any bytes at all, and the
//! forms of the runner protocol.

mod any_bytes;
mod captures;
mod protocol;
