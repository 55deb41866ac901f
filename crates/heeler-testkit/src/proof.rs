//! Number of rounds of a randomized test, and the seed to repeat a failed one.
//!
//! `HEELER_PROOF_SCALE` sets the number of rounds; `HEELER_PROOF_SEED` is the seed that a
//! failure printed. Start at [`ProofSettings`].

/// Size and randomness of one test.
#[derive(Debug)]
pub struct ProofSettings {
    /// Number of rounds.
    pub rounds: u64,
    /// Seed that repeats this run. Every failure message must contain it.
    pub seed: u64,
}

impl ProofSettings {
    /// Creates settings with `rounds_in_ci` rounds unless the environment says otherwise.
    pub fn new(rounds_in_ci: u64) -> Self {
        let rounds = number("HEELER_PROOF_SCALE").unwrap_or(rounds_in_ci);
        let seed = number("HEELER_PROOF_SEED").unwrap_or_else(|| fastrand::u64(..));
        Self { rounds, seed }
    }

    /// Returns random numbers that depend only on the seed and the round.
    pub fn random(&self, round: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_add(round))
    }
}

#[expect(clippy::disallowed_methods, reason = "these two variables are how proofs are steered")]
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}
