//! System calls that no process of a sandboxed agent may use.
//!
//! The filter denies what would reach other processes, the kernel's own configuration or facilities
//! that no namespace separates. Everything else stays allowed, so that compilers, browsers and
//! package managers work. Start at [`SyscallFilter::build`].

use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// Calls that fail with "operation not permitted".
const DENIED_CALLS: &[libc::c_long] = &[
    // Other processes: also those of the same user in the sandbox, such as its first process.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Facilities that bypass a filter of system calls, or that kernel exploits need.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    // Keyrings, which belong to the user and not to a namespace.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // The machine.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Flags of `clone` that create a namespace.
const NAMESPACE_FLAGS: [libc::c_int; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    CLONE_NEWTIME,
];

/// Also a bit of the exit signal in `clone`, where no signal has so high a number.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// Families of sockets that no network namespace separates, or that only widen the attack surface of
/// the kernel.
const DENIED_FAMILIES: [libc::c_int; 3] = [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET];

/// First number of the system calls of the x32 interface, which has other numbers for the same calls.
const X32_CALLS: u32 = 0x4000_0000;

/// Filters that a process applies to itself and that its descendants inherit.
pub(crate) struct SyscallFilter {
    programs: Vec<BpfProgram>,
}

impl SyscallFilter {
    pub(crate) fn build(allows_unix_sockets: bool) -> io::Result<SyscallFilter> {
        let mut rules: Vec<(i64, Vec<SeccompRule>)> =
            DENIED_CALLS.iter().map(|call| (*call, Vec::new())).collect();
        let namespaces = NAMESPACE_FLAGS.map(|flag| {
            let flag = u64::from(flag.cast_unsigned());
            argument_rule(SeccompCmpOp::MaskedEq(flag), flag)
        });
        rules.push((libc::SYS_clone, namespaces.into_iter().collect::<io::Result<_>>()?));
        let mut families = DENIED_FAMILIES.to_vec();
        if !allows_unix_sockets {
            families.push(libc::AF_UNIX);
        }
        let families = families
            .into_iter()
            .map(|family| argument_rule(SeccompCmpOp::Eq, u64::from(family.cast_unsigned())));
        rules.push((libc::SYS_socket, families.collect::<io::Result<_>>()?));
        // The flags of `clone3` are in memory, which a filter cannot read. Programs use `clone`
        // instead if the kernel seems not to have this call.
        let unknown = vec![(libc::SYS_clone3, Vec::new())];
        let programs =
            vec![compile(rules, libc::EPERM)?, compile(unknown, libc::ENOSYS)?, refuse_x32_calls()];
        Ok(SyscallFilter { programs })
    }

    /// Applies the filters to this process. For use after a fork: allocates nothing.
    pub(crate) fn apply(&self) -> io::Result<()> {
        for program in &self.programs {
            seccompiler::apply_filter(program).map_err(|error| match error {
                seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
                _ => io::ErrorKind::InvalidInput.into(),
            })?;
        }
        Ok(())
    }
}

fn argument_rule(operator: SeccompCmpOp, value: u64) -> io::Result<SeccompRule> {
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value);
    SeccompRule::new(vec![condition.map_err(io::Error::other)?]).map_err(io::Error::other)
}

fn compile(rules: Vec<(i64, Vec<SeccompRule>)>, errno: libc::c_int) -> io::Result<BpfProgram> {
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let refusal = SeccompAction::Errno(errno.cast_unsigned());
    let rules = rules.into_iter().collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch);
    filter.map_err(io::Error::other)?.try_into().map_err(io::Error::other)
}

/// Returns a filter that hides every call of the x32 interface.
fn refuse_x32_calls() -> BpfProgram {
    let instruction = |code: u32, jt, jf, k| sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    };
    vec![
        // The number of the call is the first field of the data.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32_CALLS),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}
