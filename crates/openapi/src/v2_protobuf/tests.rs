//! The v2 document as gnostic's protobuf: against bytes that protoc made.

use serde_json::json;

use super::*;

/// What protoc makes of [`small`], written by hand as a text of gnostic's message.
const SMALL: &str = "\
0a03322e3012070a01741202763142cc0112c9010a032f612f12c1011286010a04636f72652a04676574413210617070\
6c69636174696f6e2f6a736f6e42250a230a211204626f64791a04626f647920012a110a0f232f646566696e6974696f\
6e732f414a1e0a1c0a0332303012150a130a024f4b120d0a0bb201080a06737472696e676a1f0a13782d6b756265726e\
657465732d616374696f6e1208120622676574220a4a1b0a1912171a15120571756572792201713206737472696e67a0\
01014a190a171215221308011204706174682201702a06737472696e674a7f0a7d0a014112782201649a0103782d799a\
01016eb201080a066f626a656374ca015d0a130a0424726566120bb201080a06737472696e670a2a0a016e1225120569\
6e7433322a041202300a49000000000000f83f60ac02b201090a07696e74656765720a1a0a03782d791213aa01021000\
ba010b0a09a2010612042261220a62110a0f0a0b426561726572546f6b656e12006a320a300a0b426561726572546f6b\
656e1221121f0a066170694b6579120d617574686f72697a6174696f6e1a06686561646572";

/// A document with a value of every form.
fn small() -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "t", "version": "v1"},
        "paths": {"/a/": {
            "get": {
                "tags": ["core"],
                "operationId": "getA",
                "produces": ["application/json"],
                "parameters": [
                    {"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/A"}},
                ],
                "responses": {"200": {"description": "OK", "schema": {"type": "string"}}},
                "x-kubernetes-action": "get",
            },
            "parameters": [
                {"name": "q", "in": "query", "type": "string", "uniqueItems": true, "required": false},
                {"name": "p", "in": "path", "type": "string", "required": true},
            ],
        }},
        "definitions": {"A": {
            "description": "d",
            "type": "object",
            "required": ["x-y", "n"],
            "properties": {
                "$ref": {"type": "string"},
                "n": {"type": "integer", "format": "int32", "minimum": 1.5, "minLength": 300, "default": 0},
                "x-y": {"items": {"enum": ["a"]}, "additionalProperties": false},
            },
        }},
        "security": [{"BearerToken": []}],
        "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
    })
}

#[test]
fn a_document_is_the_message_that_protoc_writes() {
    let encoded = encode(&small()).expect("a document");
    let hex: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, SMALL);
}

#[test]
fn members_without_a_number_are_errors() {
    for (pointer, member, value, error) in [
        (
            "/paths/~1a~1/get",
            "callbacks",
            json!({}),
            "paths./a/.get.callbacks: Operation has no member of that name in swagger 2.0",
        ),
        (
            "/definitions/A",
            "oneOf",
            json!([]),
            "definitions.A.oneOf: Schema has no member of that name in swagger 2.0",
        ),
        (
            "/definitions/A",
            "required",
            json!("n"),
            "definitions.A.required: expected a list, found \"n\"",
        ),
        (
            "/securityDefinitions/BearerToken",
            "type",
            json!("oauth2"),
            "securityDefinitions.BearerToken: expected a kind of parameter or security that is known, found \
{\"in\":\"header\",\"name\":\"authorization\",\"type\":\"oauth2\"}",
        ),
    ] {
        let mut document = small();
        document.pointer_mut(pointer).expect(pointer)[member] = value;
        let found = encode(&document).expect_err(error);
        assert_eq!(found.to_string(), error);
    }
}

#[test]
fn extensions_are_allowed_everywhere() {
    for pointer in [
        "",
        "/info",
        "/paths",
        "/paths/~1a~1/get/responses",
        "/definitions/A/properties/n",
    ] {
        let mut document = small();
        document.pointer_mut(pointer).expect(pointer)["x-kubernetes-test"] = json!({"a": [1]});
        let encoded = encode(&document).expect(pointer);
        let extension = b"\x0a\x11x-kubernetes-test\x12\x0c\x12\x0a{\"a\":[1]}\n";
        let there = encoded.windows(extension.len()).any(|window| window == extension);
        assert!(there, "{pointer}");
    }
}

#[test]
fn the_message_has_the_whole_document() {
    let document = super::super::v2(&knarr_api::registry::ServedKinds::default());
    let encoded = encode(&document).expect("our own document");
    for name in document["definitions"].as_object().expect("definitions").keys() {
        let length = u8::try_from(name.len()).expect("a short name");
        let entry: Vec<u8> = [&[0x0a, length], name.as_bytes()].concat();
        assert!(
            encoded.windows(entry.len()).any(|window| window == entry),
            "{name}"
        );
    }
}
