//! The cluster-wide settings: servers publish them, and agents adopt them when they join.

use std::collections::BTreeMap;

use super::network::{DEFAULT_CLUSTER_CIDR, DEFAULT_SERVICE_CIDR};
use super::value::ValueError;
use super::{Cidrs, Config};

const SERVICE_CIDR: &str = "serviceCidr";
const CLUSTER_CIDR: &str = "clusterCidr";
const CLUSTER_DOMAIN: &str = "clusterDomain";
const ENCRYPT_POD_TRAFFIC: &str = "encryptPodTraffic";

impl Config {
    /// The settings that this server publishes, by the names of the configuration file.
    pub fn shared(&self, cluster_domain: &str) -> BTreeMap<String, String> {
        let network = &self.network;
        let settings = [
            (SERVICE_CIDR, network.service_cidrs.to_string()),
            (CLUSTER_CIDR, network.cluster_cidrs.to_string()),
            (CLUSTER_DOMAIN, cluster_domain.to_string()),
            (ENCRYPT_POD_TRAFFIC, network.encrypt_pod_traffic.to_string()),
        ];
        settings.map(|(name, value)| (name.to_string(), value)).into()
    }

    /// Adopts the settings that a server has published. Settings of this node that are not defaults must be the same; the
    /// errors name those that differ, and those that cannot be parsed. Unknown settings, of a newer server, are ignored.
    pub fn adopt(&mut self, published: &BTreeMap<String, String>) -> Result<(), Vec<String>> {
        let network = &mut self.network;
        let mut errors = Vec::new();
        let mut adopt_cidrs = |name, own: &mut Cidrs, default| {
            errors.extend(adopt(published, name, own, default, str::parse));
        };
        adopt_cidrs(SERVICE_CIDR, &mut network.service_cidrs, DEFAULT_SERVICE_CIDR);
        adopt_cidrs(CLUSTER_CIDR, &mut network.cluster_cidrs, DEFAULT_CLUSTER_CIDR);
        let encrypt = &mut network.encrypt_pod_traffic;
        errors.extend(adopt(published, ENCRYPT_POD_TRAFFIC, encrypt, "false", |text| {
            text.parse().map_err(|_| ValueError::expected("true or false"))
        }));
        let domain = &mut self.kubelet.cluster_domain;
        errors.extend(adopt(published, CLUSTER_DOMAIN, domain, "", |text| {
            Ok(text.to_string())
        }));
        if errors.is_empty() {
            errors = self.network.check();
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(errors),
        }
    }
}

/// Sets a setting that has its default to the published value. Returns the error, if the setting has another value.
fn adopt<T: PartialEq>(
    published: &BTreeMap<String, String>,
    name: &str,
    own: &mut T,
    default: &str,
    parse: impl Fn(&str) -> Result<T, ValueError>,
) -> Option<String> {
    let text = published.get(name)?;
    match parse(text) {
        Ok(of_cluster) if parse(default).is_ok_and(|default| default == *own) || *own == of_cluster => {
            *own = of_cluster;
            None
        }
        Ok(_) => Some(format!(
            "{name}: expected {text} as in the cluster, but this node is configured with another value; leave it out to use the cluster's"
        )),
        Err(error) => Some(format!("{name}: the server published {text:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    fn defaults() -> Config {
        Config::load(&Flags::default()).unwrap()
    }

    #[test]
    fn n1_a_node_adopts_the_cluster_s_settings() {
        let server = {
            let mut config = defaults();
            config.network.service_cidrs = "10.7.0.0/16,fd00:7::/112".parse().unwrap();
            config.network.cluster_cidrs = "10.8.0.0/16,fd00:8::/56".parse().unwrap();
            config.network.encrypt_pod_traffic = true;
            config
        };
        let published = server.shared("example.local");
        let mut node = defaults();
        node.adopt(&published).unwrap();
        assert_eq!(node.network.service_cidrs, server.network.service_cidrs);
        assert_eq!(node.network.cluster_cidrs, server.network.cluster_cidrs);
        assert!(node.network.encrypt_pod_traffic);
        assert_eq!(node.kubelet.cluster_domain, "example.local");
        // Adopting them again changes nothing.
        node.adopt(&published).unwrap();
        assert_eq!(node.shared("example.local"), published);
    }

    #[test]
    fn n1_a_node_with_other_settings_does_not_start() {
        let published = defaults().shared("cluster.local");
        let mut node = defaults();
        node.network.service_cidrs = "10.7.0.0/16".parse().unwrap();
        node.kubelet.cluster_domain = "other.local".into();
        let errors = node.adopt(&published).unwrap_err();
        let named: Vec<&str> = errors.iter().filter_map(|e| e.split(':').next()).collect();
        assert_eq!(named, [SERVICE_CIDR, CLUSTER_DOMAIN]);

        let garbage = BTreeMap::from([(CLUSTER_CIDR.to_string(), "ten".to_string())]);
        assert!(defaults().adopt(&garbage).unwrap_err()[0].starts_with("clusterCidr: the server published"));
    }
}
