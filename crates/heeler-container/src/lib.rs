//! Client of a container engine.
//!
//! Docker and Podman have the same HTTP API on a unix socket. This crate makes the few calls that a
//! run needs; it knows nothing of runs, and never sends a secret. Start at [`ContainerEngine`].

mod build_context;
mod engine_client;
mod engine_http;
mod engine_reply;
mod engine_socket;

pub use build_context::BuildContext;
pub use engine_client::{ContainerEngine, ImageBuild, with_engine};
pub use engine_http::EngineError;
pub use engine_reply::{ContainerImage, ContainerState, EngineFacts, EngineKind, ListedContainer};
pub use engine_socket::{EngineSocketError, find_engine_socket};

/// Label with the state directory to which a container belongs.
pub const STATE_LABEL: &str = "heeler.state";

/// Label with the run to which a container belongs.
pub const RUN_LABEL: &str = "heeler.run";

/// Label with the agent of a container.
pub const AGENT_LABEL: &str = "heeler.agent";

/// Label with the session to which a kept container belongs.
pub const SESSION_LABEL: &str = "heeler.session";

/// Label with the digest of the image of which a kept container was first created.
pub const IMAGE_LABEL: &str = "heeler.image";

/// Label with a hash of the settings of a kept container.
pub const SETTINGS_LABEL: &str = "heeler.settings";
