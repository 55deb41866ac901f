//! A hash of this crate's sources, by which tests recognize a static program that was not built
//! again. Start at [`SOURCES_HASH`].

const SOURCES: [&str; 7] = [
    include_str!("bin/heeler-inside.rs"),
    include_str!("first_process.rs"),
    include_str!("lib.rs"),
    include_str!("memory_events.rs"),
    include_str!("port_forwarder.rs"),
    include_str!("protocol.rs"),
    include_str!("syscall_filter.rs"),
];

/// Hash of the sources (FNV-1a).
pub const SOURCES_HASH: u64 = hash_sources();

const fn hash_sources() -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut file = 0;
    while file < SOURCES.len() {
        let bytes = SOURCES[file].as_bytes();
        let mut index = 0;
        while index < bytes.len() {
            hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0100_0000_01b3);
            index += 1;
        }
        file += 1;
    }
    hash
}
