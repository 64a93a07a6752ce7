//! Parts of a request: bodies in YAML, paths, queries, media types, continue tokens; and the token file.

use http::Method;
use knarr_apiserver::authn;
use knarr_apiserver::http::accept;
use knarr_apiserver::http::query::Query;
use knarr_apiserver::pipeline::continue_token::ContinueToken;
use knarr_apiserver::pipeline::yaml;
use knarr_apiserver::request::RequestInfo;
use serde_json::Value;

use crate::{PART, Target, objects, seeds};

fn inputs(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The JSON of a YAML document has the same value when it is read as YAML, and its object passes [`objects::check_lifecycle`].
pub const YAML: Target = Target {
    name: "yaml",
    check: |data| {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        let Ok(value) = yaml::to_value(text) else { return };
        let json = value.to_string();
        let again = yaml::to_value(&json);
        // Numbers beyond 64 bits are written differently in JSON and YAML, and a key in YAML has at most 1024 characters.
        if !has_fractions(&value) && json.len() < 1024 {
            assert_eq!(again.as_ref(), Ok(&value), "{text:?} is {json}");
        }
        if let Some(kind) = seeds::kind_of(&json)
            && let Ok(decoded) = kind.ops.decode(json.as_bytes())
        {
            objects::check_lifecycle(kind, decoded.object);
        }
    },
    seeds: || {
        let mut all = inputs(&[
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: {x: \"y\"}\ndata:\n  k: |\n    lines\n    more\n  n: 'yes'\n",
            "a: &x [1, 2.5, 0777, 0x1f, 1_000, ~, yes, !!str 5]\nb: *x\n<<: {c: d}\n? [k]\n: v\n",
            "- 1\n- - 2\n  - \"\\u263a\"\n-\n  a: >-\n    folded\n    text\n--- \nsecond: 2\n...\n",
            "a: &a {b: &b [x]}\nc: {<<: *a, d: [*b, *b]}\n# comment\n%TAG ! tag:x\n",
        ]);
        all.extend(inputs(seeds::OBJECTS));
        all
    },
};

fn has_fractions(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_i64() && !number.is_u64(),
        Value::Array(items) => items.iter().any(has_fractions),
        Value::Object(members) => members.values().any(has_fractions),
        _ => false,
    }
}

/// Method, path, query and accepted media types, one part each.
pub const REQUESTS: Target = Target {
    name: "requests",
    check: |data| {
        let text = String::from_utf8_lossy(data);
        let mut parts = text.split(char::from(PART));
        let mut part = || parts.next().unwrap_or_default();
        let (method, path, query, media) = (part(), part(), part(), part());
        let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::GET);
        let query = Query::parse(query);
        let info = RequestInfo::parse(&method, path, query.flag("watch"));
        let _ = (
            info.is_long_running(),
            info.is_mutating(),
            info.qualified_resource(),
        );
        let _ = (
            query.list(),
            query.watch(),
            query.write("Pod"),
            query.int("limit"),
        );
        for discovery in [false, true] {
            let offered = accept::Offered {
                discovery,
                tables: !discovery,
                streams: !discovery,
            };
            let _ = accept::negotiate(media, query.get("includeObject"), offered);
        }
        let _ = accept::openapi_v2(media);
        if let Ok(read) = ContinueToken::parse(query.get("continue")) {
            let printed = read.render();
            let again = ContinueToken::parse(&printed).expect("a continue token that the server made parses");
            assert_eq!(again.render(), printed);
        }
    },
    seeds: || {
        inputs(&[
            "GET\x1e/api/v1/namespaces/a/pods/b/log\x1efollow=true&tailLines=5\x1eapplication/json",
            "GET\x1e/apis/apps/v1/deployments\x1elimit=5&continue=eyJydiI6NSwiYWZ0ZXIiOiJhL2IifQ==&resourceVersion=0&resourceVersionMatch=NotOlderThan\x1eapplication/json;as=Table;g=meta.k8s.io;v=v1,application/json;q=0.5",
            "PATCH\x1e/api/v1/namespaces/a/status\x1efieldManager=x&force=true&dryRun=All&fieldValidation=Strict\x1e*/*",
            "DELETE\x1e/api/v1/watch/namespaces/%2e%2e/pods\x1epropagationPolicy=Orphan&gracePeriodSeconds=-1\x1eapplication/vnd.kubernetes.protobuf;stream=watch",
            "GET\x1e/api/v1/pods\x1ewatch=1&allowWatchBookmarks=true&sendInitialEvents=true&timeoutSeconds=9&labelSelector=a%3Db&fieldSelector=c!=d\x1e",
            "GET\x1e/apis\x1e\x1eapplication/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ])
    },
};

/// The static token file (`--token-auth-file` of kube-apiserver).
pub const TOKENS: Target = Target {
    name: "tokens",
    check: |data| {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        if let Err(why) = authn::parse_token_file(text) {
            assert!(why.to_string().contains("line"), "{why:?} does not name the line");
        }
    },
    seeds: || inputs(&["t,u,1,\"a,b\"\n#c\n\nx,y,2", "a,b", ",,,"]),
};
