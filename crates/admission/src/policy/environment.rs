//! The CEL environment of policies and match conditions: which variables their expressions can use, with their types.

use knarr_cel as cel;
use knarr_cel::check::declared::NUMBER_MIN;
use knarr_cel::check::{Declared, Environment, Type};
use knarr_cel::{CompileError, Compiled, ExpressionError};

const VARIABLES: &str = "kubernetes.variables";
/// Lists and maps of requests have no known limits.
const UNLIMITED: u64 = u64::MAX;

fn text() -> Declared {
    Declared::string()
}

fn texts() -> Declared {
    Declared::list(text(), UNLIMITED)
}

fn of(of: Type) -> Declared {
    Declared::simple(of, NUMBER_MIN, 0)
}

/// An AdmissionRequest without its objects and uid.
fn request() -> Declared {
    let kind = |name: &str, last: &'static str| {
        Declared::object(name, ["group", "version", last].map(|field| (field, text())))
    };
    let gvk = || kind("kubernetes.GroupVersionKind", "kind");
    let gvr = || kind("kubernetes.GroupVersionResource", "resource");
    let user = [
        ("username", text()),
        ("uid", text()),
        ("groups", texts()),
        ("extra", Declared::map(texts(), UNLIMITED)),
    ];
    let fields = [
        ("kind", gvk()),
        ("resource", gvr()),
        ("subResource", text()),
        ("requestKind", gvk()),
        ("requestResource", gvr()),
        ("requestSubResource", text()),
        ("name", text()),
        ("namespace", text()),
        ("operation", text()),
        ("userInfo", Declared::object("kubernetes.UserInfo", user)),
        ("dryRun", of(Type::Bool)),
        ("options", of(Type::Dyn)),
    ];
    Declared::object("kubernetes.AdmissionRequest", fields)
}

/// The type of `namespaceObject`: the fields of the request's namespace that expressions can read.
fn namespace() -> Declared {
    let condition = [
        ("status", text()),
        ("type", text()),
        ("lastTransitionTime", of(Type::Timestamp)),
        ("message", text()),
        ("reason", text()),
    ];
    let conditions = Declared::list(
        Declared::object("kubernetes.NamespaceCondition", condition),
        UNLIMITED,
    );
    let metadata = [
        ("name", text()),
        ("generateName", text()),
        ("namespace", text()),
        ("labels", Declared::map(text(), UNLIMITED)),
        ("annotations", Declared::map(text(), UNLIMITED)),
        // As Kubernetes declares it.
        ("UID", text()),
        ("creationTimestamp", of(Type::Timestamp)),
        ("deletionGracePeriodSeconds", of(Type::Int)),
        ("deletionTimestamp", of(Type::Timestamp)),
        ("generation", of(Type::Int)),
        ("resourceVersion", text()),
        ("finalizers", texts()),
    ];
    let fields = [
        (
            "metadata",
            Declared::object("kubernetes.NamespaceMetadata", metadata),
        ),
        (
            "spec",
            Declared::object("kubernetes.NamespaceSpec", [("finalizers", texts())]),
        ),
        (
            "status",
            Declared::object(
                "kubernetes.NamespaceStatus",
                [("conditions", conditions), ("phase", text())],
            ),
        ),
    ];
    Declared::object("kubernetes.Namespace", fields)
}

/// Which variables exist in addition to the request's objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptionalVariables {
    pub params: bool,
    pub authorizer: bool,
    /// The expression can construct `Object{…}` and `JSONPatch{…}`.
    pub patches: bool,
}

/// The environment of an expression about a request whose objects are of type dyn.
pub fn environment(given: OptionalVariables) -> Environment {
    let mut environment = of_request()
        .with("object", Type::Dyn)
        .with("oldObject", Type::Dyn);
    if given.patches {
        environment = environment.with_patches();
    }
    if given.params {
        environment.set("params", Type::Dyn);
    }
    if given.authorizer {
        let check = Type::Struct("kubernetes.authorization.ResourceCheck".into());
        environment.set("authorizer", authorizer());
        environment.set("authorizer.requestResource", check);
    }
    environment
}

/// The variables of every expression about a request, without the objects.
pub(super) fn of_request() -> Environment {
    Environment::default()
        .with_declared("namespaceObject", &namespace())
        .with_declared("request", &request())
}

pub(super) fn authorizer() -> Type {
    Type::Struct("kubernetes.authorization.Authorizer".into())
}

/// `variables`, each of which is of the type of its expression.
#[derive(Clone, Debug, Default)]
pub struct Composition(Vec<(String, Type)>);

impl Composition {
    /// Compiles a variable, which can use those before it, and declares it for those after it.
    pub fn add(
        &mut self,
        name: &str,
        expression: &str,
        environment: &Environment,
    ) -> Result<Compiled, CompileError> {
        let compiled = cel::compile(expression, &self.in_environment(environment));
        let found = compiled.as_ref().map_or(Type::Dyn, |c| as_field(c.output()));
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_string(), found));
        compiled
    }

    pub fn in_environment(&self, environment: &Environment) -> Environment {
        let fields = self
            .0
            .iter()
            .map(|(name, found)| (name.as_str(), of(found.clone())));
        let variables = Declared::object(VARIABLES, fields);
        environment.clone().with_declared("variables", &variables)
    }
}

/// The type of a variable in the expressions that use it: dyn where the type is neither simple, a list nor a map.
fn as_field(found: &Type) -> Type {
    match found {
        Type::List(of) => Type::list(as_field(of)),
        Type::Map(key, value) => Type::map(as_field(key), as_field(value)),
        Type::Struct(_) | Type::Opaque(..) | Type::Type(_) | Type::Param(_) | Type::Error => Type::Dyn,
        simple => simple.clone(),
    }
}

/// Compiles an expression that must evaluate to one of the types `expected`; empty: to any. The error is worded as kube-apiserver's.
pub fn compiled(
    text: &str,
    environment: &Environment,
    expected: &[Type],
) -> Result<Compiled, ExpressionError> {
    let compiled = cel::compile(text, environment)?;
    let found = compiled.output();
    if expected.is_empty() || expected.contains(found) {
        return Ok(compiled);
    }
    let found = found.declared_name();
    let names: Vec<String> = expected.iter().map(Type::declared_name).collect();
    Err(ExpressionError::Output(match names.as_slice() {
        [one] => format!("must evaluate to {one} but got {found}"),
        many => format!("must evaluate to one of [{}] but got {found}", many.join(" ")),
    }))
}
