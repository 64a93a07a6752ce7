//! Kubernetes' quantity library: amounts of resources, compared and added.

use cel::Env;
use cel::common::types::{INT_TYPE, STRING_TYPE, Type};
use cel::objects::Opaque;
use knarr_apimachinery::quantity::{Notation, Quantity};

use super::library::{Declared, Library, call, inside, int, opaque, text};
use super::{Cel, EvaluationError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount(Quantity);

const NAME: &str = "kubernetes.Quantity";

impl Opaque for Amount {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

/// A quantity as a value.
pub(super) fn value(quantity: Quantity) -> Cel {
    opaque(Amount(quantity))
}

fn amount(value: &Cel) -> Result<Quantity, EvaluationError> {
    Ok(inside::<Amount>(value)?.0)
}

/// An argument that is a quantity or an integer.
fn addend(value: &Cel) -> Result<Quantity, EvaluationError> {
    match value {
        Cel::Int(_) => Ok(Quantity::from_value(int(value)?, Notation::DecimalSi)),
        other => amount(other),
    }
}

/// Whether it has no fraction.
fn is_integer(quantity: Quantity) -> bool {
    Quantity::from_value(quantity.value(), quantity.notation()) == quantity
}

pub fn declare(env: &mut Env) -> Declared {
    let of = Type::new_opaque_type(NAME);
    env.add_type(of.to_owned())?;
    let mut library = Library(env);
    library.global("quantity", &[STRING_TYPE], |args| {
        call(args, |[given]| {
            let quantity = Quantity::parse(text(&given)?);
            let quantity = quantity.map_err(|e| EvaluationError::Failed(e.to_string()))?;
            Ok(opaque(Amount(quantity)))
        })
    })?;
    library.global("isQuantity", &[STRING_TYPE], |args| {
        call(args, |[given]| {
            Ok(Cel::Bool(Quantity::parse(text(&given)?).is_ok()))
        })
    })?;
    let one = std::slice::from_ref(&of);
    library.member("sign", &of, &[], |args| {
        call(args, |[a]| {
            let a = amount(&a)?;
            Ok(Cel::Int(match (a.is_zero(), a.is_negative()) {
                (true, _) => 0,
                (false, true) => -1,
                (false, false) => 1,
            }))
        })
    })?;
    library.global("sign", std::slice::from_ref(&of), |args| {
        call(args, |[a]| {
            let a = amount(&a)?;
            Ok(Cel::Int(match (a.is_zero(), a.is_negative()) {
                (true, _) => 0,
                (false, true) => -1,
                (false, false) => 1,
            }))
        })
    })?;
    library.member("isGreaterThan", &of, one, |args| {
        call(args, |[a, b]| Ok(Cel::Bool(amount(&a)? > amount(&b)?)))
    })?;
    library.member("isLessThan", &of, one, |args| {
        call(args, |[a, b]| Ok(Cel::Bool(amount(&a)? < amount(&b)?)))
    })?;
    library.member("compareTo", &of, one, |args| {
        call(args, |[a, b]| Ok(Cel::Int(amount(&a)?.cmp(&amount(&b)?) as i64)))
    })?;
    library.member("asApproximateFloat", &of, &[], |args| {
        call(args, |[a]| {
            let a = amount(&a)?;
            Ok(Cel::Float(match is_integer(a) {
                true => a.value() as f64,
                false => a.milli_value() as f64 / 1000.0,
            }))
        })
    })?;
    library.member("isInteger", &of, &[], |args| {
        call(args, |[a]| Ok(Cel::Bool(is_integer(amount(&a)?))))
    })?;
    library.member("asInteger", &of, &[], |args| {
        call(args, |[a]| {
            let a = amount(&a)?;
            match is_integer(a) {
                true => Ok(Cel::Int(a.value())),
                false => Err(EvaluationError::Failed("cannot convert value to integer".into())),
            }
        })
    })?;
    for by in [of.to_owned(), INT_TYPE] {
        library.member("add", &of, &[by.to_owned()], |args| {
            call(args, |[a, b]| Ok(opaque(Amount(amount(&a)? + addend(&b)?))))
        })?;
        library.member("sub", &of, &[by], |args| {
            call(args, |[a, b]| Ok(opaque(Amount(amount(&a)? - addend(&b)?))))
        })?;
    }
    Ok(())
}
