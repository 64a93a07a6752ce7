//! Which fence agents a FencingPolicy may name, and which parameters it may give them: closed lists (SPEC A4).
//!
//! Agents run on the server, as the server's user. Many of their parameters are not about a device: they name programs
//! (`ssh_path`, `password_script`), options of programs (`ssh_options`), files that are read or written (`identity_file`,
//! `debug_file`, `logfile`), or change what a result means (`action`, `method`, `missing_as_off`). No policy may set
//! these. The lists are from Debian's fence-agents 4.12; the administrator of the server adds agents and
//! parameters of other agents ([`Allowed::parse`]), but nothing of [`is_forbidden`].
//!
//! Names are compared exactly. Debian's agents accept `-` for `_` and strip spaces around a line, so that only an
//! exact comparison with a list leaves no second spelling of a parameter. A line ends with CR as well as with LF for
//! them: values have no control characters at all.

use std::collections::{BTreeMap, BTreeSet};

use super::kinds::{Agent, SECRETS, SecretRef};

/// Bytes of one value; the longest real one is a key of a cloud's API.
pub const VALUE_MAX: usize = 1024;

/// Of every agent: the node, and timeouts for its device.
const EVERY: &[&str] = &[
    "delay",
    "login_timeout",
    "plug",
    "power_timeout",
    "power_wait",
    "retry_on",
    "shell_timeout",
    "stonith_status_sleep",
];
/// The name or number of a node or an outlet, under another name than `plug`.
const PORT: &[&str] = &["port"];
/// The address of a device and the login.
const LOGIN: &[&str] = &[
    "ip", "ipaddr", "ipport", "login", "passwd", "password", "username",
];
/// The same without an address.
const ACCOUNT: &[&str] = &["login", "passwd", "password", "username"];
const TLS: &[&str] = &["notls", "ssl", "ssl_insecure", "ssl_secure"];
const SSH: &[&str] = &["inet4_only", "inet6_only", "secure", "ssh"];
const SNMP: &[&str] = &[
    "community",
    "snmp_auth_prot",
    "snmp_priv_passwd",
    "snmp_priv_prot",
    "snmp_sec_level",
    "snmp_version",
];
const IPMI: &[&str] = &[
    "auth",
    "cipher",
    "hexadecimal_kg",
    "ipmitool_timeout",
    "lanplus",
    "privlvl",
    "target",
];
const VIRT: &[&str] = &["ip_family", "ipport", "multicast_address", "retrans", "use_uuid"];
const AWS: &[&str] = &["access_key", "filter", "region", "secret_key"];
const AZURE: &[&str] = &[
    "cloud",
    "msi",
    "network_fencing",
    "resourceGroup",
    "subscriptionId",
    "tenantId",
];
const GCE: &[&str] = &[
    "apitimeout",
    "baremetalsolution",
    "project",
    "retries",
    "retrysleep",
    "zone",
];
const OPENSTACK: &[&str] = &[
    "apitimeout",
    "auth_url",
    "project_domain_name",
    "project_name",
    "ssl_insecure",
    "user_domain_name",
    "uuid",
];
const PVE: &[&str] = &["node_name", "pve_node", "pve_node_auto", "vmtype"];

/// Debian's agents that switch a node off, or cut it off from its storage, with the allowed parameters of each in addition to [`EVERY`].
/// Not here: agents that succeed without a device (`fence_dummy`, `fence_heuristics_ping`, `fence_ack_manual`), that need
/// files of the server (`fence_kubevirt`: a kubeconfig, which may name programs; `fence_ibm_vpc`: a token file), or that act
/// for another cluster manager (`fence_compute`, `fence_evacuate`).
const AGENTS: &[(&str, &[&[&str]])] = &[
    ("fence_amt", &[LOGIN, &["boot_option"]]),
    ("fence_apc", &[LOGIN, SSH, PORT, &["switch"]]),
    ("fence_apc_snmp", &[LOGIN, SNMP, PORT]),
    ("fence_aws", &[AWS, PORT]),
    ("fence_azure_arm", &[ACCOUNT, AZURE, PORT]),
    ("fence_bladecenter", &[LOGIN, SSH, PORT]),
    ("fence_cdu", &[LOGIN, PORT, &["switch"]]),
    ("fence_cisco_ucs", &[LOGIN, TLS, PORT, &["suborg"]]),
    ("fence_drac5", &[LOGIN, SSH, PORT, &["drac_version"]]),
    ("fence_eaton_snmp", &[LOGIN, SNMP, PORT]),
    ("fence_emerson", &[LOGIN, SNMP, PORT]),
    ("fence_gce", &[GCE, PORT]),
    ("fence_hpblade", &[LOGIN, SSH, PORT]),
    ("fence_ibmblade", &[LOGIN, SNMP, PORT]),
    ("fence_idrac", &[LOGIN, IPMI]),
    ("fence_ifmib", &[LOGIN, SNMP, PORT]),
    ("fence_ilo", &[LOGIN, TLS, &["ribcl", "ribcl_version", "tls1.0"]]),
    ("fence_ilo2", &[LOGIN, TLS, &["ribcl", "ribcl_version", "tls1.0"]]),
    ("fence_ilo3", &[LOGIN, IPMI]),
    ("fence_ilo3_ssh", &[LOGIN, SSH]),
    ("fence_ilo4", &[LOGIN, IPMI]),
    ("fence_ilo4_ssh", &[LOGIN, SSH]),
    ("fence_ilo5", &[LOGIN, IPMI]),
    ("fence_ilo5_ssh", &[LOGIN, SSH]),
    ("fence_ilo_moonshot", &[LOGIN, SSH, PORT]),
    ("fence_ilo_mp", &[LOGIN, SSH]),
    ("fence_ilo_ssh", &[LOGIN, SSH]),
    ("fence_imm", &[LOGIN, IPMI]),
    ("fence_intelmodular", &[LOGIN, SNMP, PORT]),
    ("fence_ipdu", &[LOGIN, SNMP, PORT]),
    ("fence_ipmilan", &[LOGIN, IPMI]),
    ("fence_ipmilanplus", &[LOGIN, IPMI]),
    ("fence_lpar", &[LOGIN, SSH, PORT, &["hmc_version", "managed"]]),
    ("fence_mpath", &[PORT, &["devices", "key"]]),
    ("fence_netio", &[LOGIN, PORT]),
    ("fence_openstack", &[ACCOUNT, OPENSTACK, PORT]),
    ("fence_ovh", &[ACCOUNT, PORT, &["email"]]),
    ("fence_pve", &[LOGIN, TLS, PVE, PORT]),
    ("fence_raritan", &[LOGIN, PORT]),
    ("fence_raritan_px3", &[LOGIN, SSH, PORT]),
    ("fence_redfish", &[LOGIN, TLS, &["redfish_uri", "systems_uri"]]),
    ("fence_rhevm", &[LOGIN, TLS, PORT, &["api_version"]]),
    ("fence_rsa", &[LOGIN, SSH]),
    ("fence_rsb", &[LOGIN, SSH]),
    ("fence_sbd", &[PORT, &["devices"]]),
    ("fence_scsi", &[PORT, &["aptpl", "devices", "key", "key_value"]]),
    ("fence_tripplite_snmp", &[LOGIN, SNMP, PORT]),
    ("fence_virsh", &[LOGIN, SSH, PORT]),
    ("fence_virt", &[VIRT, PORT]),
    ("fence_vmware_rest", &[LOGIN, TLS, PORT, &["filter"]]),
    ("fence_vmware_soap", &[LOGIN, TLS, PORT]),
    ("fence_wti", &[LOGIN, SSH, PORT]),
    ("fence_xenapi", &[ACCOUNT, PORT, &["session_url"]]),
    ("fence_xvm", &[VIRT, PORT]),
];

/// Parameters that are passed on to logins or APIs of devices, and may contain any printable character.
const TEXTS: &[&str] = &[
    "access_key",
    "community",
    "filter",
    "hexadecimal_kg",
    "login",
    "passwd",
    "password",
    "secret_key",
    "snmp_priv_passwd",
    "username",
];
/// The parameter with block devices of the server.
const DEVICES: &str = "devices";

/// Why an agent or a parameter of a policy is denied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Denied {
    #[error("{agent} is not an allowed fence agent; the server's --fence-agents-allow names others")]
    Agent { agent: String },
    #[error("{agent}: parameter {key:?} is not allowed")]
    Parameter { agent: String, key: String },
    #[error("{agent}: the value of parameter {key:?} is not allowed: expected {expected}")]
    Value {
        agent: String,
        key: String,
        expected: &'static str,
    },
    #[error("{agent}: parameter {key:?} is in the policy and in its Secret")]
    Twice { agent: String, key: String },
    #[error("{agent}: secretRef names namespace {namespace:?}; expected {SECRETS:?}")]
    Secret { agent: String, namespace: String },
}

/// Why an agent or a parameter cannot be allowed in addition to the lists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowError {
    #[error("{0:?} is not the name of a fence agent: expected fence_…")]
    Agent(String),
    #[error("{agent}: parameter {key:?} is never given to an agent")]
    Parameter { agent: String, key: String },
}

/// Whether this parameter is denied for every agent, in whatever spelling: it names a program, options of one, or a file,
/// or it changes the action or what the result means.
fn is_forbidden(key: &str) -> bool {
    let key = key.trim().to_ascii_lowercase().replace('-', "_");
    let exactly = [
        "action",
        "cacert",
        "disable_timeout",
        "exec",
        "help",
        "identity_file",
        "kubeconfig",
        "logfile",
        "method",
        "missing_as_off",
        "openrc",
        "option",
        "plug_separator",
        "quiet",
        "separator",
        "sudo",
        "suppress_errors",
        "use_sudo",
        "version",
    ];
    exactly.contains(&key.as_str())
        || key.starts_with("debug")
        || key.starts_with("verbose")
        || ["_debug", "_file", "_options", "_path", "_script"]
            .iter()
            .any(|end| key.ends_with(end))
}

/// The agents and parameters that policies may name: the lists of this module, and what the server's administrator added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    added: BTreeMap<String, BTreeSet<String>>,
}

impl Allowed {
    /// Parses what is allowed in addition to the lists: `fence_own` or `fence_own:ip,zone`, separated by spaces.
    pub fn parse(text: &str) -> Result<Self, AllowError> {
        let mut added: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for word in text.split_whitespace() {
            let (agent, keys) = word.split_once(':').unwrap_or((word, ""));
            let named = agent.strip_prefix("fence_").is_some_and(|rest| !rest.is_empty());
            if !named || agent.contains('/') {
                return Err(AllowError::Agent(agent.to_string()));
            }
            let of_agent = added.entry(agent.to_string()).or_default();
            for key in keys.split(',').filter(|k| !k.is_empty()) {
                if is_forbidden(key) {
                    let (agent, key) = (agent.to_string(), key.to_string());
                    return Err(AllowError::Parameter { agent, key });
                }
                of_agent.insert(key.to_string());
            }
        }
        Ok(Allowed { added })
    }

    /// Whether policies may name the agent.
    pub fn agent(&self, agent: &str) -> Result<(), Denied> {
        match listed(agent).is_some() || self.added.contains_key(agent) {
            true => Ok(()),
            false => Err(Denied::Agent {
                agent: agent.to_string(),
            }),
        }
    }

    /// Whether the agent may get this parameter.
    pub fn parameter(&self, agent: &str, key: &str, value: &str) -> Result<(), Denied> {
        self.agent(agent)?;
        let of_agent = listed(agent).unwrap_or_default();
        let known = EVERY.contains(&key)
            || of_agent.iter().any(|keys| keys.contains(&key))
            || self.added.get(agent).is_some_and(|keys| keys.contains(key));
        let well_formed = key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
        if !known || !well_formed || is_forbidden(key) {
            return Err(Denied::Parameter {
                agent: agent.to_string(),
                key: key.to_string(),
            });
        }
        let denied = |expected| {
            Err(Denied::Value {
                agent: agent.to_string(),
                key: key.to_string(),
                expected,
            })
        };
        if value.len() > VALUE_MAX {
            return denied("at most 1024 bytes");
        }
        if value.chars().any(char::is_control) {
            return denied("no control characters");
        }
        if TEXTS.contains(&key) {
            return Ok(());
        }
        if value.starts_with('-') || value.contains(is_special) {
            return denied("no leading \"-\", no quotes and none of \\ $ ; & | < > ( ) # *");
        }
        // A node's name may contain spaces; any other value could become several arguments of a program.
        if !["plug", "port"].contains(&key) && value.contains(char::is_whitespace) {
            return denied("no spaces");
        }
        let mut devices = value.split(',');
        if key == DEVICES && !devices.all(|d| d.starts_with("/dev/") && !d.contains("..")) {
            return denied("paths below /dev, separated by commas");
        }
        Ok(())
    }

    /// Checks everything about an agent in a policy, except the content of its Secret.
    pub fn policy(&self, agent: &Agent) -> Vec<Denied> {
        if let Err(denied) = self.agent(&agent.agent) {
            return vec![denied];
        }
        let of_nodes = agent.node_parameters.values().flatten();
        let given = agent.parameters.iter().chain(of_nodes);
        let given = given.map(|(key, value)| self.parameter(&agent.agent, key, value));
        let secret = agent.secret_ref.as_ref().map(|s| secret(&agent.agent, s));
        let denied: BTreeSet<Denied> = given.chain(secret).filter_map(Result::err).collect();
        denied.into_iter().collect()
    }
}

/// Whether an agent may use this Secret.
pub fn secret(agent: &str, secret: &SecretRef) -> Result<(), Denied> {
    match secret.namespace == SECRETS {
        true => Ok(()),
        false => Err(Denied::Secret {
            agent: agent.to_string(),
            namespace: secret.namespace.clone(),
        }),
    }
}

fn listed(agent: &str) -> Option<&'static [&'static [&'static str]]> {
    let at = AGENTS.binary_search_by_key(&agent, |(name, _)| *name).ok()?;
    AGENTS.get(at).map(|(_, keys)| *keys)
}

/// Whether a shell, or a program that splits words as a shell does, treats the character specially.
fn is_special(c: char) -> bool {
    matches!(
        c,
        '\'' | '"' | '`' | '\\' | '$' | ';' | '&' | '|' | '<' | '>' | '(' | ')' | '#' | '*'
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a4_the_lists_are_in_order_and_contain_no_forbidden_parameter() {
        assert!(AGENTS.is_sorted_by_key(|(name, _)| *name));
        for (agent, keys) in AGENTS {
            for key in keys.iter().copied().flatten().chain(EVERY) {
                assert!(!is_forbidden(key), "{agent}: {key}");
                let value = if *key == DEVICES { "/dev/sdb" } else { "1" };
                assert_eq!(
                    Allowed::default().parameter(agent, key, value),
                    Ok(()),
                    "{agent} {key}"
                );
            }
        }
    }

    #[test]
    fn a4_the_action_of_an_agent_cannot_be_set_by_a_parameter_in_any_spelling() {
        let added = Allowed::parse("fence_own:zone").unwrap();
        for agent in ["fence_ipmilan", "fence_scsi", "fence_own"] {
            for key in [
                "action",
                "ACTION",
                " action",
                "action ",
                "\taction",
                "option",
                "method",
                "ssh_path",
                "ssh-path",
                "ssh_options",
                "ipmitool_path",
                "debug",
                "debug_file",
                "debug-file",
                "verbose",
                "verbose_level",
                "logfile",
                "password_script",
                "passwd-script",
                "identity_file",
                "missing_as_off",
                "",
                "plug=1\naction",
                "plug\raction",
                "PLUG",
                "pl-ug",
                "zóne",
            ] {
                let denied = added.parameter(agent, key, "status");
                assert!(
                    matches!(denied, Err(Denied::Parameter { .. })),
                    "{agent} {key:?}: {denied:?}"
                );
            }
        }
    }

    #[test]
    fn a4_a_value_is_one_word_for_the_agent_and_for_what_it_runs() {
        let allowed = Allowed::default();
        let ok = |key: &str, value: &str| allowed.parameter("fence_ipmilan", key, value).is_ok();
        for value in [
            "a\nb",
            "a\raction=status",
            "a\u{85}b",
            "a\0",
            &"x".repeat(VALUE_MAX + 1),
        ] {
            for key in ["ip", "plug", "password"] {
                assert!(!ok(key, value), "{key}={value:?}");
            }
        }
        for value in [
            "-f /etc/shadow",
            "1.2.3.4 -f /etc/shadow",
            "$(id)",
            "`id`",
            "a;b",
            "a|b",
            "\"a\"",
        ] {
            assert!(!ok("ip", value), "{value}");
        }
        assert!(ok("ip", "[2001:db8::1]") && ok("ip", "bmc-1.example.com") && ok("plug", "my machine"));
        assert!(ok("password", "a b $;'\"&é"));
        let device = |value: &str| allowed.parameter("fence_scsi", "devices", value).is_ok();
        assert!(device("/dev/sdb,/dev/mapper/x"));
        assert!(!device("/etc/passwd") && !device("/dev/../etc/passwd") && !device("/dev/sdb,/etc/x"));
    }

    #[test]
    fn a4_an_agent_that_is_not_listed_is_run_only_where_the_server_allows_it() {
        for agent in [
            "fence_dummy",
            "fence_kubevirt",
            "fence_x",
            "fence_ipmilan2",
            "sh",
            "",
        ] {
            assert!(Allowed::default().agent(agent).is_err(), "{agent}");
        }
        let added = Allowed::parse(" fence_x  fence_apc:cmd fence_y:a,b").unwrap();
        assert_eq!(added.parameter("fence_x", "plug", "n1"), Ok(()));
        assert!(added.parameter("fence_x", "a", "1").is_err());
        assert_eq!(added.parameter("fence_y", "b", "1"), Ok(()));
        assert_eq!(added.parameter("fence_apc", "cmd", "1"), Ok(()));
        for bad in [
            "sh",
            "fence_",
            "fence_x/../y",
            "fence_x:action",
            "fence_x:ssh_path",
            "fence_x:DEBUG-file",
        ] {
            assert!(Allowed::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a4_everything_that_a_policy_may_not_name_is_reported() {
        let agent = |value| serde_json::from_value::<Agent>(value).unwrap();
        let good = agent(
            json!({"agent": "fence_ipmilan", "parameters": {"ip": "192.0.2.1", "lanplus": "1"},
            "nodeParameters": {"n1": {"ip": "192.0.2.2"}}, "secretRef": {"namespace": SECRETS, "name": "bmc"}}),
        );
        assert_eq!(Allowed::default().policy(&good), []);
        let bad = agent(
            json!({"agent": "fence_ipmilan", "parameters": {"action": "status"},
            "nodeParameters": {"n1": {"ipmitool_path": "/tmp/x"}},
            "secretRef": {"namespace": "kube-system", "name": "t"}}),
        );
        let messages: Vec<String> = Allowed::default()
            .policy(&bad)
            .iter()
            .map(Denied::to_string)
            .collect();
        assert_eq!(
            messages,
            [
                "fence_ipmilan: parameter \"action\" is not allowed",
                "fence_ipmilan: parameter \"ipmitool_path\" is not allowed",
                "fence_ipmilan: secretRef names namespace \"kube-system\"; expected \"knarr-fencing\"",
            ]
        );
    }

    #[test]
    fn a4_a_value_has_at_most_1024_bytes() {
        let allowed = Allowed::parse("fence_a:ip").unwrap();
        for (bytes, passes) in [(1024, true), (1025, false)] {
            assert_eq!(
                allowed.parameter("fence_a", "ip", &"7".repeat(bytes)).is_ok(),
                passes,
                "{bytes}"
            );
        }
    }
}
