//! Whether connections wait to be accepted in the network namespace of the calling thread: the accept queues of its listening
//! TCP sockets, as the kernel's `inet_diag` reports them (sock_diag(7)).
//!
//! What is read is bounded, however many sockets the processes of the namespace listen on.

use std::io;

use netlink_packet_core::{
    DecodeError, Emitable, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::netlink;

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`: the type of the request and of each socket in the answer.
const BY_FAMILY: u16 = 20;
/// `TCP_LISTEN` of `net/tcp_states.h`.
const LISTEN: u8 = 10;
/// A socket that listens on both families is listed with IPv6.
const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];
const TCP: u8 = libc::IPPROTO_TCP as u8;

/// A netlink header, and `struct inet_diag_req_v2`.
const REQUEST_BYTES: u32 = 16 + 56;
/// Places in the request, its header included.
const FAMILY_AT: usize = 16;
const PROTOCOL_AT: usize = 17;
const STATES_AT: usize = 20;
/// Places in `struct inet_diag_msg`: the state, and of a socket that listens the length of its accept queue
/// (`idiag_rqueue`).
const STATE_AT: usize = 1;
const QUEUE_AT: usize = 56;

/// The kernel's datagrams are not longer.
const DATAGRAM_BYTES: usize = 32 << 10;
/// More of one family's are not read: a quarter of a MiB, some 1700 sockets.
const DATAGRAMS_MAX: usize = 8;
const ALIGNMENT: usize = 4;

const OPERATION: &str = "list the sockets that listen";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error("more sockets listen than are read")]
    TooManySockets,
}

/// What one datagram of the kernel's answer adds to those before it.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// A connection waits.
    Connection,
    /// None waits with the sockets so far, and there are more.
    More,
    /// None waits, and these were all.
    End,
}

/// Whether a connection waits in the accept queue of a listening TCP socket. Without an answer, or with too long a one, it is
/// not known.
pub fn have_connections() -> Result<bool, Error> {
    let socket = netlink::open(NETLINK_SOCK_DIAG)?;
    for (family, sequence) in FAMILIES.into_iter().zip(1..) {
        socket
            .send(&request(family, sequence), 0)
            .map_err(netlink::Error::Send)?;
        if read_answer(|datagram| socket.recv(datagram, 0))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The request for all TCP sockets of a family that listen.
fn request(family: u8, sequence: u32) -> [u8; REQUEST_BYTES as usize] {
    let mut header = NetlinkHeader::default();
    header.length = REQUEST_BYTES;
    header.message_type = BY_FAMILY;
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    header.sequence_number = sequence;
    let mut bytes = [0; REQUEST_BYTES as usize];
    header.emit(&mut bytes);
    bytes[FAMILY_AT] = family;
    bytes[PROTOCOL_AT] = TCP;
    let states = 1_u32 << LISTEN;
    bytes[STATES_AT..STATES_AT + 4].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// Reads the answer for one family; `receive` appends a datagram to the empty buffer.
fn read_answer(mut receive: impl FnMut(&mut Vec<u8>) -> io::Result<usize>) -> Result<bool, Error> {
    let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
    for _ in 0..DATAGRAMS_MAX {
        datagram.clear();
        receive(&mut datagram).map_err(netlink::Error::Receive)?;
        match parse(&datagram)? {
            Part::Connection => return Ok(true),
            Part::End => return Ok(false),
            Part::More => {}
        }
    }
    Err(Error::TooManySockets)
}

fn parse(datagram: &[u8]) -> Result<Part, netlink::Error> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkBuffer::new_checked(rest).map_err(netlink::Error::Malformed)?;
        match message.message_type() {
            BY_FAMILY => {
                let cut_off = || netlink::Error::Malformed(DecodeError::from("a socket is cut off"));
                if queue_length(message.payload()).ok_or_else(cut_off)? > 0 {
                    return Ok(Part::Connection);
                }
            }
            NLMSG_DONE | NLMSG_ERROR => return end(message.payload()),
            _ => {}
        }
        let length = message.length() as usize;
        rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    }
    Ok(Part::More)
}

/// How many connections wait with the socket of a `struct inet_diag_msg`; `None` if it is too short.
fn queue_length(socket: &[u8]) -> Option<u32> {
    let state = *socket.get(STATE_AT)?;
    let length = u32::from_ne_bytes(*socket.get(QUEUE_AT..)?.first_chunk()?);
    Some(if state == LISTEN { length } else { 0 })
}

/// The end of an answer has the kernel's error, also when it is an ordinary end (a kernel without `tcp_diag`: ENOENT).
fn end(payload: &[u8]) -> Result<Part, netlink::Error> {
    let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    if code < 0 {
        return Err(netlink::Error::Rejected {
            operation: OPERATION,
            source: io::Error::from_raw_os_error(code.saturating_neg()),
        });
    }
    Ok(Part::End)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, poll};
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::kernel::links;
    use crate::kernel::netlink::Netlink;

    const ESTABLISHED: u8 = 1;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + body.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        // Flags, sequence number and port number.
        bytes.extend_from_slice(&[2, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    fn socket(state: u8, queue: u32) -> Vec<u8> {
        let mut body = vec![2, state, 0, 0];
        // Ports 80 and 0, addresses, interface and cookie, then the timer.
        body.extend_from_slice(&[0, 80, 0, 0]);
        body.resize(QUEUE_AT, 0);
        body.extend_from_slice(&queue.to_ne_bytes());
        // The queue's limit, the user and the inode.
        for number in [128_u32, 0, 4711] {
            body.extend_from_slice(&number.to_ne_bytes());
        }
        // The attribute INET_DIAG_SHUTDOWN.
        body.extend_from_slice(&[5, 0, 8, 0, 0]);
        message(BY_FAMILY, &body)
    }

    fn done(code: i32) -> Vec<u8> {
        message(NLMSG_DONE, &code.to_ne_bytes())
    }

    #[test]
    fn b7_a_connection_in_any_accept_queue_of_an_answer_is_found() {
        for (what, messages, want) in [
            ("no socket", vec![done(0)], Part::End),
            ("an end without a code", vec![message(NLMSG_DONE, &[])], Part::End),
            ("none waits", vec![socket(LISTEN, 0), done(0)], Part::End),
            (
                "more follow",
                vec![socket(LISTEN, 0), socket(LISTEN, 0)],
                Part::More,
            ),
            (
                "one waits with the second socket",
                vec![socket(LISTEN, 0), socket(LISTEN, 1), done(0)],
                Part::Connection,
            ),
            (
                "bytes to read are no connections",
                vec![socket(ESTABLISHED, 9), done(0)],
                Part::End,
            ),
            (
                "other messages are skipped",
                vec![message(1, &[]), done(0)],
                Part::End,
            ),
        ] {
            assert_eq!(parse(&messages.concat()).unwrap(), want, "{what}");
        }
    }

    #[test]
    fn b7_an_answer_that_cannot_be_read_is_an_error() {
        for code in [libc::ENOENT, libc::EOPNOTSUPP] {
            for answer in [done(-code), message(NLMSG_ERROR, &(-code).to_ne_bytes())] {
                assert_eq!(parse(&answer).unwrap_err().errno(), Some(code));
            }
        }
        let whole = [socket(LISTEN, 1), done(0)].concat();
        assert_eq!(parse(&whole).unwrap(), Part::Connection);
        let first = socket(LISTEN, 1).len();
        for length in 1..first - ALIGNMENT {
            assert!(parse(&whole[..length]).is_err(), "{length} bytes");
        }
        assert!(parse(&message(BY_FAMILY, &[2, LISTEN, 0, 0])).is_err());
    }

    #[test]
    fn b7_the_answer_is_bounded() {
        let mut received = 0;
        let endless = read_answer(|datagram| {
            received += 1;
            datagram.extend_from_slice(&socket(LISTEN, 0));
            Ok(datagram.len())
        });
        assert!(matches!(endless, Err(Error::TooManySockets)));
        assert_eq!(received, DATAGRAMS_MAX);
        let mut datagrams = [socket(LISTEN, 0), socket(LISTEN, 0), done(0)].into_iter();
        let read = read_answer(|datagram| {
            datagram.extend_from_slice(&datagrams.next().unwrap());
            Ok(datagram.len())
        });
        assert!(!read.unwrap(), "until the end of the answer");
    }

    #[test]
    fn b7_a_connection_is_in_the_kernels_answer_until_it_is_accepted() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not run: needs root");
            return;
        }
        // The namespace is removed with the thread.
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut netlink = Netlink::open().unwrap();
            let lo = links::find(&mut netlink, "lo").unwrap().unwrap();
            links::set_up(&mut netlink, lo.index).unwrap();
            assert!(!have_connections().unwrap(), "nothing listens");
            for address in ["127.0.0.1:0", "[::1]:0"] {
                let listener = TcpListener::bind(address).unwrap();
                assert!(!have_connections().unwrap(), "nothing has connected to {address}");
                let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                // The handshake's last packet may arrive after the client's call has returned.
                let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
                assert_eq!(poll(&mut ready, 10_000_u16).unwrap(), 1);
                assert!(have_connections().unwrap(), "a connection to {address} waits");
                let _accepted = listener.accept().unwrap();
                assert!(!have_connections().unwrap(), "it was accepted");
            }
        });
        thread.join().unwrap();
    }
}
