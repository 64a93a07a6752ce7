//! The variables of a policy (`variables.x`). One that could not be evaluated fails where it is used.

use std::any::Any;
use std::collections::BTreeMap;

use cel::ExecutionError;
use cel::common::traits::Indexer;
use cel::common::types::{CelString, Type};
use cel::common::value::{CowVal, StaticVal, Val};

use super::{Cel, EvaluationError};

static TYPE: Type = Type::new_unspecified_type("kubernetes.variables");

/// See the module.
#[derive(Debug, Default)]
pub struct Variables(BTreeMap<String, Result<Box<dyn Val>, EvaluationError>>);

impl Variables {
    /// Of two variables with one name the later counts.
    pub fn put(&mut self, name: &str, value: Result<Cel, EvaluationError>) {
        let value = value.and_then(|value| {
            let value: Result<Box<dyn Val>, ExecutionError> = value.try_into();
            value.map_err(|e| EvaluationError::from(&e))
        });
        self.0.insert(name.to_string(), value);
    }
}

impl Clone for Variables {
    fn clone(&self) -> Self {
        let all = self.0.iter().map(|(name, value)| {
            let value = value.as_ref().map(|v| v.clone_as_boxed()).map_err(Clone::clone);
            (name.clone(), value)
        });
        Variables(all.collect())
    }
}

impl Val for Variables {
    fn get_type(&self) -> &Type {
        &TYPE
    }
    fn cel_type() -> &'static Type {
        &TYPE
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

impl StaticVal for Variables {}

impl Indexer for Variables {
    fn get<'b, 'v>(&'b self, name: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let name = name.downcast_ref::<CelString>().map(|n| n.inner().to_string());
        let name = name.unwrap_or_default();
        match self.0.get(&name) {
            Some(Ok(value)) => Ok(CowVal::Borrowed(&**value)),
            Some(Err(why)) => {
                let message = format!("composited variable {name:?} fails to evaluate: {why}");
                Err(ExecutionError::function_error("", message))
            }
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
