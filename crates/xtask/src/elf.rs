//! Facts about an ELF program, read from its bytes.

/// Returns true if the kernel would load an interpreter for a 64-bit little-endian ELF program, which
/// is the dynamic linker. Returns `None` for other files.
pub(crate) fn needs_interpreter(elf: &[u8]) -> Option<bool> {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = elf.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut kinds = (0..count).map(|entry| number(usize::try_from(table + entry * size).ok()?, 4));
    kinds.try_fold(false, |found, kind| Some(found || kind? == u64::from(INTERPRETER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_an_interpreter_is_recognized() {
        let dynamic = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(needs_interpreter(&dynamic), Some(true));
        // The same program, with the kind of that entry of its table of segments changed.
        let mut changed = dynamic.clone();
        let table = usize::from(u16::from_le_bytes([dynamic[32], dynamic[33]]));
        for entry in 0..usize::from(dynamic[56]) {
            let at = table + entry * usize::from(dynamic[54]);
            if changed[at] == 3 {
                changed[at] = 4;
            }
        }
        assert_eq!(needs_interpreter(&changed), Some(false));
        assert_eq!(needs_interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(needs_interpreter(&dynamic[..60]), None);
    }
}
