//! `authorizer`: expressions that ask whether somebody may do something. Who answers is handed in.

use std::fmt;
use std::sync::Arc;

use cel::Env;
use cel::common::types::{STRING_TYPE, Type};
use cel::objects::Opaque;

use super::Cel;
use super::library::{Declared, Library, call, inside, opaque, string, text};

/// What is asked. `path` is empty for resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Namespace and name of the service account it is asked for; empty: the user of the request.
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

/// Answers.
pub trait Authorizes: Send + Sync {
    fn decide(&self, asked: &Asked) -> Decision;
}

/// The variable `authorizer`.
#[derive(Clone)]
pub struct AuthorizerValue {
    by: Arc<dyn Authorizes>,
    asked: Asked,
    /// How far the question is put together.
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    Path,
    Group,
    Resource,
}

impl AuthorizerValue {
    pub fn variable(by: Arc<dyn Authorizes>) -> Cel {
        opaque(AuthorizerValue {
            by,
            asked: Asked::default(),
            stage: Stage::Begun,
        })
    }

    /// `authorizer.requestResource`
    pub fn of_request(by: Arc<dyn Authorizes>, asked: Asked) -> Cel {
        opaque(AuthorizerValue {
            by,
            asked,
            stage: Stage::Resource,
        })
    }

    fn with(mut self, stage: Stage, set: impl FnOnce(&mut Asked)) -> Cel {
        self.stage = stage;
        set(&mut self.asked);
        opaque(self)
    }
}

impl fmt::Debug for AuthorizerValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked.fmt(f)
    }
}

impl PartialEq for AuthorizerValue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.by, &other.by) && self.asked == other.asked && self.stage == other.stage
    }
}
impl Eq for AuthorizerValue {}

impl Opaque for AuthorizerValue {
    fn runtime_type_name(&self) -> &str {
        match self.stage {
            Stage::Begun => AUTHORIZER,
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

fn put(value: &Cel, stage: Stage, given: &Cel, set: fn(&mut Asked, String)) -> Result<Cel, String> {
    let given = text(given)?.to_string();
    Ok(inside::<AuthorizerValue>(value)?.with(stage, |asked| set(asked, given)))
}

fn check(value: &Cel, verb: &Cel) -> Result<Cel, String> {
    let AuthorizerValue { by, mut asked, .. } = inside(value)?;
    asked.verb = text(verb)?.to_string();
    Ok(opaque(by.decide(&asked)))
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
            put(&a, Stage::Path, &given, |asked, p| asked.path = p)
        })
    })?;
    library.member("group", &authorizer, &one, |args| {
        call(args, |[a, given]| {
            put(&a, Stage::Group, &given, |asked, g| asked.group = g)
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
                    crate::names::dns1123_label(&account.0),
                    crate::names::dns1123_subdomain(&account.1),
                ];
                if let Some(why) = wrong.iter().flatten().next() {
                    return Err(format!("Invalid service account: {why}"));
                }
                let a = inside::<AuthorizerValue>(&a)?;
                Ok(a.with(Stage::Begun, |asked| asked.service_account = Some(account)))
            })
        },
    )?;
    library.member("resource", &group, &one, |args| {
        call(args, |[a, given]| {
            put(&a, Stage::Resource, &given, |asked, r| asked.resource = r)
        })
    })?;
    macro_rules! parts {
        ($($name:literal $field:ident)*) => {
            $(library.member($name, &resource, &one, |args| {
                call(args, |[a, given]| {
                    put(&a, Stage::Resource, &given, |asked, part| asked.$field = part)
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
    // An authorizer here always comes to a decision.
    library.member("errored", &decision, &[], |args| {
        call(args, |[d]| inside::<Decision>(&d).map(|_| Cel::Bool(false)))
    })?;
    library.member("error", &decision, &[], |args| {
        call(args, |[d]| inside::<Decision>(&d).map(|_| string("")))
    })
}
