//! Attacks of hostile agents on the fleet, one test each. They prove P12: an agent has only the
//! authority that its config gives it.
//!
//! Each file has the attacks on one part of the wall. An attack is a script that a real agent
//! process runs. The test passes if the attack achieves nothing.

mod approvals;
mod authority;
mod delegation;
mod protection;
mod results;
mod secrets;
mod trust;
mod web;
