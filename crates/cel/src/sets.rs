//! CEL's set library over lists: sets.contains, sets.equivalent, sets.intersects; and jsonpatch.escapeKey.

use cel::Env;
use cel::common::types::{LIST_TYPE, STRING_TYPE};

use super::Cel;
use super::library::{Declared, Library, call, list, string, text};

pub fn declare(env: &mut Env) -> Declared {
    let mut library = Library(env);
    let two = [LIST_TYPE, LIST_TYPE];
    library.global("sets.contains", &two, |args| {
        call(args, |[a, b]| Ok(Cel::Bool(contains(list(&a)?, list(&b)?))))
    })?;
    library.global("sets.equivalent", &two, |args| {
        call(args, |[a, b]| {
            let (a, b) = (list(&a)?, list(&b)?);
            Ok(Cel::Bool(contains(a, b) && contains(b, a)))
        })
    })?;
    library.global("sets.intersects", &two, |args| {
        call(args, |[a, b]| {
            let (a, b) = (list(&a)?, list(&b)?);
            Ok(Cel::Bool(a.iter().any(|v| b.contains(v))))
        })
    })?;
    library.global("jsonpatch.escapeKey", &[STRING_TYPE], |args| {
        call(args, |[key]| {
            Ok(string(text(&key)?.replace('~', "~0").replace('/', "~1")))
        })
    })
}

fn contains(all: &[Cel], some: &[Cel]) -> bool {
    some.iter().all(|v| all.contains(v))
}
