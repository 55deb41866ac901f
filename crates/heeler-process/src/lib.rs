//! Processes as the kernel shows them: the mark of agents, ancestors, programs and lock holders. Also the clock
//! by which leases are measured.
//!
//! The daemon and the runners use these facts to decide who sent a request. Nothing here trusts what
//! a process says about itself. Start at [`ProcessOrigin`].

mod activity;
mod agent_descent;
mod boot_clock;
mod fleet_tag;
mod lock_holder;
mod origin;
mod own_arguments;
mod protection;
mod socket_peer;
mod user_name;

pub use activity::process_activity;
pub use agent_descent::{AgentDescent, is_own_process_marked};
pub use boot_clock::{boot_id, boot_time};
pub use fleet_tag::FleetTag;
pub use lock_holder::{flock_descriptor_holders, flock_holders};
pub use origin::{
    HEELER_PROGRAM_PREFIX, ProcessOrigin, find_runner, has_agent_process, is_own_process_of_agent,
};
pub use own_arguments::replace_own_argument;
pub use protection::hide_own_memory;
pub use socket_peer::SocketPeerProcess;
pub use user_name::login_name;
