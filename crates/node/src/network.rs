//! The pod network of one node: a CNI bridge with host-local addresses, and its removal.

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
    /// The folder of CNI configurations.
    pub cni_conf: PathBuf,
    /// Where host-local keeps its leases.
    pub ipam_dir: PathBuf,
}

impl PodNetwork {
    /// Name of the network in CNI's own records.
    pub const NAME: &str = "knarr";
    const FILE: &str = "10-knarr.conflist";

    /// The bridge of the network that was last configured here; `None` if none was.
    pub fn configured_bridge(cni_conf: &Path) -> io::Result<Option<String>> {
        let text = match std::fs::read(cni_conf.join(Self::FILE)) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let conflist: serde_json::Value = serde_json::from_slice(&text)?;
        Ok(conflist["plugins"][0]["bridge"].as_str().map(str::to_string))
    }

    /// Writes the configuration list; containerd picks it up by itself.
    pub fn write(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.cni_conf)?;
        std::fs::create_dir_all(&self.ipam_dir)?;
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
    std::fs::write(&part, bytes)?;
    std::fs::rename(part, path)
}

/// Removes the bridge; it is gone already on most calls' second try, which is fine.
pub async fn remove_bridge(bridge: &str) -> io::Result<()> {
    if !Path::new("/sys/class/net").join(bridge).exists() {
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

/// Removes portmap's chains, unless a host port of anybody's is still mapped by them.
pub async fn remove_unused_chains() -> io::Result<()> {
    let rules = match iptables(&["-S"]).await {
        Ok(rules) => rules,
        // Without iptables there are no such chains either.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for change in chain_removals(&rules) {
        iptables(&change).await?;
    }
    Ok(())
}

/// The arguments that remove the chains, in order; none while the DNAT chain still leads to a pod's.
fn chain_removals(rules: &str) -> Vec<Vec<&str>> {
    if rules.lines().any(|l| l.starts_with("-A CNI-HOSTPORT-DNAT ")) {
        return Vec::new();
    }
    let mut removals: Vec<Vec<&str>> = Vec::new();
    let named = |l: &&str| {
        HOST_PORT_CHAINS
            .iter()
            .any(|c| l.split(' ').any(|word| word == *c))
    };
    let from_others = |l: &&str| l.starts_with("-A ") && !l.starts_with("-A CNI-HOSTPORT-");
    for rule in rules.lines().filter(named).filter(from_others) {
        let mut words = split_rule(rule);
        words[0] = "-D";
        removals.push(words);
    }
    let present = |c: &&&str| rules.lines().any(|l| l.strip_prefix("-N ") == Some(**c));
    for step in ["-F", "-X"] {
        removals.extend(HOST_PORT_CHAINS.iter().filter(present).map(|c| vec![step, *c]));
    }
    removals
}

/// The words of a rule as `iptables -S` prints it; comments stand in double quotes.
fn split_rule(rule: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (i, part) in rule.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(part)
        } else {
            words.extend(part.split_whitespace())
        }
    }
    words
}

async fn iptables(args: &[&str]) -> io::Result<String> {
    let done = tokio::process::Command::new("iptables")
        .args(["--wait", "-t", "nat"])
        .args(args)
        .output()
        .await?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(io::Error::other(format!(
        "iptables {}: {}",
        args.join(" "),
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
    fn unused_chains_go_and_other_rules_stay() {
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
}
