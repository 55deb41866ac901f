//! The command line of this process, as others see it. Start at [`replace_own_argument`].

use std::io;

/// Position of `arg_start` and `arg_end` in `/proc/<pid>/stat`, counted from the state.
const ARGUMENTS_START_FIELD: usize = 45;

/// Replaces an argument of this process by one of the same length. A runner is recognized by its
/// command line, so one that executes another run must show that run.
pub fn replace_own_argument(old: &str, new: &str) -> io::Result<()> {
    if old.len() != new.len() || old.contains('\0') || new.contains('\0') || old.is_empty() {
        let reason = "an argument can be replaced only by one of the same length";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let lost = || io::Error::other("the command line of this process cannot be changed");
    let (start, end) = argument_area().ok_or_else(lost)?;
    let line = std::fs::read("/proc/self/cmdline")?;
    if line.len() != end - start {
        return Err(lost());
    }
    let offset = find_argument(&line, old.as_bytes()).ok_or_else(lost)?;
    overwrite(start + offset, new.as_bytes());
    let shown = std::fs::read("/proc/self/cmdline")?;
    match find_argument(&shown, new.as_bytes()) == Some(offset) {
        true => Ok(()),
        false => Err(lost()),
    }
}

/// Returns the addresses between which the kernel stored the arguments.
fn argument_area() -> Option<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name of the program in parentheses, which may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(ARGUMENTS_START_FIELD);
    let mut next = || fields.next()?.parse().ok();
    let (start, end): (usize, usize) = (next()?, next()?);
    (start != 0 && start < end).then_some((start, end))
}

/// Returns the offset of a whole argument.
fn find_argument(line: &[u8], argument: &[u8]) -> Option<usize> {
    let mut offset = 0;
    for part in line.split(|&byte| byte == 0) {
        if part == argument {
            return Some(offset);
        }
        offset += part.len() + 1;
    }
    None
}

#[expect(unsafe_code, reason = "the kernel shows this memory as the command line of the process")]
fn overwrite(address: usize, bytes: &[u8]) {
    let target = std::ptr::with_exposed_provenance_mut::<u8>(address);
    for (offset, byte) in bytes.iter().enumerate() {
        // SAFETY: the range was checked to be an argument of this process, which the kernel placed on
        // the stack of its first thread before any code ran. It stays mapped and writable, no Rust
        // object lives in it, and its length does not change. The C library and the standard library
        // only keep pointers to it.
        unsafe { target.add(offset).write_volatile(*byte) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_found_as_a_whole_only() {
        let line = b"/bin/heeler\0runner\0/s/runs/1\0";
        assert_eq!(find_argument(line, b"/s/runs/1"), Some(19));
        assert_eq!(find_argument(line, b"/s/runs"), None);
        assert_eq!(find_argument(line, b"runner"), Some(12));
    }

    #[test]
    fn an_own_argument_is_replaced_as_others_see_it() {
        let name = std::env::args().next().unwrap();
        let other: String = std::iter::repeat_n('x', name.len()).collect();
        replace_own_argument(&name, &other).unwrap();
        let shown = || std::fs::read("/proc/self/cmdline").unwrap();
        assert!(shown().starts_with(other.as_bytes()));
        assert!(replace_own_argument(&name, &other).is_err(), "it is gone");
        replace_own_argument(&other, &name).unwrap();
        assert!(shown().starts_with(name.as_bytes()));
        assert!(replace_own_argument(&name, "short").is_err());
        assert!(replace_own_argument("", "").is_err());
    }
}
