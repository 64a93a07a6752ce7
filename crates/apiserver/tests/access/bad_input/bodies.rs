//! Bodies of new objects that are invalid.

use super::case::*;

pub fn bodies() -> Vec<Case> {
    let post = ("POST", MAPS);
    let strict = format!("{MAPS}?fieldValidation=Strict");
    let strict = ("POST", strict.as_str());
    let bomb = {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..10 {
            let of = format!("*a{}", n - 1);
            text += &format!("a{n}: &a{n} [{}]\n", [of.as_str(); 10].join(","));
        }
        text
    };
    vec![
        posted("", BAD, "must be of type ConfigMap"),
        posted(r#"{"metadata":"#, BAD, "unexpected end of JSON input"),
        posted(
            "null",
            INVALID,
            "metadata.name: Required value: name or generateName is required",
        ),
        posted("[]", BAD, "json: cannot unmarshal array into Go value"),
        posted("{} {}", BAD, "invalid character '{' after top-level value"),
        posted(
            map_with(r#"{"k":5}"#),
            BAD,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        posted(
            map_with(r#""x""#),
            BAD,
            "json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string",
        ),
        posted(map_with(&nested(200_000)), BAD, "exceeded max depth"),
        posted(
            [
                b"{\"metadata\":{\"name\":\"new\"},\"data\":{\"k\":".as_slice(),
                &[b'['; 1_000_000],
            ]
            .concat(),
            BAD,
            "json parse error: ",
        ),
        posted(
            b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".as_slice(),
            BAD,
            "invalid UTF-8 in string",
        ),
        case(
            strict,
            JSON,
            map_with(r#"{"a":"1","a":"2"}"#),
            BAD,
            r#"strict decoding error: duplicate field "data.a""#,
        ),
        case(
            strict,
            JSON,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new","nme":"x"},"dta":{}}"#,
            BAD,
            r#"strict decoding error: unknown field "metadata.nme", unknown field "dta""#,
        ),
        posted(
            r#"{"apiVersion":"v1","kind":"Nothing","metadata":{"name":"new"}}"#,
            BAD,
            r#"no kind "Nothing" is registered for version "v1""#,
        ),
        posted(
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"new"}}"#,
            BAD,
            "",
        ),
        posted(
            r#"{"apiVersion":"apps/v1","kind":"ConfigMap","metadata":{"name":"new"}}"#,
            BAD,
            "",
        ),
        posted(
            r#"{"metadata":{"name":"Not_A_Name"}}"#,
            INVALID,
            "metadata.name: Invalid value: \"Not_A_Name\": a lowercase RFC 1123 subdomain must consist of",
        ),
        posted(r#"{"metadata":{}}"#, INVALID, "name or generateName is required"),
        posted(
            r#"{"metadata":{"name":"new","namespace":"other"}}"#,
            BAD,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        posted(
            r#"{"metadata":{"name":"new","resourceVersion":"5"}}"#,
            UNNAMED,
            "resourceVersion should not be set on objects to be created",
        ),
        posted(
            r#"{"metadata":{"name":"new","labels":{"a b":"c"}}}"#,
            INVALID,
            "metadata.labels: Invalid value: \"a b\"",
        ),
        posted(
            format!(
                r#"{{"metadata":{{"name":"new","annotations":{{"a":"{}"}}}}}}"#,
                "x".repeat(300_000)
            ),
            INVALID,
            "metadata.annotations: Too long: may not be more than 262144 bytes",
        ),
        posted(
            map_with(&format!(r#"{{"k":"{}"}}"#, "x".repeat((1 << 20) + 1))),
            INVALID,
            "may not be more than 1048576 bytes",
        ),
        posted(
            vec![b' '; 3 * 1024 * 1024 + 1],
            LARGE,
            "Request entity too large: limit is 3145728",
        ),
        posted(
            vec![b' '; 9 * 1024 * 1024],
            LARGE,
            "Request entity too large: limit is 3145728",
        ),
        case(
            post,
            "text/csv",
            "{}",
            MEDIA,
            "the body of the request was in an unknown format - accepted media types include: ",
        ),
        case(post, YAML, bomb, BAD, "document contains excessive aliasing"),
        case(
            post,
            YAML,
            "[".repeat(100_000),
            BAD,
            "yaml: recursion limit exceeded",
        ),
        case(post, YAML, "a: b: c", BAD, "yaml: "),
        case(post, YAML, b"\xff\xfe".as_slice(), BAD, "yaml: "),
        case(post, PROTOBUF, "k8s", BAD, "protobuf"),
        case(
            post,
            PROTOBUF,
            b"k8s\0\x0a\xff\xff\xff\xff\x0f".as_slice(),
            BAD,
            "protobuf",
        ),
        // A compressed body is not decompressed, so a decompression bomb does no harm: it is bytes that are not JSON.
        posted(
            b"\x1f\x8b\x08\0\0\0\0\0".as_slice(),
            BAD,
            "invalid character '\\x1f' looking for beginning of value",
        ),
    ]
}
