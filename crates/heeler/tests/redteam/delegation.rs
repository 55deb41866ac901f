//! Attacks through other agents: gain rights by starting or continuing their work.
