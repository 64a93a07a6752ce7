//! CSIDriver: the capabilities of a CSI driver and the pod information and tokens that it needs.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{drop_empty, immutable, update_generation};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;
const UPDATE_PERIOD_SECONDS_MIN: i64 = 10;

const TOKENS_IN_ATTRIBUTES: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";

impl Strategy for CSIDriver {
    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        spec.attach_required.get_or_insert(true);
        spec.pod_info_on_mount.get_or_insert(false);
        spec.storage_capacity.get_or_insert(false);
        spec.requires_republish.get_or_insert(false);
        spec.se_linux_mount.get_or_insert(false);
        spec.fs_group_policy
            .get_or_insert_with(|| "ReadWriteOnceWithFSType".into());
        drop_empty(&mut spec.volume_lifecycle_modes);
        spec.volume_lifecycle_modes
            .get_or_insert_with(|| vec!["Persistent".into()]);
    }

    fn prepare_for_create(&mut self) {
        self.spec.prevent_pod_scheduling_if_missing = None;
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        // VolumeLimitScaling is off by default.
        if old.spec.prevent_pod_scheduling_if_missing.is_none() {
            self.spec.prevent_pod_scheduling_if_missing = None;
        }
        let changed = self.spec != old.spec;
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        facts::check(&mut errors, &path, &self.spec, &["fsGroupPolicy"]);
        let tokens = self.spec.token_requests.as_deref().unwrap_or_default();
        token_requests(tokens, &path.child("tokenRequests"), &mut errors);
        const MODES: &[&str] = &["Persistent", "Ephemeral"];
        for mode in self.spec.volume_lifecycle_modes.iter().flatten() {
            if !MODES.contains(&mode.as_str()) {
                errors.not_supported_in_order(&path.child("volumeLifecycleModes"), mode, MODES);
            }
        }
        if let Some(seconds) = self
            .spec
            .node_allocatable_update_period_seconds
            .filter(|s| *s < UPDATE_PERIOD_SECONDS_MIN)
        {
            errors.invalid(
                &path.child("nodeAllocatableUpdatePeriodSeconds"),
                seconds,
                "must be greater than or equal to 10 seconds",
            );
        }
        if let Some(in_secrets) = self.spec.service_account_token_in_secrets
            && tokens.is_empty()
        {
            errors.invalid(
                &path.child("serviceAccountTokenInSecrets"),
                in_secrets,
                "serviceAccountTokenInSecrets is set but no tokenRequests are specified",
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        let path = Path::new("spec");
        let (new, old) = (&self.spec, &old.spec);
        immutable(
            &mut errors,
            &path.child("attachedRequired"),
            &new.attach_required,
            &old.attach_required,
        );
        immutable(
            &mut errors,
            &path.child("volumeLifecycleModes"),
            &new.volume_lifecycle_modes,
            &old.volume_lifecycle_modes,
        );
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn warnings(&self) -> Vec<String> {
        let is_unset = self.spec.service_account_token_in_secrets.is_none();
        let has_tokens = self.spec.token_requests.as_ref().is_some_and(|t| !t.is_empty());
        (is_unset && has_tokens)
            .then(|| TOKENS_IN_ATTRIBUTES.to_string())
            .into_iter()
            .collect()
    }

    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        match self.spec.token_requests == old.spec.token_requests {
            true => Vec::new(),
            false => self.warnings(),
        }
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::boolean("AttachRequired"),
            Column::boolean("PodInfoOnMount"),
            Column::boolean("StorageCapacity"),
            Column::string("TokenRequests"),
            Column::boolean("RequiresRepublish"),
            Column::string("Modes"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = &self.spec;
        let tokens = spec.token_requests.as_ref().map(|requests| {
            let audiences: Vec<&str> = requests.iter().map(|r| r.audience.as_str()).collect();
            audiences.join(",")
        });
        let modes = spec.volume_lifecycle_modes.clone().unwrap_or_default().join(",");
        vec![
            table::name(&self.metadata),
            spec.attach_required.unwrap_or(true).into(),
            spec.pod_info_on_mount.unwrap_or(false).into(),
            spec.storage_capacity.unwrap_or(false).into(),
            tokens.as_deref().unwrap_or("<unset>").into(),
            spec.requires_republish.unwrap_or(false).into(),
            table::or(Some(&modes), "<none>").into(),
            table::created(&self.metadata, now),
        ]
    }
}

/// Checks `tokenRequests`: one for each audience, with an expiration that tokens may have.
fn token_requests(requests: &[TokenRequest], path: &Path, errors: &mut ErrorList) {
    let mut audiences = BTreeSet::new();
    for (i, request) in requests.iter().enumerate() {
        let path = path.index(i);
        if !audiences.insert(&request.audience) {
            errors.duplicate(&path.child("audience"), &request.audience);
            continue;
        }
        let at = path.child("expirationSeconds");
        match request.expiration_seconds {
            Some(seconds) if seconds < TOKEN_SECONDS_MIN => {
                errors.invalid(&at, seconds, "may not specify a duration less than 10 minutes");
            }
            Some(seconds) if seconds > TOKEN_SECONDS_MAX => {
                errors.invalid(
                    &at,
                    seconds,
                    "may not specify a duration larger than 2^32 seconds",
                );
            }
            _ => {}
        }
    }
}
