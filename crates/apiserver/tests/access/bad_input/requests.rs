//! Requests whose paths, parameters, methods or preconditions are invalid.

use super::case::*;

pub fn requests() -> Vec<Case> {
    let get = |path: &str| ("GET", format!("/api/v1/namespaces/default/configmaps{path}"));
    let asked = |path: &str, wrong, message| {
        let (method, path) = get(path);
        case((method, &path), "", "", wrong, message)
    };
    vec![
        asked("?labelSelector=a+in+(", BAD, "unable to parse requirement: "),
        asked("?labelSelector=!!!", BAD, "unable to parse requirement: "),
        asked("?labelSelector=a%3D%3D%3Db", BAD, "unable to parse requirement: "),
        asked(
            "?fieldSelector=spec.none%3Dx",
            BAD,
            r#""spec.none" is not a known field selector: only "metadata.name", "metadata.namespace""#,
        ),
        asked(
            "?fieldSelector=x",
            BAD,
            "invalid selector: 'x'; can't understand 'x'",
        ),
        asked(
            "?limit=many",
            BAD,
            "strconv.ParseInt: parsing \"many\": invalid syntax",
        ),
        asked("?continue=%00%C3%BF", BAD, "continue key is not valid"),
        asked(
            "?continue=%00%ff",
            BAD,
            "the query of the request URL cannot be decoded",
        ),
        asked(
            "?labelSelector=%zz",
            BAD,
            "the query of the request URL cannot be decoded",
        ),
        asked("?continue=bm90IGpzb24=", BAD, "continue key is not valid"),
        asked(
            "?resourceVersion=new",
            BAD,
            "resourceVersion: Invalid value: \"new\"",
        ),
        asked(
            "?resourceVersion=5&resourceVersionMatch=Roughly",
            INVALID,
            "resourceVersionMatch: ",
        ),
        asked("?watch=1&timeoutSeconds=x", BAD, "strconv.ParseInt"),
        asked("?watch=1&resourceVersion=-5", UNREADABLE, "resourceVersion"),
        asked(
            "?timeout=soon",
            BAD,
            "invalid timeout specified in the request URL",
        ),
        asked("/%2e%2e%2fnodes", MISSING, ""),
        asked("/..", MISSING, ""),
        asked("/kept/none", MISSING, ""),
        asked("s", MISSING, "the server could not find the requested resource"),
        case(
            ("GET", "/api/v9/pods"),
            "",
            "",
            MISSING,
            "the server could not find the requested resource",
        ),
        case(
            ("PUT", MAPS),
            JSON,
            "{}",
            METHOD,
            "the server does not allow this method on the requested resource",
        ),
        case(
            ("POST", KEPT),
            JSON,
            "{}",
            METHOD,
            "the server does not allow this method on the requested resource",
        ),
        case(("BREW", KEPT), "", "", METHOD, ""),
        case(("TRACE", KEPT), "", "", METHOD, ""),
        case(
            ("PUT", KEPT),
            JSON,
            r#"{"metadata":{"name":"other"}}"#,
            BAD,
            "the name of the object (other) does not match the name on the URL (kept)",
        ),
        case(
            ("PUT", KEPT),
            JSON,
            r#"{"metadata":{"name":"kept","resourceVersion":"x"}}"#,
            UNNAMED,
            r#"strconv.ParseUint: parsing "x": invalid syntax"#,
        ),
        case(
            ("PUT", KEPT),
            JSON,
            r#"{"metadata":{"name":"kept","uid":"other"}}"#,
            (409, "Conflict"),
            "Precondition failed: UID in precondition: other",
        ),
        case(
            ("DELETE", KEPT),
            JSON,
            r#"{"propagationPolicy":"Sideways"}"#,
            INVALID,
            "propagationPolicy: ",
        ),
        case(("DELETE", KEPT), JSON, r#"{"gracePeriodSeconds":"x"}"#, BAD, ""),
        case(
            ("DELETE", KEPT),
            JSON,
            r#"{"preconditions":{"uid":"other"}}"#,
            (409, "Conflict"),
            "the UID in the precondition (other) does not match the UID in record (",
        ),
        case(
            ("DELETE", KEPT),
            JSON,
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            BAD,
            "",
        ),
    ]
}
