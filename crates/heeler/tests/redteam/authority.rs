//! Attacks on identity: act as a person, as the daemon or as another run.
