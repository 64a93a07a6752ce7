//! v1alpha1, the first version of the configuration: one profile whose fields are at the top level, with
//! `algorithmSource`, `disablePreemption` and `hardPodAffinitySymmetricWeight`. The document on priority and
//! preemption shows it.

use knarr_apimachinery::document::{Fields, Report};

use super::plugins::ExtensionPoint;
use super::version::Version;
use super::{
    DEFAULT_SCHEDULER_NAME, KubeSchedulerConfiguration, KubeSchedulerProfile, Plugins, ScoringStrategy,
};
use super::{args, plugins};

/// The algorithm providers.
const PROVIDERS: [&str; 2] = ["DefaultProvider", CLUSTER_AUTOSCALER];
/// Packs pods onto few nodes instead of spreading them.
const CLUSTER_AUTOSCALER: &str = "ClusterAutoscalerProvider";

impl KubeSchedulerConfiguration {
    pub(super) fn read_v1alpha1(&mut self, mut fields: Fields, report: &mut Report) {
        self.read_shared(&mut fields, report);
        let scheduler_name = fields.text("schedulerName", report).filter(|n| !n.is_empty());
        let mut profile = KubeSchedulerProfile {
            scheduler_name: scheduler_name.unwrap_or(DEFAULT_SCHEDULER_NAME).to_string(),
            ..KubeSchedulerProfile::default()
        };
        profile.plugins = match fields.object("plugins", report) {
            Some(of) => plugins::read(of, Version::V1Alpha1, report),
            None => Plugins::default(),
        };
        let list = fields.list("pluginConfig", report).unwrap_or_default();
        profile.args = args::read(list, Version::V1Alpha1, report);
        if let Some(source) = fields.object("algorithmSource", report) {
            read_algorithm_source(source, &mut profile, report);
        }
        if fields.boolean("disablePreemption", report) == Some(true) {
            for point in [ExtensionPoint::PostFilter, ExtensionPoint::PreEnqueue] {
                profile.plugins.disable(point, "DefaultPreemption");
            }
        }
        const WEIGHT: &str = "hardPodAffinitySymmetricWeight";
        if let Some(weight) = fields.integer(WEIGHT, report) {
            let at = fields.at(WEIGHT);
            profile
                .args
                .set_hard_pod_affinity_weight(weight, &at, &mut report.errors);
        }
        if let Some(seconds) = fields.long("bindTimeoutSeconds", report) {
            let at = fields.at("bindTimeoutSeconds");
            profile.args.set_bind_timeout(seconds, &at, &mut report.errors);
        }
        for name in ["healthzBindAddress", "metricsBindAddress", "failureDomains"] {
            if fields.text(name, report).is_some_and(|text| !text.is_empty()) {
                report.note(&fields.at(name), "has no effect");
            }
        }
        fields.finish(report);
        self.profiles = vec![profile];
    }
}

fn read_algorithm_source(mut fields: Fields, profile: &mut KubeSchedulerProfile, report: &mut Report) {
    let at = fields.at("policy");
    if fields.take("policy").is_some() {
        let detail = "policy files are not supported; use plugins and pluginConfig";
        report.errors.forbidden(&at, detail);
    }
    if let Some(provider) = fields.text("provider", report) {
        if provider == CLUSTER_AUTOSCALER {
            profile.args.node_resources_fit.scoring_strategy = ScoringStrategy::MostAllocated;
        } else if !PROVIDERS.contains(&provider) {
            report
                .errors
                .not_supported(&fields.at("provider"), provider, &PROVIDERS);
        }
    }
    fields.finish(report);
}
