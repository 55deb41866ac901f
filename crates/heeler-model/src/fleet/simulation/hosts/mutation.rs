//! Faults that are put into the simulated program on purpose: the simulation must find each of them.

/// A fault of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostMutation {
    /// The database commits under any term.
    NoTermCheck,
    /// A claim succeeds whatever the row says.
    ClaimWithoutCondition,
    /// The leader starts runners after its lead may have ended.
    LeaderIgnoresLease,
    /// A commit without a reply counts as executed.
    UnknownOutcomeCountsAsSaved,
    /// The result of a run is recorded whatever its term.
    ResultWithoutTerm,
    /// Runs are given up after half of their lease.
    GivenUpTooEarly,
    /// Runners do not look at their leases.
    RunnerIgnoresLease,
    /// Rows are shipped before they are synced.
    RowsNotSynced,
    /// A host forgets a run of its own whose claim was refused.
    RefusedClaimIsForgotten,
    /// A host that has lost its connection takes over a run that it is about to start.
    StartingRunIsAdopted,
}

impl HostMutation {
    pub(super) const ALL: [HostMutation; 10] = [
        HostMutation::NoTermCheck,
        HostMutation::ClaimWithoutCondition,
        HostMutation::LeaderIgnoresLease,
        HostMutation::UnknownOutcomeCountsAsSaved,
        HostMutation::ResultWithoutTerm,
        HostMutation::GivenUpTooEarly,
        HostMutation::RunnerIgnoresLease,
        HostMutation::RowsNotSynced,
        HostMutation::RefusedClaimIsForgotten,
        HostMutation::StartingRunIsAdopted,
    ];
}
