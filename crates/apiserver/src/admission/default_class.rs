//! DefaultStorageClass and DefaultIngressClass: claims and ingresses without a class get the class that is annotated as
//! the default; of several defaults the newest.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::networking::v1::Ingress;
use knarr_api::well_known::{BETA_STORAGE_CLASS, INGRESS_CLASS_ANNOTATION};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi, registry};
use knarr_apimachinery::Error;

use super::Admission;
use crate::cache::change::Filter;

/// Annotations that make a class the default; the second is the beta one.
const DEFAULT_STORAGE: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const DEFAULT_INGRESS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];

pub(super) fn mutate(admission: &Admission, object: &mut dyn AnyObject) -> Result<(), Error> {
    let annotated = |key: &str| {
        let annotations = object.metadata().annotations.as_ref();
        annotations.is_some_and(|a| a.contains_key(key))
    };
    let (by_storage, by_ingress) = (annotated(BETA_STORAGE_CLASS), annotated(INGRESS_CLASS_ANNOTATION));
    let any = object.as_any_mut();
    if let Some(claim) = any.downcast_mut::<PersistentVolumeClaim>() {
        let spec = claim.spec.get_or_insert_default();
        if spec.storage_class_name.is_none() && !by_storage {
            spec.storage_class_name = newest_default(admission, &registry::STORAGE_CLASS, &DEFAULT_STORAGE)?;
        }
    } else if let Some(ingress) = any.downcast_mut::<Ingress>() {
        let spec = ingress.spec.get_or_insert_default();
        if spec.ingress_class_name.is_none() && !by_ingress {
            spec.ingress_class_name = newest_default(admission, &registry::INGRESS_CLASS, &DEFAULT_INGRESS)?;
        }
    }
    Ok(())
}

/// The name of the newest class with one of these annotations set to `"true"`.
fn newest_default(
    admission: &Admission,
    kind: &Kind,
    annotation_keys: &[&str],
) -> Result<Option<String>, Error> {
    let classes = admission.cache.of(kind)?.list(&Filter::everything(kind, ""));
    Ok(newest_annotated(&classes, annotation_keys))
}

fn newest_annotated(classes: &[Arc<Object>], annotation_keys: &[&str]) -> Option<String> {
    let defaults = classes.iter().filter(|class| {
        let annotations = class.metadata().annotations.as_ref();
        annotations.is_some_and(|a| {
            annotation_keys
                .iter()
                .any(|key| a.get(*key).is_some_and(|v| v == "true"))
        })
    });
    let first = defaults.min_by_key(|class| {
        let created = class.metadata().creation_timestamp.as_ref().map(|t| t.0);
        (Reverse(created), class.name().to_string())
    });
    first.map(|class| class.name().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::storage::v1::StorageClass;
    use serde_json::json;

    #[test]
    fn of_several_defaults_the_newest_is_taken() {
        let class = |name: &str, key: &str, value: &str, created: &str| {
            let class: StorageClass = serde_json::from_value(json!({
                "metadata": {"name": name, "annotations": {key: value}, "creationTimestamp": created}, "provisioner": "p",
            }))
            .unwrap();
            Arc::new(Object::from_typed(&registry::STORAGE_CLASS, Box::new(class)))
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let [now, beta] = DEFAULT_STORAGE;
        for (classes, expected) in [
            (vec![], None),
            (
                vec![class("a", now, "false", late), class("b", "other", "true", late)],
                None,
            ),
            (
                vec![class("a", now, "true", early), class("b", beta, "true", late)],
                Some("b"),
            ),
            (
                vec![class("b", now, "true", late), class("a", now, "true", late)],
                Some("a"),
            ),
        ] {
            assert_eq!(newest_annotated(&classes, &DEFAULT_STORAGE).as_deref(), expected);
        }
    }
}
