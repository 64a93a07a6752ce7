//! Ownership of an object's number of replicas in its Scale, which is of another kind (`ScaleHandler` of apimachinery).
//!
//! A manager that writes a scale owns only that number. Before the write the object's managers become the scale's
//! ([`Managed::of_scale`]), after it the scale's the object's ([`Managed::with_scale`]).

use super::managers::{Fields, Managed};
use super::set::FieldSet;
use crate::kind::Kind;
use crate::scale::SCALE;

const IN_SCALE: [&str; 2] = ["spec", "replicas"];

/// The path of the replicas in a version of the kind: `None` for a version of another kind, empty for one without replicas.
fn path(kind: &Kind, api_version: &str) -> Option<Vec<String>> {
    if kind.ops.custom().is_some() {
        let version = match kind.api_version() == api_version {
            true => kind.clone(),
            false => kind.served_version(api_version)?,
        };
        let rules = version.ops.custom()?.rules();
        let path = rules.scale.as_ref().map(|s| s.spec_replicas_path.as_str());
        let names = path.map(|p| p.trim_start_matches('.').split('.').map(str::to_string).collect());
        return Some(names.unwrap_or_default());
    }
    (kind.api_version() == api_version).then(|| IN_SCALE.map(str::to_string).to_vec())
}

fn holds(fields: &Fields, path: &[impl AsRef<str>]) -> bool {
    !path.is_empty()
        && !fields
            .set
            .intersection(&FieldSet::default().with(path))
            .is_empty()
}

impl Managed {
    /// The managers of the object's replicas, as managers of its scale's.
    pub fn of_scale(&self, kind: &Kind) -> Managed {
        let holders = self.0.iter().filter_map(|(id, fields)| {
            let path = path(kind, &fields.api_version)?;
            holds(fields, &path).then(|| {
                let fields = Fields {
                    set: FieldSet::default().with(&IN_SCALE),
                    api_version: SCALE.api_version(),
                    time: fields.time,
                };
                let mut id = id.clone();
                if !id.api_version.is_empty() {
                    id.api_version.clone_from(&fields.api_version);
                }
                (id, fields)
            })
        });
        Managed(holders.collect())
    }

    /// The object's managers after its scale was written: `scale` are the scale's managers now.
    pub fn with_scale(mut self, kind: &Kind, scale: Managed) -> Managed {
        let api_version = kind.api_version();
        let mut holders = scale.0;
        holders.retain(|_, fields| holds(fields, &IN_SCALE));
        self.0.retain(|id, fields| {
            let Some(path) = path(kind, &fields.api_version) else {
                return false;
            };
            if !holds(fields, &path) {
                return true;
            }
            let mut same = holders.keys().filter(|h| {
                h.name == id.name && h.operation == id.operation && h.subresource == id.subresource
            });
            match same.next().cloned() {
                Some(kept) => {
                    holders.remove(&kept);
                }
                // Another manager owns it now.
                None => {
                    let set = std::mem::take(&mut fields.set);
                    fields.set = set.difference(&FieldSet::default().with(&path));
                }
            }
            !fields.set.is_empty()
        });
        let set = path(kind, &api_version).map(|path| FieldSet::default().with(&path));
        for (mut id, _) in holders {
            if !id.api_version.is_empty() {
                id.api_version.clone_from(&api_version);
            }
            let fields = Fields {
                set: set.clone().unwrap_or_default(),
                api_version: api_version.clone(),
                // Kubernetes records no time for writes through the scale.
                time: None,
            };
            self.0.insert(id, fields);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use serde_json::json;

    use super::*;
    use crate::registry::DEPLOYMENT;

    type Entry<'a> = (&'a str, &'a str, &'a str, &'a str);

    fn managed(api_version: &str, entries: &[Entry<'_>]) -> Managed {
        let entries: Vec<ManagedFieldsEntry> = entries
            .iter()
            .map(|(manager, operation, subresource, fields)| {
                let fields: serde_json::Value = serde_json::from_str(fields).unwrap();
                serde_json::from_value(
                    json!({"manager": manager, "operation": operation, "apiVersion": api_version,
                    "subresource": Some(*subresource).filter(|s| !s.is_empty()),
                    "fieldsType": "FieldsV1", "fieldsV1": fields}),
                )
                .unwrap()
            })
            .collect();
        Managed::decode(&entries).unwrap()
    }

    fn entries_of(managed: Managed) -> Vec<String> {
        let entries = managed.encode().unwrap_or_default();
        let lines = entries.into_iter().map(|e| {
            format!(
                "{} {} {} {} {}",
                e.manager.unwrap_or_default(),
                e.operation.unwrap_or_default(),
                e.api_version.unwrap_or_default(),
                e.subresource.unwrap_or_default(),
                e.fields_v1
                    .and_then(|f| f.0.as_str().map(str::to_string))
                    .unwrap_or_default()
            )
        });
        lines.collect()
    }

    #[test]
    fn replicas_change_managers_through_the_scale() {
        const BOTH: &str = r#"{"f:spec":{"f:replicas":{},"f:selector":{}}}"#;
        const ONE: &str = r#"{"f:spec":{"f:replicas":{}}}"#;
        let parent = managed(
            "apps/v1",
            &[
                ("test", "Apply", "", BOTH),
                ("other", "Update", "", r#"{"f:data":{}}"#),
            ],
        );
        assert_eq!(
            entries_of(parent.of_scale(&DEPLOYMENT)),
            [format!("test Apply autoscaling/v1  {ONE}")]
        );
        for (who, operation, subresource, after) in [
            // Owned by another manager now,
            (
                "scale",
                "Update",
                "scale",
                &[
                    r#"test Apply apps/v1  {"f:spec":{"f:selector":{}}}"#,
                    r#"other Update apps/v1  {"f:data":{}}"#,
                    r#"scale Update apps/v1 scale {"f:spec":{"f:replicas":{}}}"#,
                ][..],
            ),
            // or still by the first one.
            (
                "test",
                "Apply",
                "",
                &[
                    r#"test Apply apps/v1  {"f:spec":{"f:replicas":{},"f:selector":{}}}"#,
                    r#"other Update apps/v1  {"f:data":{}}"#,
                ],
            ),
        ] {
            let scale = managed("autoscaling/v1", &[(who, operation, subresource, ONE)]);
            assert_eq!(entries_of(parent.clone().with_scale(&DEPLOYMENT, scale)), after);
        }
        let old = managed("apps/v0", &[("gone", "Update", "", BOTH)]);
        assert!(old.with_scale(&DEPLOYMENT, Managed::default()).is_empty());
    }
}
