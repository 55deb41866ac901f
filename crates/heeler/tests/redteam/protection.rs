//! Attacks on files that decide what runs: config, hooks, workflows, instructions.
