//! A rule of `x-kubernetes-validations`: its texts, and its expressions as programs.

use std::sync::Arc;

use serde_json::Value;

use crate::Program;

/// One rule.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    /// One of the four reasons of FieldValueErrorReason, or empty.
    pub reason: String,
    pub field_path: String,
    pub optional_old_self: bool,
    pub uses_old_self: bool,
    /// `None` where it does not compile.
    pub program: Option<Arc<Program>>,
    pub message_program: Option<Arc<Program>>,
}

impl Rule {
    pub fn read(json: &Value) -> Rule {
        let text = |name: &str| {
            json.get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_string()
        };
        let rule = text("rule");
        let message_expression = text("messageExpression");
        let program = Program::read(&rule).ok().map(Arc::new);
        let uses_old_self = program.as_ref().is_some_and(|p| p.uses("oldSelf"));
        Rule {
            uses_old_self,
            message_program: Program::read(&message_expression).ok().map(Arc::new),
            program,
            message: text("message"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: json
                .get("optionalOldSelf")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            rule,
            message_expression,
        }
    }

    /// The rule or its message, as errors name it.
    pub fn named(&self) -> &str {
        match self.message.trim() {
            "" => self.rule.trim(),
            message => message,
        }
    }
}
