//! Servers that answer with the address they saw, and their clients.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::namespace::Namespace;

const TIMEOUT: Duration = Duration::from_secs(5);
/// For what must not arrive.
const SILENCE: Duration = Duration::from_millis(300);

/// Listens for TCP and UDP of both families until its namespace has no users; answers `<name> <address of the client>`.
pub fn serve(namespace: &Namespace, name: &str, port: u16) {
    let name = name.to_string();
    namespace.run(move || {
        let listener = TcpListener::bind(("::", port)).unwrap();
        let of_tcp = name.clone();
        thread::spawn(move || {
            while let Ok((mut stream, client)) = listener.accept() {
                let _ = write!(stream, "{of_tcp} {}", client.ip().to_canonical());
            }
        });
        let socket = UdpSocket::bind(("::", port)).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, client)) = socket.recv_from(&mut buffer) {
                let answer = format!("{name} {}", client.ip().to_canonical());
                let _ = socket.send_to(answer.as_bytes(), client);
            }
        });
    });
}

/// Asks over TCP.
pub fn tcp(from: &Namespace, to: IpAddr, port: u16) -> io::Result<String> {
    from.run(move || ask(SocketAddr::new(to, port), TIMEOUT))
}

pub fn is_silent(from: &Namespace, to: IpAddr, port: u16) -> bool {
    from.run(move || ask(SocketAddr::new(to, port), SILENCE).is_err())
}

fn ask(to: SocketAddr, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Asks over UDP, from a port of its own or from this one.
pub fn udp(from: &Namespace, to: IpAddr, port: u16, source_port: u16) -> io::Result<String> {
    from.run(move || {
        let any: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, source_port))?;
        socket.connect((to, port))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send(b"?")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    })
}

/// How many bytes a second get from one to the other over one TCP connection, about a second after its start and for a
/// second.
pub fn bytes_per_second(from: &Namespace, to: &Namespace, address: IpAddr) -> u64 {
    let listener = to.run(|| TcpListener::bind(("::", 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 64 << 10];
        let start = std::time::Instant::now();
        let mut received = 0;
        while start.elapsed() < Duration::from_secs(2) {
            let length = stream.read(&mut buffer).unwrap();
            if length == 0 {
                break;
            }
            if start.elapsed() >= Duration::from_secs(1) {
                received += length as u64;
            }
        }
        received
    });
    from.run(move || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), TIMEOUT).unwrap();
        let buffer = vec![0; 64 << 10];
        // The receiver ends it.
        while stream.write_all(&buffer).is_ok() {}
    });
    receiver.join().unwrap()
}
