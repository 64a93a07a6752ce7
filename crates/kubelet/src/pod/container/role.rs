//! Which list of the spec a container is in.

/// The list of the spec that has the container (upstream: `ContainerType`), sidecars apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Init,
    /// An init container with restartPolicy Always (KEP 753).
    Sidecar,
    App,
    Ephemeral,
}

impl Role {
    /// The beginning of an event's `involvedObject.fieldPath`.
    pub fn field(self) -> &'static str {
        match self {
            Role::Init | Role::Sidecar => "spec.initContainers",
            Role::App => "spec.containers",
            Role::Ephemeral => "spec.ephemeralContainers",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_the_list_of_the_spec_that_has_the_container() {
        for (role, field) in [
            (Role::Init, "spec.initContainers"),
            (Role::Sidecar, "spec.initContainers"),
            (Role::App, "spec.containers"),
            (Role::Ephemeral, "spec.ephemeralContainers"),
        ] {
            assert_eq!(role.field(), field, "{role:?}");
        }
    }
}
