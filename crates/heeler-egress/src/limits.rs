//! Limits of the proxy of one run.

use std::time::Duration;

/// Limits of the proxy of one run. Tests use smaller ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressLimits {
    /// Concurrent connections; further ones wait until one ends.
    pub connections_max: usize,
    /// Size of the head of a request; a larger one is answered with 431.
    pub head_bytes_max: usize,
    /// Time for the head of a request or for the handshake of SOCKS; then the connection is closed.
    pub head_time_max: Duration,
    /// Time until a tunnel carries the first message of TLS; then it is closed.
    pub hello_time_max: Duration,
    /// Time to resolve a name and to connect; then the request is answered with 504.
    pub connect_time_max: Duration,
    /// Time without a byte in either direction after which a connection is closed. It may take twice
    /// as long.
    pub idle_time_max: Duration,
    /// Different decisions that are reported; of further ones, only their existence is.
    pub decisions_max: usize,
    /// Hosts for which a person is asked; further ones are denied.
    pub questions_max: usize,
}

impl Default for EgressLimits {
    fn default() -> EgressLimits {
        EgressLimits {
            connections_max: 256,
            head_bytes_max: 64 << 10,
            head_time_max: Duration::from_secs(30),
            hello_time_max: Duration::from_secs(30),
            connect_time_max: Duration::from_secs(20),
            // The API may think for minutes before the first byte of a reply.
            idle_time_max: Duration::from_secs(600),
            decisions_max: 200,
            questions_max: 32,
        }
    }
}
