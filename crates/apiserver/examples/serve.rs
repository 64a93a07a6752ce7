//! An API server with nothing behind it: memory store, no nodes, one token. For tests that speak HTTPS to it.
//!
//! `serve PORT TOKEN` serves on 127.0.0.1:PORT (0: any; the address is printed) until it is killed.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use knarr_apiserver::pki::Pki;
use knarr_apiserver::seams::{Clock, SystemClock, SystemEntropy};
use knarr_apiserver::tls::Tls;
use knarr_apiserver::{Config, ISSUER, Seams, Server, ServiceRange, User};
use knarr_client::{Conn, NodeDialer};
use tokio_util::sync::CancellationToken;

struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, node: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("no node {node}"),
        ))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().map_or(Ok(0), |p| p.parse())?;
    let token = arguments.next().unwrap_or_else(|| "token".into());
    let directory = tempfile::tempdir()?;
    let pki = Pki::open(directory.path(), SystemClock.now())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let config = Config {
        advertised: address.to_string(),
        address: address.ip(),
        port: address.port(),
        service_range: ServiceRange::parse("10.97.0.0/16")?,
        static_tokens: HashMap::from([(token, User::new("admin", ["system:masters"]))]),
        issuer: ISSUER.into(),
        service_account_key: pki.service_account_key()?,
        options: knarr_apiserver::Options::default(),
    };
    let seams = Seams {
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        nodes: Arc::new(NoNodes),
    };
    let server = Server::new(
        config,
        seams,
        knarr_store::open(knarr_store::Config::Memory).await?,
    )
    .await?;
    let identity = pki.server(&["localhost".into(), "127.0.0.1".into()])?;
    let tls = Tls::new(&identity, pki.client_ca_pem())?;
    println!("https://{address}");
    server.serve(listener, tls, CancellationToken::new()).await;
    Ok(())
}
