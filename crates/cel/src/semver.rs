//! Kubernetes' semantic version library.

use std::cmp::Ordering;

use cel::Env;
use cel::common::types::{BOOL_TYPE, STRING_TYPE, Type};
use cel::objects::Opaque;

use super::library::{Declared, Library, call, inside, opaque, text};
use super::{Cel, EvaluationError};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    numbers: [u64; 3],
    /// The pre-release identifiers; empty for a release.
    before: Vec<String>,
}

const NAME: &str = "kubernetes.Semver";

impl Opaque for Version {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

impl Version {
    /// `loose`: a leading v, missing minor and patch numbers and leading zeros are normalized first.
    fn parse(given: &str, loose: bool) -> Result<Version, EvaluationError> {
        let wrong = |why: &str| EvaluationError::Failed(format!("parse error on value {given:?}: {why}"));
        let mut rest = given;
        if loose {
            rest = rest.strip_prefix('v').unwrap_or(rest);
        }
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (rest, None),
        };
        let (core, before) = match rest.split_once('-') {
            Some((core, before)) => (core, Some(before)),
            None => (rest, None),
        };
        let mut parts: Vec<&str> = core.split('.').collect();
        if loose {
            parts.resize(parts.len().max(3), "0");
        }
        let [major, minor, patch] = parts[..] else {
            return Err(wrong("No Major.Minor.Patch elements found"));
        };
        let number = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let zeros = text.len() > 1 && text.starts_with('0') && !loose;
            match text.parse::<u64>() {
                Ok(n) if plain && !zeros => Ok(n),
                _ => Err(wrong(&format!("Invalid version number {text:?}"))),
            }
        };
        let is_identifier =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let before: Vec<String> = before
            .map(|b| b.split('.').map(str::to_string).collect())
            .unwrap_or_default();
        if !before.iter().all(|b| is_identifier(b)) || build.is_some_and(|b| !b.split('.').all(is_identifier))
        {
            return Err(wrong("Invalid character(s) found"));
        }
        Ok(Version {
            numbers: [number(major)?, number(minor)?, number(patch)?],
            before,
        })
    }

    fn order(&self, other: &Version) -> Ordering {
        let part = |a: &String, b: &String| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        let before = || match (self.before.is_empty(), other.before.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let parts = self.before.iter().zip(&other.before);
                let first = parts.map(|(a, b)| part(a, b)).find(|o| o.is_ne());
                first.unwrap_or(self.before.len().cmp(&other.before.len()))
            }
        };
        self.numbers.cmp(&other.numbers).then_with(before)
    }
}

/// A version as a value, read strictly.
pub(super) fn value(given: &str) -> Result<Cel, EvaluationError> {
    Ok(opaque(Version::parse(given, false)?))
}

fn order(a: &Cel, b: &Cel) -> Result<Ordering, EvaluationError> {
    Ok(inside::<Version>(a)?.order(&inside(b)?))
}

fn number(version: &Cel, at: usize) -> Result<Cel, EvaluationError> {
    let numbers = inside::<Version>(version)?.numbers;
    let found = numbers.get(at).and_then(|n| i64::try_from(*n).ok());
    found
        .map(Cel::Int)
        .ok_or_else(|| EvaluationError::Failed("integer overflow".into()))
}

pub fn declare(env: &mut Env) -> Declared {
    let of = Type::new_opaque_type(NAME);
    env.add_type(of.to_owned())?;
    let one = std::slice::from_ref(&of);
    let mut library = Library(env);
    library.global("semver", &[STRING_TYPE], |args| {
        call(args, |[given]| Ok(opaque(Version::parse(text(&given)?, false)?)))
    })?;
    library.global("semver", &[STRING_TYPE, BOOL_TYPE], |args| {
        call(args, |[given, loose]| {
            Ok(opaque(Version::parse(text(&given)?, loose == Cel::Bool(true))?))
        })
    })?;
    library.global("isSemver", &[STRING_TYPE], |args| {
        call(args, |[given]| {
            Ok(Cel::Bool(Version::parse(text(&given)?, false).is_ok()))
        })
    })?;
    library.global("isSemver", &[STRING_TYPE, BOOL_TYPE], |args| {
        call(args, |[given, loose]| {
            Ok(Cel::Bool(
                Version::parse(text(&given)?, loose == Cel::Bool(true)).is_ok(),
            ))
        })
    })?;
    library.member("isGreaterThan", &of, one, |args| {
        call(args, |[a, b]| Ok(Cel::Bool(order(&a, &b)?.is_gt())))
    })?;
    library.member("isLessThan", &of, one, |args| {
        call(args, |[a, b]| Ok(Cel::Bool(order(&a, &b)?.is_lt())))
    })?;
    library.member("compareTo", &of, one, |args| {
        call(args, |[a, b]| Ok(Cel::Int(order(&a, &b)? as i64)))
    })?;
    library.member("major", &of, &[], |args| call(args, |[v]| number(&v, 0)))?;
    library.member("minor", &of, &[], |args| call(args, |[v]| number(&v, 1)))?;
    library.member("patch", &of, &[], |args| call(args, |[v]| number(&v, 2)))
}
