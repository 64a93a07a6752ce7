//! Compares the recorded responses of kube-apiserver v1.36.2 (`tests/golden-api/*.jsonl.gz`) with the results of the pure code
//! of this crate. Requests that need a server are tested in the apiserver crate.

mod discovery;
mod patch;
mod selectors;

use serde_json::Value;

use crate::recordings;

/// One recorded request and its response.
struct Step {
    request: Value,
    status: u64,
    response: Value,
}

impl Step {
    fn path(&self) -> &str {
        self.request["path"].as_str().unwrap_or_default()
    }

    fn header(&self, name: &str) -> &str {
        self.request["headers"][name].as_str().unwrap_or_default()
    }
}

struct Scenario {
    id: String,
    title: String,
    steps: Vec<Step>,
}

fn scenarios(topic: &str) -> Vec<Scenario> {
    recordings::read(topic)
        .lines()
        .map(|line| {
            let mut scenario: Value = serde_json::from_str(line).expect("a scenario a line");
            let steps = scenario["steps"]
                .as_array_mut()
                .map(std::mem::take)
                .unwrap_or_default();
            Scenario {
                id: scenario["id"].as_str().unwrap_or_default().to_string(),
                title: scenario["title"].as_str().unwrap_or_default().to_string(),
                steps: steps
                    .into_iter()
                    .map(|mut step| Step {
                        status: step["response"]["status"].as_u64().unwrap_or_default(),
                        response: step["response"]["body"].take(),
                        request: step["request"].take(),
                    })
                    .collect(),
            }
        })
        .collect()
}

/// The kind and the subresource (empty if none) of a recorded path.
fn kind_of(path: &str) -> Option<(&'static knarr_api::Kind, &str)> {
    let path = path.split('?').next().unwrap_or_default();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match segments.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() && !["status", "finalize"].contains(&rest[0]) => {
            rest
        }
        rest => rest,
    };
    let kind = knarr_api::registry::by_resource(group, version, rest.first()?)?;
    Some((kind, rest.get(2).copied().unwrap_or_default()))
}
