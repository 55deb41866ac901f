//! `kill -9` of the runner between any two of its writes, then settling.
