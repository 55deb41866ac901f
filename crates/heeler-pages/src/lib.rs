//! The dashboard's pages: data in, HTML out.
//!
//! It reads nothing, knows no HTTP and decides nothing. Everything that an agent wrote is untrusted:
//! it is escaped, or sanitised where it is markdown.

pub mod login;
