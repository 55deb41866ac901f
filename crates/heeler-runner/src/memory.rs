//! Memory that was freed and is still ours.

/// Gives memory that was freed back to the system. The C library keeps it otherwise: a daemon that has
/// read the config of a large fleet would hold three times what it uses.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "it is a function of the C library")]
pub fn release_free_memory() {
    // SAFETY: it takes the locks of the allocator, so any thread may call it at any time, and what
    // is in use stays where it is.
    let _gave_some = unsafe { libc::malloc_trim(0) };
}

/// Other C libraries do so by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn release_free_memory() {}
