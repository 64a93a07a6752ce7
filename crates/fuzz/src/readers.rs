//! Pairs of parsers of the same bytes (SPEC A1): the one that authorization uses and the one that the request uses must agree.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};
use knarr_api::fields;
use knarr_apimachinery::codec;
use knarr_apimachinery::codec::StrictError;
use knarr_apiserver::authn::bearer;
use knarr_apiserver::authz::Attributes;
use knarr_apiserver::http::header;
use knarr_apiserver::http::query::Query;
use knarr_apiserver::pipeline::yaml;
use serde_json::Value;

use crate::{Target, kind, seeds};

fn inputs(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Whether an escape is half of a surrogate pair (U+D800 to U+DFFF).
fn has_surrogate(json: &[u8]) -> bool {
    let is_half = |w: &[u8]| {
        w[0] == b'u' && w[1].eq_ignore_ascii_case(&b'd') && w[2].is_ascii_hexdigit() && w[2] > b'7'
    };
    json.windows(3).any(is_half)
}

/// The strict decoder accepts the JSON that serde_json accepts and no other, with the same value unless a key is given twice.
pub const JSON: Target = Target {
    name: "json-readers",
    check: |data| {
        let plain = serde_json::from_slice::<Value>(data);
        let strict = codec::read::<Value>(data);
        match (&plain, &strict) {
            (Ok(plain), Ok((value, errors))) => {
                if !errors.iter().any(|m| matches!(m, StrictError::DuplicateField(_))) {
                    assert_eq!(plain, value, "of {:?}", data.escape_ascii().to_string());
                }
            }
            (Err(_), Err(_)) => {}
            // Half of a surrogate pair is U+FFFD in Go and so in the strict decoder, and an error in serde_json.
            (Err(_), Ok(_)) if has_surrogate(data) => {}
            _ => panic!(
                "{:?} is {plain:?} for serde_json and {:?} for the strict decoder",
                data.escape_ascii().to_string(),
                strict.as_ref().map(|(value, _)| value)
            ),
        }
    },
    seeds: || {
        let mut all = inputs(&[
            r#"{"a":1,"a":2,"b":{"c":[1,-0,1e5,1.5,"\u00e9\ud83d\ude00"]},"b":{"d":null}}"#,
            r#" [true , false,null,"x\n\t\"\\\/" ] "#,
            r#"{"metadata":{"name":"a"},"metadata":{"name":"b"},"Kind":"x","kind":"y"}"#,
            "18446744073709551615",
            "-9223372036854775809",
            "\"\\ud800\"",
        ]);
        all.extend(inputs(seeds::OBJECTS));
        all
    },
};

/// A field value that authorization takes from a field selector is one that every listed object must have.
pub const REQUIRED_FIELDS: Target = Target {
    name: "required-fields",
    check: |data| {
        let Some((kind, rest)) = kind(data) else { return };
        let Ok(text) = std::str::from_utf8(rest) else {
            return;
        };
        let Ok(selector) = fields::Selector::parse(kind, text) else {
            return;
        };
        let attributes = Attributes {
            field_selector: text,
            ..Attributes::default()
        };
        for name in ["metadata.name", "metadata.namespace", "spec.nodeName"] {
            let Some(value) = attributes.required_field(name) else {
                continue;
            };
            // Several requirements for one field all hold, and either parser may return any of them.
            let several = text.matches(name).count() > 1;
            let required = selector.required(name);
            assert!(
                required == Some(value) || (several && required.is_some()),
                "{text:?}: {name} is {value:?} for authorization and {required:?} for the list"
            );
        }
    },
    seeds: || {
        let mut all = Vec::new();
        for text in [
            "metadata.name=a",
            "metadata.name==a,spec.nodeName=n",
            "metadata.name!=a,metadata.namespace=b",
            "metadata.name=a\\,metadata.namespace=b",
            "x\\,metadata.name=a",
            " metadata.name = a ",
        ] {
            for kind in [&knarr_api::registry::POD, &knarr_api::registry::SECRET] {
                let mut input = vec![crate::byte_of(kind)];
                input.extend_from_slice(text.as_bytes());
                all.push(input);
            }
        }
        all
    },
};

/// In a valid query, every parameter has its first value by the rules of `application/x-www-form-urlencoded`.
pub const QUERIES: Target = Target {
    name: "queries",
    check: |data| {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        let query = Query::parse(text);
        if query.check().is_err() {
            return;
        }
        let mut first: BTreeMap<String, String> = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(text.as_bytes()) {
            first.entry(key.into_owned()).or_insert(value.into_owned());
        }
        for (key, value) in &first {
            assert_eq!(query.get(key), value, "{key:?} of {text:?}");
            assert_eq!(query.all(key).next(), Some(value.as_str()), "{key:?} of {text:?}");
        }
        assert_eq!(
            query.get("labelSelector"),
            first.get("labelSelector").map_or("", String::as_str)
        );
    },
    seeds: || {
        inputs(&[
            "labelSelector=a%3Db&labelSelector=c&watch=1&watch",
            "a+b=c%2Bd&&=x&y=&%C3%A9=%E2%82%AC",
            "a=%&b=%zz&c=%ff;d",
        ])
    },
};

/// A token that was read is a part of the header, unchanged; a bearer token in the header is never ignored.
pub const BEARER: Target = Target {
    name: "bearer-tokens",
    check: |data| {
        let mut headers = HeaderMap::new();
        for line in data.split(|byte| *byte == b'\n') {
            let Ok(value) = HeaderValue::from_bytes(line) else {
                return;
            };
            headers.append(http::header::AUTHORIZATION, value);
        }
        let lines = String::from_utf8_lossy(data);
        let has_scheme = lines.trim_start().to_ascii_lowercase().starts_with("bearer ");
        match bearer::token(&headers) {
            Ok(Some(token)) => {
                assert!(!token.is_empty() && lines.contains(&*token), "{lines:?}");
                assert!(!token.contains(char::is_whitespace), "{lines:?}");
                assert_eq!(headers.len(), 1, "{lines:?}");
            }
            Ok(None) => assert!(
                !has_scheme && headers.len() == 1,
                "{lines:?} is not read as a token"
            ),
            Err(e) => assert_eq!(e.code(), 401),
        }
        let _ = (header::check(&headers), header::user_agent(&headers));
    },
    seeds: || {
        inputs(&[
            "Bearer t0ken",
            "bearer  a b",
            "Basic x",
            "",
            "Bearer a\nBearer b",
            "Bearer \u{e9}",
        ])
    },
};

/// JSON that the YAML parser accepts has the same value as YAML.
pub const YAML: Target = Target {
    name: "yaml-readers",
    check: |data| {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        let Ok(Value::Object(json)) = serde_json::from_str::<Value>(text) else {
            return;
        };
        // A key in YAML has at most 1024 characters, and fractions beyond 64 bits are written differently.
        if text.len() > 1024 || text.contains(['.', 'e', 'E', '\t']) || !text.is_ascii() {
            return;
        }
        if let Ok(yaml) = yaml::to_value(text) {
            assert_eq!(yaml, Value::Object(json), "{text:?}");
        }
    },
    seeds: || {
        inputs(&[
            r#"{"a":{"b":[1,2,{"c":"d"}],"x":true,"y":null},"z":"yes"}"#,
            r#"{"a":"\u0041\n","no":"on","1":-5}"#,
        ])
    },
};
