//! A TUN device that outlives its process: while knarr restarts, packets that are routed into it are dropped and not sent in
//! the clear.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use libc::{IFF_NO_PI, IFF_TUN, TUNSETIFF, TUNSETPERSIST};

/// The kernel's `struct ifreq`, as far as TUNSETIFF reads it.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    unused: [u8; 22],
}

/// Attaches to the device of this name, made if there is none, in the network namespace of the calling thread. Reads and
/// writes are of one IP packet and do not wait.
pub fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let mut request = Request {
        name: [0; libc::IFNAMSIZ],
        flags: libc::c_short::try_from(IFF_TUN | IFF_NO_PI).map_err(io::Error::other)?,
        unused: [0; 22],
    };
    // The last byte stays the terminating zero.
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::other(format!(
            "the name {name:?} is too long for a device"
        )));
    }
    for (to, from) in request.name.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    set(&file, &mut request)?;
    Ok(file)
}

#[expect(unsafe_code, reason = "there is no safe call for a TUN device's two requests")]
fn set(file: &File, request: &mut Request) -> io::Result<()> {
    // SAFETY: the descriptor is open; the kernel reads and writes at most sizeof(struct ifreq), 40 bytes, which Request has.
    let attached = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, std::ptr::from_mut(request)) };
    if attached < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the argument is a number.
    let kept = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETPERSIST, 1 as libc::c_ulong) };
    if kept < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());
