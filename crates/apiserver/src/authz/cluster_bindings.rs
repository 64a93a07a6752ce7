//! An index of ClusterRoleBindings by subject, so that a request does not visit all of them.
//!
//! It is rebuilt from the watch cache when a ClusterRoleBinding has changed; between two changes a request costs one map
//! access for the user and one for each of its groups.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use knarr_api::{k8s_openapi, registry};
use parking_lot::RwLock;

use crate::cache::Cache;
use crate::user::User;

/// The fields of a ClusterRoleBinding that authorization needs.
pub(super) struct Binding {
    pub name: String,
    pub role: RoleRef,
    subjects: Vec<Subject>,
}

impl Binding {
    pub fn subjects(&self) -> &[Subject] {
        &self.subjects
    }
}

/// All ClusterRoleBindings as of one revision.
#[derive(Default)]
pub(super) struct Index {
    revision: u64,
    /// Sorted by name.
    bindings: Vec<Binding>,
    users: HashMap<String, Vec<usize>>,
    groups: HashMap<String, Vec<usize>>,
}

/// The current index.
#[derive(Default)]
pub(crate) struct ClusterBindings(RwLock<Option<Arc<Index>>>);

impl ClusterBindings {
    /// The index of the cache's current revision.
    pub(super) fn current(&self, cache: &Cache) -> Arc<Index> {
        let Ok(kind) = cache.of(&registry::CLUSTER_ROLE_BINDING) else {
            return Arc::default();
        };
        let newest = kind.newest();
        if let Some(index) = self.0.read().as_ref().filter(|i| i.revision == newest) {
            return index.clone();
        }
        let mut index = Index::default();
        index.revision = kind.scan("", "", |object| {
            if let Some(binding) = object.get::<ClusterRoleBinding>() {
                index.add(object.name(), binding);
            }
            true
        });
        let index = Arc::new(index);
        // If another request stored a newer index meanwhile, the next request rebuilds it.
        *self.0.write() = Some(index.clone());
        index
    }
}

impl Index {
    fn add(&mut self, name: &str, binding: &ClusterRoleBinding) {
        let at = self.bindings.len();
        let subjects = binding.subjects.clone().unwrap_or_default();
        for subject in &subjects {
            match subject.kind.as_str() {
                "User" => self.users.entry(subject.name.clone()).or_default().push(at),
                "Group" => self.groups.entry(subject.name.clone()).or_default().push(at),
                "ServiceAccount" => {
                    let namespace = subject.namespace.as_deref().unwrap_or_default();
                    let user = User::service_account(namespace, &subject.name, "").name;
                    self.users.entry(user).or_default().push(at);
                }
                _ => {}
            }
        }
        self.bindings.push(Binding {
            name: name.to_string(),
            role: binding.role_ref.clone(),
            subjects,
        });
    }

    /// The bindings that name the user or one of its groups, sorted by name.
    pub fn of(&self, user: &User) -> impl Iterator<Item = &Binding> {
        let of_user = self.users.get(&user.name);
        let of_groups = user.groups.iter().filter_map(|group| self.groups.get(group));
        let found: BTreeSet<usize> = of_user.into_iter().chain(of_groups).flatten().copied().collect();
        found.into_iter().filter_map(|at| self.bindings.get(at))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a4_a_binding_is_found_by_each_of_its_subjects_and_by_no_other() {
        let mut index = Index::default();
        let all = [
            (
                "a",
                json!([{"kind": "Group", "name": "g"}, {"kind": "User", "name": "u"}]),
            ),
            (
                "b",
                json!([{"kind": "ServiceAccount", "namespace": "ns", "name": "sa"}]),
            ),
            ("c", json!([{"kind": "User", "name": "g"}])),
            ("d", json!([{"kind": "ServiceAccount", "name": "sa"}])),
        ];
        for (name, subjects) in all {
            let binding = json!({"metadata": {"name": name}, "subjects": subjects,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}});
            index.add(name, &serde_json::from_value(binding).unwrap());
        }
        let found = |user: &User| {
            index
                .of(user)
                .map(|b| b.name.clone())
                .collect::<Vec<_>>()
                .concat()
        };
        for (user, bindings) in [
            (User::new("u", ["g"]), "a"),
            (User::new("x", ["g"]), "a"),
            (User::new("g", ["x"]), "c"),
            (User::service_account("ns", "sa", ""), "b"),
            (User::service_account("other", "sa", ""), ""),
            (User::new("sa", [""; 0]), ""),
        ] {
            assert_eq!(found(&user), bindings, "{user:?}");
        }
    }
}
