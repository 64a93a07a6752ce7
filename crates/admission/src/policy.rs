//! Evaluates the expressions of admission policies, and the match conditions of webhooks, for a request.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1 as admission;
use serde_json::Value;

use environment::{Composition, OptionalVariables};
use knarr_api::kind::Kind;
use knarr_api::managed_fields;
use knarr_api::patch;
use knarr_apimachinery::Error;
use knarr_cel::check::Environment;
use knarr_cel::meter::{BUDGET, CONDITIONS_BUDGET};
use knarr_cel::{
    AttributesRecord, Authorizer, AuthorizerValue, Cel, CompileError, EvaluationError, MESSAGE_MAX_BYTES,
    Program, Scope, Variables, compile, of_json, to_json,
};

pub mod environment;
pub mod type_checking;

/// Why a policy, or the match conditions of a webhook, cannot be evaluated: as the response to the request contains it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("compilation error: compilation failed: {0}")]
    Compile(#[source] CompileError),
    /// All expressions together cost too much.
    #[error(transparent)]
    Budget(EvaluationError),
    #[error("expression '{text}' resulted in error: {source}")]
    Evaluate { text: String, source: EvaluationError },
    /// The errors of several match conditions.
    #[error("[{}]", .0.iter().map(PolicyError::to_string).collect::<Vec<_>>().join(", "))]
    Conditions(Vec<PolicyError>),
    #[error("unsupported patch type {0:?}")]
    PatchType(String),
    #[error("error applying patch: must evaluate to Object")]
    NotAnObject,
    /// The errors of its fields.
    #[error("error applying patch: {}", .0.join("; "))]
    Apply(Vec<String>),
    #[error("error applying JSON patch: must evaluate to []JSONPatch")]
    NotAJsonPatch,
    #[error("error applying JSON patch: {0}")]
    JsonPatch(#[source] Error),
}

/// An expression with its program.
#[derive(Clone, Debug)]
struct Expression {
    text: String,
    program: Result<Arc<Program>, CompileError>,
}

impl Expression {
    fn new(text: &str, environment: &Environment) -> Self {
        Expression {
            text: text.to_string(),
            program: compile(text, environment).map(|compiled| compiled.program),
        }
    }

    fn run(&self, scope: &Scope<'_>, budget: &mut Budget) -> Result<Cel, PolicyError> {
        let program = self.program.as_ref();
        let found = program.map_err(|e| PolicyError::Compile(e.clone()))?.run(scope);
        budget.charge(scope.cost()).map_err(PolicyError::Budget)?;
        found.map_err(|source| PolicyError::Evaluate {
            text: self.text.clone(),
            source,
        })
    }
}

/// The cost budget that is left; `None` once it is exceeded.
struct Budget(Option<u64>);

impl Budget {
    fn charge(&mut self, cost: u64) -> Result<(), EvaluationError> {
        self.0 = self.0.and_then(|left| left.checked_sub(cost));
        self.0.map(|_| ()).ok_or(EvaluationError::BudgetExceeded)
    }

    fn is_spent(&self) -> bool {
        self.0.is_none()
    }
}

/// The variables of a request that expressions can use.
pub struct Input<'a> {
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    pub request: &'a Value,
    pub params: Option<&'a Value>,
    pub namespace: Option<&'a Value>,
    pub authorizer: Arc<dyn Authorizer>,
    /// The attributes that `authorizer.requestResource` starts from.
    pub request_resource: AttributesRecord,
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
            knarr_cel::REQUEST_RESOURCE,
            AuthorizerValue::of_request(self.authorizer.clone(), self.request_resource.clone()),
        );
        scope
    }
}

/// Match conditions: a request matches if all of them are true.
#[derive(Clone, Debug, Default)]
pub struct MatchConditions(Vec<Expression>);

impl MatchConditions {
    /// The match conditions of a webhook, which have no `params`.
    pub fn of_webhook<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        Self::new(texts, false)
    }

    fn new<'a>(texts: impl Iterator<Item = &'a str>, params: bool) -> Self {
        let environment = environment::environment(OptionalVariables {
            params,
            authorizer: true,
            patches: false,
        });
        MatchConditions(texts.map(|text| Expression::new(text, &environment)).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the request matches. A condition that is false decides, even where another one fails.
    pub fn matches(&self, input: &Input<'_>) -> Result<bool, PolicyError> {
        if self.0.is_empty() {
            return Ok(true);
        }
        self.matches_in(&input.scope())
    }

    fn matches_in(&self, scope: &Scope<'_>) -> Result<bool, PolicyError> {
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
            _ => Err(PolicyError::Conditions(errors)),
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

/// A ValidatingAdmissionPolicy with its expressions compiled.
#[derive(Clone, Debug, Default)]
pub struct ValidatingPolicy {
    fails: bool,
    variables: Vec<(String, Expression)>,
    conditions: MatchConditions,
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
}

/// Why a policy denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The index of the validation.
    pub index: usize,
    pub message: String,
    /// Empty where the expression could not be evaluated.
    pub reason: String,
}

/// The result of a policy for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidateResult {
    pub denials: Vec<Denial>,
    /// Audit annotations.
    pub annotations: Vec<(String, String)>,
    /// Errors of audit annotations. They deny the request whatever the binding's validationActions are.
    pub annotation_errors: Vec<String>,
}

/// The variables of a policy, and the environment of its other expressions.
fn read_variables(
    variables: Option<&[admission::Variable]>,
    given: OptionalVariables,
) -> (Vec<(String, Expression)>, Environment) {
    let environment = environment::environment(given);
    let mut known = Composition::default();
    let mut read = Vec::new();
    for variable in variables.unwrap_or_default() {
        let expression = Expression {
            text: variable.expression.clone(),
            program: known
                .add(&variable.name, &variable.expression, &environment)
                .map(|compiled| compiled.program),
        };
        read.push((variable.name.clone(), expression));
    }
    (read, known.in_environment(&environment))
}

fn read_match_conditions(conditions: Option<&[admission::MatchCondition]>, params: bool) -> MatchConditions {
    let texts = conditions
        .unwrap_or_default()
        .iter()
        .map(|c| c.expression.as_str());
    MatchConditions::new(texts, params)
}

/// Evaluates the variables in order; each can use those before it.
fn set_variables(scope: &mut Scope<'_>, variables: &[(String, Expression)], budget: &mut Budget) {
    let mut known = Variables::default();
    for (name, expression) in variables {
        scope.set_variables(known.clone());
        let value = match &expression.program {
            Ok(program) => {
                let found = program.run(scope);
                budget.charge(scope.cost()).and(found)
            }
            Err(why) => Err(EvaluationError::Failed(format!("compilation failed: {why}"))),
        };
        known.put(name, value);
    }
    scope.set_variables(known);
}

impl ValidatingPolicy {
    pub fn read(spec: &admission::ValidatingAdmissionPolicySpec) -> Self {
        let params = spec.param_kind.is_some();
        let given = OptionalVariables {
            params,
            authorizer: true,
            patches: false,
        };
        let (variables, environment) = read_variables(spec.variables.as_deref(), given);
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
            conditions: read_match_conditions(spec.match_conditions.as_deref(), params),
            validations: validations.collect(),
            annotations: annotations
                .map(|a| (a.key.clone(), Expression::new(&a.value_expression, &environment)))
                .collect(),
        }
    }

    pub fn validate(&self, input: &Input<'_>) -> ValidateResult {
        let mut result = ValidateResult::default();
        let mut scope = input.scope();
        let mut budget = Budget(Some(BUDGET));
        set_variables(&mut scope, &self.variables, &mut budget);
        let broken = |result: &mut ValidateResult, index, why: PolicyError| {
            if self.fails {
                result.denials.push(Denial {
                    index,
                    message: why.to_string(),
                    reason: String::new(),
                });
            }
        };
        match self.conditions.matches_in(&scope) {
            Ok(true) => {}
            Ok(false) => return result,
            Err(why) => {
                broken(&mut result, 0, why);
                return result;
            }
        }
        for (index, validation) in self.validations.iter().enumerate() {
            match validation.expression.run(&scope, &mut budget) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => result.denials.push(Denial {
                    index,
                    message: validation.message_of(&scope, &mut budget),
                    reason: match validation.reason.as_str() {
                        "" => "Invalid".into(),
                        reason => reason.into(),
                    },
                }),
                Err(why) if budget.is_spent() => {
                    broken(&mut result, index, why);
                    return result;
                }
                Err(why) => broken(&mut result, index, why),
            }
        }
        for (key, expression) in &self.annotations {
            match expression.run(&scope, &mut budget) {
                Ok(Cel::Null) => {}
                Ok(Cel::String(text)) if text.trim().is_empty() => {}
                Ok(Cel::String(text)) => result.annotations.push((key.clone(), text.trim().to_string())),
                Ok(_) => result.annotation_errors.push(format!(
                    "valueExpression '{}' resulted in unsupported return type. Return type must be either string or null.",
                    expression.text
                )),
                Err(why) if self.fails => result.annotation_errors.push(why.to_string()),
                Err(_) => {}
            }
        }
        result
    }
}

impl Validation {
    /// The message of a failed validation: that of its messageExpression, else its message, else the expression itself.
    fn message_of(&self, scope: &Scope<'_>, budget: &mut Budget) -> String {
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

/// A MutatingAdmissionPolicy with its expressions compiled.
#[derive(Clone, Debug, Default)]
pub struct MutatingPolicy {
    variables: Vec<(String, Expression)>,
    conditions: MatchConditions,
    mutations: Vec<Mutation>,
    /// Whether the policy is reinvoked when others changed the object after it (`reinvocationPolicy: IfNeeded`).
    pub again: bool,
}

impl MutatingPolicy {
    pub fn read(spec: &admission::MutatingAdmissionPolicySpec) -> Self {
        let params = spec.param_kind.is_some();
        let given = OptionalVariables {
            params,
            authorizer: true,
            patches: true,
        };
        let (variables, environment) = read_variables(spec.variables.as_deref(), given);
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
            conditions: read_match_conditions(spec.match_conditions.as_deref(), params),
            mutations: mutations.collect(),
            again: spec.reinvocation_policy.as_deref() == Some("IfNeeded"),
        }
    }

    /// The object of `kind` after all mutations; `None` where the policy does not match the request.
    pub fn mutate(&self, kind: &Kind, input: &Input<'_>) -> Result<Option<Value>, PolicyError> {
        let mut object = input.object.cloned().unwrap_or(Value::Null);
        let mut budget = Budget(Some(BUDGET));
        for (i, mutation) in self.mutations.iter().enumerate() {
            let mut scope = Input {
                object: Some(&object),
                authorizer: input.authorizer.clone(),
                request_resource: input.request_resource.clone(),
                ..*input
            }
            .scope();
            set_variables(&mut scope, &self.variables, &mut budget);
            if i == 0 && !self.conditions.matches_in(&scope)? {
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
                Mutation::Unknown(of) => return Err(PolicyError::PatchType(of.clone())),
            };
        }
        Ok(Some(object))
    }
}

fn applied(kind: &Kind, object: &Value, made: Option<Value>) -> Result<Value, PolicyError> {
    let Some(mut made @ Value::Object(_)) = made else {
        return Err(PolicyError::NotAnObject);
    };
    for field in ["apiVersion", "kind"] {
        if let Some(value) = object.get(field) {
            made[field] = value.clone();
        }
    }
    managed_fields::merged(kind, object, &made).map_err(PolicyError::Apply)
}

fn patched(object: &Value, made: Option<Value>) -> Result<Value, PolicyError> {
    let operations = made.ok_or(PolicyError::NotAJsonPatch)?;
    let mut object = object.clone();
    patch::json::apply(&mut object, &operations).map_err(PolicyError::JsonPatch)?;
    Ok(object)
}

#[cfg(test)]
mod tests;
