//! CEL selectors of dynamic resource allocation: expressions about one device of a ResourceSlice, as in DeviceClasses
//! and in requests of ResourceClaims (`resource.k8s.io/v1`, CELDeviceSelector).
//!
//! The only variable is `device`: its driver, attributes, capacity and whether it can be allocated several times. A
//! domain that a device has no attributes or capacity of is an empty map, so `device.attributes["a.example"].b` fails on
//! the missing `b` only. The cost of one evaluation is limited as for all expressions ([`super::meter::CALL_COST_MAX`],
//! which is also what the API allows a selector).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Sizer};
use cel::common::types::{CelString, MAP_TYPE, Type as ValueType};
use cel::common::value::{CowVal, StaticVal, Val};
use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceCapacity};
use knarr_apimachinery::quantity::{Quantity, QuantityError};

use super::check::{Declared, Environment, Type};
use super::{Cel, EvaluationError, ExpressionError, Program, Scope, compile, of_map};

/// Longest domain of a qualified name.
const DOMAIN_MAX: u64 = 63;
/// Longest identifier of a qualified name.
const ID_MAX: u64 = 32;
/// Longest text of an attribute.
const VALUE_MAX: u64 = 64;
/// Most attributes and capacities that a device has together.
const ENTRIES_MAX: u64 = 32;

/// The fields of a device that a selector can use.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    pub driver: &'a str,
    pub allow_multiple_allocations: bool,
    pub attributes: Option<&'a BTreeMap<String, DeviceAttribute>>,
    pub capacity: Option<&'a BTreeMap<String, DeviceCapacity>>,
}

/// A selector whose types were checked.
#[derive(Debug)]
pub struct Selector {
    program: Arc<Program>,
    /// What an evaluation can cost at most, as estimated from the sizes that the API allows.
    pub cost_max: u64,
}

/// Why a selector neither selects nor rejects a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    #[error("attribute {0}: unsupported attribute value")]
    Attribute(String),
    #[error("attribute {name}: parse semantic version: {source}")]
    Version { name: String, source: EvaluationError },
    #[error("capacity {name}: {source}")]
    Capacity { name: String, source: QuantityError },
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    #[error(
        "CEL result of type {0} could not be converted to bool: type conversion error from '{0}' to 'bool'"
    )]
    Output(String),
}

static DEVICE: LazyLock<Declared> = LazyLock::new(|| {
    let domains = |of: Declared| Declared::map(Declared::map(of, ENTRIES_MAX), ENTRIES_MAX);
    let quantity = Type::Struct("kubernetes.Quantity".into());
    Declared::object(
        "kubernetes.DRADevice",
        [
            ("driver", Declared::simple(Type::String, 2, DOMAIN_MAX)),
            ("allowMultipleAllocations", Declared::simple(Type::Bool, 4, 1)),
            ("attributes", domains(Declared::simple(Type::Any, 1, VALUE_MAX))),
            ("capacity", domains(Declared::simple(quantity, 1, ID_MAX))),
        ],
    )
});

static ENVIRONMENT: LazyLock<Environment> =
    LazyLock::new(|| Environment::default().with_declared("device", &DEVICE));

impl Selector {
    /// Parses and checks an expression.
    pub fn compile(text: &str) -> Result<Selector, ExpressionError> {
        let compiled = compile(text, &ENVIRONMENT)?;
        if !matches!(compiled.output(), Type::Bool | Type::Any | Type::Dyn) {
            let is = compiled.output().declared_name();
            let why = format!("must evaluate to bool or the unknown type, not {is}");
            return Err(ExpressionError::Output(why));
        }
        let variables = Declared::object("", [("device", DEVICE.clone())]);
        Ok(Selector {
            cost_max: compiled.cost_max(&variables),
            program: compiled.program,
        })
    }

    /// Whether the expression is true for the device.
    pub fn matches(&self, device: &Device<'_>) -> Result<bool, MatchError> {
        let mut attributes = BTreeMap::<&str, BTreeMap<&str, Cel>>::new();
        for (name, attribute) in device.attributes.into_iter().flatten() {
            let value = value(name, attribute)?;
            let (domain, id) = qualified(name, device.driver);
            attributes.entry(domain).or_default().insert(id, value);
        }
        let mut capacity = BTreeMap::<&str, BTreeMap<&str, Cel>>::new();
        for (name, of) in device.capacity.into_iter().flatten() {
            let value = Quantity::of(&of.value).map_err(|source| MatchError::Capacity {
                name: name.clone(),
                source,
            })?;
            let (domain, id) = qualified(name, device.driver);
            let of_domain = capacity.entry(domain).or_default();
            of_domain.insert(id, super::quantity::value(value));
        }
        let fields: BTreeMap<&str, Box<dyn Val>> = BTreeMap::from([
            ("driver", boxed(Cel::String(Arc::new(device.driver.to_string())))?),
            (
                "allowMultipleAllocations",
                boxed(Cel::Bool(device.allow_multiple_allocations))?,
            ),
            ("attributes", Domains::boxed(attributes)?),
            ("capacity", Domains::boxed(capacity)?),
        ]);
        let mut scope = Scope::default();
        scope.set_device(DeviceValue(fields));
        match self.program.run(&scope)? {
            Cel::Bool(matches) => Ok(matches),
            other => Err(MatchError::Output(other.type_of().to_string())),
        }
    }
}

impl Scope<'_> {
    fn set_device(&mut self, device: DeviceValue) {
        self.context.add_variable_as_val("device", Box::new(device));
    }
}

/// Domain and identifier of a qualified name; without a domain it is the driver's own.
pub fn qualified<'a>(name: &'a str, driver: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((driver, name))
}

fn value(name: &str, attribute: &DeviceAttribute) -> Result<Cel, MatchError> {
    match attribute {
        DeviceAttribute { int: Some(n), .. } => Ok(Cel::Int(*n)),
        DeviceAttribute { bool: Some(b), .. } => Ok(Cel::Bool(*b)),
        DeviceAttribute {
            string: Some(text), ..
        } => Ok(Cel::String(Arc::new(text.clone()))),
        DeviceAttribute {
            version: Some(text), ..
        } => super::semver::value(text).map_err(|source| MatchError::Version {
            name: name.to_string(),
            source,
        }),
        _ => Err(MatchError::Attribute(name.to_string())),
    }
}

fn boxed(value: Cel) -> Result<Box<dyn Val>, EvaluationError> {
    value
        .try_into()
        .map_err(|e: ExecutionError| EvaluationError::Failed(e.to_string()))
}

static DEVICE_TYPE: ValueType = ValueType::new_unspecified_type("kubernetes.DRADevice");

/// `device`.
#[derive(Debug)]
struct DeviceValue(BTreeMap<&'static str, Box<dyn Val>>);

impl Clone for DeviceValue {
    fn clone(&self) -> Self {
        let fields = self.0.iter();
        DeviceValue(fields.map(|(name, v)| (*name, v.clone_as_boxed())).collect())
    }
}

impl Val for DeviceValue {
    fn get_type(&self) -> &ValueType {
        &DEVICE_TYPE
    }
    fn cel_type() -> &'static ValueType {
        &DEVICE_TYPE
    }
    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }
    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for DeviceValue {}

impl Indexer for DeviceValue {
    fn get<'b, 'v>(&'b self, name: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let name = name.downcast_ref::<CelString>().map(|n| n.inner().to_string());
        let name = name.unwrap_or_default();
        match self.0.get(name.as_str()) {
            Some(value) => Ok(CowVal::Borrowed(&**value)),
            None => Err(ExecutionError::NoSuchKey(name.into())),
        }
    }

    fn steal<'v>(self: Box<Self>, name: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(name).map(CowVal::into_owned)
    }
}

/// Attributes or capacity by domain. A domain that is absent is an empty map when it is selected by its name; `in`,
/// `size` and loops see those that are there.
#[derive(Debug)]
struct Domains {
    map: Box<dyn Val>,
    nothing: Box<dyn Val>,
}

impl Domains {
    fn boxed(domains: BTreeMap<&str, BTreeMap<&str, Cel>>) -> Result<Box<dyn Val>, EvaluationError> {
        let domains = domains.into_iter().map(|(domain, of)| {
            let of = of.into_iter().map(|(id, value)| (id.to_string(), value));
            (domain.to_string(), of_map(of))
        });
        Ok(Box::new(Domains {
            map: boxed(of_map(domains))?,
            nothing: boxed(of_map(std::iter::empty()))?,
        }))
    }
}

impl Val for Domains {
    fn get_type(&self) -> &ValueType {
        &MAP_TYPE
    }
    fn cel_type() -> &'static ValueType {
        &MAP_TYPE
    }
    fn as_container(&self) -> Option<&dyn Container> {
        self.map.as_container()
    }
    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }
    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        self.map.as_iterable()
    }
    fn as_sizer(&self) -> Option<&dyn Sizer> {
        self.map.as_sizer()
    }
    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(Domains {
            map: self.map.clone_as_boxed(),
            nothing: self.nothing.clone_as_boxed(),
        })
    }
}

impl Indexer for Domains {
    fn get<'b, 'v>(&'b self, name: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let has = self.map.as_container().map(|map| map.contains(name));
        match (has, self.map.as_indexer()) {
            (Some(Ok(true)), Some(map)) => map.get(name),
            _ => Ok(CowVal::Borrowed(&*self.nothing)),
        }
    }

    fn steal<'v>(self: Box<Self>, name: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(name).map(CowVal::into_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(expression: &str) -> Result<bool, String> {
        let attribute = |of: DeviceAttribute| of;
        let attributes = BTreeMap::from([
            (
                "model".to_string(),
                attribute(DeviceAttribute {
                    string: Some("a100".into()),
                    ..Default::default()
                }),
            ),
            (
                "other.example/index".to_string(),
                attribute(DeviceAttribute {
                    int: Some(3),
                    ..Default::default()
                }),
            ),
            (
                "healthy".to_string(),
                attribute(DeviceAttribute {
                    bool: Some(true),
                    ..Default::default()
                }),
            ),
            (
                "driverVersion".to_string(),
                attribute(DeviceAttribute {
                    version: Some("1.2.3".into()),
                    ..Default::default()
                }),
            ),
        ]);
        let capacity = BTreeMap::from([(
            "memory".to_string(),
            DeviceCapacity {
                request_policy: None,
                value: k8s_openapi::apimachinery::pkg::api::resource::Quantity("40Gi".into()),
            },
        )]);
        let selector = Selector::compile(expression).map_err(|e| e.to_string())?;
        let found = selector.matches(&Device {
            driver: "gpu.example",
            allow_multiple_allocations: true,
            attributes: Some(&attributes),
            capacity: Some(&capacity),
        });
        found.map_err(|e| e.to_string())
    }

    #[test]
    fn a_selector_sees_driver_attributes_and_capacity() {
        for (expression, expect) in [
            ("true", true),
            (r#"device.driver == "gpu.example""#, true),
            ("device.allowMultipleAllocations", true),
            (r#"device.attributes["gpu.example"].model == "a100""#, true),
            (r#"device.attributes["gpu.example"].healthy"#, true),
            (r#"device.attributes["other.example"].index > 2"#, true),
            (r#""gone.example" in device.attributes"#, false),
            (r#""gpu.example" in device.attributes"#, true),
            (r#""x" in device.attributes["gone.example"]"#, false),
            (r#"has(device.attributes["gone.example"].x)"#, false),
            (
                r#"device.attributes["gpu.example"].driverVersion.isGreaterThan(semver("1.0.0"))"#,
                true,
            ),
            (
                r#"device.capacity["gpu.example"].memory.isGreaterThan(quantity("30Gi"))"#,
                true,
            ),
            (
                r#"device.capacity["gpu.example"].memory.compareTo(quantity("40Gi")) == 0"#,
                true,
            ),
            (r#"device.attributes.exists(d, d == "other.example")"#, true),
        ] {
            assert_eq!(holds(expression), Ok(expect), "{expression}");
        }
    }

    #[test]
    fn a_selector_that_fails_returns_the_error() {
        let missing = holds(r#"device.attributes["gone.example"].x == 1"#);
        assert_eq!(missing, Err("no such key: x".to_string()));
        let no_bool = holds(r#"device.attributes["gpu.example"].model"#).unwrap_err();
        assert!(no_bool.contains("could not be converted to bool"), "{no_bool}");
        for (expression, part) in [
            (
                "device.driver",
                "must evaluate to bool or the unknown type, not string",
            ),
            ("noSuchVariable", "undeclared reference to 'noSuchVariable'"),
            ("device.none", "undefined field 'none'"),
            ("1 +", "Syntax error"),
        ] {
            let error = Selector::compile(expression).unwrap_err().to_string();
            assert!(error.contains(part), "{expression}: {error}");
        }
    }
}
