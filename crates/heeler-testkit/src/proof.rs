//! How hard a proof tries, and how to repeat one that failed.
//!
//! `HEELER_PROOF_SCALE` is how many times; `HEELER_PROOF_SEED` is what a failure printed. Start at
//! [`ProofSettings`].

/// One proof's size and randomness.
#[derive(Debug)]
pub struct ProofSettings {
    /// How many times to try.
    pub rounds: u64,
    /// What repeats this run. It belongs into every failure message.
    pub seed: u64,
}

impl ProofSettings {
    /// A proof that tries `rounds_in_ci` times unless the environment says otherwise.
    pub fn new(rounds_in_ci: u64) -> Self {
        let rounds = number("HEELER_PROOF_SCALE").unwrap_or(rounds_in_ci);
        let seed = number("HEELER_PROOF_SEED").unwrap_or_else(|| fastrand::u64(..));
        Self { rounds, seed }
    }

    /// Random numbers that depend on the seed and the round alone.
    pub fn random(&self, round: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_add(round))
    }
}

#[expect(clippy::disallowed_methods, reason = "these two variables are how proofs are steered")]
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}
