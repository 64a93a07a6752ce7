//! Kubernetes' list library: isSorted, sum, min, max, indexOf, lastIndexOf.

use std::cmp::Ordering;

use cel::Env;
use cel::common::types::{DYN_TYPE, LIST_TYPE};

use super::library::{Declared, Library, call, list};
use super::{Cel, EvaluationError};

pub fn declare(env: &mut Env) -> Declared {
    let mut library = Library(env);
    library.member("isSorted", &LIST_TYPE, &[], |args| {
        call(args, |[all]| is_sorted(list(&all)?))
    })?;
    library.member("sum", &LIST_TYPE, &[], |args| {
        call(args, |[all]| sum(list(&all)?))
    })?;
    library.member("min", &LIST_TYPE, &[], |args| {
        call(args, |[all]| extreme(list(&all)?, "min", Ordering::Less))
    })?;
    library.member("max", &LIST_TYPE, &[], |args| {
        call(args, |[all]| extreme(list(&all)?, "max", Ordering::Greater))
    })?;
    library.member("indexOf", &LIST_TYPE, &[DYN_TYPE], |args| {
        call(args, |[all, one]| {
            Ok(index(list(&all)?.iter().position(|v| *v == one)))
        })
    })?;
    library.member("lastIndexOf", &LIST_TYPE, &[DYN_TYPE], |args| {
        call(args, |[all, one]| {
            Ok(index(list(&all)?.iter().rposition(|v| *v == one)))
        })
    })
}

fn index(at: Option<usize>) -> Cel {
    Cel::Int(at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}

/// How two values of one type are ordered.
pub fn compare(a: &Cel, b: &Cel) -> Result<Ordering, EvaluationError> {
    let order = match (a, b) {
        (Cel::Int(a), Cel::Int(b)) => Some(a.cmp(b)),
        (Cel::UInt(a), Cel::UInt(b)) => Some(a.cmp(b)),
        (Cel::Float(a), Cel::Float(b)) => a.partial_cmp(b),
        (Cel::String(a), Cel::String(b)) => Some(a.cmp(b)),
        (Cel::Bytes(a), Cel::Bytes(b)) => Some(a.cmp(b)),
        (Cel::Bool(a), Cel::Bool(b)) => Some(a.cmp(b)),
        (Cel::Duration(a), Cel::Duration(b)) => Some(a.cmp(b)),
        (Cel::Timestamp(a), Cel::Timestamp(b)) => Some(a.cmp(b)),
        _ => None,
    };
    order.ok_or(EvaluationError::NoSuchOverload)
}

fn is_sorted(all: &[Cel]) -> Result<Cel, EvaluationError> {
    for pair in all.windows(2) {
        if let [a, b] = pair
            && compare(a, b)? == Ordering::Greater
        {
            return Ok(Cel::Bool(false));
        }
    }
    Ok(Cel::Bool(true))
}

fn extreme(all: &[Cel], name: &str, expected: Ordering) -> Result<Cel, EvaluationError> {
    let mut rest = all.iter();
    let mut best = rest
        .next()
        .ok_or_else(|| EvaluationError::Failed(format!("{name} called on empty list")))?;
    for value in rest {
        if compare(value, best)? == expected {
            best = value;
        }
    }
    Ok(best.clone())
}

fn sum(all: &[Cel]) -> Result<Cel, EvaluationError> {
    let overflow = || EvaluationError::Failed("integer overflow".into());
    let mut rest = all.iter();
    let Some(first) = rest.next() else {
        return Ok(Cel::Int(0));
    };
    rest.try_fold(first.clone(), |sum, value| match (sum, value) {
        (Cel::Int(a), Cel::Int(b)) => a.checked_add(*b).map(Cel::Int).ok_or_else(overflow),
        (Cel::UInt(a), Cel::UInt(b)) => a.checked_add(*b).map(Cel::UInt).ok_or_else(overflow),
        (Cel::Float(a), Cel::Float(b)) => Ok(Cel::Float(a + b)),
        (Cel::Duration(a), Cel::Duration(b)) => a.checked_add(b).map(Cel::Duration).ok_or_else(overflow),
        _ => Err(EvaluationError::NoSuchOverload),
    })
}
