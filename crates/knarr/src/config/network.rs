//! Settings of the network: CIDRs of pods and Services, addresses of nodes, and which network components are disabled.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use knarr_control::nodeipam;
use sha2::{Digest, Sha256};

use super::Cidrs;
use super::heading;
use super::part::Part;
use super::reader::Reader;
use super::value::ValueError;

/// Flags of kube-controller-manager, kubelet and k3s.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = heading::NETWORK)]
pub struct NetworkFlags {
    /// CIDR of Services, or one of each IP family, separated by a comma [default: 10.96.0.0/16].
    #[arg(long, env = "KNARR_SERVICE_CIDR", value_name = "CIDR[,CIDR]", global = true)]
    pub service_cidr: Option<String>,
    /// CIDR of pods in the cluster, or one of each IP family; each node is allocated a pod CIDR from it
    /// [default: 10.244.0.0/16].
    #[arg(long, env = "KNARR_CLUSTER_CIDR", value_name = "CIDR[,CIDR]", global = true)]
    pub cluster_cidr: Option<String>,
    /// Prefix length of a node's pod CIDR, IPv4 [default: 24].
    #[arg(
        long,
        env = "KNARR_NODE_CIDR_MASK_SIZE_IPV4",
        value_name = "BITS",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub node_cidr_mask_size_ipv4: Option<String>,
    /// Prefix length of a node's pod CIDR, IPv6 [default: 64].
    #[arg(
        long,
        env = "KNARR_NODE_CIDR_MASK_SIZE_IPV6",
        value_name = "BITS",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub node_cidr_mask_size_ipv6: Option<String>,
    /// CIDR of this node's pods, instead of one that the cluster allocates.
    #[arg(long, env = "KNARR_POD_CIDR", value_name = "CIDR[,CIDR]", global = true, help_heading = heading::NODE)]
    pub pod_cidr: Option<String>,
    /// Addresses of this node, at most one of each IP family [default: that of the kubelet's port; where that is a loopback
    /// address and other nodes may join, the default route's].
    #[arg(long, env = "KNARR_NODE_IP", value_name = "IP[,IP]", global = true, help_heading = heading::NODE)]
    pub node_ip: Option<String>,
    /// Components that are disabled so that others can be used, separated by commas: proxy, dns, network, policy,
    /// load-balancer [default: none].
    #[arg(long, env = "KNARR_DISABLE", value_name = "PARTS", global = true)]
    pub disable: Option<String>,
    /// Directory of the CNI configuration of another pod network, such as /etc/cni/net.d; knarr's own is then not used
    /// [default: none].
    #[arg(long, env = "KNARR_CNI_CONF_DIR", value_name = "DIR", global = true, help_heading = heading::NODE)]
    pub cni_conf_dir: Option<String>,
    /// Whether pods' traffic to other nodes is encrypted with WireGuard, true or false; the same on all nodes. Pods of a node
    /// that does not encrypt are then not reachable from other nodes [default: false].
    #[arg(
        long,
        env = "KNARR_ENCRYPT_POD_TRAFFIC",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        global = true
    )]
    pub encrypt_pod_traffic: Option<String>,
}

const PARTS: [(&str, Part); 5] = [
    ("proxy", Part::Proxy),
    ("dns", Part::Dns),
    ("network", Part::Network),
    ("policy", Part::Policy),
    ("load-balancer", Part::LoadBalancer),
];

pub(super) const DEFAULT_SERVICE_CIDR: &str = "10.96.0.0/16";
pub(super) const DEFAULT_CLUSTER_CIDR: &str = "10.244.0.0/16";

/// The validated settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    pub service_cidrs: Cidrs,
    pub cluster_cidrs: Cidrs,
    pub node_mask_ipv4: u8,
    pub node_mask_ipv6: u8,
    /// Empty: the cluster allocates one.
    pub pod_cidrs: Cidrs,
    /// Empty: detected.
    pub node_ips: Vec<IpAddr>,
    disabled: BTreeSet<Part>,
    /// The CNI configuration of another pod network.
    pub cni_conf_dir: Option<PathBuf>,
    pub encrypt_pod_traffic: bool,
    /// Suffix of the names of nftables tables and devices, so that several clusters can run on a host; empty for the default
    /// data directory.
    pub instance: String,
}

impl Network {
    pub(super) fn read(reader: &mut Reader, flags: &NetworkFlags, data_dir: &Path) -> Self {
        Network {
            service_cidrs: reader.get(
                "serviceCidr",
                "--service-cidr",
                &flags.service_cidr,
                DEFAULT_SERVICE_CIDR,
                present,
            ),
            cluster_cidrs: reader.get(
                "clusterCidr",
                "--cluster-cidr",
                &flags.cluster_cidr,
                DEFAULT_CLUSTER_CIDR,
                present,
            ),
            node_mask_ipv4: reader.get(
                "nodeCidrMaskSizeIpv4",
                "--node-cidr-mask-size-ipv4",
                &flags.node_cidr_mask_size_ipv4,
                "24",
                |s| mask(s, 30),
            ),
            node_mask_ipv6: reader.get(
                "nodeCidrMaskSizeIpv6",
                "--node-cidr-mask-size-ipv6",
                &flags.node_cidr_mask_size_ipv6,
                "64",
                |s| mask(s, 126),
            ),
            pod_cidrs: reader.get("podCidr", "--pod-cidr", &flags.pod_cidr, "", str::parse),
            node_ips: reader.get("nodeIp", "--node-ip", &flags.node_ip, "", addresses),
            disabled: reader.get("disable", "--disable", &flags.disable, "", parts),
            cni_conf_dir: reader.get(
                "cniConfDir",
                "--cni-conf-dir",
                &flags.cni_conf_dir,
                "",
                |s| match s.is_empty() || s.starts_with('/') {
                    true => Ok((!s.is_empty()).then(|| PathBuf::from(s))),
                    false => Err(ValueError::expected(
                        "the path of a directory, such as /etc/cni/net.d",
                    )),
                },
            ),
            encrypt_pod_traffic: reader.get(
                "encryptPodTraffic",
                "--encrypt-pod-traffic",
                &flags.encrypt_pod_traffic,
                "false",
                |text| text.parse().map_err(|_| ValueError::expected("true or false")),
            ),
            instance: instance(data_dir),
        }
    }

    /// The errors of settings that contradict each other.
    pub(super) fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let service = &self.service_cidrs;
        if let Some((pods, services)) = self.pod_cidrs.overlap(service) {
            errors.push(format!("podCidr: {pods} overlaps serviceCidr {services}"));
        }
        if let Err(of_flags) = self.node_ipam() {
            errors.extend(of_flags);
        }
        if self.encrypt_pod_traffic && !self.has(Part::Network) {
            errors.push(
                "encryptPodTraffic: expected knarr's own pod network; another one is used (disable, cniConfDir) and has to encrypt itself".into(),
            );
        }
        let has_v6 = |nets: &Cidrs| nets.nets().iter().any(|net| net.network().is_ipv6());
        if has_v6(service) && !has_v6(&self.cluster_cidrs) {
            errors.push(format!(
                "serviceCidr: {service} has IPv6, but clusterCidr {} has not",
                self.cluster_cidrs
            ));
        }
        errors
    }

    /// The configuration of the node IPAM controller.
    pub fn node_ipam(&self) -> Result<nodeipam::Config, Vec<String>> {
        let text = |cidrs: &Cidrs| cidrs.nets().iter().map(ToString::to_string).collect();
        nodeipam::Config::try_from(&nodeipam::Flags {
            cluster_cidrs: text(&self.cluster_cidrs),
            node_cidr_mask_size_ipv4: self.node_mask_ipv4,
            node_cidr_mask_size_ipv6: self.node_mask_ipv6,
            service_cidrs: text(&self.service_cidrs),
        })
    }

    /// Whether the component is enabled.
    pub fn has(&self, part: Part) -> bool {
        let is_foreign = self.cni_conf_dir.is_some() && matches!(part, Part::Network | Part::Policy);
        !self.disabled.contains(&part) && !is_foreign
    }

    /// The addresses of knarr's cluster DNS server; none, if it is disabled.
    pub fn served_dns_addresses(&self) -> Vec<IpAddr> {
        match self.has(Part::Dns) {
            true => self.dns_addresses(),
            false => Vec::new(),
        }
    }

    /// The cluster DNS addresses: the tenth of each Service CIDR, as kubeadm has it.
    pub fn dns_addresses(&self) -> Vec<IpAddr> {
        const TENTH: u32 = 10;
        let nets = self.service_cidrs.nets().iter();
        nets.map(|net| match net.network() {
            IpAddr::V4(base) => IpAddr::V4((u32::from(base) + TENTH).into()),
            IpAddr::V6(base) => IpAddr::V6((u128::from(base) + u128::from(TENTH)).into()),
        })
        .collect()
    }
}

fn present(text: &str) -> Result<Cidrs, ValueError> {
    let cidrs: Cidrs = text.parse()?;
    if cidrs.nets().is_empty() {
        return Err(ValueError::expected("a CIDR such as 10.96.0.0/16"));
    }
    Ok(cidrs)
}

fn mask(text: &str, longest: u8) -> Result<u8, ValueError> {
    let bits = text.parse().ok().filter(|bits| (8..=longest).contains(bits));
    bits.ok_or_else(|| ValueError::expected(format!("a prefix length from 8 to {longest}")))
}

fn addresses(text: &str) -> Result<Vec<IpAddr>, ValueError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let all = parts
        .map(|part| part.parse().map_err(|_| ValueError::Address(part.into())))
        .collect::<Result<Vec<IpAddr>, ValueError>>()?;
    match all.as_slice() {
        [] | [_] => Ok(all),
        [a, b] if a.is_ipv6() != b.is_ipv6() => Ok(all),
        _ => Err(ValueError::expected("one address, or one of each IP family")),
    }
}

fn parts(text: &str) -> Result<BTreeSet<Part>, ValueError> {
    let names = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    names
        .map(|name| {
            let known = PARTS.iter().find(|(known, _)| *known == name);
            known.map(|(_, part)| *part).ok_or_else(|| ValueError::Part {
                name: name.to_string(),
                known: PARTS.map(|(name, _)| name).join(", "),
            })
        })
        .collect()
}

/// Four hexadecimal digits of the hash of the data directory's path.
fn instance(data_dir: &Path) -> String {
    if data_dir == Path::new("/var/lib/knarr") {
        return String::new();
    }
    let hash = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    hash.iter().take(2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(file: &str) -> (Network, Vec<String>) {
        let mut reader = Reader::new(None, file);
        let network = Network::read(&mut reader, &NetworkFlags::default(), Path::new("/d"));
        (network, reader.finish())
    }

    #[test]
    fn n1_defaults_are_consistent_and_components_can_be_disabled() {
        let (network, errors) = network("disable: dns, load-balancer\n");
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(network.check(), Vec::<String>::new());
        assert!(network.has(Part::Proxy) && network.has(Part::Network) && network.has(Part::Policy));
        assert!(!network.has(Part::Dns) && !network.has(Part::LoadBalancer));
        assert_eq!(network.dns_addresses(), ["10.96.0.10".parse::<IpAddr>().unwrap()]);
        assert_eq!(network.instance.len(), 4);
        assert_eq!(instance(Path::new("/var/lib/knarr")), "");
        // As in kube-controller-manager: the node IPAM controller allocates no address of the Service CIDR.
        let (within, _) = self::network("clusterCidr: 10.0.0.0/8\n");
        assert_eq!(within.check(), Vec::<String>::new());
        assert!(!network.encrypt_pod_traffic);
        let (encrypted, _) = self::network("encryptPodTraffic: true\n");
        assert!(encrypted.encrypt_pod_traffic && encrypted.check().is_empty());
        let (foreign, _) = self::network("cniConfDir: /etc/cni/net.d\n");
        assert!(!foreign.has(Part::Network) && !foreign.has(Part::Policy) && foreign.has(Part::Proxy));
    }

    #[test]
    fn n1_settings_that_contradict_each_other_are_errors() {
        for (file, part) in [
            (
                "podCidr: 10.96.4.0/24\n",
                "podCidr: 10.96.4.0/24 overlaps serviceCidr 10.96.0.0/16",
            ),
            (
                "clusterCidr: 10.244.0.0/25\n",
                "--node-cidr-mask-size-ipv4: 24 must be from 25 to 32",
            ),
            (
                "serviceCidr: '10.96.0.0/16,fd00::/108'\n",
                "clusterCidr 10.244.0.0/16 has not",
            ),
            (
                "clusterCidr: '10.244.0.0/16,fd01::/40'\n",
                "--node-cidr-mask-size-ipv6: 64",
            ),
            (
                "encryptPodTraffic: true\ndisable: network\n",
                "encryptPodTraffic: expected knarr's own pod network",
            ),
        ] {
            let (network, errors) = network(file);
            assert_eq!(errors, Vec::<String>::new());
            let found = network.check();
            assert!(found.iter().any(|e| e.contains(part)), "{file}: {found:?}");
        }
        for (file, part) in [
            (
                "disable: prxy\n",
                "expected some of proxy, dns, network, policy, load-balancer",
            ),
            ("nodeIp: 10.0.0.1,10.0.0.2\n", "one of each IP family"),
            ("nodeCidrMaskSizeIpv4: 64\n", "from 8 to 30"),
            ("encryptPodTraffic: maybe\n", "expected true or false"),
        ] {
            let (_, errors) = network(file);
            assert!(errors.iter().any(|e| e.contains(part)), "{file}: {errors:?}");
        }
    }
}
