//! HorizontalPodAutoscaler of autoscaling/v1: stored, validated and shown as autoscaling/v2.

use k8s_openapi::api::autoscaling::v1::HorizontalPodAutoscaler;
use k8s_openapi::api::autoscaling::v2;
use k8s_openapi::jiff::Timestamp;
use knarr_api::convert::autoscaler::to_v2;
use knarr_apimachinery::field::ErrorList;

use crate::table::{Cell, Column};
use crate::{Part, Strategy};

impl Strategy for HorizontalPodAutoscaler {
    fn set_defaults(&mut self) {
        self.spec.min_replicas.get_or_insert(1);
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => self.spec = old.spec.clone(),
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        to_v2(self.clone()).validate()
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        to_v2(self.clone()).validate_update(&to_v2(old.clone()), part)
    }

    fn columns() -> &'static [Column] {
        v2::HorizontalPodAutoscaler::columns()
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        to_v2(self.clone()).row(now)
    }
}
