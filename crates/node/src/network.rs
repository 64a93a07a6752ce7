//! The pod network of one node: a CNI bridge with host-local addresses, and its removal.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

/// Where the network is configured and what it is.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    /// Interface name of the bridge (15 bytes at the most).
    pub bridge: String,
    /// The node's share of pod addresses, such as `10.244.0.0/24`.
    pub pod_cidr: String,
    /// The directory of CNI configurations.
    pub cni_conf: PathBuf,
    /// The directory of host-local's leases.
    pub ipam_dir: PathBuf,
}

impl PodNetwork {
    /// Name of the network in CNI's own records.
    pub const NAME: &str = "knarr";
    const FILE: &str = "10-knarr.conflist";

    /// The network that was last configured here; `None` if none was.
    fn configured(cni_conf: &Path) -> io::Result<Option<PodNetwork>> {
        let text = match crate::host_fs::read(cni_conf.join(Self::FILE)) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let conflist: serde_json::Value = serde_json::from_slice(&text)?;
        let plugin = &conflist["plugins"][0];
        let text = |field: &serde_json::Value| field.as_str().map(str::to_string);
        let network = (|| {
            Some(PodNetwork {
                bridge: text(&plugin["bridge"])?,
                pod_cidr: text(&plugin["ipam"]["ranges"][0][0]["subnet"])?,
                cni_conf: cni_conf.into(),
                ipam_dir: text(&plugin["ipam"]["dataDir"])?.into(),
            })
        })();
        Ok(network)
    }

    /// Its bridge; `None` if none was configured.
    pub fn configured_bridge(cni_conf: &Path) -> io::Result<Option<String>> {
        Ok(Self::configured(cni_conf)?.map(|network| network.bridge))
    }

    /// The sandboxes that host-local has given an address.
    fn holders(&self) -> io::Result<BTreeSet<String>> {
        let mut holders = BTreeSet::new();
        let leases = match crate::host_fs::read_dir(self.ipam_dir.join(Self::NAME)) {
            Ok(leases) => leases,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(holders),
            Err(e) => return Err(e),
        };
        for lease in leases {
            let path = lease?.path();
            // The file is named for the address and has its owner in its first line; next to it is a lock file.
            let text = match crate::host_fs::read_to_string(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                text => text?,
            };
            holders.extend(text.lines().next().map(|id| id.trim().to_string()));
        }
        Ok(holders)
    }

    /// Writes the configuration list; containerd picks it up by itself.
    pub fn write(&self) -> io::Result<()> {
        crate::host_fs::create_dir_all(&self.cni_conf)?;
        crate::host_fs::create_dir_all(&self.ipam_dir)?;
        let text = serde_json::to_vec_pretty(&self.conflist())?;
        write_atomically(&self.cni_conf.join(Self::FILE), &text)
    }

    fn conflist(&self) -> serde_json::Value {
        json!({
            "cniVersion": "1.0.0",
            "name": Self::NAME,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.bridge,
                    "isGateway": true,
                    "isDefaultGateway": true,
                    "ipMasq": true,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{ "subnet": self.pod_cidr }]],
                        "dataDir": self.ipam_dir,
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
            ],
        })
    }
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    crate::host_fs::write(&part, bytes)?;
    crate::host_fs::rename(part, path)
}

/// Removes the bridge; a bridge that does not exist is no error.
pub async fn remove_bridge(bridge: &str) -> io::Result<()> {
    if !crate::host_fs::exists(Path::new("/sys/class/net").join(bridge)) {
        return Ok(());
    }
    let done = tokio::process::Command::new("ip")
        .args(["link", "delete", bridge])
        .output()
        .await?;
    if done.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "ip link delete {bridge}: {}",
        String::from_utf8_lossy(&done.stderr).trim()
    )))
}

/// The chains that CNI's portmap plugin makes once for all pods and leaves behind.
const HOST_PORT_CHAINS: &[&str] = &["CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"];

/// Removes portmap's chains, unless they still map a host port.
pub async fn remove_unused_chains() -> io::Result<()> {
    let rules = match iptables(["-S"]).await {
        Ok(rules) => rules,
        // Without iptables there are no such chains either.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for change in chain_removals(&rules) {
        iptables(change).await?;
    }
    Ok(())
}

/// Removes the rules by which the bridge plugin let pods out that have no address any more. How many changes that took.
///
/// An address is allocated before its rules are added and released before they are removed: a rule that existed before
/// the addresses were listed, of a pod without an address, has no owner or is being removed at this moment.
pub async fn remove_leaked_rules(cni_conf: &Path) -> io::Result<usize> {
    let Some(network) = PodNetwork::configured(cni_conf)? else {
        return Ok(0);
    };
    let rules = match iptables(["-S"]).await {
        Ok(rules) => rules,
        // Without iptables there are no such rules either.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    let leaked = leaked_rule_removals(&rules, &network.pod_cidr, &network.holders()?);
    let found = leaked.len();
    for change in leaked {
        iptables(change).await?;
    }
    Ok(found)
}

/// The arguments that remove the rules and chains of sandboxes without an address, in order. Those of other networks
/// of the same name, which have other addresses, stay.
fn leaked_rule_removals(rules: &str, pod_cidr: &str, holders: &BTreeSet<String>) -> Vec<Vec<String>> {
    let mut removals = Vec::new();
    let is_leaked = |rule: &&str| {
        let owner = rule
            .split_once(r#"--comment "name: \"knarr\" id: \""#)
            .and_then(|(_, behind)| behind.split_once('\\'));
        owner.is_some_and(|(id, _)| !holders.contains(id))
    };
    let ours: Vec<&str> = rules
        .lines()
        .filter(|rule| rule.starts_with("-A CNI-") && rule.contains(&format!(" -d {pod_cidr} ")))
        .filter(is_leaked)
        .filter_map(|rule| rule.split(' ').nth(1))
        .collect();
    for chain in ours {
        let leads =
            |rule: &&str| rule.starts_with("-A POSTROUTING ") && rule.ends_with(&format!(" -j {chain}"));
        for rule in rules.lines().filter(leads) {
            removals.push(removal_of(rule));
        }
        removals.extend(["-F", "-X"].map(|step| vec![step.to_string(), chain.to_string()]));
    }
    removals
}

/// The arguments that remove the chains, in order; none while the DNAT chain still leads to a pod's.
fn chain_removals(rules: &str) -> Vec<Vec<String>> {
    if rules.lines().any(|l| l.starts_with("-A CNI-HOSTPORT-DNAT ")) {
        return Vec::new();
    }
    let mut removals = Vec::new();
    let named = |l: &&str| {
        HOST_PORT_CHAINS
            .iter()
            .any(|c| l.split(' ').any(|word| word == *c))
    };
    let from_others = |l: &&str| l.starts_with("-A ") && !l.starts_with("-A CNI-HOSTPORT-");
    for rule in rules.lines().filter(named).filter(from_others) {
        removals.push(removal_of(rule));
    }
    let present = |c: &&&str| rules.lines().any(|l| l.strip_prefix("-N ") == Some(**c));
    for step in ["-F", "-X"] {
        let chains = HOST_PORT_CHAINS.iter().filter(present);
        removals.extend(chains.map(|c| vec![step.to_string(), c.to_string()]));
    }
    removals
}

/// A rule as `iptables -S` prints it starts with `-A`; the same with `-D` removes it.
fn removal_of(rule: &str) -> Vec<String> {
    ["-D".to_string()]
        .into_iter()
        .chain(rule_words(rule).into_iter().skip(1))
        .collect()
}

/// The words of a rule as `iptables -S` prints it: comments are in double quotes, and quotes in them are escaped by a
/// backslash.
fn rule_words(rule: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quoted, mut letters) = (false, rule.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            '\\' => words
                .last_mut()
                .into_iter()
                .for_each(|word| word.extend(letters.next())),
            _ => words.last_mut().into_iter().for_each(|word| word.push(letter)),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

async fn iptables<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> io::Result<String> {
    let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().into()).collect();
    let done = tokio::process::Command::new("iptables")
        .args(["--wait", "-t", "nat"])
        .args(&args)
        .output()
        .await?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(io::Error::other(format!(
        "iptables {}: {}",
        args.join(OsStr::new(" ")).display(),
        String::from_utf8_lossy(&done.stderr).trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "\
-P PREROUTING ACCEPT
-N CNI-HOSTPORT-DNAT
-N CNI-HOSTPORT-MASQ
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ
-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
";

    #[test]
    fn unused_chains_are_removed_and_other_rules_stay() {
        let removals = chain_removals(RULES);
        assert_eq!(
            removals[0].join(" "),
            "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
        );
        assert_eq!(removals[1][5], "CNI portfwd requiring masquerade");
        let rest: Vec<String> = removals[2..].iter().map(|r| r.join(" ")).collect();
        assert_eq!(
            rest,
            [
                "-F CNI-HOSTPORT-DNAT",
                "-F CNI-HOSTPORT-MASQ",
                "-X CNI-HOSTPORT-DNAT",
                "-X CNI-HOSTPORT-MASQ"
            ]
        );
    }

    #[test]
    fn chains_in_use_stay() {
        let used = format!("{RULES}-A CNI-HOSTPORT-DNAT -p tcp -j CNI-DN-1\n");
        assert!(chain_removals(&used).is_empty());
    }

    const MASQUERADES: &str = r#"
-N CNI-aa
-N CNI-bb
-N CNI-cc
-A POSTROUTING -s 10.1.0.7/32 -m comment --comment "name: \"knarr\" id: \"s1\"" -j CNI-aa
-A POSTROUTING -s 10.1.0.8/32 -m comment --comment "name: \"knarr\" id: \"s2\"" -j CNI-bb
-A POSTROUTING -s 10.2.0.7/32 -m comment --comment "name: \"knarr\" id: \"s3\"" -j CNI-cc
-A CNI-aa -d 10.1.0.0/24 -m comment --comment "name: \"knarr\" id: \"s1\"" -j ACCEPT
-A CNI-aa ! -d 224.0.0.0/4 -m comment --comment "name: \"knarr\" id: \"s1\"" -j MASQUERADE
-A CNI-bb -d 10.1.0.0/24 -m comment --comment "name: \"knarr\" id: \"s2\"" -j ACCEPT
-A CNI-cc -d 10.2.0.0/24 -m comment --comment "name: \"knarr\" id: \"s3\"" -j ACCEPT
"#;

    #[test]
    fn rules_of_sandboxes_without_an_address_are_removed_and_those_of_other_networks_stay() {
        let removals = |holders: &[&str]| {
            let holders = holders.iter().map(|id| id.to_string()).collect();
            leaked_rule_removals(MASQUERADES, "10.1.0.0/24", &holders)
        };
        assert!(removals(&["s1", "s2"]).is_empty());
        let removed = removals(&["s2"]);
        assert_eq!(
            removed[0].join("|"),
            r#"-D|POSTROUTING|-s|10.1.0.7/32|-m|comment|--comment|name: "knarr" id: "s1"|-j|CNI-aa"#
        );
        assert_eq!(removed[1..], [["-F", "CNI-aa"], ["-X", "CNI-aa"]]);
        assert_eq!(removals(&[]).len(), 6);
    }
}
