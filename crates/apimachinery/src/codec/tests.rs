//! The reader on unusual, invalid and malformed documents.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use proptest::prelude::*;

use super::*;

fn pod(json: &str) -> Pod {
    read::<Pod>(json.as_bytes()).unwrap().0
}

fn decode_error<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> (String, String) {
    let error = read::<T>(json.as_bytes()).unwrap_err();
    (error.message, error.field)
}

#[test]
fn unknown_and_duplicate_fields_are_reported_with_their_paths() {
    let (_, strict_errors) = read::<Pod>(
        br#"{"spec":{"foo":1,"containers":[{"name":"c"},{"name":"d","imagee":"x","env":[{"nam":"a"}]}],"nodeName":"n","nodeName":"m"},
            "Kind":"Pod","metadata":{"labels":{"a":"1","a":"2"},"name":"x","name":"y"}}"#,
    )
    .unwrap();
    let strict_errors: Vec<String> = strict_errors.iter().map(StrictError::to_string).collect();
    assert_eq!(
        strict_errors,
        [
            r#"unknown field "spec.foo""#,
            r#"unknown field "spec.containers[1].imagee""#,
            r#"unknown field "spec.containers[1].env[0].nam""#,
            r#"duplicate field "spec.nodeName""#,
            r#"unknown field "Kind""#,
            r#"duplicate field "metadata.labels.a""#,
            r#"duplicate field "metadata.name""#,
        ]
    );
}

#[test]
fn wrong_types_are_reported_as_by_go() {
    for (json, message, field) in [
        (
            r#"{"spec":{"containers":[{"command":"sh"}]}}"#,
            "json: cannot unmarshal string into Go struct field Container.spec.containers.command of type []string",
            "spec.containers[0].command",
        ),
        (
            r#"{"spec":{"containers":[{"ports":[{"containerPort":99999999999}]}]}}"#,
            "json: cannot unmarshal number 99999999999 into Go struct field \
             ContainerPort.spec.containers.ports.containerPort of type int32",
            "spec.containers[0].ports[0].containerPort",
        ),
        (
            r#"{"spec":{"containers":[{"ports":[{"containerPort":1.5}]}]}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field \
             ContainerPort.spec.containers.ports.containerPort of type int32",
            "spec.containers[0].ports[0].containerPort",
        ),
        (
            r#"{"metadata":"x"}"#,
            "json: cannot unmarshal string into Go struct field Pod.metadata of type v1.ObjectMeta",
            "metadata",
        ),
        (
            r#"{"spec":{"containers":{}}}"#,
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
            "spec.containers",
        ),
        (
            r#"{"metadata":{"labels":{"a":5}}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            "metadata.labels.a",
        ),
        (
            r#"{"metadata":{"labels":["a"]}}"#,
            "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
            "metadata.labels",
        ),
        (
            r#"{"spec":{"dnsPolicy":5}}"#,
            "json: cannot unmarshal number into Go struct field PodSpec.spec.dnsPolicy of type v1.DNSPolicy",
            "spec.dnsPolicy",
        ),
        (
            r#"{"spec":{"containers":[{"livenessProbe":{"httpGet":{"scheme":5}}}]}}"#,
            "json: cannot unmarshal number into Go struct field \
             HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.scheme of type v1.URIScheme",
            "spec.containers[0].livenessProbe.httpGet.scheme",
        ),
        (
            r#"{"spec":{"volumes":[{"secret":{"optional":5}}]}}"#,
            "json: cannot unmarshal number into Go struct field \
             SecretVolumeSource.spec.volumes.VolumeSource.secret.optional of type bool",
            "spec.volumes[0].secret.optional",
        ),
        (
            r#"{"metadata":{"uid":5}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.uid of type types.UID",
            "metadata.uid",
        ),
        (
            r#"{"spec":{"hostNetwork":""}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
            "spec.hostNetwork",
        ),
        (
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":""}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            "spec.containers[0].resources.limits.cpu",
        ),
        (
            r#"{"metadata":{"creationTimestamp":"yesterday"}}"#,
            "parsing time \"yesterday\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\"",
            "metadata.creationTimestamp",
        ),
        (
            r#"{"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":{}}}}]}}"#,
            "json: cannot unmarshal object into Go value of type int32",
            "spec.containers[0].livenessProbe.httpGet.port",
        ),
        (
            r#"{"spec":{"containers":[{"resources":{"limits":[]}}]}}"#,
            "json: cannot unmarshal array into Go struct field ResourceRequirements.spec.containers.resources.limits \
             of type v1.ResourceList",
            "spec.containers[0].resources.limits",
        ),
        (
            "[]",
            "json: cannot unmarshal array into Go value of type v1.Pod",
            "",
        ),
    ] {
        assert_eq!(
            decode_error::<Pod>(json),
            (message.to_string(), field.to_string()),
            "{json}"
        );
    }
    let base64 = |data: &str| decode_error::<Secret>(&format!(r#"{{"data":{{"a":"{data}"}}}}"#)).0;
    assert_eq!(base64("!!"), "illegal base64 data at input byte 0");
    assert_eq!(base64("eA"), "illegal base64 data at input byte 0");
    assert_eq!(base64("eHh4e!"), "illegal base64 data at input byte 5");
}

#[test]
fn broken_documents_are_errors() {
    for (json, message) in [
        (&b""[..], "unexpected end of JSON input"),
        (b"{", "unexpected end of JSON input"),
        (b"{\"a\"", "unexpected end of JSON input"),
        (
            b"{bad",
            "invalid character 'b' looking for beginning of object key string",
        ),
        (
            b"{\"data\":{\"a\":\"b\"},}",
            "invalid character '}' looking for beginning of object key string",
        ),
        (b"{\"data\" 1}", "invalid character '1' after object key"),
        (
            b"{\"data\":{} 1}",
            "invalid character '1' after object key:value pair",
        ),
        (
            b"{\"x\":[1,]}",
            "invalid character ']' looking for beginning of value",
        ),
        (
            b"{\"x\":nul}",
            "invalid character '}' in literal null (expecting 'l')",
        ),
        (b"{\"x\":01}", "invalid character '1' after object key:value pair"),
        (b"{} {}", "invalid character '{' after top-level value"),
        (b"{\"x\":\"\\q\"}", "invalid character 'q' in string escape code"),
        (b"{\"x\":\"a\nb\"}", "invalid character '\\n' in string literal"),
        (b"{\"x\":\"\xff\"}", "invalid UTF-8 in string"),
    ] {
        let error = read::<ConfigMap>(json).unwrap_err();
        assert_eq!(error.message, message, "{}", String::from_utf8_lossy(json));
    }
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{{\"x\":{}1{}}}", open.repeat(100_000), close.repeat(100_000));
        assert!(
            decode_error::<ConfigMap>(&deep)
                .0
                .starts_with("exceeded max depth")
        );
    }
}

#[test]
fn null_is_nothing_and_dropped_zero_values_too() {
    let pod = pod(r#"{"metadata":{"name":"p","labels":{"a":null},"annotations":{}},
            "spec":{"hostNetwork":false,"hostUsers":false,"nodeSelector":{},"volumes":[ ],"nodeName":"","containers":[null,
              {"name":"c","args":[],"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{}},
               "livenessProbe":{"periodSeconds":0,"terminationGracePeriodSeconds":0},"resources":null}]}}"#);
    let spec = pod.spec.unwrap();
    assert_eq!(pod.metadata.labels.unwrap()["a"], "");
    assert_eq!(pod.metadata.annotations, None);
    assert_eq!((spec.host_network, spec.host_users), (None, Some(false)));
    assert_eq!(
        (spec.node_selector, spec.volumes, spec.node_name),
        (None, None, None)
    );
    assert_eq!(spec.containers[0].name, "");
    let c = &spec.containers[1];
    assert_eq!(c.args, None);
    let context = c.security_context.clone().unwrap();
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert!(
        context.capabilities.is_some(),
        "an empty struct is not an empty map"
    );
    let probe = c.liveness_probe.clone().unwrap();
    assert_eq!(
        (probe.period_seconds, probe.termination_grace_period_seconds),
        (None, Some(0))
    );
    assert_eq!(c.resources, None);
}

#[test]
fn quantities_and_times_come_out_as_they_are_stored() {
    let pod = pod(
        r#"{"metadata":{"creationTimestamp":"2020-01-01T02:00:00.5+02:00"},
            "spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":1,"memory":"1024Mi","x":0.5}}}]}}"#,
    );
    let limits = pod.spec.unwrap().containers[0]
        .resources
        .clone()
        .unwrap()
        .limits
        .unwrap();
    let text: Vec<&str> = limits.values().map(|q| q.0.as_str()).collect();
    assert_eq!(text, ["1", "1Gi", "500m"]);
    assert_eq!(
        pod.metadata.creation_timestamp.unwrap().0.to_string(),
        "2020-01-01T00:00:00Z"
    );
}

#[test]
fn strings_keep_their_escapes_and_halves_of_pairs_are_replaced() {
    let (map, ..) =
        read::<ConfigMap>(r#"{"data":{"a\u0062":"\ud83d\ude00\t\"\\\/\ud83dx é"}}"#.as_bytes()).unwrap();
    assert_eq!(map.data.unwrap()["ab"], "😀\t\"\\/\u{fffd}x é");
}

proptest! {
    #[test]
    fn never_panics_on_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read::<Pod>(&bytes);
    }

    #[test]
    fn never_panics_on_damaged_documents(cut in 0usize..400, byte in any::<u8>()) {
        let mut json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"a":"b"},"creationTimestamp":
            "2020-01-01T00:00:00Z"},"spec":{"containers":[{"name":"c","ports":[{"containerPort":80}],"resources":
            {"limits":{"cpu":"1"}},"livenessProbe":{"httpGet":{"port":"http"}},"args":["a","\u00e9"]}],"hostNetwork":false,
            "tolerations":[{"tolerationSeconds":-3}],"nodeSelector":{}}}"#.to_vec();
        let at = cut % json.len();
        json[at] = byte;
        let _ = read::<Pod>(&json);
        json.truncate(at);
        let _ = read::<Pod>(&json);
    }

    #[test]
    fn reads_what_serde_json_reads(text in "\\PC{0,40}", n in any::<i32>()) {
        let json = serde_json::json!({"data": {text.clone(): text, "n": n.to_string()}}).to_string();
        let ours = read::<ConfigMap>(json.as_bytes()).unwrap().0;
        prop_assert_eq!(ours, serde_json::from_str::<ConfigMap>(&json).unwrap());
    }
}

#[test]
fn sets_of_fields_are_text_within_and_objects_without() {
    let entry = r#"{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:a\"b":{}}},"manager":"m"}"#;
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"managedFields":[{entry}],"name":"a"}}}}"#
    );
    let object = decode::<ConfigMap>(json.as_bytes()).unwrap().0;
    let meta = &object.metadata;
    let fields = &meta.managed_fields.as_ref().unwrap()[0]
        .fields_v1
        .as_ref()
        .unwrap()
        .0;
    assert_eq!(fields, r#"{"f:data":{".":{},"f:a\"b":{}}}"#);
    let mut written = Vec::new();
    let encoder = Encoder::new(&mut written).of_kind("v1", "ConfigMap");
    object.serialize(encoder).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), json);
    let tree = to_value(meta).unwrap();
    assert_eq!(
        tree["managedFields"][0]["fieldsV1"]["f:data"]["f:a\"b"],
        serde_json::json!({})
    );
}

#[test]
fn a_time_that_is_not_given_is_null_where_go_has_no_pointer() {
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::events::v1::Event;

    fn through<T: DeserializeOwned + Serialize + JsonSchema + 'static>(json: &str) -> String {
        let object = decode::<T>(json.as_bytes()).unwrap().0;
        let mut json = Vec::new();
        write(&object, &mut json).unwrap();
        String::from_utf8(json).unwrap()
    }
    let noon = "\"2020-01-01T12:00:00Z\"";
    for (given, comes) in [
        ("{}".to_string(), "null"),
        (r#"{"lastTransitionTime":null}"#.to_string(), "null"),
        (
            r#"{"lastTransitionTime":"0001-01-01T00:00:00Z"}"#.to_string(),
            "null",
        ),
        (format!(r#"{{"lastTransitionTime":{noon}}}"#), noon),
        (
            format!(r#"{{"lastTransitionTime":null,"lastTransitionTime":{noon}}}"#),
            noon,
        ),
    ] {
        let found = through::<Service>(&format!(
            r#"{{"status":{{"conditions":[{given},{{"type":"b"}}]}}}}"#
        ));
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        let conditions = &found["status"]["conditions"];
        assert_eq!(conditions[0]["lastTransitionTime"].to_string(), comes, "{given}");
        assert_eq!(conditions[1]["type"], "b", "{given}");
    }
    let found = through::<Event>(r#"{"series":{"count":2}}"#);
    assert!(
        found.contains(r#""series":{"count":2,"lastObservedTime":null}"#),
        "{found}"
    );
}

#[test]
fn errors_name_the_version_that_a_type_is_of() {
    use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
    for (json, of) in [
        (r#"{"spec":{"metrics":"x"}}"#, "metrics of type []v2.MetricSpec"),
        (
            r#"{"spec":{"behavior":[]}}"#,
            "behavior of type v2.HorizontalPodAutoscalerBehavior",
        ),
    ] {
        let error = decode::<HorizontalPodAutoscaler>(json.as_bytes()).unwrap_err();
        assert!(error.message.ends_with(of), "{}", error.message);
    }
}
