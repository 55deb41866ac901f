//! Compose.
