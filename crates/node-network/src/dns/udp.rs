//! Questions over UDP. A few threads, each with a socket of its own per address (`SO_REUSEPORT`), take many messages with
//! one system call and answer what is known at once; the rest is answered by tasks.
//!
//! Each socket is bound to one address, so answers have the source address of the question's destination.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use knarr_network::dns::message;
use knarr_network::dns::query::UDP_BYTES_MAX;
use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, MultiHeaders, Shutdown, SockFlag, SockType, SockaddrStorage, setsockopt,
    sockopt,
};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::metrics::Transport;
use super::responder::{Next, Responder};

/// Messages received with one system call.
const BATCH: usize = 32;
/// What waits in the kernel while a thread answers: some thousand questions.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Questions of one socket that wait for upstream servers; further ones are dropped and the client retries.
const WAITING_MAX: usize = 2048;

/// The threads of one address. They end when this is dropped.
pub struct Listener {
    sockets: Vec<Arc<OwnedFd>>,
    threads: Vec<JoinHandle<()>>,
    stopped: Arc<AtomicBool>,
}

fn bind(address: SocketAddr) -> nix::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket::socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    // Beyond the limit for processes without privileges.
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

impl Listener {
    /// Binds and answers, with that many threads. Called in the network namespace that is served.
    pub fn start(
        address: SocketAddr,
        threads: usize,
        responder: &Arc<Responder>,
        runtime: &Handle,
    ) -> io::Result<Self> {
        let mut listener = Listener {
            sockets: Vec::new(),
            threads: Vec::new(),
            stopped: Arc::default(),
        };
        // All of them before any thread: a question never arrives on a socket that is about to be closed for another's
        // failure.
        for _ in 0..threads.max(1) {
            listener.sockets.push(Arc::new(bind(address)?));
        }
        for socket in &listener.sockets {
            let worker = Worker {
                socket: socket.clone(),
                responder: responder.clone(),
                stopped: listener.stopped.clone(),
                runtime: runtime.clone(),
                waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            };
            let thread = std::thread::Builder::new().name("dns".to_string());
            listener.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        for socket in &self.sockets {
            // Wakes the thread; the kernel does so and then reports that the socket has no peer.
            match socket::shutdown(socket.as_raw_fd(), Shutdown::Both) {
                Ok(()) | Err(Errno::ENOTCONN) => {}
                Err(error) => error!(%error, "cannot stop listening"),
            }
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a thread of the DNS server has panicked");
            }
        }
    }
}

struct Worker {
    socket: Arc<OwnedFd>,
    responder: Arc<Responder>,
    stopped: Arc<AtomicBool>,
    runtime: Handle,
    waiting: Arc<Semaphore>,
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|a| SocketAddr::V4((*a).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| SocketAddr::V6((*a).into())))
}

/// An answer that cannot be sent is lost, as any datagram may be; the client retries.
fn send(socket: &OwnedFd, bytes: &[u8], client: &SockaddrStorage) {
    if let Err(error) = socket::sendto(socket.as_raw_fd(), bytes, client, MsgFlags::MSG_DONTWAIT) {
        debug!(%client, %error, "cannot send an answer");
    }
}

impl Worker {
    fn run(self) {
        let mut buffers = vec![[0u8; UDP_BYTES_MAX]; BATCH];
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
        let mut out = Vec::with_capacity(UDP_BYTES_MAX);
        while !self.stopped.load(Ordering::SeqCst) {
            let mut slices: Vec<[IoSliceMut<'_>; 1]> =
                buffers.iter_mut().map(|b| [IoSliceMut::new(b)]).collect();
            let received = socket::recvmmsg(
                self.socket.as_raw_fd(),
                &mut headers,
                slices.iter_mut(),
                MsgFlags::MSG_WAITFORONE,
                None,
            );
            let messages = match received {
                Ok(messages) => messages,
                Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => continue,
                // The call itself is invalid.
                Err(error @ (Errno::EBADF | Errno::EFAULT | Errno::EINVAL | Errno::ENOTSOCK)) => {
                    error!(%error, "cannot receive questions, DNS server stops");
                    return;
                }
                // An error of the socket, which the kernel reports once: ECONNABORTED after `ss --kill`, for example. The
                // kernel sends a share of the clients to this socket for as long as it is open.
                Err(error) => {
                    warn!(%error, "cannot receive questions, trying again");
                    continue;
                }
            };
            // A socket that was shut down reports empty messages without a sender.
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let begun = Instant::now();
            for message in messages {
                let Some(client) = message.address else { continue };
                if message.flags.contains(MsgFlags::MSG_TRUNC) {
                    self.responder.metrics.dropped.inc();
                    continue;
                }
                for bytes in message.iovs() {
                    out.clear();
                    self.answer(bytes, &client, begun, &mut out);
                }
            }
        }
    }

    fn answer(&self, bytes: &[u8], client: &SockaddrStorage, begun: Instant, out: &mut Vec<u8>) {
        let Some(from) = socket_address(client) else {
            return;
        };
        if !may_be_answered(from) {
            return self.responder.metrics.dropped.inc();
        }
        match self
            .responder
            .respond(bytes, from.ip().to_canonical(), Transport::Udp, out)
        {
            Next::Dropped => {}
            Next::Answered => {
                self.responder
                    .metrics
                    .count_answer(message::code_of(out), begun.elapsed());
                send(&self.socket, out, client);
            }
            Next::Elsewhere(answer) => {
                let Ok(permit) = self.waiting.clone().try_acquire_owned() else {
                    return self.responder.metrics.dropped.inc();
                };
                let (socket, responder, client) = (self.socket.clone(), self.responder.clone(), *client);
                let bytes = bytes.to_vec();
                self.runtime.spawn(async move {
                    let reply = responder.complete(&bytes, Transport::Udp, answer).await;
                    if !reply.is_empty() {
                        responder
                            .metrics
                            .count_answer(message::code_of(&reply), begun.elapsed());
                        send(&socket, &reply, &client);
                    }
                    drop(permit);
                });
            }
        }
    }
}

/// No client sends from port 0, nor from a multicast address.
fn may_be_answered(client: SocketAddr) -> bool {
    let is_host = match client.ip() {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
    };
    is_host && client.port() != 0
}
