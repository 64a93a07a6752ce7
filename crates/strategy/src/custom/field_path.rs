//! The path of a rule's fieldPath: `.spec.size`, `.labels['a.b']`. It names fields and keys, and each must be one that
//! the schema describes.

use knarr_cel::structural::{Additional, Schema};

/// Why a path is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FieldPathError<'a> {
    #[error("unexpected end of JSON path")]
    End,
    #[error("expected [ or . but got: {0}")]
    NoStep(&'a str),
    #[error("expected single quoted string but got {0}")]
    NotQuoted(&'a str),
    #[error("expected ] but got {0}")]
    NotClosed(&'a str),
    #[error("invalid string literal: invalid syntax")]
    StringLiteral,
    #[error("does not refer to a valid field")]
    NoField,
}

/// The path as responses name it.
pub fn resolved<'a>(text: &'a str, schema: &Schema) -> Result<String, FieldPathError<'a>> {
    let mut at = schema;
    let mut path = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix('[') {
            let (token, left) = token(after).ok_or(FieldPathError::End)?;
            let quoted = token.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
            let quoted = quoted.filter(|_| token.len() >= 2);
            name = unescaped(quoted.ok_or(FieldPathError::NotQuoted(token))?)?;
            at = below(at, &name, &mut path)?;
            rest = match self::token(left) {
                Some(("]", left)) => left,
                Some((other, _)) => return Err(FieldPathError::NotClosed(other)),
                None => return Err(FieldPathError::End),
            };
        } else if let Some(after) = rest.strip_prefix('.') {
            let (token, left) = token(after).ok_or(FieldPathError::End)?;
            at = below(at, token, &mut path)?;
            rest = left;
        } else {
            let (token, _) = token(rest).unwrap_or((rest, ""));
            return Err(FieldPathError::NoStep(token));
        }
    }
    Ok(path)
}

fn below<'s>(
    schema: &'s Schema,
    name: &str,
    path: &mut String,
) -> Result<&'s Schema, FieldPathError<'static>> {
    if !schema.properties.is_empty() {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        return schema.properties.get(name).ok_or(FieldPathError::NoField);
    }
    match &schema.additional {
        Some(Additional::Schema(values)) => {
            path.push_str(&format!("[{name}]"));
            Ok(values)
        }
        _ => Err(FieldPathError::NoField),
    }
}

/// The next token (a dot, a bracket, a quoted text or the text between those), and the rest.
fn token(text: &str) -> Option<(&str, &str)> {
    let first = text.chars().next()?;
    if first == '\'' {
        let mut before = '\'';
        for (i, c) in text.char_indices().skip(1) {
            if c == '\'' && before != '\\' {
                return Some(text.split_at(i + 1));
            }
            before = c;
        }
        return Some((text, ""));
    }
    let is_mark = |c: char| matches!(c, '.' | '[' | ']');
    if is_mark(first) {
        return Some(text.split_at(1));
    }
    Some(text.split_at(text.find(is_mark).unwrap_or(text.len())))
}

fn unescaped(text: &str) -> Result<String, FieldPathError<'static>> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\'' | '\\')) => out.push(c),
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some('0') => out.push('\0'),
                _ => return Err(FieldPathError::StringLiteral),
            },
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_name_what_the_schema_describes() {
        let schema = Schema::read(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a.b": {"type": "string"}, "it's": {"type": "string"},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
                "list": {"type": "array", "items": {"type": "string"}}}}}}));
        for (path, want) in [
            (".spec", Ok("spec")),
            (".spec['a.b']", Ok("spec.a.b")),
            (r".spec['it\'s']", Ok("spec.it's")),
            (".spec.map.k", Ok("spec.map[k]")),
            (".spec.map['k.l']", Ok("spec.map[k.l]")),
            ("spec", Err("expected [ or . but got: spec")),
            (".spec.", Err("unexpected end of JSON path")),
            (".spec[map]", Err("expected single quoted string but got map")),
            (".spec['map'", Err("unexpected end of JSON path")),
            (".spec.none", Err("does not refer to a valid field")),
            (".spec.list['0']", Err("does not refer to a valid field")),
        ] {
            let found = resolved(path, &schema).map_err(|e| e.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), want, "{path}");
        }
    }
}
