//! Defaults of a Pod or a PodSpec as in v1.36, and the deprecated fields and annotations that decoding converts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, DownwardAPIVolumeFile, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle,
    PersistentVolumeClaimSpec, Pod, PodSpec, Probe, ResourceRequirements, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::kinds::pod::resources::{
    RequirementKind, aggregate_containers, is_hugepages, is_overcommit_allowed,
    is_supported_pod_level_resource,
};
use knarr_apimachinery::quantity;

use super::image;

/// Default mode of files in secret, configMap, downwardAPI and projected volumes.
const FILE_MODE: i32 = 0o644;

/// Annotations that held init containers before `spec.initContainers` existed; they are dropped.
const INIT_CONTAINER_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

fn or(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or("").is_empty() {
        *field = Some(value.to_string());
    }
}

fn or_number<T: PartialEq + Default>(field: &mut Option<T>, value: T) {
    if field.as_ref().is_none_or(|v| *v == T::default()) {
        *field = Some(value);
    }
}

/// Sets all defaults of a Pod.
pub(super) fn set_pod_defaults(pod: &mut Pod) {
    drop_init_container_annotations(&mut pod.metadata.annotations);
    let spec = pod.spec.get_or_insert_default();
    if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        spec.termination_grace_period_seconds = Some(1);
    }
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        let resources = container.resources.get_or_insert_default();
        if let Some(limits) = resources.limits.clone().filter(|l| !l.is_empty()) {
            let requests = resources.requests.get_or_insert_default();
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
    default_pod_level_resources(spec);
    spec.enable_service_links.get_or_insert(true);
    if spec.host_network == Some(true) {
        for container in spec
            .containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten())
        {
            for port in container.ports.iter_mut().flatten() {
                or_number(&mut port.host_port, port.container_port);
            }
        }
    }
    set_pod_spec_defaults(spec);
    let status = pod.status.get_or_insert_default();
    let statuses = status
        .container_statuses
        .iter_mut()
        .chain(status.init_container_statuses.iter_mut())
        .chain(status.ephemeral_container_statuses.iter_mut());
    for container in statuses.flatten() {
        set_container_status_defaults(container);
    }
    resource_list(&mut status.allocated_resources);
    requirements(status.resources.as_mut());
    // podIP is podIPs[0]; where both are given and differ, podIP was meant.
    if let Some(ip) = status.pod_ip.clone().filter(|ip| !ip.is_empty()) {
        let ips = status.pod_ips.get_or_insert_default();
        if ips.first().is_none_or(|first| first.ip != ip) {
            *ips = vec![k8s_openapi::api::core::v1::PodIP { ip }];
        }
    } else if let Some(first) = status.pod_ips.as_ref().and_then(|ips| ips.first()) {
        status.pod_ip = Some(first.ip.clone()).filter(|ip| !ip.is_empty());
    }
}

/// Drops the annotations that held init containers before `spec.initContainers` existed.
pub fn drop_init_container_annotations(annotations: &mut Option<BTreeMap<String, String>>) {
    if let Some(annotations) = annotations {
        annotations.retain(|key, _| !INIT_CONTAINER_ANNOTATIONS.contains(&key.as_str()));
    }
}

/// Defaults of pod-level resources: a request is the aggregate of the containers' requests, else the pod-level limit; a limit of
/// huge pages is the aggregate of the containers' limits.
fn default_pod_level_resources(spec: &mut PodSpec) {
    let Some(own) = &spec.resources else {
        return;
    };
    let (mut limits, mut requests) = (
        own.limits.clone().unwrap_or_default(),
        own.requests.clone().unwrap_or_default(),
    );
    if !limits.is_empty() || !requests.is_empty() {
        for (name, amount) in aggregate_containers(spec, RequirementKind::Limits) {
            if is_hugepages(&name) && !requests.contains_key(&name) {
                limits.entry(name).or_insert(amount.to_wire());
            }
        }
    }
    if !limits.is_empty() {
        for (name, amount) in aggregate_containers(spec, RequirementKind::Requests) {
            if is_supported_pod_level_resource(&name) && is_overcommit_allowed(&name) {
                requests.entry(name).or_insert(amount.to_wire());
            }
        }
        for (name, limit) in &limits {
            if is_supported_pod_level_resource(name) {
                requests.entry(name.clone()).or_insert(limit.clone());
            }
        }
    }
    let own = spec.resources.get_or_insert_default();
    own.limits = Some(limits).filter(|l| !l.is_empty());
    own.requests = Some(requests).filter(|r| !r.is_empty());
}

/// Sets the defaults of a PodSpec, of a Pod or of a template. Those that only a Pod gets are not set here.
pub fn set_pod_spec_defaults(spec: &mut PodSpec) {
    or(&mut spec.dns_policy, "ClusterFirst");
    or(&mut spec.restart_policy, "Always");
    or(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
    // `serviceAccount` is a deprecated alias of `serviceAccountName`; if only the alias is set, it is used.
    let account = [&spec.service_account_name, &spec.service_account]
        .into_iter()
        .flatten()
        .find(|name| !name.is_empty())
        .cloned();
    spec.service_account_name.clone_from(&account);
    spec.service_account = account;
    for volume in spec.volumes.iter_mut().flatten() {
        set_volume_defaults(volume);
    }
    for container in spec
        .init_containers
        .iter_mut()
        .flatten()
        .chain(&mut spec.containers)
    {
        set_container_defaults(container);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        set_ephemeral_container_defaults(container);
    }
    resource_list(&mut spec.overhead);
    requirements(spec.resources.as_mut());
}

fn resource_list(list: &mut Option<BTreeMap<String, Wire>>) {
    for amount in list.iter_mut().flat_map(BTreeMap::values_mut) {
        quantity::canonicalize_resource(amount);
    }
}

fn requirements(resources: Option<&mut ResourceRequirements>) {
    if let Some(resources) = resources {
        resource_list(&mut resources.limits);
        resource_list(&mut resources.requests);
    }
}

fn set_container_defaults(container: &mut Container) {
    or(
        &mut container.image_pull_policy,
        image::pull_policy(container.image.as_deref().unwrap_or("")),
    );
    or(&mut container.termination_message_path, "/dev/termination-log");
    or(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        or(&mut port.protocol, "TCP");
    }
    for variable in container.env.iter_mut().flatten() {
        set_env_defaults(variable);
    }
    requirements(Some(container.resources.get_or_insert_default()));
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    for probe in probes.into_iter().flatten() {
        set_probe_defaults(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        set_lifecycle_defaults(lifecycle);
    }
}

fn set_ephemeral_container_defaults(container: &mut EphemeralContainer) {
    let target = container.target_container_name.take();
    let mut plain = super::as_container(std::mem::take(container));
    set_container_defaults(&mut plain);
    *container = super::as_ephemeral_container(plain, target);
}

fn set_env_defaults(variable: &mut EnvVar) {
    let Some(from) = &mut variable.value_from else {
        return;
    };
    if let Some(field) = &mut from.field_ref {
        or(&mut field.api_version, "v1");
    }
    if let Some(resource) = &mut from.resource_field_ref {
        resource.divisor.get_or_insert_with(|| Wire("0".into()));
    }
    if let Some(file) = &mut from.file_key_ref {
        file.optional.get_or_insert(false);
    }
}

fn set_probe_defaults(probe: &mut Probe) {
    or_number(&mut probe.timeout_seconds, 1);
    or_number(&mut probe.period_seconds, 10);
    or_number(&mut probe.success_threshold, 1);
    or_number(&mut probe.failure_threshold, 3);
    if let Some(http) = &mut probe.http_get {
        set_http_get_defaults(http);
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn set_http_get_defaults(http: &mut HTTPGetAction) {
    or(&mut http.path, "/");
    or(&mut http.scheme, "HTTP");
}

fn set_lifecycle_defaults(lifecycle: &mut Lifecycle) {
    for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop]
        .into_iter()
        .flatten()
    {
        if let Some(http) = &mut handler.http_get {
            set_http_get_defaults(http);
        }
    }
}

fn set_volume_defaults(volume: &mut Volume) {
    let named_only = Volume {
        name: volume.name.clone(),
        ..Volume::default()
    };
    if *volume == named_only {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(image) = &mut volume.image {
        let policy = image::pull_policy(image.reference.as_deref().unwrap_or(""));
        or(&mut image.pull_policy, policy);
    }
    if let Some(path) = &mut volume.host_path {
        path.type_.get_or_insert_default();
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(config_map) = &mut volume.config_map {
        config_map.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(FILE_MODE);
        for file in downward.items.iter_mut().flatten() {
            set_downward_file_defaults(file);
        }
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            set_projection_defaults(source);
        }
    }
    if let Some(ephemeral) = &mut volume.ephemeral
        && let Some(template) = &mut ephemeral.volume_claim_template
    {
        template.metadata.get_or_insert_default();
        set_claim_spec_defaults(&mut template.spec);
    }
    set_plugin_defaults(volume);
}

/// Defaults of the volume plugins of storage systems.
fn set_plugin_defaults(volume: &mut Volume) {
    if let Some(iscsi) = &mut volume.iscsi {
        or(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut volume.rbd {
        or(&mut rbd.pool, "rbd");
        or(&mut rbd.user, "admin");
        or(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut volume.azure_disk {
        disk.caching_mode.get_or_insert_with(|| "ReadWrite".into());
        disk.fs_type.get_or_insert_with(|| "ext4".into());
        disk.read_only.get_or_insert(false);
        disk.kind.get_or_insert_with(|| "Shared".into());
    }
    if let Some(scale_io) = &mut volume.scale_io {
        or(&mut scale_io.storage_mode, "ThinProvisioned");
        or(&mut scale_io.fs_type, "xfs");
    }
}

fn set_downward_file_defaults(file: &mut DownwardAPIVolumeFile) {
    if let Some(field) = &mut file.field_ref {
        or(&mut field.api_version, "v1");
    }
    if let Some(resource) = &mut file.resource_field_ref {
        resource.divisor.get_or_insert_with(|| Wire("0".into()));
    }
}

fn set_projection_defaults(source: &mut VolumeProjection) {
    for file in source
        .downward_api
        .iter_mut()
        .flat_map(|d| d.items.iter_mut().flatten())
    {
        set_downward_file_defaults(file);
    }
    if let Some(token) = &mut source.service_account_token {
        token.expiration_seconds.get_or_insert(3600);
    }
}

/// Sets the defaults of the spec of a PersistentVolumeClaim or of a claim template.
pub fn set_claim_spec_defaults(spec: &mut PersistentVolumeClaimSpec) {
    spec.volume_mode.get_or_insert_with(|| "Filesystem".into());
    let resources = spec.resources.get_or_insert_default();
    resource_list(&mut resources.limits);
    resource_list(&mut resources.requests);
}

fn set_container_status_defaults(status: &mut ContainerStatus) {
    status.state.get_or_insert_default();
    status.last_state.get_or_insert_default();
    resource_list(&mut status.allocated_resources);
    requirements(status.resources.as_mut());
}
