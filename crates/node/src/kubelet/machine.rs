//! The machine under a kubelet, as far as the kubelet uses it beside the container runtime.

/// Whether there is a machine at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// The one this process runs on: its size and names, its cgroups, a thread for slow work on files.
    #[default]
    Host,
    /// One that is only told of (a hollow node, as kubemark has them): of this size, without cgroups, and with all
    /// work on the calling thread. A kubelet on it is a function of what it is told, which a simulation needs.
    Hollow { cpus: usize, memory_bytes: i64 },
}

impl Machine {
    pub(crate) fn is_host(self) -> bool {
        self == Machine::Host
    }

    /// Whether its kernel can confine by AppArmor: nobody switches that while it runs.
    pub(crate) fn has_app_armor(self) -> bool {
        let enabled = || std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
        self.is_host()
            && std::path::Path::new("/sys/kernel/security/apparmor").exists()
            && enabled().is_ok_and(|text| text.starts_with('Y'))
    }
}
