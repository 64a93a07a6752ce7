//! Which selectors are refused, and how.

use knarr_api::selector::{field, label};

use super::{Step, kind_of, scenarios};

/// A query parameter as it was recorded: not percent-encoded.
fn parameter<'a>(step: &'a Step, name: &str) -> Option<&'a str> {
    let (_, query) = step.path().split_once('?')?;
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn every_recorded_selector_is_taken_or_refused_as_kubernetes_does() {
    let (mut taken, mut refused) = (0, 0);
    for scenario in scenarios("list-watch") {
        for step in &scenario.steps {
            let Some((kind, _)) = kind_of(step.path()) else {
                continue;
            };
            let answers = [
                parameter(step, "labelSelector").map(|text| label::Selector::parse(text).map(drop)),
                parameter(step, "fieldSelector").map(|text| {
                    field::Selector::parse(kind, text)
                        .map(drop)
                        .map_err(|e| e.message().to_string())
                }),
            ];
            for answer in answers.into_iter().flatten() {
                match (step.status, answer) {
                    (200, Ok(())) => taken += 1,
                    (400, Err(message)) => {
                        assert_eq!(step.answer["message"], message, "{}", scenario.id);
                        refused += 1;
                    }
                    // Kinds that are still without rules of their own have no fields to select by.
                    (200, Err(_)) if kind.ops.selectable_fields().is_empty() => {}
                    (status, answer) => panic!("{} {}: {status}, {answer:?}", scenario.id, step.path()),
                }
            }
        }
    }
    assert!(taken >= 15 && refused >= 15, "{taken} taken, {refused} refused");
}
