//! For tests: a configuration with which every controller runs.

use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::certificates::CertificateRequest;
use knarr_api::k8s_openapi;

use crate::certificates::{Authority, Ca, SignError};
use crate::{Config, nodeipam};

/// Signs nothing.
#[derive(Debug)]
struct NoAuthority;

impl Authority for NoAuthority {
    fn sign(
        &self,
        _: Ca,
        _: &CertificateRequest,
        _: &[String],
        _: Option<i32>,
        _: Timestamp,
    ) -> Result<String, SignError> {
        Err("none".into())
    }

    fn expires(&self, _: &[u8]) -> Option<Timestamp> {
        None
    }
}

/// With everything that a controller depends on.
pub fn config() -> Config {
    let flags = nodeipam::Flags {
        cluster_cidrs: vec!["10.244.0.0/16".into()],
        ..nodeipam::Flags::default()
    };
    Config {
        root_ca: Some("PEM".into()),
        authority: Some(Arc::new(NoAuthority)),
        node_ipam: nodeipam::Config::try_from(&flags).ok(),
        service_load_balancer: Some(Default::default()),
        cluster_dns: vec![Ipv4Addr::new(10, 96, 0, 10).into()],
        ..Config::default()
    }
}
