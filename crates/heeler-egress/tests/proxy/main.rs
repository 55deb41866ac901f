//! The proxy over its socket: attacks, limits, questions and calls of the API.

mod api;
mod attacks;
mod fixture;
mod limits;
mod questions;
mod tunnels;
