//! The socket over which the OCI runtime sends the master of a terminal (`--console-socket`).
//!
//! The runtime has sent it when it exits successfully, so it is taken then and never waited for.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::IoSliceMut;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, listen, recvmsg, socket_with,
};
use rustix::termios::{Winsize, isatty, tcsetwinsize};

use crate::bundle::Bundle;

/// The terminal's name is sent, too; it is not used.
const MAX_NAME_BYTES: usize = 4096;

/// A socket in a bundle, until [`ConsoleSocket::remove`].
#[derive(Debug)]
pub struct ConsoleSocket {
    listener: OwnedFd,
    name: String,
}

impl ConsoleSocket {
    pub fn new(bundle: &Bundle, sequence: u32) -> io::Result<Self> {
        let name = format!("tty-{sequence}.sock");
        bundle.remove(&name);
        // By way of a descriptor: a bundle's path may be longer than the address of a socket.
        let directory = openat(
            CWD,
            bundle.path(),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        listen(&listener, 1)?;
        Ok(ConsoleSocket { listener, name })
    }

    /// For the runtime, whose working directory is the bundle.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the terminal that the runtime has sent.
    pub fn receive(&self) -> io::Result<OwnedFd> {
        let connection = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut name = [0; MAX_NAME_BYTES];
        recvmsg(
            &connection,
            &mut [IoSliceMut::new(&mut name)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
                && let Some(master) = descriptors.next()
            {
                if !isatty(&master) {
                    break;
                }
                return Ok(master);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the OCI runtime sent no terminal",
        ))
    }

    pub fn remove(&self, bundle: &Bundle) {
        bundle.remove(&self.name);
    }
}

/// Sets a terminal's size.
pub fn resize(master: &OwnedFd, width: u32, height: u32) -> io::Result<()> {
    let number = |size: u32| u16::try_from(size).unwrap_or(u16::MAX);
    let size = Winsize {
        ws_row: number(height),
        ws_col: number(width),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(master, size)?)
}
