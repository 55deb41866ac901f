//! The fleet: starts runs and commits what they did.
//!
//! It decides through the model, writes through the store, and talks to runners only through their
//! folders and sockets. It never parses what an agent says.
