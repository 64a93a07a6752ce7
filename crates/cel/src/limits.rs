//! Limits before parsing: the parser, and all that traverses its result, recurse as deep as an expression nests, so
//! the possible depth is computed from the text first.

use super::CompileError;

/// Longest expression, in bytes; Kubernetes' cost limits reject far shorter ones.
pub const EXPRESSION_MAX_BYTES: usize = 16 * 1024;
/// How deep brackets may nest.
pub const NESTING_MAX: usize = 48;
/// How deep the parts of an expression may nest, as in Kubernetes' parser.
pub const DEPTH_MAX: usize = 250;

/// Checks a text before it is parsed.
pub fn check(text: &str) -> Result<(), CompileError> {
    if text.len() > EXPRESSION_MAX_BYTES {
        return Err(CompileError::TooLong);
    }
    // What is open, the outermost first.
    let mut levels = vec![Level::default()];
    let mut quote = None;
    let mut in_word = false;
    let mut escaped = false;
    for c in text.chars() {
        if let Some(open) = quote {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if c == open => quote = None,
                _ => {}
            }
            continue;
        }
        let is_word = c.is_alphanumeric() || c == '_';
        let is_inside = levels.len() > 1;
        let Some(level) = levels.last_mut() else { break };
        match c {
            '\'' | '"' => {
                quote = Some(c);
                level.add(1);
            }
            _ if is_word && !in_word => level.add(1),
            '(' | '[' | '{' => {
                level.add(1);
                levels.push(Level::default());
            }
            '?' => {
                level.next();
                level.conditions += 1;
            }
            ')' | ']' | '}' if is_inside => {
                let inner = levels.pop().map_or(0, |level| level.deepest);
                if let Some(level) = levels.last_mut() {
                    level.add(inner);
                }
            }
            ',' | ':' | '&' | '|' => level.next(),
            _ => {}
        }
        in_word = is_word;
        let nested: usize = levels.iter().map(|level| 1 + level.conditions).sum();
        if nested > NESTING_MAX + 1 {
            return Err(CompileError::TooNested);
        }
        if levels.last().is_some_and(|level| level.deepest > DEPTH_MAX) {
            return Err(CompileError::TooDeep);
        }
    }
    Ok(())
}

/// The content of a pair of brackets. Operators of one chain nest, so a chain is as deep as it is long,
/// but for `&&` and `||`, which are balanced.
#[derive(Default)]
struct Level {
    chain: usize,
    deepest: usize,
    conditions: usize,
}

impl Level {
    fn add(&mut self, parts: usize) {
        self.chain += parts;
        self.deepest = self.deepest.max(self.chain);
    }

    fn next(&mut self) {
        self.chain = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_that_is_too_deep_is_found_in_the_text() {
        let taken = |text: String| check(&text).is_ok();
        assert!(taken("a.b[0] + f(x, 'é(((\\'') > 1 ? 1 : 2".into()));
        assert!(taken(vec!["a.b == 1"; 1_000].join(" && ")));
        assert!(taken(format!("x in [{}]", vec!["1"; 3_000].join(", "))));
        for text in [
            "(".repeat(49),
            "a ? 1 : ".repeat(49),
            vec!["1"; 300].join("+"),
            vec!["x"; 300].join(" in "),
            format!("x{}", "[0]".repeat(300)),
            format!("x{}", ".f()".repeat(300)),
            format!("{}1{}", "(".repeat(40), "+1+1+1+1+1+1+1)".repeat(40)),
            "x".repeat(EXPRESSION_MAX_BYTES + 1),
        ] {
            assert!(!taken(text.clone()), "{text}");
        }
    }
}
