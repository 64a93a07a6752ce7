//! The check of a sandbox's program: a static program of this architecture, in a regular file.
//!
//! A program that names an interpreter (`#!`, or a dynamic loader) could name a file of procfs, and so the shim's own
//! program, which the kernel would then run or map in the container. Such a program is left to runc, which protects itself.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat2};
use rustix::io::Errno;

use super::{At, Error};

const PROC_SUPER_MAGIC: i64 = 0x9fa0;
/// An ELF header, and an entry of the program header table, of 64 bits.
const HEADER: usize = 64;
const ENTRY: usize = 56;
const MAX_ENTRIES: u16 = 64;
const PT_INTERP: u32 = 3;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: u16 = 62;

/// Checks the program at a path of this process's root.
pub fn check(path: &str) -> Result<(), Error> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let root = openat2(
        CWD,
        "/",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::empty(),
    )
    .at("the root")?;
    let file = openat2(&root, path, flags, Mode::empty(), resolve).at("the program")?;
    let is_file = FileType::from_raw_mode(fstat(&file).at("the program")?.st_mode) == FileType::RegularFile;
    let is_proc = fstatfs(&file).at("the program")?.f_type == PROC_SUPER_MAGIC;
    if is_file && !is_proc && is_static(&File::from(file)) {
        Ok(())
    } else {
        Err(Errno::NOEXEC).at("the program is not a static one of this architecture")
    }
}

fn is_static(file: &File) -> bool {
    let mut header = [0; HEADER];
    if file.read_exact_at(&mut header, 0).is_err() {
        return false;
    }
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let mut offset = [0; 8];
    offset.copy_from_slice(&header[32..40]);
    let offset = u64::from_le_bytes(offset);
    // ELF, 64 bits, little-endian.
    let known = header.starts_with(b"\x7fELF\x02\x01")
        && short(18) == MACHINE
        && usize::from(short(54)) == ENTRY
        && (1..=MAX_ENTRIES).contains(&short(56));
    let mut table = vec![0; ENTRY * usize::from(short(56))];
    known
        && file.read_exact_at(&mut table, offset).is_ok()
        && table
            .chunks_exact(ENTRY)
            .all(|entry| !entry.starts_with(&PT_INTERP.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_and_a_dynamic_program_are_not_static_ones() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, format!("#!/proc/self/exe\n{}", " ".repeat(100))).unwrap();
        assert!(!is_static(&File::open(script).unwrap()));
        let own = std::env::current_exe().unwrap();
        assert!(!is_static(&File::open(own).unwrap()), "the test is dynamic");
        if let Ok(busybox) = File::open("/usr/bin/busybox").or_else(|_| File::open("/bin/busybox")) {
            assert!(is_static(&busybox), "busybox is static");
        }
    }

    #[test]
    fn a_link_of_procfs_is_no_program() {
        assert!(check("/proc/self/exe").is_err());
        assert!(check("/dev/null").is_err());
    }
}
