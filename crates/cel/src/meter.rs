//! The runtime cost of an expression, in the units of [`super::check::cost`]; evaluation stops when it exceeds the limit.
//!
//! The interpreter counts no cost, so expressions are rewritten when they are read: parts that may not run (operands of
//! `&&`, branches, loops) report their cost when they run, and calls whose cost depends on the size of their arguments
//! report how large those were. What always runs has a cost that is known beforehand. Users cannot write the functions
//! that are inserted.

mod instrument;
mod price;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cel::Env;
use cel::ExecutionError;
use cel::common::types::{CelBool, CelInt, CelList, CelMap, DYN_TYPE, INT_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};

use super::library::Declared;
pub use instrument::instrumented;
use price::Price;

/// Most that one expression may cost; about a tenth of a second.
pub const CALL_COST_MAX: u64 = 1_000_000;
/// Most that all expressions may cost that validate one object, or one request by one policy.
pub const BUDGET: u64 = 10_000_000;
/// The same for the conditions of one policy or webhook.
pub const CONDITIONS_BUDGET: u64 = 2_500_000;

pub const EXCEEDED: &str = "operation cancelled: actual cost limit exceeded";
/// The message when a budget is spent.
pub const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The variable that contains the meter of the functions here.
const VARIABLE: &str = "@meter";
/// `@charge(@meter, cost, value)`: the value, at this cost.
const CHARGE: &str = "@charge";
/// `@goOn(@meter, condition, turn, value)`: a loop condition, at the cost of the condition and of the turn if it is true; false when
/// the limit is exceeded.
const GO_ON: &str = "@goOn";
/// `@size(@meter, slot, value)`: the value, whose size is remembered.
const SIZE: &str = "@size";
/// `@spend(@meter, price, slot, value)`: the value, whose cost depends on the sizes in that slot and the next.
const SPEND: &str = "@spend";

/// Counts the cost of expressions, one after the other.
#[derive(Debug, Default)]
pub struct Meter {
    spent: AtomicU64,
    exceeded: AtomicBool,
    sizes: Mutex<Vec<u64>>,
}

impl Meter {
    pub fn start(&self) {
        self.spent.store(0, Ordering::Relaxed);
        self.exceeded.store(false, Ordering::Relaxed);
    }

    pub fn spend(&self, cost: u64) {
        let before = self.spent.load(Ordering::Relaxed);
        let spent = before.saturating_add(cost);
        self.spent.store(spent, Ordering::Relaxed);
        if spent > CALL_COST_MAX {
            self.exceeded.store(true, Ordering::Relaxed);
        }
    }

    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    fn remember(&self, slot: usize, size: u64) {
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if sizes.len() <= slot {
            sizes.resize(slot + 1, 0);
        }
        if let Some(found) = sizes.get_mut(slot) {
            *found = size;
        }
    }

    fn remembered(&self, slot: usize) -> (u64, u64) {
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |slot: usize| sizes.get(slot).copied().unwrap_or_default();
        (at(slot), at(slot + 1))
    }
}

static TYPE: Type = Type::new_unspecified_type("kubernetes.meter");

/// A meter as a value.
#[derive(Clone, Debug)]
pub struct MeterValue(pub Arc<Meter>);

impl Val for MeterValue {
    fn get_type(&self) -> &Type {
        &TYPE
    }
    fn cel_type() -> &'static Type {
        &TYPE
    }
    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for MeterValue {}

pub fn variable(meter: &Arc<Meter>) -> (&'static str, Box<dyn Val>) {
    (VARIABLE, Box::new(MeterValue(meter.clone())))
}

type Args<'b, 'v> = Vec<CowVal<'b, 'v>>;

/// The meter, the numbers, and the value at the end.
fn taken<'b, 'v, const N: usize>(
    mut args: Args<'b, 'v>,
) -> Result<(Arc<Meter>, [u64; N], CowVal<'b, 'v>), ExecutionError> {
    let wrong = || ExecutionError::function_error("", "no such overload");
    let value = args.pop().ok_or_else(wrong)?;
    let first = args.first().ok_or_else(wrong)?;
    let meter = first
        .as_ref()
        .as_any()
        .and_then(|any| any.downcast_ref::<MeterValue>());
    let meter = meter.ok_or_else(wrong)?.0.clone();
    let mut numbers = [0; N];
    for (number, arg) in numbers.iter_mut().zip(args.iter().skip(1)) {
        let found = arg.as_ref().downcast_ref::<CelInt>().ok_or_else(wrong)?;
        *number = u64::try_from(*found.inner()).unwrap_or_default();
    }
    Ok((meter, numbers, value))
}

fn checked<'b, 'v>(meter: &Meter, value: CowVal<'b, 'v>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    match meter.is_exceeded() {
        true => Err(ExecutionError::function_error("", EXCEEDED)),
        false => Ok(value),
    }
}

/// The number of characters, items or entries; 1 for other values.
fn size(value: &dyn Val) -> u64 {
    let sized = value.as_sizer().map(|s| *s.size().inner());
    sized.map_or(1, |n| u64::try_from(n).unwrap_or_default())
}

pub fn declare(env: &mut Env) -> Declared {
    let two = || vec![TYPE.to_owned(), INT_TYPE, DYN_TYPE];
    env.add_overload(CHARGE, CHARGE, two(), |args| {
        let (meter, [cost], value) = taken(args)?;
        meter.spend(cost);
        checked(&meter, value)
    })?;
    let three = || vec![TYPE.to_owned(), INT_TYPE, INT_TYPE, DYN_TYPE];
    env.add_overload(GO_ON, GO_ON, three(), |args| {
        let (meter, [condition, step], value) = taken(args)?;
        let ends = value
            .as_ref()
            .downcast_ref::<CelBool>()
            .is_some_and(|on| !*on.inner());
        // The last evaluation of the loop condition is charged, too.
        meter.spend(if ends {
            condition
        } else {
            condition.saturating_add(step)
        });
        Ok(match meter.is_exceeded() {
            true => CowVal::owned(CelBool::from(false)),
            false => value,
        })
    })?;
    env.add_overload(SIZE, SIZE, two(), |args| {
        let (meter, [slot], value) = taken(args)?;
        meter.remember(usize::try_from(slot).unwrap_or_default(), size(value.as_ref()));
        Ok(value)
    })?;
    env.add_overload(SPEND, SPEND, three(), |args| {
        let (meter, [price, slot], value) = taken(args)?;
        let (a, b) = meter.remembered(usize::try_from(slot).unwrap_or_default());
        let is_list = value.as_ref().downcast_ref::<CelList>().is_some();
        let is_map = value.as_ref().downcast_ref::<CelMap>().is_some();
        // Numbers and the like have no size.
        let made = match value.as_ref().as_sizer() {
            Some(_) if !is_list && !is_map => Some(size(value.as_ref())),
            _ => None,
        };
        meter.spend(Price::cost(price, a, b, made));
        checked(&meter, value)
    })
}

#[cfg(test)]
mod tests;
