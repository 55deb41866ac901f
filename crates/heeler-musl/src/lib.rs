//! Allocator and memory functions of the static program.
//!
//! Published programs are linked statically with musl, so that they run on every Linux system. The
//! allocator of musl has one lock for all threads, and its `memcpy` and `memcmp` are slow for short
//! texts. JSON took three times as long as with glibc; with this crate it takes less time than with
//! glibc (`docs/design/017-static-program.md`). On other targets this crate is empty.

#![cfg(target_env = "musl")]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
