//! A second address of an API server that listens on a loopback address: an address of this node, for its pods.
//!
//! In a pod a loopback address is the pod itself, so the Service `kubernetes` would lead nowhere, and no in-cluster client
//! would work. Connections to the second address are closed before TLS unless they come from a pod or this node: other
//! hosts reach the API no more than with `--listen 127.0.0.1:6443` alone. A source address cannot be forged here, because
//! the replies of the TCP handshake are sent to the pod that has the address.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use tokio::net::TcpListener;
use tracing::warn;

use super::node_address;
use crate::config::{Config, Part};

/// The listener at the second address, and which clients it accepts.
pub struct ApiForPods {
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub clients: Clients,
}

/// Which source addresses may connect.
#[derive(Clone, Debug)]
pub struct Clients {
    own: IpAddr,
    pods: Vec<IpNet>,
}

impl Clients {
    pub fn admit(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        peer == self.own || self.pods.iter().any(|net| net.contains(&peer))
    }
}

impl ApiForPods {
    /// `None` where pods reach the API by the address it listens on, another component provides the pod network, or this
    /// node has only loopback addresses.
    pub async fn bind(config: &Config, listen: SocketAddr) -> Option<Self> {
        if !listen.ip().is_loopback() || !config.network.has(Part::Network) {
            return None;
        }
        let own = node_address::reachable(config)?;
        let address = SocketAddr::new(own, listen.port());
        let nets = [&config.network.cluster_cidrs, &config.network.pod_cidrs];
        let pods = nets.into_iter().flat_map(|cidrs| cidrs.nets()).copied().collect();
        match TcpListener::bind(address).await {
            Ok(listener) => Some(ApiForPods {
                listener,
                address,
                clients: Clients { own, pods },
            }),
            Err(error) => {
                warn!(%error, "cannot listen on {address}: pods of this node cannot reach the API server");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n2_only_pods_and_the_node_itself_connect() {
        let clients = Clients {
            own: "192.0.2.7".parse().unwrap(),
            pods: vec!["10.244.0.0/16".parse().unwrap(), "fd00::/56".parse().unwrap()],
        };
        for (peer, is_admitted) in [
            ("10.244.3.9", true),
            ("::ffff:10.244.3.9", true),
            ("fd00::3", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("10.245.0.1", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(clients.admit(peer.parse().unwrap()), is_admitted, "{peer}");
        }
    }
}
