//! DefaultTolerationSeconds: a pod tolerates a not-ready or unreachable node for 300 s unless it has a toleration of its own.

use k8s_openapi::api::core::v1::{Pod, Toleration};
use knarr_api::k8s_openapi;

const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const SECONDS: i64 = 300;

pub(super) fn mutate(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    for key in TAINTS {
        let tolerations = spec.tolerations.get_or_insert_default();
        let tolerates = |t: &Toleration| {
            let effect = t.effect.as_deref().unwrap_or("");
            let of = t.key.as_deref().unwrap_or("");
            (of == key || of.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        };
        if !tolerations.iter().any(tolerates) {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                toleration_seconds: Some(SECONDS),
                ..Toleration::default()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_own_tolerations_of_lost_nodes_stay() {
        let table: [(Option<&str>, usize); 3] = [
            (None, 2),
            (Some("node.kubernetes.io/not-ready"), 2),
            (Some(""), 1),
        ];
        for (key, expected) in table {
            let mut pod = Pod {
                spec: Some(Default::default()),
                ..Pod::default()
            };
            if let Some(key) = key {
                pod.spec.as_mut().unwrap().tolerations = Some(vec![Toleration {
                    key: Some(key.into()),
                    operator: Some("Exists".into()),
                    ..Toleration::default()
                }]);
            }
            mutate(&mut pod);
            mutate(&mut pod);
            assert_eq!(pod.spec.unwrap().tolerations.unwrap().len(), expected, "{key:?}");
        }
    }
}
