//! Sockets inside a pod's network namespace, without a process there.
//!
//! A socket belongs for ever to the namespace it was created in. So a separate thread enters the namespace, creates the
//! socket and exits; the connection is then driven by the usual workers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// Connects to a port on the loopback address as seen from inside `netns`, or from the host when there is none:
/// 127.0.0.1 first, then ::1.
pub async fn connect_loopback(netns: Option<&Path>, port: u16) -> io::Result<TcpStream> {
    let first = connect(netns, (Ipv4Addr::LOCALHOST, port).into()).await;
    let Err(first_error) = first else { return first };
    // The first answer is the one users know.
    connect(netns, (Ipv6Addr::LOCALHOST, port).into())
        .await
        .map_err(|_| first_error)
}

/// Connects to `address` from inside `netns`.
pub async fn connect(netns: Option<&Path>, address: SocketAddr) -> io::Result<TcpStream> {
    let Some(netns) = netns else {
        return TcpStream::connect(address).await;
    };
    let socket = socket_in(netns.to_path_buf(), address.ip()).await?;
    socket.connect(address).await
}

async fn socket_in(netns: PathBuf, ip: IpAddr) -> io::Result<TcpSocket> {
    let (made, wait) = oneshot::channel();
    // Not one of tokio's threads: this one's namespace is changed and never changed back.
    std::thread::Builder::new().name("netns".into()).spawn(move || {
        let make = || -> io::Result<OwnedFd> {
            let namespace = crate::host_fs::open(&netns)?;
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            let family = if ip.is_ipv4() {
                AddressFamily::Inet
            } else {
                AddressFamily::Inet6
            };
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            Ok(socket(family, SockType::Stream, flags, None)?)
        };
        // An error means that the caller has stopped waiting.
        let _ = made.send(make());
    })?;
    let fd = wait
        .await
        .map_err(|_| io::Error::other("the thread that makes sockets died"))??;
    Ok(TcpSocket::from_std_stream(fd.into()))
}
