//! Volumes: one source each, with valid fields.

use serde_json::{Value, json};

use super::{assert_accepted, assert_rejected, overlay};

#[test]
fn volumes_have_one_source_each() {
    let volume = |more: Value| {
        let mut v = json!({"name": "v"});
        overlay(&mut v, &more);
        json!({"volumes": [v]})
    };
    assert_rejected(&[
        (
            volume(json!({"emptyDir": {}, "hostPath": {"path": "/a"}})),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            volume(json!({"emptyDir": {"sizeLimit": "-1"}})),
            &[
                "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            ],
        ),
        (
            volume(json!({"persistentVolumeClaim": {"claimName": ""}})),
            &["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
        ),
        (
            volume(json!({"configMap": {"name": "x", "items": [{"key": "a", "path": "..a"}]}})),
            &["spec.volumes[0].configMap.items[0].path: Invalid value: \"..a\": must not start with '..'"],
        ),
        (
            volume(
                json!({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}),
            ),
            &[
                "spec.volumes[0].downwardAPI.fieldRef.fieldPath: Unsupported value: \"spec.nodeName\": supported \
               values: \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \
               \"metadata.uid\"",
            ],
        ),
        (
            volume(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.x", "lun": 256}})),
            &[
                "spec.volumes[0].iscsi.iqn: Invalid value: \"iqn.x\": must be valid format",
                "spec.volumes[0].iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ],
        ),
        (
            volume(json!({"csi": {"driver": "A_"}})),
            &[
                "spec.volumes[0].csi.driver: Invalid value: \"A_\": a lowercase RFC 1123 subdomain must consist of \
               lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
               character (e.g. 'example.com', regex used for validation is \
               '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
        ),
        (
            volume(
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "", "expirationSeconds": 5}}]}}),
            ),
            &[
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may \
                 not specify a duration less than 10 minutes",
                "spec.volumes[0].projected.path: Required value",
                "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when \
                 serviceAccountName is not set",
            ],
        ),
    ]);
    assert_accepted(&[
        volume(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2001-04.com.example:storage", "lun": 0}})),
        volume(json!({})),
        volume(
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}}}),
        ),
    ]);
}
