//! The selectors that are rejected, and their errors.

use knarr_api::fields;
use knarr_apimachinery::labels;

use super::{Step, kind_of, scenarios};

/// A query parameter of a recorded path, which is not percent-encoded.
fn parameter<'a>(step: &'a Step, name: &str) -> Option<&'a str> {
    let (_, query) = step.path().split_once('?')?;
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn every_recorded_selector_is_accepted_or_rejected_as_kubernetes_does() {
    let (mut accepted, mut rejected) = (0, 0);
    for scenario in scenarios("list-watch") {
        for step in &scenario.steps {
            let Some((kind, _)) = kind_of(step.path()) else {
                continue;
            };
            let answers = [
                parameter(step, "labelSelector")
                    .map(|text| labels::Selector::parse(text).map(drop).map_err(|e| e.to_string())),
                parameter(step, "fieldSelector").map(|text| {
                    fields::Selector::parse(kind, text)
                        .map(drop)
                        .map_err(|e| e.message().to_string())
                }),
            ];
            for response in answers.into_iter().flatten() {
                match (step.status, response) {
                    (200, Ok(())) => accepted += 1,
                    (400, Err(message)) => {
                        assert_eq!(step.response["message"], message, "{}", scenario.id);
                        rejected += 1;
                    }
                    // Kinds without a strategy of their own have no selectable fields.
                    (200, Err(_)) if kind.ops.selectable_fields().is_empty() => {}
                    (status, response) => panic!("{} {}: {status}, {response:?}", scenario.id, step.path()),
                }
            }
        }
    }
    assert!(
        accepted >= 15 && rejected >= 15,
        "{accepted} accepted, {rejected} rejected"
    );
}
