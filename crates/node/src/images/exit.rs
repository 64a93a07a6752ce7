//! The program of a container that is only to show that containers run: it exits at once, with 0.

use super::elf;

/// exit(0).
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[
    0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60 (exit)
    0x31, 0xff, // xor edi, edi
    0x0f, 0x05, // syscall
];

/// As on x86-64.
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[
    0xa8, 0x0b, 0x80, 0xd2, // mov x8, #93 (exit)
    0x00, 0x00, 0x80, 0xd2, // mov x0, #0
    0x01, 0x00, 0x00, 0xd4, // svc #0
];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CODE: &[u8] = &[];

/// The ELF program; `None` on architectures it is not written for.
pub(crate) fn program() -> Option<Vec<u8>> {
    elf::program(CODE, &[])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Another process writes it: no child of a concurrent test has it open for writing.
    #[test]
    fn the_program_exits_with_0() {
        let Some(elf) = super::program() else { return };
        assert!(super::super::archive::is_static_elf(&elf));
        let dir = tempfile::tempdir().unwrap();
        let (written, copied) = (dir.path().join("written"), dir.path().join("copied"));
        std::fs::write(&written, elf).unwrap();
        let install = Command::new("install")
            .args(["-m", "755"])
            .args([&written, &copied])
            .status();
        assert!(install.unwrap().success());
        assert_eq!(Command::new(&copied).status().unwrap().code(), Some(0));
    }
}
