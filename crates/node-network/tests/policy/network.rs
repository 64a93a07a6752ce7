//! Pods that are network namespaces with servers, and probes between them.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

/// Until then a connection that is not there counts as denied.
const TIMEOUT: Duration = Duration::from_millis(400);

type Work = Box<dyn FnOnce() + Send>;

/// Runs in a thread, and so in a network namespace, of its own: the node.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up\naddress add 10.96.0.10/32 dev lo\naddress add fd96::a/128 dev lo nodad\n");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(batch: &str) {
    let mut ip = Command::new("ip");
    let mut child = ip.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{batch}");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// Answers what it gets. Ends with the process; its network namespace lives as long.
fn echo(address: SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

/// A DNS server, as far as policies see one.
pub fn serve_dns() {
    echo("10.96.0.10:53".parse().unwrap());
    echo("[fd96::a]:53".parse().unwrap());
}

/// Whether the server answers.
fn probe(transport: Transport, to: SocketAddr) -> bool {
    match transport {
        Transport::Tcp => TcpStream::connect_timeout(&to, TIMEOUT).is_ok(),
        Transport::Udp => {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket.connect(to).unwrap();
            socket.send(b"?").is_ok() && socket.recv(&mut [0; 8]).is_ok()
        }
    }
}

pub struct Pod {
    pub addresses: Vec<IpAddr>,
    work: mpsc::Sender<Work>,
}

impl Pod {
    /// Serves TCP and UDP on the ports 80 and 81.
    pub fn new(index: u8, addresses: [&str; 2]) -> Self {
        let (work, received) = mpsc::channel::<Work>();
        let (ready, id) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ready.send(nix::unistd::gettid()).unwrap();
            for work in received {
                work();
            }
        });
        let thread = id.recv().unwrap();
        let [v4, v6] = addresses;
        ip(&format!(
            "link add pod{index} type veth peer name eth0 netns {thread}\n\
             link set pod{index} up\n\
             address add 169.254.1.1/32 dev pod{index}\n\
             address add fe80::1/64 dev pod{index} nodad\n\
             route add {v4}/32 dev pod{index}\n\
             route add {v6}/128 dev pod{index}\n"
        ));
        let pod = Pod {
            addresses: addresses.map(|address| address.parse().unwrap()).into(),
            work,
        };
        let script = format!(
            "link set lo up\n\
             link set eth0 up\n\
             address add {v4}/32 dev eth0\n\
             address add {v6}/128 dev eth0 nodad\n\
             route add 169.254.1.1/32 dev eth0\n\
             route add default via 169.254.1.1\n\
             route add default via fe80::1 dev eth0\n"
        );
        pod.run(move || {
            ip(&script);
            for port in [80, 81] {
                let any = SocketAddr::from(([0_u16; 8], port));
                // The kernel completes connections that are not accepted.
                std::mem::forget(TcpListener::bind(any).unwrap());
                echo(any);
            }
        });
        pod
    }

    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.work
            .send(Box::new(move || done.send(work()).unwrap()))
            .unwrap();
        result.recv().unwrap()
    }

    /// Which of these destinations answer, all contacted at once.
    pub fn probe(&self, targets: Vec<(Transport, SocketAddr)>) -> Vec<bool> {
        self.run(move || {
            let threads: Vec<_> = targets
                .into_iter()
                .map(|(transport, to)| thread::spawn(move || probe(transport, to)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    pub fn reaches(&self, transport: Transport, to: IpAddr, port: u16) -> bool {
        self.probe(vec![(transport, SocketAddr::new(to, port))]) == [true]
    }

    /// A UDP flow that is kept open.
    pub fn open_flow(&self, to: SocketAddr) -> UdpSocket {
        self.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:5000").unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket.connect(to).unwrap();
            socket
        })
    }
}

pub fn answers(socket: &UdpSocket) -> bool {
    socket.send(b"?").is_ok() && socket.recv(&mut [0; 8]).is_ok()
}
