//! Attacks of hostile agents on the fleet, one test each. They prove P12: an agent has only the
//! authority that its config gives it.
//!
//! Each file has the attacks on one part of the wall. An attack is a script that a real agent
//! process runs. The test passes if the attack achieves nothing.
//!
//! Attacks in the list of an `attacks!` run as two users. The others run once, as the user of the
//! tests. These are: attacks on Claude's permission system and by senders on the network, which do
//! not depend on the user; tests of single commands without an agent (`trust`); the environment of
//! the daemon, which root can always read; and `bypassPermissions` of root.
//!
//! `sandboxed` repeats the attacks that a script can make from inside a sandbox, as both users, and
//! from inside a container, as root.

/// Runs each attack twice: in a fleet of the user of the tests (root, in CI), and in one of a user
/// without privileges. An attack is a function of a fleet.
macro_rules! attacks {
    ($($attack:ident),+ $(,)?) => {
        mod as_this_user {
            $(#[test] fn $attack() { super::$attack(&crate::fleet::Fleet::new()); })+
        }
        mod as_an_unprivileged_user {
            $(#[test] fn $attack() { super::$attack(&crate::fleet::Fleet::unprivileged()); })+
        }
    };
}

mod approvals;
mod authority;
mod config_changes;
mod delegation;
mod found_configs;
mod landlock;
mod network;
mod protection;
mod results;
mod review;
mod sandbox;
mod sandboxed;
mod secrets;
mod shared_directories;
mod sockets;
mod trust;
mod web;
mod writer;
