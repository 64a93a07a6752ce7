//! Configuration files: KubeSchedulerConfiguration, audit Policy, EncryptionConfiguration. Each either parses or gives at
//! least one error.

use knarr_apiserver::audit::policy::Policy;
use knarr_apiserver::encryption::Encryption;
use knarr_scheduler::config;

use crate::Target;

pub const TARGET: Target = Target {
    name: "configuration",
    check: |data| {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        let _ = config::parse(text);
        if let Err(errors) = Policy::parse(text) {
            assert!(!errors.is_empty(), "rejected without an error");
        }
        if let Err(errors) = Encryption::parse(text) {
            assert!(!errors.is_empty(), "rejected without an error");
        }
    },
    seeds: || {
        [
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\npercentageOfNodesToScore: 50\nprofiles:\n- schedulerName: a\n  plugins:\n    score:\n      enabled: [{name: NodeResourcesFit, weight: 5}]\n      disabled: [{name: '*'}]\n  pluginConfig:\n  - name: NodeResourcesFit\n    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}\n  - name: PodTopologySpread\n    args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}\n",
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n  users: [a]\n  verbs: [get]\n  resources: [{group: '', resources: [pods, 'pods/*'], resourceNames: [x]}]\n- level: None\n  nonResourceURLs: ['/healthz*']\n",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, '*.apps']\n  providers:\n  - aescbc: {keys: [{name: a, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}\n  - identity: {}\n",
        ]
        .map(|text| text.as_bytes().to_vec())
        .into()
    },
};
