//! What the expressions of admission policies, and of webhooks' match conditions, come to for a request.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1 as admission;
use serde_json::Value;

use crate::cel::check::Environment;
use crate::cel::meter::{BUDGET, CONDITIONS_BUDGET, OUT_OF_BUDGET};
use crate::cel::{
    Asked, AuthorizerValue, Authorizes, Cel, MESSAGE_MAX_BYTES, Program, Scope, Variables, compile, of_json,
    to_json,
};
use crate::kind::Kind;
use crate::managed_fields;
use crate::patch;
use environment::{Composition, Given};

pub mod environment;
pub mod type_checking;

/// An expression with its program, or why there is none.
#[derive(Clone, Debug)]
struct Expression {
    text: String,
    program: Result<Arc<Program>, String>,
}

impl Expression {
    fn new(text: &str, environment: &Environment) -> Self {
        let compiled = compile(text, environment);
        Expression {
            text: text.to_string(),
            program: compiled
                .map(|compiled| compiled.program)
                .map_err(|why| format!("compilation failed: {why}")),
        }
    }

    /// The value, or what went wrong as the answer to the request tells it.
    fn run(&self, scope: &Scope<'_>, budget: &mut Budget) -> Result<Cel, String> {
        let program = self
            .program
            .as_ref()
            .map_err(|why| format!("compilation error: {why}"))?;
        let found = program.run(scope);
        budget.pay(scope.cost())?;
        found.map_err(|why| format!("expression '{}' resulted in error: {why}", self.text))
    }
}

/// What is left to be spent on expressions.
struct Budget(Option<u64>);

impl Budget {
    fn pay(&mut self, cost: u64) -> Result<(), String> {
        self.0 = self.0.and_then(|left| left.checked_sub(cost));
        self.0.map(|_| ()).ok_or_else(|| OUT_OF_BUDGET.to_string())
    }

    fn is_spent(&self) -> bool {
        self.0.is_none()
    }
}

/// What a request is to expressions.
pub struct Input<'a> {
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    pub request: &'a Value,
    pub params: Option<&'a Value>,
    pub namespace: Option<&'a Value>,
    pub authorizer: Arc<dyn Authorizes>,
    /// What `authorizer.requestResource` begins with.
    pub asked: Asked,
}

impl Input<'_> {
    fn scope<'s>(&self) -> Scope<'s> {
        let json = |value: Option<&Value>| value.map_or(Cel::Null, of_json);
        let mut scope = Scope::default();
        scope.set("object", json(self.object));
        scope.set("oldObject", json(self.old));
        scope.set("request", of_json(self.request));
        scope.set("params", json(self.params));
        scope.set("namespaceObject", json(self.namespace));
        scope.set("authorizer", AuthorizerValue::variable(self.authorizer.clone()));
        scope.set(
            crate::cel::REQUEST_RESOURCE,
            AuthorizerValue::of_request(self.authorizer.clone(), self.asked.clone()),
        );
        scope
    }
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default)]
pub struct Conditions(Vec<Expression>);

impl Conditions {
    /// Those of a webhook, which knows no parameters.
    pub fn of_webhook<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        Self::new(texts, false)
    }

    fn new<'a>(texts: impl Iterator<Item = &'a str>, params: bool) -> Self {
        let environment = environment::environment(Given {
            params,
            authorizer: true,
            patches: false,
        });
        Conditions(texts.map(|text| Expression::new(text, &environment)).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the request is meant. One that does not hold settles it, whatever the others come to.
    pub fn hold(&self, input: &Input<'_>) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        self.hold_in(&input.scope())
    }

    fn hold_in(&self, scope: &Scope<'_>) -> Result<bool, String> {
        let mut budget = Budget(Some(CONDITIONS_BUDGET));
        let mut errors = Vec::new();
        for condition in &self.0 {
            match condition.run(scope, &mut budget) {
                Ok(Cel::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(why) if budget.is_spent() => return Err(why),
                Err(why) => errors.push(why),
            }
        }
        match &errors[..] {
            [] => Ok(true),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

#[derive(Clone, Debug)]
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

/// A ValidatingAdmissionPolicy that was read.
#[derive(Clone, Debug, Default)]
pub struct ValidatingPolicy {
    fails: bool,
    variables: Vec<(String, Expression)>,
    conditions: Conditions,
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
}

/// Why a policy denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Which validation it was.
    pub index: usize,
    pub message: String,
    /// Empty for what could not be judged.
    pub reason: String,
}

/// What a policy comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    pub denials: Vec<Denial>,
    /// For the audit log.
    pub annotations: Vec<(String, String)>,
    /// Annotations that could not be made deny whatever the binding's actions are.
    pub broken_annotations: Vec<String>,
}

/// The variables of a policy, and what its other expressions may speak of.
fn read_variables(
    variables: &Option<Vec<admission::Variable>>,
    given: Given,
) -> (Vec<(String, Expression)>, Environment) {
    let environment = environment::environment(given);
    let mut known = Composition::default();
    let mut read = Vec::new();
    for variable in variables.iter().flatten() {
        let expression = Expression {
            text: variable.expression.clone(),
            program: known
                .add(&variable.name, &variable.expression, &environment)
                .map(|compiled| compiled.program)
                .map_err(|why| format!("compilation failed: {why}")),
        };
        read.push((variable.name.clone(), expression));
    }
    (read, known.in_environment(&environment))
}

fn read_conditions(conditions: &Option<Vec<admission::MatchCondition>>, params: bool) -> Conditions {
    let texts = conditions.iter().flatten().map(|c| c.expression.as_str());
    Conditions::new(texts, params)
}

/// Works the variables out, each from those before it.
fn set_variables(scope: &mut Scope<'_>, variables: &[(String, Expression)], budget: &mut Budget) {
    let mut known = Variables::default();
    for (name, expression) in variables {
        scope.set_variables(known.clone());
        let value = match &expression.program {
            Ok(program) => {
                let found = program.run(scope);
                budget.pay(scope.cost()).and(found)
            }
            Err(why) => Err(why.clone()),
        };
        known.put(name, value);
    }
    scope.set_variables(known);
}

impl ValidatingPolicy {
    pub fn read(spec: &admission::ValidatingAdmissionPolicySpec) -> Self {
        let params = spec.param_kind.is_some();
        let given = Given {
            params,
            authorizer: true,
            patches: false,
        };
        let (variables, environment) = read_variables(&spec.variables, given);
        let validations = spec.validations.iter().flatten().map(|v| Validation {
            expression: Expression::new(&v.expression, &environment),
            message: v.message.clone().unwrap_or_default(),
            message_expression: v
                .message_expression
                .as_deref()
                .filter(|m| !m.is_empty())
                .map(|m| Expression::new(m, &environment)),
            reason: v.reason.clone().unwrap_or_default(),
        });
        let annotations = spec.audit_annotations.iter().flatten();
        ValidatingPolicy {
            fails: spec.failure_policy.as_deref() != Some("Ignore"),
            variables,
            conditions: read_conditions(&spec.match_conditions, params),
            validations: validations.collect(),
            annotations: annotations
                .map(|a| (a.key.clone(), Expression::new(&a.value_expression, &environment)))
                .collect(),
        }
    }

    pub fn judge(&self, input: &Input<'_>) -> Judgement {
        let mut judgement = Judgement::default();
        let mut scope = input.scope();
        let mut budget = Budget(Some(BUDGET));
        set_variables(&mut scope, &self.variables, &mut budget);
        let broken = |judgement: &mut Judgement, index, message| {
            if self.fails {
                judgement.denials.push(Denial {
                    index,
                    message,
                    reason: String::new(),
                });
            }
        };
        match self.conditions.hold_in(&scope) {
            Ok(true) => {}
            Ok(false) => return judgement,
            Err(why) => {
                broken(&mut judgement, 0, why);
                return judgement;
            }
        }
        for (index, validation) in self.validations.iter().enumerate() {
            match validation.expression.run(&scope, &mut budget) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => judgement.denials.push(Denial {
                    index,
                    message: validation.told(&scope, &mut budget),
                    reason: match validation.reason.as_str() {
                        "" => "Invalid".into(),
                        reason => reason.into(),
                    },
                }),
                Err(why) if budget.is_spent() => {
                    broken(&mut judgement, index, why);
                    return judgement;
                }
                Err(why) => broken(&mut judgement, index, why),
            }
        }
        for (key, expression) in &self.annotations {
            match expression.run(&scope, &mut budget) {
                Ok(Cel::Null) => {}
                Ok(Cel::String(text)) if text.trim().is_empty() => {}
                Ok(Cel::String(text)) => judgement.annotations.push((key.clone(), text.trim().to_string())),
                Ok(_) => judgement.broken_annotations.push(format!(
                    "valueExpression '{}' resulted in unsupported return type. Return type must be either string or null.",
                    expression.text
                )),
                Err(why) if self.fails => judgement.broken_annotations.push(why),
                Err(_) => {}
            }
        }
        judgement
    }
}

impl Validation {
    /// Its message: what its expression makes, else what it says, else the expression itself.
    fn told(&self, scope: &Scope<'_>, budget: &mut Budget) -> String {
        let made = self
            .message_expression
            .as_ref()
            .and_then(|m| match m.run(scope, budget) {
                Ok(Cel::String(text)) => Some(text.trim().to_string()),
                _ => None,
            });
        made.filter(|m| !m.is_empty() && !m.contains('\n') && m.len() <= MESSAGE_MAX_BYTES)
            .or_else(|| Some(self.message.trim().to_string()).filter(|m| !m.is_empty()))
            .unwrap_or_else(|| format!("failed expression: {}", self.expression.text.trim()))
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Apply(Expression),
    Patch(Expression),
    Unknown(String),
}

/// A MutatingAdmissionPolicy that was read.
#[derive(Clone, Debug, Default)]
pub struct MutatingPolicy {
    variables: Vec<(String, Expression)>,
    conditions: Conditions,
    mutations: Vec<Mutation>,
    /// Whether it runs again when others changed the object after it.
    pub again: bool,
}

impl MutatingPolicy {
    pub fn read(spec: &admission::MutatingAdmissionPolicySpec) -> Self {
        let params = spec.param_kind.is_some();
        let given = Given {
            params,
            authorizer: true,
            patches: true,
        };
        let (variables, environment) = read_variables(&spec.variables, given);
        let mutations = spec.mutations.iter().flatten().map(|m| {
            let apply = m
                .apply_configuration
                .as_ref()
                .and_then(|a| a.expression.as_deref());
            let patch = m.json_patch.as_ref().and_then(|p| p.expression.as_deref());
            match (m.patch_type.as_str(), apply, patch) {
                ("ApplyConfiguration", Some(text), _) => Mutation::Apply(Expression::new(text, &environment)),
                ("JSONPatch", _, Some(text)) => Mutation::Patch(Expression::new(text, &environment)),
                (other, ..) => Mutation::Unknown(other.to_string()),
            }
        });
        MutatingPolicy {
            variables,
            conditions: read_conditions(&spec.match_conditions, params),
            mutations: mutations.collect(),
            again: spec.reinvocation_policy.as_deref() == Some("IfNeeded"),
        }
    }

    /// The object of `kind` after all mutations; `None` where the policy is not about the request.
    pub fn mutate(&self, kind: &Kind, input: &Input<'_>) -> Result<Option<Value>, String> {
        let mut object = input.object.cloned().unwrap_or(Value::Null);
        let mut budget = Budget(Some(BUDGET));
        for (i, mutation) in self.mutations.iter().enumerate() {
            let mut scope = Input {
                object: Some(&object),
                authorizer: input.authorizer.clone(),
                asked: input.asked.clone(),
                ..*input
            }
            .scope();
            set_variables(&mut scope, &self.variables, &mut budget);
            if i == 0 && !self.conditions.hold_in(&scope)? {
                return Ok(None);
            }
            object = match mutation {
                Mutation::Apply(expression) => {
                    let made = expression.run(&scope, &mut budget)?;
                    applied(kind, &object, to_json(&made))?
                }
                Mutation::Patch(expression) => {
                    let made = expression.run(&scope, &mut budget)?;
                    patched(&object, to_json(&made))?
                }
                Mutation::Unknown(of) => return Err(format!("unsupported patch type {of:?}")),
            };
        }
        Ok(Some(object))
    }
}

fn applied(kind: &Kind, object: &Value, made: Option<Value>) -> Result<Value, String> {
    let wrong = |why: &str| format!("error applying patch: {why}");
    let Some(mut made @ Value::Object(_)) = made else {
        return Err(wrong("must evaluate to Object"));
    };
    for field in ["apiVersion", "kind"] {
        if let Some(value) = object.get(field) {
            made[field] = value.clone();
        }
    }
    managed_fields::merged(kind, object, &made).map_err(|why| wrong(&why.join("; ")))
}

fn patched(object: &Value, made: Option<Value>) -> Result<Value, String> {
    let wrong = |why: String| format!("error applying JSON patch: {why}");
    let operations = made.ok_or_else(|| wrong("must evaluate to []JSONPatch".into()))?;
    let mut object = object.clone();
    patch::json::apply(&mut object, &operations).map_err(|e| wrong(e.message().to_string()))?;
    Ok(object)
}

#[cfg(test)]
mod tests;
