//! The checks of the Pod Security Standards by tables: what each level denies, with its messages.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

fn details(level: Level, version: Version, annotations: Value, spec: Value) -> Option<String> {
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec})).unwrap();
    let level_version = LevelVersion { level, version };
    evaluate(level_version, &pod.metadata, &pod.spec.unwrap()).map(|v| v.details())
}

/// Two containers with this security context each, and the pod's.
fn both(container: Value, pod: Value) -> Value {
    json!({
        "securityContext": pod,
        "containers": [{"name": "a", "securityContext": container}, {"name": "b", "securityContext": container}],
    })
}

fn container(rest: Value) -> Value {
    let mut container = json!({"name": "a"});
    container
        .as_object_mut()
        .unwrap()
        .extend(rest.as_object().unwrap().clone());
    json!({"containers": [container]})
}

/// A pod that passes the restricted level, with a change.
fn confined(change: impl FnOnce(&mut Value)) -> Value {
    let mut spec = json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "a", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        }}],
    });
    change(&mut spec);
    spec
}

#[test]
fn every_check_is_in_order() {
    let key = |check: &&Check| (check.level, check.name);
    assert!(CHECKS.is_sorted_by_key(key));
    for check in CHECKS {
        assert!(
            check.versions.is_sorted_by_key(|(from, _)| *from),
            "{}",
            check.name
        );
        assert!(
            check.versions.iter().all(|(from, _)| *from <= NEWEST),
            "{}",
            check.name
        );
        let of = check.instead_of;
        assert!(
            of.is_none_or(|of| CHECKS.iter().any(|c| c.name == of)),
            "{}",
            check.name
        );
    }
}

#[test]
fn the_privileged_level_allows_every_pod_and_the_baseline_a_plain_one() {
    let bad = json!({"hostNetwork": true, "containers": []});
    assert_eq!(details(Level::Privileged, Version::Latest, json!({}), bad), None);
    let plain = container(json!({}));
    assert_eq!(details(Level::Baseline, Version::Latest, json!({}), plain), None);
    assert_eq!(
        details(Level::Restricted, Version::Latest, json!({}), confined(|_| {})),
        None
    );
}

#[test]
fn a_plain_pod_has_all_violations_of_the_restricted_level() {
    let found = details(
        Level::Restricted,
        Version::Latest,
        json!({}),
        both(json!({}), json!({})),
    );
    assert_eq!(
        found.as_deref(),
        Some(
            "allowPrivilegeEscalation != false (containers \"a\", \"b\" must set \
securityContext.allowPrivilegeEscalation=false), \
unrestricted capabilities (containers \"a\", \"b\" must set securityContext.capabilities.drop=[\"ALL\"]), \
runAsNonRoot != true (pod or containers \"a\", \"b\" must set securityContext.runAsNonRoot=true), \
seccompProfile (pod or containers \"a\", \"b\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
\"Localhost\")"
        )
    );
}

#[test]
fn the_baseline_forbids_access_to_the_host() {
    let latest = Version::Latest;
    for (version, annotations, spec, expected) in [
        (
            latest,
            json!({}),
            json!({"hostNetwork": true, "hostPID": true, "hostIPC": true, "containers": []}),
            Some("host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)"),
        ),
        (
            latest,
            json!({}),
            json!({"containers": [], "volumes": [
                {"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}}, {"name": "x", "hostPath": {"path": "/"}},
            ]}),
            Some("hostPath volumes (volumes \"v\", \"x\")"),
        ),
        (
            latest,
            json!({}),
            json!({"containers": [
                {"name": "a", "ports": [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 443}]},
                {"name": "b", "ports": [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2}]},
                {"name": "c", "ports": [{"containerPort": 1, "hostPort": 0}]},
            ]}),
            Some("hostPort (containers \"a\", \"b\" use hostPorts 443, 80)"),
        ),
        (
            latest,
            json!({}),
            container(json!({
                "livenessProbe": {"httpGet": {"port": 1, "host": "h"}},
                "lifecycle": {"preStop": {"tcpSocket": {"port": 1, "host": "g"}}},
            })),
            Some("probe or lifecycle host (container \"a\" uses probe or lifecycle hosts \"g\", \"h\")"),
        ),
        (
            Version::Minor(33),
            json!({}),
            container(json!({"livenessProbe": {"httpGet": {"port": 1, "host": "h"}}})),
            None,
        ),
        (
            latest,
            json!({}),
            both(json!({"privileged": true}), json!({})),
            Some("privileged (containers \"a\", \"b\" must not set securityContext.privileged=true)"),
        ),
        (
            latest,
            json!({}),
            both(
                json!({"capabilities": {"add": ["NET_RAW", "KILL", "BPF"]}}),
                json!({}),
            ),
            Some(
                "non-default capabilities (containers \"a\", \"b\" must not include \"BPF\", \"NET_RAW\" in \
securityContext.capabilities.add)",
            ),
        ),
        (
            latest,
            json!({}),
            both(json!({}), json!({"windowsOptions": {"hostProcess": true}})),
            Some("hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)"),
        ),
        (
            latest,
            json!({}),
            both(json!({"procMount": "Unmasked"}), json!({})),
            Some(
                "procMount (containers \"a\", \"b\" must not set securityContext.procMount to \"Unmasked\")",
            ),
        ),
        (
            latest,
            json!({}),
            json!({"hostUsers": false, "containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]}),
            None,
        ),
        (
            Version::Minor(34),
            json!({}),
            json!({"hostUsers": false, "containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]}),
            Some("procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")"),
        ),
        (
            latest,
            json!({}),
            both(
                json!({}),
                json!({"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}, {"name": "a.b", "value": "1"}]}),
            ),
            Some("forbidden sysctls (a.b)"),
        ),
        (
            Version::Minor(31),
            json!({}),
            both(
                json!({}),
                json!({"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}, {"name": "a.b", "value": "1"}]}),
            ),
            Some("forbidden sysctls (net.ipv4.tcp_rmem, a.b)"),
        ),
        (
            latest,
            json!({"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}),
            both(
                json!({"appArmorProfile": {"type": "Unconfined"}}),
                json!({"appArmorProfile": {"type": "Unconfined"}}),
            ),
            Some(
                "forbidden AppArmor profiles (pod and containers \"a\", \"b\" and annotation must not set AppArmor profile \
type to \"Unconfined\", \"container.apparmor.security.beta.kubernetes.io/a=\"unconfined\"\")",
            ),
        ),
        (
            latest,
            json!({}),
            both(
                json!({"seLinuxOptions": {"type": "spc_t", "user": "u"}}),
                json!({"seLinuxOptions": {"role": "r"}}),
            ),
            Some(
                "seLinuxOptions (pod and containers \"a\", \"b\" set forbidden securityContext.seLinuxOptions: type \
\"spc_t\"; user may not be set; role may not be set)",
            ),
        ),
        (
            latest,
            json!({}),
            both(
                json!({"seLinuxOptions": {"type": "container_engine_t"}}),
                json!({}),
            ),
            None,
        ),
        (
            Version::Minor(30),
            json!({}),
            both(
                json!({"seLinuxOptions": {"type": "container_engine_t"}}),
                json!({}),
            ),
            Some(
                "seLinuxOptions (containers \"a\", \"b\" set forbidden securityContext.seLinuxOptions: type \
\"container_engine_t\")",
            ),
        ),
        (
            latest,
            json!({}),
            both(json!({"seccompProfile": {"type": "Unconfined"}}), json!({})),
            Some(
                "seccompProfile (containers \"a\", \"b\" must not set securityContext.seccompProfile.type to \
\"Unconfined\")",
            ),
        ),
        (
            Version::Minor(18),
            json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}),
            both(json!({}), json!({})),
            Some(
                "seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")",
            ),
        ),
    ] {
        let found = details(Level::Baseline, version, annotations, spec.clone());
        assert_eq!(found.as_deref(), expected, "{version} {spec}");
    }
}

#[test]
fn the_restricted_level_forbids_more() {
    let of_container = |c: &'static str, value: Value| {
        move |spec: &mut Value| spec["containers"][0]["securityContext"][c] = value
    };
    let of_pod = |p: &'static str, value: Value| move |spec: &mut Value| spec["securityContext"][p] = value;
    for (version, spec, expected) in [
        (
            Version::Latest,
            confined(
                |s| s["volumes"] = json!([{"name": "v", "nfs": {"server": "s", "path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}]),
            ),
            Some(
                "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\")",
            ),
        ),
        (
            Version::Latest,
            confined(|s| {
                s["volumes"] =
                    json!([{"name": "v", "image": {"reference": "r"}}, {"name": "w", "emptyDir": {}}])
            }),
            None,
        ),
        (
            Version::Latest,
            confined(of_container("runAsNonRoot", json!(false))),
            Some("runAsNonRoot != true (container \"a\" must not set securityContext.runAsNonRoot=false)"),
        ),
        (
            Version::Latest,
            confined(of_pod("runAsNonRoot", json!(false))),
            Some("runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)"),
        ),
        (
            Version::Latest,
            confined(of_pod("runAsUser", json!(0))),
            Some("runAsUser=0 (pod must not set runAsUser=0)"),
        ),
        (Version::Minor(22), confined(of_pod("runAsUser", json!(0))), None),
        (
            Version::Latest,
            confined(|s| {
                s["hostUsers"] = json!(false);
                s["securityContext"]["runAsUser"] = json!(0);
                s["securityContext"]["runAsNonRoot"] = json!(false);
            }),
            None,
        ),
        (
            Version::Latest,
            confined(of_container(
                "capabilities",
                json!({"drop": ["KILL"], "add": ["CHOWN", "NET_BIND_SERVICE"]}),
            )),
            Some(
                "unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]; container \
\"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
            ),
        ),
        (
            Version::Latest,
            confined(|s| {
                s["hostUsers"] = json!(false);
                s["containers"][0]["securityContext"]["procMount"] = json!("Unmasked");
            }),
            Some("procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")"),
        ),
        (
            Version::Latest,
            confined(|s| {
                s["os"] = json!({"name": "windows"});
                s["securityContext"] = json!({"runAsNonRoot": true});
                s["containers"][0]["securityContext"] = json!({});
            }),
            None,
        ),
        (
            Version::Latest,
            confined(|s| s["ephemeralContainers"] = json!([{"name": "e"}])),
            Some(
                "allowPrivilegeEscalation != false (container \"e\" must set securityContext.allowPrivilegeEscalation=false), \
unrestricted capabilities (container \"e\" must set securityContext.capabilities.drop=[\"ALL\"])",
            ),
        ),
    ] {
        let found = details(Level::Restricted, version, json!({}), spec.clone());
        assert_eq!(found.as_deref(), expected, "{version} {spec}");
    }
}
