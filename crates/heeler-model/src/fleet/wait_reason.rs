//! Reasons for which a job waits or is refused, as values and as texts for people.

use std::fmt;

use jiff::Timestamp;

use crate::budget_ledger::BudgetDecision;
use crate::{JobId, iso_millis};

/// Reason why a job cannot start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    AgentDisabled(String),
    AgentLimit {
        agent: String,
        limit: u32,
    },
    /// `fleet` is empty for the root fleet.
    FleetLimit {
        fleet: String,
        limit: u32,
    },
    /// The credential of its agent is parked.
    Parked {
        reason: String,
        until: Timestamp,
    },
    Budget {
        agent: String,
        decision: BudgetDecision,
    },
    /// Another run uses the session.
    SessionBusy(String),
    /// The host of its agent is away, or starts no runs.
    HostAway(String),
    /// A person stopped the fleet.
    Held,
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitReason::AgentDisabled(agent) => write!(f, "{agent} is disabled"),
            WaitReason::AgentLimit { agent, limit } => {
                write!(f, "{agent} has reached its limit of {limit} concurrent jobs")
            }
            WaitReason::FleetLimit { fleet, limit } => {
                let fleet = if fleet.is_empty() { "the fleet" } else { fleet };
                write!(f, "{fleet} has reached its limit of {limit} concurrent jobs")
            }
            WaitReason::Parked { reason, until } => {
                write!(f, "{reason} (until {})", iso_millis(*until))
            }
            WaitReason::Budget { agent, decision } => f.write_str(&budget_text(agent, *decision)),
            WaitReason::SessionBusy(text) | WaitReason::HostAway(text) => f.write_str(text),
            WaitReason::Held => f.write_str("the fleet was stopped; `heeler start` resumes it"),
        }
    }
}

/// Reason why a new job is not created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetRefusal {
    AgentDisabled(String),
    /// The agent is not in the config.
    AgentGone(String),
    BudgetSpent {
        agent: String,
        decision: BudgetDecision,
    },
    /// The job that asks may hold the reservation that this job would wait for.
    WaitsForRequester {
        reason: WaitReason,
        parent: JobId,
        requester: Option<String>,
    },
    QueueFull {
        reason: WaitReason,
        limit: usize,
    },
    /// The session cannot be used; the caller has the error.
    SessionUnusable(String),
}

impl FleetRefusal {
    /// Returns a command or setting that helps.
    pub fn hint(&self) -> Option<String> {
        match self {
            FleetRefusal::AgentDisabled(agent) => Some(format!("heeler agent enable {agent}")),
            FleetRefusal::BudgetSpent { .. } => Some(
                "heeler costs shows the spending; `budget` in the config sets the limit".to_owned(),
            ),
            FleetRefusal::WaitsForRequester { requester, .. } => {
                // The requester's name is unknown if its run has ended in the meantime.
                let requester = requester.as_deref().unwrap_or("the agent that asks");
                Some(format!(
                    "set `budget.job` of {requester} to less than the fleet's or its own `day` and \
                     `total`, so that a run of it leaves something for the jobs that it starts"
                ))
            }
            FleetRefusal::QueueFull { .. } => Some("heeler jobs --status pending".to_owned()),
            FleetRefusal::AgentGone(_) | FleetRefusal::SessionUnusable(_) => None,
        }
    }
}

impl fmt::Display for FleetRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FleetRefusal::AgentDisabled(agent) => write!(f, "{agent} is disabled"),
            FleetRefusal::AgentGone(agent) => write!(f, "there is no agent {agent} any more"),
            FleetRefusal::BudgetSpent { agent, decision } => {
                f.write_str(&budget_text(agent, *decision))
            }
            FleetRefusal::WaitsForRequester { reason, parent, .. } => write!(
                f,
                "{reason}, and {parent}, which asks for this job, may be one of them: waiting \
                 might never end"
            ),
            FleetRefusal::QueueFull { reason, limit: 0 } => {
                write!(f, "cannot start now, and queueing is off (`queue.max: 0`): {reason}")
            }
            FleetRefusal::QueueFull { reason, limit } => {
                write!(f, "{reason}, and the queue is full ({limit} jobs, `queue.max`)")
            }
            FleetRefusal::SessionUnusable(text) => f.write_str(text),
        }
    }
}

fn budget_text(agent: &str, decision: BudgetDecision) -> String {
    let text = |is_fleet: bool, limit: i64, period: &str| {
        let spender = if is_fleet { "the fleet" } else { agent };
        format!("{spender} has spent its budget of {} {period}", crate::format_micros(limit))
    };
    match decision {
        BudgetDecision::DayLimitReached { is_fleet_limit, limit } => {
            text(is_fleet_limit, limit, "for today")
        }
        BudgetDecision::TotalLimitReached { is_fleet_limit, limit } => {
            text(is_fleet_limit, limit, "in total")
        }
        BudgetDecision::AllReserved => {
            "the rest of its budget is reserved by other runs".to_owned()
        }
        // Neither is a reason to wait, so no text ever shows them.
        BudgetDecision::Unlimited | BudgetDecision::Reserve(_) => String::new(),
    }
}
