//! The CEL variable `authorizer`: expressions that check whether a user is authorized. The [`Authorizer`] is passed in.

use std::fmt;
use std::sync::Arc;

use cel::Env;
use cel::common::types::{STRING_TYPE, Type};
use cel::objects::Opaque;

use super::library::{Declared, Library, call, inside, opaque, string, text};
use super::{Cel, EvaluationError};

/// The attributes of an authorization check (`authorizer.AttributesRecord`). `path` is empty for resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributesRecord {
    /// Namespace and name of the service account that is checked; `None`: the user of the request.
    pub service_account: Option<(String, String)>,
    pub verb: String,
    pub path: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
}

/// Decides authorization checks.
pub trait Authorizer: Send + Sync {
    fn decide(&self, attributes: &AttributesRecord) -> Decision;
}

/// The variable `authorizer`.
#[derive(Clone)]
pub struct AuthorizerValue {
    authorizer: Arc<dyn Authorizer>,
    attributes: AttributesRecord,
    /// Which part of the check the expression has built so far.
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Path,
    Group,
    Resource,
}

impl AuthorizerValue {
    pub fn variable(authorizer: Arc<dyn Authorizer>) -> Cel {
        opaque(AuthorizerValue {
            authorizer,
            attributes: AttributesRecord::default(),
            stage: Stage::Start,
        })
    }

    /// `authorizer.requestResource`
    pub fn of_request(authorizer: Arc<dyn Authorizer>, attributes: AttributesRecord) -> Cel {
        opaque(AuthorizerValue {
            authorizer,
            attributes,
            stage: Stage::Resource,
        })
    }

    fn with(mut self, stage: Stage, set: impl FnOnce(&mut AttributesRecord)) -> Cel {
        self.stage = stage;
        set(&mut self.attributes);
        opaque(self)
    }
}

impl fmt::Debug for AuthorizerValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.attributes.fmt(f)
    }
}

impl PartialEq for AuthorizerValue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.authorizer, &other.authorizer)
            && self.attributes == other.attributes
            && self.stage == other.stage
    }
}
impl Eq for AuthorizerValue {}

impl Opaque for AuthorizerValue {
    fn runtime_type_name(&self) -> &str {
        match self.stage {
            Stage::Start => AUTHORIZER,
            Stage::Path => PATH_CHECK,
            Stage::Group => GROUP_CHECK,
            Stage::Resource => RESOURCE_CHECK,
        }
    }
}

impl Opaque for Decision {
    fn runtime_type_name(&self) -> &str {
        DECISION
    }
}

const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
const DECISION: &str = "kubernetes.authorization.Decision";

fn put(
    value: &Cel,
    stage: Stage,
    given: &Cel,
    set: fn(&mut AttributesRecord, String),
) -> Result<Cel, EvaluationError> {
    let given = text(given)?.to_string();
    Ok(inside::<AuthorizerValue>(value)?.with(stage, |attributes| set(attributes, given)))
}

fn check(value: &Cel, verb: &Cel) -> Result<Cel, EvaluationError> {
    let AuthorizerValue {
        authorizer,
        mut attributes,
        ..
    } = inside(value)?;
    attributes.verb = text(verb)?.to_string();
    Ok(opaque(authorizer.decide(&attributes)))
}

pub fn declare(env: &mut Env) -> Declared {
    let [authorizer, path, group, resource, decision] =
        [AUTHORIZER, PATH_CHECK, GROUP_CHECK, RESOURCE_CHECK, DECISION].map(Type::new_opaque_type);
    for of in [&authorizer, &path, &group, &resource, &decision] {
        env.add_type(of.to_owned())?;
    }
    let one = [STRING_TYPE];
    let mut library = Library(env);
    library.member("path", &authorizer, &one, |args| {
        call(args, |[a, given]| {
            put(&a, Stage::Path, &given, |attributes, p| attributes.path = p)
        })
    })?;
    library.member("group", &authorizer, &one, |args| {
        call(args, |[a, given]| {
            put(&a, Stage::Group, &given, |attributes, g| attributes.group = g)
        })
    })?;
    library.member(
        "serviceAccount",
        &authorizer,
        &[STRING_TYPE, STRING_TYPE],
        |args| {
            call(args, |[a, namespace, name]| {
                let account = (text(&namespace)?.to_string(), text(&name)?.to_string());
                let wrong = [
                    knarr_apimachinery::names::dns1123_label(&account.0),
                    knarr_apimachinery::names::dns1123_subdomain(&account.1),
                ];
                if let Some(why) = wrong.iter().flatten().next() {
                    return Err(EvaluationError::Failed(format!("Invalid service account: {why}")));
                }
                let a = inside::<AuthorizerValue>(&a)?;
                Ok(a.with(Stage::Start, |attributes| {
                    attributes.service_account = Some(account)
                }))
            })
        },
    )?;
    library.member("resource", &group, &one, |args| {
        call(args, |[a, given]| {
            put(&a, Stage::Resource, &given, |attributes, r| {
                attributes.resource = r
            })
        })
    })?;
    macro_rules! parts {
        ($($name:literal $field:ident)*) => {
            $(library.member($name, &resource, &one, |args| {
                call(args, |[a, given]| {
                    put(&a, Stage::Resource, &given, |attributes, part| attributes.$field = part)
                })
            })?;)*
        };
    }
    parts!("subresource" subresource "namespace" namespace "name" name
        "fieldSelector" field_selector "labelSelector" label_selector);
    for of in [&path, &resource] {
        library.member("check", of, &one, |args| call(args, |[a, verb]| check(&a, &verb)))?;
    }
    library.member("allowed", &decision, &[], |args| {
        call(args, |[d]| Ok(Cel::Bool(inside::<Decision>(&d)?.allowed)))
    })?;
    library.member("reason", &decision, &[], |args| {
        call(args, |[d]| Ok(string(inside::<Decision>(&d)?.reason)))
    })?;
    // An authorizer here always decides: there is no error.
    library.member("errored", &decision, &[], |args| {
        call(args, |[d]| inside::<Decision>(&d).map(|_| Cel::Bool(false)))
    })?;
    library.member("error", &decision, &[], |args| {
        call(args, |[d]| inside::<Decision>(&d).map(|_| string("")))
    })
}
