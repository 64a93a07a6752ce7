//! Capabilities by name.

use rustix::thread::CapabilitySet;

use super::config::Capabilities;

/// By number (linux/capability.h), each with the prefix `CAP_` in a configuration.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The sets of a process. There are no ambient ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sets {
    pub bounding: CapabilitySet,
    pub effective: CapabilitySet,
    pub permitted: CapabilitySet,
    pub inheritable: CapabilitySet,
}

impl Sets {
    /// None if a name is not known, or if there are ambient ones.
    pub fn parse(names: &Capabilities) -> Option<Sets> {
        if !names.ambient.is_empty() {
            return None;
        }
        Some(Sets {
            bounding: set(&names.bounding)?,
            effective: set(&names.effective)?,
            permitted: set(&names.permitted)?,
            inheritable: set(&names.inheritable)?,
        })
    }
}

fn set(names: &[String]) -> Option<CapabilitySet> {
    let mut bits = 0;
    for name in names {
        let name = name.strip_prefix("CAP_")?;
        bits |= 1_u64 << NAMES.iter().position(|known| *known == name)?;
    }
    Some(CapabilitySet::from_bits_retain(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_kernels_numbers() {
        let of = |name: &str| set(&[name.to_owned()]);
        assert_eq!(of("CAP_CHOWN"), Some(CapabilitySet::CHOWN));
        assert_eq!(of("CAP_SYS_ADMIN"), Some(CapabilitySet::SYS_ADMIN));
        assert_eq!(of("CAP_SETFCAP"), Some(CapabilitySet::SETFCAP));
        assert_eq!(
            of("CAP_CHECKPOINT_RESTORE"),
            Some(CapabilitySet::CHECKPOINT_RESTORE)
        );
        assert_eq!(of("CAP_OF_TOMORROW"), None);
        assert_eq!(of("KILL"), None);
    }
}
