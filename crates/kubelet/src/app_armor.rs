//! AppArmor: the profile of a container, and the pods that a node without AppArmor rejects because they would run
//! unconfined.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{APP_ARMOR_ANNOTATION, app_armor_profile};

use crate::admission::Rejection;
use crate::guaranteed::containers;

/// The container's own profile, else the deprecated annotation (static pods may have only that), else the pod's.
pub fn profile(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    own.and_then(|c| c.app_armor_profile.clone())
        .or_else(|| {
            let annotations = pod.metadata.annotations.as_ref()?;
            let name = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
            annotations.get(&name).and_then(|text| app_armor_profile(text))
        })
        .or_else(|| of_pod.and_then(|c| c.app_armor_profile.clone()))
}

/// Whether the pod requests an AppArmor profile.
fn is_requested(pod: &Pod) -> bool {
    let confines = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let of_pod = of_pod.and_then(|c| c.app_armor_profile.as_ref());
    // An annotation with any value but `unconfined` counts.
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut old = annotations.filter(|(key, _)| key.starts_with(APP_ARMOR_ANNOTATION));
    of_pod.is_some_and(confines)
        || containers(pod).any(|c| profile(pod, c).as_ref().is_some_and(confines))
        || old.any(|(_, value)| value != "unconfined")
}

/// Whether a node admits the pod; `is_enabled` is called only for pods that request AppArmor.
pub fn admit(pod: &Pod, is_enabled: impl FnOnce() -> bool) -> Result<(), Rejection> {
    if !is_requested(pod) {
        return Ok(());
    }
    let rejection = |why: &str| Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}"));
    if !is_enabled() {
        return Err(rejection("AppArmor is not enabled on the host"));
    }
    let nameless = |profile: AppArmorProfile| {
        let name = profile.localhost_profile.unwrap_or_default();
        profile.type_ == "Localhost" && name.trim().is_empty()
    };
    match containers(pod).any(|c| profile(pod, c).is_some_and(nameless)) {
        true => Err(rejection("invalid empty AppArmor profile name")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(context: Value, own: Value, annotation: Option<&str>) -> Pod {
        let annotations = annotation.map(|a| json!({format!("{APP_ARMOR_ANNOTATION}c"): a}));
        serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"securityContext": context, "containers": [{"name": "c", "securityContext": own}]},
        }))
        .unwrap()
    }

    fn of(type_: &str, name: Option<&str>) -> Value {
        json!({"appArmorProfile": {"type": type_, "localhostProfile": name}})
    }

    #[test]
    fn l1_a_node_without_app_armor_admits_only_pods_that_do_not_request_it() {
        let none = || json!({});
        let disabled = Some("AppArmor is not enabled on the host");
        for (pod, without, with) in [
            (pod(none(), none(), None), None, None),
            (pod(of("Unconfined", None), none(), None), None, None),
            (pod(of("RuntimeDefault", None), none(), None), disabled, None),
            (pod(none(), of("Localhost", Some("x")), None), disabled, None),
            (
                pod(none(), of("Localhost", Some(" ")), None),
                disabled,
                Some("invalid empty AppArmor profile name"),
            ),
            (pod(none(), none(), Some("unconfined")), None, None),
            (pod(none(), none(), Some("localhost/x")), disabled, None),
            (pod(none(), none(), Some("rubbish")), disabled, None),
        ] {
            for (is_enabled, want) in [(false, without), (true, with)] {
                let got = admit(&pod, || is_enabled);
                let want =
                    want.map(|why| Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")));
                assert_eq!(got.err(), want, "{:?}", pod.spec);
            }
        }
    }

    #[test]
    fn l1_a_containers_own_profile_overrides_the_annotation_and_that_the_pods() {
        let requested = |pod: &Pod| {
            let container = containers(pod).next().unwrap();
            profile(pod, container).map(|p| (p.type_, p.localhost_profile.unwrap_or_default()))
        };
        let runtimes = || of("RuntimeDefault", None);
        let want = |type_: &str, name: &str| Some((type_.to_string(), name.to_string()));
        assert_eq!(requested(&pod(json!({}), json!({}), None)), None);
        assert_eq!(
            requested(&pod(runtimes(), json!({}), None)),
            want("RuntimeDefault", "")
        );
        assert_eq!(
            requested(&pod(runtimes(), json!({}), Some("localhost/x"))),
            want("Localhost", "x")
        );
        assert_eq!(
            requested(&pod(runtimes(), of("Unconfined", None), Some("localhost/x"))),
            want("Unconfined", "")
        );
    }
}
