//! `heeler chat`: what a conversation needs of the program.

pub(crate) mod fleet;
mod follow;
mod workers;
