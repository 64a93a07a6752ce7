//! Bodies put together by hand, as client-go sends them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    [
        varint(field << 3 | 2),
        varint(content.len() as u64),
        content.to_vec(),
    ]
    .concat()
}

fn number(field: u64, n: i64) -> Vec<u8> {
    [varint(field << 3), varint(n.cast_unsigned())].concat()
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
    [
        MAGIC.to_vec(),
        bytes(1, &meta),
        bytes(2, raw),
        bytes(3, b""),
        bytes(4, b""),
    ]
    .concat()
}

#[test]
fn a_config_map_comes_out_as_its_json() {
    let entry = [bytes(1, b"k"), bytes(2, b"v")].concat();
    let binary = [bytes(1, b"raw"), bytes(2, &[0, 255])].concat();
    // Go writes the zero values of what is no pointer.
    let meta = [bytes(1, b"a"), bytes(2, b""), number(7, 0), bytes(8, b"")].concat();
    let raw = [bytes(1, &meta), bytes(2, &entry), bytes(3, &binary), number(4, 0)].concat();
    let read = read(&body("v1", "ConfigMap", &raw)).unwrap();
    let expected = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" },
        "data": { "k": "v" }, "binaryData": { "raw": "AP8=" }, "immutable": false,
    });
    assert_eq!(read.object, expected);
}

#[test]
fn pointers_keep_their_zero_and_inlined_messages_are_merged() {
    let spec = [number(1, 0), number(5, 0)].concat();
    let deployment = read(&body("apps/v1", "Deployment", &bytes(2, &spec))).unwrap();
    assert_eq!(deployment.object["spec"], json!({ "replicas": 0 }));
    let medium = bytes(2, &bytes(1, b"Memory"));
    let volume = [bytes(1, b"v"), bytes(2, &medium)].concat();
    let pod = read(&body("v1", "Pod", &bytes(2, &bytes(1, &volume)))).unwrap();
    assert_eq!(
        pod.object["spec"]["volumes"],
        json!([{ "name": "v", "emptyDir": { "medium": "Memory" } }])
    );
}

#[test]
fn times_quantities_and_ports_have_their_json_forms() {
    let time = [number(1, 1_600_000_000), number(2, 123_456_000)].concat();
    assert_eq!(
        values::time(&time, false).unwrap(),
        Some("2020-09-13T12:26:40Z".into())
    );
    assert_eq!(
        values::time(&time, true).unwrap(),
        Some("2020-09-13T12:26:40.123456Z".into())
    );
    // Go encodes its zero time as nothing. Times around it are times.
    let year_one = -62_135_596_800_i64;
    for (given, expected) in [
        (Vec::new(), Some(Value::Null)),
        (number(1, year_one), Some(Value::Null)),
        (
            number(1, year_one + 2),
            Some("0001-01-01T00:00:02.000000Z".into()),
        ),
        (number(1, 0), Some("1970-01-01T00:00:00.000000Z".into())),
    ] {
        assert_eq!(values::time(&given, true).unwrap(), expected, "{given:?}");
    }
    assert_eq!(values::text_of(&bytes(1, b"1Gi"), "x").unwrap(), "1Gi");
    let port = [number(1, 1), number(2, 0), bytes(3, b"http")].concat();
    assert_eq!(values::int_or_string(&port, "x").unwrap(), json!("http"));
    assert_eq!(values::int_or_string(&number(2, 80), "x").unwrap(), json!(80));
}

#[test]
fn an_unreadable_body_is_rejected_with_the_reason() {
    assert_eq!(read(b"{}"), Err(Error::NoEnvelope));
    assert!(matches!(
        read(&body("v9", "Pod", b"")),
        Err(Error::UnknownKind { .. })
    ));
    let cut = body("v1", "Pod", &bytes(1, b"abc"));
    assert_eq!(read(&cut[..cut.len() - 5]), Err(Error::Truncated));
    assert_eq!(
        read(&body("v1", "Pod", &number(2, 5))),
        Err(Error::WireType {
            message: "core/v1.Pod".into(),
            field: 2,
            found: 0
        })
    );
}

#[test]
fn nesting_has_a_limit() {
    let mut schema = Vec::new();
    for _ in 0..200 {
        schema = bytes(28, &schema);
    }
    let version = bytes(4, &bytes(1, &schema));
    let crd = body(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &bytes(2, &bytes(7, &version)),
    );
    assert_eq!(read(&crd), Err(Error::TooDeep));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&raw);
        let _ = read(&body("v1", "Pod", &raw));
    }
}
