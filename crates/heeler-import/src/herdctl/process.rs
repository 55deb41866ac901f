//! Detection of a herdctl process that runs on a state directory.

use camino::Utf8Path;

use heeler_transcript::untrusted_file;

/// Size limit of a file with a process id.
const PID_BYTES_MAX: u64 = 64;

/// Returns the process id of a herdctl that runs on this state directory.
///
/// herdctl writes its id to `herdctl.pid` and takes no lock. So a stale file is common, and its
/// id may have been reused: only a process that looks like herdctl counts.
pub(crate) fn running_herdctl(state: &Utf8Path) -> Option<u32> {
    // Anything may be in this file, so only a few bytes are read.
    let text = untrusted_file::read(&state.join("herdctl.pid"), PID_BYTES_MAX).ok()?;
    let pid: u32 = str::from_utf8(&text).ok()?.trim().parse().ok()?;
    // Without `/proc` no process is found, and the directory counts as free.
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    looks_like_herdctl(&command).then_some(pid)
}

/// Recognizes herdctl: a program run by node or a similar runtime, or a process that has set
/// its own title.
fn looks_like_herdctl(command: &[u8]) -> bool {
    let text = String::from_utf8_lossy(command);
    let program = text.split('\0').next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    ["node", "herdctl", "bun", "deno"].iter().any(|known| name.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_node_and_herdctl_look_like_herdctl() {
        assert!(looks_like_herdctl(
            b"/usr/bin/node\0/usr/lib/node_modules/herdctl/bin.js\0start\0"
        ));
        assert!(looks_like_herdctl(b"node\0dist/index.js\0start\0"));
        assert!(looks_like_herdctl(b"herdctl start\0"));
        assert!(!looks_like_herdctl(b"/usr/bin/bash\0-l\0"));
        assert!(!looks_like_herdctl(b"/usr/bin/vim\0.herdctl/state.yaml\0"));
        assert!(!looks_like_herdctl(b""));
    }

    #[test]
    fn a_stale_pid_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        assert_eq!(running_herdctl(root), None);
        for content in ["99999999", "not a number", "", "-1"] {
            std::fs::write(root.join("herdctl.pid"), content).unwrap();
            assert_eq!(running_herdctl(root), None, "{content:?}");
        }
        // The test's own process is alive, and is not herdctl.
        std::fs::write(root.join("herdctl.pid"), std::process::id().to_string()).unwrap();
        assert_eq!(running_herdctl(root), None);
    }
}
