//! The one integration binary: the real program in real folders.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests start the program, read the environment, and fail by panicking"
)]

mod agent_packages;
mod agents;
mod agents_fleet_import;
mod api;
mod api_described;
mod approvals;
mod browser;
mod browser_api;
mod browser_live;
mod browser_pages;
mod browser_work;
mod canary;
mod chat_lines;
mod chat_loops;
mod chat_out;
mod chat_proof;
mod chat_resume;
mod chat_screen;
mod chat_workers;
mod chat_workers_out;
mod claude;
mod containers;
mod daemon_ends;
mod daemon_kills;
mod daemon_lives;
mod damaged_files;
mod faithful_herdctl;
mod first_steps;
mod fleet;
mod forks;
mod github_actions;
mod github_events;
mod github_work;
mod golden;
mod herdctl_commands;
mod histories;
mod hooks;
mod hostile;
mod imported_runs;
mod job_marks;
mod kept_containers;
mod kill_storm;
mod kills;
mod limits;
mod live;
mod network_grants;
mod observing;
mod play;
mod processes;
mod pty;
mod quoting;
mod reads;
#[path = "../redteam/mod.rs"]
mod redteam;
mod rig;
mod scripted_sessions;
mod sent;
mod session_commands;
mod session_proof;
mod sessions;
mod steering;
mod telegram;
mod telegram_kills;
mod telegram_questions;
mod terminal;
mod trigger;
mod views;
mod web;
mod web_kills;
mod webhooks;
mod workers;
mod workflow_commands;
mod workflow_crons;
mod workflow_examples;
mod workflow_faults;
mod workflow_lives;
mod workflow_proof;
mod workflow_races;
mod workflow_skills;
mod workspaces;
mod writes;
