//! The validation rules of kinds that the recordings hardly cover, error by error, with v1.36's messages.

// The helper functions unwrap as the tests do.
#![allow(clippy::unwrap_used)]

use knarr_api::{AnyObject, Kind, registry};
use knarr_strategy::KindStrategy;
use knarr_strategy::Part;
use knarr_strategy::metadata;
use serde_json::{Value, json};

fn object(kind: &Kind, body: &Value) -> Box<dyn AnyObject> {
    let bytes = serde_json::to_vec(body).unwrap();
    let decoded = kind.ops.decode(&bytes).unwrap();
    assert!(decoded.strict_errors.is_empty(), "{:?}", decoded.strict_errors);
    let mut object = decoded.object;
    let metadata = object.metadata_mut();
    metadata.name.get_or_insert_with(|| "x".into());
    if kind.namespaced() {
        metadata.namespace = Some("n".into());
    }
    kind.strategy().set_defaults(&mut *object).unwrap();
    object
}

/// The errors of a new object as the response shows them.
fn created(kind: &Kind, body: &Value) -> Vec<String> {
    let mut object = object(kind, body);
    kind.strategy().prepare_for_create(&mut *object).unwrap();
    let mut errors = knarr_apimachinery::field::ErrorList::new();
    if kind.strategy().checks_metadata() {
        errors.extend(metadata::validate(kind, object.metadata()));
    }
    errors.extend(kind.strategy().validate(&*object).unwrap());
    if errors.is_empty() {
        errors.extend(metadata::validate_common(kind, object.metadata()));
    }
    errors.iter().map(ToString::to_string).collect()
}

/// The errors of an update.
fn updated(kind: &Kind, part: Part, old: &Value, new: &Value) -> Vec<String> {
    let (mut old, mut new) = (object(kind, old), object(kind, new));
    for object in [&mut old, &mut new] {
        object.metadata_mut().resource_version = Some("1".into());
    }
    kind.strategy()
        .prepare_for_update(&mut *new, &*old, part)
        .unwrap();
    let mut errors = metadata::validate_update(kind, part, new.metadata(), old.metadata());
    errors.extend(kind.strategy().validate_update(&*new, &*old, part).unwrap());
    errors.iter().map(ToString::to_string).collect()
}

/// A document with the value at a JSON pointer replaced.
fn with(body: &Value, pointer: &str, value: Value) -> Value {
    let mut body = body.clone();
    let (at, last) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(at).unwrap()[last] = value;
    body
}

#[test]
fn each_metadata_check_reports_its_errors() {
    let metadata = json!({"annotations": {"a~b": "c"}, "finalizers": ["foo"]});
    let count = |kind: &Kind, part| {
        let mut body = json!({"metadata": metadata});
        if *kind == registry::POD_DISRUPTION_BUDGET {
            body["spec"] = json!({});
        }
        let found = updated(kind, part, &body, &body);
        let of = |field: &str| found.iter().filter(|e| e.starts_with(field)).count();
        (of("metadata.annotations:"), of("metadata.finalizers[0]:"))
    };
    // Two for every kind, and those that the kind's own rules repeat.
    for (kind, part, expected) in [
        (&registry::CONFIG_MAP, Part::Main, (4, 2)),
        (&registry::LIMIT_RANGE, Part::Main, (3, 1)),
        (&registry::RESOURCE_QUOTA, Part::Main, (3, 1)),
        (&registry::LEASE, Part::Main, (3, 0)),
        (&registry::POD_DISRUPTION_BUDGET, Part::Main, (2, 0)),
        (&registry::CRON_JOB, Part::Status, (2, 0)),
        (&registry::PERSISTENT_VOLUME, Part::Main, (4, 2)),
        (&registry::PERSISTENT_VOLUME, Part::Status, (3, 1)),
    ] {
        assert_eq!(count(kind, part), expected, "{kind:?} {part:?}");
    }
}

#[test]
fn finalizers_without_a_domain_must_be_standard() {
    let body = json!({"metadata": {"finalizers": ["kubernetes", "orphan", "foo", "a.b/c"]}});
    assert_eq!(
        created(&registry::CONFIG_MAP, &body),
        [
            "metadata.finalizers[2]: Invalid value: \"foo\": name is neither a standard finalizer name nor is it fully \
             qualified"
        ]
    );
    assert_eq!(created(&registry::LEASE, &body), [] as [&str; 0]);
}

#[test]
fn volume_sources_are_validated() {
    let volume = json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}});
    let cases: &[(Value, &[&str])] = &[
        (
            json!({"local": {"path": "/x"}}),
            &["spec.nodeAffinity: Required value: Local volume requires node affinity"],
        ),
        (
            json!({"nodeAffinity": {}, "local": {"path": "a/../b"}}),
            &[
                "spec.nodeAffinity.required: Required value: must specify required node constraints",
                "spec.local.path: Invalid value: \"a/../b\": must not contain '..'",
            ],
        ),
        (
            json!({"nfs": {"server": "s", "path": "x"}, "rbd": {"monitors": [], "image": "i"}}),
            &[
                "spec.nfs.path: Invalid value: \"x\": must be an absolute path",
                "spec.rbd: Forbidden: may not specify more than 1 volume type",
            ],
        ),
        (
            json!({"csi": {"driver": "a_b", "volumeHandle": "", "nodePublishSecretRef": {"name": "s"}}}),
            &[
                "spec.csi.driver: Invalid value: \"a_b\": a lowercase RFC 1123 subdomain must consist of lower case \
                 alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
                 'example.com', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
                "spec.csi.volumeHandle: Required value",
                "spec.csi.nodePublishSecretRef.namespace: Required value",
            ],
        ),
        (
            json!({"cinder": {"volumeID": "v", "secretRef": {}}}),
            &[
                "spec.cinder.secretRef.name: Required value",
                "spec.cinder.secretRef.namespace: Required value",
            ],
        ),
        (json!({"hostPath": {"path": "/x"}}), &[]),
    ];
    for (source, expected) in cases {
        let mut body = volume.clone();
        let spec = body["spec"].as_object_mut().unwrap();
        spec.extend(source.as_object().unwrap().clone());
        assert_eq!(
            &created(&registry::PERSISTENT_VOLUME, &body),
            expected,
            "{source}"
        );
    }
}

#[test]
fn a_volume_source_is_immutable() {
    let affinity = |label: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": label, "operator": "In", "values": ["a"]}]}]}})
    };
    let volume = |label: &str| {
        json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/x"}, "nodeAffinity": affinity(label)}})
    };
    let old = volume("failure-domain.beta.kubernetes.io/zone");
    let kind = &registry::PERSISTENT_VOLUME;
    let stable = volume("topology.kubernetes.io/zone");
    assert_eq!(updated(kind, Part::Main, &old, &stable), [] as [&str; 0]);
    let moved = updated(kind, Part::Main, &old, &volume("other"));
    assert_eq!(
        moved,
        [
            "nodeAffinity: Invalid value: {\"Required\":{\"NodeSelectorTerms\":[{\"MatchExpressions\":[{\"Key\":\"other\",\
             \"Operator\":\"In\",\"Values\":[\"a\"]}],\"MatchFields\":null}]}}: field is immutable, except for updating \
             from beta label to GA"
        ]
    );
}

#[test]
fn drivers_and_attachments_are_checked() {
    let driver = json!({"spec": {
        "tokenRequests": [{"audience": "a", "expirationSeconds": 5}, {"audience": "a"}],
        "volumeLifecycleModes": ["Now"], "nodeAllocatableUpdatePeriodSeconds": 9}});
    assert_eq!(
        created(&registry::CSI_DRIVER, &driver),
        [
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
            "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
            "spec.volumeLifecycleModes: Unsupported value: \"Now\": supported values: \"Persistent\", \"Ephemeral\"",
            "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
        ]
    );
    let attachment =
        json!({"spec": {"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "p"}}});
    let kind = &registry::VOLUME_ATTACHMENT;
    let moved = with(&attachment, "/spec/nodeName", "m".into());
    assert_eq!(
        updated(kind, Part::Main, &attachment, &moved),
        [
            "spec: Invalid value: {\"Attacher\":\"a.b\",\"Source\":{\"PersistentVolumeName\":\"p\",\"InlineVolumeSpec\":null},\
             \"NodeName\":\"m\"}: field is immutable"
        ]
    );
    let node = json!({"spec": {"drivers": [{"name": "d", "nodeID": "1", "topologyKeys": ["t"]}]}});
    let other = with(&node, "/spec/drivers/0/nodeID", "2".into());
    assert_eq!(
        updated(&registry::CSI_NODE, Part::Main, &node, &other),
        [
            "spec.drivers: Invalid value: {\"Name\":\"d\",\"NodeID\":\"2\",\"TopologyKeys\":[\"t\"],\"Allocatable\":null}: field \
             is immutable"
        ]
    );
}

#[test]
fn flow_schemas_and_priority_levels_are_validated() {
    let schema = json!({"spec": {"priorityLevelConfiguration": {"name": "p"}, "rules": [
        {"subjects": [{"kind": "User", "group": {"name": "g"}}]},
        {"subjects": [], "resourceRules": [
            {"verbs": ["get", "guess"], "apiGroups": ["*", "a"], "resources": [], "namespaces": ["A"]}]},
        {"subjects": [{"kind": "Group", "group": {"name": "g"}}], "nonResourceRules": [
            {"verbs": ["*"], "nonResourceURLs": ["/a*", "b", "/c/*"]}]}]}});
    let found = created(&registry::FLOW_SCHEMA, &schema);
    let begins: Vec<&str> = found.iter().map(|e| e.split(':').next().unwrap()).collect();
    assert_eq!(
        begins,
        [
            "spec.rules[0].subjects[0].user",
            "spec.rules[0].subjects[0].group",
            "spec.rules[0]",
            "spec.rules[1].subjects",
            "spec.rules[1].resourceRules[0].verbs",
            "spec.rules[1].resourceRules[0].apiGroups",
            "spec.rules[1].resourceRules[0].resources",
            "spec.rules[1].resourceRules[0].namespaces[0]",
            "spec.rules[2].nonResourceRules[0].nonResourceURLs[0]",
            "spec.rules[2].nonResourceRules[0].nonResourceURLs[1]",
        ],
        "{found:#?}"
    );
    let level = json!({"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": -1,
        "limitResponse": {"type": "Queue", "queuing": {"queues": 1024, "handSize": 7}}}}});
    assert_eq!(
        created(&registry::PRIORITY_LEVEL_CONFIGURATION, &level),
        [
            "spec.limited.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer",
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 7: required entropy bits of deckSize 1024 and \
             handSize 7 should not be greater than 60",
        ]
    );
}

#[test]
fn addresses_must_be_canonical() {
    let slice = |of: &str, address: &str| json!({"addressType": of, "endpoints": [{"addresses": [address]}], "ports": []});
    for (of, address, expected) in [
        ("IPv4", "010.0.0.1", Some("must not have leading 0s")),
        (
            "IPv4",
            "10.0.0",
            Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        ),
        (
            "IPv6",
            "2001:DB8::1",
            Some("must be in canonical form (\"2001:db8::1\")"),
        ),
        (
            "IPv6",
            "::ffff:10.0.0.1",
            Some("must not be an IPv4-mapped IPv6 address"),
        ),
        ("IPv6", "2001:db8::1", None),
    ] {
        let expected: Vec<String> = expected
            .map(|detail| format!("endpoints[0].addresses[0]: Invalid value: \"{address}\": {detail}"))
            .into_iter()
            .collect();
        assert_eq!(created(&registry::ENDPOINT_SLICE, &slice(of, address)), expected);
    }
    let cidr = |text: &str| created(&registry::SERVICE_CIDR, &json!({"spec": {"cidrs": [text]}}));
    for (text, detail) in [
        ("10.0.0.1/24", "must not have bits set beyond the prefix length"),
        ("010.0.0.0/24", "must not have leading 0s in IP or prefix length"),
        ("2001:DB8::/64", "must be in canonical form (\"2001:db8::/64\")"),
    ] {
        assert_eq!(
            cidr(text),
            [format!("spec.cidrs[0]: Invalid value: \"{text}\": {detail}")]
        );
    }
}

#[test]
fn approval_conditions_change_only_through_approval() {
    let condition = |of: &str| json!({"type": of, "status": "True"});
    let csr = |conditions: &[Value]| {
        json!({"spec": {"request": "", "signerName": "a.b/c", "usages": ["client auth"]},
            "status": {"conditions": conditions}})
    };
    let kind = &registry::CERTIFICATE_SIGNING_REQUEST;
    let about = |part, old: &[Value], new: &[Value]| {
        let mut found = updated(kind, part, &csr(old), &csr(new));
        found.retain(|e| e.starts_with("status"));
        found
    };
    let approved = [condition("Approved")];
    let approval = Part::Other("approval");
    assert_eq!(about(approval, &[], &approved), [] as [&str; 0]);
    assert_eq!(
        about(Part::Status, &[], &approved),
        ["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""]
    );
    assert_eq!(
        about(Part::Status, &approved, &[]),
        ["status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""]
    );
    assert_eq!(
        about(approval, &approved, &[condition("Approved"), condition("Denied")]),
        [
            "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive"
        ]
    );
}

#[test]
fn time_zones_must_be_in_the_database() {
    let job = |zone: &str| {
        json!({"spec": {"schedule": "* * * * *", "timeZone": zone, "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}})
    };
    for zone in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"] {
        assert_eq!(
            created(&registry::CRON_JOB, &job(zone)),
            [] as [&str; 0],
            "{zone}"
        );
    }
    for zone in ["Mars/X", "europe/berlin", "CEST"] {
        let detail = format!("spec.timeZone: Invalid value: {zone:?}: unknown time zone {zone}");
        assert_eq!(created(&registry::CRON_JOB, &job(zone)), [detail]);
    }
}

#[test]
fn each_workload_kind_has_its_own_selector_errors() {
    let spec = |selector: Value| {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        json!({"spec": {"selector": selector, "template": template}})
    };
    let bad = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
    let shown = r#"{"matchExpressions":[{"key":"a","operator":"Near"}]}"#;
    let operator =
        "spec.selector.matchExpressions[0].operator: Invalid value: \"Near\": not a valid selector operator";
    for (kind, expected) in [
        (
            &registry::DEPLOYMENT,
            Some(format!(
                "spec.selector: Invalid value: {shown}: invalid label selector"
            )),
        ),
        (
            &registry::STATEFUL_SET,
            Some(format!("spec.selector: Invalid value: {shown}")),
        ),
        (&registry::DAEMON_SET, None),
    ] {
        let expected: Vec<String> = [Some(operator.to_string()), expected]
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(created(kind, &spec(bad.clone())), expected, "{kind:?}");
    }
    let unmatched = "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`";
    let mut none = spec(Value::Null);
    none["spec"].as_object_mut().unwrap().remove("selector");
    assert_eq!(created(&registry::DAEMON_SET, &none), [unmatched]);
    assert_eq!(
        created(&registry::DEPLOYMENT, &none),
        ["spec.selector: Required value", unmatched]
    );
}
