//! The proxy over its socket: attacks, limits, questions and calls of the API.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod api;
mod attacks;
mod fixture;
mod git;
mod limits;
mod questions;
mod tunnels;
