//! How functions are declared: over owned values, with errors as strings.

use std::sync::Arc;

use cel::common::functions::Function;
use cel::common::types::Type;
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError};

use super::{Cel, EvaluationError};

pub type Declared = Result<(), DeclarationError>;

/// The functions of one library being added to an environment.
pub struct Library<'e>(pub &'e mut Env);

impl Library<'_> {
    /// `name(args)`
    pub fn global(&mut self, name: &str, args: &[Type], run: Function) -> Declared {
        let id = format!("{name}({})", names(args));
        self.0
            .add_overload(name, &id, args.iter().map(ToOwned::to_owned).collect(), run)
    }

    /// `target.name(args)`
    pub fn member(&mut self, name: &str, target: &Type, args: &[Type], run: Function) -> Declared {
        let id = format!("{}.{name}({})", target.name(), names(args));
        self.0.add_member_overload(
            name,
            &id,
            target.to_owned(),
            args.iter().map(ToOwned::to_owned).collect(),
            run,
        )
    }
}

fn names(types: &[Type]) -> String {
    let names: Vec<&str> = types.iter().map(Type::name).collect();
    names.join(",")
}

/// Calls `run` with the arguments as values.
pub fn call<'b, 'v, const N: usize>(
    args: Vec<CowVal<'b, 'v>>,
    run: impl FnOnce([Cel; N]) -> Result<Cel, EvaluationError>,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let values = args.iter().map(|arg| Cel::try_from(arg.as_ref()));
    let values = values.collect::<Result<Vec<Cel>, _>>()?;
    let count = values.len();
    let values: [Cel; N] = values
        .try_into()
        .map_err(|_| ExecutionError::invalid_argument_count(N, count))?;
    let given = run(values).map_err(|why| ExecutionError::function_error("", why))?;
    let given: Box<dyn Val> = given.try_into()?;
    Ok(CowVal::Owned(given))
}

pub fn opaque(value: impl Opaque) -> Cel {
    Cel::Opaque(Arc::new(value))
}

/// The Rust value in an opaque one.
pub fn inside<T: Opaque + Clone>(value: &Cel) -> Result<T, EvaluationError> {
    match value {
        Cel::Opaque(opaque) => opaque.downcast_ref::<T>().cloned(),
        _ => None,
    }
    .ok_or(EvaluationError::NoSuchOverload)
}

pub fn text(value: &Cel) -> Result<&str, EvaluationError> {
    match value {
        Cel::String(text) => Ok(text),
        _ => Err(EvaluationError::NoSuchOverload),
    }
}

pub fn int(value: &Cel) -> Result<i64, EvaluationError> {
    match value {
        Cel::Int(n) => Ok(*n),
        _ => Err(EvaluationError::NoSuchOverload),
    }
}

pub fn list(value: &Cel) -> Result<&[Cel], EvaluationError> {
    match value {
        Cel::List(list) => Ok(list),
        _ => Err(EvaluationError::NoSuchOverload),
    }
}

pub fn string(text: impl Into<String>) -> Cel {
    Cel::String(Arc::new(text.into()))
}
