//! Histories that are possible for a register, and histories that are not.

use super::*;

const fn v(revision: u64, write: u64) -> CallResult {
    CallResult::Ok(Some(Version { revision, write }))
}

fn unknown() -> CallResult {
    CallResult::Unknown("timeout".into())
}

type Line = (Operation, Micros, Micros, CallResult);

fn check_lines(lines: &[Line], seen: &[(u64, u64)]) -> Verdict {
    let calls: Vec<Call> = lines
        .iter()
        .map(|(operation, start, end, answer)| Call {
            client: "c".into(),
            server: "s".into(),
            key: "k".into(),
            operation: *operation,
            start: *start,
            end: *end,
            answer: answer.clone(),
        })
        .collect();
    let read = calls.iter().filter_map(|call| match call.answer {
        CallResult::Ok(Some(version)) => Some((version.write, version.revision)),
        _ => None,
    });
    check("k", &calls, &read.chain(seen.iter().copied()).collect())
}

use Operation::{Create, Delete, Get, Patch, Update};

const CREATE: Operation = Create { write: 1 };

const fn update(write: u64, expected: u64) -> Operation {
    Update { write, expected }
}

fn assert_holds(lines: &[Line]) {
    assert_eq!(check_lines(lines, &[]), Verdict::Linearizable, "{lines:?}");
}

fn assert_violated(lines: &[Line]) {
    assert!(
        matches!(check_lines(lines, &[]), Verdict::Violated(_)),
        "{lines:?}"
    );
}

#[test]
fn histories_that_have_an_order_are_linearizable() {
    // One after the other.
    assert_holds(&[
        (Get, 0, 1, CallResult::NotFound),
        (CREATE, 2, 3, v(10, 1)),
        (Get, 4, 5, v(10, 1)),
        (update(2, 10), 6, 7, v(11, 2)),
        (update(3, 10), 8, 9, CallResult::Conflict),
        (CREATE, 10, 11, CallResult::AlreadyExists),
        (Delete, 12, 13, CallResult::Ok(None)),
        (Get, 14, 15, CallResult::NotFound),
        (Create { write: 4 }, 16, 17, v(20, 4)),
    ]);
    // A read that overlaps a write may see it or not.
    assert_holds(&[(CREATE, 0, 10, v(10, 1)), (Get, 1, 2, CallResult::NotFound)]);
    assert_holds(&[(CREATE, 0, 10, v(10, 1)), (Get, 1, 2, v(10, 1))]);
    // Overlapping writes happen in the order of their revisions.
    assert_holds(&[
        (CREATE, 0, 1, v(10, 1)),
        (Patch { write: 2 }, 2, 9, v(12, 2)),
        (Patch { write: 3 }, 2, 9, v(11, 3)),
        (Get, 10, 11, v(12, 2)),
    ]);
    // An update that loses against a deletion.
    assert_holds(&[
        (CREATE, 0, 1, v(10, 1)),
        (Delete, 2, 9, CallResult::Ok(None)),
        (Get, 4, 5, CallResult::NotFound),
        (update(2, 10), 6, 8, CallResult::NotFound),
    ]);
    // Nothing follows from a rejected call.
    assert_holds(&[
        (CREATE, 0, 1, CallResult::Rejected("no route".into())),
        (Get, 2, 3, CallResult::NotFound),
    ]);
}

#[test]
fn a_write_without_a_response_has_happened_at_any_time_after_its_request_or_never() {
    let create = (CREATE, 0, 1, v(10, 1));
    let patch = (Patch { write: 2 }, 2, 3, unknown());
    assert_holds(&[create.clone(), patch.clone(), (Get, 10, 11, v(10, 1))]);
    assert_holds(&[
        create.clone(),
        patch.clone(),
        (Get, 10, 11, v(10, 1)),
        (Get, 12, 13, v(11, 2)),
    ]);
    // Not twice, and not before its start.
    assert_violated(&[
        create.clone(),
        patch.clone(),
        (Get, 12, 13, v(11, 2)),
        (Get, 14, 15, v(10, 1)),
    ]);
    assert_violated(&[create.clone(), (Get, 1, 1, v(11, 2)), patch]);
    // A deletion without a response.
    assert_holds(&[
        create.clone(),
        (Delete, 2, 3, unknown()),
        (Get, 4, 5, CallResult::NotFound),
    ]);
    assert_violated(&[create, (Get, 4, 5, CallResult::NotFound)]);
    // An unseen write makes a conditional one fail, and may be deleted.
    assert_holds(&[
        (CREATE, 0, 1, unknown()),
        (Delete, 2, 3, CallResult::Ok(None)),
        (Get, 4, 5, CallResult::NotFound),
    ]);
    assert_violated(&[(Delete, 2, 3, CallResult::Ok(None))]);
}

#[test]
fn a_write_that_a_watcher_saw_has_happened() {
    let lines = [
        (CREATE, 0, 1, v(10, 1)),
        (Patch { write: 2 }, 2, 3, unknown()),
        (Get, 10, 11, v(10, 1)),
        (Patch { write: 3 }, 12, 13, v(12, 3)),
        (Get, 14, 15, v(12, 3)),
    ];
    assert_eq!(check_lines(&lines, &[]), Verdict::Linearizable);
    // It fits between the read and the last patch, or after everything, but not before the register was created.
    assert_eq!(check_lines(&lines, &[(2, 11)]), Verdict::Linearizable);
    assert!(matches!(check_lines(&lines, &[(2, 9)]), Verdict::Violated(_)));
    assert_eq!(check_lines(&lines, &[(2, 13)]), Verdict::Linearizable);
}

#[test]
fn lost_and_stale_histories_are_violations() {
    // An acknowledged write is lost.
    assert_violated(&[
        (CREATE, 0, 1, v(10, 1)),
        (update(2, 10), 2, 3, v(11, 2)),
        (Get, 4, 5, v(10, 1)),
    ]);
    assert_violated(&[(CREATE, 0, 1, v(10, 1)), (Get, 2, 3, CallResult::NotFound)]);
    // A stale read after a fresh one.
    assert_violated(&[
        (CREATE, 0, 1, v(10, 1)),
        (update(2, 10), 2, 9, v(11, 2)),
        (Get, 3, 4, v(11, 2)),
        (Get, 5, 6, v(10, 1)),
    ]);
    // Two conditional writes on one version both succeed.
    assert_violated(&[
        (CREATE, 0, 1, v(10, 1)),
        (update(2, 10), 2, 9, v(11, 2)),
        (update(3, 10), 2, 9, v(12, 3)),
    ]);
    // A conflict that has no reason.
    assert_violated(&[
        (CREATE, 0, 1, v(10, 1)),
        (update(2, 10), 2, 3, CallResult::Conflict),
    ]);
    // Conflict, though it was written.
    assert_violated(&[
        (CREATE, 0, 1, v(10, 1)),
        (update(2, 10), 2, 3, CallResult::Conflict),
        (Get, 4, 5, v(11, 2)),
    ]);
    // Created twice; deleted twice.
    assert_violated(&[(CREATE, 0, 1, v(10, 1)), (Create { write: 2 }, 2, 3, v(11, 2))]);
    assert_violated(&[
        (CREATE, 0, 1, v(10, 1)),
        (Delete, 2, 3, CallResult::Ok(None)),
        (Delete, 4, 5, CallResult::Ok(None)),
    ]);
    // A revision that is lower than before a deletion.
    assert_violated(&[
        (CREATE, 0, 1, v(10, 1)),
        (Delete, 2, 3, CallResult::Ok(None)),
        (Create { write: 2 }, 4, 5, v(9, 2)),
    ]);
}

#[test]
fn a_violation_names_the_calls_that_cannot_be_next() {
    let lines = [(CREATE, 0, 1, v(10, 1)), (Get, 2, 3, CallResult::NotFound)];
    let Verdict::Violated(violation) = check_lines(&lines, &[]) else {
        panic!("a lost write was not found");
    };
    assert_eq!(
        violation.text,
        "no order explains its 2 calls: after 1 of them the register is write 1 at revision 10, and none of these can be \
         next: c at s: Get -> NotFound (2..3)"
    );
}

/// Six clients of a correct register, with a tenth of the responses lost.
fn long_history(calls: u64) -> Vec<Line> {
    let mut lines: Vec<Line> = vec![(CREATE, 0, 1, v(1, 1))];
    let mut revision = 1;
    let mut write = 1;
    for n in 1..calls {
        // Each takes effect at n * 10, and overlaps its neighbours.
        let (start, end) = (n * 10 - n % 9, n * 10 + n % 7);
        match n % 4 {
            0 => lines.push((Get, start, end, v(revision, write))),
            1 => {
                (revision, write) = (revision + 1, n + 1);
                let answer = if n % 10 == 1 {
                    unknown()
                } else {
                    v(revision, write)
                };
                lines.push((Patch { write }, start, end, answer));
            }
            2 => lines.push((update(n + 1, 0), start, end, CallResult::Conflict)),
            _ => lines.push((Patch { write: n + 1 }, start, end, unknown())),
        }
    }
    lines
}

#[test]
fn hundreds_of_calls_with_lost_responses_are_decided() {
    let mut lines = long_history(400);
    assert_eq!(check_lines(&lines, &[]), Verdict::Linearizable);
    let last = lines.len() as u64 * 10 + 100;
    lines.push((Get, last, last + 1, v(1, 1)));
    assert!(matches!(check_lines(&lines, &[]), Verdict::Violated(_)));
}
