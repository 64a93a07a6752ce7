//! StatefulSet: pods with stable identities. Most of its spec is immutable.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{Json, dns_label, drop_empty, json, text, update_generation};
use super::persistent_volume_claim::claim_spec_warnings;
use super::template::{self, ReplicaCounts};
use super::{deployment, persistent_volume_claim};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

const IMMUTABLE_SPEC: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

fn empty_status() -> StatefulSetStatus {
    StatefulSetStatus {
        available_replicas: Some(0),
        ..StatefulSetStatus::default()
    }
}

impl Strategy for StatefulSet {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if text(&spec.pod_management_policy).is_empty() {
            spec.pod_management_policy = Some("OrderedReady".into());
        }
        let strategy = spec.update_strategy.get_or_insert_default();
        if text(&strategy.type_).is_empty() {
            strategy.type_ = Some("RollingUpdate".into());
            strategy.rolling_update.get_or_insert_default();
        }
        if let Some(rolling) = &mut strategy.rolling_update {
            // MaxUnavailableStatefulSet is disabled by default.
            rolling.max_unavailable = None;
            if text(&strategy.type_) == "RollingUpdate" {
                rolling.partition.get_or_insert(0);
            }
        }
        let retention = spec
            .persistent_volume_claim_retention_policy
            .get_or_insert_default();
        for when in [&mut retention.when_deleted, &mut retention.when_scaled] {
            if text(when).is_empty() {
                *when = Some("Retain".into());
            }
        }
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        spec.service_name.get_or_insert_default();
        drop_empty(&mut spec.min_ready_seconds);
        if let Some(ordinals) = &mut spec.ordinals {
            ordinals.start.get_or_insert(0);
        }
        drop_empty(&mut spec.volume_claim_templates);
        for claim in spec.volume_claim_templates.iter_mut().flatten() {
            claim.set_defaults();
        }
        template::set_defaults(&mut spec.template);
        let status = self.status.get_or_insert_with(empty_status);
        status.available_replicas.get_or_insert(0);
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(empty_status());
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            changed = self.spec != old.spec;
        }
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let spec = self.spec.clone().unwrap_or_default();
        let mut errors = validate_spec(&spec);
        let path = Path::new("spec").child("volumeClaimTemplates");
        for (i, claim) in spec.volume_claim_templates.iter().flatten().enumerate() {
            persistent_volume_claim::validate_template(claim, &path.index(i), &mut errors);
        }
        if !text(&spec.service_name).is_empty() {
            let path = Path::new("spec").child("serviceName");
            dns_label(&mut errors, &path, text(&spec.service_name));
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return validate_status(self, old);
        }
        let mut spec = self.spec.clone().unwrap_or_default();
        let old = old.spec.clone().unwrap_or_default();
        let mut errors = validate_spec(&spec);
        spec.replicas = old.replicas;
        spec.template = old.template.clone();
        spec.update_strategy = old.update_strategy.clone();
        spec.min_ready_seconds = old.min_ready_seconds;
        spec.ordinals = old.ordinals.clone();
        spec.revision_history_limit = old.revision_history_limit;
        spec.persistent_volume_claim_retention_policy = old.persistent_volume_claim_retention_policy.clone();
        if spec != old {
            errors.forbidden(&Path::new("spec"), IMMUTABLE_SPEC);
        }
        errors
    }

    fn warnings(&self) -> Vec<String> {
        warnings(self, true)
    }

    /// The template is only checked for warnings if the generation changed: an update of the metadata alone does not repeat them.
    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        warnings(self, self.metadata.generation != old.metadata.generation)
    }

    /// The name is part of the pods' names, which are also their hostnames.
    fn validate_name(name: &str) -> Vec<String> {
        names::dns1123_label(name)
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Ready"),
            table::AGE,
            table::CONTAINERS,
            table::IMAGES,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let ready = self.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
        let [containers, images] = template::cells(Some(&spec.template));
        vec![
            table::name(&self.metadata),
            format!("{ready}/{}", spec.replicas.unwrap_or(0)).into(),
            table::created(&self.metadata, now),
            containers,
            images,
        ]
    }
}

fn warnings(set: &StatefulSet, of_template: bool) -> Vec<String> {
    let Some(spec) = &set.spec else {
        return Vec::new();
    };
    let mut warnings = match of_template {
        true => template::warnings(&spec.template),
        false => Vec::new(),
    };
    for (i, claim) in spec.volume_claim_templates.iter().flatten().enumerate() {
        let path = Path::new("spec").child("volumeClaimTemplates").index(i);
        warnings.extend(
            claim
                .spec
                .iter()
                .flat_map(|spec| claim_spec_warnings(spec, &path)),
        );
    }
    if spec.revision_history_limit.unwrap_or(0) < 0 {
        warnings.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .into(),
        );
    }
    warnings
}

fn validate_spec(spec: &StatefulSetSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    match text(&spec.pod_management_policy) {
        "OrderedReady" | "Parallel" => {}
        "" => errors.required(&path.child("podManagementPolicy"), ""),
        other => errors.invalid(
            &path.child("podManagementPolicy"),
            other,
            "must be 'OrderedReady' or 'Parallel'",
        ),
    }
    update_strategy(spec, &mut errors);
    const FACTS: &[&str] = &[
        "persistentVolumeClaimRetentionPolicy",
        "replicas",
        "minReadySeconds",
        "ordinals",
    ];
    facts::check(&mut errors, &path, spec, FACTS);
    let template = template_with_claims(spec);
    template::validate_selected(&spec.selector, Some(&template), "statefulset", &mut errors);
    template::no_deadline(Some(&template), "StatefulSet", &mut errors);
    errors
}

fn update_strategy(spec: &StatefulSetSpec, errors: &mut ErrorList) {
    let path = Path::new("spec").child("updateStrategy");
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    let rolling = strategy.rolling_update.as_ref();
    let shown = || {
        rolling.map_or("null".to_string(), |r| {
            format!(
                r#"{{"Partition":{},"MaxUnavailable":{}}}"#,
                r.partition.unwrap_or(0),
                json(&r.max_unavailable).0
            )
        })
    };
    match text(&strategy.type_) {
        "" => errors.required(&path, ""),
        "OnDelete" => {
            if rolling.is_some() {
                errors.invalid(
                    &path.child("rollingUpdate"),
                    Json(shown()),
                    "only allowed for updateStrategy 'RollingUpdate'",
                );
            }
        }
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            let Some(rolling) = rolling else { return };
            facts::check(errors, &path, rolling, &["partition"]);
        }
        other => errors.invalid(
            &path,
            Json(format!(
                r#"{{"Type":{},"RollingUpdate":{}}}"#,
                json(other).0,
                shown()
            )),
            "must be 'RollingUpdate' or 'OnDelete'",
        ),
    }
}

/// The template with the volumes that the controller adds for the claims, and without hostname and subdomain, which it sets.
fn template_with_claims(spec: &StatefulSetSpec) -> PodTemplateSpec {
    let mut template = spec.template.clone();
    let Some(pod) = &mut template.spec else {
        return template;
    };
    pod.hostname = None;
    pod.subdomain = None;
    let claims = spec.volume_claim_templates.as_deref().unwrap_or(&[]);
    if claims.is_empty() {
        return template;
    }
    let name = |claim: &k8s_openapi::api::core::v1::PersistentVolumeClaim| {
        claim.metadata.name.clone().unwrap_or_default()
    };
    let mut volumes: Vec<Volume> = claims
        .iter()
        .map(|claim| Volume {
            name: name(claim),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: name(claim),
                read_only: Some(false),
            }),
            ..Volume::default()
        })
        .collect();
    let own = pod.volumes.take().unwrap_or_default();
    volumes.extend(
        own.into_iter()
            .filter(|v| !claims.iter().any(|c| name(c) == v.name)),
    );
    pod.volumes = Some(volumes);
    template
}

fn validate_status(set: &StatefulSet, old: &StatefulSet) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = set.status.clone().unwrap_or_default();
    ReplicaCounts {
        replicas: status.replicas,
        ready: status.ready_replicas.unwrap_or(0),
        available: status.available_replicas.unwrap_or(0),
        ready_name: "status.readyReplicas",
        others: &[
            ("currentReplicas", status.current_replicas.unwrap_or(0)),
            ("updatedReplicas", status.updated_replicas.unwrap_or(0)),
        ],
        free: &[
            ("observedGeneration", status.observed_generation.unwrap_or(0)),
            ("collisionCount", status.collision_count.unwrap_or(0).into()),
        ],
    }
    .validate(&mut errors);
    let before = old.status.as_ref().and_then(|s| s.collision_count);
    deployment::validate_collision_count(status.collision_count, before, &mut errors);
    errors
}
