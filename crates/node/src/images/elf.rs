//! Static ELF programs of a few instructions, which need no compiler and no C library.

/// Where a program is loaded; the traditional address of a static program.
const LOAD_AT: u64 = 0x40_0000;
/// ELF header and one program header.
const HEADERS: usize = 64 + 56;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: u16 = 0;

/// The ELF program that begins with the first of these instructions, and has the data after them; `None` without instructions,
/// which is on architectures that a program is not written for.
pub(super) fn program(code: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    if code.is_empty() {
        return None;
    }
    let bytes = HEADERS + code.len() + data.len();
    let size = bytes as u64;
    let mut elf = Vec::with_capacity(bytes);
    elf.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    elf.extend(2u16.to_le_bytes()); // ET_EXEC
    elf.extend(MACHINE.to_le_bytes());
    elf.extend(1u32.to_le_bytes()); // EV_CURRENT
    elf.extend((LOAD_AT + HEADERS as u64).to_le_bytes()); // entry
    elf.extend(64u64.to_le_bytes()); // program headers' offset
    elf.extend(0u64.to_le_bytes()); // no sections
    elf.extend(0u32.to_le_bytes()); // flags
    for half in [64u16, 56, 1, 64, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1u32.to_le_bytes()); // PT_LOAD
    elf.extend(5u32.to_le_bytes()); // readable, executable
    for word in [0, LOAD_AT, LOAD_AT, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(code);
    elf.extend(data);
    Some(elf)
}
