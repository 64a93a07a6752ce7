//! The grammar of label selectors in a query string: tokens, and the parser over them.
//!
//! What it accepts and its errors are those of apimachinery (`labels.Parse`), byte for byte:
//! clients show these messages. Never panics and never recurses, whatever the text.

use super::{Operator, Requirement, SelectorError};

/// The tokens that are expected in place of an operator.
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    Open,
    Close,
    Comma,
    Not,
    Identifier,
    /// `in` and `notin` too, which are identifiers where a key or a value is expected.
    Op(Operator),
}

struct Lexer<'a> {
    rest: &'a str,
}

fn is_symbol(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

impl<'a> Lexer<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn next(&mut self) -> (Token, &'a str) {
        self.rest = self.rest.trim_start_matches(is_space);
        let symbol = |token, bytes| (token, bytes);
        let mut after = self.rest.chars();
        let (token, bytes) = match (after.next(), after.next()) {
            // A NUL ends the text, as in apimachinery.
            (None | Some('\0'), _) => return (Token::End, ""),
            (Some('('), _) => symbol(Token::Open, 1),
            (Some(')'), _) => symbol(Token::Close, 1),
            (Some(','), _) => symbol(Token::Comma, 1),
            (Some('>'), _) => symbol(Token::Op(Operator::GreaterThan), 1),
            (Some('<'), _) => symbol(Token::Op(Operator::LessThan), 1),
            (Some('='), Some('=')) => symbol(Token::Op(Operator::DoubleEquals), 2),
            (Some('='), _) => symbol(Token::Op(Operator::Equals), 1),
            (Some('!'), Some('=')) => symbol(Token::Op(Operator::NotEquals), 2),
            (Some('!'), _) => symbol(Token::Not, 1),
            _ => {
                let end = |c: char| is_symbol(c) || is_space(c) || c == '\0';
                let text = self.take(self.rest.find(end).unwrap_or(self.rest.len()));
                let token = match text {
                    "in" => Token::Op(Operator::In),
                    "notin" => Token::Op(Operator::NotIn),
                    _ => Token::Identifier,
                };
                return (token, text);
            }
        };
        (token, self.take(bytes))
    }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    ahead: (Token, &'a str),
}

/// A token where a key or a value is expected: there `in` and `notin` are identifiers.
fn as_identifier((token, text): (Token, &str)) -> (Token, &str) {
    match token {
        Token::Op(Operator::In | Operator::NotIn) => (Token::Identifier, text),
        other => (other, text),
    }
}

fn unexpected<T>(found: &str, expected: &'static str) -> Result<T, SelectorError> {
    Err(SelectorError::Unexpected {
        found: found.to_string(),
        expected,
    })
}

/// All requirements of a selector, in the order written.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut lexer = Lexer { rest: text };
    let ahead = lexer.next();
    Parser { lexer, ahead }.selector()
}

impl<'a> Parser<'a> {
    fn peek(&self) -> (Token, &'a str) {
        as_identifier(self.ahead)
    }

    fn advance(&mut self) -> (Token, &'a str) {
        let next = self.lexer.next();
        std::mem::replace(&mut self.ahead, next)
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut requirements = Vec::new();
        match self.peek() {
            (Token::Identifier | Token::Not, _) => {}
            (Token::End, _) => return Ok(requirements),
            (_, found) => return unexpected(found, "!, identifier, or 'end of string'"),
        }
        loop {
            let requirement = self
                .requirement()
                .map_err(|e| SelectorError::Parse(Box::new(e)))?;
            requirements.push(requirement);
            match self.advance() {
                (Token::End, _) => return Ok(requirements),
                (Token::Comma, _) => {
                    let (token, found) = self.peek();
                    if !matches!(token, Token::Identifier | Token::Not) {
                        return unexpected(found, "identifier after ','");
                    }
                }
                (_, found) => return unexpected(found, "',' or 'end of string'"),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let mut token = as_identifier(self.advance());
        let negated = token.0 == Token::Not;
        if negated {
            token = as_identifier(self.advance());
        }
        let (Token::Identifier, key) = token else {
            return unexpected(token.1, "identifier");
        };
        Requirement::check_key(key, "<nil>")?;
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = match self.advance() {
            (Token::Op(operator), _) => operator,
            (_, found) => return unexpected(found, OPERATORS),
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.value_list()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(key, operator, values)
    }

    fn exact_value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match as_identifier(self.advance()) {
            (Token::Identifier, value) => Ok(value.to_string()),
            (_, found) => unexpected(found, "identifier"),
        }
    }

    /// `(a,b)`, sorted and without repetition. An omitted value is the empty one: `()`, `(,a)`, `(a,)`, `(a,,b)`.
    fn value_list(&mut self) -> Result<Vec<String>, SelectorError> {
        match self.advance() {
            (Token::Open, _) => {}
            (_, found) => return Err(SelectorError::NoValueList(found.to_string())),
        }
        let mut values = std::collections::BTreeSet::new();
        match self.peek() {
            (Token::Identifier | Token::Comma, _) => {}
            (Token::Close, _) => {
                self.advance();
                return Ok(vec![String::new()]);
            }
            (_, found) => return unexpected(found, "',', ')' or identifier"),
        }
        loop {
            match as_identifier(self.advance()) {
                (Token::Identifier, value) => {
                    values.insert(value.to_string());
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => break,
                        (_, found) => return unexpected(found, "',' or ')'"),
                    }
                }
                (Token::Comma, _) => {
                    let next = self.peek().0;
                    if values.is_empty() || matches!(next, Token::Close | Token::Comma) {
                        values.insert(String::new());
                    }
                    if next == Token::Close {
                        break;
                    }
                }
                (_, found) => return unexpected(found, "',', or identifier"),
            }
        }
        self.advance();
        Ok(values.into_iter().collect())
    }
}
