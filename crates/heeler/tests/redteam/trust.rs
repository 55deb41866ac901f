//! Attacks by a cloned folder: run its commands before a person has agreed.
