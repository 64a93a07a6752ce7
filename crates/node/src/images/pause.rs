//! The sandbox's program: has the kernel reap its children and sleeps for ever.
//!
//! It holds a pod's namespaces open, and is process 1 where a pod shares its process namespace. Two system
//! calls need no compiler and no C library, so the few instructions are written down here.

use super::elf;

/// rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8), then pause() for ever. The struct sigaction follows the code.
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[
    0xb8, 0x0d, 0x00, 0x00, 0x00, // mov eax, 13 (rt_sigaction)
    0xbf, 0x11, 0x00, 0x00, 0x00, // mov edi, 17 (SIGCHLD)
    0x48, 0x8d, 0x35, 0x13, 0x00, 0x00, 0x00, // lea rsi, [rip + 19] (the struct)
    0x31, 0xd2, // xor edx, edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00, // mov r10d, 8
    0x0f, 0x05, // syscall
    0xb8, 0x22, 0x00, 0x00, 0x00, // again: mov eax, 34 (pause)
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp again
];

/// As on x86-64; pause is ppoll(NULL, 0, NULL, NULL) here.
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[
    0xc8, 0x10, 0x80, 0xd2, // mov x8, #134 (rt_sigaction)
    0x20, 0x02, 0x80, 0xd2, // mov x0, #17 (SIGCHLD)
    0x41, 0x01, 0x00, 0x10, // adr x1, . + 40 (the struct)
    0x02, 0x00, 0x80, 0xd2, // mov x2, #0
    0x03, 0x01, 0x80, 0xd2, // mov x3, #8
    0x01, 0x00, 0x00, 0xd4, // svc #0
    0x28, 0x09, 0x80, 0xd2, // again: mov x8, #73 (ppoll)
    0x00, 0x00, 0x80, 0xd2, // mov x0, #0
    0x01, 0x00, 0x80, 0xd2, // mov x1, #0
    0x02, 0x00, 0x80, 0xd2, // mov x2, #0
    0x01, 0x00, 0x00, 0xd4, // svc #0
    0xfb, 0xff, 0xff, 0x17, // b again
];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CODE: &[u8] = &[];

/// The ELF program; `None` on architectures it is not written for.
pub fn program() -> Option<Vec<u8>> {
    // struct sigaction of the kernel: handler (1 is SIG_IGN), flags, restorer, mask.
    let action = [1u64, 0, 0, 0].map(u64::to_le_bytes).concat();
    elf::program(CODE, &action)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    /// Runs it: it must still be running after the system calls, and exit when killed.
    #[test]
    fn the_sandbox_program_runs_and_waits() {
        let Some(elf) = super::program() else { return };
        assert!(super::super::archive::is_static_elf(&elf));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pause");
        std::fs::write(&path, elf).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = std::process::Command::new(&path).spawn().unwrap();
        let stat = format!("/proc/{}/status", child.id());
        // Asleep (S) in pause() with SIGCHLD ignored (bit 16) is where it must get to.
        let reached = (0..10_000).any(|_| {
            let status = std::fs::read_to_string(&stat).unwrap_or_default();
            std::thread::yield_now();
            let ignored = status
                .lines()
                .find_map(|l| l.strip_prefix("SigIgn:"))
                .unwrap_or("0")
                .trim()
                .to_string();
            status.contains("State:\tS")
                && u64::from_str_radix(&ignored, 16).is_ok_and(|set| set >> 16 & 1 == 1)
        });
        let running = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reached && running);
    }
}
