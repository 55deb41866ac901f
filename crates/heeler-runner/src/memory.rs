//! Returns freed memory to the operating system. Start at [`release_free_memory`].

/// Returns freed memory to the operating system. Otherwise the C library keeps it: a daemon that
/// has read the config of a large fleet would hold three times the memory it uses.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "it is a function of the C library")]
pub fn release_free_memory() {
    // SAFETY: it takes the locks of the allocator, so any thread may call it at any time, and
    // memory in use is not moved.
    let _gave_some = unsafe { libc::malloc_trim(0) };
}

/// Does nothing: other C libraries return memory on their own.
#[cfg(not(target_env = "gnu"))]
pub fn release_free_memory() {}
