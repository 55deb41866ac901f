//! Client of a container engine.
//!
//! Docker and Podman have the same HTTP API on a unix socket. This crate makes the few calls that a
//! run needs; it knows nothing of runs, and never sends a secret. Start at [`ContainerEngine`].

mod engine_client;
mod engine_http;
mod engine_reply;
mod engine_socket;

pub use engine_client::ContainerEngine;
pub use engine_http::EngineError;
pub use engine_reply::{ContainerImage, ContainerState, EngineFacts, EngineKind, ListedContainer};
pub use engine_socket::{EngineSocketError, find_engine_socket};

/// Label with the state directory to which a container belongs.
pub const STATE_LABEL: &str = "heeler.state";

/// Label with the run to which a container belongs.
pub const RUN_LABEL: &str = "heeler.run";

/// Label with the agent of a container.
pub const AGENT_LABEL: &str = "heeler.agent";
