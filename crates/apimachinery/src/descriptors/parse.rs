//! The text of the descriptors to the table of them. The text is our own; a line of another form is a type or field less, and the tests
//! compare the numbers.

use std::sync::OnceLock;

use super::types::{Definition, Facts, FieldDescriptor, Form, Go, TypeDescriptor};
use super::{INTERNAL, Table};
use crate::schema::rules::{List, Map, Rule, Strategy};

impl Table {
    pub(super) fn parse(text: &'static str) -> Table {
        let mut table = Table::default();
        table.name_types(text);
        let mut of_package = ("", "");
        let mut types: Vec<TypeDescriptor> = Vec::new();
        for line in lines(text) {
            if let Some(field) = line.strip_prefix(' ') {
                let field = table.field(of_package.0, field);
                if let Some(of) = types.last_mut() {
                    of.declared.extend(field);
                }
            } else if let Some(package) = package(line) {
                of_package = package;
            } else {
                types.push(table.type_of(of_package.0, of_package.1, line));
            }
        }
        table.types = types;
        table
    }

    /// Gives each type its index.
    fn name_types(&mut self, text: &'static str) {
        let mut of_package = ("", "");
        let mut at = 0;
        for line in lines(text).filter(|line| !line.starts_with(' ')) {
            if let Some(package) = package(line) {
                of_package = package;
                continue;
            }
            let name = line.split(' ').next().unwrap_or(line);
            self.names.insert((of_package.0, name), at);
            self.names.insert((of_package.1, name), at);
            if of_package.0.starts_with(INTERNAL) {
                self.names.insert((INTERNAL, name), at);
            } else {
                self.short_names.entry(name).or_default().push(at);
            }
            at += 1;
        }
    }

    fn type_of(
        &self,
        package: &'static str,
        published_package: &'static str,
        line: &'static str,
    ) -> TypeDescriptor {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or(line);
        let mut of = TypeDescriptor {
            package,
            published_package,
            name,
            definition: Definition::Struct,
            is_atomic: false,
            is_either: false,
            is_message: false,
            values: Vec::new(),
            declared: Vec::new(),
            resolved: OnceLock::new(),
            in_order: OnceLock::new(),
        };
        for word in words {
            match word.split_once('=') {
                Some(("", definition)) => {
                    of.definition = match form(definition) {
                        Some(form) => Definition::Form(form),
                        None => Definition::Alias(self.go(package, definition)),
                    }
                }
                Some(("map", "atomic")) => of.is_atomic = true,
                Some(("enum", values)) => {
                    of.values = values.split(',').map(|v| v.replace('_', " ")).collect()
                }
                None if word == "message" => of.is_message = true,
                None if word == "either" => of.is_either = true,
                _ => {}
            }
        }
        of
    }

    fn field(&self, package: &str, line: &'static str) -> Option<FieldDescriptor> {
        let mut words = line.split(' ');
        let (name, of, number) = (words.next()?, words.next()?, words.next()?);
        let (name, go_name) = match name.split_once('=') {
            Some((name, go_name)) => (name, go_name.to_string()),
            None => (name, first_upper(name)),
        };
        let mut field = FieldDescriptor {
            name: if name == "^" { "" } else { name },
            go_name,
            of: self.go(package, of),
            number: number.parse().ok(),
            omit_empty: false,
            omit_zero: false,
            is_required: false,
            rule: None,
            default: None,
            embedded: None,
            zero: None,
            facts: None,
        };
        let mut rule = Rule::of(field.name);
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("omitempty", _) => field.omit_empty = true,
                ("omitzero", _) => field.omit_zero = true,
                ("required", _) => field.is_required = true,
                ("default", default) => field.default = Some(default),
                ("list", list) => rule.list = list_type(list),
                ("map", map) => {
                    rule.map = Some(if map == "atomic" {
                        Map::Atomic
                    } else {
                        Map::Granular
                    })
                }
                ("patch", strategies) => patch_strategy(&mut rule, strategies),
                ("key", key) => rule.merge_key = key,
                ("facts", facts) => field.facts = Some(facts_of(facts)),
                _ => {}
            }
        }
        field.rule = Some(rule).filter(|rule| *rule != Rule::of(field.name));
        Some(field)
    }

    /// A Go type, as a file of `package` writes it.
    fn go(&self, package: &str, of: &'static str) -> Go {
        if let Some(of) = of.strip_prefix('*') {
            return Go::Pointer(Box::new(self.go(package, of)));
        }
        if let Some(of) = of.strip_prefix("[]") {
            return match of {
                "byte" => Go::Bytes,
                of => Go::List(Box::new(self.go(package, of))),
            };
        }
        if let Some((_, of)) = of.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
            return Go::Map(Box::new(self.go(package, of)));
        }
        match of {
            "string" => Go::String,
            "bool" => Go::Bool,
            "float64" => Go::Float,
            "int" | "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64" => {
                Go::Integer(of)
            }
            _ => {
                let (package, name) = of.rsplit_once('.').unwrap_or((package, of));
                let at = self.names.get(&(package, name));
                at.map_or(Go::Other(of), |at| Go::Named(*at))
            }
        }
    }
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

/// The package that a line names: here and as published.
fn package(line: &'static str) -> Option<(&'static str, &'static str)> {
    line.strip_prefix("package ")?.split_once(' ')
}

fn form(name: &str) -> Option<Form> {
    Some(match name {
        "time" => Form::Time,
        "microtime" => Form::MicroTime,
        "duration" => Form::Duration,
        "quantity" => Form::Quantity,
        "int-or-string" => Form::IntOrString,
        "json" => Form::Json,
        _ => return None,
    })
}

fn list_type(list: &'static str) -> Option<List> {
    Some(match list.split_once(':') {
        Some(("map", keys)) => List::Map(keys.split(',').collect()),
        _ if list == "set" => List::Set,
        _ => List::Atomic,
    })
}

fn facts_of(text: &str) -> Facts {
    let mut facts = Facts::default();
    for fact in text.split(';') {
        match fact.split_once(':').unwrap_or((fact, "")) {
            ("required", _) => facts.is_required = true,
            ("minimum", least) => facts.minimum = least.parse().ok(),
            ("enum", values) => {
                let values = values.split(',').filter(|v| !v.is_empty());
                facts.values = Some(values.map(str::to_string).collect());
            }
            _ => {}
        }
    }
    facts
}

fn patch_strategy(rule: &mut Rule, strategies: &str) {
    for strategy in strategies.split(',') {
        match strategy {
            "merge" => rule.strategy = Strategy::Merge,
            "replace" => rule.strategy = Strategy::Replace,
            "retainKeys" => rule.retain_keys = true,
            _ => {}
        }
    }
}

fn first_upper(name: &str) -> String {
    let mut chars = name.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}
