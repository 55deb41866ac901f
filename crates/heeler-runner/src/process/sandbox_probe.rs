//! Tests whether this machine can make a sandbox that holds. Start at [`probe_sandbox`].

use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use camino::Utf8Path;
use heeler_inside::{InsideArgument, InsideReport, InsideRequest, read_frame};
use heeler_model::error_chain;
use rustix::pipe::{PipeFlags, pipe_with};

use super::first_process_path::SandboxFirstProcess;
use super::sandbox::{BASE_OPTIONS, exchange, find_bubblewrap};
use super::sandbox_cure::sandbox_cure;

/// Prints a line for everything that a sandbox should prevent and does not.
const ATTACKS: &str = "\
    test -w /usr && echo 'the system can be written'
    test -w /proc/sys/kernel/hostname && echo 'settings of the kernel can be written'
    test \"$(grep -c : /proc/net/dev)\" = 1 || echo 'there is a network'
    unshare -Ur true 2> /dev/null && echo 'namespaces can be created'
    grep -q '^CapBnd:.*[1-9a-f]' /proc/self/status && echo 'there are capabilities'
    grep -q '^Seccomp:.2' /proc/self/status || echo 'system calls are not filtered'
    test \"$(ls -d /proc/[0-9]* | wc -l)\" -le 9 || echo 'other processes are visible'
    exit 0";

/// Limit on the output of a probe.
const OUTPUT_BYTES_MAX: u64 = 4 << 10;

/// Starts a sandbox with the first process that belongs to this program, and attacks it from inside. Returns the
/// version of bubblewrap, or the reason that agents with a sandbox are refused, with its cure.
pub fn probe_sandbox(program: &Utf8Path) -> Result<String, String> {
    let bubblewrap = find_bubblewrap()?;
    let failed = |error: std::io::Error| error_chain(&error);
    let (stdout, agent_output) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let input = std::fs::File::open("/dev/null").map_err(failed)?;
    let (runner, first_process) = UnixStream::pair().map_err(failed)?;
    #[expect(clippy::disallowed_methods, reason = "the probe starts a sandbox of its own")]
    let mut command = Command::new(bubblewrap);
    command.args(BASE_OPTIONS).args(["--tmpfs", "/tmp"]);
    // The program may be in a directory that is private in a sandbox.
    let first = SandboxFirstProcess::find(program);
    command.args(["--ro-bind", first.program.as_str(), first.program.as_str()]);
    command.arg("--").arg(&first.program).args(first.args).current_dir("/").env_clear();
    command.stdin(OwnedFd::from(first_process)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    drop(command);
    let request = InsideRequest {
        program: "/bin/sh".to_owned(),
        args: ["-c", ATTACKS].map(|word| InsideArgument::Text(word.to_owned())).into(),
        cwd: "/".to_owned(),
        env: vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())],
        kept: 0,
        forwards: Vec::new(),
        checks: Vec::new(),
        oom_score: None,
        allows_unix_sockets: true,
        copies: Vec::new(),
        has_own_cgroup: false,
    };
    let descriptors = [input.as_fd(), agent_output.as_fd(), agent_output.as_fd()];
    let started = exchange(&runner, &request, &descriptors);
    drop(agent_output);
    match started {
        Ok(Some(InsideReport::Started)) => {}
        Ok(Some(InsideReport::Refused { reason })) => return Err(reason),
        _ => return Err(sandbox_cure(&end_message(child))),
    }
    let ended = read_frame::<InsideReport>(&runner);
    let _status = child.wait();
    let mut found = String::new();
    let output = std::fs::File::from(stdout).take(OUTPUT_BYTES_MAX).read_to_string(&mut found);
    output.map_err(failed)?;
    match (ended, found.is_empty()) {
        (Ok(Some(InsideReport::Ended { status: 0, .. })), true) => Ok(bubblewrap.to_string()),
        (_, false) => {
            Err(format!("the sandbox does not hold: {}", found.trim().replace('\n', ", ")))
        }
        (ended, true) => Err(format!("the test of the sandbox failed: {ended:?}")),
    }
}

/// Returns what bubblewrap said before it ended.
fn end_message(mut child: Child) -> String {
    // It may hang instead.
    let _killed = child.kill();
    let mut message = String::new();
    if let Some(errors) = child.stderr.take() {
        let _read = errors.take(OUTPUT_BYTES_MAX).read_to_string(&mut message);
    }
    let _status = child.wait();
    message.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_first_process_is_no_sandbox() {
        let refused = probe_sandbox(Utf8Path::new("/bin/true")).unwrap_err();
        assert_eq!(refused, "bubblewrap ended without a message");
    }
}
