//! An etcd of three members, each on a host of its own, and the keys that servers of one etcd share.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::fleet::Host;
use crate::wait::Outcome;

/// etcd's client port.
pub const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// The timeout when the metrics of a member are read.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);

/// The flags of a server whose store is these members.
pub fn server_flags(members: &[Host]) -> Vec<String> {
    let urls: Vec<_> = members.iter().map(client_url).collect();
    let urls = urls.join(",");
    [
        "--store",
        "etcd",
        "--etcd-endpoints",
        &urls,
        "--etcd-allow-plaintext",
    ]
    .map(String::from)
    .to_vec()
}

/// The data directory of a member.
pub fn data_dir(member: &Host) -> PathBuf {
    member.data_dir().with_file_name("etcd")
}

fn client_url(member: &Host) -> String {
    format!("http://{}:{CLIENT_PORT}", member.address)
}

fn peer_url(member: &Host) -> String {
    format!("http://{}:{PEER_PORT}", member.address)
}

/// Starts one of the members, for the first time or with the data that it had.
pub fn start(member: &Host, members: &[Host]) -> Outcome {
    let all: Vec<_> = members
        .iter()
        .map(|m| format!("{}={}", m.name, peer_url(m)))
        .collect();
    let client = client_url(member);
    let mut etcd: Command = member.command("etcd");
    etcd.arg("--data-dir").arg(data_dir(member));
    etcd.args(["--name", &member.name, "--initial-cluster", &all.join(",")]);
    etcd.args([
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
    ]);
    etcd.args(["--listen-peer-urls", &peer_url(member)]);
    etcd.args(["--initial-advertise-peer-urls", &peer_url(member)]);
    etcd.args(["--heartbeat-interval", "100", "--election-timeout", "1000"]);
    etcd.args(["--logger", "zap", "--log-level", "error"]);
    member.launch(etcd)
}

/// The leader, among the members that respond.
pub fn leader(members: &[Host]) -> Option<&Host> {
    let leads = |m: &&Host| metrics(m.address).is_ok_and(|t| t.contains("\netcd_server_is_leader 1\n"));
    members.iter().find(leads)
}

fn metrics(address: Ipv4Addr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&(address, CLIENT_PORT).into(), METRICS_TIMEOUT)?;
    stream.set_read_timeout(Some(METRICS_TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Makes two servers one cluster: they have the same CAs and service account key, and certificates of their own. `from` has
/// run before, `to` has not.
pub fn share_keys(from: &Host, to: &Host) -> Outcome {
    let (from, to) = (from.data_dir().join("pki"), to.data_dir().join("pki"));
    std::fs::create_dir_all(&to)?;
    let cas = ["ca", "client-ca", "kubelet-serving-ca", "front-proxy-ca"];
    let files = cas.map(|ca| [format!("{ca}.crt"), format!("{ca}.key")]);
    for file in files
        .as_flattened()
        .iter()
        .chain([&"service-account.key".to_string()])
    {
        std::fs::copy(from.join(file), to.join(file)).map_err(|e| format!("{file}: {e}"))?;
    }
    Ok(())
}
