//! Kubernetes' regular expression library: find and findAll.

use cel::Env;
use cel::common::types::{INT_TYPE, STRING_TYPE};
use regex::Regex;

use super::library::{Declared, Library, call, int, string, text};
use super::{Cel, EvaluationError};

pub fn declare(env: &mut Env) -> Declared {
    let mut library = Library(env);
    library.member("find", &STRING_TYPE, &[STRING_TYPE], |args| {
        call(args, |[of, pattern]| {
            let regex = compiled(text(&pattern)?)?;
            Ok(string(regex.find(text(&of)?).map_or("", |m| m.as_str())))
        })
    })?;
    library.member("findAll", &STRING_TYPE, &[STRING_TYPE], |args| {
        call(args, |[of, pattern]| all(text(&of)?, text(&pattern)?, -1))
    })?;
    library.member("findAll", &STRING_TYPE, &[STRING_TYPE, INT_TYPE], |args| {
        call(args, |[of, pattern, most]| {
            all(text(&of)?, text(&pattern)?, int(&most)?)
        })
    })
}

fn compiled(pattern: &str) -> Result<Regex, EvaluationError> {
    Regex::new(pattern).map_err(|e| EvaluationError::Failed(format!("Illegal regex: {e}")))
}

/// At most `most` matches; all of them if that is negative.
fn all(of: &str, pattern: &str, most: i64) -> Result<Cel, EvaluationError> {
    let regex = compiled(pattern)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let found = regex.find_iter(of).take(most).map(|m| string(m.as_str()));
    Ok(Cel::List(found.collect::<Vec<_>>().into()))
}
